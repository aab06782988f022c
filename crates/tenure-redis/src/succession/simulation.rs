//! Handing on in a simulated world: the store is [`queue`](tenure_core::queue), time is virtual, and between the two is a
//! network that loses, delays, doubles and reorders what it carries.
//!
//! Parties of a few processes want one lock over and over, with differing ttls. They hold for a while, renew, release, go
//! silent, give up. At no moment do two believe to hold, and tokens rise; in the end nothing is left anywhere. What is
//! written down here once more is only what `handing_on.rs` and `backend.rs` do between the parts: the succession, its
//! links, the news and their dates are the real ones. `TENURE_HISTORIES` says how many, `TENURE_SEED` which.

#![allow(clippy::disallowed_methods, reason = "time is virtual here")]

mod party;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tenure_core::queue::{Attempted, Notice, Now, Queue, Rules, Step};
use tenure_core::{
    Answer, Claim, Entropy, Eviction, Line, LockName, Mode, Reason, Released, Renewal, StoreError,
    SystemEntropy, Tie, Trail, Ttl,
};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::batch::CarriedThrough;
use crate::dating::{self, Anchor};
use crate::keys::Layout;
use crate::pushes::{News, Orphan, Pushes, Waiting, grant_in};

const PROCESSES: usize = 2;
const PARTIES: usize = 16;
const LENGTH: Duration = Duration::from_secs(4);
/// How long a request may take.
const PATIENCE: Duration = Duration::from_millis(300);
const RULES: Rules = Rules {
    first_ttl: Duration::from_millis(250),
    line_ttl: Duration::from_millis(1500),
    tombstone_ttl: Duration::from_secs(5),
    ..Rules::DEFAULT
};
/// The store's clock is far from ours.
const STORE_MICROS: u64 = 1_790_000_000_000_000;
/// Core subtracts more.
const MARGIN: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Dice(AtomicU64);

impl Dice {
    fn below(&self, sides: u64) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn up_to(&self, longest: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(longest.as_micros()).expect("short").max(1)))
    }
}

/// Who believes to hold.
#[derive(Debug, Default)]
struct Beliefs {
    now: HashMap<ClaimId, (FencingToken, BootInstant)>,
    highest: u64,
    count: usize,
    inherited: usize,
}

struct World {
    began: Instant,
    dice: Dice,
    queue: Mutex<Queue>,
    beliefs: Mutex<Beliefs>,
    processes: Vec<Process>,
    whose: Mutex<HashMap<ClaimId, usize>>,
    keys: Keys,
}

#[derive(Debug)]
struct Process {
    pushes: Pushes,
    succession: Succession,
    standing: AtomicUsize,
    /// Until when its network is bad.
    stormy_until: Mutex<BootInstant>,
}

/// One process in its world.
#[derive(Clone)]
struct Here {
    world: Arc<World>,
    which: usize,
}

type Heard<T> = Result<(T, Anchor), StoreError>;

impl World {
    fn now(&self) -> BootInstant {
        let nanos = self.began.elapsed().as_nanos();
        BootInstant::from_nanos(1_000_000_000 + u64::try_from(nanos).expect("short"))
    }

    fn store_now(&self) -> Now {
        let micros = STORE_MICROS + u64::try_from(self.began.elapsed().as_micros()).expect("short");
        Now { micros, token_floor: micros }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap()
    }

    fn message(&self, kind: &str, notice: &Notice) -> Vec<u8> {
        let (id, granted) = (notice.id.to_hex(), self.store_now().micros);
        match notice.grant {
            Some((token, ttl)) => {
                format!("G\n{id}\n{token}\n{}\n{granted}\nrun\na/1/x\nmain", ttl.as_millis())
            }
            None => format!("{kind}\n{id}\nbecause"),
        }
        .into_bytes()
    }

    /// Begins to believe, or goes on to.
    fn believe(&self, id: ClaimId, token: FencingToken, until: BootInstant) {
        let mut beliefs = self.beliefs.lock().unwrap();
        let now = self.now();
        if beliefs.now.insert(id, (token, until)).is_none() {
            assert!(token.get() > beliefs.highest, "{token} after {}", beliefs.highest);
            beliefs.highest = token.get();
            beliefs.count += 1;
        }
        let others: Vec<_> =
            beliefs.now.iter().filter(|(other, (_, until))| **other != id && *until > now).collect();
        assert!(
            others.is_empty(),
            "at {now:?}, {} with {token} until {until:?}, and {others:?}",
            id.to_hex()
        );
    }

    fn disbelieve(&self, id: ClaimId) {
        self.beliefs.lock().unwrap().now.remove(&id);
    }
}

impl Here {
    fn process(&self) -> &Process {
        &self.world.processes[self.which]
    }

    fn is_stormy(&self) -> bool {
        let (dice, now) = (&self.world.dice, self.world.now());
        let mut until = self.process().stormy_until.lock().unwrap();
        if *until < now && dice.below(150) == 0 {
            *until = now + dice.up_to(Duration::from_millis(500));
        }
        now < *until
    }

    /// How long something takes on its way. Nothing if it is lost.
    fn way(&self) -> Option<Duration> {
        let dice = &self.world.dice;
        if !self.is_stormy() {
            return Some(Duration::from_micros(40) + dice.up_to(Duration::from_micros(60)));
        }
        match dice.below(4) {
            0 => None,
            1 => Some(dice.up_to(Duration::from_millis(2))),
            _ => Some(dice.up_to(PATIENCE * 3 / 2)),
        }
    }

