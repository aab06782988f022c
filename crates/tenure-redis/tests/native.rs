//! Servers that forbid scripts: what the suite does not see, and life beside clients that may run them.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use common::{NATIVE_RULE, QUICK, ask, beside, claim, connect, with_rule};
use tenure_core::{
    Attempt, Backend, Eviction, Line, LockName, Locks, Mode, Reason, RefusalKind, Released, Renewal,
    StoreError, Trail, Why,
};
use tenure_redis::Redis;
use tenure_testkit::servers::{Kind, Server};

const LONG: Duration = Duration::from_secs(30);

/// A server with two clients: one may run scripts, the other may not.
async fn mixed() -> (Server, Redis, Redis) {
    let server = Server::start(Kind::Valkey9);
    let native = connect(&with_rule(&server, "native", NATIVE_RULE).await, QUICK).await;
    let scripted = connect(&server.url(), QUICK).await;
    assert!(scripted.capabilities().fifo && !native.capabilities().fifo);
    (server, scripted, native)
}

fn exclusive() -> tenure_core::Claim {
    claim("mix", Mode::Exclusive, LONG)
}

fn eviction(force: bool) -> Eviction {
    Eviction { token: None, force, reason: Reason::new("tidy").unwrap() }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_runs_scripts_excludes_whoever_does_not() {
    let (_server, scripted, native) = mixed().await;
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { n: 1, of: 3 }, Mode::Once] {
        let (held, wanted) = (claim("mix", mode, LONG), exclusive());
        assert!(matches!(scripted.attempt(&held, Line::Pass).await, Ok(Attempt::Granted(_))));
        let Ok(Attempt::Busy(busy)) = native.attempt(&wanted, Line::Pass).await else { panic!("{mode:?}") };
        assert_eq!(busy.holder.unwrap().fingerprint, held.id.fingerprint(), "{mode:?}");
        // Both see it, and nothing of the attempt.
        for client in [&scripted, &native] {
            let state = client.inspect(&held.name).await.unwrap();
            assert_eq!(state.holders.len(), 1, "{state:?}");
            assert_eq!(state.holders[0].mode, Some(mode), "{state:?}");
        }
        let renewal = scripted.renew(&[Arc::new(held.clone())]).await.remove(0);
        assert!(matches!(renewal, Ok(Renewal::Renewed { .. })), "{mode:?} {renewal:?}");
        assert_eq!(scripted.release(&held, Trail::Clean).await.unwrap(), Released::Held);
        assert!(matches!(native.attempt(&wanted, Line::Pass).await, Ok(Attempt::Granted(_))), "{mode:?}");
        assert_eq!(native.release(&wanted, Trail::Clean).await.unwrap(), Released::Held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_does_not_run_scripts_excludes_whoever_does() {
    let (_server, scripted, native) = mixed().await;
    let held = exclusive();
    assert!(matches!(native.attempt(&held, Line::Pass).await, Ok(Attempt::Granted(_))));
    for mode in [Mode::Exclusive, Mode::Shared] {
        let answer = scripted.attempt(&claim("mix", mode, LONG), Line::Pass).await;
        assert!(matches!(answer, Ok(Attempt::Busy(_))), "{mode:?} {answer:?}");
    }
    for mode in [Mode::Permits { n: 1, of: 3 }, Mode::Once] {
        let answer = scripted.attempt(&claim("mix", mode, LONG), Line::Pass).await;
        let is_refused = matches!(&answer, Err(StoreError::Refused(r)) if r.kind == RefusalKind::Shape);
        assert!(is_refused, "{mode:?} {answer:?}");
    }
    // It tells nobody when it lets go: whoever waits looks often.
    let waiting = Locks::new(scripted);
    let acquired = tokio::spawn(waiting.lock("mix").shared().acquire());
    while waiting.inspect("mix").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(native.release(&held, Trail::Clean).await.unwrap(), Released::Held);
    acquired.await.unwrap().unwrap().release().await.unwrap();
}

/// Readers and writers by scripts, writers without: a writer is always alone.
#[tokio::test(flavor = "multi_thread")]
async fn exclusion_holds_between_the_two() {
    let (_server, scripted, native) = mixed().await;
    let (scripted, native) = (Locks::new(scripted), Locks::new(native));
    let (inside, left) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(2)));
    let mut tasks = tokio::task::JoinSet::new();
    // Readers count up, writers down by more than there are readers.
    for (lock, step, is_native) in [
        (native.lock("mix"), -100, true),
        (native.lock("mix"), -100, true),
        (scripted.lock("mix"), -100, false),
        (scripted.lock("mix").shared(), 1, false),
        (scripted.lock("mix").shared(), 1, false),
    ] {
        let (inside, left) = (inside.clone(), left.clone());
        tasks.spawn(async move {
            let mut rounds = 0;
            while if is_native { rounds < 8 } else { left.load(Ordering::SeqCst) > 0 } {
                rounds += 1;
                let guard = lock.clone().acquire().await.unwrap();
                let now = inside.fetch_add(step, Ordering::SeqCst) + step;
                assert!(now == -100 || now == 1 || now == 2, "{now} beside {step}");
                tokio::time::sleep(Duration::from_millis(3)).await;
                inside.fetch_sub(step, Ordering::SeqCst);
                guard.release().await.unwrap();
                // Those without scripts have no place in the line, and tell nobody when they let go: a gap for each.
                tokio::time::sleep(Duration::from_millis(if is_native { 100 } else { 5 })).await;
            }
            left.fetch_sub(i64::from(is_native), Ordering::SeqCst);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// Their key lives as long as the longest of them would have: that is no reason to wait.
#[tokio::test(flavor = "multi_thread")]
async fn readers_that_have_died_are_in_nobodys_way() {
    let (server, scripted, native) = mixed().await;
    let long = claim("mix", Mode::Shared, LONG);
    let short = claim("mix", Mode::Shared, Duration::from_millis(100));
    for reader in [&long, &short] {
        assert!(matches!(scripted.attempt(reader, Line::Pass).await, Ok(Attempt::Granted(_))));
    }
    assert_eq!(scripted.release(&long, Trail::Clean).await.unwrap(), Released::Held);
    while scripted.inspect(&long.name).await.unwrap().is_held() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let is_there: u32 = ask(&server.url(), &["EXISTS", "tenure:{mix}:s"]).await;
    assert_eq!(is_there, 1, "otherwise this proves nothing");
    assert!(matches!(native.attempt(&exclusive(), Line::Pass).await, Ok(Attempt::Granted(_))));
    let renewal = scripted.renew(&[Arc::new(short)]).await.remove(0);
    assert!(matches!(renewal, Ok(Renewal::Lost(Why::Gone))), "{renewal:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_evicts_the_others_as_far_as_it_can() {
    let (_server, scripted, native) = mixed().await;
    let name = LockName::new("mix").unwrap();
    for force in [false, true] {
        for (holder, operator) in [(&native, &scripted), (&scripted, &native)] {
            let held = Arc::new(exclusive());
            assert!(matches!(holder.attempt(&held, Line::Pass).await, Ok(Attempt::Granted(_))));
            assert_eq!(operator.evict(&name, &eviction(force)).await.unwrap(), 1);
            let renewal = holder.renew(std::slice::from_ref(&held)).await.remove(0);
            // By force, only scripts leave word for scripts.
            let is_told = matches!(renewal, Ok(Renewal::Lost(Why::Evicted { .. })));
            assert!(is_told || force && matches!(renewal, Ok(Renewal::Lost(Why::Gone))), "{renewal:?}");
            let state = operator.inspect(&name).await.unwrap();
            assert_eq!(state.holders.len(), usize::from(!force), "{state:?}");
            let shown = state.holders.iter().all(|h| h.evicted && h.fingerprint == held.id.fingerprint());
            assert!(shown, "{state:?}");
            holder.release(&held, Trail::Clean).await.unwrap();
            assert!(!operator.inspect(&name).await.unwrap().is_held());
        }
    }
    let reader = claim("mix", Mode::Shared, LONG);
    assert!(matches!(scripted.attempt(&reader, Line::Pass).await, Ok(Attempt::Granted(_))));
    let error = native.evict(&name, &eviction(true)).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused(r) if r.kind == RefusalKind::Unsupported), "{error:?}");
    assert!(scripted.inspect(&name).await.unwrap().is_held());
}

/// Locks that are held can still be renewed and released in a full server.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_loses_no_lock() {
    let (server, _scripted, native) = mixed().await;
    let held = Arc::new(claim("mix", Mode::Exclusive, Duration::from_secs(5)));
    assert!(matches!(native.attempt(&held, Line::Pass).await, Ok(Attempt::Granted(_))));
    let _: redis::Value = ask(&server.url(), &["PEXPIRE", "tenure:{mix}", "3000"]).await;
    let _: redis::Value = ask(&server.url(), &["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = native.attempt(&claim("new", Mode::Exclusive, LONG), Line::Pass).await;
    assert!(
        matches!(&refused, Err(StoreError::Refused(r)) if r.message.contains("out of memory")),
        "{refused:?}"
    );
    let renewal = native.renew(std::slice::from_ref(&held)).await.remove(0);
    assert!(matches!(renewal, Ok(Renewal::Renewed { .. })), "{renewal:?}");
    let left: u64 = ask(&server.url(), &["PTTL", "tenure:{mix}"]).await;
    assert!(left > 3000, "{left}");
    assert_eq!(native.release(&held, Trail::Clean).await.unwrap(), Released::Held);
}

/// The suite runs with this rule. It allows nothing outside the prefix, and stands in the documentation.
#[tokio::test(flavor = "multi_thread")]
async fn the_rule_for_servers_without_scripts_is_enough() {
    let server = Server::start(Kind::Valkey9);
    let url = with_rule(&server, "native", NATIVE_RULE).await;
    let locks = Locks::new(connect(&url, QUICK).await);
    let guard = locks.lock("mix").ttl(Duration::from_millis(300)).acquire().await.unwrap();
    let known = guard.valid_until();
    guard.changed(known).await;
    assert!(guard.is_held(), "renewed");
    assert_eq!(locks.list("", None, 10).await.unwrap().locks.len(), 1);
    assert_eq!(locks.evict("mix", Eviction::because("tidy").unwrap().force()).await.unwrap(), 1);
    guard.lost().await;
    drop(guard);
    locks.close(LONG).await.unwrap();
    let denied: Vec<HashMap<String, redis::Value>> = ask(&server.url(), &["ACL", "LOG"]).await;
    for entry in denied {
        let object: String = redis::from_redis_value(entry["object"].clone()).unwrap();
        // Asked for and done without.
        let expected = ["config|get", "client|setinfo", "script|load", "evalsha"];
        assert!(expected.contains(&&*object.to_lowercase()), "{object} {entry:?}");
    }
    let mut connection = beside(&url).await;
    for command in
        [&["GET", "foreign"][..], &["SET", "foreign", "1"], &["MSETNX", "foreign", "1"], &["FLUSHALL"]]
    {
        let answer = redis::cmd(command[0]).arg(&command[1..]).exec_async(&mut connection).await;
        assert!(answer.is_err(), "{command:?}");
    }
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let documented = words(include_str!("../../../docs/backends/redis.md"));
    assert!(documented.contains(&words(NATIVE_RULE)), "the rule is another there");
}
