//! [`Embedded`]: the verbs of the boundary, each one request to the store thread.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tenure_core::clock::{Clock as _, SystemClock};
use tenure_core::queue::{Attempted, Notice, Step};
use tenure_core::{
    Answer, Attempt, Backend, BootInstant, BoxFuture, Busy, Capabilities, Claim, Deployment, Eviction, Fence,
    FencingToken, Grant, Line, LockName, LockPage, LockState, Released, Renewal, Settled, Tie, Trail, Wake,
    Why,
};

use crate::config::Config;
use crate::error::OpenError;
use crate::registry;
use crate::store::Store;
use crate::wake::News;

/// How often the first in line looks whether the process that holds the lock died: nobody tells.
const LOOK_FIRST: Duration = Duration::from_millis(50);
/// How often the next few do, should the first be dead too.
const LOOK_NEXT: Duration = Duration::from_millis(250);
/// How often everybody does, should news get lost.
const LOOK_ALWAYS: Duration = Duration::from_secs(1);

/// Locks between the processes of this machine, in a directory.
///
/// Clones are further clients of the same store, and so is what a second [`open`](Self::open) of the same directory
/// answers: a process has each directory open once. When the last of them is dropped, the claims that this process
/// still has end.
#[derive(Debug, Clone)]
pub struct Embedded {
    store: Arc<Store>,
}

impl Embedded {
    /// Opens the store that `config` names, and makes it if it is not there. Blocks for some milliseconds, and for a
    /// few times [`Config::timeout`] at most.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was changed then.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        Ok(Self { store: registry::open(&config)? })
    }

    /// The directory, absolute and without links.
    pub fn directory(&self) -> &Path {
        &self.store.directory
    }

    /// The descriptor whose lock says that this process lives.
    ///
    /// Claims tied to this process end when *every* copy of it is closed. Give one to a child process
    /// (`try_clone_to_owned`, then clear `FD_CLOEXEC` of the copy in that child only) and the claims last until both
    /// have ended: that is how `tenure run` keeps a lock until its command is surely gone. A plain `fork` does not
    /// copy it, and `exec` closes it.
    pub fn liveness_fd(&self) -> BorrowedFd<'_> {
        self.store.liveness.descriptor()
    }

    /// The names of the locks that something is stored about, waiters that were given up included.
    ///
    /// # Errors
    /// If the store did not serve.
    #[doc(hidden)]
    pub async fn stored_names(&self) -> Answer<Vec<LockName>> {
        self.store.call(|batch| batch.stored_names().map(Ok)).await
    }

    fn grant(&self, claim: &Claim, token: FencingToken, ttl: Duration, since: BootInstant) -> Grant {
        Grant { token, ttl, since, revoked: Some(revoked(self.store.clone(), claim.clone())) }
    }
}

/// Completes when the claim is evicted.
fn revoked(store: Arc<Store>, claim: Claim) -> BoxFuture<'static, Why> {
    let mut told = store.listeners.for_eviction(claim.id);
    Box::pin(async move {
        let claim = Arc::new(claim);
        loop {
            let Ok(reason) = told.await else {
                // Released, or granted again: this grant is not taken away.
                return std::future::pending().await;
            };
            if !store.is_shared {
                return Why::Evicted { reason };
            }
            // Anybody may have said so. The store knows.
            told = store.listeners.for_eviction(claim.id);
            if let Some(Ok(Renewal::Lost(why))) = renew(&store, std::slice::from_ref(&claim)).await.pop() {
                return why;
            }
        }
    })
}

async fn renew(store: &Store, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
    let (wanted, rules) = (claims.to_vec(), store.rules);
    let renewed = store.call(move |batch| {
        let mut answers = Vec::with_capacity(wanted.len());
        for claim in &wanted {
            if batch.is_gone {
                // The lock is void with its directory: the holder must know now, not when its ttl ends.
                answers.push(Ok(Renewal::Lost(Why::Gone)));
                continue;
            }
            let answer = batch.change(&claim.name, |queue, now| queue.renew(now, &rules, claim))?;
            if let Ok(Renewal::Lost(_)) = answer {
                batch.forget(claim.id);
            }
            answers.push(answer);
        }
        Ok(Ok(answers))
    });
    renewed.await.unwrap_or_else(|error| claims.iter().map(|_| Err(error.clone())).collect())
}

#[async_trait]
impl Backend for Embedded {
    fn capabilities(&self) -> Capabilities {
        let rules = self.store.rules;
        let mut capabilities = Capabilities::full(Fence::ClockFloor, rules.line_ttl, rules.first_ttl);
        capabilities.deployment = Deployment::Embedded;
        capabilities
    }

    fn store(&self) -> &str {
        &self.store.url
    }

    fn lane(&self, _name: &LockName) -> u32 {
        0
    }

