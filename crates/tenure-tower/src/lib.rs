//! HTTP on top of **tenure**: requests that may be sent twice, and writes that may come late.
//!
//! * [`IdempotencyLayer`]: a tower layer for the [`Idempotency-Key`](IDEMPOTENCY_KEY) request header. The first response
//!   is recorded and repeated; the handler behind it runs once per key.
//! * [`fencing_token`], and with the feature `axum` the extractor `Fenced`: the [`Fencing-Token`](FENCING_TOKEN) request
//!   header, with which a service refuses a write of somebody who has lost the lock.
//!
//! # Whose key is it?
//!
//! **A key is chosen by a client. If two clients share the keys of one service, one of them can be answered with the
//! other's response.** So a layer is made with a function that says whose request this is, and a key counts only for
//! the same owner: [`IdempotencyLayer::scoped`]. It must look at something that the client cannot choose: what your
//! authentication left in the request's extensions, never a header that anybody can send.
//! [`IdempotencyLayer::unscoped`] is for services with one client.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, routing::post};
//! use tenure_core::Locks;
//! use tenure_tower::IdempotencyLayer;
//!
//! /// What the authentication in front of this put into the request.
//! #[derive(Clone)]
//! struct Tenant(String);
//!
//! let locks = Locks::in_memory();
//! let idempotency = IdempotencyLayer::scoped(&locks, |request| {
//!     request.extensions.get::<Tenant>().map(|tenant| tenant.0.clone())
//! })?;
//! let app: Router = Router::new().route("/charges", post(|| async { "charged" })).layer(idempotency);
//! # let _ = app;
//! # Ok(()) }
//! ```
//!
//! # What is promised, and what not
//!
//! At most one run per key is *recorded*; every later request with the same key, method, path and body is answered from
//! that record. A run that was cut short (this process died, or the lease was lost) may have had effects, and the next
//! request runs it again: a handler that must not repeat even those sends the token of its
//! [`Lease`](tenure_core::Lease), which the layer puts into the request's extensions, along with its writes.

#![forbid(unsafe_code)]

mod body;
mod departure;
mod errand;
mod fencing;
mod fingerprint;
mod key;
mod layer;
mod problem;
mod record;
mod service;

pub use body::ReplayBody;
pub use fencing::{FENCING_TOKEN, InvalidFencingToken, fencing_token, fencing_token_value};
#[cfg(feature = "axum")]
pub use fencing::{Fenced, FencingRejection};
pub use key::KEY_BYTES_MAX;
pub use layer::{
    IDEMPOTENCY_KEY, IDEMPOTENCY_RECORDED, IDEMPOTENCY_REPLAYED, IdempotencyLayer, RESPONSE_BODY_BYTES_MAX,
};
pub use service::IdempotencyService;

/// Compiles the code in the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/idempotency.md")]
struct Guide;
