//! What a verb is told besides its claim: when it is, what the rules are, and whose process asks.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The moment of a verb, on the store's clocks.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// The clock that lifetimes are counted on, in microseconds. Never goes back.
    pub micros: u64,
    /// Tokens given out now are higher than this: the wall clock in microseconds, or the highest token of the store.
    pub token_floor: u64,
}

impl Now {
    pub(super) fn after(self, duration: Duration) -> u64 {
        self.micros.saturating_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) fn until(self, micros: u64) -> Duration {
        Duration::from_micros(micros.saturating_sub(self.micros))
    }

    pub(super) fn since(self, micros: u64) -> Duration {
        Duration::from_micros(self.micros.saturating_sub(micros))
    }
}

/// The lengths and limits of a line. Equal for all clients of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How long a waiting claim keeps its place without another attempt.
    pub line_ttl: Duration,
    /// The life of a grant made to a waiter that did not ask just now: it may be dead.
    pub first_ttl: Duration,
    /// How long an ended claim is remembered, if a late attempt of it may still arrive.
    pub tombstone_ttl: Duration,
    /// How many may wait for one lock.
    pub waiters_max: usize,
}

impl Rules {
    /// A waiter that does not look for 15 s loses its place; one that is granted has 5 s to look.
    pub const DEFAULT: Self = Self {
        line_ttl: Duration::from_secs(15),
        first_ttl: Duration::from_secs(5),
        tombstone_ttl: Duration::from_secs(60),
        waiters_max: 10_000,
    };
}

impl Default for Rules {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The process that a claim is tied to, where the store can tell whether it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Owner(pub u64);
