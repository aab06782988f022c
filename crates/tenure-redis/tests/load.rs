//! What waiting costs the store, and what many cancelled acquires leave behind: counted, not timed.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{ask, connect, leftovers};
use tenure_core::clock::{SystemClock, sleep_until};
use tenure_core::queue::Rules;
use tenure_core::{Clock, Entropy, Guard, Locks, SystemEntropy};
use tenure_testkit::proxy::{Fault, Proxy, Way};
use tenure_testkit::servers::{Kind, Server};

/// How many script calls the server has had.
async fn script_calls(url: &str) -> u64 {
    let info: String = ask(url, &["INFO", "commandstats"]).await;
    let calls = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":calls="));
        line.and_then(|line| line.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    calls("cmdstat_evalsha") + calls("cmdstat_eval")
}

/// The round trip takes a tenth of the time that there is: many calls must be under way at once.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_locks_are_renewed_in_time_by_a_server_far_away() {
    const LOCKS: u64 = 8000;
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let locks = Locks::new(connect(&proxy.url(), Rules::DEFAULT).await);
    let ttl = Duration::from_secs(3);
    let all = (0..LOCKS).map(|i| locks.lock(format!("far/{i}")).ttl(ttl).acquire());
    let guards = futures_util::future::try_join_all(all).await.unwrap();
    for way in [Way::Out, Way::Back] {
        proxy.set(way, Fault { delay: Duration::from_millis(50), ..Fault::default() });
    }
    let clock = Arc::new(SystemClock);
    let end = clock.now() + ttl * 2;
    tokio::select! {
        (why, ..) = futures_util::future::select_all(guards.iter().map(|guard| Box::pin(guard.lost()))) => {
            panic!("{why:?}, {:?} before the end", end.saturating_since(clock.now()));
        }
        () = sleep_until(clock.clone(), end) => {}
    }
    assert!(locks.stats().renewed >= LOCKS);
    proxy.heal();
    for released in futures_util::future::join_all(guards.into_iter().map(Guard::release)).await {
        released.unwrap();
    }
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// One command to join the line, one to give the lock back; the hand-over itself is part of the second.
#[tokio::test(flavor = "multi_thread")]
async fn a_contended_acquisition_costs_two_commands_however_many_wait() {
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    for waiters in [2_u64, 16, 200] {
        // Two clients: requests of one client may travel together, which would make it even fewer.
        let clients = [
            Locks::new(connect(&url, Rules::DEFAULT).await),
            Locks::new(connect(&url, Rules::DEFAULT).await),
        ];
        let before = script_calls(&url).await;
        let rounds = 4;
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..waiters {
            let locks = clients[usize::try_from(i % 2).unwrap()].clone();
            tasks.spawn(async move {
                for _ in 0..rounds {
                    let guard = locks.lock("contended").acquire().await.unwrap();
                    tokio::task::yield_now().await;
                    guard.release().await.unwrap();
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        let acquisitions = waiters * rounds;
        let commands = script_calls(&url).await - before;
        println!("{waiters} waiters: {} commands per acquisition", commands as f64 / acquisitions as f64);
        assert!(
            commands as f64 <= acquisitions as f64 * 2.2,
            "{commands} commands for {acquisitions} acquisitions by {waiters}"
        );
        assert_eq!(leftovers(&url).await, Vec::<String>::new());
    }
}

/// Cancelled at random moments, free and held, waiting and granted: nothing stays, on either side.
#[tokio::test(flavor = "multi_thread")]
async fn many_cancelled_acquires_leave_nothing() {
    let cancels = 100_000;
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let backend = connect(&url, Rules::DEFAULT).await;
    let locks = Locks::new(backend.clone());
    let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut tasks = tokio::task::JoinSet::new();
    let started = Arc::new(std::sync::atomic::AtomicU64::new(0));
    for _ in 0..64 {
        let (locks, started) = (locks.clone(), started.clone());
        tasks.spawn(async move {
            while started.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < cancels {
                let mut dice = [0; 2];
                SystemEntropy.fill(&mut dice);
                let acquire = locks.lock(format!("cancel/{}", dice[0] % 8)).acquire();
                let patience = Duration::from_micros(u64::from(dice[1]) * 12);
                // Dropped when it is over: the future or the guard.
                let _ = tokio::time::timeout(patience, acquire).await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    locks.close(Duration::from_secs(20)).await.unwrap();
    let mut left = leftovers(&url).await;
    // A tombstone may stay where a request was not answered; there should be none on a healthy server.
    left.sort();
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(locks.held_count(), 0);
    assert!(format!("{backend:?}").contains("registered_claims: 0"), "{backend:?}");
    for _ in 0..200 {
        if tokio::runtime::Handle::current().metrics().num_alive_tasks() <= alive {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{} tasks are left", tokio::runtime::Handle::current().metrics().num_alive_tasks() - alive);
}
