//! The scripts against [`queue`](tenure_core::queue): the same random histories, step by step the same answers.
//!
//! The scripts run in a real server, but on a clock of ours: where they read `TIME` they are given the moment of the
//! step, keys expire by it, and what they publish is collected instead. A history is random verbs of a few claims on
//! one lock, with time passing in between; after each step the answer, the pushes and the whole visible state must be
//! those of the machine. `TENURE_HISTORIES` says how many, `TENURE_SEED` which.

mod directed;
mod real;
mod slips;

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tenure_core::queue::{self, Now, Queue, Rules, Step};
use tenure_core::{
    Answer, Claim, ClaimId, Entropy, FencingToken, Label, Line, LockName, LockState, Mode, Reason, Refusal,
    Renewal, Settled, StoreError, SystemEntropy, Tie, Trail, Ttl, Why,
};
use tenure_testkit::servers::{Kind, Server};

use crate::backend::{millis, mode_text, value_of};
use crate::keys::Layout;
use crate::reply::{self, Answers, Attempted, text, unsigned};
use crate::scripts::Scripts;
use real::{Real, real};

const RULES: Rules = Rules { waiters_max: 4, ..Rules::DEFAULT };
const STEPS: usize = 60;

/// Histories that found something once: played every time.
const FOUND: [u64; 1] = [1_458_551_009];

/// Places are made unique by microseconds: waiting times are rounded.
const HALF: Duration = Duration::from_micros(500);

/// What every request is named, and until when (store µs) it is carried out.
const ASKED: u64 = 9_007_199_254_740_991;

/// Far from now: no key expires by the server's own clock.
const START_MICROS: u64 = 4_000_000_000_000_000;

/// Random numbers that a seed decides: splitmix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).expect("small")]
    }
}

/// What one step came to, in words: equal words, equal outcome.
type Told = Vec<String>;

fn told_of(notice: &queue::Notice) -> String {
    let id = notice.id.to_hex();
    match notice.grant {
        Some((token, ttl)) => format!("{id} granted {token} for {}ms", ttl.as_millis()),
        None => format!("{id} look"),
    }
}

#[derive(Debug, Clone)]
enum Verb {
    Attempt(usize, Line),
    Renew(usize),
    Release(usize, Trail),
    Settle(usize),
    Evict { token: Option<FencingToken>, force: bool },
    HandOn(Vec<usize>, FencingToken),
}

fn refused(refusal: &Refusal) -> String {
    format!("refused {:?}", refusal.kind)
}

fn kind_of(error: &StoreError) -> String {
    match error {
        StoreError::Refused(refusal) => refused(refusal),
        StoreError::Unknown(text) => format!("unknown {text}"),
    }
}

/// What the machine does.
fn model(queue: &mut Queue, now: Now, claims: &[Claim], verb: &Verb) -> (String, Told) {
    let told = |notices: &[queue::Notice]| notices.iter().map(told_of).collect::<Told>();
    let reason = Reason::new("because").expect("short");
    match verb {
        Verb::Attempt(i, line) => match queue.attempt(now, &RULES, &claims[*i], None, *line) {
            Ok(Step { answer, notices }) => {
                let answer = match answer {
                    queue::Attempted::Granted { token, ttl } => format!("granted {token} {ttl:?}"),
                    queue::Attempted::Busy { holder, ahead, .. } => {
                        format!("busy {} {}", holder.is_some(), ahead.is_some())
                    }
                    queue::Attempted::Settled(outcome) => format!("settled {outcome:?}"),
                };
                (answer, told(&notices))
            }
            Err(refusal) => (refused(&refusal), Vec::new()),
        },
        Verb::Renew(i) => {
            let Step { answer, notices } = queue.renew(now, &RULES, &claims[*i]);
            (format!("{answer:?}"), told(&notices))
        }
        Verb::Release(i, trail) => {
            let Step { answer, notices } = queue.release(now, &RULES, claims[*i].id, *trail);
            (format!("{answer:?}"), told(&notices))
        }
        Verb::Settle(i) => {
            let Step { answer, notices } =
                queue.settle(now, &RULES, claims[*i].id, b"done", Duration::from_secs(20));
            (format!("{answer:?}"), told(&notices))
        }
        Verb::Evict { token, force } => {
            let Step { answer, notices } = queue.evict(now, &RULES, *token, *force, &reason);
            let mut all: Told =
                answer.iter().map(|notice| format!("{} evicted", notice.id.to_hex())).collect();
            all.extend(told(&notices));
            (format!("{} evicted", answer.len()), all)
        }
        Verb::HandOn(held, token) => {
            let label = &claims[*held.last().expect("somebody")].label;
            let held: Vec<ClaimId> = held.iter().map(|i| claims[*i].id).collect();
            let Step { answer, notices } = queue.hand_on(now, &RULES, &held, (*token, label));
            (format!("handed on {:?}", answer.map(|ttl| ttl.as_millis())), told(&notices))
        }
    }
}

