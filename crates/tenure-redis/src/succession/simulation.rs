//! Handing on in a simulated world: the store is [`queue`](tenure_core::queue), time is virtual, and between the two is a
//! network that loses, delays, doubles and reorders what it carries.
//!
//! Parties of a few processes want one lock over and over, with differing ttls. They hold for a while, renew, release, go
//! silent, give up. At no moment do two believe to hold, and tokens rise; in the end nothing is left anywhere. What is
//! written down here once more is only what `handing_on.rs` and `backend.rs` do between the parts: the succession, its
//! links, the news and their dates are the real ones. `TENURE_HISTORIES` says how many, `TENURE_SEED` which.

#![allow(clippy::disallowed_methods, reason = "time is virtual here")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tenure_core::queue::{Attempted, Notice, Now, Queue, Rules, Step};
use tenure_core::{
    Claim, Entropy, Eviction, Line, LockName, Mode, Reason, Released, Renewal, SystemEntropy, Tie, Trail, Ttl,
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

/// What the store answers to a release.
#[derive(Debug, Clone)]
struct ReleaseAnswer {
    released: Released,
    /// The lock has come to a claim of the process that asks: what it would be pushed, and who is next in line.
    told: Option<(Vec<u8>, Vec<ClaimId>)>,
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
        let mut answer = Some(answer);
        for copy in 0..=usize::from(is_twice) {
            let (Some(out), here, verb) = (self.way(), self.clone(), verb.clone()) else { continue };
            let to = if copy == 0 { answer.take() } else { None };
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

    fn receive(&self, message: &[u8], may_be_late: bool) {
        if let Some(orphan) = self.process().pushes.receive(message, self.world.now()) {
            let (here, orphan) = (self.clone(), Orphan { may_be_late, ..orphan });
            tokio::spawn(async move {
                here.process().succession.stop(&here.world.keys, orphan.id);
                let trail = if may_be_late { Trail::Clean } else { Trail::Doubtful };
                let _ = here.release(orphan.id, trail).await;
            });
        }
    }

    /// `Inner::release` and `Requests::hand_out`.
    async fn release(&self, id: ClaimId, trail: Trail) -> Answer<Released> {
        let process = self.process();
        let standing = process.standing.load(Ordering::Relaxed).saturating_sub(1);
        let wants = if trail == Trail::Clean { process.succession.asks_for(standing) } else { 0 };
        let which = self.which;
        let answer =
            self.ask(move |world, queue, now| release_of(world, queue, now, which, id, trail, wants)).await;
        let (ReleaseAnswer { released, told }, Anchor { sent, .. }) = answer?;
        self.told(told, sent);
        Ok(released)
    }

    /// `Inner::came_here`.
    fn told(&self, told: Option<(Vec<u8>, Vec<ClaimId>)>, sent: BootInstant) {
        let Some((push, next)) = told else { return };
        let (process, now) = (self.process(), self.world.now());
        let (id, grant) = grant_in(&push, sent).expect("a grant");
        let grant = Inheritance { token: grant.token, since: sent, ttl: grant.ttl };
        let came = Came { first: id, grant, next: next.iter().copied(), is_cut: Arc::default() };
        let (awaits, ours) = (|id| process.pushes.awaits(id), |id| process.pushes.may_inherit(id));
        let mut has_heirs = false;
        if !next.is_empty() || !process.succession.is_idle() {
            let begun = process.succession.begin(&self.world.keys, came, awaits, ours, now);
            if let Some(lost) = begun.lost {
                process.pushes.tell(lost, News::Lost);
            }
            has_heirs = begun.has_heirs;
        }
        if has_heirs {
            process.pushes.receive(&push, now);
        } else {
            self.receive(&push, true);
        }
    }

    /// `Inner::end`.
    async fn end(&self, claim: &Claim, trail: Trail) -> Answer<Released> {
        let (process, keys, id) = (self.process(), &self.world.keys, claim.id);
        process.pushes.end(id);
        let tell = |id, inheritance| process.pushes.inherit(id, inheritance);
        match process.succession.end(keys, id, trail == Trail::Clean, self.world.now(), tell) {
            End::AsStored => self.release(id, trail).await,
            End::HandedOn(link) => {
                tokio::task::yield_now().await;
                let released = self.tell(id, &link).await?;
                if trail == Trail::Doubtful {
                    self.release(id, trail).await?;
                }
                Ok(released)
            }
            End::Last(link) => {
                let here = self.clone();
                CarriedThrough::new(async move {
                    let shared = link.clone();
                    let end = || Box::pin(async move { here.end_last(id, trail, &shared).await }) as _;
                    link.in_turn(|| None, end).await
                })
                .await
            }
        }
    }

    /// `Inner::end_last`: both in one write.
    async fn end_last(&self, id: ClaimId, trail: Trail, link: &Arc<Link>) -> Answer<Released> {
        let (process, keys, which) = (self.process(), &self.world.keys, self.which);
        let Some(Report { held, last, label }) = process.succession.report(keys, id) else {
            self.tell_in_turn(id, link).await?;
            process.succession.known(keys, id);
            return self.release(id, trail).await;
        };
        link.is_asked();
        let both = self.ask(move |world, queue, now| {
            let Step { answer, mut notices } = queue.hand_on(now, &RULES, &held, (last.token, &label));
            let (released, others) = release_of(world, queue, now, which, id, trail, 0);
            notices.extend(others);
            ((answer.is_some(), released), notices)
        });
        let ((is_ours, answer), Anchor { sent, .. }) = both.await?;
        link.is_answered();
        if is_ours {
            process.succession.known(keys, id);
        } else {
            process.succession.lost(keys, link);
        }
        self.told(answer.told, sent);
        Ok(answer.released)
    }

    async fn tell(&self, id: ClaimId, link: &Arc<Link>) -> Answer<Released> {
        let settled =
            || (!self.process().succession.must_be_told(&self.world.keys, id)).then(|| link.verdict());
        let request = || {
            let (here, link) = (self.clone(), link.clone());
            Box::pin(async move { here.tell_in_turn(id, &link).await }) as _
        };
        link.in_turn(settled, request).await
    }

    /// `Inner::tell_in_turn`.
    async fn tell_in_turn(&self, id: ClaimId, link: &Arc<Link>) -> Answer<Released> {
        let (process, keys) = (self.process(), &self.world.keys);
        let Some(Report { held, last, label }) = process.succession.report(keys, id) else {
            return link.verdict();
        };
        let wants = process.standing.load(Ordering::Relaxed).min(HEIRS_MAX);
        let heard = self.ask(move |_, queue, now| {
            let Step { answer, notices } = queue.hand_on(now, &RULES, &held, (last.token, &label));
            (answer.map(|ttl| (ttl, queue.name_heirs(now, wants))), notices)
        });
        match heard.await? {
            (Some((ttl, (first, next))), Anchor { sent, .. }) => {
                let next = numbered(first.get(), next.into_iter());
                let confirmed = Confirmed { since: sent, ttl, next, is_cut: Arc::default() };
                let ours = |id| process.pushes.may_inherit(id);
                process.succession.heard(keys, last.id, confirmed, ours, self.world.now());
                process.pushes.remind(last.id);
                Ok(Released::Held)
            }
            (None, _) => {
                if let Some(last) = process.succession.lost(keys, link) {
                    process.pushes.tell(last, News::Lost);
                }
                link.verdict()
            }
        }
    }

    async fn make_known(&self, id: ClaimId) -> Answer<()> {
        match self.process().succession.unheard(&self.world.keys, id) {
            Some(link) => self.tell(id, &link).await.map(drop),
            None => Ok(()),
        }
    }

    /// `Backend::attempt`, and core's waiting.
    async fn wait(&self, claim: &Claim) -> Answer<Option<(Inheritance, oneshot::Receiver<News>)>> {
        let (process, id) = (self.process(), claim.id);
        loop {
            self.make_known(id).await?;
            let waiting = Waiting { label: claim.label.clone(), ttl: claim.ttl.get() };
            let (news, _) = process.pushes.listen(id, Some(waiting), self.world.now());
            let asks = claim.clone();
            let attempted =
                self.ask(move |_, queue, now| match queue.attempt(now, &RULES, &asks, None, Line::Join) {
                    Ok(Step { answer, notices }) => (Some(answer), notices),
                    Err(_) => (None, Vec::new()),
                });
            let (anchor, at_latest) = match attempted.await? {
                (None, _) => return Ok(None),
                (Some(Attempted::Granted { token, ttl }), anchor) => {
                    self.holds(id, token);
                    return Ok(Some((Inheritance { token, ttl, since: anchor.sent }, news)));
                }
                (Some(Attempted::Busy { at_latest, .. }), anchor) => (anchor, at_latest),
                (Some(Attempted::Settled(_)), _) => unreachable!("nothing is settled here"),
            };
            process.standing.fetch_add(1, Ordering::Relaxed);
            let standing = Counted(&process.standing);
            let news = timeout(at_latest, news).await;
            drop(standing);
            // Whoever is told wakes up a little later.
            if self.world.dice.below(8) == 0 {
                sleep(self.world.dice.up_to(Duration::from_millis(3))).await;
            }
            let grant = match news {
                Ok(Ok(News::Granted(push))) => {
                    dating::since(&anchor, push.granted_micros, &push.run_id, push.read_at)
                        .map(|since| Inheritance { token: push.token, ttl: push.ttl, since })
                }
                Ok(Ok(News::Inherited(inheritance))) if process.succession.is_last(&self.world.keys, id) => {
                    self.world.beliefs.lock().unwrap().inherited += 1;
                    Some(inheritance)
                }
                _ => None,
            };
            if let Some(grant) = grant {
                let (news, _) = process.pushes.listen(id, None, self.world.now());
                self.holds(id, grant.token);
                return Ok(Some((grant, news)));
            }
        }
    }

    /// `Inner::grant`.
    fn holds(&self, id: ClaimId, token: FencingToken) {
        let process = self.process();
        process.pushes.hold(id, token);
        if let Some(lost) = process.succession.granted(&self.world.keys, id, token) {
            process.pushes.tell(lost, News::Lost);
        }
    }

    async fn renew(&self, claim: &Claim) -> Answer<Renewal> {
        self.make_known(claim.id).await?;
        let asks = claim.clone();
        let renewed = self.ask(move |_, queue, now| {
            let Step { answer, notices } = queue.renew(now, &RULES, &asks);
            (answer, notices)
        });
        let (renewal, _) = renewed.await?;
        if matches!(renewal, Renewal::Lost(_)) {
            self.process().succession.stop(&self.world.keys, claim.id);
        }
        Ok(renewal)
    }

    /// Holds for a while.
    async fn hold(&self, claim: &Claim, grant: Inheritance, mut news: oneshot::Receiver<News>) -> Trail {
        let (world, dice, id) = (&self.world, &self.world.dice, claim.id);
        let mut until = grant.since + grant.ttl - MARGIN;
        if world.now() >= until {
            return Trail::Clean;
        }
        world.believe(id, grant.token, until);
        match dice.below(40) {
            0..14 => {}
            14..28 => sleep(dice.up_to(Duration::from_millis(2))).await,
            28..34 => {
                // What is told of it: that it is lost, or nothing that matters.
                let _ = timeout(dice.up_to(claim.ttl.get()), &mut news).await;
            }
            34..37 => loop {
                sleep(claim.ttl.get() / 4).await;
                let sent = world.now();
                if sent >= until || dice.below(5) == 0 {
                    break;
                }
                match self.renew(claim).await {
                    Ok(Renewal::Renewed { ttl }) if world.now() < until => {
                        until = until.max(sent + ttl - MARGIN);
                        world.believe(id, grant.token, until);
                    }
                    Ok(_) => break,
                    Err(_) => {}
                }
            },
            _ => sleep(until.saturating_since(world.now()) + dice.up_to(Duration::from_millis(100))).await,
        }
        world.disbelieve(id);
        if dice.below(8) == 0 { Trail::Doubtful } else { Trail::Clean }
    }

    async fn party(self) {
        let (world, dice) = (&self.world, &self.world.dice);
        while world.began.elapsed() < LENGTH {
            let claim = self.claim();
            let patience = match dice.below(6) {
                0 => dice.up_to(Duration::from_millis(2)),
                1 => dice.up_to(Duration::from_millis(300)),
                _ => Duration::from_secs(3),
            };
            let mut trail = match timeout(patience, self.wait(&claim)).await {
                Ok(Ok(Some((grant, news)))) => self.hold(&claim, grant, news).await,
                _ => Trail::Doubtful,
            };
            // Now and then whoever asked does not wait for the answer, and somebody else asks again.
            if dice.below(6) == 0 {
                let _ = timeout(dice.up_to(Duration::from_micros(400)), self.end(&claim, trail)).await;
            }
            while self.end(&claim, trail).await.is_err() {
                trail = Trail::Doubtful;
            }
            self.process().pushes.forget(claim.id);
            sleep(dice.up_to(Duration::from_micros(300))).await;
        }
    }

    fn claim(&self) -> Claim {
        let (mut whose, dice) = (self.world.whose.lock().unwrap(), &self.world.dice);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&(whose.len() as u64).to_le_bytes());
        let id = ClaimId::from_bytes(bytes);
        whose.insert(id, self.which);
        let ttl = [60, 100, 250, 250, 400][usize::try_from(dice.below(5)).expect("small")];
        Claim {
            name: LockName::new("a").expect("a good name"),
            id,
            mode: Mode::Exclusive,
            ttl: Ttl::new(Duration::from_millis(ttl)).expect("a good ttl"),
            tie: Tie::Process,
            label: Label::new("a/1/x").expect("a good label"),
            reason: None,
        }
    }
}

/// One less when it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What `release.lua` does: who gets the lock next is told in the answer, if it is of the process that asks.
fn release_of(
    world: &World,
    queue: &mut Queue,
    now: Now,
    which: usize,
    id: ClaimId,
    trail: Trail,
    wants: usize,
) -> (ReleaseAnswer, Vec<Notice>) {
    let Step { answer: released, mut notices } = queue.release(now, &RULES, id, trail);
    let whose = world.whose.lock().unwrap();
    let is_ours = |notice: &Notice| notice.grant.is_some() && whose.get(&notice.id) == Some(&which);
    let told = (released == Released::Held && trail == Trail::Clean && notices.first().is_some_and(is_ours))
        .then(|| notices.remove(0));
    let told = told.map(|notice| (world.message("L", &notice), queue.name_heirs(now, wants).1));
    (ReleaseAnswer { released, told }, notices)
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
    assert!(count < 100 || inherited > 1000.max(2 * held / 100), "hardly anything was handed on");
}
