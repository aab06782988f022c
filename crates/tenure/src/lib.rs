//! **tenure** lets one party at a time, among many processes on many machines, do a thing.
//!
//! This crate is the door: everything of [`tenure_core`], the stores that were compiled in (one feature each), and
//! [`connect`], which picks one by its URL. It holds no logic of its own.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = tenure::connect("memory:").await?;
//! let token = locks.lock("orders/1001").run(|lease| async move { lease.token() }).await?;
//! # let _ = token;
//! # Ok(()) }
//! ```
//!
//! | feature | URL | store |
//! |---|---|---|
//! | (always) | `memory:` | this process alone; not on the command line |
//! | `embedded` (default) | `file:/var/lock/tenure` | the processes of this machine, nothing to install |
//! | `redis` | `redis://host:6379`, `rediss://…`, `unix:…` | one Redis or Valkey server |
//! | `redis` | `redis+sentinel://host1,host2/NAME` | the primary that the sentinels name |
//! | `redis` | `redis+cluster://host1,host2` | a cluster that these hosts are of |

#![forbid(unsafe_code)]

mod url;

use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use tenure_core::*;
#[cfg(feature = "embedded")]
pub use tenure_embedded as embedded;
#[cfg(feature = "redis")]
pub use tenure_redis as redis;

pub use crate::url::StoreUrl;

/// The URL schemes of the stores that were compiled in.
pub const STORES: &[&str] = &[
    #[cfg(feature = "embedded")]
    "file",
    "memory",
    #[cfg(feature = "redis")]
    "redis",
];

/// A client of the store at `url`, such as `file:/var/lock/tenure`.
///
/// # Errors
/// [`Error::Refused`] if the URL names no store that was compiled in, or one that cannot work as it is set up;
/// [`Error::Unavailable`] if the store does not serve.
///
/// # Panics
/// Outside of a Tokio runtime.
pub async fn connect(url: &str) -> Result<Locks> {
    Ok(Connected::to(&StoreUrl::new(url)).await?.locks)
}

/// A client, and what a program that starts others on its behalf must know beyond it.
#[derive(Debug)]
pub struct Connected {
    /// The client.
    pub locks: Locks,
    /// Which kind of store: one of [`STORES`].
    pub kind: &'static str,
    /// Claims tied to this process live as long as any process has this file open: hand it to one that must outlive
    /// this one, and to nobody else. Only the embedded store has it.
    pub liveness: Option<OwnedFd>,
    /// Finds out what can be found out about the store.
    pub examiner: Option<Arc<dyn Examine>>,
}

impl Connected {
    /// Connects to the store at `url`.
    ///
    /// # Errors
    /// As [`connect`].
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub async fn to(url: &StoreUrl) -> Result<Self> {
        match kind(url) {
            Some("memory") if url.rest().is_empty() => Ok(Self::new("memory", Memory::new(), None)),
            Some("memory") => Err(misconfigured(format!("memory: takes nothing after it, this is {url}"))),
            #[cfg(feature = "embedded")]
            Some("file") => {
                let config = url.expose().parse::<tenure_embedded::Config>();
                let config = config.map_err(|invalid| misconfigured(format!("{url}: {invalid}")))?;
                let store =
                    tenure_embedded::Embedded::open(config).map_err(|error| failed(url, error.into()))?;
                let liveness = store.liveness_fd().try_clone_to_owned().ok();
                let examiner = Arc::new(store.clone());
                Ok(Self { liveness, ..Self::new("file", store, Some(examiner)) })
            }
            #[cfg(feature = "redis")]
            Some("redis") => {
                let mut config =
                    tenure_redis::RedisConfig::from_url(url.expose()).map_err(|error| failed(url, error))?;
                config.password = url.expose_password().map(Into::into);
                let store = tenure_redis::Redis::connect(config).await.map_err(|error| failed(url, error))?;
                let examiner = Arc::new(store.clone());
                Ok(Self::new("redis", store, Some(examiner)))
            }
            _ => Err(unknown(url)),
        }
    }

    fn new(kind: &'static str, backend: impl Backend, examiner: Option<Arc<dyn Examine>>) -> Self {
        Self { locks: Locks::new(backend), kind, liveness: None, examiner }
    }
}

/// What a store that could not be opened said.
#[cfg(any(feature = "embedded", feature = "redis"))]
fn failed(url: &StoreUrl, cause: StoreError) -> Error {
    let store = url.to_string().into();
    match cause {
        StoreError::Refused(refusal) if refusal.kind != RefusalKind::Unavailable => {
            Error::Refused { lock: None, store: Some(store), refusal }
        }
        cause => Error::Unavailable { lock: None, store, cause },
    }
}

/// Which kind of store it is, compiled in or not.
fn kind(url: &StoreUrl) -> Option<&'static str> {
    match url.scheme()? {
        "memory" => Some("memory"),
        "file" => Some("file"),
        "redis" | "rediss" | "valkey" | "valkeys" | "unix" | "redis+unix" | "valkey+unix" => Some("redis"),
        "redis+sentinel" | "rediss+sentinel" | "valkey+sentinel" | "valkeys+sentinel" => Some("redis"),
        "redis+cluster" | "rediss+cluster" | "valkey+cluster" | "valkeys+cluster" => Some("redis"),
        _ => None,
    }
}

/// What is wrong with a URL that names no store of this build.
fn unknown(url: &StoreUrl) -> Error {
    let advice = match kind(url) {
        Some("file") => "this build lacks the cargo feature `embedded`".into(),
        Some(feature) => format!("this build lacks the cargo feature `{feature}`"),
        None if url.expose().starts_with(['/', '.', '~']) => {
            format!("the store in a directory is written file:{url}")
        }
        None => {
            let between_processes = STORES.iter().filter(|kind| **kind != "memory");
            let known: String = between_processes.map(|kind| format!("{kind}:, ")).collect();
            format!("this build has {known}and memory: within one process")
        }
    };
    let shown = if url.expose().is_empty() { "an empty URL".into() } else { url.to_string() };
    misconfigured(format!("no store is known for {shown}: {advice}"))
}

fn misconfigured(message: String) -> Error {
    let kind = RefusalKind::Configuration;
    Error::Refused { lock: None, store: None, refusal: Refusal { kind, message } }
}

/// The examples of the README, compiled and run as they stand there.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Those of the pages about stores, compiled.
#[cfg(all(doctest, feature = "embedded"))]
#[doc = include_str!("../../../docs/backends/embedded.md")]
struct EmbeddedPage;

#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../../../docs/backends/redis.md")]
struct RedisPage;

#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../../../docs/backends/redis-cluster.md")]
struct ClusterPage;

#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../../../docs/backends/redis-sentinel.md")]
struct SentinelPage;

#[cfg(test)]
mod tests {
    use super::*;

    /// It said that this build has file: and memory:, which left its reader looking for another build.
    #[test]
    fn a_store_that_was_not_compiled_in_names_its_feature() {
        for (url, feature) in [("redis://h", "redis"), ("redis+unix:///s", "redis"), ("file:/x", "embedded")]
        {
            let error = unknown(&StoreUrl::new(url)).to_string();
            assert!(error.contains(&format!("cargo feature `{feature}`")), "{error}");
        }
    }
}
