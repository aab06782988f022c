//! A lock that is handed on by its holder, before the store has heard of it.

use std::time::Duration;

use super::{Now, Party, Queue, Rules, Step};
use crate::claim::{ClaimId, Label, Mode};
use crate::token::FencingToken;

impl Queue {
    /// The first in line, `count` of them at the most, and the number of the first: theirs are set aside, one each, and
    /// given to nobody else. Whoever holds alone may [hand the lock on](Self::hand_on) to them, in this order.
    pub fn name_heirs(&mut self, now: Now, count: usize) -> (FencingToken, Vec<ClaimId>) {
        self.forget_expired(now);
        let heirs: Vec<ClaimId> = self.line.iter().take(count).map(|waiting| waiting.who.id).collect();
        (self.set_aside(now, heirs.len()), heirs)
    }

    /// Sets numbers aside; answers the first.
    pub fn set_aside(&mut self, now: Now, count: usize) -> FencingToken {
        let first = (self.last_token + 1).max(now.token_floor);
        if let Some(others) = u64::try_from(count).ok().and_then(|count| count.checked_sub(1)) {
            self.last_token = first + others;
        }
        FencingToken::new(first)
    }

    /// The lock went from hand to hand: `held` have held it alone, in this order, and the last holds it now, with that
    /// token and label. One
    /// of them holds as far as is known here, or they have lost it: answers for how long the last holds, if it does. Those
    /// that have had their turn leave the line.
    pub fn hand_on(
        &mut self,
        now: Now,
        rules: &Rules,
        held: &[ClaimId],
        (token, label): (FencingToken, &Label),
    ) -> Step<Option<Duration>> {
        let mut notices = Vec::new();
        self.forget_expired(now);
        let Some(&last) = held.last() else { return Step { answer: None, notices } };
        let alone = self.holders.iter_mut().find(|h| h.who.mode == Mode::Exclusive);
        let known = alone.and_then(|h| Some((held.iter().rposition(|id| *id == h.who.id)?, h)));
        let heir = self.line.iter().find(|waiting| waiting.who.id == last).cloned();
        let had_their_turn = &held[known.as_ref().map_or(0, |(place, _)| *place) + 1..];
        self.line.retain(|waiting| !had_their_turn.contains(&waiting.who.id));
        let Some((_, holder)) = known else {
            self.serve(now, rules, None, &mut notices);
            return Step { answer: None, notices };
        };
        let ttl = heir.as_ref().map_or(rules.first_ttl, |heir| heir.ttl.min(rules.first_ttl));
        if holder.who.id == last {
            holder.expires = holder.expires.max(now.after(ttl));
        } else {
            // It may have lost its place here; not there.
            let unknown = || Party { id: last, label: label.clone(), reason: None, ..holder.who.clone() };
            holder.who = heir.map_or_else(unknown, |heir| heir.who);
            (holder.token, holder.since) = (token.get(), now.micros);
            // Never less than was left: who holds now may believe in that.
            let left = holder.expires.min(now.after(rules.first_ttl));
            (holder.expires, holder.evicted) = (left.max(now.after(ttl)), None);
        }
        Step { answer: Some(ttl), notices }
    }
}