/// What a script sets aside: how many tokens, the first of them if it says so, and for whom.
#[derive(Default)]
struct SetAside {
    first: Option<u64>,
    named: Vec<ClaimId>,
}

impl SetAside {
    fn of(first: Option<u64>, named: &[Value]) -> Self {
        let id = |id: &Value| ClaimId::from_hex(text(id).expect("text")).expect("an id");
        Self { first, named: named.iter().map(id).collect() }
    }

    /// The machine does the same. The script may also name some that have lost their place.
    fn agrees(&self, queue: &mut Queue, now: Now) -> bool {
        let (_, line) = queue.clone().name_heirs(now, usize::MAX);
        let live: Vec<_> = self.named.iter().filter(|id| line.contains(id)).collect();
        let first = queue.set_aside(now, self.named.len());
        line.iter().take(live.len()).eq(live) && self.first.is_none_or(|said| said == first.get())
    }
}

/// Claims as they would hand the lock on: its holder, then the first in line; now and then others.
fn in_turn(dice: &mut Dice, claims: &[Claim], queue: &Queue, now: Now) -> Vec<usize> {
    let state = queue.inspect(now, claims[0].name.clone());
    let is_exclusive = |i: &usize| claims[*i].mode == Mode::Exclusive;
    let place = |fingerprint: &String| claims.iter().position(|c| c.id.fingerprint() == *fingerprint);
    let holders = state.holders.iter().map(|holder| &holder.fingerprint);
    let waiters = state.waiters.iter().map(|waiter| &waiter.fingerprint);
    let mut held: Vec<usize> =
        holders.take(1).chain(waiters).filter_map(place).filter(is_exclusive).collect();
    held.truncate(usize::try_from(2 + dice.below(3)).expect("small"));
    if dice.below(3) == 0 {
        let other = usize::try_from(dice.below(claims.len() as u64)).expect("small");
        held.retain(|i| *i != other);
        let at = usize::try_from(dice.below(held.len() as u64 + 1)).expect("small");
        held.splice(at..at, Some(other).filter(is_exclusive));
    }
    held
}

/// The visible state in words. Moments are compared to the millisecond.
fn seen(state: &LockState) -> Vec<String> {
    let ms = |duration: Option<Duration>| duration.map(|duration| duration.as_millis());
    let mut holders: Vec<_> = state
        .holders
        .iter()
        .map(|h| {
            let (token, held, left) = (h.token, ms(h.held_for), ms(h.expires_in));
            format!("holds {} {token:?} {:?} {held:?} {left:?} {}", h.fingerprint, h.mode, h.evicted)
        })
        .collect();
    holders.sort();
    let waiters = state.waiters.iter().map(|w| {
        format!("waits {} {:?} {:?}", w.fingerprint, w.mode, ms(w.waiting_for.map(|waiting| waiting + HALF)))
    });
    holders.into_iter().chain(waiters).chain([format!("settled {:?}", ms(state.settled_for))]).collect()
}

