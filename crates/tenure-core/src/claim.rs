//! [`Claim`]: one party's bid for a lock, held or waiting.
//!
//! Owns the parsed parts of a bid (id, mode, tie, label, reason). What becomes of a claim is the store's business.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::entropy::Entropy;
use crate::name::LockName;
use crate::ttl::Ttl;

/// The longest label, in bytes.
pub const LABEL_BYTES_MAX: usize = 128;
/// The longest reason, in bytes.
pub const REASON_BYTES_MAX: usize = 1024;

/// One party's bid for a lock. The same claim is attempted, granted, renewed and released; a new acquisition is a new
/// claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The lock it bids for.
    pub name: LockName,
    /// Tells this claim from every other, ever.
    pub id: ClaimId,
    /// How it wants to hold the lock.
    pub mode: Mode,
    /// How long a grant lives without renewal.
    pub ttl: Ttl,
    /// What ends it besides the ttl.
    pub tie: Tie,
    /// Who bids, for people to read.
    pub label: Label,
    /// Why, for people to read.
    pub reason: Option<Reason>,
}

/// The random secret id of a claim: who knows it may renew and release the claim.
///
/// Chosen by the client before the first request, so that a request may be repeated without harm. `Debug` and
/// `Display` show only a [fingerprint](Self::fingerprint).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClaimId([u8; 16]);

impl ClaimId {
    /// Draws a new one.
    pub fn draw(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0; 16];
        entropy.fill(&mut bytes);
        Self(bytes)
    }

    /// The id with these bytes: one that was stored before.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes. A secret.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The whole id as 32 hexadecimal digits. A secret.
    pub fn to_hex(self) -> String {
        use fmt::Write;
        self.0.iter().fold(String::with_capacity(32), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("writing to a String cannot fail");
            hex
        })
    }

    /// The id that [`to_hex`](Self::to_hex) wrote, or `None` if `hex` is none.
    pub fn from_hex(hex: &str) -> Option<Self> {
        if hex.len() != 32 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 16];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Eight hexadecimal digits that tell claims apart in tables and logs and give nothing of the id away.
    pub fn fingerprint(&self) -> String {
        // FNV-1a, folded to 32 bits: 96 of the id's 128 bits stay unknown to whoever reads it.
        let hash = self
            .0
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
        format!("{:08x}", (hash >> 32) ^ (hash & 0xffff_ffff))
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.fingerprint())
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimId({self})")
    }
}

/// How a claim wants to hold its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Together with other shared claims, never beside an exclusive one.
    Shared,
    /// `n` of the `of` permits that the lock has.
    Permits {
        /// How many this claim takes.
        n: u32,
        /// How many there are; equal for all claims of the lock.
        of: u32,
    },
    /// Alone, to do a thing once and record its result.
    Once,
}

impl Mode {
    /// What kind of lock the mode makes its name. Claims of different shapes cannot share a name.
    pub const fn shape(self) -> Shape {
        match self {
            Self::Exclusive | Self::Shared => Shape::Lock,
            Self::Permits { of, .. } => Shape::Permits { of },
            Self::Once => Shape::Once,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Permits { n, of } => write!(f, "{n}/{of} permits"),
            Self::Once => f.write_str("once"),
        }
    }
}

/// What a name is used as, fixed while anyone holds or waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Exclusive and shared claims.
    Lock,
    /// A number of permits.
    Permits {
        /// How many there are.
        of: u32,
    },
    /// Something done once.
    Once,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock => f.write_str("a lock (exclusive or shared)"),
            Self::Permits { of } => write!(f, "{of} permits"),
            Self::Once => f.write_str("a do-once"),
        }
    }
}

/// What ends a claim besides its ttl.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tie {
    /// The end of the process, where the store can see it.
    Process,
    /// Nothing: the claim lives on until its ttl ends, also without its process.
    Ttl,
}

/// Why a label or a reason was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a {what} may have at most {max} bytes and no control characters")]
pub struct InvalidText {
    what: &'static str,
    max: usize,
}

fn checked(text: &str, what: &'static str, max: usize) -> Result<Arc<str>, InvalidText> {
    if text.len() > max || text.chars().any(char::is_control) {
        return Err(InvalidText { what, max });
    }
    Ok(text.into())
}

macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `text` and takes it.
            ///
            /// # Errors
            /// [`InvalidText`] if it is too long or holds a control character.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidText> {
                checked(text.as_ref(), $what, $max).map(Self)
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidText;
            fn try_from(text: String) -> Result<Self, InvalidText> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(text: $name) -> Self {
                text.0.as_ref().into()
            }
        }
    };
}

text!(
    /// Who holds or waits, for people to read: at most 128 bytes, by default `host/pid/program`.
    Label, "label", LABEL_BYTES_MAX
);
text!(
    /// Why a lock is held or a claim evicted, for people to read: at most 1 KiB.
    Reason, "reason", REASON_BYTES_MAX
);

impl Label {
    /// `host/pid/program`, cut to fit.
    pub fn of_this_process() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let program = std::env::current_exe()
            .ok()
            .and_then(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "unknown".into());
        let mut text = format!("{host}/{}/{program}", std::process::id());
        text.retain(|c| !c.is_control());
        while text.len() > LABEL_BYTES_MAX {
            text.pop();
        }
        Self(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::SystemEntropy;

    #[test]
    fn ids_survive_hex_and_keep_their_secret() {
        let id = ClaimId::draw(&SystemEntropy);
        assert_eq!(ClaimId::from_hex(&id.to_hex()), Some(id));
        assert!(!format!("{id:?} {id}").contains(&id.to_hex()[..16]));
        assert_eq!(ClaimId::from_hex("+1"), None);
        assert_eq!(ClaimId::from_hex(&"+".repeat(32)), None);
    }

    #[test]
    fn text_is_bounded() {
        assert!(Label::new("x".repeat(129)).is_err());
        assert!(Reason::new("a\nb").is_err());
        assert!(Reason::new("x".repeat(1024)).is_ok());
        assert!(!Label::of_this_process().as_str().is_empty());
    }
}
