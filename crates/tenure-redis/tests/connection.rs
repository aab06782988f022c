//! The connection itself: how it comes and goes.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{QUICK, ask, claim, connect, leftovers};
use tenure_core::clock::{Clock, SystemClock, sleep_until};
use tenure_core::queue::Rules;
use tenure_core::{Attempt, Backend, Line, Locks, Mode, Trail, Why};
use tenure_testkit::servers::{Kind, Server};

const LONG: Duration = Duration::from_secs(30);
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// How many of our clients the server knows.
async fn clients(url: &str) -> usize {
    let list: String = ask(url, &["CLIENT", "LIST"]).await;
    list.lines().filter(|line| line.contains("lib-name=tenure") || line.contains(" sub=1 ")).count()
}

/// Until a script of ours has reached the server, which does not run it.
async fn written(url: &str) {
    loop {
        let list: String = ask(url, &["CLIENT", "LIST"]).await;
        if list.lines().any(|line| line.contains("sub=1") && line.contains("cmd=evalsha")) {
            return;
        }
    }
}

/// Whoever drops a client while the server owes it an answer does not leave the connection to that answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_dropped_leaves_no_connection() {
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let redis = connect(&url, QUICK).await;
    assert_eq!(clients(&url).await, 1);
    let _: redis::Value = ask(&url, &["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let claim = claim("connection/dropped", Mode::Exclusive, LONG);
    let mut attempt = Box::pin(redis.attempt(&claim, Line::Join));
    tokio::select! {
        _ = &mut attempt => panic!("the server answers nothing that writes"),
        () = written(&url) => {}
    }
    drop(attempt);
    drop(redis);
    let clock = Arc::new(SystemClock);
    let deadline = clock.now() + Duration::from_secs(20);
    while clients(&url).await > 0 {
        assert!(clock.now() < deadline, "the connection stays open");
        sleep_until(clock.clone(), clock.now() + Duration::from_millis(5)).await;
    }
}

/// The ids of the clients that listen to pushes, and whether they are ours by their library.
async fn listeners(url: &str) -> Vec<String> {
    let list: String = ask(url, &["CLIENT", "LIST"]).await;
    let ours = list.lines().filter(|line| line.contains(" sub=1 "));
    ours.filter_map(|line| Some(line.split(' ').next()?.strip_prefix("id=")?.to_owned())).collect()
}

/// Where pushes need a connection of their own, it goes with the one it belongs to: nobody is told twice, and whoever is
/// gone is not taken for somebody that listens.
#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_connection_takes_its_subscription_with_it() {
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let redis = connect(&format!("{url}?protocol=resp2"), QUICK).await;
    assert_eq!(listeners(&url).await.len(), 1);
    for i in 0..5 {
        let _: redis::Value = ask(&url, &["CLIENT", "KILL", "TYPE", "normal"]).await;
        let claim = claim("connection/replaced", Mode::Exclusive, LONG);
        while redis.attempt(&claim, Line::Join).await.is_err() {
            sleep_until(Arc::new(SystemClock), SystemClock.now() + TRY_AGAIN).await;
        }
        redis.release(&claim, Trail::Clean).await.unwrap();
        let deadline = SystemClock.now() + Duration::from_secs(20);
        while listeners(&url).await.len() != 1 {
            assert!(
                SystemClock.now() < deadline,
                "{} listen after {i} replacements",
                listeners(&url).await.len()
            );
            sleep_until(Arc::new(SystemClock), SystemClock.now() + TRY_AGAIN).await;
        }
    }
    drop(redis);
    let deadline = SystemClock.now() + Duration::from_secs(20);
    while !listeners(&url).await.is_empty() {
        assert!(SystemClock.now() < deadline, "somebody still listens");
        sleep_until(Arc::new(SystemClock), SystemClock.now() + TRY_AGAIN).await;
    }
}

/// A server that does not know HELLO, as some proxies: locks and pushes work all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_resp3_is_spoken_to_in_resp2() {
    let server = Server::start_with(Kind::Redis7, &["--rename-command", "HELLO", ""]);
    let (one, two) = (connect(&server.url(), QUICK).await, connect(&server.url(), QUICK).await);
    let (first, second) =
        (claim("connection/resp2", Mode::Exclusive, LONG), claim("connection/resp2", Mode::Exclusive, LONG));
    assert!(matches!(one.attempt(&first, Line::Join).await, Ok(Attempt::Granted(_))));
    let Ok(Attempt::Busy(busy)) = two.attempt(&second, Line::Join).await else { panic!("it is taken") };
    one.release(&first, Trail::Clean).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(10), busy.wake.signal.expect("it is in line")).await;
    assert!(told.expect("a push").is_some(), "a grant");
    two.release(&second, Trail::Clean).await.unwrap();
}

