//! Locks in Redis and Valkey, for **tenure**: handed over, not raced for.
//!
//! One round trip to take a lock, one to give it back, one command per hand-over however many wait. Waiters stand in
//! a line and are told by a push; a push is dated, never trusted. The page `docs/backends/redis.md` says what is
//! guaranteed, what can go wrong, and what is written where; `docs/backends/redis-sentinel.md` what is different with
//! sentinels, `docs/backends/redis-cluster.md` what in a cluster.
//!
//! Through the crate `tenure`, with its feature `redis`, this is `tenure::redis`:
//!
//! ```no_run
//! # mod tenure { pub use tenure_core::*; pub use tenure_redis as redis; }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure::Locks;
//! use tenure::redis::{Redis, RedisConfig};
//!
//! let locks = Locks::new(Redis::connect(RedisConfig::from_url("redis://127.0.0.1:6379")?).await?);
//! locks.lock("orders/1001").run(|lease| async move {
//!     println!("one party at a time; send {} along with every write", lease.token());
//! }).await?;
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

mod attention;
mod backend;
mod batch;
mod cluster;
mod config;
mod dating;
#[cfg(test)]
mod differential;
mod error;
mod examine;
pub mod fence;
mod handing_on;
mod keys;
mod native;
mod newcomers;
mod place;
mod pushes;
mod renewals;
mod reply;
mod rights;
mod scripts;
mod sentinel;
mod server;
mod stream;
mod succession;
mod supervisor;
mod trial;

pub use backend::Redis;
pub use config::RedisConfig;
