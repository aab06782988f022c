//! Answers that arrive late, and stores that go away: in simulated time.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::SimClock;
use tenure_core::clock::sleep_until;
use tenure_core::queue::Rules;
use tenure_core::{
    Answer, Attempt, Backend, BootInstant, BoxFuture, Bytes, Capabilities, Claim, Clock, Error, Eviction,
    LeaseState, Line, LockName, LockPage, LockState, Locks, Memory, Once, Released, Renewal, Seams, Settled,
    StoreError, SystemEntropy, Trail, Why, async_trait,
};
use tokio::sync::watch;

/// A memory store in simulated time, whose attempts are answered late, which takes its time to renew, and which is away
/// until some moment.
#[derive(Debug, Clone)]
struct Late {
    memory: Memory,
    clock: SimClock,
    attempts_late_by: Duration,
    renews_one_in: Duration,
    away_until: Arc<Mutex<BootInstant>>,
    is_forgetful: Arc<AtomicBool>,
    doubts: watch::Sender<u32>,
    panics: Arc<AtomicBool>,
    /// How many claims it was asked to renew.
    asked: Arc<AtomicU64>,
}

impl Late {
    fn new(attempts_late_by: Duration) -> (Self, Locks) {
        Self::slow(attempts_late_by, Duration::ZERO)
    }

    fn slow(attempts_late_by: Duration, renews_one_in: Duration) -> (Self, Locks) {
        let clock = SimClock::new();
        let memory = Memory::with(Arc::new(clock.clone()), Rules::DEFAULT);
        let away_until = Arc::new(Mutex::new(clock.now()));
        let is_forgetful = Arc::new(AtomicBool::new(false));
        let late = Self {
            memory,
            clock: clock.clone(),
            attempts_late_by,
            renews_one_in,
            away_until,
            is_forgetful,
            doubts: watch::Sender::new(0),
            panics: Arc::default(),
            asked: Arc::default(),
        };
        let seams = Seams { clock: Arc::new(clock), entropy: Arc::new(SystemEntropy) };
        (late.clone(), Locks::with(Arc::new(late), seams))
    }

    async fn pause(&self, duration: Duration) {
        sleep_until(Arc::new(self.clock.clone()), self.clock.now() + duration).await;
    }

    fn goes_away_for(&self, duration: Duration) {
        *self.away_until.lock().unwrap() = self.clock.now() + duration;
    }

    fn forgets_renewals(&self) {
        self.is_forgetful.store(true, Ordering::SeqCst);
    }

    fn answer(&self) -> Answer<()> {
        let is_away = self.clock.now() < *self.away_until.lock().unwrap();
        if is_away { Err(StoreError::unknown("away")) } else { Ok(()) }
    }
}

#[async_trait]
impl Backend for Late {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }
    fn store(&self) -> &str {
        self.memory.store()
    }
    fn lane(&self, name: &LockName) -> u32 {
        self.memory.lane(name)
    }
    async fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        self.answer()?;
        let answer = self.memory.attempt(claim, line).await;
        self.pause(self.attempts_late_by).await;
        answer
    }
    async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
        self.asked.fetch_add(claims.len() as u64, Ordering::SeqCst);
        assert!(!self.panics.swap(false, Ordering::SeqCst), "a bug");
        let lost = if self.is_forgetful.load(Ordering::SeqCst) {
            Err(StoreError::unknown("forgotten"))
        } else {
            self.answer()
        };
        self.pause(self.renews_one_in * u32::try_from(claims.len()).unwrap()).await;
        match lost {
            Ok(()) => self.memory.renew(claims).await,
            Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
        }
    }
    async fn release(&self, claim: &Claim, trail: Trail) -> Answer<Released> {
        self.answer()?;
        self.memory.release(claim, trail).await
    }
    async fn settle(&self, claim: &Claim, outcome: Bytes, keep: Duration) -> Answer<Settled> {
        self.answer()?;
        self.memory.settle(claim, outcome, keep).await
    }
    async fn forget(&self, name: &LockName) -> Answer<bool> {
        self.memory.forget(name).await
    }
    async fn inspect(&self, name: &LockName) -> Answer<LockState> {
        self.memory.inspect(name).await
    }
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Answer<LockPage> {
        self.memory.list(prefix, after, limit).await
    }
    async fn evict(&self, name: &LockName, eviction: &Eviction) -> Answer<u32> {
        self.memory.evict(name, eviction).await
    }
    fn in_doubt(&self) -> Option<BoxFuture<'static, ()>> {
        let mut doubts = self.doubts.subscribe();
        Some(Box::pin(async move { drop(doubts.changed().await) }))
    }
}

