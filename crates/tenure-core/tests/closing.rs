//! A closed client has left: whatever it held or waited for is given back when `close` answers, not some time later.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Error, Locks, Memory, Seams};

const WITHIN: Duration = Duration::from_secs(10);

/// Found with this test: who waited was only told, and left the line after `close` had answered. A process that ends
/// right then leaves a dead waiter, and the next in line waits for it.
#[tokio::test]
async fn closing_waits_until_the_waiting_have_left_the_line() {
    let store = Memory::new();
    let (holding, waiting) = (client(&store), client(&store));
    let guard = holding.lock("x").acquire().await.unwrap();
    let acquire = tokio::spawn(waiting.lock("x").acquire());
    while holding.inspect("x").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    waiting.close(WITHIN).await.unwrap();
    assert_eq!(holding.inspect("x").await.unwrap().waiters, []);
    assert!(matches!(acquire.await.unwrap(), Err(Error::Closed)));
    guard.release().await.unwrap();
    assert_eq!(store.stored_names(), []);
}

/// A guard that is dropped while another task closes the client is waited for as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_waits_for_guards_that_are_dropped_meanwhile() {
    for _ in 0..500 {
        let store = Memory::new();
        let locks = client(&store);
        let guard = locks.lock("x").acquire().await.unwrap();
        let dropping = tokio::spawn(async move { drop(guard) });
        locks.close(WITHIN).await.unwrap();
        assert_eq!(store.stored_names(), []);
        dropping.await.unwrap();
    }
}

fn client(store: &Memory) -> Locks {
    Locks::with(Arc::new(store.clone()), Seams::default())
}
