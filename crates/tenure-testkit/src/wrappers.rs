//! Faults, put in through the trait: each wrapper is a [`Backend`] around another.
//!
//! Owns what a network and a store do to requests: delay them, lose them or their answers, send them twice, fall
//! silent. Knows nothing of locks; what a wrapper does depends on its seed and on nothing else.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tenure_core::{
    Answer, Attempt, Backend, BoxFuture, Busy, Capabilities, Claim, Eviction, Grant, Line, LockName,
    LockPage, LockState, Released, Renewal, Settled, StoreError, Trail, Wake,
};
use tokio::sync::watch;

use crate::dice::Dice;
use crate::scene::sleep;

/// What is being asked, for wrappers that care.
#[derive(Debug, Clone, Copy)]
enum Verb<'a> {
    Attempt,
    Release(&'a Claim),
    Other,
}

/// What a wrapper does to every request. `call` sends it, each time it is called.
trait Around: Debug + Send + Sync + 'static {
    fn inner(&self) -> &Arc<dyn Backend>;

    fn pass<T: Send + 'static>(
        &self,
        verb: Verb<'_>,
        call: impl Fn() -> BoxFuture<'static, Answer<T>> + Send + Sync,
    ) -> impl Future<Output = Answer<T>> + Send;

    fn offers(&self) -> Capabilities {
        self.inner().capabilities()
    }

    fn trail(&self, trail: Trail) -> Trail {
        trail
    }

    fn told(&self, attempt: Attempt) -> Attempt {
        attempt
    }
}

/// Implements [`Backend`] through [`Around`].
macro_rules! backend {
    ($wrapper:ident) => {
        #[async_trait]
        impl Backend for $wrapper {
            fn capabilities(&self) -> Capabilities {
                self.offers()
            }

            fn store(&self) -> &str {
                self.inner().store()
            }

            fn lane(&self, name: &LockName) -> u32 {
                self.inner().lane(name)
            }

            async fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
                let call = || -> BoxFuture<'static, _> {
                    let (inner, claim) = (self.inner().clone(), claim.clone());
                    Box::pin(async move { inner.attempt(&claim, line).await })
                };
                self.pass(Verb::Attempt, call).await.map(|attempt| self.told(attempt))
            }

            async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
                let call = || -> BoxFuture<'static, _> {
                    let (inner, claims) = (self.inner().clone(), claims.to_vec());
                    Box::pin(async move { Ok(inner.renew(&claims).await) })
                };
                let answers = self.pass(Verb::Other, call).await;
                answers.unwrap_or_else(|error| vec![Err(error); claims.len()])
            }

            async fn release(&self, claim: &Claim, trail: Trail) -> Answer<Released> {
                let trail = self.trail(trail);
                let call = || -> BoxFuture<'static, _> {
                    let (inner, claim) = (self.inner().clone(), claim.clone());
                    Box::pin(async move { inner.release(&claim, trail).await })
                };
                self.pass(Verb::Release(claim), call).await
            }

            async fn settle(&self, claim: &Claim, outcome: Bytes, keep: Duration) -> Answer<Settled> {
                let call = || -> BoxFuture<'static, _> {
                    let (inner, claim, outcome) = (self.inner().clone(), claim.clone(), outcome.clone());
                    Box::pin(async move { inner.settle(&claim, outcome, keep).await })
                };
                self.pass(Verb::Other, call).await
            }

            async fn forget(&self, name: &LockName) -> Answer<bool> {
                let call = || -> BoxFuture<'static, _> {
                    let (inner, name) = (self.inner().clone(), name.clone());
                    Box::pin(async move { inner.forget(&name).await })
                };
                self.pass(Verb::Other, call).await
            }

            async fn inspect(&self, name: &LockName) -> Answer<LockState> {
                let call = || -> BoxFuture<'static, _> {
                    let (inner, name) = (self.inner().clone(), name.clone());
                    Box::pin(async move { inner.inspect(&name).await })
                };
                self.pass(Verb::Other, call).await
            }

            async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Answer<LockPage> {
                let call = || -> BoxFuture<'static, _> {
                    let (inner, prefix, after) =
                        (self.inner().clone(), prefix.to_owned(), after.map(str::to_owned));
                    Box::pin(async move { inner.list(&prefix, after.as_deref(), limit).await })
                };
                self.pass(Verb::Other, call).await
            }

            async fn evict(&self, name: &LockName, eviction: &Eviction) -> Answer<u32> {
                let call = || -> BoxFuture<'static, _> {
                    let (inner, name, eviction) = (self.inner().clone(), name.clone(), eviction.clone());
                    Box::pin(async move { inner.evict(&name, &eviction).await })
                };
                self.pass(Verb::Other, call).await
            }
        }
    };
}

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
