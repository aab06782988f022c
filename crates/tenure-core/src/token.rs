//! [`FencingToken`]: the rising number of a grant.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of a grant. Of two grants of one lock, the later one has the higher token.
///
/// Send it along with every write to the protected resource, and let the resource refuse a token lower than the
/// highest it has seen: then a holder that was paused past its lease cannot overwrite what its successor wrote. No
/// lock service can promise that by itself.
///
/// A token is not a secret and does not prove who holds the lock. It fits into 53 bits until the year 2255, so JSON
/// and Lua carry it without loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
