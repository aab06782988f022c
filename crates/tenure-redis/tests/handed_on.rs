//! A lock that goes from hand to hand within a process, before the store has heard of it.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::line::{TTL, Waiter, line_of};
use common::{ask, calls, claim, connect, leftovers, seed};
use futures_util::FutureExt;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::queue::Rules;
use tenure_core::{
    Attempt, Backend, Claim, Eviction, Line, LockState, Locks, Mode, Reason, Released, Renewal, StoreError,
    Tie, Trail, Why,
};
use tenure_redis::Redis;
use tenure_testkit::proxy::{Fault, Proxy, Way};
use tenure_testkit::servers::{Kind, Server};

async fn holder(redis: &Redis, claim: &Claim) -> LockState {
    let state = redis.inspect(&claim.name).await.unwrap();
    assert!(state.holders.len() <= 1, "{state:?}");
    state
}

/// In the order of the line, with rising tokens, each as soon as the one before it ends; and the store hears of many at once.
#[tokio::test]
async fn the_next_of_a_process_holds_at_once() {
    for kind in Kind::ALL {
        the_next_holds_at_once(kind).await;
    }
}

async fn the_next_holds_at_once(kind: Kind) {
    const BEHIND: usize = 20;
    let server = Server::start(kind);
    let redis = connect(&server.url(), Rules::DEFAULT).await;
    let ((mut last, grant), line) = line_of(&redis, "handed/on", BEHIND).await;
    let before = calls(&server.url()).await;
    let mut token = grant.token;
    let mut releases = Vec::new();
    for next in line {
        let mut release = Box::pin({
            let (redis, last) = (redis.clone(), last.clone());
            async move { redis.release(&last, Trail::Clean).await }
        });
        assert!((&mut release).now_or_never().is_none(), "the store has not answered");
        releases.push(release);
        let (claim, grant) = next.holds();
        assert!(grant.token > token, "{:?} after {token:?}", grant.token);
        assert!(grant.since + grant.ttl > SystemClock.now());
        (last, token) = (claim, grant.token);
    }
    // The store knows the first as the holder, until it hears of all the others in one call.
    assert_eq!(holder(&redis, &last).await.waiters.len(), BEHIND);
    for release in releases {
        assert_eq!(release.await.unwrap(), Released::Held);
    }
    let state = holder(&redis, &last).await;
    assert_eq!((state.holders[0].token, state.waiters.len()), (Some(token), 0));
    let asked = calls(&server.url()).await - before;
    assert!(asked <= 4, "{BEHIND} hand-overs and two looks took {asked} calls");
    assert_eq!(redis.release(&last, Trail::Clean).await.unwrap(), Released::Held);
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
    let after = claim("handed/on", Mode::Exclusive, TTL);
    let Attempt::Granted(grant) = redis.attempt(&after, Line::Join).await.unwrap() else { panic!() };
    assert!(grant.token > token);
    redis.release(&after, Trail::Clean).await.unwrap();
}

