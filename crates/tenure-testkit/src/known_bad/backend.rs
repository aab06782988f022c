//! The bugs themselves: the reference backend, with one of them in front.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::{
    Answer, Attempt, Backend, Busy, Capabilities, Claim, ClaimId, Eviction, FencingToken, Grant, Line,
    LockName, LockPage, LockState, Memory, Mode, Released, Renewal, Settled, StoreError, SystemEntropy,
    Trail, Ttl, Wake, Why,
};

use super::{Bug, RULES};
use crate::dice::Dice;
use crate::scene::{eviction, ms, now, sleep};

/// What the clients of a broken store remember together.
#[derive(Debug, Default)]
pub(super) struct Lore(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The newest grant of each name.
    newest: HashMap<LockName, Claim>,
    /// Tokens where the bug is in them.
    tokens: HashMap<ClaimId, u64>,
    last_token: u64,
    /// Who would stand in line, if there were one.
    waiting: Vec<ClaimId>,
    /// Who left, and is still to be taken out.
    leaving: Vec<Claim>,
    settled: HashSet<ClaimId>,
}

#[derive(Debug)]
pub(super) struct Bad {
    bug: Bug,
    memory: Memory,
    lore: Arc<Lore>,
    identity: ClaimId,
    own_tokens: Mutex<u64>,
    dice: Dice,
}

impl Bad {
    pub(super) fn new(bug: Bug, memory: Memory, lore: Arc<Lore>) -> Self {
        let identity = ClaimId::draw(&SystemEntropy);
        Self { bug, memory, lore, identity, own_tokens: Mutex::new(0), dice: Dice::new(3) }
    }

    fn lore(&self) -> MutexGuard<'_, Known> {
        self.lore.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name as this store understands it.
    fn name(&self, name: &LockName) -> LockName {
        let text = name.as_str();
        let understood = match self.bug {
            Bug::FoldsCase => text.to_ascii_lowercase(),
            Bug::CutsAtSixtyFourBytes => {
                let end = (0..=text.len().min(64)).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
                text[..end].to_owned()
            }
            Bug::CutsAtABrace => {
                let tag = text.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
                tag.filter(|tag| !tag.is_empty()).unwrap_or(text).to_owned()
            }
            _ => return name.clone(),
        };
        LockName::new(understood).expect("shorter or as long")
    }

    /// The claim as this store understands it.
    fn claim(&self, claim: &Claim) -> Claim {
        let mut claim = Claim { name: self.name(&claim.name), ..claim.clone() };
        match (self.bug, claim.mode) {
            (Bug::IdentityIsTheClient, _) => claim.id = self.identity,
            (Bug::OnePermitTooMany, Mode::Permits { n, of }) => claim.mode = Mode::Permits { n, of: of + 1 },
            (Bug::DeadHoldersStay, _) => claim.ttl = Ttl::new(Ttl::MAX).expect("the longest there is"),
            (Bug::MixesShapes, mode) => {
                claim.name = LockName::new(format!("{}:{}", claim.name, mode.shape())).expect("a short name");
            }
            _ => {}
        }
        claim
    }

    /// A grant that no store made.
    fn made_up(claim: &Claim) -> Attempt {
        // As high as the store's own would be: only the overlap gives it away.
        let token = FencingToken::new(SystemClock.unix_micros());
        Attempt::Granted(Grant { token, ttl: claim.ttl.get(), since: now(), revoked: None })
    }

    /// The token that this store would give.
    fn token(&self, claim: &Claim, given: FencingToken) -> FencingToken {
        let mut lore = self.lore();
        match self.bug {
            Bug::MineAlreadyGetsANewToken => {
                lore.last_token += 1;
                FencingToken::new(lore.last_token)
            }
            Bug::TokenRestartsAfterExpiry => {
                if let Some(known) = lore.tokens.get(&claim.id) {
                    return FencingToken::new(*known);
                }
                // Whoever gave it back is forgotten: if somebody is known still, it expired.
                let has_expired = lore.newest.contains_key(&claim.name);
                lore.last_token = if has_expired { 1 } else { lore.last_token + 1 };
                let token = lore.last_token;
                lore.tokens.insert(claim.id, token);
                FencingToken::new(token)
            }
            Bug::TokenIsPerClient => {
                let mut own = self.own_tokens.lock().unwrap_or_else(PoisonError::into_inner);
                *own += 1;
                FencingToken::new(*own)
            }
            _ => given,
        }
    }

