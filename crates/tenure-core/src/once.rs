//! [`DoOnce`]: at most one settled run per name, with the result shared.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::backend::{Holder, RefusalKind, Settled};
use crate::claim::Mode;
use crate::clock::sleep_until;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::lease::Lease;
use crate::lock::{Lock, Taken};

/// The largest result that can be recorded, in bytes of JSON.
pub const OUTCOME_BYTES_MAX: usize = 256 * 1024;

/// Recorded in the place of a result that cannot be. No JSON begins like this.
const NOT_KEPT: &[u8] = b"\0tenure: done, its result was not kept";

/// A thing to be done once: made by [`Locks::once`](crate::Locks::once).
///
/// The first caller runs it; while it runs, it holds a lock for the [`ttl`](Self::ttl), renewed. If it succeeds, its
/// result is recorded and given to every later caller for the time of [`keep`](Self::keep). If it fails, panics, is
/// cancelled or dies, the next caller runs it.
///
/// A result over [256 KiB](OUTCOME_BYTES_MAX), or one that cannot be written as JSON, is not kept; that the thing was done
/// is. It is never run again for that: a missing receipt is better than a second charge.
///
/// At most one run per name is *settled*. A run that was interrupted may have had effects: that is what
/// [fencing tokens](Lease::token) are for.
#[derive(Debug, Clone)]
#[must_use = "does nothing until it is run"]
pub struct DoOnce {
    lock: Lock,
    keep: Duration,
}

/// What came of doing a thing once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "says whether the work ran"]
pub enum Once<T> {
    /// This call ran it, and that is recorded: with its result, if it could be kept.
    Ran(T),
    /// Somebody ran it before: this is what they recorded.
    AlreadyDone(T),
    /// Somebody ran it before, and its result was too large to keep, or of a kind that cannot be.
    ResultNotKept,
    /// Somebody is at it, and this call did not want to wait longer.
    InProgress {
        /// How long until the other's lease ends, if it is not renewed and the store says.
        left: Option<Duration>,
    },
    /// This call ran it, but its result is not recorded, or it is not known whether it is: the lease was lost before, or
    /// the store did not answer. Another caller may run it again.
    Unrecorded(T),
}

impl<T> Once<T> {
    /// The result, if there is one.
    pub fn into_inner(self) -> Option<T> {
        match self {
            Self::Ran(result) | Self::AlreadyDone(result) | Self::Unrecorded(result) => Some(result),
            Self::InProgress { .. } | Self::ResultNotKept => None,
        }
    }
}

/// How it stands with a thing to be done once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnceStatus {
    /// Nobody has done it, nobody is at it, or the record was not kept longer.
    Open,
    /// Somebody is at it.
    InProgress(Box<Holder>),
    /// Done.
    Done {
        /// How long the record is still kept.
        kept_for: Duration,
    },
}

