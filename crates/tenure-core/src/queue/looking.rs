//! A lock as others see it.

use super::{HeldClaim, Now, Owner, Queue};
use crate::backend::{Holder, LockState, Waiter};
use crate::name::LockName;
use crate::token::FencingToken;

impl Queue {
    /// The processes that claims here are tied to.
    pub fn owners(&self) -> impl Iterator<Item = Owner> + '_ {
        let held = self.holders.iter().filter_map(|h| h.who.owner);
        held.chain(self.line.iter().filter_map(|w| w.who.owner))
    }

    /// The lock as an observer sees it.
    pub fn inspect(&self, now: Now, name: LockName) -> LockState {
        let mut state = LockState::free(name);
        state.token = (self.last_token > 0).then(|| FencingToken::new(self.last_token));
        state.holders =
            self.holders.iter().filter(|h| h.expires > now.micros).map(|h| h.shown(now)).collect();
        let live = self.line.iter().filter(|w| w.expires > now.micros);
        state.waiters = live
            .map(|w| Waiter {
                label: w.who.label.clone(),
                fingerprint: w.who.id.fingerprint(),
                mode: Some(w.who.mode),
                waiting_for: Some(now.since(w.joined)),
                reason: w.who.reason.clone(),
            })
            .collect();
        let record = self.record.as_ref().filter(|record| record.until > now.micros);
        state.settled_for = record.map(|record| now.until(record.until));
        state
    }

    /// The highest token given out.
    pub fn last_token(&self) -> FencingToken {
        FencingToken::new(self.last_token)
    }

    /// Whether nothing is left that anybody could miss, the highest token aside.
    pub fn is_idle(&self, now: Now) -> bool {
        self.holders.iter().all(|h| h.expires <= now.micros)
            && self.line.iter().all(|w| w.expires <= now.micros)
            && self.tombstones.iter().all(|t| t.until <= now.micros)
            && self.record.as_ref().is_none_or(|record| record.until <= now.micros)
    }

    /// When the next thing here expires, on the clock of [`Now::micros`].
    pub fn next_expiry(&self) -> Option<u64> {
        let held = self.holders.iter().map(|h| h.expires);
        let waiting = self.line.iter().map(|w| w.expires);
        let ended = self.tombstones.iter().map(|t| t.until);
        held.chain(waiting).chain(ended).chain(self.record.iter().map(|record| record.until)).min()
    }
}

impl HeldClaim {
    pub(super) fn shown(&self, now: Now) -> Holder {
        Holder {
            label: self.who.label.clone(),
            fingerprint: self.who.id.fingerprint(),
            token: Some(FencingToken::new(self.token)),
            mode: Some(self.who.mode),
            held_for: Some(now.since(self.since)),
            expires_in: Some(now.until(self.expires)),
            reason: self.who.reason.clone(),
            evicted: self.evicted.is_some(),
        }
    }
}
