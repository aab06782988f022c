//! What a network does to requests: delays, loses and repeats them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tenure_core::{
    Answer, Attempt, Backend, BoxFuture, Capabilities, Claim, Eviction, Line, LockName, LockPage, LockState,
    Released, Renewal, Settled, StoreError, Trail,
};

use super::{Around, Verb, backend};
use crate::dice::Dice;
use crate::scene::sleep;

/// Delays every request and every answer, each by up to so much.
#[derive(Debug)]
pub struct Laggy {
    inner: Arc<dyn Backend>,
    dice: Dice,
    before_max: Duration,
    after_max: Duration,
}

impl Laggy {
    /// Delays what `inner` is asked by up to `before_max`, and its answers by up to `after_max`.
    pub fn new(inner: Arc<dyn Backend>, seed: u64, before_max: Duration, after_max: Duration) -> Self {
        Self { inner, dice: Dice::new(seed), before_max, after_max }
    }
}

impl Around for Laggy {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn pass<T: Send + 'static>(
        &self,
        _: Verb<'_>,
        call: impl Fn() -> BoxFuture<'static, Answer<T>> + Send + Sync,
    ) -> Answer<T> {
        sleep(self.dice.up_to(self.before_max)).await;
        let answer = call().await;
        sleep(self.dice.up_to(self.after_max)).await;
        answer
    }
}

backend!(Laggy);

/// Loses requests, and answers to requests that were carried out: either way the client is told
/// [`StoreError::Unknown`].
#[derive(Debug)]
pub struct Flaky {
    inner: Arc<dyn Backend>,
    dice: Dice,
    requests_lost: f64,
    answers_lost: f64,
    /// How many more requests it may spoil.
    spoils: AtomicUsize,
}

impl Flaky {
    /// Loses this share of the requests, and this share of the answers.
    pub fn new(inner: Arc<dyn Backend>, seed: u64, requests_lost: f64, answers_lost: f64) -> Self {
        Self {
            inner,
            dice: Dice::new(seed),
            requests_lost,
            answers_lost,
            spoils: AtomicUsize::new(usize::MAX),
        }
    }

    /// Leaves every request after the first `count` alone.
    #[must_use]
    pub fn for_the_first(mut self, count: usize) -> Self {
        self.spoils = AtomicUsize::new(count);
        self
    }

    fn may_spoil(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        self.spoils.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    }
}

impl Around for Flaky {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn pass<T: Send + 'static>(
        &self,
        _: Verb<'_>,
        call: impl Fn() -> BoxFuture<'static, Answer<T>> + Send + Sync,
    ) -> Answer<T> {
        if !self.may_spoil() {
            return call().await;
        }
        if self.dice.is_below(self.requests_lost) {
            return Err(StoreError::unknown("the request was lost, on purpose"));
        }
        let answer = call().await;
        if self.dice.is_below(self.answers_lost) {
            return Err(StoreError::unknown("the answer was lost, on purpose"));
        }
        answer
    }
}

backend!(Flaky);

/// Sends every request twice, and after a release everything of that claim once more.
///
/// Whoever talks over such a network can never say that a trail is clean: this wrapper says so in the client's stead.
#[derive(Debug)]
pub struct Duplicating {
    inner: Arc<dyn Backend>,
    dice: Dice,
    late_by_max: Duration,
}

impl Duplicating {
    /// Sends what `inner` is asked twice, and late duplicates up to `late_by_max` after a release.
    pub fn new(inner: Arc<dyn Backend>, seed: u64, late_by_max: Duration) -> Self {
        Self { inner, dice: Dice::new(seed), late_by_max }
    }
}

impl Around for Duplicating {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn pass<T: Send + 'static>(
        &self,
        verb: Verb<'_>,
        call: impl Fn() -> BoxFuture<'static, Answer<T>> + Send + Sync,
    ) -> Answer<T> {
        let first = call().await;
        let second = call().await;
        match verb {
            // The signal of the second is the one that is listened for.
            Verb::Attempt => second,
            Verb::Release(claim) => {
                sleep(self.dice.up_to(self.late_by_max)).await;
                // What they answer is nobody's business: the client has its answer.
                let _ = self.inner.attempt(claim, Line::Join).await;
                let _ = self.inner.renew(&[Arc::new(claim.clone())]).await;
                let _ = call().await;
                first
            }
            Verb::Other => first,
        }
    }

    fn trail(&self, _: Trail) -> Trail {
        Trail::Doubtful
    }
}

backend!(Duplicating);
