//! Plain keys: one lock, shared with the clients that people already run.

mod common;

use std::path::Path;
use std::time::Duration;

use common::{QUICK, ask, beside, claim, connect, with_rule};
use tenure_core::{
    Attempt, Backend, Eviction, Line, Locks, Mode, Reason, RefusalKind, Released, StoreError, Trail,
};
use tenure_redis::Redis;
use tenure_testkit::servers::{Kind, Server, build_folder};
use tokio::process::Command;

const KEY: &str = "mutex:interop";
const TIMES: u32 = 12;

fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(name).to_string_lossy().into_owned()
}

fn packages(name: &str) -> std::path::PathBuf {
    let folder = build_folder().join("stores").join(name);
    assert!(folder.is_dir(), "{folder:?} is not there: run `cargo xtask setup`");
    std::path::absolute(folder).expect("a path")
}

fn redis_py(server: &Server, task: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.arg(script("redis_py.py")).args([&server.port().to_string(), KEY]).args(task);
    command.env("PYTHONPATH", packages("python"));
    command
}

fn node(server: &Server, which: &str) -> Command {
    let mut command = Command::new("node");
    // Found from the folder of the packages: imports do not look at NODE_PATH.
    let beside = packages("node").join("node_locks.js");
    std::fs::copy(script("node_locks.js"), &beside).expect("a copy beside its packages");
    command.arg(beside).args([&server.port().to_string(), KEY, which, &TIMES.to_string()]);
    command
}

