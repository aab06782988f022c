//! The embedded store of **tenure**: locks between the processes of one machine, in a directory, nothing to install.
//!
//! The state of each lock ([`tenure_core::queue`]) lies in an LMDB file that the processes share. A claim tied to its
//! process ends with it, at once: liveness is a file lock, which the kernel drops however the process ends.
//!
//! Through the crate `tenure`, this is `tenure::embedded`:
//!
//! ```
//! # mod tenure { pub use tenure_core::*; pub use tenure_embedded as embedded; }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure::Locks;
//! use tenure::embedded::{Config, Embedded};
//!
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path().join("locks");
//! let locks = Locks::new(Embedded::open(Config::at(directory))?);
//! locks.lock("nightly-report").run(|_lease| async {
//!     // … one process at a time …
//! }).await?;
//! # Ok(()) }
//! ```
//!
//! What it promises and what it does not, its options, and how several users share one directory:
//! `docs/backends/embedded.md`.

#[cfg(not(target_os = "linux"))]
compile_error!("the embedded store stands on Linux: its boot clock, its file locks, its /proc");

mod backend;
mod batch;
mod config;
mod directory;
mod environment;
mod error;
mod examine;
mod fork;
mod header;
mod listeners;
mod liveness;
mod opening;
mod registry;
mod store;
mod store_thread;
mod wake;

pub use backend::Embedded;
pub use config::{Config, InvalidUrl};
pub use error::OpenError;