/// With `?hand_on=no` the store knows each of them as the holder before it does itself.
#[tokio::test]
async fn whoever_wants_it_so_gets_each_lock_from_the_store() {
    const BEHIND: u32 = 8;
    let server = Server::start(Kind::Redis7);
    let redis = connect(&format!("{}?hand_on=no", server.url()), Rules::DEFAULT).await;
    let ((mut last, _), line) = line_of(&redis, "handed/stored", BEHIND as usize).await;
    let before = calls(&server.url()).await;
    for mut next in line {
        let mut release = Box::pin(redis.release(&last, Trail::Clean));
        assert!((&mut release).now_or_never().is_none(), "the store has not answered");
        assert!((&mut next.signal).now_or_never().is_none(), "nor has it given the lock to anybody");
        assert_eq!(release.await.unwrap(), Released::Held);
        let (claim, grant) = next.holds();
        assert_eq!(holder(&redis, &claim).await.holders[0].token, Some(grant.token));
        last = claim;
    }
    assert_eq!(calls(&server.url()).await - before, 2 * BEHIND, "a hand-over and a look each");
    redis.release(&last, Trail::Clean).await.unwrap();
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// Nobody is passed over: the lock goes on to those of the same process that are first in line, and then to the others.
#[tokio::test]
async fn nobody_in_between_is_passed_over() {
    let server = Server::start(Kind::Redis7);
    let (here, there) =
        (connect(&server.url(), Rules::DEFAULT).await, connect(&server.url(), Rules::DEFAULT).await);
    let ((mut last, grant), line) = line_of(&here, "handed/between", 5).await;
    let stranger = Waiter::join(&there, claim("handed/between", Mode::Exclusive, TTL)).await;
    let behind = Waiter::join(&here, claim("handed/between", Mode::Exclusive, TTL)).await;
    let mut token = grant.token;
    for next in line {
        here.release(&last, Trail::Clean).await.unwrap();
        let (claim, grant) = next.holds();
        assert!(grant.token > token);
        (last, token) = (claim, grant.token);
    }
    here.release(&last, Trail::Clean).await.unwrap();
    let (stranger, grant) = stranger.served().await;
    assert!(grant.token > token);
    assert!(there.renew(&[Arc::new(stranger.clone())]).await.remove(0).is_ok());
    there.release(&stranger, Trail::Clean).await.unwrap();
    let (last, grant) = behind.served().await;
    assert!(grant.token > token);
    here.release(&last, Trail::Clean).await.unwrap();
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// The store does not answer: the next holds all the same, no longer than the one before would have, and is made known before
/// it is renewed. A request that was lost is made again.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_silent_hears_of_it_later() {
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let redis = connect(&format!("{}?timeout=300ms", proxy.url()), Rules::DEFAULT).await;
    let ((first, grant), mut line) = line_of(&redis, "handed/silent", 5).await;
    proxy.set(Way::Out, Fault { blackhole: true, ..Fault::default() });
    let answer = redis.release(&first, Trail::Clean).await;
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    let (second, inherited) = line.remove(0).holds();
    assert!(inherited.since <= grant.since + grant.ttl / 3 && inherited.ttl == grant.ttl);
    let renewal = redis.renew(&[Arc::new(second.clone())]).await.remove(0);
    assert!(renewal.is_err(), "an unknown renewal neither renews nor loses: {renewal:?}");
    proxy.heal();
    // Asked by another: the store still knows the first.
    let there = connect(&server.url(), Rules::DEFAULT).await;
    assert_eq!(holder(&there, &first).await.holders[0].token, Some(grant.token));
    let renewal = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            // Until it is connected again.
            match redis.renew(&[Arc::new(second.clone())]).await.remove(0) {
                Ok(renewal) => break renewal,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    });
    let renewal = renewal.await.expect("no answer");
    assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
    assert_eq!(holder(&there, &first).await.holders[0].token, Some(inherited.token));
    // As the clean-up does until there is an answer.
    assert_eq!(redis.release(&first, Trail::Clean).await.unwrap(), Released::Absent);
    assert_eq!(holder(&there, &first).await.holders[0].token, Some(inherited.token));
    // Those behind were told to look when the connection broke.
    let behind: Vec<Claim> = line.into_iter().map(|waiter| waiter.claim).collect();
    for claim in &behind {
        assert!(matches!(redis.attempt(claim, Line::Join).await.unwrap(), Attempt::Busy(_)));
    }
    for claim in [second].iter().chain(&behind) {
        assert_eq!(redis.release(claim, Trail::Clean).await.unwrap(), Released::Held);
    }
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// A request to hand a lock on that arrives when all is over does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_arrives_late_brings_nobody_back() {
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let redis = connect(&format!("{}?timeout=300ms", proxy.url()), Rules::DEFAULT).await;
    let ((first, _), mut line) = line_of(&redis, "handed/late", 4).await;
    proxy.set(Way::Out, Fault { delay: Duration::from_millis(600), ..Fault::default() });
    assert!(redis.release(&first, Trail::Clean).await.is_err());
    let passed = proxy.passed(Way::Out);
    let (second, _) = line.remove(0).holds();
    // Another way to the same server, and everything ends before the first request comes there.
    proxy.heal();
    assert_eq!(redis.release(&second, Trail::Clean).await.unwrap(), Released::Held);
    for Waiter { claim, .. } in line {
        redis.release(&claim, Trail::Clean).await.unwrap();
    }
    assert_eq!(redis.release(&first, Trail::Clean).await.unwrap(), Released::Absent);
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
    while proxy.passed(Way::Out) == passed {
        tokio::task::yield_now().await;
    }
    redis.inspect(&first.name).await.unwrap();
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// The store has forgotten everything: whoever was handed the lock is told, and no token comes twice.
#[tokio::test]
async fn whoever_was_handed_a_lost_lock_is_told() {
    let server = Server::start(Kind::Redis7);
    let (here, there) =
        (connect(&server.url(), Rules::DEFAULT).await, connect(&server.url(), Rules::DEFAULT).await);
    let ((first, _), mut line) = line_of(&here, "handed/lost", 5).await;
    let _: redis::Value = ask(&server.url(), &["FLUSHALL"]).await;
    let stranger = claim("handed/lost", Mode::Exclusive, TTL);
    let Attempt::Granted(theirs) = there.attempt(&stranger, Line::Join).await.unwrap() else { panic!() };
    let mut release = Box::pin(here.release(&first, Trail::Clean));
    assert!((&mut release).now_or_never().is_none());
    let (second, grant) = line.remove(0).holds();
    assert_eq!(release.await.unwrap(), Released::Absent, "the store's word");
    assert_ne!(grant.token, theirs.token);
    let why = tokio::time::timeout(Duration::from_secs(20), grant.revoked.expect("it can be lost")).await;
    assert_eq!(why.expect("nobody told it"), Why::Gone);
    // And it hands on nothing.
    assert_eq!(here.release(&second, Trail::Clean).await.unwrap(), Released::Absent);
    let third = line.remove(0);
    assert!(third.signal.now_or_never().is_none());
    assert!(there.renew(&[Arc::new(stranger.clone())]).await.remove(0).is_ok());
    there.release(&stranger, Trail::Clean).await.unwrap();
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// Whoever wants a lock for a short time only is not handed one that is kept for longer: should it die, the others need not
/// wait any longer than it said. And the store keeps a lock for as long as its holder believes.
#[tokio::test]
async fn a_lock_is_kept_as_long_as_believed_and_no_longer_than_wanted() {
    let server = Server::start(Kind::Redis7);
    let redis = connect(&server.url(), Rules::DEFAULT).await;
    let first = claim("handed/terms", Mode::Exclusive, TTL);
    assert!(matches!(redis.attempt(&first, Line::Join).await.unwrap(), Attempt::Granted(_)));
    let mut line = Vec::new();
    for seconds in [30, 30, 1, 30, 2, 30, 30, 30] {
        let claim = claim("handed/terms", Mode::Exclusive, Duration::from_secs(seconds));
        line.push(Waiter::join(&redis, claim).await);
    }
    let mut last = first;
    for waiter in line {
        assert_eq!(redis.release(&last, Trail::Clean).await.unwrap(), Released::Held);
        let (claim, grant) = waiter.served().await;
        let (state, now) = (holder(&redis, &claim).await, SystemClock.now());
        let left = state.holders[0].expires_in.expect("it expires");
        assert_eq!(state.holders[0].token, Some(grant.token));
        let slack = Duration::from_millis(2);
        assert!(now + left + slack >= grant.since + grant.ttl, "{left:?} left, believes {:?}", grant.ttl);
        assert!(left <= claim.ttl.get(), "{left:?} left of {:?}", claim.ttl);
        last = claim;
    }
    assert_eq!(redis.release(&last, Trail::Clean).await.unwrap(), Released::Held);
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// An operator has taken the lock away, and another process has it: nobody here hands it on.
#[tokio::test]
async fn an_evicted_lock_is_not_handed_on() {
    let server = Server::start(Kind::Redis7);
    let (here, there) =
        (connect(&server.url(), Rules::DEFAULT).await, connect(&server.url(), Rules::DEFAULT).await);
    for force in [false, true] {
        let ((first, grant), line) = line_of(&here, "handed/evicted", 5).await;
        let eviction = Eviction { token: None, force, reason: Reason::new("stuck").unwrap() };
        assert_eq!(there.evict(&first.name, &eviction).await.unwrap(), 1);
        let why = tokio::time::timeout(Duration::from_secs(20), grant.revoked.expect("it can be lost")).await;
        assert!(matches!(why.expect("nobody told it"), Why::Evicted { .. }));
        here.release(&first, Trail::Clean).await.unwrap();
        for waiter in line {
            let (claim, grant) = waiter.served().await;
            assert_eq!(holder(&there, &claim).await.holders[0].token, Some(grant.token), "as the store says");
            here.release(&claim, Trail::Clean).await.unwrap();
        }
        let _: redis::Value = ask(&server.url(), &["DEL", "tenure:{handed/evicted}:t"]).await;
        assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
    }
}

/// The server has forgotten its scripts, at any step.
#[tokio::test]
async fn handing_on_survives_forgotten_scripts() {
    let server = Server::start(Kind::Redis7);
    let redis = connect(&server.url(), Rules::DEFAULT).await;
    for at in 0..6 {
        let ((mut last, _), line) = line_of(&redis, "handed/flushed", 5).await;
        let mut releases = Vec::new();
        for (i, next) in line.into_iter().enumerate() {
            if i == at {
                let _: redis::Value = ask(&server.url(), &["SCRIPT", "FLUSH"]).await;
            }
            let mut release = Box::pin({
                let (redis, last) = (redis.clone(), last.clone());
                async move { redis.release(&last, Trail::Clean).await }
            });
            assert!((&mut release).now_or_never().is_none());
            releases.push(release);
            last = next.holds().0;
        }
        if at == 5 {
            let _: redis::Value = ask(&server.url(), &["SCRIPT", "FLUSH"]).await;
        }
        // The last of all: with it, the store hears of all the others.
        assert_eq!(redis.release(&last, Trail::Clean).await.unwrap(), Released::Held, "flushed before {at}");
        for release in releases {
            assert_eq!(release.await.unwrap(), Released::Held);
        }
        assert_eq!(leftovers(&server.url()).await, Vec::<String>::new(), "flushed before {at}");
    }
}

/// A claim that was handed the lock may be let go of for others to adopt: the store knows it by then.
#[tokio::test]
async fn an_inherited_lock_can_be_detached() {
    let server = Server::start(Kind::Redis7);
    let redis = connect(&server.url(), Rules::DEFAULT).await;
    let ((first, _), mut line) = line_of(&redis, "handed/detached", 5).await;
    let mut release = Box::pin(redis.release(&first, Trail::Clean));
    assert!((&mut release).now_or_never().is_none());
    let (second, grant) = line.remove(0).holds();
    // As `Guard::detach` does.
    let detached = Claim { tie: Tie::Ttl, ..second };
    let Attempt::Granted(again) = redis.attempt(&detached, Line::Pass).await.unwrap() else { panic!() };
    assert_eq!(again.token, grant.token);
    let there = connect(&server.url(), Rules::DEFAULT).await;
    let adopted = claim("handed/detached", Mode::Exclusive, TTL);
    let answer = there.attempt(&adopted, Line::Succeed(detached.id)).await.unwrap();
    assert!(matches!(answer, Attempt::Granted(grant) if grant.token == again.token));
    assert_eq!(release.await.unwrap(), Released::Held);
    // It is another's by now: an old copy of the claim releases nothing, and hands nothing on.
    assert_eq!(redis.release(&detached, Trail::Clean).await.unwrap(), Released::Absent);
    let third = line.remove(0);
    assert_eq!(holder(&redis, &adopted).await.waiters.len(), 1 + line.len());
    assert_eq!(there.release(&adopted, Trail::Clean).await.unwrap(), Released::Held);
    let mut last = third.served().await.0;
    for waiter in line {
        redis.release(&last, Trail::Clean).await.unwrap();
        last = waiter.served().await.0;
    }
    redis.release(&last, Trail::Clean).await.unwrap();
    let _: redis::Value = ask(&server.url(), &["DEL", "tenure:{handed/detached}:t"]).await;
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// Many tasks of two processes on one lock, some of which give up at any moment: one at a time, rising tokens, nothing stays.
/// `TENURE_HANDED_ON` says how often.
#[tokio::test(flavor = "multi_thread")]
async fn giving_up_at_any_moment_leaves_nothing() {
    let rounds = std::env::var("TENURE_HANDED_ON").map_or(6, |rounds| rounds.parse().expect("a number"));
    let seed = seed();
    let server = Server::start(Kind::Redis7);
    for round in 0..rounds {
        let url = server.url();
        let clients = [
            Locks::new(connect(&url, Rules::DEFAULT).await),
            Locks::new(connect(&url, Rules::DEFAULT).await),
        ];
        let (held, last_token) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..120_u64 {
            let (locks, held, last_token) =
                (clients[task as usize % 2].clone(), held.clone(), last_token.clone());
            let mut dice = seed ^ (round << 32) ^ task.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            tasks.spawn(async move {
                for _ in 0..12 {
                    dice =
                        dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let patience = Duration::from_micros((dice >> 40) % 6000);
                    let acquire = locks.lock("handed/storm").acquire();
                    let Ok(guard) = tokio::time::timeout(patience, acquire).await else { continue };
                    let guard = guard.unwrap();
                    assert_eq!(held.fetch_add(1, Ordering::SeqCst), 0, "held twice");
                    let token = guard.token().get();
                    assert!(last_token.swap(token, Ordering::SeqCst) < token, "a token went back");
                    if dice >> 63 == 1 {
                        tokio::task::yield_now().await;
                    }
                    held.fetch_sub(1, Ordering::SeqCst);
                    if (dice >> 62) & 1 == 1 {
                        guard.release().await.unwrap();
                    } else {
                        drop(guard);
                    }
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        for locks in clients {
            locks.close(Duration::from_secs(20)).await.unwrap();
        }
        let mut left = leftovers(&url).await;
        // Of those that gave up before they were answered: expiring.
        left.retain(|key| !key.ends_with(":t"));
        assert_eq!(left, Vec::<String>::new(), "round {round}");
    }
}

/// A thousand tasks pass a lock around, and all of them are aborted at the same moment.
#[tokio::test(flavor = "multi_thread")]
async fn all_giving_up_at_once_leave_nothing() {
    let rounds = std::env::var("TENURE_HANDED_ON").map_or(6, |rounds| rounds.parse().expect("a number"));
    let server = Server::start(Kind::Redis7);
    for round in 0..rounds {
        let locks = Locks::new(connect(&server.url(), Rules::DEFAULT).await);
        let (held, enough) = (Arc::new(AtomicU64::new(0)), Arc::new(tokio::sync::Semaphore::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..1000 {
            let (locks, held, enough) = (locks.clone(), held.clone(), enough.clone());
            tasks.spawn(async move {
                loop {
                    let guard = locks.lock("handed/aborted").acquire().await.unwrap();
                    assert_eq!(held.fetch_add(1, Ordering::SeqCst), 0, "held twice");
                    enough.add_permits(1);
                    held.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            });
        }
        let _ = enough.acquire_many(3000).await.unwrap();
        tasks.shutdown().await;
        locks.close(Duration::from_secs(20)).await.unwrap();
        let mut left = leftovers(&server.url()).await;
        left.retain(|key| !key.ends_with(":t"));
        assert_eq!(left, Vec::<String>::new(), "round {round}");
    }
}