    async fn granted(&self, asked: &Claim, claim: &Claim, mut grant: Grant) -> Attempt {
        grant.token = self.token(claim, grant.token);
        grant.ttl = grant.ttl.min(asked.ttl.get());
        self.lore().newest.insert(claim.name.clone(), claim.clone());
        if self.bug == Bug::TtlCountsFromTheReply {
            sleep(ms(300)).await;
            grant.since = now();
        }
        Attempt::Granted(grant)
    }

    async fn busy(&self, claim: &Claim, mut busy: Busy) -> Attempt {
        match self.bug {
            Bug::WakeUpsAreLost => busy.wake = Wake { at_latest: Duration::from_secs(3600), signal: None },
            Bug::SettlingWakesOne if busy.ahead > Some(0) => {
                busy.wake.signal = Some(Box::pin(std::future::pending()));
            }
            Bug::PushIsDatedByItsReading => {
                let signal = busy.wake.signal.take();
                busy.wake.signal = signal.map(|signal| -> tenure_core::BoxFuture<'static, _> {
                    Box::pin(async { signal.await.map(|grant| Grant { since: now(), ..grant }) })
                });
            }
            Bug::NewcomersBarge => {
                let mut lore = self.lore();
                let place = lore.waiting.iter().position(|id| *id == claim.id).unwrap_or_else(|| {
                    lore.waiting.push(claim.id);
                    lore.waiting.len() - 1
                });
                busy.ahead = u32::try_from(place).ok();
                busy.wake = Wake { at_latest: ms(5), signal: None };
            }
            Bug::ReadersPassAWriter if claim.mode == Mode::Shared => {
                let state = self.memory.inspect(&claim.name).await;
                let is_read = |state: LockState| state.holders.iter().all(|h| h.mode == Some(Mode::Shared));
                if state.is_ok_and(is_read) {
                    return Self::made_up(claim);
                }
            }
            Bug::TwoHoldersNowAndThen if self.dice.is_below(0.05) => return Self::made_up(claim),
            _ => {}
        }
        Attempt::Busy(busy)
    }
}

#[async_trait]
impl Backend for Bad {
    fn capabilities(&self) -> Capabilities {
        let mut offers = self.memory.capabilities();
        (offers.line_ttl, offers.first_ttl) = (RULES.line_ttl, RULES.first_ttl);
        offers
    }

    fn store(&self) -> &str {
        "known-bad:"
    }

    fn lane(&self, name: &LockName) -> u32 {
        self.memory.lane(name)
    }

    async fn attempt(&self, asked: &Claim, line: Line) -> Answer<Attempt> {
        let claim = self.claim(asked);
        let leaving = std::mem::take(&mut self.lore().leaving);
        for gone in leaving {
            self.memory.release(&gone, Trail::Clean).await?;
        }
        let line = match self.bug {
            Bug::NewcomersBarge => Line::Pass,
            Bug::TryingJoinsTheLine => Line::Join,
            _ => line,
        };
        let answer = self.memory.attempt(&claim, line).await;
        if let (Bug::AdoptedByAnybody, Line::Succeed(_), Err(_)) = (self.bug, line, &answer)
            && self.memory.inspect(&claim.name).await?.is_held()
        {
            return Ok(Self::made_up(&claim));
        }
        match answer? {
            Attempt::Granted(grant) => Ok(self.granted(asked, &claim, grant).await),
            Attempt::Busy(busy) => Ok(self.busy(&claim, busy).await),
            settled @ Attempt::Settled(_) => Ok(settled),
        }
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
        let understood: Vec<_> = claims.iter().map(|claim| Arc::new(self.claim(claim))).collect();
        if self.bug == Bug::RenewalsAreOnlyAnswered {
            return understood.iter().map(|claim| Ok(Renewal::Renewed { ttl: claim.ttl.get() })).collect();
        }
        let mut answers = self.memory.renew(&understood).await;
        for (claim, answer) in understood.iter().zip(&mut answers) {
            let renewed = Ok(Renewal::Renewed { ttl: claim.ttl.get() });
            match (self.bug, &*answer) {
                (Bug::RenewResurrects, Ok(Renewal::Lost(Why::Gone))) => {
                    if let Ok(Attempt::Granted(_)) = self.memory.attempt(claim, Line::Pass).await {
                        *answer = renewed;
                    }
                }
                (Bug::EvictedMayRenew, Ok(Renewal::Lost(Why::Evicted { .. }))) => *answer = renewed,
                _ => {}
            }
        }
        if self.bug == Bug::RenewalsAreAnsweredInAnyOrder {
            answers.reverse();
        }
        answers
    }

