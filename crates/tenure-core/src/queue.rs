//! The state of one lock, and what each verb does to it: a pure machine.
//!
//! No I/O and no clock: time is an argument, what must be told to whom is a result. The memory, embedded and SQL
//! backends put this state into their store and run it under its transaction; the Redis scripts are tested against
//! it. The whole lock is one idea, the line: a claim is granted as soon as it is compatible with everybody ahead.
//!
//! Every verb first forgets what has expired, then acts, then serves the line. So any verb on a lock whose holder or
//! whose head of the line is dead lets the line move.

mod handing_on;
mod looking;
mod stored;
mod terms;

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::{Holder, Line, Refusal, RefusalKind, Released, Renewal, Settled, Trail, Why};
use crate::claim::{Claim, ClaimId, Label, Mode, Reason};
use crate::token::FencingToken;
pub use stored::LAYOUT;
pub use terms::{Now, Owner, Rules};

/// The state of one lock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    last_token: u64,
    holders: Vec<HeldClaim>,
    line: VecDeque<WaitingClaim>,
    tombstones: Vec<Tombstone>,
    record: Option<Record>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct HeldClaim {
    who: Party,
    token: u64,
    since: u64,
    expires: u64,
    /// Evicted: renewals are refused, and it goes when it expires.
    evicted: Option<Reason>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WaitingClaim {
    who: Party,
    ttl: Duration,
    joined: u64,
    expires: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Party {
    id: ClaimId,
    mode: Mode,
    owner: Option<Owner>,
    label: Label,
    reason: Option<Reason>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Tombstone {
    id: ClaimId,
    until: u64,
    /// What the operator said, if the claim was evicted.
    evicted: Option<Reason>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    settled_by: ClaimId,
    outcome: Vec<u8>,
    until: u64,
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempted {
    /// The claim holds.
    Granted {
        /// The number of the grant.
        token: FencingToken,
        /// Its life from now.
        ttl: Duration,
    },
    /// It does not.
    Busy {
        /// One that does, if any: after an eviction of all waiters' predecessors there may be none.
        holder: Option<Holder>,
        /// How many waiters are ahead; `None` if it did not join.
        ahead: Option<u32>,
        /// When to attempt again, signal or not.
        at_latest: Duration,
    },
    /// Done before, with this result.
    Settled(Vec<u8>),
}

/// Something that a waiting party must be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Whose claim.
    pub id: ClaimId,
    /// The process it is tied to.
    pub owner: Option<Owner>,
    /// Its grant, or nothing: attempt again.
    pub grant: Option<(FencingToken, Duration)>,
}

/// The answer to a verb, and who else must be told.
#[derive(Debug)]
#[must_use = "the notices must be sent"]
pub struct Step<T> {
    /// The answer.
    pub answer: T,
    /// In the order of their grants.
    pub notices: Vec<Notice>,
}

impl Queue {
    /// One step of `claim` towards holding the lock: see [`Backend::attempt`](crate::Backend::attempt).
    ///
    /// # Errors
    /// A [`Refusal`] if the claim was ended before, has another shape than the live claims, asks for more permits
    /// than there are, or finds the line full. Nothing but expiry has happened then; the notices of that are lost,
    /// and harmlessly so: waiters look by themselves.
    pub fn attempt(
        &mut self,
        now: Now,
        rules: &Rules,
        claim: &Claim,
        owner: Option<Owner>,
        line: Line,
    ) -> Result<Step<Attempted>, Refusal> {
        let mut notices = Vec::new();
        self.forget_expired(now);
        if self.tombstones.iter().any(|t| t.id == claim.id) {
            return Err(ended());
        }
        if let Some(held) = self.holders.iter_mut().find(|h| h.who.id == claim.id) {
            if held.evicted.is_some() {
                return Err(ended());
            }
            held.expires = held.expires.max(now.after(claim.ttl.get()));
            held.who.owner = owner;
            let answer = Attempted::Granted { token: FencingToken::new(held.token), ttl: claim.ttl.get() };
            self.serve(now, rules, None, &mut notices);
            return Ok(Step { answer, notices });
        }
        if let Line::Succeed(predecessor) = line {
            return self.succeed(now, rules, claim, owner, predecessor);
        }
        if let (Mode::Once, Some(record)) = (claim.mode, &self.record) {
            let outcome = record.outcome.clone();
            self.line.retain(|w| w.who.id != claim.id);
            return Ok(Step { answer: Attempted::Settled(outcome), notices });
        }
        self.check_fit(claim)?;
        let place = self.line.iter().position(|w| w.who.id == claim.id);
        match place {
            Some(place) => {
                self.line[place].expires = now.after(rules.line_ttl);
                self.line[place].who.owner = owner;
            }
            None if self.line.len() >= rules.waiters_max && line == Line::Join => {
                let message =
                    format!("{} already wait for this lock, the most there may be", self.line.len());
                return Err(Refusal { kind: RefusalKind::Limit, message });
            }
            None => self.line.push_back(WaitingClaim {
                who: Party::of(claim, owner),
                ttl: claim.ttl.get(),
                joined: now.micros,
                expires: now.after(rules.line_ttl),
            }),
        }
        self.serve(now, rules, Some(claim.id), &mut notices);
        if let Some(held) = self.holders.iter().find(|h| h.who.id == claim.id) {
            let answer = Attempted::Granted { token: FencingToken::new(held.token), ttl: claim.ttl.get() };
            return Ok(Step { answer, notices });
        }
        let ahead = self.line.iter().position(|w| w.who.id == claim.id).unwrap_or(self.line.len());
        let holder = self.holders.first().map(|h| h.shown(now));
        let at_latest = self.look_again_after(now, rules, ahead);
        if line == Line::Pass {
            self.line.remove(ahead);
            self.serve(now, rules, None, &mut notices);
            return Ok(Step { answer: Attempted::Busy { holder, ahead: None, at_latest }, notices });
        }
        let ahead = u32::try_from(ahead).ok();
        Ok(Step { answer: Attempted::Busy { holder, ahead, at_latest }, notices })
    }

    /// Puts `claim` in the place of `predecessor`, which holds: with its token, and for a ttl from now.
    fn succeed(
        &mut self,
        now: Now,
        rules: &Rules,
        claim: &Claim,
        owner: Option<Owner>,
        predecessor: ClaimId,
    ) -> Result<Step<Attempted>, Refusal> {
        let held = self.holders.iter_mut().find(|h| h.who.id == predecessor);
        let Some(held) = held.filter(|h| h.evicted.is_none() && h.who.mode == claim.mode) else {
            return Err(ended());
        };
        held.who = Party::of(claim, owner);
        held.expires = held.expires.max(now.after(claim.ttl.get()));
        let answer = Attempted::Granted { token: FencingToken::new(held.token), ttl: claim.ttl.get() };
        self.bury(now, rules, predecessor, None);
        // Should it have waited: nobody both holds and waits, and the line may move without it.
        let mut notices = Vec::new();
        self.line.retain(|w| w.who.id != claim.id);
        self.serve(now, rules, None, &mut notices);
        Ok(Step { answer, notices })
    }

    /// Renews a claim: see [`Backend::renew`](crate::Backend::renew).
    pub fn renew(&mut self, now: Now, rules: &Rules, claim: &Claim) -> Step<Renewal> {
        let mut notices = Vec::new();
        self.forget_expired(now);
        // First, so that a waiter whose turn has come is not told that it lost.
        self.serve(now, rules, None, &mut notices);
        let answer = match self.holders.iter_mut().find(|h| h.who.id == claim.id) {
            Some(HeldClaim { evicted: Some(reason), .. }) => {
                Renewal::Lost(Why::Evicted { reason: Some(reason.clone()) })
            }
            Some(held) => {
                held.expires = held.expires.max(now.after(claim.ttl.get()));
                Renewal::Renewed { ttl: claim.ttl.get() }
            }
            None => Renewal::Lost(match self.tombstones.iter().find(|t| t.id == claim.id) {
                Some(Tombstone { evicted: Some(reason), .. }) => {
                    Why::Evicted { reason: Some(reason.clone()) }
                }
                _ => Why::Gone,
            }),
        };
        Step { answer, notices }
    }

    /// Ends a claim, held or waiting: see [`Backend::release`](crate::Backend::release).
    pub fn release(&mut self, now: Now, rules: &Rules, id: ClaimId, trail: Trail) -> Step<Released> {
        let mut notices = Vec::new();
        self.forget_expired(now);
        let (holders, waiters) = (self.holders.len(), self.line.len());
        self.holders.retain(|h| h.who.id != id);
        self.line.retain(|w| w.who.id != id);
        let answer = if self.holders.len() < holders {
            Released::Held
        } else if self.line.len() < waiters {
            Released::Waited
        } else {
            Released::Absent
        };
        if trail == Trail::Doubtful {
            self.bury(now, rules, id, None);
        }
        self.serve(now, rules, None, &mut notices);
        Step { answer, notices }
    }

    /// Ends a do-once with its result: see [`Backend::settle`](crate::Backend::settle).
    pub fn settle(
        &mut self,
        now: Now,
        rules: &Rules,
        id: ClaimId,
        outcome: &[u8],
        keep: Duration,
    ) -> Step<Settled> {
        let mut notices = Vec::new();
        self.forget_expired(now);
        self.serve(now, rules, None, &mut notices);
        if self.record.as_ref().is_some_and(|record| record.settled_by == id) {
            return Step { answer: Settled::Recorded, notices };
        }
        let place = self
            .holders
            .iter()
            .position(|h| h.who.id == id && h.who.mode == Mode::Once && h.evicted.is_none());
        let Some(place) = place else {
            self.serve(now, rules, None, &mut notices);
            return Step { answer: Settled::NotHeld, notices };
        };
        self.holders.remove(place);
        self.record = Some(Record { settled_by: id, outcome: outcome.to_vec(), until: now.after(keep) });
        // Nobody needs the lock any more: each waiter is told to look, and finds the record.
        notices.extend(self.line.drain(..).map(|w| Notice { id: w.who.id, owner: w.who.owner, grant: None }));
        Step { answer: Settled::Recorded, notices }
    }

    /// Forgets the record of a settled do-once; answers whether there was one.
    pub fn forget(&mut self, now: Now) -> bool {
        self.forget_expired(now);
        self.record.take().is_some()
    }

    /// Takes the lock away from its holders, or the one with `token`: see [`Backend::evict`](crate::Backend::evict).
    pub fn evict(
        &mut self,
        now: Now,
        rules: &Rules,
        token: Option<FencingToken>,
        force: bool,
        reason: &Reason,
    ) -> Step<Vec<Notice>> {
        let mut notices = Vec::new();
        self.forget_expired(now);
        let mut evicted = Vec::new();
        for held in &mut self.holders {
            if token.is_none_or(|token| token.get() == held.token) {
                held.evicted.get_or_insert_with(|| reason.clone());
                evicted.push(Notice { id: held.who.id, owner: held.who.owner, grant: None });
            }
        }
        for Notice { id, .. } in &evicted {
            self.bury(now, rules, *id, Some(reason));
        }
        if force {
            self.holders.retain(|h| evicted.iter().all(|e| e.id != h.who.id));
        }
        self.serve(now, rules, None, &mut notices);
        Step { answer: evicted, notices }
    }

    /// Ends every claim whose process is dead.
    pub fn reap(&mut self, now: Now, rules: &Rules, mut is_dead: impl FnMut(Owner) -> bool) -> Vec<Notice> {
        let mut notices = Vec::new();
        self.forget_expired(now);
        self.holders.retain(|h| !h.who.owner.is_some_and(&mut is_dead));
        self.line.retain(|w| !w.who.owner.is_some_and(&mut is_dead));
        self.serve(now, rules, None, &mut notices);
        notices
    }

    fn forget_expired(&mut self, now: Now) {
        self.holders.retain(|h| h.expires > now.micros);
        self.line.retain(|w| w.expires > now.micros);
        self.tombstones.retain(|t| t.until > now.micros);
        self.record.take_if(|record| record.until <= now.micros);
    }

    fn check_fit(&self, claim: &Claim) -> Result<(), Refusal> {
        if let Mode::Permits { n, of } = claim.mode {
            if n == 0 || n > of {
                let message = format!("{n} of {of} permits can never be had: ask for 1 to {of}");
                return Err(Refusal { kind: RefusalKind::Limit, message });
            }
        }
        let live = self.holders.iter().map(|h| &h.who).chain(self.line.iter().map(|w| &w.who)).next();
        match live.map(|who| who.mode.shape()) {
            Some(shape) if shape != claim.mode.shape() => {
                let message = format!(
                    "{:?} is in use as {shape} and cannot be used as {} until nobody holds or awaits it",
                    claim.name.as_str(),
                    claim.mode.shape()
                );
                Err(Refusal { kind: RefusalKind::Shape, message })
            }
            _ => Ok(()),
        }
    }

    /// Grants the head of the line while it is compatible with the holders. `asking` asked just now and gets its
    /// whole ttl; any other may be dead and must look first.
    fn serve(&mut self, now: Now, rules: &Rules, asking: Option<ClaimId>, notices: &mut Vec<Notice>) {
        while self.line.front().is_some_and(|head| self.has_room_for(head.who.mode)) {
            let Some(head) = self.line.pop_front() else { return };
            let asks = asking == Some(head.who.id);
            let ttl = if asks { head.ttl } else { head.ttl.min(rules.first_ttl) };
            self.last_token = (self.last_token + 1).max(now.token_floor);
            let token = self.last_token;
            if !asks {
                let grant = Some((FencingToken::new(token), ttl));
                notices.push(Notice { id: head.who.id, owner: head.who.owner, grant });
            }
            self.holders.push(HeldClaim {
                who: head.who,
                token,
                since: now.micros,
                expires: now.after(ttl),
                evicted: None,
            });
        }
    }

    fn has_room_for(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive | Mode::Once => self.holders.is_empty(),
            Mode::Shared => self.holders.iter().all(|h| h.who.mode == Mode::Shared),
            Mode::Permits { n, of } => {
                let taken = self.holders.iter().map(|h| match h.who.mode {
                    Mode::Permits { n, .. } => u64::from(n),
                    _ => u64::MAX,
                });
                taken.fold(u64::from(n), u64::saturating_add) <= u64::from(of)
            }
        }
    }

    fn bury(&mut self, now: Now, rules: &Rules, id: ClaimId, evicted: Option<&Reason>) {
        let until = now.after(rules.tombstone_ttl);
        match self.tombstones.iter_mut().find(|t| t.id == id) {
            Some(tombstone) => {
                tombstone.until = until;
                // What was said first stays said.
                tombstone.evicted = tombstone.evicted.take().or_else(|| evicted.cloned());
            }
            None => self.tombstones.push(Tombstone { id, until, evicted: evicted.cloned() }),
        }
    }

    /// The first few in line look when the first holder's ttl ends, one after the other: should it be dead, one of
    /// them serves the line. Everybody looks often enough to keep their place.
    fn look_again_after(&self, now: Now, rules: &Rules, ahead: usize) -> Duration {
        let at_least = rules.line_ttl / 3;
        let first_end = self.holders.iter().map(|h| h.expires).min();
        match (first_end, u32::try_from(ahead)) {
            (Some(end), Ok(ahead @ 0..3)) => {
                let stagger = Duration::from_millis(1) + Duration::from_millis(50) * ahead;
                at_least.min(now.until(end) + stagger)
            }
            _ => at_least,
        }
    }
}

impl Party {
    fn of(claim: &Claim, owner: Option<Owner>) -> Self {
        let Claim { id, mode, label, reason, .. } = claim.clone();
        Self { id, mode, owner, label, reason }
    }
}

fn ended() -> Refusal {
    Refusal { kind: RefusalKind::Ended, message: "this claim was ended before: released, or evicted".into() }
}
