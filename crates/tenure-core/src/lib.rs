//! The heart of **tenure**: what a distributed lock is, and the boundary every store stands behind.
//!
//! Most programs use the `tenure` crate, which adds the stores. Everything here works without any, on
//! [`Locks::in_memory`].
//!
//! # Which lock when
//!
//! | you want | take |
//! |---|---|
//! | one party at a time does a thing, start to end | [`lock(name).run(…)`](Lock::run) |
//! | the same, but skip it if somebody is at it already | [`lock(name).try_run(…)`](Lock::try_run) |
//! | hold it across functions, or in a struct | [`acquire`](Lock::acquire) and its [`Guard`] |
//! | many readers or one writer | [`.shared()`](Lock::shared) for the readers |
//! | at most *n* at a time | [`.permits(1, n)`](Lock::permits) |
//! | do a thing once, and share its result | [`once(name).run(…)`](DoOnce::run) |
//! | several locks as one | [`all([…])`](Locks::all) |
//! | one leader, and everybody sees who | [`election(name)`](Locks::election) |
//! | any of these without async | [`blocking`], with the same names |
//! | hand the lock to another process | [`Guard::detach`], [`Locks::adopt`] |
//!
//! # What is promised
//!
//! A lock is held for a term, its *ttl*, and renewed while its [`Guard`] lives. By the holder's own clock, its validity
//! ends a little before the store's: validity windows of two holders never overlap, and a holder is told *lost* before
//! its own ends. What no lock can promise is that a paused holder's writes, already sent, stop: for that, send the
//! [`FencingToken`] along and let the resource refuse a lower one than it has seen.
//!
//! # For those who write a store
//!
//! [`Backend`] is the boundary; [`queue`] is the state of a lock for stores that can keep a few bytes under a
//! transaction, and [`memory`] the smallest example.

#![forbid(unsafe_code)]

mod all;
mod backend;
pub mod blocking;
mod by_claim;
mod claim;
mod client;
pub mod clock;
mod detach;
mod election;
mod entropy;
mod error;
mod examine;
mod guarantee;
mod guard;
mod keeper;
mod lease;
mod listeners;
mod lock;
pub mod memory;
mod name;
mod once;
mod pending;
pub mod queue;
mod stats;
mod token;
mod ttl;
mod waiting;
mod words;

pub use async_trait::async_trait;
pub use bytes::Bytes;

pub use all::{All, AllGuard};
pub use backend::{
    Answer, Attempt, Backend, BoxFuture, Busy, Capabilities, Eviction, Fence, Grant, Holder, Line, LockPage,
    LockState, Refusal, RefusalKind, Released, Renewal, Settled, StoreError, Trail, Waiter, Wake, Why,
};
pub use by_claim::{ByClaim, IdHasher};
pub use claim::{
    Claim, ClaimId, InvalidText, LABEL_BYTES_MAX, Label, Mode, REASON_BYTES_MAX, Reason, Shape, Tie,
};
pub use client::{Locks, Seams};
pub use clock::{BootInstant, Clock};
pub use detach::{DetachedClaim, InvalidDetachedClaim};
pub use election::{Election, Leadership, Observation};
pub use entropy::{Entropy, SystemEntropy};
pub use error::{Error, Result};
pub use examine::{Examine, Finding, Severity, try_a_lock};
pub use guarantee::{Deployment, Fault, Guarantee, Promise, Verdict};
pub use guard::Guard;
pub use lease::{End, Lease, LeaseState};
pub use listeners::Listeners;
pub use lock::Lock;
pub use memory::Memory;
pub use name::{IntoLockName, InvalidName, LockName, NAME_BYTES_MAX};
pub use once::{DoOnce, OUTCOME_BYTES_MAX, Once, OnceStatus};
pub use stats::{Distribution, Stats};
pub use token::FencingToken;
pub use ttl::{InvalidTtl, Ttl, drift_margin};
pub use words::in_words;
