//! Requests with one key that meet: while the first is in progress, fails, is left by its client, or is cut short.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::routing::post;
use common::{Work, request, serve, until_waiting};
use http::{Method, StatusCode};
use tenure_core::{Eviction, Locks};
use tenure_tower::IdempotencyLayer;
use tokio::sync::Notify;

const LONG: Duration = Duration::from_secs(60);

/// A handler that is held up; its first run fails if `fails`.
fn held_up(work: &Work, fails: bool) -> Router {
    let work = work.clone();
    let handler = move || async move {
        let run = work.run().await;
        let status = if fails && run == 1 { StatusCode::BAD_GATEWAY } else { StatusCode::OK };
        (status, format!("run {run}"))
    };
    Router::new().route("/", post(handler.clone())).route("/other", post(handler))
}

#[tokio::test]
async fn a_duplicate_in_progress_gets_409_and_another_request_422() {
    let work = Work::new();
    let app = held_up(&work, false).layer(IdempotencyLayer::unscoped(&Locks::in_memory()).unwrap());
    let client = serve(app).await;
    let first = tokio::spawn(client.post("/", "k", "same"));
    work.begun().await;
    let duplicate = client.post("/", "k", "same").await;
    duplicate.assert_problem(409, "in-progress");
    assert_eq!(duplicate.header("retry-after"), Some("1"));
    client.post("/", "k", "other").await.assert_problem(422, "key-reused");
    client.post("/other", "k", "same").await.assert_problem(422, "key-reused");
    work.let_go();
    assert_eq!(first.await.unwrap().text(), "run 1");
    assert!(client.post("/", "k", "same").await.is_replayed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_that_wait_all_get_the_one_response() {
    let work = Work::new();
    let locks = Locks::in_memory();
    let client =
        serve(held_up(&work, false).layer(IdempotencyLayer::unscoped(&locks).unwrap().wait(LONG))).await;
    let first = tokio::spawn(client.post("/", "k", ""));
    work.begun().await;
    let others: Vec<_> = (0..20).map(|_| tokio::spawn(client.post("/", "k", ""))).collect();
    until_waiting(&locks, 20).await;
    // It does not wait in vain for a response that is not its own.
    client.post("/", "k", "other").await.assert_problem(422, "key-reused");
    work.let_go();
    assert!(!first.await.unwrap().is_replayed());
    for other in others {
        let other = other.await.unwrap();
        assert!(other.is_replayed());
        assert_eq!(other.text(), "run 1");
    }
    assert_eq!(work.runs(), 1);
}

#[tokio::test]
async fn a_wait_has_an_end() {
    let work = Work::new();
    let layer = IdempotencyLayer::unscoped(&Locks::in_memory()).unwrap().wait(Duration::from_millis(20));
    let client = serve(held_up(&work, false).layer(layer)).await;
    let _first = tokio::spawn(client.post("/", "k", ""));
    work.begun().await;
    client.post("/", "k", "").await.assert_problem(409, "in-progress");
    assert_eq!(work.runs(), 1);
}

#[tokio::test]
async fn if_the_first_fails_one_of_those_that_wait_runs() {
    let work = Work::new();
    let locks = Locks::in_memory();
    let client =
        serve(held_up(&work, true).layer(IdempotencyLayer::unscoped(&locks).unwrap().wait(LONG))).await;
    let first = tokio::spawn(client.post("/", "k", ""));
    work.begun().await;
    let others: Vec<_> = (0..3).map(|_| tokio::spawn(client.post("/", "k", ""))).collect();
    until_waiting(&locks, 3).await;
    work.let_go();
    assert_eq!(first.await.unwrap().status, 502);
    work.begun().await;
    work.let_go();
    let mut replayed = 0;
    for other in others {
        let other = other.await.unwrap();
        assert_eq!(other.text(), "run 2");
        replayed += u32::from(other.is_replayed());
    }
    assert_eq!((work.runs(), replayed), (2, 2));
}

/// Many requests on few keys, every third run of which fails: each key is done once, and all that were told of a success
/// were told of the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_key_is_done_once_however_many_ask_and_fail() {
    let work = Work::new();
    let counter = work.clone();
    let handler = || async move {
        let run = counter.count();
        tokio::task::yield_now().await;
        let status =
            if run.is_multiple_of(3) { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::CREATED };
        (status, format!("run {run}"))
    };
    let layer = IdempotencyLayer::unscoped(&Locks::in_memory()).unwrap().wait(LONG);
    let client = serve(Router::new().route("/", post(handler)).layer(layer)).await;
    let requests: Vec<_> = (0..100)
        .map(|i| tokio::spawn(async move { (i % 10, client.post("/", &format!("k{}", i % 10), "").await) }))
        .collect();
    let mut done = BTreeMap::new();
    let (mut first, mut failed) = (0, 0);
    for request in requests {
        let (key, answer) = request.await.unwrap();
        if answer.status == 500 {
            failed += 1;
            continue;
        }
        first += u32::from(!answer.is_replayed());
        assert_eq!(done.entry(key).or_insert_with(|| answer.text().to_owned()), answer.text());
    }
    assert_eq!((done.len(), first), (10, 10));
    assert_eq!(work.runs(), 10 + failed);
}

/// A layer around `app` that tells when the server has dropped a request unanswered.
fn telling(app: Router, dropped: &Arc<Notify>) -> Router {
    struct Tell(Arc<Notify>);
    impl Drop for Tell {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let dropped = dropped.clone();
    app.layer(from_fn(move |request: Request, next: Next| {
        let tell = Tell(dropped.clone());
        async move {
            let response = next.run(request).await;
            // Answered: there is nothing to tell.
            std::mem::forget(tell);
            response
        }
    }))
}

/// A client that times out and tries again is whom the key is for: its first request must neither be cut short nor be
/// run twice.
#[tokio::test]
async fn a_run_whose_client_left_is_finished_and_recorded() {
    let (work, dropped) = (Work::new(), Arc::new(Notify::new()));
    let layer = IdempotencyLayer::unscoped(&Locks::in_memory()).unwrap().wait(LONG);
    let client = serve(telling(held_up(&work, false).layer(layer), &dropped)).await;
    let impatient = tokio::spawn(client.post("/", "k", ""));
    work.begun().await;
    impatient.abort();
    dropped.notified().await;
    let retry = tokio::spawn(client.post("/", "k", ""));
    work.let_go();
    let retry = retry.await.unwrap();
    assert!(retry.is_replayed());
    assert_eq!((retry.text(), work.runs()), ("run 1", 1));
}

#[tokio::test]
async fn a_request_whose_client_left_before_its_turn_is_never_run() {
    let (work, dropped, locks) = (Work::new(), Arc::new(Notify::new()), Locks::in_memory());
    let layer = IdempotencyLayer::unscoped(&locks).unwrap().wait(LONG);
    let client = serve(telling(held_up(&work, true).layer(layer), &dropped)).await;
    let first = tokio::spawn(client.post("/", "k", ""));
    work.begun().await;
    let impatient = tokio::spawn(client.post("/", "k", ""));
    until_waiting(&locks, 1).await;
    impatient.abort();
    dropped.notified().await;
    work.let_go();
    assert_eq!(first.await.unwrap().status, 502);
    until_waiting(&locks, 0).await;
    assert_eq!(work.runs(), 1);
}

#[tokio::test]
async fn a_panic_in_the_handler_frees_the_key() {
    let work = Work::new();
    let counter = work.clone();
    let handler = || async move {
        assert!(counter.count() > 1, "on purpose");
        "fine"
    };
    let layer = IdempotencyLayer::unscoped(&Locks::in_memory()).unwrap().wait(LONG);
    let client = serve(Router::new().route("/", post(handler)).layer(layer)).await;
    // As without the layer: the connection breaks, unless something outside catches it.
    assert_eq!(client.try_send(request(Method::POST, "/", Some("k"), "")).await, None);
    assert_eq!(client.post("/", "k", "").await.text(), "fine");
}

/// The lock is taken away while the handler runs. It is stopped; its client is told that it may have been done in part,
/// and the next request runs it.
#[tokio::test]
async fn a_run_that_lost_its_lease_is_not_passed_off_as_done() {
    let (work, locks) = (Work::new(), Locks::in_memory());
    let client = serve(held_up(&work, false).layer(IdempotencyLayer::unscoped(&locks).unwrap())).await;
    let first = tokio::spawn(client.post("/", "k", ""));
    work.begun().await;
    assert_eq!(locks.evict("idempotency//k", Eviction::because("test").unwrap().force()).await.unwrap(), 1);
    first.await.unwrap().assert_problem(500, "lease-lost");
    work.let_go();
    let next = client.post("/", "k", "").await;
    assert_eq!((next.text(), next.is_replayed()), ("run 2", false));
}
