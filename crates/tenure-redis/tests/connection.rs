//! The connection itself: how it comes and goes.

mod common;

use std::time::Duration;

use common::{QUICK, ask, claim, connect};
use tenure_core::clock::{Clock, SystemClock, sleep_until};
use tenure_core::{Attempt, Backend, Line, Mode, Trail};
use tenure_testkit::servers::{Kind, Server};

const LONG: Duration = Duration::from_secs(30);

/// How many of our clients the server knows.
async fn clients(url: &str) -> usize {
    let list: String = ask(url, &["CLIENT", "LIST"]).await;
    list.lines().filter(|line| line.contains("lib-name=tenure") || line.contains(" sub=1 ")).count()
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
    let written = async {
        loop {
            let list: String = ask(&url, &["CLIENT", "LIST"]).await;
            if list.lines().any(|line| line.contains("sub=1") && line.contains("cmd=evalsha")) {
                return;
            }
        }
    };
    tokio::select! {
        _ = &mut attempt => panic!("the server answers nothing that writes"),
        () = written => {}
    }
    drop(attempt);
    drop(redis);
    let clock = std::sync::Arc::new(SystemClock);
    let deadline = clock.now() + Duration::from_secs(20);
    while clients(&url).await > 0 {
        assert!(clock.now() < deadline, "the connection stays open");
        sleep_until(clock.clone(), clock.now() + Duration::from_millis(5)).await;
    }
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
