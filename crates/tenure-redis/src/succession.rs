//! A lock that goes from hand to hand within this process, before the store has heard of it.
//!
//! Whoever holds alone may hand on what is left of its term: nobody else gets the lock before that is over. So where the next
//! in line is a claim of this process, it need not wait until the store has heard of the release: it holds at once, as long
//! as the one before it would have, and with a token that the store has set aside for it. The store is told right after,
//! one request at a time and of all that have held since in one: who holds now (`scripts/hand_on.lua`). Who is next, the
//! store says when the lock comes to this process. Nobody is passed over: these are the first in line. This is the state of
//! it; `handing_on.rs` tells the claims and the store.
//! See `docs/decisions/0013-handed-on-before-the-store-hears.md`.

mod link;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::{Answer, BootInstant, ClaimId, FencingToken, Label, Released};

use crate::keys::Keys;
pub(crate) use link::Link;

/// How many of those in line the store names at the most: so many may hold before it has heard of the first.
pub(crate) const HEIRS_MAX: usize = 32;
/// A grant is handed on until this part of its life has passed: whoever gets it need not renew it at once.
const HANDED_ON_WITHIN: u32 = 3;
/// With fewer heirs than that, and nobody else in line, a lock that is held for less than a round trip is better given back:
/// those that were through by then would all wait for the store, one round trip more, and could not come to the line again
/// meanwhile. Where strangers are in line, they have the lock meanwhile.
const FEW: usize = 4;
/// While that is so, the store is asked for the next in line only every so many times.
const ASKED_EVERY: u32 = 16;
/// With so many locks, those whose grant is over are forgotten.
const SWEPT_FROM: usize = 1024;

/// The locks that go from hand to hand here.
#[derive(Debug, Default)]
pub(crate) struct Succession {
    /// How many there are, and how many are being added: where there is none, nothing need be locked.
    count: AtomicUsize,
    beginning: AtomicUsize,
    chains: Mutex<HashMap<Keys, Chain>>,
    /// Few were not worth it, and how often the store was not asked since.
    are_few_in_vain: AtomicBool,
    unasked: AtomicU32,
}

/// What a claim gets that is handed a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inheritance {
    pub(crate) token: FencingToken,
    pub(crate) since: BootInstant,
    pub(crate) ttl: Duration,
}

/// What became of an heir that was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It holds, by this name.
    Yes(Label),
    /// It does not listen at the moment.
    No,
    /// Nobody here knows it any more: it has given up.
    Gone,
}

/// One lock.
#[derive(Debug)]
struct Chain {
    link: Arc<Link>,
    /// Those that have held, in order: the first as far as the store has told, the last now. Never empty.
    held: Vec<Heir>,
    /// What the last is called, if it was handed the lock.
    label: Option<Label>,
    /// Those that are next in line.
    heirs: VecDeque<Heir>,
    /// After them comes a stranger.
    has_stranger: bool,
    /// The grant of the first, as the store made it.
    since: BootInstant,
    ttl: Duration,
    /// When that was heard of here.
    heard_at: BootInstant,
    /// Whether the connection over which it was heard has ended: what the store said then may be void by now.
    is_cut: Arc<AtomicBool>,
    /// The last of them is ending at the store: nothing is handed on any more.
    is_closing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heir {
    pub(crate) id: ClaimId,
    pub(crate) token: FencingToken,
}

/// A lock that has come here.
#[derive(Debug)]
pub(crate) struct Came<I> {
    pub(crate) first: ClaimId,
    pub(crate) grant: Inheritance,
    /// Those that are next in line.
    pub(crate) next: I,
    /// Whether the connection over which it was heard has ended.
    pub(crate) is_cut: Arc<AtomicBool>,
}

/// What becomes of a lock that has come here.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) has_heirs: bool,
    /// Who held it here before, and has lost it.
    pub(crate) lost: Option<ClaimId>,
}

