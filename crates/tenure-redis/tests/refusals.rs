//! Servers that say no, each in its own words: the request is refused with the reason, nothing has changed, and all goes
//! on as soon as the server does.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{QUICK, ask, beside, claim, connect, leftovers};
use tenure_core::clock::{Clock, SystemClock, sleep_until};
use tenure_core::{
    Attempt, Backend, Line, LockName, Locks, Mode, RefusalKind, Released, Renewal, StoreError, Trail,
    async_trait,
};
use tenure_testkit::proxy::Proxy;
use tenure_testkit::servers::{Kind, Server};

const LONG: Duration = Duration::from_secs(30);

/// Something that keeps a server from serving.
#[async_trait]
trait Trouble {
    async fn begin(&mut self, server: &Server);
    async fn end(&mut self, server: &Server);
}

/// Commands that bring it about, and commands that end it.
struct Commands(&'static [&'static [&'static str]], &'static [&'static [&'static str]]);

#[async_trait]
impl Trouble for Commands {
    async fn begin(&mut self, server: &Server) {
        for words in self.0 {
            let _: redis::Value = ask(&server.url(), words).await;
        }
    }

    async fn end(&mut self, server: &Server) {
        for words in self.1 {
            let _: redis::Value = ask(&server.url(), words).await;
        }
    }
}

/// A command that keeps the server busy, and how to interrupt it.
struct Busy {
    words: &'static [&'static str],
    interrupt: Option<&'static [&'static str]>,
    running: Option<tokio::task::JoinHandle<()>>,
}

impl Busy {
    const fn new(words: &'static [&'static str], interrupt: Option<&'static [&'static str]>) -> Self {
        Self { words, interrupt, running: None }
    }
}

#[async_trait]
impl Trouble for Busy {
    async fn begin(&mut self, server: &Server) {
        let (mut connection, words) = (beside(&server.url()).await, self.words);
        let mut other = beside(&server.url()).await;
        self.running = Some(tokio::spawn(async move {
            // It fails where it is interrupted.
            let _ = redis::cmd(words[0]).arg(&words[1..]).query_async::<redis::Value>(&mut connection).await;
        }));
        // Until it is at it: nobody else is served.
        while redis::cmd("GET").arg("x").exec_async(&mut other).await.is_ok() {
            assert!(
                !self.running.as_ref().is_some_and(tokio::task::JoinHandle::is_finished),
                "it was over at once"
            );
            pause().await;
        }
    }

    async fn end(&mut self, server: &Server) {
        if let Some(words) = self.interrupt {
            let _: redis::Value = ask(&server.url(), words).await;
        }
        self.running.take().expect("it was begun").await.unwrap();
    }
}

/// A trouble that wants one command first.
struct After<T>(&'static [&'static str], T);

#[async_trait]
impl<T: Trouble + Send> Trouble for After<T> {
    async fn begin(&mut self, server: &Server) {
        let _: redis::Value = ask(&server.url(), self.0).await;
        self.1.begin(server).await;
    }

    async fn end(&mut self, server: &Server) {
        self.1.end(server).await;
    }
}

/// What the server would save cannot be put in its place.
struct NoDisk;

async fn save_until(url: &str, status: &str) {
    loop {
        // One may be under way already.
        let _ = redis::cmd("BGSAVE").exec_async(&mut beside(url).await).await;
        let info: String = ask(url, &["INFO", "persistence"]).await;
        if info.contains(&format!("rdb_last_bgsave_status:{status}")) {
            return;
        }
        pause().await;
    }
}

#[async_trait]
impl Trouble for NoDisk {
    async fn begin(&mut self, server: &Server) {
        let _: redis::Value = ask(&server.url(), &["CONFIG", "SET", "save", "3600 1"]).await;
        std::fs::create_dir_all(server.folder().join("dump.rdb/in the way")).unwrap();
        save_until(&server.url(), "err").await;
    }

    async fn end(&mut self, server: &Server) {
        std::fs::remove_dir_all(server.folder().join("dump.rdb")).unwrap();
        save_until(&server.url(), "ok").await;
    }
}

async fn pause() {
    sleep_until(Arc::new(SystemClock), SystemClock.now() + Duration::from_millis(5)).await;
}

fn is_refused<T: std::fmt::Debug>(answer: &Result<T, StoreError>, word: &str) {
    match answer {
        Err(error @ StoreError::Refused(refusal)) => {
            assert_eq!(refusal.kind, RefusalKind::Unavailable, "{word}: {refusal:?}");
            assert!(refusal.message.contains(word) && error.is_passing(), "{word}: {refusal:?}");
            assert!(!refusal.message.contains("script:"), "{word}: {refusal:?}");
        }
        other => panic!("{word}: {other:?}"),
    }
}

