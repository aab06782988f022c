//! What only axum has: nested routers, and the extractor for the `Fencing-Token` header.
#![cfg(feature = "axum")]

mod common;

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::{post, put};
use common::{request, serve};
use http::{Method, StatusCode};
use tenure_core::{FencingToken, Locks};
use tenure_tower::{FENCING_TOKEN, Fenced, IdempotencyLayer, fencing_token_value};

/// Both nested routers see the path `/charge`. A key that was used for one of them must not be answered by the other.
#[tokio::test]
async fn nested_routers_are_told_apart() {
    let layer = IdempotencyLayer::unscoped(&Locks::in_memory()).unwrap();
    let api = |version: &'static str| {
        Router::new().route("/charge", post(move || async move { version })).layer(layer.clone())
    };
    let client = serve(Router::new().nest("/v1", api("one")).nest("/v2", api("two"))).await;
    assert_eq!(client.post("/v1/charge", "k", "").await.text(), "one");
    client.post("/v2/charge", "k", "").await.assert_problem(422, "key-reused");
    assert!(client.post("/v1/charge", "k", "").await.is_replayed());
}

#[tokio::test]
async fn a_resource_refuses_a_stale_token_and_a_request_without_one() {
    let highest = Arc::new(Mutex::new(FencingToken::new(0)));
    let write = move |Fenced(token): Fenced| async move {
        let mut highest = highest.lock().unwrap();
        if token < *highest {
            return StatusCode::PRECONDITION_FAILED;
        }
        *highest = token;
        StatusCode::NO_CONTENT
    };
    let read = |token: Option<Fenced>| async move { format!("{:?}", token.map(|Fenced(token)| token.get())) };
    let client = serve(Router::new().route("/", put(write).post(read))).await;
    let send = |method: Method, token: Option<&str>| {
        let mut request = request(method, "/", None, "");
        if let Some(token) = token {
            request.headers_mut().insert(FENCING_TOKEN, token.parse().unwrap());
        }
        client.send(request)
    };
    assert_eq!(send(Method::PUT, Some("34")).await.status, 204);
    assert_eq!(send(Method::PUT, Some("33")).await.status, 412);
    assert_eq!(send(Method::PUT, Some("34")).await.status, 204);
    send(Method::PUT, None).await.assert_problem(428, "fencing-token-missing");
    send(Method::PUT, Some("-1")).await.assert_problem(400, "fencing-token-invalid");
    assert_eq!(send(Method::POST, None).await.text(), "None");
    let value = fencing_token_value(FencingToken::new(7));
    assert_eq!(send(Method::POST, Some(value.to_str().unwrap())).await.text(), "Some(7)");
    send(Method::POST, Some("x")).await.assert_problem(400, "fencing-token-invalid");
}