    async fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        let sent = SystemClock.now();
        let me = self.store.liveness.owner;
        let owner = (claim.tie == Tie::Process).then_some(me);
        // Listening before anything can be said.
        let told = (line == Line::Join).then(|| self.store.listeners.for_grant(claim.id));
        let (wanted, rules) = (claim.clone(), self.store.rules);
        let attempted = self.store.call(move |batch| {
            let answer = batch.grow(&wanted.name, |queue, now| {
                match queue.attempt(now, &rules, &wanted, owner, line) {
                    Ok(Step { answer, notices }) => {
                        let has_strangers = queue.owners().any(|owner| owner != me);
                        Step { answer: Ok((answer, has_strangers)), notices }
                    }
                    Err(refusal) => Step { answer: Err(refusal), notices: Vec::new() },
                }
            })?;
            let answer = answer.and_then(|answer| Ok(answer?));
            if let (Ok(_), Line::Succeed(predecessor)) = (&answer, line) {
                batch.forget(predecessor);
            }
            match (&answer, owner) {
                (Ok((Attempted::Granted { .. } | Attempted::Busy { ahead: Some(_), .. }, _)), Some(_)) => {
                    batch.keep(&wanted);
                }
                (Ok(_), _) => batch.forget(wanted.id),
                (Err(_), _) => {}
            }
            Ok(answer)
        });
        let (attempted, has_strangers) = attempted.await?;
        Ok(match attempted {
            Attempted::Granted { token, ttl } => Attempt::Granted(self.grant(claim, token, ttl, sent)),
            Attempted::Settled(outcome) => Attempt::Settled(outcome.into()),
            Attempted::Busy { holder, ahead, at_latest } => {
                let (backend, claim) = (self.clone(), claim.clone());
                let look = match ahead {
                    Some(0) if has_strangers || owner.is_none() => LOOK_FIRST,
                    Some(1..3) if has_strangers => LOOK_NEXT,
                    _ if owner.is_none() => LOOK_NEXT,
                    _ => LOOK_ALWAYS,
                };
                let signal = told.filter(|_| ahead.is_some()).map(|told| {
                    let signal: BoxFuture<'static, _> = Box::pin(async move {
                        let pushed = told.await.ok().flatten()?;
                        Some(backend.grant(&claim, pushed.token, pushed.ttl, pushed.since()))
                    });
                    signal
                });
                Attempt::Busy(Busy { holder, ahead, wake: Wake { at_latest: at_latest.min(look), signal } })
            }
        })
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
        renew(&self.store, claims).await
    }

    async fn release(&self, claim: &Claim, trail: Trail) -> Answer<Released> {
        self.store.listeners.forget(claim.id);
        let (name, id, rules) = (claim.name.clone(), claim.id, self.store.rules);
        let released = self.store.call(move |batch| {
            batch.forget(id);
            if batch.is_gone {
                return Ok(Ok(Released::Absent));
            }
            batch.change(&name, |queue, now| queue.release(now, &rules, id, trail))
        });
        released.await
    }

    async fn settle(&self, claim: &Claim, outcome: Bytes, keep: Duration) -> Answer<Settled> {
        let (name, id, rules) = (claim.name.clone(), claim.id, self.store.rules);
        let settled = self.store.call(move |batch| {
            let answer = batch.grow(&name, |queue, now| queue.settle(now, &rules, id, &outcome, keep))?;
            if answer.is_ok() {
                batch.forget(id);
            }
            Ok(answer)
        });
        let settled = settled.await;
        if settled.is_ok() {
            self.store.listeners.forget(claim.id);
        }
        settled
    }

    async fn forget(&self, name: &LockName) -> Answer<bool> {
        let name = name.clone();
        let forgotten = self.store.call(move |batch| {
            batch.change(&name, |queue, now| Step { answer: queue.forget(now), notices: Vec::new() })
        });
        forgotten.await
    }

    async fn inspect(&self, name: &LockName) -> Answer<LockState> {
        let name = name.clone();
        self.store.call(move |batch| batch.inspect(&name)).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Answer<LockPage> {
        let (prefix, after) = (prefix.to_string(), after.map(str::to_string));
        self.store.call(move |batch| batch.list(&prefix, after.as_deref(), limit)).await
    }

    async fn evict(&self, name: &LockName, eviction: &Eviction) -> Answer<u32> {
        let (name, eviction, rules) = (name.clone(), eviction.clone(), self.store.rules);
        let evicted = self.store.call(move |batch| {
            let Eviction { token, force, reason } = &eviction;
            let evicted =
                batch.change(&name, |queue, now| queue.evict(now, &rules, *token, *force, reason))?;
            Ok(evicted.map(|evicted| {
                let count = u32::try_from(evicted.len()).unwrap_or(u32::MAX);
                let news = evicted
                    .into_iter()
                    .map(|Notice { id, owner, .. }| (owner, id, News::Evicted(Some(reason.clone()))));
                batch.news.extend(news);
                count
            }))
        });
        evicted.await
    }
}