const TTL: Duration = Duration::from_secs(30);

/// A grant whose answer took longer than a third of its ttl was due for renewal when it arrived; nobody rang for it, and
/// it ran out.
#[tokio::test]
async fn a_grant_that_is_due_on_arrival_is_renewed_at_once() {
    let (late, locks) = Late::new(TTL / 2);
    let scene = async {
        let guard = locks.lock("x").ttl(TTL).acquire().await.unwrap();
        late.pause(TTL * 100).await;
        assert!(guard.is_held(), "{:?}", guard.state());
        guard.release().await.unwrap();
    };
    late.clock.clone().run(scene).await;
}

#[tokio::test]
async fn a_lease_bears_an_outage_shorter_than_its_validity_and_no_longer() {
    let (late, locks) = Late::new(Duration::ZERO);
    let scene = async {
        let guard = locks.lock("x").ttl(TTL).acquire().await.unwrap();
        late.goes_away_for(TTL / 2);
        late.pause(TTL / 2 - Duration::from_secs(1)).await;
        assert!(matches!(guard.state(), LeaseState::AtRisk { .. }), "{:?}", guard.state());
        late.pause(Duration::from_secs(3)).await;
        assert!(matches!(guard.state(), LeaseState::Held { .. }), "{:?}", guard.state());
        late.goes_away_for(TTL * 2);
        let valid_until = guard.valid_until();
        assert_eq!(guard.lost().await, Why::Expired);
        let early = valid_until.saturating_since(late.clock.now());
        assert!(!early.is_zero() && early < TTL / 100, "told {early:?} before the end of validity");
        late.pause(TTL * 3).await;
        assert!(matches!(guard.state(), LeaseState::Lost { why: Why::Expired }), "never back from lost");
        assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    };
    late.clock.clone().run(scene).await;
}

/// A store that may have forgotten is asked at once, however long the ttl.
#[tokio::test]
async fn whoever_holds_asks_a_store_that_is_in_doubt() {
    let (late, locks) = Late::new(Duration::ZERO);
    let asked = || late.asked.load(Ordering::SeqCst);
    let moment = Duration::from_millis(100);
    let scene = async {
        let a = locks.lock("a").ttl(TTL).acquire().await.unwrap();
        let b = locks.lock("b").ttl(TTL).acquire().await.unwrap();
        late.doubts.send_replace(1);
        late.pause(moment).await;
        assert_eq!(asked(), 2);
        assert!(matches!(a.state(), LeaseState::Held { .. }), "{:?}", a.state());
        // Not more often than every second, and a doubt meanwhile is not forgotten.
        for doubt in 2..10 {
            late.doubts.send_replace(doubt);
            late.pause(moment / 2).await;
        }
        assert_eq!(asked(), 2);
        late.pause(Duration::from_secs(1)).await;
        assert_eq!(asked(), 4);
        // It has forgotten one.
        late.evict(a.name(), &Eviction::because("forgotten").unwrap().force()).await.unwrap();
        late.doubts.send_replace(10);
        let before = late.clock.now();
        assert!(matches!(a.lost().await, Why::Evicted { .. }));
        assert!(late.clock.now().saturating_since(before) < moment * 20);
        assert!(b.is_held());
        // It is away, then comes back: whoever holds tries until it has an answer.
        late.goes_away_for(TTL / 2);
        late.doubts.send_replace(11);
        late.pause(Duration::from_secs(2)).await;
        assert!(matches!(b.state(), LeaseState::AtRisk { .. }), "{:?}", b.state());
        late.pause(TTL).await;
        assert!(matches!(b.state(), LeaseState::Held { .. }), "{:?}", b.state());
        b.release().await.unwrap();
    };
    late.clock.clone().run(scene).await;
    // The task that waits for doubts ends with its client.
    drop(locks);
    while late.doubts.receiver_count() > 0 {
        late.doubts.send_modify(|doubt| *doubt += 1);
        tokio::task::yield_now().await;
    }
}

/// No lease of its lane was renewed ever after.
#[tokio::test]
async fn a_backend_that_panics_is_asked_again() {
    let (late, locks) = Late::new(Duration::ZERO);
    let scene = async {
        let guard = locks.lock("x").ttl(TTL).acquire().await.unwrap();
        late.panics.store(true, Ordering::SeqCst);
        late.pause(TTL * 10).await;
        assert!(!late.panics.load(Ordering::SeqCst) && guard.is_held(), "{:?}", guard.state());
        assert_eq!(locks.stats().renewals_failed, 1);
    };
    late.clock.clone().run(scene).await;
}

