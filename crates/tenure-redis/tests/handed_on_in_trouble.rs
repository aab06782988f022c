//! A lock that goes from hand to hand while the store, the network or its own callers fail it. Each of these was found by
//! somebody who looked for it.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::line::{TTL, Waiter, line_of};
use common::{ask, claim, connect};
use futures_util::FutureExt;
use tenure_core::queue::Rules;
use tenure_core::{Attempt, Backend, Line, Locks, Mode, Released, StoreError, Trail};
use tenure_testkit::proxy::{Fault, Proxy, Way};
use tenure_testkit::servers::{Kind, Server};

const MS: Duration = Duration::from_millis(1);

/// The store has forgotten everything, and has given the lock to the first in line: it is not handed on by whoever held it
/// before, and whoever comes next has a higher token.
#[tokio::test]
async fn tokens_rise_through_a_flush() {
    let server = Server::start(Kind::Redis7);
    let redis = connect(&server.url(), Rules::DEFAULT).await;
    let ((a, _), mut line) = line_of(&redis, "trouble/flush", 5).await;
    let _: redis::Value = ask(&server.url(), &["FLUSHALL"]).await;
    // It looks, as all do at once after a restart.
    let Waiter { claim: b, signal } = line.remove(0);
    drop(signal);
    let Attempt::Granted(granted) = redis.attempt(&b, Line::Join).await.unwrap() else { panic!() };
    assert_eq!(redis.release(&a, Trail::Clean).await.unwrap(), Released::Absent, "it had lost it");
    assert_eq!(redis.release(&b, Trail::Clean).await.unwrap(), Released::Held);
    if let Some(Some(grant)) = line.remove(0).signal.now_or_never() {
        assert!(grant.token > granted.token, "{} after {}", grant.token, granted.token);
    }
}

