//! Faults, put in through the trait: each wrapper is a [`Backend`] around another.
//!
//! Owns what a network and a store do to requests: delay them, lose them or their answers, send them twice, fall
//! silent. Knows nothing of locks; what a wrapper does depends on its seed and on nothing else.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use tenure_core::{Answer, Attempt, Backend, BoxFuture, Capabilities, Claim, Trail};

pub use manners::{Limited, Yielding};
pub use network::{Duplicating, Flaky, Laggy};
pub use silence::{Deaf, Silent, Switch};

mod manners;
mod network;
mod silence;

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

            fn in_doubt(&self) -> Option<BoxFuture<'static, ()>> {
                self.inner().in_doubt()
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

use backend;