/// How a claim ends.
#[derive(Debug)]
pub(crate) enum End {
    /// As the store knows it.
    AsStored,
    /// Another claim here holds in its place, and the store must hear of it.
    HandedOn(Arc<Link>),
    /// It was handed the lock, and there is nobody here to hand it on to.
    Last(Arc<Link>),
}

/// What the store must hear: who has held, and which is the last.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) held: Vec<ClaimId>,
    pub(crate) last: Heir,
    pub(crate) label: Label,
}

/// What the store answers to it: the grant of the last, and who is next in line.
#[derive(Debug)]
pub(crate) struct Confirmed {
    pub(crate) since: BootInstant,
    pub(crate) ttl: Duration,
    pub(crate) next: Vec<Heir>,
    pub(crate) is_cut: Arc<AtomicBool>,
}

impl Chain {
    fn last(&self) -> Heir {
        *self.held.last().expect("never empty")
    }

    /// Adds those that are next, as far as they are `ours`: nobody in between is passed over.
    fn extend(&mut self, next: Vec<Heir>, ours: impl Fn(ClaimId) -> bool) {
        if self.is_closing {
            return;
        }
        self.has_stranger = false;
        for heir in next {
            let is_known = |other: &Heir| other.id == heir.id;
            if self.held.iter().any(is_known) || self.heirs.iter().any(is_known) {
                continue;
            }
            if !ours(heir.id) {
                self.has_stranger = true;
                return;
            }
            self.heirs.push_back(heir);
        }
    }

    /// Whether few are next, and nobody else, to a claim that held the lock for less than a round trip.
    fn is_worth_little(&self, now: BootInstant) -> bool {
        let is_brief = now.saturating_since(self.heard_at) < self.heard_at.saturating_since(self.since);
        self.held.len() == 1 && self.heirs.len() < FEW && !self.has_stranger && is_brief
    }

    /// Hands the lock on to the next that listens. Stops at one that does not at the moment: it is its turn.
    fn hand_on(&mut self, now: BootInstant, tell: impl Fn(ClaimId, Inheritance) -> Heard) -> bool {
        let is_old = now.saturating_since(self.since) >= self.ttl / HANDED_ON_WITHIN;
        if is_old || self.is_cut.load(Ordering::Acquire) {
            self.heirs.clear();
        }
        while let Some(heir) = self.heirs.pop_front() {
            match tell(heir.id, Inheritance { token: heir.token, since: self.since, ttl: self.ttl }) {
                Heard::Yes(label) => {
                    self.held.push(heir);
                    self.label = Some(label);
                    return true;
                }
                Heard::No => self.heirs.clear(),
                Heard::Gone => {}
            }
        }
        false
    }

    /// The lock is with somebody else. Answers who has lost it: nobody, if the last of them gave it back.
    fn give_up(self) -> Option<ClaimId> {
        if self.link.is_overtaken() {
            return None;
        }
        self.link.is_lost.store(true, Ordering::SeqCst);
        Some(self.last().id)
    }
}

impl Succession {
    fn chains(&self) -> MutexGuard<'_, HashMap<Keys, Chain>> {
        self.chains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no lock goes from hand to hand here.
    pub(crate) fn is_idle(&self) -> bool {
        self.beginning.load(Ordering::SeqCst) == 0 && self.count.load(Ordering::SeqCst) == 0
    }

    fn with<T>(&self, f: impl FnOnce(&mut HashMap<Keys, Chain>) -> T) -> T {
        let mut chains = self.chains();
        let result = f(&mut chains);
        self.count.store(chains.len(), Ordering::SeqCst);
        result
    }

    /// How many of those next in line to ask the store for, where so many of this process are: one more, to see whether
    /// somebody comes after them.
    pub(crate) fn asks_for(&self, next: usize) -> usize {
        let is_in_vain = next < FEW && self.are_few_in_vain.load(Ordering::Relaxed);
        if is_in_vain && !self.unasked.fetch_add(1, Ordering::Relaxed).is_multiple_of(ASKED_EVERY) {
            return 0;
        }
        if next == 0 { 0 } else { (next + 1).min(HEIRS_MAX) }
    }

