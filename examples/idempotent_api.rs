//! An HTTP API whose clients may send a request twice and are charged once.
//!
//! ```sh
//! cargo run -p tenure-examples --bin idempotent_api            # or with an address: … -- 127.0.0.1:0
//! curl -i 127.0.0.1:3000/charges -H 'authorization: Bearer key-of-anna' -H 'idempotency-key: 7' -d '{"cents": 1250}' \
//!      -H 'content-type: application/json'
//! ```
//! Send it again: the same receipt, and `idempotency-replayed: true`. Send other cents with the same key: 422.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{Extension, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tenure::{Lease, Locks};
use tenure_tower::IdempotencyLayer;
use tokio::net::TcpListener;

/// Who is asking, as found out by [`authenticate`].
#[derive(Debug, Clone)]
struct Account(&'static str);

#[derive(Debug, Deserialize)]
struct Charge {
    cents: u64,
}

#[derive(Debug, Serialize)]
struct Receipt {
    number: u64,
    account: &'static str,
    cents: u64,
    /// The run's own token: for a ledger that refuses a run that was overtaken.
    token: u64,
}

async fn charge(
    State(receipts): State<Arc<AtomicU64>>,
    Extension(account): Extension<Account>,
    Extension(lease): Extension<Lease>,
    Json(charge): Json<Charge>,
) -> (StatusCode, Json<Receipt>) {
    let number = receipts.fetch_add(1, Ordering::SeqCst) + 1;
    let token = lease.token().get();
    (StatusCode::CREATED, Json(Receipt { number, account: account.0, cents: charge.cents, token }))
}

/// Finds out who is asking. In earnest, this looks into a database; it does not believe what a client says it is.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let key = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let account = match key {
        Some("Bearer key-of-anna") => Account("anna"),
        Some("Bearer key-of-bert") => Account("bert"),
        _ => return Err(StatusCode::UNAUTHORIZED),
    };
    request.extensions_mut().insert(account);
    Ok(next.run(request).await)
}

fn app(locks: &Locks) -> tenure::Result<Router> {
    // Anna's key 7 and Bert's key 7 are two keys. Without this, one could be shown the other's receipt.
    let idempotency = IdempotencyLayer::scoped(locks, |request| {
        request.extensions.get::<Account>().map(|account| account.0.to_owned())
    })?
    .required()
    .wait(Duration::from_secs(10))
    .keep(Duration::from_secs(24 * 60 * 60));
    Ok(Router::new()
        .route("/charges", post(charge))
        .with_state(Arc::default())
        // The last layer is the outermost: authentication comes first.
        .layer(idempotency)
        .layer(from_fn(authenticate)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = std::env::var("TENURE_STORE").unwrap_or_else(|_| "memory:".into());
    let locks = tenure::connect(&store).await?;
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(&locks)?)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    // Runs that their clients left behind may still hold locks: give them back rather than let them expire.
    locks.close(Duration::from_secs(5)).await?;
    Ok(())
}
