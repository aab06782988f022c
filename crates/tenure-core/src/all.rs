//! [`All`]: several locks as one.
//!
//! They are taken one after the other in the order of their names, so that overlapping sets never wait for each other
//! in a circle, whatever order their callers wrote them in.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::backend::{RefusalKind, Why};
use crate::clock::BootInstant;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::lease::{Lease, LeaseState};
use crate::lock::Lock;
use crate::name::LockName;
use crate::token::FencingToken;

/// Several locks to be taken as one: made by [`Locks::all`](crate::Locks::all).
#[derive(Debug, Clone)]
#[must_use = "locks do nothing until they are taken"]
pub struct All {
    /// In the order of their names, none twice, one at least. If one has a bad name, only that: it is refused when it is taken.
    locks: Result<Vec<Lock>>,
    wait: Option<Duration>,
}

impl All {
    pub(crate) fn new(locks: impl IntoIterator<Item = Lock>) -> Self {
        let named: Result<Vec<(LockName, Lock)>, Lock> = locks
            .into_iter()
            .map(|lock| lock.name().map_err(|_| lock.clone()).map(|name| (name, lock)))
            .collect();
        let locks = match named {
            Ok(named) if named.is_empty() => {
                let message =
                    "no lock is named, and what needs none would run unprotected: name one at least";
                Err(Error::refused(None, RefusalKind::Limit, message))
            }
            Ok(mut named) => {
                named.sort_by(|(a, _), (b, _)| a.cmp(b));
                named.dedup_by(|(a, _), (b, _)| a == b);
                Ok(named.into_iter().map(|(_, lock)| lock).collect())
            }
            Err(bad) => Ok(vec![bad]),
        };
        Self { locks, wait: None }
    }

    fn refine(self, change: impl Fn(Lock) -> Lock) -> Self {
        Self { locks: self.locks.map(|locks| locks.into_iter().map(change).collect()), ..self }
    }

    /// How long each lock lives without renewal: see [`Lock::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        self.refine(|lock| lock.ttl(ttl))
    }

    /// How long to wait for all of them together: for ever if not said.
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// Why, for people to read.
    pub fn reason(self, reason: impl AsRef<str>) -> Self {
        self.refine(|lock| lock.reason(&reason))
    }

    /// Takes all of the locks, or none.
    ///
    /// # Errors
    /// Those of [`Lock::acquire`], for the first lock that could not be had. None is held then. [`Error::Refused`] if no
    /// lock was named.
    ///
    /// # Cancel safety
    /// Dropping the future gives back what was taken.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
    /// # let locks = tenure_core::Locks::in_memory();
    /// let both = locks.all(["account/7", "account/3"]).acquire().await?;
    /// assert!(both.is_held());
    /// assert!(locks.lock("account/3").try_acquire().await?.is_none());
    /// both.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire(self) -> Result<AllGuard> {
        let locks = self.locks?;
        let clock = locks.first().map(|lock| lock.client().clock.clone());
        let start = clock.as_ref().map_or(BootInstant::NEVER, |clock| clock.now());
        let mut taken = AllGuard { guards: Vec::with_capacity(locks.len()) };
        for lock in locks {
            let lock = match (self.wait, &clock) {
                (Some(wait), Some(clock)) => lock.wait((start + wait).saturating_since(clock.now())),
                _ => lock,
            };
            match lock.acquire().await {
                Ok(guard) => taken.guards.push(guard),
                Err(error) => {
                    if let Err(error) = taken.release().await {
                        tracing::warn!(%error, "a lock taken together with others could not be given back");
                    }
                    return Err(match (error, self.wait) {
                        // No time was left for this one: together, they waited.
                        (Error::Busy { lock, store, holder }, Some(waited)) if !waited.is_zero() => {
                            Error::TimedOut { lock, store, waited, holder }
                        }
                        (error, _) => error,
                    });
                }
            }
        }
        Ok(taken)
    }

    /// Takes all of the locks, runs `work` under them, and gives them back: see [`Lock::run`].
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire), and [`Error::Lost`] if any of the locks is lost.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and gives back the locks.
    pub async fn run<F, Fut>(self, work: F) -> Result<Fut::Output>
    where
        F: FnOnce(Vec<Lease>) -> Fut,
        Fut: Future,
    {
        let guard = self.acquire().await?;
        let output = {
            let work = pin!(work(guard.leases()));
            tokio::select! {
                biased;
                lost = guard.lost() => return Err(lost),
                output = work => output,
            }
        };
        if let Some(lost) = guard.lost_now() {
            return Err(lost);
        }
        if let Err(error) = guard.release().await {
            tracing::warn!(%error, "the release after a finished run failed");
        }
        Ok(output)
    }
}

/// Holds several locks as one: lost as soon as any of them is.
#[derive(Debug)]
#[must_use = "the locks are released when the guard is dropped"]
pub struct AllGuard {
    guards: Vec<Guard>,
}

impl AllGuard {
    /// The leases, in the order of their names.
    pub fn leases(&self) -> Vec<Lease> {
        self.guards.iter().map(Guard::lease).collect()
    }

    /// The number of the grant of `name`, if it is one of these locks.
    pub fn token(&self, name: &str) -> Option<FencingToken> {
        self.guards.iter().find(|guard| guard.name().as_str() == name).map(|guard| guard.token())
    }

    /// Whether all of them are held.
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(|guard| guard.is_held())
    }

    /// For how long all of them are valid without another renewal.
    pub fn valid_for(&self) -> Duration {
        self.guards.iter().map(|guard| guard.valid_for()).min().unwrap_or_default()
    }

    /// Completes when any of them is lost, with the [`Error::Lost`] that tells which and why.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub async fn lost(&self) -> Error {
        let mut losses: Vec<_> = self.guards.iter().map(|guard| (guard, Box::pin(guard.lost()))).collect();
        poll_fn(|cx| {
            for (guard, loss) in &mut losses {
                if let Poll::Ready(why) = loss.as_mut().poll(cx) {
                    return Poll::Ready(guard.lost_error(why));
                }
            }
            Poll::Pending
        })
        .await
    }

    pub(crate) fn lost_now(&self) -> Option<Error> {
        let lost = |guard: &Guard| -> Option<Why> {
            if let LeaseState::Lost { why } = guard.state() { Some(why) } else { None }
        };
        self.guards.iter().find_map(|guard| Some(guard.lost_error(lost(guard)?)))
    }

    /// Gives all of them back, and answers when they are free.
    ///
    /// # Errors
    /// The first error of [`Guard::release`]; the others are given back all the same.
    ///
    /// # Cancel safety
    /// The releases go on in the background.
    pub async fn release(self) -> Result<()> {
        let mut outcome = Ok(());
        for guard in self.guards {
            let released = guard.release().await;
            outcome = outcome.and(released);
        }
        outcome
    }
}