    /// The store has given the lock to a claim, and named those that are next: `ours` tells which are. Of no consequence if
    /// it is old news: the claim has ended, or another has held since.
    pub(crate) fn begin(
        &self,
        keys: &Keys,
        came: Came<impl Iterator<Item = ClaimId>>,
        awaits: impl Fn(ClaimId) -> bool,
        ours: impl Fn(ClaimId) -> bool,
        now: BootInstant,
    ) -> Begun {
        let Came { first, grant: Inheritance { token, since, ttl }, next, is_cut } = came;
        let next = numbered(token.get() + 1, next);
        let mut chain = Chain {
            link: Arc::default(),
            held: vec![Heir { id: first, token }],
            label: None,
            heirs: VecDeque::new(),
            has_stranger: false,
            since,
            ttl,
            heard_at: now,
            is_cut,
            is_closing: false,
        };
        // Either whoever ends `first` sees this, or we see that it ends.
        self.beginning.fetch_add(1, Ordering::SeqCst);
        let begun = self.with(|chains| {
            let is_old = chains.get(keys).is_some_and(|known| known.last().token > token);
            if is_old || !awaits(first) {
                return Begun::default();
            }
            if chains.len() >= SWEPT_FROM {
                let over = chains.extract_if(|_, chain| now >= chain.since + chain.ttl);
                for (_, chain) in over {
                    chain.give_up();
                }
            }
            chain.extend(next, ours);
            let before = chains.remove(keys);
            let has_heirs = !chain.heirs.is_empty();
            if has_heirs {
                chains.insert(keys.clone(), chain);
            }
            let lost = before.filter(|chain| chain.held.len() > 1).and_then(Chain::give_up);
            Begun { has_heirs, lost }
        });
        self.beginning.fetch_sub(1, Ordering::SeqCst);
        begun
    }

    /// The store has given the lock to a claim here in another way: what it said before is void. Answers who has lost it.
    pub(crate) fn granted(&self, keys: &Keys, id: ClaimId, token: FencingToken) -> Option<ClaimId> {
        self.with(|chains| {
            let last = chains.get(keys)?.last();
            if last.id == id || last.token >= token {
                return None;
            }
            chains.remove(keys).and_then(Chain::give_up)
        })
    }

    /// A claim ends. Hands its lock on, if it `may`.
    pub(crate) fn end(
        &self,
        keys: &Keys,
        id: ClaimId,
        may_hand_on: bool,
        now: BootInstant,
        tell: impl Fn(ClaimId, Inheritance) -> Heard,
    ) -> End {
        self.with(|chains| {
            let Some(chain) = chains.get_mut(keys) else { return End::AsStored };
            let Some(place) = chain.held.iter().position(|heir| heir.id == id) else {
                chain.heirs.retain(|heir| heir.id != id);
                return End::AsStored;
            };
            let is_last = place + 1 == chain.held.len();
            let is_in_vain = is_last && may_hand_on && chain.is_worth_little(now);
            if is_last && chain.held.len() == 1 && chain.heirs.len() < FEW {
                self.are_few_in_vain.store(is_in_vain, Ordering::Relaxed);
            }
            if !is_last || may_hand_on && !is_in_vain && chain.hand_on(now, tell) {
                return End::HandedOn(chain.link.clone());
            }
            chain.heirs.clear();
            if place > 0 || chain.is_closing {
                chain.is_closing = true;
                return End::Last(chain.link.clone());
            }
            chains.remove(keys);
            End::AsStored
        })
    }

    /// Whether the claim holds the lock here now.
    pub(crate) fn is_last(&self, keys: &Keys, id: ClaimId) -> bool {
        self.chains().get(keys).is_some_and(|chain| chain.last().id == id)
    }

