//! Who believes to hold a lock, and when: at no moment two, whatever becomes of requests, answers and pushes.
//!
//! Parties of several clients want one lock over and over, with short and differing ttls. Each holds for a while, renews
//! or does not, releases or goes silent, gives up while it waits; and writes down from when to when it believed to hold. A
//! belief ends when its party releases or is told, at the latest when the grant does. `TENURE_BELIEFS` says for how many
//! seconds, `TENURE_SEED` with which dice.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{ask, claim, connect, leftovers, seed};
use tenure_core::clock::{BootInstant, Clock, SystemClock};
use tenure_core::queue::Rules;
use tenure_core::{
    Attempt, Backend, Claim, Eviction, FencingToken, Grant, Line, LockName, Mode, Reason, RefusalKind,
    Renewal, StoreError, Trail,
};
use tenure_redis::Redis;
use tenure_testkit::proxy::{Fault, Proxy, Way};
use tenure_testkit::servers::{Kind, Server};
use tokio::time::{sleep, timeout};

const LOCKS: usize = 16;
const CLIENTS: usize = 2;
/// Of each client, for each lock.
const PARTIES: usize = 8;
/// Everything is forgotten quickly.
const RULES: Rules = Rules {
    first_ttl: Duration::from_millis(250),
    line_ttl: Duration::from_millis(1500),
    tombstone_ttl: Duration::from_secs(3),
    ..Rules::DEFAULT
};
/// Redis counts in whole milliseconds, and so may end a grant that much too early. Core subtracts more.
const MARGIN: Duration = Duration::from_millis(2);

#[derive(Debug, Clone)]
struct Belief {
    token: FencingToken,
    start: BootInstant,
    end: BootInstant,
    _how: &'static str,
}

#[derive(Debug, Clone)]
struct Dice(u64);

