//! Properties of the line, under random histories of verbs, deaths and time.
//!
//! Every history is checked step by step against what a lock promises, seen only through the public verbs. The shrunk
//! history of a failure is printed by proptest.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tenure_core::queue::{Attempted, Now, Owner, Queue, Rules, Step};
use tenure_core::{
    Claim, ClaimId, FencingToken, Label, Line, LockName, LockState, Mode, Reason, RefusalKind, Released,
    Renewal, Settled, Tie, Trail, Ttl, Why,
};

const RULES: Rules = Rules {
    line_ttl: Duration::from_secs(15),
    first_ttl: Duration::from_secs(5),
    tombstone_ttl: Duration::from_secs(60),
    waiters_max: 4,
};

#[derive(Debug, Clone)]
enum Op {
    Attempt(usize, Line),
    Renew(usize),
    /// The first claim takes over the grant of the second.
    Succeed(usize, usize),
    Release(usize, Trail),
    /// The holder hands the lock on to so many of those in line, one after the other, and then tells.
    HandOn(usize),
    Settle(usize),
    Evict {
        force: bool,
    },
    /// The process that this claim is tied to dies, and somebody looks.
    Die(usize),
    Pass(Duration),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let who = 0..8_usize;
    let op = prop_oneof![
        6 => (who.clone(), prop_oneof![4 => Just(Line::Join), 1 => Just(Line::Pass)])
            .prop_map(|(i, line)| Op::Attempt(i, line)),
        2 => who.clone().prop_map(Op::Renew),
        1 => (who.clone(), who.clone()).prop_map(|(heir, predecessor)| Op::Succeed(heir, predecessor)),
        4 => (who.clone(), prop_oneof![3 => Just(Trail::Clean), 1 => Just(Trail::Doubtful)])
            .prop_map(|(i, trail)| Op::Release(i, trail)),
        1 => (1..4_usize).prop_map(Op::HandOn),
        1 => who.clone().prop_map(Op::Settle),
        1 => any::<bool>().prop_map(|force| Op::Evict { force }),
        1 => who.prop_map(Op::Die),
        3 => (0..20_000_u64).prop_map(|ms| Op::Pass(Duration::from_millis(ms))),
    ];
    prop::collection::vec(op, 1..80)
}

/// The modes that the eight claims of a history have: mostly of one shape, sometimes with an intruder.
fn modes() -> impl Strategy<Value = Vec<Mode>> {
    let lock = prop::collection::vec(prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)], 8);
    let permits = prop::collection::vec((1..4_u32).prop_map(|n| Mode::Permits { n, of: 4 }), 8);
    let once = Just(vec![Mode::Once; 8]);
    let any_mode = prop_oneof![
        Just(Mode::Exclusive),
        Just(Mode::Once),
        Just(Mode::Permits { n: 1, of: 2 }),
        Just(Mode::Permits { n: 5, of: 4 })
    ];
    let mixed = prop::collection::vec(any_mode, 8);
    prop_oneof![3 => lock, 2 => permits, 2 => once, 1 => mixed]
}

fn claim(i: usize, mode: Mode) -> Claim {
    Claim {
        name: LockName::new("x").unwrap(),
        id: ClaimId::from_bytes([u8::try_from(i).unwrap(); 16]),
        mode,
        ttl: Ttl::new(Duration::from_secs(1 + 4 * (i as u64))).unwrap(),
        tie: Tie::Process,
        label: Label::new(format!("party {i}")).unwrap(),
        reason: None,
    }
}

/// What the checker knows of a history.
struct World {
    queue: Queue,
    now: Now,
    claims: Vec<Claim>,
    /// The token of every grant a claim has had, to tell "mine already" from a new one.
    granted: BTreeMap<usize, FencingToken>,
    highest: FencingToken,
    buried: BTreeMap<usize, u64>,
}

impl World {
    fn new(modes: &[Mode]) -> Self {
        Self {
            queue: Queue::default(),
            now: Now { micros: 1_000_000, token_floor: 7 },
            claims: modes.iter().enumerate().map(|(i, mode)| claim(i, *mode)).collect(),
            granted: BTreeMap::new(),
            highest: FencingToken::new(0),
            buried: BTreeMap::new(),
        }
    }

    fn seen(&self) -> LockState {
        self.queue.inspect(self.now, self.claims[0].name.clone())
    }

    fn holders(&self) -> Vec<(usize, FencingToken)> {
        self.seen().holders.iter().map(|h| (self.who(&h.fingerprint), h.token.unwrap())).collect()
    }

    fn waiters(&self) -> Vec<usize> {
        self.seen().waiters.iter().map(|w| self.who(&w.fingerprint)).collect()
    }

    fn who(&self, fingerprint: &str) -> usize {
        self.claims.iter().position(|c| c.id.fingerprint() == fingerprint).expect("a claim of this history")
    }

