//! Requests that travel together in one script call: each is served as if it had come alone.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{QUICK, ask, calls, claim, connect, leftovers};
use futures_util::FutureExt;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::queue::Rules;
use tenure_core::{Attempt, Backend, BoxFuture, Grant, Line, Locks, Mode, Released, StoreError, Trail};
use tenure_testkit::proxy::{Fault, Proxy, Way};
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

fn signal_of(attempt: Attempt) -> BoxFuture<'static, Option<Grant>> {
    match attempt {
        Attempt::Busy(busy) => busy.wake.signal.expect("it is in line"),
        other => panic!("{other:?}"),
    }
}

/// Whoever releases is told in the answer that the lock went to another claim of the same process; that of another
/// process is sent a push.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_tells_its_own() {
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let (here, there) = (connect(&url, Rules::DEFAULT).await, connect(&url, Rules::DEFAULT).await);
    let claims: Vec<_> =
        (0..4).map(|_| claim("together/own", Mode::Exclusive, Duration::from_secs(30))).collect();
    let redis = [&here, &here, &there, &here];
    assert!(matches!(here.attempt(&claims[0], Line::Join).await.unwrap(), Attempt::Granted(_)));
    let mut token = 0;
    let mut signals = Vec::new();
    for i in 1..4 {
        signals.push(signal_of(redis[i].attempt(&claims[i], Line::Join).await.unwrap()));
    }
    for (i, (signal, pushes)) in signals.into_iter().zip([0, 1, 2]).enumerate() {
        assert_eq!(redis[i].release(&claims[i], Trail::Clean).await.unwrap(), Released::Held);
        let grant = signal.await.expect("it is granted");
        assert!(grant.token.get() > token);
        token = grant.token.get();
        let stats: String = ask(&url, &["INFO", "commandstats"]).await;
        let published = stats.lines().find_map(|line| line.strip_prefix("cmdstat_publish:calls="));
        let published = published.map_or(0, |rest| rest.split(',').next().unwrap().parse::<u32>().unwrap());
        assert_eq!(published, pushes, "after release {i}");
    }
    here.release(&claims[3], Trail::Clean).await.unwrap();
    assert_eq!(leftovers(&url).await, Vec::<String>::new());
}

