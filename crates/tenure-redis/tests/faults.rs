//! What a network, a server and a stopped process do to locks, and what they must not: a false grant, a claim that
//! stays, a wait without end.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{QUICK, ask, claim, connect, leftovers};
use tenure_core::clock::{Clock, SystemClock, sleep_until};
use tenure_core::queue::Rules;
use tenure_core::{
    Attempt, Backend, Line, Locks, Mode, RefusalKind, Released, Renewal, StoreError, Trail, Why,
};
use tenure_redis::{Redis, RedisConfig};
use tenure_testkit::proxy::{Fault, Proxy, Way};
use tenure_testkit::servers::{Kind, Server};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

async fn sleep(duration: Duration) {
    sleep_until(Arc::new(SystemClock), SystemClock.now() + duration).await;
}

/// Through a proxy: a client whose requests time out after 300 ms.
async fn behind(proxy: &Proxy) -> Redis {
    connect(&format!("{}?timeout=300ms", proxy.url()), QUICK).await
}

fn granted(answer: Result<Attempt, StoreError>) -> tenure_core::Grant {
    match answer {
        Ok(Attempt::Granted(grant)) => grant,
        other => panic!("{other:?}"),
    }
}

async fn eventually<T, Fut: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> Fut) -> T {
    let end = SystemClock.now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(SystemClock.now() < end, "{what} never came true");
        sleep(ms(20)).await;
    }
}

/// R21: the hand-over is a push, and the push is lost. The waiter looks by itself, within a third of the line's ttl.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_push_costs_a_moment_and_nothing_else() {
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let holder = Locks::new(connect(&server.url(), QUICK).await);
    let waiter = Locks::new(connect(&proxy.url(), QUICK).await);
    for _ in 0..3 {
        let guard = holder.lock("pushed").acquire().await.unwrap();
        let waiting = tokio::spawn(waiter.lock("pushed").acquire());
        eventually("the waiter stands in line", async || {
            (holder.inspect("pushed").await.unwrap().waiters.len() == 1).then_some(())
        })
        .await;
        proxy.set(Way::Back, Fault { drop_pushes: true, ..Fault::default() });
        let start = SystemClock.now();
        guard.release().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        let waited = SystemClock.now().saturating_since(start);
        assert!(waited < QUICK.line_ttl / 3 + ms(1500), "{waited:?}");
        proxy.heal();
        guard.release().await.unwrap();
    }
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// R7: requests vanish, or answers do, or both. The outcome is unknown, the connection is replaced, and once the
/// network works again nothing is left of the doubt but a tombstone.
#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_is_neither_busy_nor_granted() {
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let backend = behind(&proxy).await;
    let hole = Fault { blackhole: true, ..Fault::default() };
    for (i, ways) in [vec![Way::Out], vec![Way::Back], vec![Way::Out, Way::Back]].into_iter().enumerate() {
        let name = format!("hole/{i}");
        let doubtful = claim(&name, Mode::Exclusive, Duration::from_secs(30));
        ways.iter().for_each(|way| proxy.set(*way, hole.clone()));
        let connections = proxy.accepted();
        let answer = backend.attempt(&doubtful, Line::Join).await;
        assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
        // Healed for new connections only in spirit: the old one is not used again.
        proxy.heal();
        eventually("the release goes through", async || {
            backend.release(&doubtful, Trail::Doubtful).await.ok()
        })
        .await;
        assert!(proxy.accepted() > connections, "the same connection again");
        // Whatever of it arrives now is refused.
        let answer = backend.attempt(&doubtful, Line::Join).await;
        assert!(matches!(&answer, Err(StoreError::Refused(r)) if r.kind == RefusalKind::Ended), "{answer:?}");
        let other = claim(&name, Mode::Exclusive, Duration::from_secs(30));
        granted(backend.attempt(&other, Line::Pass).await);
        backend.release(&other, Trail::Clean).await.unwrap();
    }
}

