//! The reference backend: [`queue`](crate::queue) behind a mutex.
//!
//! For tests, for examples, and for locking inside one process with the same code that will lock across machines
//! later. Clones are further clients of the same store.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::backend::{
    Answer, Attempt, Backend, BoxFuture, Busy, Capabilities, Eviction, Fence, Grant, Line, LockPage,
    LockState, Released, Renewal, Settled, Trail, Wake, Why,
};
use crate::claim::{Claim, ClaimId};
use crate::clock::{BootInstant, Clock, SystemClock};
use crate::guarantee::Deployment;
use crate::listeners::Listeners;
use crate::name::LockName;
use crate::queue::{Attempted, Notice, Now, Queue, Rules, Step};
use crate::token::FencingToken;

/// Locks that live in this process's memory.
#[derive(Debug, Clone)]
pub struct Memory {
    store: Arc<Mutex<Store>>,
    clock: Arc<dyn Clock>,
    rules: Rules,
}

#[derive(Debug, Default)]
struct Store {
    locks: BTreeMap<LockName, Queue>,
    /// The highest token of all locks: so a lock that nobody uses can be forgotten whole.
    last_token: u64,
    waiting: Listeners<Option<Grant>>,
    holding: Listeners<Why>,
}

impl Memory {
    /// A new, empty store.
    pub fn new() -> Self {
        Self::with(Arc::new(SystemClock), Rules::DEFAULT)
    }

    /// A new, empty store with another clock and other lengths than the usual.
    pub fn with(clock: Arc<dyn Clock>, rules: Rules) -> Self {
        Self { store: Arc::default(), clock, rules }
    }

    /// The names of the locks that something is stored about, waiters that were given up included.
    pub fn stored_names(&self) -> Vec<LockName> {
        self.with_store(|store, now, _| {
            store.locks.retain(|_, queue| !queue.is_idle(now));
            store.locks.keys().cloned().collect()
        })
    }

    fn with_store<T>(&self, f: impl FnOnce(&mut Store, Now, BootInstant) -> T) -> T {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.clock.now();
        let token_floor = self.clock.unix_micros().max(store.last_token + 1);
        f(&mut store, Now { micros: at.as_nanos() / 1000, token_floor }, at)
    }

    /// Runs one verb on the queue of `name`, tells the waiters, and forgets the lock if nothing is left of it.
    fn verb<T>(&self, name: &LockName, verb: impl FnOnce(&mut Queue, Now) -> Step<T>) -> T {
        self.with_store(|store, now, at| store.verb(name, now, at, verb))
    }
}

impl Store {
    fn verb<T>(
        &mut self,
        name: &LockName,
        now: Now,
        at: BootInstant,
        verb: impl FnOnce(&mut Queue, Now) -> Step<T>,
    ) -> T {
        if !self.locks.contains_key(name) {
            self.locks.insert(name.clone(), Queue::default());
        }
        let queue = self.locks.get_mut(name).expect("inserted above");
        let Step { answer, notices } = verb(queue, now);
        self.last_token = self.last_token.max(queue.last_token().get());
        if queue.is_idle(now) {
            self.locks.remove(name);
        }
        for Notice { id, grant, .. } in notices {
            let grant = grant.map(|(token, ttl)| self.grant(id, token, ttl, at));
            // Nobody may be listening just now: the claim's next attempt finds the grant, or its ttl ends it.
            self.waiting.tell(id, grant);
        }
        answer
    }