/// The answer to a release may hold the grant of another claim: it is read, whether the caller still wants it or not.
#[tokio::test]
async fn a_release_that_is_let_go_still_hands_over() {
    let server = Server::start(Kind::Redis7);
    let redis = connect(&server.url(), Rules::DEFAULT).await;
    for _ in 0..20 {
        let [first, second] =
            [(); 2].map(|()| claim("together/let-go", Mode::Exclusive, Duration::from_secs(30)));
        assert!(matches!(redis.attempt(&first, Line::Join).await.unwrap(), Attempt::Granted(_)));
        let signal = signal_of(redis.attempt(&second, Line::Join).await.unwrap());
        // Sent, and given up before it can be answered: there is one thread.
        let answered = redis.release(&first, Trail::Clean).now_or_never();
        assert!(answered.is_none(), "{answered:?}");
        let grant = tokio::time::timeout(Duration::from_secs(20), signal).await;
        assert!(grant.expect("nobody told the next").is_some());
        redis.release(&second, Trail::Clean).await.unwrap();
    }
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// The one in front releases and the next gives up at the same moment: whichever answer is read first, nothing stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_and_a_waiter_that_gives_up_leave_nothing() {
    let server = Server::start(Kind::Redis7);
    let redis = connect(&server.url(), Rules::DEFAULT).await;
    for _ in 0..300 {
        let [first, second] =
            [(); 2].map(|()| claim("together/gives-up", Mode::Exclusive, Duration::from_secs(30)));
        assert!(matches!(redis.attempt(&first, Line::Join).await.unwrap(), Attempt::Granted(_)));
        let signal = signal_of(redis.attempt(&second, Line::Join).await.unwrap());
        let releases = [first, second].map(|claim| {
            let redis = redis.clone();
            tokio::spawn(async move { redis.release(&claim, Trail::Clean).await.unwrap() })
        });
        for release in releases {
            assert_ne!(release.await.unwrap(), Released::Absent);
        }
        drop(signal);
    }
    // What nobody awaited is released in the background: behind all that was asked before.
    let last = claim("together/gives-up", Mode::Exclusive, Duration::from_secs(30));
    assert!(matches!(redis.attempt(&last, Line::Join).await.unwrap(), Attempt::Granted(_)));
    redis.release(&last, Trail::Clean).await.unwrap();
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// A grant that lay in an answer longer than it lasts is over when it is read, and known to be.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_in_a_late_answer_is_not_taken_for_a_fresh_one() {
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let redis = connect(&format!("{}?timeout=10s", proxy.url()), QUICK).await;
    let [first, second] = [(); 2].map(|()| claim("together/late", Mode::Exclusive, Duration::from_secs(30)));
    assert!(matches!(redis.attempt(&first, Line::Join).await.unwrap(), Attempt::Granted(_)));
    let signal = signal_of(redis.attempt(&second, Line::Join).await.unwrap());
    proxy.set(Way::Back, Fault { delay: 2 * QUICK.first_ttl, ..Fault::default() });
    assert_eq!(redis.release(&first, Trail::Clean).await.unwrap(), Released::Held);
    let grant = signal.await.expect("it can be dated");
    assert_eq!(grant.ttl, QUICK.first_ttl);
    assert!(grant.since + grant.ttl < SystemClock.now(), "{grant:?} is taken for a fresh one");
    proxy.heal();
    redis.release(&second, Trail::Clean).await.unwrap();
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// Nor is anybody forgotten if the answer never comes: whoever waits here asks again, and finds that it holds.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_release_that_is_not_answered_all_ask_again() {
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let redis = connect(&format!("{}?timeout=300ms", proxy.url()), Rules::DEFAULT).await;
    let [first, second] = [(); 2].map(|()| claim("together/lost", Mode::Exclusive, Duration::from_secs(30)));
    assert!(matches!(redis.attempt(&first, Line::Join).await.unwrap(), Attempt::Granted(_)));
    let signal = signal_of(redis.attempt(&second, Line::Join).await.unwrap());
    proxy.set(Way::Back, Fault { blackhole: true, ..Fault::default() });
    assert!(matches!(redis.release(&first, Trail::Clean).await, Err(StoreError::Unknown(_))));
    proxy.heal();
    assert!(signal.await.is_none(), "nobody could tell it");
    assert!(matches!(redis.attempt(&second, Line::Join).await.unwrap(), Attempt::Granted(_)));
    redis.release(&second, Trail::Clean).await.unwrap();
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// Whether the claim holds, now or as soon as it is told.
async fn is_granted(attempt: Attempt) -> bool {
    if let Attempt::Granted(_) = attempt {
        return true;
    }
    let told = tokio::time::timeout(Duration::from_secs(20), signal_of(attempt)).await;
    told.expect("it hears nothing").is_some()
}

/// A lock that has just gone from one claim of this process to the next, which holds it.
async fn going_around(redis: &tenure_redis::Redis, name: &str) -> tenure_core::Claim {
    let [first, second] = [(); 2].map(|()| claim(name, Mode::Exclusive, Duration::from_secs(30)));
    assert!(matches!(redis.attempt(&first, Line::Join).await.unwrap(), Attempt::Granted(_)));
    let signal = signal_of(redis.attempt(&second, Line::Join).await.unwrap());
    redis.release(&first, Trail::Clean).await.unwrap();
    assert!(signal.await.is_some());
    second
}

/// A claim that stands in line, and is counted there: whoever comes next is a newcomer behind it.
async fn in_line(
    redis: &tenure_redis::Redis,
    name: &str,
) -> (tenure_core::Claim, BoxFuture<'static, Option<Grant>>) {
    let claim = claim(name, Mode::Exclusive, Duration::from_secs(30));
    let mut signal = signal_of(redis.attempt(&claim, Line::Join).await.unwrap());
    assert!((&mut signal).now_or_never().is_none());
    (claim, signal)
}

/// Newcomers behind others of their process wait for the last of them, and are announced with its release: in order, in
/// one call, before it. Those that have nobody in front of them then are told at once, the others soon.
#[tokio::test]
async fn newcomers_are_announced_with_a_release() {
    let server = Server::start(Kind::Redis7);
    let redis = connect(&server.url(), Rules::DEFAULT).await;
    // Not every time: now and then they have waited for long enough before the release comes.
    let mut were_together = false;
    for _ in 0..50 {
        let holds = going_around(&redis, "together/new").await;
        let (next, signal) = in_line(&redis, "together/new").await;
        let [first, second] =
            [(); 2].map(|()| claim("together/new", Mode::Exclusive, Duration::from_secs(30)));
        let before = calls(&server.url()).await;
        let mut first_joins = std::pin::pin!(redis.attempt(&first, Line::Join));
        let mut second_joins = std::pin::pin!(redis.attempt(&second, Line::Join));
        assert!(first_joins.as_mut().now_or_never().is_none());
        assert!(second_joins.as_mut().now_or_never().is_none());
        redis.release(&holds, Trail::Clean).await.unwrap();
        assert!(signal.await.is_some());
        redis.release(&next, Trail::Clean).await.unwrap();
        // Two releases, one call of newcomers.
        were_together |= calls(&server.url()).await - before == 3;
        assert!(is_granted(first_joins.await.unwrap()).await, "the first to come is the first to be served");
        // Nothing more happens, and it hears of its place all the same.
        let second_signal = signal_of(second_joins.await.unwrap());
        redis.release(&first, Trail::Clean).await.unwrap();
        assert!(second_signal.await.is_some());
        redis.release(&second, Trail::Clean).await.unwrap();
        assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
    }
    assert!(were_together, "newcomers never went with a release");
}

/// No release comes: newcomers are announced without one.
#[tokio::test]
async fn newcomers_do_not_wait_for_a_release_that_does_not_come() {
    let server = Server::start(Kind::Redis7);
    let redis = connect(&server.url(), Rules::DEFAULT).await;
    let holds = going_around(&redis, "together/stays").await;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(in_line(&redis, "together/stays").await);
    }
    let state = redis.inspect(&holds.name).await.unwrap();
    assert_eq!(state.waiters.len(), others.len());
    let mut last = holds;
    for (other, signal) in others {
        redis.release(&last, Trail::Clean).await.unwrap();
        assert!(signal.await.is_some());
        last = other;
    }
    redis.release(&last, Trail::Clean).await.unwrap();
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// A newcomer gives up before it was announced, or while its answer is held back: the store never hears of it, or is
/// told.
#[tokio::test]
async fn newcomers_that_give_up_leave_nothing() {
    let server = Server::start(Kind::Redis7);
    let redis = connect(&server.url(), Rules::DEFAULT).await;
    for steps in 1..13 {
        let holds = going_around(&redis, "together/gone").await;
        let (next, signal) = in_line(&redis, "together/gone").await;
        let newcomer = claim("together/gone", Mode::Exclusive, Duration::from_secs(30));
        {
            let mut joins = std::pin::pin!(redis.attempt(&newcomer, Line::Join));
            assert!(joins.as_mut().now_or_never().is_none());
            redis.release(&holds, Trail::Clean).await.unwrap();
            assert!(signal.await.is_some());
            let mut release = std::pin::pin!(redis.release(&next, Trail::Clean));
            // Let go of at different moments of the journey.
            for _ in 0..steps {
                if release.as_mut().now_or_never().is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        redis.release(&newcomer, Trail::Doubtful).await.unwrap();
        let last = claim("together/gone", Mode::Exclusive, Duration::from_secs(30));
        let attempt = redis.attempt(&last, Line::Join).await.unwrap();
        assert!(is_granted(attempt).await, "somebody stands in the way after {steps} steps");
        redis.release(&last, Trail::Clean).await.unwrap();
        let _: redis::Value = ask(&server.url(), &["DEL", "tenure:{together/gone}:t"]).await;
        assert_eq!(leftovers(&server.url()).await, Vec::<String>::new(), "after {steps} steps");
    }
}

/// The server has forgotten its scripts when a release and newcomers arrive.
#[tokio::test]
async fn newcomers_and_a_release_survive_forgotten_scripts() {
    let server = Server::start(Kind::Redis7);
    let redis = connect(&server.url(), Rules::DEFAULT).await;
    for _ in 0..5 {
        let holds = going_around(&redis, "together/flushed").await;
        let (next, signal) = in_line(&redis, "together/flushed").await;
        let newcomer = claim("together/flushed", Mode::Exclusive, Duration::from_secs(30));
        let mut joins = std::pin::pin!(redis.attempt(&newcomer, Line::Join));
        assert!(joins.as_mut().now_or_never().is_none());
        redis.release(&holds, Trail::Clean).await.unwrap();
        assert!(signal.await.is_some());
        let _: redis::Value = ask(&server.url(), &["SCRIPT", "FLUSH"]).await;
        assert_eq!(redis.release(&next, Trail::Clean).await.unwrap(), Released::Held);
        assert!(is_granted(joins.await.unwrap()).await);
        redis.release(&newcomer, Trail::Clean).await.unwrap();
        assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
    }
}