/// R4: the answer comes after its deadline. It must not be taken for the answer to anything that is asked later.
#[tokio::test(flavor = "multi_thread")]
async fn late_answers_reach_nobody() {
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let backend = behind(&proxy).await;
    let holder = claim("late", Mode::Exclusive, Duration::from_secs(30));
    let first = granted(backend.attempt(&holder, Line::Join).await);
    proxy.set(Way::Back, Fault { hold: true, ..Fault::default() });
    let free = claim("late/other", Mode::Exclusive, Duration::from_secs(30));
    let answer = backend.attempt(&free, Line::Join).await;
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    proxy.heal();
    // A busy lock asked for right after: were the answers off by one, this would read "granted".
    for _ in 0..20 {
        let waiter = claim("late", Mode::Exclusive, Duration::from_secs(30));
        let answer = eventually("an answer", async || backend.attempt(&waiter, Line::Pass).await.ok()).await;
        assert!(matches!(answer, Attempt::Busy(_)), "{answer:?}");
    }
    let again = granted(backend.attempt(&holder, Line::Join).await);
    assert_eq!(again.token, first.token);
}

/// R5: a request lies in the network while its sender cleans up, and arrives after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_arrives_after_the_clean_up_does_nothing() {
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let (late, direct) = (behind(&proxy).await, connect(&server.url(), QUICK).await);
    let doubtful = claim("buffered", Mode::Exclusive, Duration::from_secs(30));
    proxy.set(Way::Out, Fault { hold: true, ..Fault::default() });
    assert!(matches!(late.attempt(&doubtful, Line::Join).await, Err(StoreError::Unknown(_))));
    assert_eq!(direct.release(&doubtful, Trail::Doubtful).await.unwrap(), Released::Absent);
    let passed = proxy.passed(Way::Out);
    proxy.heal();
    eventually("the held request is delivered", async || (proxy.passed(Way::Out) > passed).then_some(()))
        .await;
    sleep(ms(100)).await;
    assert!(!direct.inspect(&doubtful.name).await.unwrap().is_held(), "a zombie holds the lock");
}

/// The same without a tombstone: long after, the store's own clock says that it is too late.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_arrives_much_too_late_is_refused_by_the_clock() {
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let late = behind(&proxy).await;
    let doubtful = claim("ancient", Mode::Exclusive, Duration::from_secs(30));
    proxy.set(Way::Out, Fault { hold: true, ..Fault::default() });
    assert!(late.attempt(&doubtful, Line::Join).await.is_err());
    sleep(ms(1500)).await;
    proxy.heal();
    sleep(ms(300)).await;
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// R6: one request is delivered twice, back to back.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_delivered_twice_is_carried_out_once() {
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let (backend, direct) = (behind(&proxy).await, connect(&server.url(), QUICK).await);
    let twice = claim("twice", Mode::Exclusive, Duration::from_secs(30));
    proxy.set(Way::Out, Fault { duplicate: true, ..Fault::default() });
    let grant = granted(backend.attempt(&twice, Line::Join).await);
    let state = direct.inspect(&twice.name).await.unwrap();
    assert_eq!((state.holders.len(), state.waiters.len()), (1, 0));
    assert_eq!(state.holders[0].token, Some(grant.token));
    // The second answer must not be given to the next caller.
    let other = claim("twice", Mode::Exclusive, Duration::from_secs(30));
    let answer = backend.attempt(&other, Line::Pass).await;
    assert!(!matches!(answer, Ok(Attempt::Granted(_))), "{answer:?}");
}

/// R7: the connection is reset in the middle of a command.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_in_mid_command_leaves_no_claim() {
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let locks = Locks::new(behind(&proxy).await);
    for cut_after in [1, 10, 60, 150, 300] {
        for way in [Way::Out, Way::Back] {
            proxy.set(way, Fault { cut_after: Some(cut_after), ..Fault::default() });
            let guard = locks.lock("cut").acquire().await.unwrap();
            assert!(guard.is_held());
            // Cut off in its turn, it cannot know; then it is tried again behind our back.
            if let Err(error) = guard.release().await {
                assert!(matches!(error, tenure_core::Error::Unavailable { .. }), "{error}");
            }
            proxy.heal();
        }
    }
    eventually("nothing is left", async || leftovers(&server.url()).await.is_empty().then_some(())).await;
}

