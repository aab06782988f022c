//! [`Guard`]: owns a grant and gives it back.

use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;

use crate::backend::{Grant, Released, Why};
use crate::client::Shared;
use crate::clock::BootInstant;
use crate::error::{Error, Result};
use crate::lease::{Hold, Lease, LeaseState};
use crate::pending::Pending;

/// Holds a lock: it is renewed until the guard is released or dropped.
///
/// Dereferences to its [`Lease`], which tells how it stands. The guard is `Send`, `Sync` and `'static`: it may move
/// between tasks and live in a struct.
///
/// # Dropping
/// Release-on-drop is not immediate: the release is sent by a task of its own. Prefer [`release`](Self::release),
/// which answers when the lock is free. If the runtime shuts down first, the lock is left to expire; call
/// [`Locks::close`](crate::Locks::close) before that.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    lease: Lease,
    /// Taken by whoever ends the guard.
    pending: Option<Pending>,
}

impl Guard {
    /// Takes over a grant; gives `pending` back if the grant is worth nothing any more.
    pub(crate) fn new(mut pending: Pending, grant: Grant, now: BootInstant) -> Result<Self, Pending> {
        match Hold::begin(&pending.shared, pending.claim.clone(), grant, pending.trail(), now) {
            Some(hold) => {
                pending.kept();
                Ok(Self { lease: Lease { hold }, pending: Some(pending) })
            }
            None => Err(pending),
        }
    }

    /// The lease, for work that must be able to look at it elsewhere.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// Gives the lock back, and answers when it is free.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock had been lost before, by our clock or by the store's word: work done under it may
    /// overlap with its successor's. [`Error::Unavailable`] if the store did not answer: the release is tried again in
    /// the background until the lock must have expired by itself.
    ///
    /// # Cancel safety
    /// The release goes on in the background.
    pub async fn release(mut self) -> Result<()> {
        let pending = self.end().map_err(|why| self.lost_error(why))?;
        match pending.release().await {
            Ok(Released::Held) => {
                tracing::debug!(lock = %self.name(), token = %self.token(), "released");
                Ok(())
            }
            Ok(Released::Waited | Released::Absent) => Err(self.lost_error(Why::Gone)),
            Err(error) => Err(Error::from_store(Some(self.name()), &self.lease.hold.store, error)),
        }
    }

    /// Runs `work` under the lock, then gives it back. If the lock is lost first, `work` is dropped.
    pub(crate) async fn run<F, Fut>(self, work: F) -> Result<Fut::Output>
    where
        F: FnOnce(Lease) -> Fut,
        Fut: Future,
    {
        let done = {
            // Dropped at the end of this block: never beside a released lock.
            let work = pin!(work(self.lease()));
            tokio::select! {
                biased;
                why = self.lease.lost() => Err(why),
                output = work => Ok(output),
            }
        };
        match (done, self.state()) {
            (Err(why), _) | (Ok(_), LeaseState::Lost { why }) => Err(self.lost_error(why)),
            (Ok(output), _) => {
                // The work is done and was covered: a release that fails now is the background's business.
                if let Err(error) = self.release().await {
                    tracing::warn!(%error, "the release after a finished run failed");
                }
                Ok(output)
            }
        }
    }

    /// Ends the lease on this side and hands out the duty to end it at the store.
    ///
    /// # Errors
    /// Why it was lost, if it was: whatever the store still knows of it is released in the background.
    pub(crate) fn end(&mut self) -> Result<Pending, Why> {
        let mut pending = self.pending.take().expect("a guard is ended once");
        pending.not_kept();
        match self.lease.hold.give_back() {
            Ok(()) => Ok(pending),
            Err(why) => {
                // Nobody released a lost claim while work went on under it; that is over now.
                if why == Why::Closed {
                    pending.dismiss();
                }
                Err(why)
            }
        }
    }

    /// The client that took the lock.
    pub(crate) fn client(&self) -> &Arc<Shared> {
        &self.pending.as_ref().expect("a guard has a client until it is ended").shared
    }

    pub(crate) fn lost_error(&self, why: Why) -> Error {
        Error::Lost {
            lock: self.name().clone(),
            store: self.lease.hold.store.clone(),
            token: self.token(),
            why,
        }
    }
}

impl Deref for Guard {
    type Target = Lease;
    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.pending.is_some() {
            drop(self.end());
        }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Guard").field(&self.lease).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_and_leases_go_anywhere() {
        fn goes_anywhere<T: Send + Sync + 'static>() {}
        goes_anywhere::<Guard>();
        goes_anywhere::<Lease>();
        goes_anywhere::<crate::Lock>();
        goes_anywhere::<crate::Locks>();
        goes_anywhere::<crate::AllGuard>();
        goes_anywhere::<Error>();
    }
}