/// They were renewed in one request, which took longer than the short one had, and whose answer was given up when it was due:
/// the short one was lost, and thousands of others were renewed over and over.
#[tokio::test]
async fn one_with_a_short_ttl_beside_many_with_a_long_one() {
    let (late, locks) = Late::slow(Duration::ZERO, Duration::from_micros(20));
    let scene = async {
        let mut many = Vec::new();
        for i in 0..5000 {
            many.push(locks.lock(format!("many/{i}")).ttl(TTL).acquire().await.unwrap());
        }
        let short = locks.lock("short").ttl(Duration::from_millis(60)).acquire().await.unwrap();
        late.pause(TTL * 3).await;
        assert!(short.is_held(), "{:?}", short.state());
        assert!(many.iter().all(|guard| guard.is_held()));
        assert_eq!(locks.stats().renewals_failed, 0);
    };
    late.clock.clone().run(scene).await;
}

/// Who stands in line bears with a store that goes away for a while, longer than somebody who never reached it.
#[tokio::test]
async fn a_waiter_stays_in_line_through_an_outage() {
    let (late, locks) = Late::new(Duration::ZERO);
    let scene = async {
        let guard = locks.lock("x").ttl(TTL).acquire().await.unwrap();
        let waiter = tokio::spawn(locks.lock("x").acquire());
        while locks.stats().waiting < 1 {
            tokio::task::yield_now().await;
        }
        // Longer than anybody's patience, longer than the ttl and than a place in line lasts.
        late.goes_away_for(TTL * 20);
        assert_eq!(guard.lost().await, Why::Expired);
        let second = waiter.await.unwrap().unwrap();
        assert!(second.is_held() && second.token() > guard.token());
    };
    late.clock.clone().run(scene).await;
}

#[tokio::test]
async fn a_store_that_never_answers_is_unavailable_not_busy() {
    let (late, locks) = Late::new(Duration::ZERO);
    late.goes_away_for(TTL * 20);
    let scene = async {
        let start = late.clock.now();
        let for_ever = locks.lock("x").acquire().await;
        assert!(matches!(for_ever, Err(Error::Unavailable { .. })), "{for_ever:?}");
        let patience = late.clock.now().saturating_since(start);
        assert!(patience >= Duration::from_secs(9) && patience <= Duration::from_secs(12), "{patience:?}");
        let wait = locks.lock("x").wait(Duration::from_millis(50)).acquire().await;
        assert!(matches!(wait, Err(Error::Unavailable { .. })), "{wait:?}");
        let tried = locks.lock("x").try_acquire().await;
        assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    };
    late.clock.clone().run(scene).await;
}

/// Found in the tower layer: the pause between two tries to record a result did not watch the lease, and the caller
/// learned half a second late that nothing was recorded.
#[tokio::test]
async fn a_do_once_that_cannot_be_recorded_ends_with_its_lease() {
    let (late, locks) = Late::new(Duration::ZERO);
    let scene = async {
        let start = late.clock.now();
        let store = late.clone();
        let done = locks.once("x").ttl(TTL).run(|_| async move {
            store.goes_away_for(TTL * 20);
            Ok::<_, ()>(1)
        });
        assert_eq!(done.await.unwrap(), Ok(Once::Unrecorded(1)));
        let valid_for = TTL - tenure_core::drift_margin(TTL);
        let took = late.clock.now().saturating_since(start);
        assert!(took <= valid_for, "told {took:?} after it began, {valid_for:?} were valid");
    };
    late.clock.clone().run(scene).await;
}

/// A lease that runs out while its work has yet to hear of it must not be given to the next one early: the store's own
/// expiry comes later than our validity, and that time belongs to the work.
#[tokio::test]
async fn a_lost_lock_is_not_given_back_while_its_work_goes_on() {
    let (late, locks) = Late::new(Duration::ZERO);
    let scene = async {
        let guard = locks.lock("x").ttl(TTL).acquire().await.unwrap();
        let next = locks.lock("x").acquire();
        let next = tokio::spawn(next);
        while locks.stats().waiting < 1 {
            tokio::task::yield_now().await;
        }
        // Renewals fail, but the store itself goes on: a release would reach it.
        late.forgets_renewals();
        assert_eq!(guard.lost().await, Why::Expired);
        let lost_at = late.clock.now();
        let valid_until = lost_at.max(guard.valid_until());
        let next = next.await.unwrap().unwrap();
        assert!(
            late.clock.now() >= valid_until + Duration::from_millis(200),
            "{lost_at:?} {:?}",
            late.clock.now()
        );
        assert!(next.is_held());
    };
    late.clock.clone().run(scene).await;
}
