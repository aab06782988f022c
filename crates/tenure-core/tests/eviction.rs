//! What becomes of the work when an operator takes its lock away.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::{Clock, SystemClock, sleep_until};
use tenure_core::{Eviction, Locks, Memory, Why};

/// Core released an evicted claim as soon as it heard of the eviction, so the lock passed on while the work under it was
/// still being told: `tenure run` found its command beside the next one for as long as its grace lasted.
#[tokio::test]
async fn an_evicted_lock_passes_on_when_its_work_is_over_not_when_it_is_told() {
    let store = Memory::new();
    let (holder, waiter) = (Locks::new(store.clone()), Locks::new(store));
    let guard = holder.lock("x").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    let next = tokio::spawn(waiter.lock("x").acquire());
    while waiter.inspect("x").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(waiter.evict("x", Eviction::because("maintenance").unwrap()).await.unwrap(), 1);
    assert!(matches!(guard.lost().await, Why::Evicted { .. }));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    sleep_until(clock.clone(), clock.now() + Duration::from_millis(50)).await;
    assert!(!next.is_finished());
    drop(guard);
    next.await.unwrap().unwrap().release().await.unwrap();
}