/// Four kinds of client, one counter that is read, thought about, and written: no update is lost.
#[tokio::test(flavor = "multi_thread")]
async fn one_lock_is_shared_by_four_kinds_of_client() {
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let mut others = [
        redis_py(&server, &["count", &TIMES.to_string()]).spawn().expect("python3"),
        node(&server, "redlock").spawn().expect("node"),
        node(&server, "semaphore").spawn().expect("node"),
    ];
    let mut ours = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let (locks, url) = (Locks::new(connect(&format!("{url}?plain"), QUICK).await), url.clone());
        ours.spawn(async move {
            for _ in 0..TIMES {
                let guard = locks.lock(KEY).acquire().await.unwrap();
                let value: Option<u32> = ask(&url, &["GET", "counter"]).await;
                tokio::time::sleep(Duration::from_millis(2)).await;
                let next = (value.unwrap_or(0) + 1).to_string();
                let _: redis::Value = ask(&url, &["SET", "counter", &next]).await;
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(done) = ours.join_next().await {
        done.unwrap();
    }
    for other in &mut others {
        assert!(other.wait().await.unwrap().success());
    }
    let counted: u32 = ask(&url, &["GET", "counter"]).await;
    assert_eq!(counted, 5 * TIMES);
}

#[tokio::test(flavor = "multi_thread")]
async fn their_lock_blocks_ours_and_ours_theirs_and_neither_releases_the_others() {
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let backend = connect(&format!("{url}?plain"), QUICK).await;
    let probe = async || {
        let output = redis_py(&server, &["probe"]).output().await.unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let ours = claim(KEY, Mode::Exclusive, Duration::from_secs(30));
    let Ok(Attempt::Granted(grant)) = backend.attempt(&ours, Line::Pass).await else { panic!() };
    assert_eq!(probe().await, "taken=False refused=True");
    assert_eq!(backend.inspect(&ours.name).await.unwrap().holders[0].token, Some(grant.token));
    assert_eq!(backend.release(&ours, Trail::Clean).await.unwrap(), Released::Held);
    assert_eq!(probe().await, "taken=True refused=True");

    // As any client of that kind does it.
    let _: redis::Value = ask(&url, &["SET", KEY, "their secret", "NX", "PX", "1500"]).await;
    let Ok(Attempt::Busy(busy)) = backend.attempt(&ours, Line::Pass).await else { panic!() };
    let shown = format!("{:?}", busy.holder.unwrap());
    assert!(!shown.contains("their secret"), "{shown}");
    assert_eq!(backend.release(&ours, Trail::Clean).await.unwrap(), Released::Absent);
    let kept: String = ask(&url, &["GET", KEY]).await;
    assert_eq!(kept, "their secret");
    // It does not tell when it lets go: we look often, and see its end.
    let locks = Locks::new(backend);
    let guard = locks.lock(KEY).wait(Duration::from_secs(10)).acquire().await.unwrap();
    assert!(guard.token() > grant.token);
    let kept: Option<String> = ask(&url, &["GET", KEY]).await;
    assert_ne!(kept.as_deref(), Some("their secret"));
    guard.release().await.unwrap();
}

/// Clients of every kind of server, and one that may run no scripts.
async fn plain_clients() -> Vec<(Server, Redis)> {
    let mut clients = Vec::new();
    for kind in Kind::ALL {
        let server = Server::start(kind);
        let client = connect(&format!("{}?plain", server.url()), QUICK).await;
        clients.push((server, client));
    }
    let server = Server::start(Kind::Valkey9);
    let url = with_rule(&server, "native", "~* allchannels +@all -eval -evalsha -script").await;
    let client = connect(&format!("{url}?plain"), QUICK).await;
    assert!(!client.capabilities().fifo);
    clients.push((server, client));
    clients
}

/// What has no key of the lock's name would keep nobody out.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_could_not_see_is_not_offered() {
    for (server, client) in plain_clients().await {
        assert!(!client.capabilities().shared && !client.capabilities().permits);
        let locks = Locks::new(client);
        for lock in [locks.lock(KEY).shared(), locks.lock(KEY).permits(1, 2)] {
            let error = lock.acquire().await.unwrap_err();
            assert!(error.to_string().contains("does not offer"), "{error}");
        }
        let keys: Vec<String> = ask(&server.url(), &["KEYS", "*"]).await;
        assert_eq!(keys, Vec::<String>::new());
    }
}

/// Held is held, whatever stands there.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_with_an_unreadable_value_is_held() {
    for (server, client) in plain_clients().await {
        for value in [&b"\xff\xfe"[..], b"", b"evicted\n", b"\n\n\n\n\n\n"] {
            let mut connection = beside(&server.url()).await;
            let mut set = redis::cmd("SET");
            set.arg(KEY).arg(value).arg("PX").arg(60_000).exec_async(&mut connection).await.unwrap();
            let wanted = claim(KEY, Mode::Exclusive, Duration::from_secs(30));
            let state = client.inspect(&wanted.name).await.unwrap();
            assert_eq!(state.holders.len(), 1, "{:?} {value:?}", server.kind());
            let Ok(Attempt::Busy(busy)) = client.attempt(&wanted, Line::Pass).await else { panic!() };
            assert_eq!(busy.holder.unwrap().label, state.holders[0].label, "{value:?}");
            let kept: Vec<u8> = ask(&server.url(), &["GET", KEY]).await;
            assert_eq!(kept, value);
        }
    }
}

/// A name that is mistyped, or the wrong database: what never expires is no lock.
#[tokio::test(flavor = "multi_thread")]
async fn data_is_not_evicted() {
    for (server, client) in plain_clients().await {
        let url = server.url();
        let wanted = claim("app:data", Mode::Exclusive, Duration::from_secs(30));
        for force in [false, true] {
            let eviction = Eviction { token: None, force, reason: Reason::new("tidy").unwrap() };
            let _: redis::Value = ask(&url, &["SET", "app:data", "hello"]).await;
            let error = client.evict(&wanted.name, &eviction).await.unwrap_err();
            let is_refused = matches!(&error, StoreError::Refused(r) if r.kind == RefusalKind::Configuration);
            assert!(
                is_refused && error.to_string().contains("never expires"),
                "{:?} {error:?}",
                server.kind()
            );
            let kept: String = ask(&url, &["GET", "app:data"]).await;
            assert_eq!(kept, "hello");
            // The lock of another client, and one of ours, whoever made it live for ever.
            let _: redis::Value = ask(&url, &["SET", "app:data", "theirs", "PX", "60000"]).await;
            assert_eq!(client.evict(&wanted.name, &eviction).await.unwrap(), 1);
            let _: redis::Value = ask(&url, &["DEL", "app:data"]).await;
            let held = claim("app:data", Mode::Exclusive, Duration::from_secs(30));
            assert!(matches!(client.attempt(&held, Line::Pass).await, Ok(Attempt::Granted(_))));
            let _: redis::Value = ask(&url, &["PERSIST", "app:data"]).await;
            assert_eq!(client.evict(&wanted.name, &eviction).await.unwrap(), 1, "{:?}", server.kind());
            let _: redis::Value = ask(&url, &["DEL", "app:data"]).await;
        }
    }
}