    fn is_buried(&self, i: usize) -> bool {
        self.buried.get(&i).is_some_and(|until| *until > self.now.micros)
    }

    fn bury(&mut self, i: usize) {
        let until = self.now.micros + u64::try_from(RULES.tombstone_ttl.as_micros()).unwrap();
        self.buried.insert(i, until);
    }

    fn attempt(&mut self, i: usize, line: Line) -> Result<Step<Attempted>, tenure_core::Refusal> {
        self.queue.attempt(self.now, &RULES, &self.claims[i], Some(Owner(i as u64)), line)
    }

    /// Carries out one step and checks its answer.
    fn step(&mut self, op: &Op) {
        let before = self.queue.clone();
        let (held_before, line_before) = (self.holders(), self.waiters());
        let mut served = true;
        match *op {
            Op::Pass(duration) => {
                self.now.micros += u64::try_from(duration.as_micros()).unwrap();
                served = false;
            }
            Op::Attempt(i, line) => {
                let answer = self.attempt(i, line).map(|step| step.answer);
                served = answer.is_ok();
                match answer {
                    Ok(Attempted::Granted { token, ttl }) => {
                        assert!(self.holders().contains(&(i, token)));
                        assert_eq!(ttl, self.claims[i].ttl.get());
                        assert!(!self.is_buried(i), "an ended claim was granted");
                        // Rule 1: mine already is the same grant.
                        if let Some((_, known)) = held_before.iter().find(|(who, _)| *who == i) {
                            assert_eq!(token, *known);
                        }
                    }
                    Ok(Attempted::Busy { ahead, at_latest, .. }) => {
                        assert!(
                            at_latest <= RULES.line_ttl / 3,
                            "a waiter must look before it loses its place"
                        );
                        let place = self.waiters().iter().position(|w| *w == i);
                        assert_eq!(place.map(|p| u32::try_from(p).unwrap()), ahead);
                        assert_eq!(place.is_some(), line == Line::Join, "passing by leaves nothing");
                    }
                    Ok(Attempted::Settled(outcome)) => assert_eq!(outcome, b"done"),
                    Err(refusal) => {
                        match refusal.kind {
                            RefusalKind::Ended => assert!(self.is_buried(i)),
                            RefusalKind::Limit => {
                                let is_full = line_before.len() >= RULES.waiters_max;
                                assert!(
                                    is_full
                                        || matches!(self.claims[i].mode, Mode::Permits { n, of } if n > of)
                                );
                            }
                            RefusalKind::Shape => {}
                            other => panic!("refused as {other:?}"),
                        }
                        assert_eq!(self.holders(), held_before, "refused means nothing changed");
                        assert_eq!(self.waiters(), line_before, "refused means nothing changed");
                    }
                }
            }
            Op::Renew(i) => {
                let answer = self.queue.renew(self.now, &RULES, &self.claims[i]).answer;
                let held = held_before.iter().any(|(who, _)| *who == i);
                match answer {
                    Renewal::Renewed { ttl } => {
                        assert!(held || line_before.contains(&i), "renew never re-creates");
                        let left = self
                            .seen()
                            .holders
                            .iter()
                            .find(|h| self.who(&h.fingerprint) == i)
                            .unwrap()
                            .expires_in;
                        assert!(left.unwrap() >= ttl);
                    }
                    Renewal::Lost(Why::Evicted { .. }) => assert!(self.is_buried(i)),
                    Renewal::Lost(why) => assert!(!held && why == Why::Gone),
                }
            }
            Op::Succeed(heir, predecessor) => {
                let line = Line::Succeed(self.claims[predecessor].id);
                served = false;
                match self.attempt(heir, line).map(|step| step.answer) {
                    Ok(Attempted::Granted { token, .. }) => {
                        let held = |who| held_before.contains(&(who, token)) || line_before.contains(&who);
                        assert!(held(heir) || held(predecessor), "nobody's grant was taken over");
                        assert!(self.holders().contains(&(heir, token)));
                        if heir != predecessor && !held_before.contains(&(heir, token)) {
                            assert!(!self.holders().iter().any(|(who, _)| *who == predecessor));
                            self.bury(predecessor);
                            self.highest = self.highest.max(token);
                            self.granted.insert(heir, token);
                        }
                    }
                    Ok(other) => panic!("{other:?}"),
                    Err(refusal) => {
                        assert_eq!(refusal.kind, RefusalKind::Ended);
                    }
                }
            }
            Op::Release(i, trail) => {
                let answer = self.queue.release(self.now, &RULES, self.claims[i].id, trail).answer;
                let held = held_before.iter().any(|(who, _)| *who == i);
                let waited = line_before.contains(&i);
                assert_eq!(
                    answer,
                    match (held, waited) {
                        (true, _) => Released::Held,
                        (_, true) => Released::Waited,
                        _ => Released::Absent,
                    }
                );
                for (who, token) in held_before.iter().filter(|(who, _)| *who != i) {
                    assert!(self.holders().contains(&(*who, *token)), "only the exact claim is released");
                }
                if trail == Trail::Doubtful {
                    self.bury(i);
                }
            }
            Op::HandOn(count) => served = self.hand_on(count, &held_before, &line_before),
            Op::Settle(i) => {
                let held = held_before.iter().any(|(who, _)| *who == i) && self.claims[i].mode == Mode::Once;
                let answer = self
                    .queue
                    .settle(self.now, &RULES, self.claims[i].id, b"done", Duration::from_secs(30))
                    .answer;
                if held && !self.is_buried(i) {
                    assert_eq!(answer, Settled::Recorded);
                }
                if answer == Settled::Recorded {
                    assert!(self.waiters().is_empty(), "everybody was told");
                    assert!(self.seen().settled_for.is_some());
                } else {
                    assert_eq!(
                        self.seen().settled_for,
                        before.inspect(self.now, self.claims[0].name.clone()).settled_for
                    );
                }
            }
            Op::Evict { force } => {
                let reason = Reason::new("because").unwrap();
                let evicted = self.queue.evict(self.now, &RULES, None, force, &reason).answer;
                assert_eq!(evicted.len(), held_before.len());
                for (who, token) in held_before {
                    self.bury(who);
                    assert_eq!(
                        self.holders().contains(&(who, token)),
                        !force,
                        "a revoked claim goes when it expires"
                    );
                }
            }
            Op::Die(i) => {
                let _ = self.queue.reap(self.now, &RULES, |owner| owner == Owner(i as u64));
                assert!(!self.holders().iter().any(|(who, _)| *who == i) && !self.waiters().contains(&i));
            }
        }
        self.check(served);
        self.check_repetition(op);
    }

