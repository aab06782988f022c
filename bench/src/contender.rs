//! Who is measured, and how each talks to the server.

use serde::{Deserialize, Serialize};

/// A lock, or what people use as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Contender {
    /// This workspace, through `Locks`: token, line, renewal and all.
    Tenure,
    /// The same with `?hand_on=no`: every hand-over is the server's. Only where locks are handed over.
    TenureStored,
    /// `rslock` from crates.io.
    Rslock,
    /// `SET NX PX` and `DEL` through the client that tenure uses: no lock, but the floor of what two commands cost.
    Plain,
    /// The same client, and two scripts of two commands each: `INCR` and `SET NX PX`, `GET` and `DEL`. The least that a
    /// lock with a token must do.
    Counted,
    /// The `Lock` of `redis-py`, its asyncio flavour.
    RedisPy,
    /// `redlock` from npm, over `ioredis`.
    Redlock,
}

impl Contender {
    /// Those that are measured without contention.
    pub(crate) const UNCONTENDED: [Self; 6] =
        [Self::Tenure, Self::Rslock, Self::Plain, Self::Counted, Self::RedisPy, Self::Redlock];
    /// Those that can wait for a lock.
    pub(crate) const WAITING: [Self; 4] = [Self::Tenure, Self::Rslock, Self::RedisPy, Self::Redlock];
    /// Those that are measured where everybody is at once in line again.
    pub(crate) const HANDED_OVER: [Self; 5] =
        [Self::Tenure, Self::TenureStored, Self::Rslock, Self::RedisPy, Self::Redlock];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tenure => "tenure",
            Self::TenureStored => "tenure-stored",
            Self::Rslock => "rslock",
            Self::Plain => "plain",
            Self::Counted => "counted",
            Self::RedisPy => "redis-py",
            Self::Redlock => "redlock",
        }
    }

    pub(crate) const fn is_tenure(self) -> bool {
        matches!(self, Self::Tenure | Self::TenureStored)
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::UNCONTENDED.into_iter().chain([Self::TenureStored]).find(|contender| contender.name() == name)
    }

    /// The commands that this one sends. `INFO commandstats` also counts what scripts call; no contender's scripts call
    /// what it sends itself, so the calls of these are exactly the requests.
    pub(crate) const fn sends(self) -> &'static [&'static str] {
        match self {
            Self::Tenure | Self::TenureStored | Self::Counted | Self::Redlock => &["evalsha", "eval"],
            Self::Rslock | Self::RedisPy => &["set", "evalsha", "eval"],
            Self::Plain => &["set", "del"],
        }
    }
}