    async fn release(&self, asked: &Claim, trail: Trail) -> Answer<Released> {
        let claim = self.claim(asked);
        let state = self.memory.inspect(&claim.name).await?;
        let waits = state.waiters.iter().any(|waiter| waiter.fingerprint == claim.id.fingerprint());
        match self.bug {
            Bug::LeavingStaysInLine if waits => return Ok(Released::Waited),
            Bug::LeavingIsNoticedLater if waits => {
                self.lore().leaving.push(claim);
                return Ok(Released::Waited);
            }
            _ => {}
        }
        let trail = if self.bug == Bug::TombstonesAreIgnored { Trail::Clean } else { trail };
        let released = self.memory.release(&claim, trail).await?;
        let newest = match released {
            Released::Held => self.lore().newest.remove(&claim.name),
            _ => self.lore().newest.get(&claim.name).cloned(),
        };
        match newest {
            Some(other) if self.bug == Bug::ReleaseIgnoresTheClaim && released == Released::Absent => {
                self.memory.release(&other, trail).await
            }
            _ => Ok(released),
        }
    }

    async fn settle(&self, asked: &Claim, outcome: Bytes, keep: Duration) -> Answer<Settled> {
        let claim = self.claim(asked);
        let is_again = !self.lore().settled.insert(claim.id);
        if self.bug == Bug::RepeatedSettleIsRefused && is_again {
            return Ok(Settled::NotHeld);
        }
        let settled = self.memory.settle(&claim, outcome.clone(), keep).await?;
        if self.bug == Bug::SettlesAfterLoss && settled == Settled::NotHeld {
            self.memory.attempt(&claim, Line::Pass).await?;
            return self.memory.settle(&claim, outcome, keep).await;
        }
        Ok(settled)
    }

    async fn forget(&self, name: &LockName) -> Answer<bool> {
        if self.bug == Bug::ForgettingDropsClaims {
            self.memory.evict(&self.name(name), &eviction(true)).await?;
        }
        self.memory.forget(&self.name(name)).await
    }

    async fn inspect(&self, name: &LockName) -> Answer<LockState> {
        if self.bug == Bug::InspectLies {
            return Ok(LockState::free(name.clone()));
        }
        let mut state = self.memory.inspect(&self.name(name)).await?;
        state.name = name.clone();
        Ok(state)
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Answer<LockPage> {
        let mut page = self.memory.list(prefix, after, limit).await?;
        if self.bug == Bug::ListingStopsEarly {
            page.next = None;
        }
        Ok(page)
    }

    async fn evict(&self, name: &LockName, eviction: &Eviction) -> Answer<u32> {
        let force = eviction.force || self.bug == Bug::EvictionIsAlwaysForced;
        self.memory.evict(&self.name(name), &Eviction { force, ..eviction.clone() }).await
    }
}

/// A client that cannot reach the store, and says so in the wrong way.
#[derive(Debug)]
pub(super) struct CutOff {
    pub(super) bug: Bug,
    pub(super) inner: Arc<dyn Backend>,
}

#[async_trait]
impl Backend for CutOff {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn store(&self) -> &str {
        "known-bad:"
    }

    fn lane(&self, name: &LockName) -> u32 {
        self.inner.lane(name)
    }

    async fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        match (self.bug, self.inner.attempt(claim, line).await) {
            (Bug::FailureReadsAsBusy, Err(StoreError::Unknown(_))) => {
                let wake = Wake { at_latest: ms(100), signal: None };
                Ok(Attempt::Busy(Busy { holder: None, ahead: None, wake }))
            }
            (Bug::FailureReadsAsGranted, Err(StoreError::Unknown(_))) => {
                let (token, ttl) = (FencingToken::new(1), claim.ttl.get());
                Ok(Attempt::Granted(Grant { token, ttl, since: now(), revoked: None }))
            }
            (_, answer) => answer,
        }
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
        self.inner.renew(claims).await
    }

    async fn release(&self, claim: &Claim, trail: Trail) -> Answer<Released> {
        self.inner.release(claim, trail).await
    }

    async fn settle(&self, claim: &Claim, outcome: Bytes, keep: Duration) -> Answer<Settled> {
        self.inner.settle(claim, outcome, keep).await
    }

    async fn forget(&self, name: &LockName) -> Answer<bool> {
        self.inner.forget(name).await
    }

    async fn inspect(&self, name: &LockName) -> Answer<LockState> {
        self.inner.inspect(name).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Answer<LockPage> {
        self.inner.list(prefix, after, limit).await
    }

    async fn evict(&self, name: &LockName, eviction: &Eviction) -> Answer<u32> {
        self.inner.evict(name, eviction).await
    }
}