/// Every verb is refused while it lasts. Then everything is as before: who held holds, who waits is served.
async fn sit_out(kind: Kind, word: &str, mut trouble: impl Trouble) {
    let server = Server::start(kind);
    let url = server.url();
    let backend = connect(&url, QUICK).await;
    let locks = Locks::new(connect(&url, QUICK).await);
    let holder = Arc::new(claim("held", Mode::Exclusive, LONG));
    let reader = Arc::new(claim("read", Mode::Shared, LONG));
    for claim in [&holder, &reader] {
        assert!(matches!(backend.attempt(claim, Line::Join).await, Ok(Attempt::Granted(_))));
    }
    trouble.begin(&server).await;
    for (name, mode, line) in [
        ("held", Mode::Exclusive, Line::Join),
        ("free", Mode::Exclusive, Line::Join),
        ("free", Mode::Exclusive, Line::Pass),
        ("read", Mode::Shared, Line::Join),
        ("read", Mode::Shared, Line::Pass),
    ] {
        is_refused(&backend.attempt(&claim(name, mode, LONG), line).await, word);
    }
    let both = [holder.clone(), reader.clone()];
    for renewal in backend.renew(&both).await {
        is_refused(&renewal, word);
    }
    for claim in &both {
        is_refused(&backend.release(claim, Trail::Clean).await, word);
    }
    // One that is asked for while nothing goes is had when it goes again.
    let acquired = tokio::spawn(locks.lock("wanted").acquire());
    // It asks again: so it was refused.
    while locks.stats().attempts < 2 {
        pause().await;
    }
    trouble.end(&server).await;
    acquired.await.unwrap().unwrap().release().await.unwrap();
    for renewal in backend.renew(&both).await {
        assert!(matches!(renewal, Ok(Renewal::Renewed { .. })), "{word}: {renewal:?}");
    }
    for claim in &both {
        assert_eq!(backend.release(claim, Trail::Clean).await.unwrap(), Released::Held, "{word}");
    }
    let left: Vec<_> = leftovers(&url).await.into_iter().filter(|key| key.starts_with("tenure")).collect();
    assert_eq!(left, Vec::<String>::new(), "{word}");
}

const REPLICA: &[&str] = &["REPLICAOF", "127.0.0.1", "1"];
const MASTER: &[&str] = &["REPLICAOF", "NO", "ONE"];

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_no_locks() {
    for kind in Kind::ALL {
        sit_out(kind, "READONLY", Commands(&[REPLICA], &[MASTER])).await;
    }
}

/// A failover behind one name: who holds on to the connection never reaches the new master.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_became_a_replica_is_looked_up_again() {
    for (kind, name, mode) in [
        (Kind::Redis7, "free", Mode::Exclusive),
        (Kind::Valkey9, "free", Mode::Exclusive),
        (Kind::Redis62, "free", Mode::Exclusive),
        (Kind::Redis7, "read", Mode::Shared),
        (Kind::Redis7, "once", Mode::Once),
    ] {
        let (old, new) = (Server::start(kind), Server::start(kind));
        let proxy = Proxy::start(old.address()).await;
        let backend = connect(&proxy.url(), QUICK).await;
        let before = claim(name, mode, LONG);
        assert!(matches!(backend.attempt(&before, Line::Join).await, Ok(Attempt::Granted(_))));
        backend.release(&before, Trail::Clean).await.unwrap();
        let _: redis::Value = ask(&old.url(), REPLICA).await;
        proxy.lead_to(new.address());
        is_refused(&backend.attempt(&claim(name, mode, LONG), Line::Join).await, "READONLY");
        let after = claim(name, mode, LONG);
        let answer = backend.attempt(&after, Line::Join).await;
        assert!(matches!(answer, Ok(Attempt::Granted(_))), "{kind:?} {mode:?} {answer:?}");
        backend.release(&after, Trail::Clean).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_its_master_takes_no_locks() {
    let alone: &[&[&str]] = &[&["CONFIG", "SET", "replica-serve-stale-data", "no"], REPLICA];
    for kind in Kind::ALL {
        sit_out(kind, "MASTERDOWN", Commands(alone, &[MASTER])).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_misses_its_replicas_takes_no_locks() {
    let begin: &[&[&str]] = &[&["CONFIG", "SET", "min-replicas-to-write", "1"]];
    let end: &[&[&str]] = &[&["CONFIG", "SET", "min-replicas-to-write", "0"]];
    for kind in Kind::ALL {
        sit_out(kind, "NOREPLICAS", Commands(begin, end)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_save_takes_no_locks() {
    for kind in Kind::ALL {
        sit_out(kind, "MISCONF", NoDisk).await;
    }
}

/// Somebody else's script that does not end.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_busy_with_a_script_takes_no_locks() {
    for kind in Kind::ALL {
        let endless = Busy::new(&["EVAL", "while true do end", "0"], Some(&["SCRIPT", "KILL"]));
        sit_out(kind, "BUSY", After(&["CONFIG", "SET", "lua-time-limit", "20"], endless)).await;
    }
}

/// It reads its data, slowly. Redis 6.2 cannot be made to do so within a test.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_loads_its_data_takes_no_locks() {
    for kind in [Kind::Redis7, Kind::Valkey9] {
        let reload = Busy::new(&["DEBUG", "RELOAD"], None);
        let slowly = After(&["CONFIG", "SET", "key-load-delay", "1000"], reload);
        let visibly = After(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"], slowly);
        sit_out(kind, "LOADING", After(&["DEBUG", "POPULATE", "500", "key", "4000"], visibly)).await;
    }
}

/// One key of another type made the whole listing fail, and did not say which.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_key_does_not_hide_the_other_locks() {
    let server = Server::start(Kind::Redis7);
    let backend = connect(&server.url(), QUICK).await;
    let held = claim("held", Mode::Exclusive, Duration::from_secs(5));
    assert!(matches!(backend.attempt(&held, Line::Pass).await, Ok(Attempt::Granted(_))));
    let _: redis::Value = ask(&server.url(), &["LPUSH", "tenure:{foreign}", "x"]).await;
    let _: redis::Value = ask(&server.url(), &["SET", "tenure:{half}:q", "x"]).await;
    let page = backend.list("", None, 100).await.unwrap();
    let names = |names: Vec<&LockName>| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(names(page.locks.iter().map(|lock| &lock.name).collect()), ["held"]);
    assert_eq!(names(page.unreadable.iter().map(|(name, _)| name).collect()), ["foreign", "half"]);
    assert!(page.unreadable[0].1.message.contains("another program"), "{:?}", page.unreadable);
}
