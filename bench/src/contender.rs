//! Who is measured, and how each talks to the server.

use serde::{Deserialize, Serialize};

/// A lock, or what people use as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Contender {
    /// This workspace, through `Locks`: token, line, renewal and all.
    Tenure,
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
    pub(crate) const ALL: [Self; 6] =
        [Self::Tenure, Self::Rslock, Self::Plain, Self::Counted, Self::RedisPy, Self::Redlock];
    /// Those that can wait for a lock.
    pub(crate) const WAITING: [Self; 4] = [Self::Tenure, Self::Rslock, Self::RedisPy, Self::Redlock];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tenure => "tenure",
            Self::Rslock => "rslock",
            Self::Plain => "plain",
            Self::Counted => "counted",
            Self::RedisPy => "redis-py",
            Self::Redlock => "redlock",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|contender| contender.name() == name)
    }

    /// The commands that this one sends. `INFO commandstats` also counts what scripts call; no contender's scripts call
    /// what it sends itself, so the calls of these are exactly the requests.
    pub(crate) const fn sends(self) -> &'static [&'static str] {
        match self {
            Self::Tenure | Self::Counted | Self::Redlock => &["evalsha", "eval"],
            Self::Rslock | Self::RedisPy => &["set", "evalsha", "eval"],
            Self::Plain => &["set", "del"],
        }
    }
}
