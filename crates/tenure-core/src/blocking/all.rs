//! Several locks as one, without async.

use std::ops::Deref;
use std::time::Duration;

use super::wait_for;
use crate::error::Result;
use crate::lease::Lease;

/// Several locks to be taken as one: see [`crate::All`].
#[derive(Debug, Clone)]
#[must_use = "locks do nothing until they are taken"]
pub struct All {
    pub(super) inner: crate::All,
}

impl All {
    /// See [`crate::All::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { inner: self.inner.ttl(ttl) }
    }

    /// See [`crate::All::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self { inner: self.inner.wait(wait) }
    }

    /// See [`crate::All::reason`].
    pub fn reason(self, reason: impl AsRef<str>) -> Self {
        Self { inner: self.inner.reason(reason) }
    }

    /// Takes all of the locks, or none.
    ///
    /// # Errors
    /// Those of [`crate::All::acquire`].
    pub fn acquire(self) -> Result<AllGuard> {
        wait_for(self.inner.acquire()).map(|inner| AllGuard { inner })
    }

    /// Takes all of the locks, runs `work` under them on this thread, and gives them back: see
    /// [`Lock::run`](super::Lock::run).
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire), and [`Error::Lost`](crate::Error::Lost).
    pub fn run<T>(self, work: impl FnOnce(&[Lease]) -> T) -> Result<T> {
        let guard = self.acquire()?;
        let output = work(&guard.leases());
        if let Some(lost) = guard.inner.lost_now() {
            return Err(lost);
        }
        if let Err(error) = guard.release() {
            tracing::warn!(%error, "the release after a finished run failed");
        }
        Ok(output)
    }
}

/// Holds several locks as one: dereferences to [`crate::AllGuard`], whose `lost` is async.
#[derive(Debug)]
#[must_use = "the locks are released when the guard is dropped"]
pub struct AllGuard {
    inner: crate::AllGuard,
}

impl AllGuard {
    /// Gives all of them back, and returns when they are free.
    ///
    /// # Errors
    /// Those of [`crate::AllGuard::release`].
    pub fn release(self) -> Result<()> {
        wait_for(self.inner.release())
    }
}

impl Deref for AllGuard {
    type Target = crate::AllGuard;
    fn deref(&self) -> &crate::AllGuard {
        &self.inner
    }
}
