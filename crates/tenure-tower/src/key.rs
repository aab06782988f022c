//! The idempotency key as it is read from a request, and the lock name it becomes.
//!
//! Owns the rules for keys and the encoding. Whose key it is (the scope) comes from the layer.

use http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};

use crate::fingerprint::hex;

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 255;

/// Lock names that would be longer are hashed. Leaves room for the namespaces in front.
pub(crate) const LOCK_NAME_BYTES_MAX: usize = 160;

/// A key that a client chose: 1 to 255 printable ASCII characters, compared byte for byte. Quotes around it, as the
/// IETF draft writes them, are part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key(String);

impl Key {
    /// The key of a request, if it has one.
    ///
    /// # Errors
    /// What is wrong with it, for the client to read.
    pub(crate) fn read(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Self>, String> {
        let mut values = headers.get_all(name).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err("it was sent more than once".into());
        }
        let key = value.as_bytes();
        if key.is_empty() {
            return Err("it is empty".into());
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(format!("it may have at most {KEY_BYTES_MAX} bytes, this one has {}", key.len()));
        }
        match std::str::from_utf8(key) {
            Ok(key) if key.bytes().all(|byte| (b' '..=b'~').contains(&byte)) => Ok(Some(Self(key.into()))),
            _ => Err("it may hold printable ASCII characters only".into()),
        }
    }

    /// The name of the lock that stands for this key of this scope.
    ///
    /// Two pairs of scope and key never get the same name: the joint is the only slash in it. What would be too long
    /// becomes a SHA-256, which has no slash at all.
    pub(crate) fn lock_name(&self, scope: &str) -> String {
        let readable = format!("{}/{}", percent_encoded(scope), percent_encoded(&self.0));
        if readable.len() <= LOCK_NAME_BYTES_MAX {
            return readable;
        }
        let mut hash = Sha256::new();
        hash.update((scope.len() as u64).to_le_bytes());
        hash.update(scope);
        hash.update(&self.0);
        format!("sha256-{}", hex(&hash.finalize()))
    }
}

fn percent_encoded(text: &str) -> String {
    use std::fmt::Write;
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~@:+=".contains(&byte) {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("writing to a String cannot fail");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;
    use tenure_core::LockName;

    const NAME: HeaderName = HeaderName::from_static("idempotency-key");

    fn read(values: &[&[u8]]) -> Result<Option<Key>, String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(NAME, HeaderValue::from_bytes(value).unwrap());
        }
        Key::read(&headers, &NAME)
    }

    #[test]
    fn keys_are_bounded_printable_and_single() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[b"8e03978e-40d5"]), Ok(Some(Key("8e03978e-40d5".into()))));
        assert_eq!(read(&[b"\"quoted and spaced\""]), Ok(Some(Key("\"quoted and spaced\"".into()))));
        assert!(read(&[&[b'x'; 255]]).is_ok());
        let refused: [&[&[u8]]; 5] = [&[b""], &[&[b'x'; 256]], &[b"a\tb"], &["é".as_bytes()], &[b"a", b"a"]];
        for bad in refused {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_two_scopes_and_keys_share_a_lock(
            a in "[ -~]{1,255}", b in "[ -~]{1,255}", s in "\\PC{0,100}", t in "\\PC{0,100}", cut in 0usize..255,
        ) {
            let name = |scope: &str, key: &str| Key(key.into()).lock_name(scope);
            prop_assert_eq!(name(&s, &a) == name(&t, &b), (&s, &a) == (&t, &b));
            // Where the scope ends and the key begins matters, however long the two are.
            if let Some((head, tail)) = a.split_at_checked(cut.min(a.len() - 1)) {
                prop_assert_eq!(name(head, tail) == name("", &a), head.is_empty());
            }
            prop_assert!(name(&s, &a).len() <= LOCK_NAME_BYTES_MAX);
            prop_assert!(LockName::new(name(&s, &a)).is_ok());
        }
    }
}