/// R2, R3: the server stands still past the ttl. What it answers then is no grant; the holder knows without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_past_the_ttl_grants_nothing() {
    let server = Server::start(Kind::Redis7);
    let locks = Locks::new(connect(&format!("{}?timeout=300ms", server.url()), QUICK).await);
    let guard = locks.lock("still").ttl(ms(600)).acquire().await.unwrap();
    let token = guard.token();
    let start = SystemClock.now();
    server.pause();
    let why = guard.lease().lost().await;
    assert!(SystemClock.now().saturating_since(start) <= ms(1200), "told too late");
    assert_eq!(why, Why::Expired);
    server.resume();
    let guard = locks.lock("still").ttl(ms(600)).wait(Duration::from_secs(10)).acquire().await.unwrap();
    assert!(guard.token() > token && guard.is_held());
    guard.release().await.unwrap();
}

/// R10, R11: scripts are forgotten, data is flushed, keys are overwritten, evicted: the holder learns, tokens rise.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_forgets_is_found_out_and_tokens_rise() {
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let locks = Locks::new(connect(&url, QUICK).await);
    let mut last = None;
    for command in [
        &["SCRIPT", "FLUSH"][..],
        &["FLUSHALL"],
        &["DEL", "tenure:{forgotten}", "tenure:{forgotten}:f"],
        &["UNLINK", "tenure:{forgotten}"],
    ] {
        let guard = locks.lock("forgotten").ttl(ms(900)).acquire().await.unwrap();
        assert!(last < Some(guard.token()), "a token went back");
        last = Some(guard.token());
        let _: redis::Value = ask(&url, command).await;
        if command[0] == "SCRIPT" {
            // Transparent: the lock is renewed and given back as if nothing had been.
            sleep(ms(1200)).await;
            guard.release().await.unwrap();
        } else {
            let why = guard.lease().lost().await;
            assert_eq!(why, Why::Gone, "{command:?}");
        }
    }
    let guard = locks.lock("forgotten").ttl(ms(900)).acquire().await.unwrap();
    assert!(last < Some(guard.token()));
    let _: redis::Value = ask(&url, &["DEL", "tenure:{forgotten}"]).await;
    let _: redis::Value = ask(&url, &["LPUSH", "tenure:{forgotten}", "not ours"]).await;
    guard.lease().lost().await;
    let error = locks.lock("forgotten").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("holds something else"), "{error}");
    let error = locks.inspect("forgotten").await.unwrap_err();
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
}

/// R1: killed and started again, with nothing saved and with everything saved.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_restarts_is_found_again() {
    for arguments in [&[][..], &["--appendonly", "yes", "--appendfsync", "always"][..]] {
        let mut server = Server::start_with(Kind::Redis7, arguments);
        let locks = Locks::new(connect(&format!("{}?timeout=300ms", server.url()), QUICK).await);
        let guard = locks.lock("restart").ttl(ms(3000)).acquire().await.unwrap();
        let token = guard.token();
        let waiting = tokio::spawn(locks.lock("restart").ttl(ms(3000)).acquire());
        server.kill();
        server.restart();
        if arguments.is_empty() {
            guard.lease().lost().await;
            drop(guard);
        } else {
            sleep(ms(1500)).await;
            assert!(guard.is_held(), "it was on disk, and renewed");
            guard.release().await.unwrap();
        }
        let guard = waiting.await.unwrap().unwrap();
        assert!(guard.token() > token);
        guard.release().await.unwrap();
    }
}

