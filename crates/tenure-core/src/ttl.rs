//! [`Ttl`]: the life of a grant without renewal, and the margin the holder keeps from its end.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::words::in_words;

/// How long a grant lives without renewal: 50 ms to 24 h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Duration", into = "Duration")]
pub struct Ttl(Duration);

/// Why a ttl was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a ttl must lie between 50ms and 24h, this one is {}", in_words(*.0))]
pub struct InvalidTtl(pub Duration);

impl Ttl {
    /// The shortest: below it, the drift margin and a network round trip leave nothing to work in.
    pub const MIN: Duration = Duration::from_millis(50);
    /// The longest: above it, a crashed holder blocks everybody for days.
    pub const MAX: Duration = Duration::from_secs(24 * 60 * 60);
    /// What a lock gets when nothing is said: 30 s.
    pub const DEFAULT: Self = Self(Duration::from_secs(30));

    /// Checks `duration` and takes it.
    ///
    /// # Errors
    /// [`InvalidTtl`] if it is outside [`MIN`](Self::MIN)..=[`MAX`](Self::MAX).
    pub const fn new(duration: Duration) -> Result<Self, InvalidTtl> {
        if duration.as_nanos() < Self::MIN.as_nanos() || duration.as_nanos() > Self::MAX.as_nanos() {
            return Err(InvalidTtl(duration));
        }
        Ok(Self(duration))
    }

    /// The duration.
    pub const fn get(self) -> Duration {
        self.0
    }
}

/// How much earlier than the store a holder considers `ttl` ended: 1 % for clocks that run at different speeds, and
/// 2 ms for the store's own rounding.
pub fn drift_margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

impl Default for Ttl {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&in_words(self.0))
    }
}

impl TryFrom<Duration> for Ttl {
    type Error = InvalidTtl;
    fn try_from(duration: Duration) -> Result<Self, InvalidTtl> {
        Self::new(duration)
    }
}

impl From<Ttl> for Duration {
    fn from(ttl: Ttl) -> Self {
        ttl.0
    }
}