    /// Asks the store something: it happens once, twice, late or never.
    async fn ask<T: Clone + Send + 'static>(
        &self,
        verb: impl Fn(&World, &mut Queue, Now) -> (T, Vec<Notice>) + Clone + Send + 'static,
    ) -> Heard<T> {
        let (answer, answered) = oneshot::channel();
        let sent = self.world.now();
        let is_twice = self.is_stormy() && self.world.dice.below(4) == 0;
        // The first that arrives is answered.
        let answer = Arc::new(Mutex::new(Some(answer)));
        for _ in 0..=usize::from(is_twice) {
            let (Some(out), here, verb) = (self.way(), self.clone(), verb.clone()) else { continue };
            let answer = answer.clone();
            tokio::spawn(async move {
                sleep(out).await;
                let world = &here.world;
                let arrived = world.store_now();
                // As the scripts do with requests that come too late.
                if world.now() > sent + PATIENCE {
                    return;
                }
                let (said, notices) = verb(world, &mut world.queue(), arrived);
                for notice in &notices {
                    here.push(world.message("L", notice), notice.id);
                }
                let to = answer.lock().unwrap().take();
                if let (Some(to), Some(back)) = (to, here.way()) {
                    sleep(back).await;
                    let _ = to.send((said, arrived.micros));
                }
            });
        }
        drop(answer);
        let (said, store_micros) = match timeout(PATIENCE, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => {
                // It is lost; nobody knows before the time is over.
                tokio::time::sleep_until(self.world.began + self.since_start(sent + PATIENCE)).await;
                return Err(StoreError::unknown("lost"));
            }
            Err(_) => return Err(StoreError::unknown("no answer")),
        };
        // Answers are read by different tasks, and not by those that read what is pushed.
        if self.world.dice.below(16) == 0 {
            sleep(self.world.dice.up_to(Duration::from_millis(1))).await;
        }
        Ok((said, Anchor { sent, store_micros, run_id: "run".into() }))
    }

    fn since_start(&self, at: BootInstant) -> Duration {
        at.saturating_since(BootInstant::from_nanos(1_000_000_000))
    }

    /// Sends news to whoever has the claim.
    fn push(&self, message: Vec<u8>, id: ClaimId) {
        let Some(&which) = self.world.whose.lock().unwrap().get(&id) else { return };
        let there = Self { world: self.world.clone(), which };
        if let Some(way) = there.way() {
            tokio::spawn(async move {
                sleep(way).await;
                there.receive(&message, false);
            });
        }
    }
}

/// Evicts the holder now and then, gently.
async fn operator(here: Here) {
    let eviction = Eviction { token: None, force: false, reason: Reason::new("because").expect("short") };
    while here.world.began.elapsed() < LENGTH {
        sleep(here.world.dice.up_to(LENGTH / 4)).await;
        let (world, now) = (&here.world, here.world.store_now());
        let Step { answer, notices } =
            world.queue().evict(now, &RULES, eviction.token, eviction.force, &eviction.reason);
        for notice in &answer {
            here.push(world.message("E", notice), notice.id);
        }
        for notice in &notices {
            here.push(world.message("L", notice), notice.id);
        }
    }
}

/// One history. Answers how often the lock was held, and how often it was handed on.
fn play(seed: u64) -> (usize, usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async move {
        let process = || Process {
            pushes: Pushes::new(),
            succession: Succession::default(),
            standing: AtomicUsize::new(0),
            stormy_until: Mutex::new(BootInstant::from_nanos(0)),
        };
        let world = Arc::new(World {
            began: Instant::now(),
            dice: Dice(AtomicU64::new(seed)),
            queue: Mutex::default(),
            beliefs: Mutex::default(),
            processes: (0..PROCESSES).map(|_| process()).collect(),
            whose: Mutex::default(),
            keys: Layout::new("tenure", false).keys(&LockName::new("a").expect("a good name")),
        });
        let here = |which| Here { world: world.clone(), which };
        let mut parties = JoinSet::new();
        // Most are of one process: so there are heirs. The others come in between.
        for i in 0..PARTIES {
            parties.spawn(here(usize::from(i % 4 == 0)).party());
        }
        parties.spawn(operator(here(0)));
        while let Some(played) = parties.join_next().await {
            played.expect("a party that keeps its promises");
        }
        // Whatever is still on its way arrives; what was left without a word expires.
        sleep(RULES.tombstone_ttl * 2).await;
        for process in &world.processes {
            assert_eq!(process.pushes.len(), 0, "somebody is listened for");
            assert!(process.succession.chains().is_empty(), "{:?}", process.succession);
        }
        // Any verb lets go of what has expired.
        let now = world.store_now();
        let _ = world.queue().release(now, &RULES, ClaimId::from_bytes([255; 16]), Trail::Clean);
        assert!(world.queue().is_idle(now), "{:?}", world.queue());
        let beliefs = world.beliefs.lock().unwrap();
        (beliefs.count, beliefs.inherited)
    })
}

#[test]
fn no_two_believe_to_hold() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let mut drawn = [0; 8];
    SystemEntropy.fill(&mut drawn);
    let (count, first) = match number("TENURE_SEED") {
        Some(seed) => (1, seed),
        None => (number("TENURE_HISTORIES").unwrap_or(300), u64::from_le_bytes(drawn) >> 16),
    };
    let (mut held, mut inherited) = (0, 0);
    for seed in first..first + count {
        let played = std::panic::catch_unwind(|| play(seed));
        let Ok((these, handed_on)) = played else { panic!("TENURE_SEED={seed} shows it") };
        (held, inherited) = (held + these, inherited + handed_on);
    }
    println!("{count} histories from {first} on: held {held} times, handed on {inherited} times");
    assert!(count < 100 || inherited as u64 > 4 * count, "hardly anything was handed on");
}