/// R12, R13: a full store takes no new locks, says so, and still lets go of those it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_still_releases_renews_and_hands_over() {
    for kind in Kind::ALL {
        let server = Server::start_with(kind, &["--maxmemory-policy", "noeviction"]);
        let url = server.url();
        let backend = connect(&url, QUICK).await;
        let holder = Arc::new(claim("full", Mode::Exclusive, Duration::from_secs(30)));
        let waiter = claim("full", Mode::Exclusive, Duration::from_secs(30));
        granted(backend.attempt(&holder, Line::Join).await);
        let Ok(Attempt::Busy(busy)) = backend.attempt(&waiter, Line::Join).await else { panic!() };
        let _: redis::Value = ask(&url, &["CONFIG", "SET", "maxmemory", "1"]).await;
        for name in ["full/other", "full"] {
            let other = claim(name, Mode::Exclusive, Duration::from_secs(30));
            let answer = backend.attempt(&other, Line::Join).await;
            assert!(
                matches!(&answer, Err(StoreError::Refused(r)) if r.kind == RefusalKind::Unavailable),
                "{kind:?} {answer:?}"
            );
        }
        let renewals = backend.renew(std::slice::from_ref(&holder)).await;
        assert!(matches!(renewals[0], Ok(Renewal::Renewed { .. })), "{kind:?} {renewals:?}");
        assert_eq!(backend.release(&holder, Trail::Clean).await.unwrap(), Released::Held, "{kind:?}");
        let grant = busy.wake.signal.unwrap().await;
        assert!(grant.is_some(), "{kind:?} handed over");
        assert_eq!(backend.release(&waiter, Trail::Clean).await.unwrap(), Released::Held, "{kind:?}");
    }
}

/// A waiter of a process that died is passed over at once; one whose process merely lost its connection keeps its
/// place.
#[tokio::test(flavor = "multi_thread")]
async fn dead_waiters_are_passed_over_and_blinking_ones_keep_their_place() {
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::start(server.address()).await;
    let holder = connect(&server.url(), Rules::DEFAULT).await;
    let held = claim("dead", Mode::Exclusive, Duration::from_secs(30));
    granted(holder.attempt(&held, Line::Join).await);
    let dying = connect(&server.url(), Rules::DEFAULT).await;
    let (dead, blinking, last) = (
        claim("dead", Mode::Exclusive, Duration::from_secs(30)),
        claim("dead", Mode::Exclusive, Duration::from_secs(30)),
        claim("dead", Mode::Exclusive, Duration::from_secs(30)),
    );
    drop(dying.attempt(&dead, Line::Join).await.unwrap());
    let blinker = connect(&proxy.url(), Rules::DEFAULT).await;
    let Ok(Attempt::Busy(blink)) = blinker.attempt(&blinking, Line::Join).await else { panic!() };
    let Ok(Attempt::Busy(busy)) = holder.attempt(&last, Line::Join).await else { panic!() };
    drop(dying);
    proxy.refuse_new();
    proxy.reset_all();
    // The connection broke: whoever waits is told to look.
    assert!(blink.wake.signal.unwrap().await.is_none());
    eventually("nobody listens for the first two", async || {
        let channels: Vec<String> = ask(&server.url(), &["PUBSUB", "CHANNELS", "tenure:push:*"]).await;
        (channels.len() == 1).then_some(())
    })
    .await;
    holder.release(&held, Trail::Clean).await.unwrap();
    let grant = busy.wake.signal.unwrap().await.expect("passed over both, in one step");
    assert!(grant.token.get() > 0);
    proxy.heal();
    let answer =
        eventually("the blinker is back", async || blinker.attempt(&blinking, Line::Join).await.ok()).await;
    let Attempt::Busy(blink) = answer else { panic!("{answer:?}") };
    assert_eq!(blink.ahead, Some(0));
    holder.release(&last, Trail::Clean).await.unwrap();
    assert!(blink.wake.signal.unwrap().await.is_some(), "granted by push");
    blinker.release(&blinking, Trail::Clean).await.unwrap();
}