    /// Hands the lock on, if it is held alone and those in line want the same. Answers whether it was.
    fn hand_on(&mut self, count: usize, held: &[(usize, FencingToken)], line: &[usize]) -> bool {
        let (first, named) = self.queue.name_heirs(self.now, count);
        assert!(
            named.iter().eq(line.iter().take(count).map(|i| &self.claims[*i].id)),
            "not the first in line"
        );
        assert!(first > self.highest);
        let is_alone = |i: &usize| self.claims[*i].mode == Mode::Exclusive;
        let heirs: Vec<usize> = line.iter().copied().take(count).take_while(is_alone).collect();
        let (Some((holder, _)), Some(last)) = (held.first().filter(|(i, _)| is_alone(i)), heirs.last())
        else {
            return false;
        };
        let ids: Vec<ClaimId> = [*holder].iter().chain(&heirs).map(|i| self.claims[*i].id).collect();
        let token = FencingToken::new(first.get() + heirs.len() as u64 - 1);
        let label = self.claims[*last].label.clone();
        // Those that do not hold cannot: nothing changes but that they leave the line.
        let mut strangers = self.queue.clone();
        assert_eq!(strangers.hand_on(self.now, &RULES, &ids[1..], (token, &label)).answer, None);
        assert_eq!(strangers.inspect(self.now, self.claims[0].name.clone()).holders, self.seen().holders);
        let left = self.seen().holders[0].expires_in.min(Some(RULES.first_ttl));
        for _ in 0..2 {
            let ttl = self.queue.hand_on(self.now, &RULES, &ids, (token, &label)).answer;
            assert!(ttl.is_some_and(|ttl| ttl <= RULES.first_ttl), "{ttl:?}");
            assert_eq!(self.holders(), [(*last, token)]);
            assert!(self.seen().holders[0].expires_in >= left, "it believes in {left:?}");
            assert_eq!(
                self.waiters(),
                line[heirs.len()..],
                "those that had their turn leave the line, nobody else"
            );
        }
        true
    }

