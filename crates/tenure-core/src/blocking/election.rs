//! Elections, without async.

use std::ops::Deref;
use std::time::Duration;

use super::wait_for;
use crate::backend::Holder;
use crate::error::Result;
use crate::lease::Lease;

/// An election: see [`crate::Election`].
#[derive(Debug, Clone)]
#[must_use = "an election does nothing until somebody campaigns or looks"]
pub struct Election {
    pub(super) inner: crate::Election,
}

impl Election {
    /// See [`crate::Election::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { inner: self.inner.ttl(ttl) }
    }

    /// See [`crate::Election::label`].
    pub fn label(self, label: impl AsRef<str>) -> Self {
        Self { inner: self.inner.label(label) }
    }

    /// See [`crate::Election::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self { inner: self.inner.wait(wait) }
    }

    /// See [`crate::Election::look_every`].
    pub fn look_every(self, look_every: Duration) -> Self {
        Self { inner: self.inner.look_every(look_every) }
    }

    /// Waits to become the leader.
    ///
    /// # Errors
    /// Those of [`crate::Election::campaign`].
    pub fn campaign(&self) -> Result<Leadership> {
        let election = self.inner.clone();
        wait_for(async move { election.campaign().await }).map(|inner| Leadership { inner })
    }

    /// Who leads, as of now.
    ///
    /// # Errors
    /// Those of [`crate::Election::leader`].
    pub fn leader(&self) -> Result<Option<Holder>> {
        let election = self.inner.clone();
        wait_for(async move { election.leader().await })
    }

    /// Who leads, now and whenever it changes: see [`crate::Election::observe`]. An iterator that never ends.
    ///
    /// # Errors
    /// Those of [`crate::Election::observe`].
    pub fn observe(&self) -> Result<Observation> {
        Ok(Observation { inner: Some(self.inner.observe()?) })
    }
}

/// Being the leader: see [`crate::Leadership`]. Dereferences to its [`Lease`].
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership {
    inner: crate::Leadership,
}

impl Leadership {
    /// Steps down: the next candidate in line leads.
    ///
    /// # Errors
    /// Those of [`crate::Leadership::resign`].
    pub fn resign(self) -> Result<()> {
        wait_for(self.inner.resign())
    }
}

impl Deref for Leadership {
    type Target = Lease;
    fn deref(&self) -> &Lease {
        &self.inner
    }
}

/// The changes of leadership: see [`Election::observe`]. Each step waits for the next one.
#[derive(Debug)]
pub struct Observation {
    /// Away while a change is waited for.
    inner: Option<crate::Observation>,
}

impl Iterator for Observation {
    type Item = Result<Option<Holder>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut inner = self.inner.take()?;
        let (inner, change) = wait_for(async move {
            let change = inner.next().await;
            (inner, change)
        });
        self.inner = Some(inner);
        Some(change)
    }
}