/// Parties of one client and of two, through restarts of a server that keeps nothing.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_through_restarts() {
    for clients in [1, 2] {
        let mut server = Server::start(Kind::Redis7);
        let url = server.url();
        let mut all = Vec::new();
        for _ in 0..clients {
            all.push(Locks::new(connect(&url, Rules::DEFAULT).await));
        }
        let (highest, held) = (Arc::new(Mutex::new((0, Vec::new()))), Arc::new(AtomicU64::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..12 {
            let (locks, highest, held) = (all[i % clients].clone(), highest.clone(), held.clone());
            tasks.spawn(async move {
                loop {
                    let Ok(guard) = locks.lock("trouble/restart").acquire().await else { continue };
                    let token = guard.token().get();
                    {
                        let mut seen = highest.lock().unwrap();
                        if token <= seen.0 {
                            let before = seen.0;
                            seen.1.push(format!("{token} after {before}"));
                        }
                        seen.0 = token.max(seen.0);
                    }
                    held.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(150 * MS).await;
                    let _ = guard.release().await;
                }
            });
        }
        for _ in 0..5 {
            let before = held.load(Ordering::Relaxed);
            while held.load(Ordering::Relaxed) < before + 4 {
                tokio::time::sleep(10 * MS).await;
            }
            server.kill();
            server.restart();
        }
        tasks.shutdown().await;
        assert_eq!(highest.lock().unwrap().1, Vec::<String>::new(), "{clients} clients");
    }
}

/// Somebody ends a claim and does not look what becomes of it: the next is renewed all the same, and so are others.
#[tokio::test]
async fn a_release_that_nobody_looks_at_holds_up_no_renewal() {
    let server = Server::start(Kind::Redis7);
    let redis = connect(&server.url(), Rules::DEFAULT).await;
    let ((a, _), mut line) = line_of(&redis, "trouble/idle", 5).await;
    let other = claim("trouble/other", Mode::Exclusive, TTL);
    assert!(matches!(redis.attempt(&other, Line::Join).await.unwrap(), Attempt::Granted(_)));
    let mut release = Box::pin(redis.release(&a, Trail::Clean));
    for _ in 0..2 {
        assert!((&mut release).now_or_never().is_none());
    }
    let (b, _) = line.remove(0).holds();
    let both = [Arc::new(b), Arc::new(other)];
    let renewed = tokio::time::timeout(Duration::from_secs(10), redis.renew(&both)).await;
    let renewed = renewed.expect("renewals stand still");
    assert!(renewed.iter().all(Result::is_ok), "{renewed:?}");
    assert_eq!(release.await.unwrap(), Released::Held);
}

/// A release is given up and asked for again while it is under way: it hands nothing on beside what the store does.
#[tokio::test]
async fn a_release_that_is_asked_for_twice_hands_on_once() {
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let redis = connect(&proxy.url(), Rules::DEFAULT).await;
    // The first holds; the next two are its heirs.
    let ((first, _), mut line) = line_of(&redis, "trouble/twice", 2).await;
    // These came later.
    let next = Waiter::join(&redis, claim("trouble/twice", Mode::Exclusive, TTL)).await;
    let _last = Waiter::join(&redis, claim("trouble/twice", Mode::Exclusive, TTL)).await;
    proxy.set(Way::Out, Fault { delay: 150 * MS, ..Fault::default() });
    let mut ends_first = Box::pin(redis.release(&first, Trail::Clean));
    for _ in 0..2 {
        assert!((&mut ends_first).now_or_never().is_none());
    }
    let (b, _) = line.remove(0).holds();
    let mut ends_b = Box::pin(redis.release(&b, Trail::Clean));
    assert!((&mut ends_b).now_or_never().is_none());
    let (x, _) = line.remove(0).holds();
    // There is nobody that it could hand on to.
    let mut ends_x = Box::pin({
        let (redis, x) = (redis.clone(), x.clone());
        async move { redis.release(&x, Trail::Clean).await }
    });
    assert!((&mut ends_x).now_or_never().is_none());
    assert_eq!(ends_first.await.unwrap(), Released::Held);
    // By now the store has named those that came later, and this is under way.
    assert!((&mut ends_x).now_or_never().is_none());
    drop(ends_x);
    let mut again = Box::pin(redis.release(&x, Trail::Clean));
    assert!((&mut again).now_or_never().is_none());
    let mut told = next.signal;
    assert!((&mut told).now_or_never().is_none(), "that is for the store to do");
    let (ended, again, b) = tokio::join!(told, again, ends_b);
    let grant = ended.expect("it is served");
    assert!(again.is_ok(), "{again:?}");
    assert_eq!(b.unwrap(), Released::Held);
    let state = redis.inspect(&next.claim.name).await.unwrap();
    assert_eq!(state.holders[0].token, Some(grant.token));
    assert!(grant.revoked.expect("it can be lost").now_or_never().is_none(), "nobody took it away");
}

/// The answer to the release of the last is lost. Those before it held all the time, and are not told otherwise.
#[tokio::test]
async fn a_lost_answer_makes_nobody_believe_that_the_lock_was_lost() {
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let redis = connect(&format!("{}?timeout=300ms", proxy.url()), Rules::DEFAULT).await;
    let ((a, _), mut line) = line_of(&redis, "trouble/answer", 1).await;
    // With so few heirs, a lock is handed on only if it was held for longer than a round trip.
    tokio::time::sleep(20 * MS).await;
    let mut ends_a = Box::pin(redis.release(&a, Trail::Clean));
    assert!((&mut ends_a).now_or_never().is_none());
    let (b, _) = line.remove(0).holds();
    proxy.set(Way::Back, Fault { blackhole: true, ..Fault::default() });
    let mut ends_b = Box::pin(redis.release(&b, Trail::Clean));
    assert!((&mut ends_b).now_or_never().is_none());
    assert!((&mut ends_a).now_or_never().is_none());
    let b = ends_b.await;
    assert!(matches!(b, Err(StoreError::Unknown(_))), "{b:?}");
    proxy.heal();
    let a = ends_a.await;
    assert!(!matches!(a, Ok(Released::Absent)), "{a:?}");
}

/// Requests wait for a carrier that goes with its runtime: they are told so, and may ask again.
#[test]
fn nobody_waits_for_a_carrier_of_a_runtime_that_has_ended() {
    let new = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (one, two) = (new(), new());
    let server = Server::start(Kind::Redis7);
    let proxy = two.block_on(Proxy::start(server.address()));
    let redis = two.block_on(connect(&proxy.url(), Rules::DEFAULT));
    proxy.set(Way::Back, Fault { hold: true, ..Fault::default() });
    let ask = |runtime: &tokio::runtime::Runtime, name: &'static str| {
        let redis = redis.clone();
        let task = runtime.spawn(async move {
            redis.attempt(&claim(name, Mode::Exclusive, TTL), Line::Join).await.map(drop)
        });
        // Until it has asked: nothing tells.
        std::thread::sleep(100 * MS);
        task
    };
    let (first, second) = (ask(&two, "trouble/1"), ask(&two, "trouble/2"));
    let _third = ask(&one, "trouble/3");
    let fourth = ask(&two, "trouble/4");
    one.shutdown_timeout(Duration::from_secs(1));
    proxy.heal();
    two.block_on(async {
        let _ = (first.await, second.await);
        let answered = tokio::time::timeout(Duration::from_secs(15), fourth).await;
        assert!(answered.is_ok(), "it waits for ever");
    });
}
