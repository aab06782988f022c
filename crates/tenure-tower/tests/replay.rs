//! What a client sees that sends a request twice, one after the other, over HTTP.

mod common;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{any, post};
use common::{Unmeasured, Work, request, serve};
use http::{HeaderName, Method, Request, Response, StatusCode};
use http_body_util::Full;
use tenure_core::{Lease, Locks};
use tenure_tower::{IdempotencyLayer, RESPONSE_BODY_BYTES_MAX};

/// A handler that tells its run and what it was sent.
fn echo(work: &Work) -> Router {
    let work = work.clone();
    let handler = |body: String| async move {
        Response::builder()
            .status(StatusCode::CREATED)
            .header("content-type", "text/x-echo")
            .header("location", "/charges/7")
            .header("set-cookie", "session=secret")
            .header("x-receipt", "r7")
            .body(Body::from(format!("run {} of {body}", work.count())))
            .unwrap()
    };
    Router::new().fallback(any(handler))
}

#[tokio::test]
async fn the_first_response_is_repeated() {
    let work = Work::new();
    let layer = IdempotencyLayer::unscoped(&Locks::in_memory()).unwrap();
    let client = serve(echo(&work).layer(layer.keep_header(HeaderName::from_static("x-receipt")))).await;
    let first = client.post("/charges?a=1", "k1", "ten").await;
    assert_eq!((first.status.as_u16(), first.text()), (201, "run 1 of ten"));
    assert_eq!(first.header("set-cookie"), Some("session=secret"));
    assert!(!first.is_replayed() && first.header("idempotency-recorded").is_none());
    for _ in 0..3 {
        let again = client.post("/charges?a=1", "k1", "ten").await;
        assert!(again.is_replayed());
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        for header in ["content-type", "location", "content-length", "x-receipt"] {
            assert_eq!(again.header(header), first.header(header), "{header}");
        }
        // A session must not lie in the store.
        assert_eq!(again.header("set-cookie"), None);
    }
    assert_eq!(client.post("/charges?a=1", "k2", "ten").await.text(), "run 2 of ten");
    assert_eq!(work.runs(), 2);
}

#[tokio::test]
async fn the_same_key_for_another_request_is_refused() {
    let work = Work::new();
    let client = serve(echo(&work).layer(IdempotencyLayer::unscoped(&Locks::in_memory()).unwrap())).await;
    assert_eq!(client.post("/charges", "k", "ten").await.status, 201);
    client.post("/charges", "k", "eleven").await.assert_problem(422, "key-reused");
    client.post("/refunds", "k", "ten").await.assert_problem(422, "key-reused");
    client.post("/charges?b", "k", "ten").await.assert_problem(422, "key-reused");
    let put = request(Method::PUT, "/charges", Some("k"), "ten");
    client.send(put).await.assert_problem(422, "key-reused");
    assert!(client.post("/charges", "k", "ten").await.is_replayed());
    assert_eq!(work.runs(), 1);
}

#[tokio::test]
async fn safe_methods_and_requests_without_a_key_pass_unless_it_is_required() {
    let work = Work::new();
    let locks = Locks::in_memory();
    let client = serve(echo(&work).layer(IdempotencyLayer::unscoped(&locks).unwrap())).await;
    for (run, (method, key)) in
        [(Method::GET, Some("k")), (Method::HEAD, Some("k")), (Method::GET, Some("k")), (Method::POST, None)]
            .into_iter()
            .enumerate()
    {
        assert_eq!(client.send(request(method, "/", key, "")).await.status, 201);
        assert_eq!(work.runs() as usize, run + 1);
    }
    let client = serve(echo(&work).layer(IdempotencyLayer::unscoped(&locks).unwrap().required())).await;
    client.send(request(Method::POST, "/", None, "")).await.assert_problem(400, "key-missing");
    assert_eq!(client.send(request(Method::GET, "/", None, "")).await.status, 201);
}

#[tokio::test]
async fn keys_that_are_none_are_refused_before_anything_is_done() {
    let work = Work::new();
    let client = serve(echo(&work).layer(IdempotencyLayer::unscoped(&Locks::in_memory()).unwrap())).await;
    for key in ["", &"x".repeat(256), "tab\there", "\u{fc}"] {
        client.post("/", key, "").await.assert_problem(400, "key-invalid");
    }
    let mut twice = request(Method::POST, "/", Some("a"), "");
    twice.headers_mut().append("idempotency-key", "b".parse().unwrap());
    client.send(twice).await.assert_problem(400, "key-invalid");
    assert_eq!(work.runs(), 0);
    // The longest, and one that becomes a lock name only by encoding.
    for key in [&"%/".repeat(127), "\"quoted {} % / key\""] {
        assert!(!client.post("/", key, "").await.is_replayed());
        assert!(client.post("/", key, "").await.is_replayed());
    }
}

