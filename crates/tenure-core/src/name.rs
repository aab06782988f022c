//! [`LockName`]: what users call a lock, checked once at the edge.
//!
//! Owns the rules for names and the injective encoding that backends build keys with. Knows nothing of any store.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// The name of a lock: 1 to 256 bytes of UTF-8 without control characters.
///
/// Names are compared byte for byte: `Orders` and `orders` are two locks, and so are the composed and the decomposed
/// spelling of `é`. A slash has no meaning to tenure except as the joint between a namespace and a name.
///
/// ```
/// use tenure_core::LockName;
///
/// let name: LockName = "orders/1001".parse()?;
/// assert_eq!(name.as_str(), "orders/1001");
/// assert!("".parse::<LockName>().is_err());
/// # Ok::<(), tenure_core::InvalidName>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LockName(Arc<str>);

/// Why a name was refused. Nothing was sent to any store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// The name has no characters at all.
    #[error("a lock name must not be empty")]
    Empty,
    /// The name is longer than [`NAME_BYTES_MAX`].
    #[error("a lock name may have at most {NAME_BYTES_MAX} bytes, this one has {bytes}")]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// The name contains a control character.
    #[error("a lock name must not contain control characters, this one has {character:?} at byte {at}")]
    ControlCharacter {
        /// The offender.
        character: char,
        /// Where it stands.
        at: usize,
    },
}

impl LockName {
    /// Checks `name` and takes it.
    ///
    /// # Errors
    /// [`InvalidName`] if it is empty, too long, or holds a control character.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidName> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(InvalidName::Empty);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(InvalidName::TooLong { bytes: name.len() });
        }
        if let Some((at, character)) = name.char_indices().find(|(_, c)| c.is_control()) {
            return Err(InvalidName::ControlCharacter { character, at });
        }
        Ok(Self(name.into()))
    }

    /// The name as its user wrote it, namespace included.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name with every byte that `keep` declines, and `%` itself, written as `%XX`.
    ///
    /// Injective: two names never encode to the same text, whatever `keep` is. Backends build their keys from it.
    pub fn encoded(&self, keep: impl Fn(u8) -> bool) -> String {
        use fmt::Write;
        let mut out = String::with_capacity(self.0.len() + 8);
        for byte in self.0.bytes() {
            if byte.is_ascii() && byte != b'%' && keep(byte) {
                out.push(char::from(byte));
            } else {
                write!(out, "%{byte:02X}").expect("writing to a String cannot fail");
            }
        }
        out
    }

    /// The name that [`encoded`](Self::encoded) made `text` from.
    ///
    /// # Errors
    /// `None` when `text` is no encoding of a valid name: someone else's key.
    pub fn decoded(text: &str) -> Option<Self> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let [first, tail @ ..] = rest {
            rest = if *first == b'%' {
                let hex = std::str::from_utf8(tail.get(..2)?).ok()?;
                bytes.push(u8::from_str_radix(hex, 16).ok()?);
                &tail[2..]
            } else {
                bytes.push(*first);
                tail
            };
        }
        Self::new(String::from_utf8(bytes).ok()?).ok()
    }

    /// This name inside the namespace `prefix`.
    pub(crate) fn within(&self, prefix: &str) -> Result<Self, InvalidName> {
        Self::new(format!("{prefix}/{}", self.0))
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl std::str::FromStr for LockName {
    type Err = InvalidName;
    fn from_str(name: &str) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

impl TryFrom<String> for LockName {
    type Error = InvalidName;
    fn try_from(name: String) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

impl From<LockName> for String {
    fn from(name: LockName) -> Self {
        name.0.as_ref().into()
    }
}

/// What may stand where a lock's name is asked for: text, checked when the lock is used, or a [`LockName`].
pub trait IntoLockName {
    /// The checked name.
    ///
    /// # Errors
    /// [`InvalidName`] if the text is not a valid name.
    fn into_lock_name(self) -> Result<LockName, InvalidName>;
}

impl IntoLockName for LockName {
    fn into_lock_name(self) -> Result<LockName, InvalidName> {
        Ok(self)
    }
}

impl IntoLockName for &LockName {
    fn into_lock_name(self) -> Result<LockName, InvalidName> {
        Ok(self.clone())
    }
}

impl IntoLockName for &str {
    fn into_lock_name(self) -> Result<LockName, InvalidName> {
        LockName::new(self)
    }
}

impl IntoLockName for String {
    fn into_lock_name(self) -> Result<LockName, InvalidName> {
        LockName::new(self)
    }
}

impl IntoLockName for &String {
    fn into_lock_name(self) -> Result<LockName, InvalidName> {
        LockName::new(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_bounded_and_printable() {
        assert_eq!(LockName::new(""), Err(InvalidName::Empty));
        assert_eq!(LockName::new("x".repeat(257)), Err(InvalidName::TooLong { bytes: 257 }));
        assert!(LockName::new("x".repeat(256)).is_ok());
        for bad in ["a\nb", "a\0b", "\u{7f}", "a\u{85}"] {
            assert!(matches!(LockName::new(bad), Err(InvalidName::ControlCharacter { .. })), "{bad:?}");
        }
        assert!(LockName::new("{}%*?[]/ \u{1F512}").is_ok());
    }

    proptest! {
        #[test]
        fn encoding_is_injective_and_stays_in_its_alphabet(a in "\\PC{1,60}", b in "\\PC{1,60}") {
            let keep = |byte: u8| byte.is_ascii_alphanumeric();
            let (a, b) = (LockName::new(a).unwrap(), LockName::new(b).unwrap());
            prop_assert_eq!(a == b, a.encoded(keep) == b.encoded(keep));
            prop_assert!(a.encoded(keep).bytes().all(|byte| byte == b'%' || keep(byte)));
            prop_assert_eq!(LockName::decoded(&a.encoded(keep)), Some(a.clone()));
            prop_assert_eq!(LockName::decoded(&a.encoded(|_| true)), Some(a));
        }
    }
}
