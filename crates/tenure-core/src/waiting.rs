//! The one waiting loop.
//!
//! Turns single attempts into "acquire within this time": attempts, waits for the signal or the latest moment the
//! backend named, attempts again, and makes one last attempt at the deadline. Never believes a signal that carries an
//! expired grant.

use std::time::Duration;

use bytes::Bytes;

use crate::backend::{Attempt, Busy, Grant, Line, StoreError};
use crate::clock::{BootInstant, sleep_until};
use crate::error::{Error, Result};
use crate::lease::valid_until;
use crate::pending::Pending;

/// How long past the deadline the answer to a request that was sent before it is awaited.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Attempts of one claim are at least this far apart, even if the backend signals without end.
const ATTEMPT_SPACING: Duration = Duration::from_millis(1);
/// How long an acquire that is willing to wait bears with a store that has never answered it: long enough for a restart,
/// short enough to notice a wrong address. Once it was answered, it bears with the store as long as it waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long acquire may block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    AtMost(Duration),
    ForEver,
}

/// What waiting led to.
pub(crate) enum Obtained {
    Grant {
        grant: Grant,
        /// When it was found valid.
        now: BootInstant,
    },
    Settled(Bytes),
}

/// Attempts `pending` until it is granted or `wait`, counted from `start`, is over. On any other end, dropping `pending`
/// leaves nothing behind.
pub(crate) async fn obtain(pending: &mut Pending, wait: Wait, start: BootInstant) -> Result<Obtained> {
    let shared = pending.shared.clone();
    let (clock, name) = (&shared.clock, pending.claim.name.clone());
    let deadline = match wait {
        Wait::No => start,
        Wait::AtMost(duration) => start + duration,
        Wait::ForEver => BootInstant::NEVER,
    };
    let mut trouble: Option<Trouble> = None;
    let mut standing = None;
    let mut was_answered = false;
    // Looked up after whatever takes time, and only then.
    let mut now = start;
    loop {
        let sent = now;
        let is_last = sent >= deadline;
        let line = if is_last { Line::Pass } else { Line::Join };
        let answer = tokio::select! {
            biased;
            () = shared.closed() => return Err(Error::Closed),
            answer = pending.attempt(line) => answer,
            () = sleep_until(clock.clone(), sent.max(deadline) + ANSWER_WITHIN) => {
                let cause = StoreError::unknown(format!("nothing within {ANSWER_WITHIN:?}"));
                return Err(Error::from_store(Some(&name), &shared.store, cause));
            }
        };
        now = clock.now();
        was_answered |= answer.is_ok();
        let pause_until = match answer {
            Ok(Attempt::Settled(outcome)) => {
                tracing::debug!(lock = %name, "was done before");
                return Ok(Obtained::Settled(outcome));
            }
            Ok(Attempt::Granted(grant)) if now < valid_until(&grant) => {
                tracing::debug!(lock = %name, token = %grant.token, "granted");
                return Ok(Obtained::Grant { grant, now });
            }
            // The answer took longer than the grant is worth. The claim's next attempt re-arms it, or starts anew.
            Ok(Attempt::Granted(_)) => {
                let cause = StoreError::unknown("the grant was answered after it had expired");
                Trouble::add(&mut trouble, sent, cause)
            }
            Ok(Attempt::Busy(busy)) if is_last => {
                tracing::debug!(lock = %name, "busy, gives up");
                return Err(too_late(pending, wait, start, busy));
            }
            Ok(Attempt::Busy(busy)) => {
                trouble = None;
                tracing::debug!(lock = %name, ahead = busy.ahead, "busy, waits");
                standing.get_or_insert_with(|| shared.meters.waiting());
                let look_at = (now + busy.wake.at_latest).min(deadline);
                let signal = async {
                    match busy.wake.signal {
                        Some(signal) => signal.await,
                        None => std::future::pending().await,
                    }
                };
                let told = tokio::select! {
                    biased;
                    () = shared.closed() => return Err(Error::Closed),
                    told = signal => Some(told),
                    () = sleep_until(clock.clone(), look_at) => None,
                };
                now = clock.now();
                match told {
                    Some(Some(grant)) if now < valid_until(&grant) => {
                        tracing::debug!(lock = %name, token = %grant.token, "granted, by a signal");
                        return Ok(Obtained::Grant { grant, now });
                    }
                    Some(_) => {
                        tracing::debug!(lock = %name, "signalled, looks again");
                        sent + ATTEMPT_SPACING
                    }
                    None => continue,
                }
            }
            Err(error) if !error.is_passing() => {
                return Err(Error::from_store(Some(&name), &shared.store, error));
            }
            Err(error) => {
                tracing::info!(lock = %name, %error, "the store did not serve, is asked again");
                Trouble::add(&mut trouble, sent, error)
            }
        };
        if let Some(Trouble { cause, since, .. }) = &trouble {
            if is_last || (!was_answered && now >= *since + PATIENCE) {
                return Err(Error::from_store(Some(&name), &shared.store, cause.clone()));
            }
        }
        if now < pause_until {
            tokio::select! {
                biased;
                () = shared.closed() => return Err(Error::Closed),
                () = sleep_until(clock.clone(), pause_until.min(deadline)) => {}
            }
            now = clock.now();
        }
    }
}

fn too_late(pending: &Pending, wait: Wait, start: BootInstant, busy: Busy) -> Error {
    let (lock, store) = (pending.claim.name.clone(), pending.shared.store.clone());
    let holder = busy.holder.map(Box::new);
    match wait {
        Wait::No => Error::Busy { lock, store, holder },
        Wait::AtMost(_) | Wait::ForEver => {
            let waited = pending.shared.clock.now().saturating_since(start);
            Error::TimedOut { lock, store, waited, holder }
        }
    }
}

/// A store that does not serve, since when, and how often we asked.
struct Trouble {
    since: BootInstant,
    times: u32,
    cause: StoreError,
}

impl Trouble {
    /// Notes one more failure; answers when to attempt again: after 5 ms, doubling up to half a second.
    fn add(trouble: &mut Option<Self>, sent: BootInstant, cause: StoreError) -> BootInstant {
        let known = trouble.get_or_insert(Self { since: sent, times: 0, cause: cause.clone() });
        known.cause = cause;
        let pause = Duration::from_millis(5 << known.times.min(6)).min(Duration::from_millis(500));
        known.times += 1;
        sent + pause
    }
}
