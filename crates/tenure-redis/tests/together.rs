//! Requests that travel together in one script call: each is served as if it had come alone.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{connect, leftovers};
use tenure_core::Locks;
use tenure_core::queue::Rules;
use tenure_testkit::servers::{Kind, Server};

/// Some of the locks in one call are free and some are waited for, by this client and by another: one at a time holds
/// each, tokens rise, and nothing stays.
#[tokio::test(flavor = "multi_thread")]
async fn releases_of_free_and_of_awaited_locks_may_travel_together() {
    const NAMES: usize = 60;
    const TASKS: usize = 160;
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let clients =
        [Locks::new(connect(&url, Rules::DEFAULT).await), Locks::new(connect(&url, Rules::DEFAULT).await)];
    let holders: Arc<Vec<AtomicU64>> = Arc::new((0..NAMES).map(|_| AtomicU64::new(0)).collect());
    let tokens: Arc<Vec<AtomicU64>> = Arc::new((0..NAMES).map(|_| AtomicU64::new(0)).collect());
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let (locks, holders, tokens) = (clients[task % 2].clone(), holders.clone(), tokens.clone());
        tasks.spawn(async move {
            for round in 0..20 {
                // Half of them have a name of their own; the others meet.
                let name = if task < NAMES / 2 { task } else { NAMES / 2 + (task + round) % (NAMES / 2) };
                let guard = locks.lock(format!("together/{name}")).acquire().await.unwrap();
                assert_eq!(holders[name].fetch_add(1, Ordering::SeqCst), 0, "{name} is held twice");
                let token = guard.token().get();
                assert!(tokens[name].swap(token, Ordering::SeqCst) < token, "a token of {name} went back");
                tokio::task::yield_now().await;
                holders[name].fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(leftovers(&url).await, Vec::<String>::new());
}