    fn grant(&mut self, id: ClaimId, token: FencingToken, ttl: Duration, since: BootInstant) -> Grant {
        let revoked = self.holding.listen(id);
        let revoked = async {
            match revoked.await {
                Ok(why) => why,
                // Released, or granted again: this grant is not taken away.
                Err(_) => std::future::pending().await,
            }
        };
        Grant { token, ttl, since, revoked: Some(Box::pin(revoked)) }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Backend for Memory {
    fn capabilities(&self) -> Capabilities {
        let full = Capabilities::full(Fence::Durable, self.rules.line_ttl, self.rules.first_ttl);
        Capabilities { deployment: Deployment::Memory, ..full }
    }

    fn store(&self) -> &str {
        "memory:"
    }

    fn lane(&self, _name: &LockName) -> u32 {
        0
    }

    async fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        self.with_store(|store, now, at| {
            let attempted = store.verb(&claim.name, now, at, |queue, now| {
                match queue.attempt(now, &self.rules, claim, None, line) {
                    Ok(Step { answer, notices }) => Step { answer: Ok(answer), notices },
                    Err(refusal) => Step { answer: Err(refusal), notices: Vec::new() },
                }
            })?;
            Ok(match attempted {
                Attempted::Granted { token, ttl } => Attempt::Granted(store.grant(claim.id, token, ttl, at)),
                Attempted::Settled(outcome) => Attempt::Settled(outcome.into()),
                Attempted::Busy { holder, ahead, at_latest } => {
                    let signal = ahead.map(|_| {
                        let told = store.waiting.listen(claim.id);
                        let signal: BoxFuture<'static, _> = Box::pin(async { told.await.unwrap_or(None) });
                        signal
                    });
                    if ahead.is_none() {
                        store.waiting.forget(claim.id);
                    }
                    Attempt::Busy(Busy { holder, ahead, wake: Wake { at_latest, signal } })
                }
            })
        })
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
        let renew =
            |claim: &Arc<Claim>| self.verb(&claim.name, |queue, now| queue.renew(now, &self.rules, claim));
        claims.iter().map(|claim| Ok(renew(claim))).collect()
    }

    async fn release(&self, claim: &Claim, trail: Trail) -> Answer<Released> {
        self.with_store(|store, now, at| {
            store.waiting.forget(claim.id);
            store.holding.forget(claim.id);
            Ok(store
                .verb(&claim.name, now, at, |queue, now| queue.release(now, &self.rules, claim.id, trail)))
        })
    }

    async fn settle(&self, claim: &Claim, outcome: Bytes, keep: Duration) -> Answer<Settled> {
        self.with_store(|store, now, at| {
            store.holding.forget(claim.id);
            Ok(store.verb(&claim.name, now, at, |queue, now| {
                queue.settle(now, &self.rules, claim.id, &outcome, keep)
            }))
        })
    }

    async fn forget(&self, name: &LockName) -> Answer<bool> {
        Ok(self.verb(name, |queue, now| Step { answer: queue.forget(now), notices: Vec::new() }))
    }

    async fn inspect(&self, name: &LockName) -> Answer<LockState> {
        Ok(self.with_store(|store, now, _| match store.locks.get(name) {
            Some(queue) => queue.inspect(now, name.clone()),
            None => LockState::free(name.clone()),
        }))
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Answer<LockPage> {
        Ok(self.with_store(|store, now, _| {
            let after = after.and_then(|after| LockName::new(after).ok());
            let start = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let named = store.locks.range((start, Bound::Unbounded));
            let matching =
                named.filter(|(name, queue)| name.as_str().starts_with(prefix) && !queue.is_idle(now));
            let locks: Vec<_> =
                matching.take(limit.max(1)).map(|(name, queue)| queue.inspect(now, name.clone())).collect();
            let full = locks.len() == limit.max(1);
            LockPage {
                next: locks.last().filter(|_| full).map(|last| last.name.as_str().into()),
                locks,
                ..LockPage::default()
            }
        }))
    }

    async fn evict(&self, name: &LockName, eviction: &Eviction) -> Answer<u32> {
        self.with_store(|store, now, at| {
            let evicted = store.verb(name, now, at, |queue, now| {
                queue.evict(now, &self.rules, eviction.token, eviction.force, &eviction.reason)
            });
            for Notice { id, .. } in &evicted {
                store.holding.tell(*id, Why::Evicted { reason: Some(eviction.reason.clone()) });
            }
            Ok(u32::try_from(evicted.len()).unwrap_or(u32::MAX))
        })
    }
}
