//! [`Fingerprint`]: tells whether two requests with one key are the same request.

use std::fmt;

use http::Uri;
use http::request::Parts;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A hash of what a request asks for: method, path with query, body. Headers are no part of it: a retry may come through
/// another proxy, with another trace id.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub(crate) fn of(parts: &Parts, body: &[u8]) -> Self {
        let uri = whole_uri(parts);
        let mut hash = Sha256::new();
        // Lengths go in front, so that no byte of one part can pass for a byte of the next.
        for part in [parts.method.as_str(), uri.path(), uri.query().unwrap_or_default()] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update(body);
        Self(hash.finalize().into())
    }

    pub(crate) fn to_hex(self) -> String {
        hex(&self.0)
    }
}

/// The path as the client wrote it. A router nested into another sees only its own part of the path, and two of them
/// would take `/v1/charge` and `/v2/charge` for the same.
fn whole_uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({})", &self.to_hex()[..8])
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
        write!(out, "{byte:02x}").expect("writing to a String cannot fail");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn of(method: &str, uri: &str, body: &str) -> String {
        let (parts, ()) = Request::builder().method(method).uri(uri).body(()).unwrap().into_parts();
        Fingerprint::of(&parts, body.as_bytes()).to_hex()
    }

    #[test]
    fn method_path_query_and_body_count_and_cannot_be_shifted_into_each_other() {
        let same = of("POST", "/a?b", "c");
        assert_eq!(same, of("POST", "http://elsewhere/a?b", "c"));
        for other in [
            of("PUT", "/a?b", "c"),
            of("POST", "/a", "c"),
            of("POST", "/a?bc", ""),
            of("POST", "/a?", "bc"),
            of("POST", "/a?b", "C"),
            of("POST", "/a%3Fb", "c"),
        ] {
            assert_ne!(same, other);
        }
    }
}
