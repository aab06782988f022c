//! Stores that say nothing, and clients that hear nothing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tenure_core::{
    Answer, Attempt, Backend, BoxFuture, Busy, Capabilities, Claim, Eviction, Grant, Line, LockName,
    LockPage, LockState, Released, Renewal, Settled, StoreError, Trail, Wake,
};
use tokio::sync::watch;

use super::{Around, Verb, backend};
use crate::scene::sleep;

/// A store that can fall silent: then it neither hears nor answers nor calls.
#[derive(Debug)]
pub struct Silent {
    inner: Arc<dyn Backend>,
    switch: Switch,
    deadline: Option<Duration>,
}

/// Makes a [`Silent`] store fall silent, and speak again.
#[derive(Debug, Clone)]
pub struct Switch(watch::Sender<bool>);

impl Switch {
    /// From now on nothing is answered.
    pub fn fall_silent(&self) {
        self.0.send_replace(true);
    }

    /// From now on requests are answered again; those sent meanwhile fail, as when a connection is found to be dead.
    pub fn speak(&self) {
        self.0.send_replace(false);
    }

    fn is_silent(&self) -> bool {
        *self.0.borrow()
    }

    /// Completes when the store speaks.
    async fn spoken(&self) {
        // The sender lives in `self`: it cannot be gone.
        let _ = self.0.subscribe().wait_for(|is_silent| !is_silent).await;
    }
}

impl Silent {
    /// `inner`, which answers until told otherwise.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner, switch: Switch(watch::Sender::new(false)), deadline: None }
    }

    /// Answers [`StoreError::Unknown`] after `deadline`, as the boundary demands; without one, not while it is silent.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// What makes it fall silent.
    pub fn switch(&self) -> Switch {
        self.switch.clone()
    }
}

impl Around for Silent {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn pass<T: Send + 'static>(
        &self,
        _: Verb<'_>,
        call: impl Fn() -> BoxFuture<'static, Answer<T>> + Send + Sync,
    ) -> Answer<T> {
        if !self.switch.is_silent() {
            let answer = call().await;
            if !self.switch.is_silent() {
                return answer;
            }
        }
        let deadline = async {
            match self.deadline {
                Some(deadline) => sleep(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = deadline => {}
            () = self.switch.spoken() => {}
        }
        Err(StoreError::unknown("the store is silent, on purpose"))
    }

    fn told(&self, attempt: Attempt) -> Attempt {
        match attempt {
            Attempt::Granted(grant) => {
                Attempt::Granted(Grant { revoked: grant.revoked.map(|revoked| self.gate(revoked)), ..grant })
            }
            Attempt::Busy(busy) => Attempt::Busy(Busy {
                wake: Wake { signal: busy.wake.signal.map(|signal| self.gate(signal)), ..busy.wake },
                ..busy
            }),
            settled @ Attempt::Settled(_) => settled,
        }
    }
}

impl Silent {
    /// Lets news through only while the store speaks.
    fn gate<T: Send + 'static>(&self, news: BoxFuture<'static, T>) -> BoxFuture<'static, T> {
        let switch = self.switch.clone();
        Box::pin(async move {
            let news = news.await;
            if switch.is_silent() { std::future::pending().await } else { news }
        })
    }
}

backend!(Silent);

/// Never wakes anybody: a client that hears no signal and is told to look in an hour.
#[derive(Debug)]
pub struct Deaf {
    inner: Arc<dyn Backend>,
}

impl Deaf {
    /// `inner`, without its signals.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner }
    }
}

impl Around for Deaf {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn pass<T: Send + 'static>(
        &self,
        _: Verb<'_>,
        call: impl Fn() -> BoxFuture<'static, Answer<T>> + Send + Sync,
    ) -> Answer<T> {
        call().await
    }

    fn told(&self, attempt: Attempt) -> Attempt {
        match attempt {
            Attempt::Busy(busy) => Attempt::Busy(Busy {
                wake: Wake { at_latest: Duration::from_secs(3600), signal: None },
                ..busy
            }),
            other => other,
        }
    }
}

backend!(Deaf);