/// Plays one history, with locks handed on or without; answers with the first step at which they differ.
async fn play(connection: &mut Real, seed: u64, hands_on: bool) -> Result<(), String> {
    let mut dice = Dice(seed);
    let name = LockName::new(format!("history/{seed}/{hands_on}")).expect("a good name");
    let modes: &[Mode] = match dice.below(4) {
        0 => &[Mode::Exclusive],
        1 => &[Mode::Exclusive, Mode::Shared, Mode::Shared],
        2 => &[
            Mode::Permits { n: 1, of: 3 },
            Mode::Permits { n: 2, of: 3 },
            Mode::Permits { n: 3, of: 3 },
            Mode::Permits { n: 4, of: 3 },
        ],
        _ => &[Mode::Once],
    };
    let claims: Vec<Claim> = (0..8_u8)
        .map(|i| {
            // Now and then one of another shape.
            let stranger = [Mode::Exclusive, Mode::Once, Mode::Permits { n: 1, of: 2 }];
            let mode = if dice.below(12) == 0 { *dice.pick(&stranger) } else { *dice.pick(modes) };
            // Now and then a holder outlives the patience of those in line.
            let long = if dice.below(3) == 0 { 600 } else { 120 };
            let mut id = [i; 16];
            id[8..].copy_from_slice(&seed.to_le_bytes());
            Claim {
                name: name.clone(),
                id: ClaimId::from_bytes(id),
                mode,
                ttl: Ttl::new(Duration::from_millis(100 * (1 + dice.below(long)))).expect("a good ttl"),
                tie: Tie::Process,
                label: Label::new(*dice.pick(&["a/1/x", "!b", "c#d", ""])).expect("a good label"),
                reason: None,
            }
        })
        .collect();
    let mut queue = Queue::default();
    let mut now = START_MICROS;
    let mut steps = Vec::new();
    let mut tokens = Vec::new();
    let mut aside = None;
    for _ in 0..STEPS {
        // An odd millisecond each time, and all lengths are multiples of 100 ms: nothing ever ends exactly now.
        if dice.below(3) == 0 {
            let long = if dice.below(5) == 0 { 200 } else { 30 };
            now += 1000 * (100 * dice.below(long) + 1);
        }
        let i = usize::try_from(dice.below(claims.len() as u64)).expect("small");
        let moment = Now { micros: now, token_floor: now };
        // First: so that a history without it stays what it was.
        let in_turn = if hands_on && dice.below(8) == 0 {
            in_turn(&mut dice, &claims, &queue, moment)
        } else {
            Vec::new()
        };
        let verb = match dice.below(20) {
            _ if in_turn.len() > 1 => Verb::HandOn(in_turn, aside.unwrap_or_else(|| queue.last_token())),
            0..8 => Verb::Attempt(i, Line::Join),
            8..10 => Verb::Attempt(i, Line::Pass),
            10 => Verb::Attempt(i, Line::Succeed(dice.pick(&claims).id)),
            11..13 => Verb::Renew(i),
            13..16 => Verb::Release(i, Trail::Clean),
            16 => Verb::Release(i, Trail::Doubtful),
            17 | 18 if matches!(modes[0], Mode::Once) => Verb::Settle(i),
            17 => Verb::Renew(i),
            18 => Verb::Release(i, Trail::Clean),
            _ => {
                let token = (dice.below(2) == 0).then(|| tokens.last().copied()).flatten();
                Verb::Evict { token, force: dice.below(2) == 0 }
            }
        };
        steps.push(format!("{} {verb:?}", now - START_MICROS));
        let (expected, mut expected_told) = model(&mut queue, moment, &claims, &verb);
        let (mut answer, mut told, set_aside) = real(connection, now, &claims, &verb).await;
        aside = (!set_aside.named.is_empty()).then(|| queue.clone().set_aside(moment, 1));
        if !set_aside.agrees(&mut queue, moment) {
            answer = format!("{answer}, and {:?} of {:?} set aside", set_aside.first, set_aside.named);
        }
        // Evictions of several holders may be told in any order.
        if matches!(verb, Verb::Evict { .. }) {
            expected_told.sort();
            told.sort();
        }
        tokens.push(queue.last_token());
        let expected_state = seen(&queue.inspect(moment, name.clone()));
        let (reply, _) = connection.run(5, &name, now, &[]).await.expect("an answer");
        let reply = reply::without_name(reply, ASKED).expect("its name");
        let state = seen(&reply::lock_state(name.clone(), reply).expect("a state"));
        if (&answer, &told, &state) != (&expected, &expected_told, &expected_state) {
            return Err(format!(
                "TENURE_SEED={seed} differs\nclaims {claims:#?}\nsteps\n{}\nmachine {expected} {expected_told:#?} \
                 {expected_state:#?}\nscript {answer} {told:#?} {state:#?}",
                steps.join("\n")
            ));
        }
    }
    Ok(())
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

async fn start(kind: Kind, mutate: impl Fn(&str) -> String) -> (Server, Real) {
    let server = Server::start(kind);
    let real = Real::start(&server, mutate).await;
    (server, real)
}

#[tokio::test]
async fn the_scripts_and_the_machine_agree() {
    let mut bytes = [0; 4];
    SystemEntropy.fill(&mut bytes);
    let first = setting("TENURE_SEED").unwrap_or_else(|| u64::from(u32::from_le_bytes(bytes)));
    let histories = setting("TENURE_HISTORIES").unwrap_or(400);
    println!("TENURE_SEED={first} TENURE_HISTORIES={histories}");
    for kind in [Kind::Redis7, Kind::Valkey9] {
        let (_server, mut real) = start(kind, str::to_owned).await;
        let found = FOUND.into_iter().map(|seed| (seed, false));
        let random = (first..first + histories.div_ceil(2)).map(|seed| (seed, true));
        for (seed, hands_on) in found.chain(random) {
            if let Err(difference) = play(&mut real, seed, hands_on).await {
                panic!("{kind:?}: {difference}");
            }
        }
    }
}

/// The comparison has teeth: each of these slips is found.
#[tokio::test]
async fn broken_scripts_are_found() {
    for (slip, from, to) in slips::SLIPS {
        let (_server, mut real) = start(Kind::Redis7, |code| code.replace(from, to)).await;
        let sources = Scripts::new(&RULES);
        assert!(sources.all().iter().any(|script| script.code.contains(from)), "{slip}: nothing to break");
        let mut found = None;
        for (seed, hands_on) in (0..400).flat_map(|seed| [(seed, true), (seed, false)]) {
            if play(&mut real, seed, hands_on).await.is_err() {
                found = Some(seed);
                break;
            }
        }
        println!("{slip}: found by history {found:?}");
        assert!(found.is_some(), "nobody noticed that {slip}");
    }
}
