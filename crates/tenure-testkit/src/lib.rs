//! The conformance suite of tenure: what every store must do, as tests that can fail.
//!
//! Owns the suite ([`conformance`](mod@conformance)), the faults to put through the trait ([`wrappers`]), the checker of recorded grants
//! ([`history`]), and the broken backends that prove the suite can fail ([`known_bad`]). Knows no store but memory: a
//! store's crate implements [`Subject`] and writes one line.
//!
//! ```ignore
//! // tests/conformance.rs
//! tenure_testkit::conformance!(MySubject::start().await);
//! ```

#![forbid(unsafe_code)]

pub mod conformance;
mod dice;
pub mod history;
pub mod known_bad;
pub mod proxy;
pub mod scene;
pub mod servers;
mod subject;
pub mod wrappers;

pub use subject::{MemorySubject, Subject};
