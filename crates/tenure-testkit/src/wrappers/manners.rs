//! Wrappers without a fault: they offer less, count, or give others a turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tenure_core::{
    Answer, Attempt, Backend, BoxFuture, Capabilities, Claim, Eviction, Line, LockName, LockPage, LockState,
    Released, Renewal, Settled, Trail,
};

use super::{Around, Verb, backend};

/// A store that can do less, and counts what it is asked.
#[derive(Debug)]
pub struct Limited {
    inner: Arc<dyn Backend>,
    offers: Capabilities,
    asked: AtomicUsize,
}

impl Limited {
    /// `inner`, offering only this.
    pub fn new(inner: Arc<dyn Backend>, offers: Capabilities) -> Self {
        Self { inner, offers, asked: AtomicUsize::new(0) }
    }

    /// How many requests it was sent.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Around for Limited {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn pass<T: Send + 'static>(
        &self,
        _: Verb<'_>,
        call: impl Fn() -> BoxFuture<'static, Answer<T>> + Send + Sync,
    ) -> Answer<T> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        call().await
    }

    fn offers(&self) -> Capabilities {
        self.offers
    }
}

backend!(Limited);

/// Gives every task a turn before and after each request: every verb has a moment at which it was sent and one at which
/// it was carried out, and both can be cancelled.
#[derive(Debug)]
pub struct Yielding {
    inner: Arc<dyn Backend>,
}

impl Yielding {
    /// `inner`, never answering at the first poll.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner }
    }
}

impl Around for Yielding {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn pass<T: Send + 'static>(
        &self,
        _: Verb<'_>,
        call: impl Fn() -> BoxFuture<'static, Answer<T>> + Send + Sync,
    ) -> Answer<T> {
        tokio::task::yield_now().await;
        let answer = call().await;
        tokio::task::yield_now().await;
        answer
    }
}

backend!(Yielding);