    /// What must be true after every step.
    fn check(&mut self, served: bool) {
        let holders = self.holders();
        let modes: Vec<Mode> = holders.iter().map(|(who, _)| self.claims[*who].mode).collect();
        // Exclusion.
        if modes.iter().any(|m| matches!(m, Mode::Exclusive | Mode::Once)) {
            assert_eq!(modes.len(), 1, "{modes:?} held together");
        }
        let permits = |m: &Mode| {
            if let Mode::Permits { n, of } = m { Some((*n, *of)) } else { None }
        };
        let taken: u32 = modes.iter().filter_map(permits).map(|(n, _)| n).sum();
        for (_, of) in modes.iter().filter_map(permits) {
            assert!(taken <= of, "{taken} of {of} permits held");
        }
        // Tokens: unique, and new grants are higher than every one before.
        let mut fresh: Vec<_> =
            holders.iter().filter(|(who, token)| self.granted.get(who) != Some(token)).copied().collect();
        fresh.sort_by_key(|(_, token)| *token);
        for (who, token) in &fresh {
            assert!(*token > self.highest, "token {token} after {}", self.highest);
            self.highest = *token;
            self.granted.insert(*who, *token);
        }
        // First come, first served: nobody still waiting came before anybody granted just now. (The line is in order
        // of arrival, and only its head is ever granted; so whoever is left must not fit.)
        let waiters = self.waiters();
        if let (true, Some(head)) = (served, waiters.first()) {
            let fits = match self.claims[*head].mode {
                Mode::Exclusive | Mode::Once => modes.is_empty(),
                Mode::Shared => modes.iter().all(|m| *m == Mode::Shared),
                Mode::Permits { n, of } => taken + n <= of,
            };
            assert!(!fits, "the head of the line fits and was left waiting");
        }
        // Bounded, and it survives being stored.
        assert!(waiters.len() <= RULES.waiters_max);
        assert_eq!(Queue::from_bytes(&self.queue.to_bytes()).unwrap(), self.queue);
        let idle = holders.is_empty() && waiters.is_empty() && self.seen().settled_for.is_none();
        if self.queue.is_idle(self.now) {
            assert!(idle, "an idle queue may be forgotten");
        }
    }

    /// The same request arriving twice is as good as once, and one arriving after the end does nothing.
    fn check_repetition(&mut self, op: &Op) {
        let once = self.queue.clone();
        match *op {
            Op::Attempt(i, Line::Join) => {
                let _ = self.attempt(i, Line::Join);
            }
            Op::Renew(i) => drop(self.queue.renew(self.now, &RULES, &self.claims[i])),
            Op::Release(i, trail) => {
                drop(self.queue.release(self.now, &RULES, self.claims[i].id, trail));
                drop(self.queue.renew(self.now, &RULES, &self.claims[i]));
                if trail == Trail::Doubtful {
                    assert!(
                        self.attempt(i, Line::Join).is_err(),
                        "a late attempt of an ended claim was let in"
                    );
                }
            }
            Op::Settle(i) => {
                drop(self.queue.settle(
                    self.now,
                    &RULES,
                    self.claims[i].id,
                    b"done",
                    Duration::from_secs(30),
                ));
            }
            Op::Succeed(heir, predecessor) => {
                let _ = self.attempt(heir, Line::Succeed(self.claims[predecessor].id));
            }
            Op::Attempt(..) | Op::HandOn(_) | Op::Evict { .. } | Op::Die(_) | Op::Pass(_) => return,
        }
        assert_eq!(self.queue, once, "{op:?} twice is not the same as once");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn every_history_keeps_the_promises(modes in modes(), ops in ops()) {
        let mut world = World::new(&modes);
        for op in &ops {
            world.step(op);
        }
    }
}

#[test]
fn a_line_is_served_in_order_of_arrival() {
    let mut world = World::new(&[Mode::Exclusive; 8]);
    for i in 0..4 {
        let _ = world.attempt(i, Line::Join).unwrap();
    }
    for i in 0..4 {
        assert_eq!(world.holders().iter().map(|(who, _)| *who).collect::<Vec<_>>(), [i]);
        let step = world.queue.release(world.now, &RULES, world.claims[i].id, Trail::Clean);
        assert_eq!(step.notices.len(), usize::from(i < 3), "one notice per hand-over, however many wait");
    }
    assert!(world.queue.is_idle(world.now));
}

#[test]
fn a_dead_head_does_not_hold_up_the_line() {
    let mut world = World::new(&[Mode::Exclusive; 8]);
    for i in 0..3 {
        let _ = world.attempt(i, Line::Join).unwrap();
    }
    // The holder and the head of the line die; the last one goes on looking.
    let start = world.now.micros;
    while !world.holders().iter().any(|(who, _)| *who == 2) {
        world.now.micros += 1_000_000;
        let _ = world.attempt(2, Line::Join).unwrap();
        assert!(world.now.micros - start < 20_000_000, "the dead held up the line");
    }
}

#[test]
fn a_newer_layout_is_refused() {
    let mut bytes = Queue::default().to_bytes();
    bytes[0] += 1;
    assert_eq!(Queue::from_bytes(&bytes).unwrap_err().kind, RefusalKind::Configuration);
    assert!(Queue::from_bytes(&[]).is_err());
    assert!(Queue::from_bytes(&[tenure_core::queue::LAYOUT, 0xff, 0xff]).is_err());
    // The highest token there can be, and no claims: no token could follow.
    let mut highest = vec![tenure_core::queue::LAYOUT];
    highest.extend([0xff; 9]);
    highest.extend([1, 0, 0, 0, 0]);
    assert!(Queue::from_bytes(&highest).unwrap_err().message.contains("no such token"));
}