/// With and without watching for answers, on every runtime, by name and by number.
#[test]
fn answers_come_on_every_runtime() {
    let server = Server::start(Kind::Redis7);
    let mut alone = tokio::runtime::Builder::new_current_thread();
    let mut many = tokio::runtime::Builder::new_multi_thread();
    for builder in [&mut alone, &mut many] {
        let runtime = builder.enable_all().build().unwrap();
        for url in [
            server.url(),
            format!("{}?spin=no", server.url()),
            format!("{}?protocol=resp2", server.url()),
            server.url().replace("127.0.0.1", "localhost"),
        ] {
            runtime.block_on(async {
                let redis = connect(&url, QUICK).await;
                for _ in 0..50 {
                    let claim = claim("connection/runtime", Mode::Exclusive, LONG);
                    let attempt = redis.attempt(&claim, Line::Join).await.unwrap();
                    assert!(matches!(attempt, Attempt::Granted(_)), "{url}: {attempt:?}");
                    redis.release(&claim, Trail::Clean).await.unwrap();
                }
            });
        }
    }
}

/// One client, one runtime after the other, each ended while requests are under way, or while it connects: the next one
/// finds the client in working order.
#[test]
fn a_client_outlives_its_runtimes() {
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let new = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let asks = new();
    let first = new();
    let redis = first.block_on(connect(&url, QUICK));
    let everybody = |runtime: &tokio::runtime::Runtime, round: usize| {
        let claims = (0..100).map(|i| claim(&format!("connection/{round}/{i}"), Mode::Exclusive, LONG));
        let attempts = claims.map(|claim| {
            let redis = redis.clone();
            runtime.spawn(async move {
                // Until then it may find that the connection has ended with the last runtime.
                loop {
                    match redis.attempt(&claim, Line::Join).await {
                        Ok(Attempt::Granted(_)) => return redis.release(&claim, Trail::Clean).await.is_ok(),
                        Ok(_) => return false,
                        Err(_) => sleep_until(Arc::new(SystemClock), SystemClock.now() + TRY_AGAIN).await,
                    }
                }
            })
        });
        attempts.collect::<Vec<_>>()
    };
    first.shutdown_background();
    for round in 0..20 {
        let runtime = new();
        let _: redis::Value = asks.block_on(ask(&url, &["CLIENT", "PAUSE", "60000", "WRITE"]));
        everybody(&runtime, round);
        // Some end at once, some when requests wait in the server.
        if round % 2 == 0 {
            asks.block_on(async { tokio::time::timeout(LONG, written(&url)).await.unwrap() });
        }
        runtime.shutdown_background();
        let _: redis::Value = asks.block_on(ask(&url, &["CLIENT", "UNPAUSE"]));
    }
    let last = new();
    for done in everybody(&last, 20) {
        let done = last.block_on(async { tokio::time::timeout(Duration::from_secs(20), done).await });
        assert!(done.expect("nobody carries it").unwrap(), "it was not granted");
    }
}

/// A server that went away and came back, with or without what it held. Nobody waits for its next renewal, here in 20 s, to hear
/// of it.
#[tokio::test(flavor = "multi_thread")]
async fn holders_hear_at_once_whether_a_server_that_came_back_has_forgotten_them() {
    for (arguments, is_kept) in [
        (&["--appendonly", "no"][..], false),
        (&["--appendonly", "yes", "--appendfsync", "always", "--dir", "{dir}"], true),
    ] {
        let mut server = Server::start_with(Kind::Redis7, arguments);
        let backend = connect(&server.url(), Rules::DEFAULT).await;
        let locks = Locks::new(backend.clone());
        let guard = locks.lock("a").ttl(Duration::from_secs(60)).acquire().await.unwrap();
        assert_eq!(locks.stats().renewed, 0);
        server.restart();
        let clock = Arc::new(SystemClock);
        let end = clock.now() + Duration::from_secs(15);
        loop {
            tokio::select! {
                why = guard.lost() => {
                    assert!(!is_kept && why == Why::Gone, "{why:?}");
                    break;
                }
                () = sleep_until(clock.clone(), (clock.now() + Duration::from_millis(20)).min(end)) => {}
            }
            if locks.stats().renewed > 0 {
                assert!(is_kept, "it was renewed by a server that knew nothing of it");
                break;
            }
            assert!(clock.now() < end, "nobody asked");
        }
        assert_eq!(guard.release().await.is_ok(), is_kept);
        assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
    }
}