/// A grant whose waiter has gone is given back at once, not when its first ttl ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_nobody_awaits_is_released_at_once() {
    let server = Server::start(Kind::Redis7);
    let (holder, other) =
        (connect(&server.url(), Rules::DEFAULT).await, connect(&server.url(), Rules::DEFAULT).await);
    let held = claim("orphan", Mode::Exclusive, Duration::from_secs(30));
    granted(holder.attempt(&held, Line::Join).await);
    // A claim in our line that our process knows nothing of, as after a crash of its task.
    let channels: Vec<String> = ask(&server.url(), &["PUBSUB", "CHANNELS", "tenure:push:*"]).await;
    assert_eq!(channels.len(), 2);
    let stray = claim("orphan", Mode::Exclusive, Duration::from_secs(30));
    drop(other.attempt(&stray, Line::Join).await.unwrap());
    let entry: Vec<(String, String)> = ask(&server.url(), &["HGETALL", "tenure:{orphan}:c"]).await;
    let forged = claim("orphan", Mode::Exclusive, Duration::from_secs(30)).id.to_hex();
    let _: redis::Value = ask(&server.url(), &["HSET", "tenure:{orphan}:c", &forged, &entry[0].1]).await;
    let _: redis::Value = ask(&server.url(), &["RPUSH", "tenure:{orphan}:q", &forged]).await;
    let start = SystemClock.now();
    holder.release(&held, Trail::Clean).await.unwrap();
    eventually("the lock has moved on", async || {
        let state = holder.inspect(&held.name).await.unwrap();
        state.holders.first().filter(|h| h.fingerprint == stray.id.fingerprint()).map(|_| ())
    })
    .await;
    let took = SystemClock.now().saturating_since(start);
    assert!(took < Duration::from_secs(4), "{took:?}: not before the first ttl ended");
}

/// A client that is refused by name, for good: no second try as somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn failed_authentication_is_final() {
    let server = Server::start_with(Kind::Redis7, &["--requirepass", "right"]);
    for url in [
        format!("redis://127.0.0.1:{}", server.port()),
        format!("redis://:wrong@127.0.0.1:{}", server.port()),
        format!("redis://nobody:right@127.0.0.1:{}", server.port()),
        format!("redis://nobody:wrong@127.0.0.1:{}?protocol=resp2", server.port()),
    ] {
        let error = Redis::connect(RedisConfig::from_url(&url).unwrap()).await.unwrap_err();
        assert!(
            matches!(&error, StoreError::Refused(r) if r.kind == RefusalKind::Permission),
            "{url}: {error:?}"
        );
        assert!(!error.is_passing());
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    let mut config = RedisConfig::from_url(&format!("redis://127.0.0.1:{}", server.port())).unwrap();
    config.password = Some("right".into());
    let backend = Redis::connect(config).await.unwrap();
    granted(backend.attempt(&claim("in", Mode::Exclusive, ms(1000)), Line::Pass).await);
}

/// Unreachable is refused at once and at every try, and over as soon as the server is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_blocks_nobody() {
    let mut server = Server::start(Kind::Redis7);
    let backend = connect(&format!("{}?timeout=300ms", server.url()), QUICK).await;
    server.kill();
    let start = SystemClock.now();
    for _ in 0..20 {
        let answer = backend.attempt(&claim("down", Mode::Exclusive, ms(1000)), Line::Join).await;
        assert!(answer.is_err(), "{answer:?}");
    }
    let took = SystemClock.now().saturating_since(start);
    assert!(took < Duration::from_secs(5), "{took:?} for twenty refusals");
    server.restart();
    eventually("it is back", async || {
        backend.attempt(&claim("down", Mode::Exclusive, ms(1000)), Line::Pass).await.ok()
    })
    .await;
}

/// No room for another client is said as such.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_room_says_so() {
    let server = Server::start(Kind::Redis7);
    let keep = common::beside(&server.url()).await;
    let _: redis::Value = ask(&server.url(), &["CONFIG", "SET", "maxclients", "1"]).await;
    let error = Redis::connect(RedisConfig::from_url(&server.url()).unwrap()).await.unwrap_err();
    assert!(error.is_passing(), "{error:?}");
    assert!(error.to_string().contains("raise maxclients"), "{error}");
    drop(keep);
}