impl DoOnce {
    /// How long a result is kept if nothing is said: 24 h.
    pub const KEEP_DEFAULT: Duration = Duration::from_secs(24 * 60 * 60);

    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock: lock.mode(Mode::Once).wait(Duration::ZERO), keep: Self::KEEP_DEFAULT }
    }

    /// How long the lock of a run in progress lives without renewal: 30 s if not said. If the process dies, the next
    /// caller may run it after that time.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { lock: self.lock.ttl(ttl), ..self }
    }

    /// How long the result is kept, and the thing not done again: 24 h if not said.
    pub fn keep(self, keep: Duration) -> Self {
        Self { keep, ..self }
    }

    /// How long to wait for a run in progress, in order to get its result: not at all if not said.
    pub fn wait(self, wait: Duration) -> Self {
        Self { lock: self.lock.wait(wait), ..self }
    }

    /// Who runs it, for people to read.
    pub fn label(self, label: impl AsRef<str>) -> Self {
        Self { lock: self.lock.label(label), ..self }
    }

    /// Why, for people to read.
    pub fn reason(self, reason: impl AsRef<str>) -> Self {
        Self { lock: self.lock.reason(reason), ..self }
    }

    /// Runs `work` if nobody has, and records its result; otherwise answers with what is recorded.
    ///
    /// # Errors
    /// The outer error is tenure's: [`Error::Lost`] if the lease ended before the work did (it was dropped then),
    /// [`Error::Unavailable`], [`Error::Refused`] (also for a record that is no `T`). The inner one is the work's: nothing
    /// is recorded then, and the next caller runs it at once.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work; the next caller runs it at once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure_core::Once;
    /// # let locks = tenure_core::Locks::in_memory();
    ///
    /// let charge = || locks.once("charge/1001").run(|_| async { Ok::<_, std::io::Error>(String::from("receipt 7")) });
    /// assert_eq!(charge().await??, Once::Ran("receipt 7".into()));
    /// assert_eq!(charge().await??, Once::AlreadyDone("receipt 7".into()));
    /// # Ok(()) }
    /// ```
    pub async fn run<T, E, F, Fut>(self, work: F) -> Result<Result<Once<T>, E>>
    where
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
    {
        let encode = |value: &T| {
            serde_json::to_vec(value)
                .map_err(|error| format!("the result cannot be written as JSON: {error}"))
        };
        let decode = |bytes: &[u8]| {
            serde_json::from_slice(bytes)
                .map_err(|error| format!("the recorded result is of another type: {error}"))
        };
        self.run_with(work, encode, decode).await
    }

    /// As [`run`](Self::run), with a result that is recorded byte for byte, up to [`OUTCOME_BYTES_MAX`] of them.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    ///
    /// # Cancel safety
    /// That of [`run`](Self::run).
    pub async fn run_bytes<E, F, Fut>(self, work: F) -> Result<Result<Once<Bytes>, E>>
    where
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = Result<Bytes, E>>,
    {
        self.run_with(work, |bytes| Ok(bytes.to_vec()), |bytes| Ok(Bytes::copy_from_slice(bytes))).await
    }

    async fn run_with<T, E, F, Fut>(
        self,
        work: F,
        encode: impl FnOnce(&T) -> Result<Vec<u8>, String>,
        decode: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<Result<Once<T>, E>>
    where
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        // A bad one is refused, and counted, with the lock.
        let name = self.lock.name().ok();
        let refused = |kind, message: String| Error::refused(name.as_ref(), kind, message);
        let guard = match self.lock.take().await {
            Ok(Taken::Guard(guard)) => guard,
            Ok(Taken::Settled(record)) if *record == *NOT_KEPT => return Ok(Ok(Once::ResultNotKept)),
            Ok(Taken::Settled(record)) => {
                let result =
                    decode(&record).map_err(|message| refused(RefusalKind::Configuration, message))?;
                return Ok(Ok(Once::AlreadyDone(result)));
            }
            Err(Error::Busy { holder, .. } | Error::TimedOut { holder, .. }) => {
                return Ok(Ok(Once::InProgress { left: holder.and_then(|holder| holder.expires_in) }));
            }
            Err(error) => return Err(error),
        };
        let done = {
            // Dropped at the end of this block: never beside a released lock.
            let work = pin!(work(guard.lease()));
            tokio::select! {
                biased;
                why = guard.lost() => return Err(guard.lost_error(why)),
                done = work => done,
            }
        };
        let result = match done {
            Ok(result) => result,
            Err(error) => {
                if let Err(error) = guard.release().await {
                    tracing::warn!(%error, "the release after a failed run failed");
                }
                return Ok(Err(error));
            }
        };
        // The work is done: whatever its result is like, it must not be done again.
        let outcome = match encode(&result) {
            Ok(outcome) if outcome.len() <= OUTCOME_BYTES_MAX => outcome.into(),
            Ok(outcome) => {
                let (bytes, max) = (outcome.len(), OUTCOME_BYTES_MAX);
                tracing::warn!(
                    lock = name.as_ref().map(crate::LockName::as_str),
                    bytes,
                    max,
                    "the result is too large to keep, only that it was done is"
                );
                Bytes::from_static(NOT_KEPT)
            }
            Err(error) => {
                tracing::warn!(
                    lock = name.as_ref().map(crate::LockName::as_str),
                    error,
                    "the result cannot be kept, only that it was done is"
                );
                Bytes::from_static(NOT_KEPT)
            }
        };
        Ok(Ok(if guard.settle(outcome, self.keep).await {
            Once::Ran(result)
        } else {
            Once::Unrecorded(result)
        }))
    }

    /// How it stands, as of now.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store did not serve, [`Error::Refused`] if it never will.
    ///
    /// # Cancel safety
    /// May be dropped at any time: it only looks.
    pub async fn status(&self) -> Result<OnceStatus> {
        let (name, shared) = (self.lock.name()?, self.lock.client());
        let state = shared.backend.inspect(&name).await;
        let state = state.map_err(|error| Error::from_store(Some(&name), &shared.store, error))?;
        Ok(match (state.settled_for, state.holders.into_iter().next()) {
            (Some(kept_for), _) => OnceStatus::Done { kept_for },
            (None, Some(holder)) => OnceStatus::InProgress(Box::new(holder)),
            (None, None) => OnceStatus::Open,
        })
    }

    /// Forgets the recorded result, so that the next caller runs it again; answers whether there was one. A run in
    /// progress is left alone.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store did not serve, [`Error::Refused`] if it never will.
    ///
    /// # Cancel safety
    /// The record may or may not be forgotten; it may be asked for again.
    pub async fn forget(&self) -> Result<bool> {
        let (name, shared) = (self.lock.name()?, self.lock.client());
        let answer = shared.backend.forget(&name).await;
        answer.map_err(|error| Error::from_store(Some(&name), &shared.store, error))
    }
}

impl Guard {
    /// Ends the claim with its result; answers whether that is surely recorded. Asks again while the lease lasts: the
    /// store answers a repeated settle as it did the first.
    async fn settle(mut self, outcome: Bytes, keep: Duration) -> bool {
        let (shared, claim) = (self.client().clone(), self.lease().hold.claim.clone());
        let mut pause = Duration::from_millis(5);
        loop {
            let answer = tokio::select! {
                answer = shared.backend.settle(&claim, outcome.clone(), keep) => answer,
                _ = self.lost() => return false,
            };
            match answer {
                Ok(Settled::Recorded) => {
                    // The claim ended with its settling: nothing is left to release.
                    if let Ok(mut pending) = self.end() {
                        pending.dismiss();
                    }
                    return true;
                }
                Ok(Settled::NotHeld) => return false,
                Err(error) if error.is_passing() => {
                    tracing::warn!(lock = %claim.name, %error, "the result could not be recorded, trying again");
                    // The caller learns that nothing is recorded when its lease ends, not a pause later.
                    tokio::select! {
                        biased;
                        _ = self.lost() => return false,
                        () = sleep_until(shared.clock.clone(), shared.clock.now() + pause) => {}
                    }
                    pause = (pause * 2).min(Duration::from_millis(500));
                }
                Err(error) => {
                    tracing::warn!(lock = %claim.name, %error, "the result could not be recorded");
                    return false;
                }
            }
        }
    }
}

impl fmt::Display for OnceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open"),
            Self::InProgress(holder) => write!(f, "in progress by {}", holder.label),
            Self::Done { .. } => f.write_str("done"),
        }
    }
}
