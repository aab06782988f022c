//! Answers that arrive late: after a renewal is due already, or after the store had been away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::clock::{SystemClock, sleep_until};
use tenure_core::{
    Answer, Attempt, Backend, Bytes, Capabilities, Claim, Clock, Error, Eviction, Line, LockName, LockPage,
    LockState, Locks, Memory, Released, Renewal, Seams, Settled, StoreError, Trail, async_trait,
};

async fn pause(duration: Duration) {
    sleep_until(Arc::new(SystemClock), SystemClock.now() + duration).await;
}

/// Memory whose attempts are answered late, and which is away for a number of requests.
#[derive(Debug)]
struct Late {
    memory: Memory,
    attempts_late_by: Duration,
    away_for: Arc<AtomicU64>,
}

impl Late {
    fn is_away(&self) -> bool {
        self.away_for.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
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
        if self.is_away() {
            return Err(StoreError::unknown("away"));
        }
        let answer = self.memory.attempt(claim, line).await;
        pause(self.attempts_late_by).await;
        answer
    }
    async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
        self.memory.renew(claims).await
    }
    async fn release(&self, claim: &Claim, trail: Trail) -> Answer<Released> {
        self.memory.release(claim, trail).await
    }
    async fn settle(&self, claim: &Claim, outcome: Bytes, keep: Duration) -> Answer<Settled> {
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
}

fn late(attempts_late_by: Duration) -> (Locks, Arc<AtomicU64>) {
    let away_for = Arc::new(AtomicU64::new(0));
    let late = Late { memory: Memory::new(), attempts_late_by, away_for: away_for.clone() };
    (Locks::with(Arc::new(late), Seams::default()), away_for)
}

/// A grant whose answer took longer than a third of its ttl was due for renewal when it arrived; nobody rang for it, and
/// it ran out.
#[tokio::test]
async fn a_grant_that_is_due_on_arrival_is_renewed_at_once() {
    let ttl = Duration::from_millis(1500);
    let (locks, _) = late(ttl / 2);
    let guard = locks.lock("x").ttl(ttl).acquire().await.unwrap();
    pause(ttl).await;
    assert!(guard.is_held(), "{:?}", guard.state());
    guard.release().await.unwrap();
}

/// Who stands in line bears with a store that goes away for a while, longer than somebody who never reached it.
#[tokio::test]
async fn a_waiter_stays_through_an_outage() {
    let (locks, away_for) = late(Duration::ZERO);
    let guard = locks.lock("x").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("x").acquire());
    while locks.stats().waiting < 1 {
        tokio::task::yield_now().await;
    }
    away_for.store(3, Ordering::SeqCst);
    // A notice without a grant sends the waiter to the store, which is away.
    locks.evict("x", None, true, "test").await.unwrap();
    drop(guard);
    assert!(waiter.await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn a_store_that_never_answers_is_unavailable_not_busy() {
    let (locks, away_for) = late(Duration::ZERO);
    away_for.store(u64::MAX, Ordering::SeqCst);
    let wait = locks.lock("x").wait(Duration::from_millis(50)).acquire().await;
    assert!(matches!(wait, Err(Error::Unavailable { .. })), "{wait:?}");
    let tried = locks.lock("x").try_acquire().await;
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
}
