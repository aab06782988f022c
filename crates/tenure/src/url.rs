//! [`StoreUrl`]: where a store is, and the one place that knows how to keep its password out of sight.

use std::fmt;

/// The URL of a store. `Display` and `Debug` leave the password out.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    /// Takes any text; what is no URL is refused when connecting.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The store that needs no naming: a directory of this user's.
    pub fn usual() -> Self {
        Self::new("file:")
    }

    /// The whole text, password and all.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What stands before the first colon.
    pub fn scheme(&self) -> Option<&str> {
        self.0.split_once(':').map(|(scheme, _)| scheme)
    }

    /// What stands behind the first colon.
    pub fn rest(&self) -> &str {
        self.0.split_once(':').map_or("", |(_, rest)| rest)
    }

    /// Whether there is a password in it.
    pub fn has_password(&self) -> bool {
        self.password().is_some()
    }

    /// The same URL with `password`, unless it has one. Stores without a host have no use for any.
    #[must_use]
    pub fn with_password(&self, password: &str) -> Self {
        let Some(start) = self.authority().filter(|_| !self.has_password()) else {
            return self.clone();
        };
        let (head, tail) = self.0.split_at(start);
        let encoded: String = password.bytes().map(encode).collect();
        Self(match tail.split_once('@') {
            Some((user, host)) => format!("{head}{user}:{encoded}@{host}"),
            None => format!("{head}:{encoded}@{tail}"),
        })
    }

    fn authority(&self) -> Option<usize> {
        self.0.find("://").map(|at| at + 3)
    }

    /// Where the password stands. Too much rather than too little: up to the last `@`, so that a password with an
    /// unescaped slash or comma is not shown in part.
    fn password(&self) -> Option<std::ops::Range<usize>> {
        let start = self.authority()?;
        let end = self.0.rfind('@').filter(|end| *end > start)?;
        let colon = start + self.0[start..end].find(':')?;
        Some(colon + 1..end).filter(|range| !range.is_empty())
    }
}

/// One byte as it stands in a URL.
fn encode(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        char::from(byte).into()
    } else {
        format!("%{byte:02X}")
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.password() {
            Some(range) => write!(f, "{}***{}", &self.0[..range.start], &self.0[range.end..]),
            None => f.write_str(&self.0),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}
