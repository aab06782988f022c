//! A waiter process that is stopped while its grant arrives does not believe it when it goes on.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use common::connect;
use tenure_core::Locks;
use tenure_core::queue::Rules;
use tenure_testkit::servers::{Kind, Server, pause, resume};

const TTL: Duration = Duration::from_secs(2);

/// Not a test of its own: what the process below runs.
#[tokio::test(flavor = "multi_thread")]
async fn waits_in_a_process_of_its_own() {
    let Ok(url) = std::env::var("TENURE_TEST_WAITER") else { return };
    let locks = Locks::new(connect(&url, Rules::DEFAULT).await);
    let guard = locks.lock("stopped").ttl(TTL).acquire().await.unwrap();
    println!("\ngranted {}", guard.token());
    guard.release().await.unwrap();
}

/// The grant is made, and pushed, while the waiter is stopped; its ttl passes; another takes the lock. Dated when it is
/// read, the grant would be believed, and two would hold the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_waiter_does_not_believe_its_old_grant() {
    let server = Server::start(Kind::Redis7);
    let locks = Locks::new(connect(&server.url(), Rules::DEFAULT).await);
    let first = locks.lock("stopped").acquire().await.unwrap();
    let mut waiter = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "waits_in_a_process_of_its_own", "--nocapture", "--test-threads", "1"])
        .env("TENURE_TEST_WAITER", server.url())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (told, tells) = mpsc::channel();
    let output = BufReader::new(waiter.stdout.take().unwrap());
    std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if let Some(token) = line.strip_prefix("granted ") {
                let _ = told.send(token.parse::<u64>().unwrap());
            }
        }
    });
    while locks.inspect("stopped").await.unwrap().waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    pause(waiter.id());
    let before = first.token();
    first.release().await.unwrap();
    let granted = locks.inspect("stopped").await.unwrap();
    assert_eq!(granted.holders.len(), 1, "handed over to the stopped process");
    let pushed = granted.holders[0].token.unwrap();
    assert!(pushed > before);
    // Its ttl ends, and we take the lock.
    let second = locks.lock("stopped").acquire().await.unwrap();
    assert!(second.token() > pushed);
    resume(waiter.id());
    let early = tells.recv_timeout(Duration::from_millis(1500));
    assert!(second.is_held());
    assert!(early.is_err(), "it believed a grant that had ended: two held the lock");
    let third = second.token();
    second.release().await.unwrap();
    let token = tells.recv_timeout(Duration::from_secs(20)).expect("its turn comes in the end");
    assert!(token > third.get());
    assert!(waiter.wait().unwrap().success());
}