/// Another layout of the keys is refused when connecting; a fence that is something else, when it is needed.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_another_layout_is_not_touched() {
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let before = connect(&url, QUICK).await;
    let _: redis::Value = ask(&url, &["ZADD", "tenure:f", "1", "2"]).await;
    let mut config = RedisConfig::from_url(&url).unwrap();
    config.rules = QUICK;
    let refused = Redis::connect(config).await.unwrap_err();
    assert!(refused.to_string().contains("another version of tenure"), "{refused}");
    let _: redis::Value = ask(&url, &["SET", "tenure:f", "not a fence"]).await;
    let lock = claim("numbered", Mode::Exclusive, Duration::from_secs(5));
    let answer = before.attempt(&lock, Line::Join).await;
    assert!(
        matches!(&answer, Err(StoreError::Refused(r)) if r.kind == RefusalKind::Configuration),
        "{answer:?}"
    );
    assert_eq!(leftovers(&url).await, Vec::<String>::new());
}

/// The first attempt of a connection sees to it that the fence expires, also one that finds the lock taken.
#[tokio::test(flavor = "multi_thread")]
async fn no_fence_is_kept_for_ever() {
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let first = connect(&url, QUICK).await;
    let held = claim("kept", Mode::Exclusive, Duration::from_secs(30));
    granted(first.attempt(&held, Line::Join).await);
    let _: redis::Value = ask(&url, &["PERSIST", "tenure:f"]).await;
    let waiting = claim("kept", Mode::Exclusive, Duration::from_secs(30));
    let second = connect(&url, QUICK).await;
    assert!(matches!(second.attempt(&waiting, Line::Join).await, Ok(Attempt::Busy(_))));
    let left: i64 = ask(&url, &["PTTL", "tenure:f"]).await;
    assert!(left > 0, "{left}");
}

/// Every token is above all before it, over all locks: also when the fence is ahead of the clock, or lost.
#[tokio::test(flavor = "multi_thread")]
async fn one_fence_numbers_all_locks() {
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let backend = connect(&url, QUICK).await;
    let mut last = 0;
    let ahead = 3_000_000_000_000_000_u64.to_string();
    for (i, change) in
        [None, Some(vec!["ZADD", "tenure:f", &ahead, "4"]), Some(vec!["DEL", "tenure:f"]), None]
            .into_iter()
            .enumerate()
    {
        if let Some(change) = change {
            let _: redis::Value = ask(&url, &change).await;
        }
        for name in ["one", "two", "three"] {
            let lock = claim(&format!("{name}/{i}"), Mode::Exclusive, Duration::from_secs(5));
            let token = granted(backend.attempt(&lock, Line::Join).await).token.get();
            assert!(token > last, "{token} after {last}");
            last = token;
            backend.release(&lock, Trail::Clean).await.unwrap();
        }
        let left: i64 = ask(&url, &["PTTL", "tenure:f"]).await;
        assert!(i > 1 || left > 0, "the fence is not kept for ever");
    }
    let keys: Vec<String> = ask(&url, &["KEYS", "*"]).await;
    assert_eq!(keys, ["tenure:f"], "one key, however many locks");
}

/// The server has evicted the line, but not what is known of those in it: whoever asks again stands where it stood.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_was_lost_is_joined_again() {
    let server = Server::start(Kind::Redis7);
    let redis = connect(&server.url(), Rules::DEFAULT).await;
    let [holder, first, second] =
        [(); 3].map(|()| claim("lost-line", Mode::Exclusive, Duration::from_secs(30)));
    assert!(matches!(redis.attempt(&holder, Line::Join).await.unwrap(), Attempt::Granted(_)));
    redis.attempt(&first, Line::Join).await.unwrap();
    let _: redis::Value = ask(&server.url(), &["DEL", "tenure:{lost-line}:q"]).await;
    let mut told = Vec::new();
    for (claim, place) in [(&second, 0), (&first, 0), (&first, 0), (&second, 1)] {
        let Attempt::Busy(busy) = redis.attempt(claim, Line::Join).await.unwrap() else {
            panic!("it is held")
        };
        assert_eq!(busy.ahead, Some(place));
        told.push(busy.wake.signal.unwrap());
    }
    redis.release(&holder, Trail::Clean).await.unwrap();
    // It came first, and still knows when.
    assert!(told.remove(2).await.is_some());
    redis.release(&first, Trail::Clean).await.unwrap();
    assert!(told.remove(2).await.is_some());
    redis.release(&second, Trail::Clean).await.unwrap();
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}
