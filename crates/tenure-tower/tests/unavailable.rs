//! What a client is told when the store does not serve: before the run, and after it.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use common::{Work, serve};
use tenure_core::{
    Answer, Attempt, Backend, Bytes, Capabilities, Claim, Eviction, Line, LockName, LockPage, LockState,
    Locks, Memory, Released, Renewal, Settled, StoreError, Trail, async_trait,
};
use tenure_tower::IdempotencyLayer;

/// A store that can be cut off.
#[derive(Debug)]
struct Cuttable {
    inner: Memory,
    is_cut: Arc<AtomicBool>,
}

impl Cuttable {
    fn line(&self) -> Answer<&Memory> {
        if self.is_cut.load(Ordering::SeqCst) { Err(StoreError::unknown("cut off")) } else { Ok(&self.inner) }
    }
}

#[async_trait]
impl Backend for Cuttable {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn store(&self) -> &str {
        "cuttable://secret-host"
    }
    fn lane(&self, name: &LockName) -> u32 {
        self.inner.lane(name)
    }
    async fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        self.line()?.attempt(claim, line).await
    }
    async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
        match self.line() {
            Ok(inner) => inner.renew(claims).await,
            Err(error) => vec![Err(error); claims.len()],
        }
    }
    async fn release(&self, claim: &Claim, trail: Trail) -> Answer<Released> {
        self.line()?.release(claim, trail).await
    }
    async fn settle(&self, claim: &Claim, outcome: Bytes, keep: Duration) -> Answer<Settled> {
        self.line()?.settle(claim, outcome, keep).await
    }
    async fn forget(&self, name: &LockName) -> Answer<bool> {
        self.line()?.forget(name).await
    }
    async fn inspect(&self, name: &LockName) -> Answer<LockState> {
        self.line()?.inspect(name).await
    }
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Answer<LockPage> {
        self.line()?.list(prefix, after, limit).await
    }
    async fn evict(&self, name: &LockName, eviction: &Eviction) -> Answer<u32> {
        self.line()?.evict(name, eviction).await
    }
}

#[tokio::test]
async fn a_store_that_does_not_serve_is_503_and_nothing_is_run() {
    let (work, is_cut) = (Work::new(), Arc::new(AtomicBool::new(true)));
    let counter = work.clone();
    let handler = || async move { format!("run {}", counter.count()) };
    let locks = Locks::new(Cuttable { inner: Memory::new(), is_cut: is_cut.clone() });
    let app = Router::new().route("/", post(handler)).layer(IdempotencyLayer::unscoped(&locks).unwrap());
    let client = serve(app).await;
    let refused = client.post("/", "k", "").await;
    refused.assert_problem(503, "store-unavailable");
    assert_eq!(refused.header("retry-after"), Some("1"));
    // Where the store is, is nobody's business.
    assert!(!refused.text().contains("secret-host"));
    assert_eq!(work.runs(), 0);
    is_cut.store(false, Ordering::SeqCst);
    assert_eq!(client.post("/", "k", "").await.text(), "run 1");
    locks.close(Duration::from_secs(10)).await.unwrap();
    client.post("/", "k2", "").await.assert_problem(503, "closing");
    assert_eq!(work.runs(), 1);
}

/// The handler has done its work, but that cannot be recorded before the lease ends: its client gets the response,
/// marked, because it is true; and a retry runs again, because nobody can know.
#[tokio::test]
async fn a_response_that_could_not_be_recorded_is_passed_on_and_marked() {
    let (work, is_cut) = (Work::new(), Arc::new(AtomicBool::new(false)));
    let (counter, cut) = (work.clone(), is_cut.clone());
    let handler = || async move {
        cut.store(true, Ordering::SeqCst);
        format!("run {}", counter.count())
    };
    let locks = Locks::new(Cuttable { inner: Memory::new(), is_cut: is_cut.clone() });
    let layer = IdempotencyLayer::unscoped(&locks)
        .unwrap()
        .ttl(Duration::from_millis(500))
        .wait(Duration::from_secs(60));
    let client = serve(Router::new().route("/", post(handler)).layer(layer)).await;
    let first = client.post("/", "k", "").await;
    assert_eq!((first.text(), first.header("idempotency-recorded")), ("run 1", Some("false")));
    is_cut.store(false, Ordering::SeqCst);
    assert_eq!(client.post("/", "k", "").await.text(), "run 2");
}