impl Dice {
    fn new(seed: u64, which: usize) -> Self {
        Self(seed.wrapping_add(which as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    fn millis(&mut self, below: u64) -> Duration {
        Duration::from_micros(self.below(below * 1000))
    }
}

struct Party {
    name: String,
    redis: Redis,
    dice: Dice,
    beliefs: Arc<Mutex<Vec<Belief>>>,
    until: BootInstant,
}

impl Party {
    async fn play(mut self) {
        while SystemClock.now() < self.until {
            let ttl = [60, 100, 150, 250, 400][usize::try_from(self.dice.below(5)).unwrap()];
            let claim = claim(&self.name, Mode::Exclusive, Duration::from_millis(ttl));
            let patience = match self.dice.below(8) {
                0 => self.dice.millis(20),
                1 => self.dice.millis(400),
                _ => Duration::from_secs(4),
            };
            let trail = match timeout(patience, self.wait(&claim)).await {
                Ok(Ok(grant)) => self.hold(&claim, grant).await,
                Ok(Err(())) | Err(_) => Trail::Doubtful,
            };
            self.release(&claim, trail).await;
        }
    }

    /// As core waits. An error if it is not known what became of the claim.
    async fn wait(&self, claim: &Claim) -> Result<Grant, ()> {
        loop {
            match self.redis.attempt(claim, Line::Join).await {
                Ok(Attempt::Granted(grant)) => return Ok(grant),
                Ok(Attempt::Busy(busy)) => {
                    let signal = busy.wake.signal.expect("it is in line");
                    if let Ok(Some(grant)) = timeout(busy.wake.at_latest, signal).await {
                        return Ok(grant);
                    }
                }
                Ok(other) => panic!("{other:?}"),
                Err(StoreError::Refused(refusal)) if refusal.kind == RefusalKind::Ended => return Err(()),
                Err(_) if self.dice.clone().below(2) == 0 => return Err(()),
                Err(_) => sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// Holds for a while, and writes down for how long it believed to.
    async fn hold(&mut self, claim: &Claim, grant: Grant) -> Trail {
        let Grant { token, ttl, since, revoked, .. } = grant;
        let start = SystemClock.now();
        let mut valid_until = since + ttl - MARGIN;
        if start >= valid_until {
            return Trail::Clean;
        }
        let mut revoked = revoked.expect("it can be lost");
        let mut trail = Trail::Clean;
        let (how, end) = match self.dice.below(40) {
            0..20 => ("released at once", SystemClock.now()),
            20..31 => {
                let below = [4, 100, 100][usize::try_from(self.dice.below(3)).unwrap()];
                let is_told = timeout(self.dice.millis(below), &mut revoked).await.is_ok();
                (if is_told { "told" } else { "released" }, SystemClock.now())
            }
            31..33 => loop {
                // Renews, until it is lost or long enough.
                if timeout(claim.ttl.get() / 4, &mut revoked).await.is_ok() {
                    break ("told while renewing", SystemClock.now());
                }
                let sent = SystemClock.now();
                let renewed =
                    timeout(Duration::from_millis(60), self.redis.renew(&[Arc::new(claim.clone())])).await;
                let now = SystemClock.now();
                match renewed.ok().map(|mut answers| answers.remove(0)) {
                    Some(Ok(Renewal::Renewed { ttl })) => {
                        if sent < valid_until {
                            valid_until = valid_until.max(sent + ttl - MARGIN);
                        }
                    }
                    Some(Ok(_)) => break ("lost", now),
                    Some(Err(_)) | None => trail = Trail::Clean,
                }
                if now >= valid_until || self.dice.below(4) == 0 {
                    break ("renewed", now);
                }
            },
            _ => {
                // Silent: as if it had died, or slept.
                sleep(ttl + self.dice.millis(40)).await;
                trail = if self.dice.below(2) == 0 { Trail::Clean } else { Trail::Doubtful };
                ("silent", SystemClock.now())
            }
        };
        self.beliefs.lock().unwrap().push(Belief { token, start, end: end.min(valid_until), _how: how });
        trail
    }

    /// As core ends claims: until the store has answered, or has forgotten it anyhow.
    async fn release(&self, claim: &Claim, mut trail: Trail) {
        for _ in 0..20 {
            match self.redis.release(claim, trail).await {
                Ok(_) => return,
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
            trail = Trail::Doubtful;
        }
    }
}

fn lock(i: u64) -> String {
    format!("believed/{i}")
}

/// One fault after the other, one client after the other.
async fn trouble(proxies: Arc<Vec<Proxy>>, url: String, mut dice: Dice, until: BootInstant) {
    while SystemClock.now() < until {
        let proxy = &proxies[usize::try_from(dice.below(CLIENTS as u64)).unwrap()];
        let way = if dice.below(2) == 0 { Way::Out } else { Way::Back };
        let fault = match dice.below(8) {
            0 | 1 => Fault { delay: dice.millis(200), ..Fault::default() },
            2 | 3 => Fault { hold: true, ..Fault::default() },
            4 => Fault { blackhole: true, ..Fault::default() },
            5 => Fault { cut_after: Some(usize::try_from(dice.below(400)).unwrap()), ..Fault::default() },
            6 => Fault { duplicate: true, ..Fault::default() },
            _ => Fault { drop_pushes: true, ..Fault::default() },
        };
        match dice.below(6) {
            0 => {
                let _: redis::Value = ask(&url, &["SCRIPT", "FLUSH"]).await;
            }
            1 => {
                let operator = connect(&url, RULES).await;
                let eviction = Eviction { token: None, force: false, reason: Reason::new("stuck").unwrap() };
                operator
                    .evict(&LockName::new(lock(dice.below(LOCKS as u64))).unwrap(), &eviction)
                    .await
                    .unwrap();
            }
            _ => {
                let is_broken = fault.blackhole;
                proxy.set(way, fault);
                sleep(dice.millis(300)).await;
                proxy.set(way, Fault::default());
                if is_broken {
                    // What was swallowed would be missed for ever.
                    proxy.reset_all();
                }
            }
        }
        sleep(dice.millis(30)).await;
    }
}

fn seconds() -> u64 {
    std::env::var("TENURE_BELIEFS").map_or(4, |seconds| seconds.parse().expect("TENURE_BELIEFS is a number"))
}

/// One at a time, with rising tokens.
fn check(mut beliefs: Vec<Belief>) -> usize {
    beliefs.sort_by_key(|belief| (belief.start, belief.token));
    for pair in beliefs.windows(2) {
        let [before, after] = pair else { unreachable!() };
        assert!(before.end <= after.start, "two at once: {before:?}, {after:?}");
        assert!(before.token < after.token, "tokens rise: {before:?}, {after:?}");
    }
    beliefs.len()
}

async fn believe(has_trouble: bool) {
    let seed = seed();
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let mut proxies = Vec::new();
    for _ in 0..CLIENTS {
        proxies.push(Proxy::start(server.address()).await);
    }
    let proxies = Arc::new(proxies);
    let all: Vec<_> = (0..LOCKS).map(|_| Arc::new(Mutex::new(Vec::new()))).collect();
    let until = SystemClock.now() + Duration::from_secs(seconds());
    let mut parties = tokio::task::JoinSet::new();
    let mut clients = Vec::new();
    for (i, proxy) in proxies.iter().enumerate() {
        let redis = connect(&format!("{}?timeout=300ms", proxy.url()), RULES).await;
        for j in 0..LOCKS * PARTIES {
            let dice = Dice::new(seed, i * LOCKS * PARTIES + j + 1);
            let (name, beliefs) = (lock((j % LOCKS) as u64), all[j % LOCKS].clone());
            parties.spawn(Party { name, redis: redis.clone(), dice, beliefs, until }.play());
        }
        clients.push(redis);
    }
    if has_trouble {
        trouble(proxies.clone(), url.clone(), Dice::new(seed, 0), until).await;
    }
    while let Some(played) = parties.join_next().await {
        played.unwrap();
    }
    let held: usize =
        all.into_iter().map(|beliefs| check(std::mem::take(&mut *beliefs.lock().unwrap()))).sum();
    println!("{held} beliefs");
    assert!(held > 100, "hardly anybody held anything");
    // Tombstones and whatever a lost answer left expire.
    let gone = timeout(Duration::from_secs(20), async {
        while !leftovers(&url).await.is_empty() {
            sleep(Duration::from_millis(50)).await;
        }
    });
    if gone.await.is_err() {
        panic!("left: {:?}", leftovers(&url).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_believe_to_hold() {
    believe(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_believe_to_hold_in_trouble() {
    believe(true).await;
}