/// Of two clients with the same key, neither may see what the other was answered.
#[tokio::test]
async fn a_key_counts_for_its_scope_alone() {
    let work = Work::new();
    let scope = |parts: &http::request::Parts| {
        parts.headers.get("x-authenticated-tenant").map(|tenant| tenant.to_str().unwrap().to_owned())
    };
    let client =
        serve(echo(&work).layer(IdempotencyLayer::scoped(&Locks::in_memory(), scope).unwrap())).await;
    let post = |tenant: Option<&'static str>, key: &str| {
        let mut post = request(Method::POST, "/", Some(key), "");
        if let Some(tenant) = tenant {
            post.headers_mut().insert("x-authenticated-tenant", tenant.parse().unwrap());
        }
        client.send(post)
    };
    assert_eq!(post(Some("anna"), "k").await.text(), "run 1 of ");
    assert_eq!(post(Some("bert"), "k").await.text(), "run 2 of ");
    assert_eq!(post(Some("anna"), "k").await.text(), "run 1 of ");
    // Nor by moving the joint between scope and key.
    assert_eq!(post(Some("a"), "b/k").await.text(), "run 3 of ");
    assert_eq!(post(Some("a/b"), "k").await.text(), "run 4 of ");
    post(None, "k").await.assert_problem(403, "no-scope");
    post(Some(""), "k").await.assert_problem(403, "no-scope");
    assert_eq!(work.runs(), 4);
}

#[tokio::test]
async fn responses_that_ask_for_a_retry_are_not_kept() {
    let work = Work::new();
    let counter = work.clone();
    let handler = || async move {
        match counter.count() {
            1 => (StatusCode::INTERNAL_SERVER_ERROR, "first"),
            2 => (StatusCode::SERVICE_UNAVAILABLE, "second"),
            3 => (StatusCode::TOO_MANY_REQUESTS, "third"),
            4 => (StatusCode::PAYMENT_REQUIRED, "fourth"),
            _ => (StatusCode::OK, "more"),
        }
    };
    let locks = Locks::in_memory();
    let app = Router::new().route("/", post(handler));
    let client = serve(app.clone().layer(IdempotencyLayer::unscoped(&locks).unwrap())).await;
    for status in [500, 503, 429] {
        let failed = client.post("/", "k", "").await;
        assert_eq!((failed.status.as_u16(), failed.header("idempotency-recorded")), (status, Some("false")));
    }
    assert_eq!(client.post("/", "k", "").await.text(), "fourth");
    assert_eq!(client.post("/", "k", "").await.text(), "fourth");
    assert_eq!(work.runs(), 4);
    // By option, another choice.
    let layer = IdempotencyLayer::unscoped(&locks.namespace("other").unwrap()).unwrap();
    let client = serve(app.layer(layer.keep_status(|status| status != StatusCode::OK))).await;
    for _ in 0..2 {
        assert!(!client.post("/", "k", "").await.is_replayed());
    }
    assert_eq!(work.runs(), 6);
}

#[tokio::test]
async fn requests_beyond_the_limit_are_refused_whether_they_tell_their_length_or_not() {
    let work = Work::new();
    let layer = IdempotencyLayer::unscoped(&Locks::in_memory()).unwrap().request_body_max(10);
    let client = serve(echo(&work).layer(layer)).await;
    client.post("/", "k", "eleven byte").await.assert_problem(413, "request-too-large");
    let unmeasured = |text: &'static str| {
        let (parts, body) = request(Method::POST, "/", Some("k"), text).into_parts();
        client.try_send(Request::from_parts(parts, Unmeasured(body)))
    };
    unmeasured("eleven byte").await.unwrap().assert_problem(413, "request-too-large");
    assert_eq!(work.runs(), 0);
    assert_eq!(unmeasured("ten bytes!").await.unwrap().text(), "run 1 of ten bytes!");
    assert!(client.post("/", "k", "ten bytes!").await.is_replayed());
}

/// A response that is too large to keep reaches its client whole. The request was done all the same, and is not done
/// again: a second charge would be worse than a missing receipt.
#[tokio::test]
async fn a_response_too_large_to_keep_is_passed_on_and_the_request_not_run_again() {
    for measured in [true, false] {
        let work = Work::new();
        let (counter, large) = (work.clone(), Bytes::from(vec![b'x'; RESPONSE_BODY_BYTES_MAX + 1]));
        let body = large.clone();
        let handler = move || async move {
            counter.count();
            if measured { Body::from(body) } else { Body::new(Unmeasured(Full::new(body))) }
        };
        let layer = IdempotencyLayer::unscoped(&Locks::in_memory()).unwrap();
        let client = serve(Router::new().route("/", post(handler)).layer(layer)).await;
        let first = client.post("/", "k", "").await;
        assert_eq!((first.status.as_u16(), &first.body), (200, &large));
        assert_eq!(first.header("idempotency-recorded"), Some("without-body"));
        let again = client.post("/", "k", "").await;
        again.assert_problem(409, "response-not-kept");
        assert!(again.is_replayed() && again.text().contains("status 200"));
        client.post("/", "k", "other").await.assert_problem(422, "key-reused");
        assert_eq!(work.runs(), 1);
    }
}

#[tokio::test]
async fn the_handler_gets_the_lease_of_its_run() {
    let handler = |request: axum::extract::Request| async move {
        let lease = request.extensions().get::<Lease>().unwrap();
        assert!(lease.is_held());
        format!("{} {}", lease.name(), lease.token())
    };
    let locks = Locks::in_memory().namespace("billing").unwrap();
    let app = Router::new().route("/", post(handler)).layer(IdempotencyLayer::unscoped(&locks).unwrap());
    let answer = serve(app).await.post("/", "k", "").await;
    assert!(answer.text().starts_with("billing/idempotency//k "), "{}", answer.text());
}

#[tokio::test]
async fn a_namespace_that_leaves_no_room_is_refused_at_the_start() {
    let locks = Locks::in_memory().namespace("x".repeat(100)).unwrap();
    assert!(IdempotencyLayer::unscoped(&locks).is_err());
    let locks = Locks::in_memory().namespace("x".repeat(80)).unwrap();
    assert!(IdempotencyLayer::unscoped(&locks).is_ok());
}