    /// If the store has not heard that the claim holds: what it shares with those before it.
    pub(crate) fn unheard(&self, keys: &Keys, id: ClaimId) -> Option<Arc<Link>> {
        let chains = self.chains();
        let chain = chains.get(keys)?;
        (chain.held.len() > 1 && chain.last().id == id).then(|| chain.link.clone())
    }

    /// How a claim ended that has handed its lock on, if that is certain: the store has heard of it, or need not any more.
    pub(crate) fn settled(&self, keys: &Keys, id: ClaimId, link: &Link) -> Option<Answer<Released>> {
        let must_be_told = {
            let chains = self.chains();
            let is_among = |chain: &Chain| chain.held.iter().any(|heir| heir.id == id);
            chains.get(keys).is_some_and(|chain| chain.held.len() > 1 && is_among(chain))
        };
        (!must_be_told && !link.is_to_be_answered()).then(|| link.verdict())
    }

    /// What the store has not heard of the claim: that it holds, or that it does not any more.
    pub(crate) fn report(&self, keys: &Keys, id: ClaimId) -> Option<Report> {
        let chains = self.chains();
        let chain = chains.get(keys)?;
        if chain.held.len() < 2 || chain.held.iter().all(|heir| heir.id != id) {
            return None;
        }
        let held = chain.held.iter().map(|heir| heir.id).collect();
        Some(Report { held, last: chain.last(), label: chain.label.clone()? })
    }

    /// The store has heard that `last` held the lock.
    pub(crate) fn heard(
        &self,
        keys: &Keys,
        last: ClaimId,
        confirmed: Confirmed,
        ours: impl Fn(ClaimId) -> bool,
        now: BootInstant,
    ) {
        let mut chains = self.chains();
        let Some(chain) = chains.get_mut(keys) else { return };
        let Some(place) = chain.held.iter().position(|heir| heir.id == last) else { return };
        chain.held.drain(..place);
        (chain.since, chain.ttl, chain.heard_at) = (confirmed.since, confirmed.ttl, now);
        chain.is_cut = confirmed.is_cut;
        chain.extend(confirmed.next, ours);
    }

    /// The store knows the claim as the holder, and it ends: the rest is between the two.
    pub(crate) fn known(&self, keys: &Keys, id: ClaimId) {
        self.with(|chains| {
            if chains.get(keys).is_some_and(|chain| chain.last().id == id) {
                chains.remove(keys);
            }
        });
    }

    /// The lock is not ours any more. Answers who held it here.
    pub(crate) fn lost(&self, keys: &Keys, link: &Arc<Link>) -> Option<ClaimId> {
        link.is_lost.store(true, Ordering::SeqCst);
        self.with(|chains| {
            let is_it = chains.get(keys).is_some_and(|chain| Arc::ptr_eq(&chain.link, link));
            if is_it { chains.remove(keys).map(|chain| chain.last().id) } else { None }
        })
    }

    /// What the store said of those next in line is void.
    pub(crate) fn cut(&self) {
        if !self.is_idle() {
            self.chains().values_mut().for_each(|chain| chain.heirs.clear());
        }
    }

    /// The claim has lost its grant, or never took it: nothing is handed on.
    pub(crate) fn stop(&self, keys: &Keys, id: ClaimId) {
        self.with(|chains| {
            if let Some(chain) = chains.get_mut(keys).filter(|chain| chain.last().id == id) {
                chain.heirs.clear();
                if chain.held.len() == 1 {
                    chains.remove(keys);
                }
            }
        });
    }
}

/// Claims with tokens from `first` on.
pub(crate) fn numbered(first: u64, ids: impl Iterator<Item = ClaimId>) -> Vec<Heir> {
    (first..).zip(ids).map(|(token, id)| Heir { id, token: FencingToken::new(token) }).collect()
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
