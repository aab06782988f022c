//! [`Record`]: a response as it is kept at the store.
//!
//! Owns the layout. What is worth keeping is the service's to decide.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use tenure_core::OUTCOME_BYTES_MAX;

use crate::fingerprint::Fingerprint;

/// The first byte of every record. A record that begins with another was written by a newer version, or by somebody
/// else, and is not guessed at.
const LAYOUT: u8 = 1;

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Of the request: the key counts for no other.
    pub(crate) fingerprint: Fingerprint,
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    /// Absent if it was too large to keep, or not of a kind that can be.
    body: Option<Vec<u8>>,
}

impl Record {
    pub(crate) fn new(
        fingerprint: Fingerprint,
        status: StatusCode,
        headers: &HeaderMap,
        kept: &[HeaderName],
        body: Option<&Bytes>,
    ) -> Self {
        let headers = headers
            .iter()
            .filter(|(name, _)| kept.contains(name))
            .map(|(name, value)| (name.as_str().into(), value.as_bytes().into()))
            .collect();
        Self { fingerprint, status: status.as_u16(), headers, body: body.map(|body| body.to_vec()) }
    }

    /// The record as it is stored, and whether the body is in it. If the store would refuse it for its size, the body
    /// is left out, and the headers with it: what counts is that the request was done.
    pub(crate) fn encoded(mut self) -> (Bytes, bool) {
        let bytes = self.to_bytes();
        if bytes.len() <= OUTCOME_BYTES_MAX {
            return (bytes, self.body.is_some());
        }
        self.headers.clear();
        self.body = None;
        (self.to_bytes(), false)
    }

    fn to_bytes(&self) -> Bytes {
        let bytes = postcard::to_extend(self, vec![LAYOUT]);
        bytes.expect("a record has only parts that postcard can write, into memory").into()
    }

    /// The record that [`encoded`](Self::encoded) wrote; `None` if it is none.
    pub(crate) fn decoded(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [LAYOUT, rest @ ..] => postcard::from_bytes(rest).ok(),
            _ => None,
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The headers and the body, unless the body was not kept.
    pub(crate) fn into_parts(self) -> Option<(HeaderMap, Bytes)> {
        let body = self.body?;
        let headers = self.headers.into_iter().filter_map(|(name, value)| {
            Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_bytes(&value).ok()?))
        });
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value);
        }
        Some((map, body.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::{CONTENT_TYPE, LINK, SET_COOKIE};
    use proptest::prelude::*;

    fn fingerprint() -> Fingerprint {
        Fingerprint::of(&http::Request::new(()).into_parts().0, b"")
    }

    #[test]
    fn a_record_gives_back_status_chosen_headers_and_body() {
        let mut headers = HeaderMap::new();
        headers.append(CONTENT_TYPE, HeaderValue::from_bytes(b"text/plain; x=\xff").unwrap());
        headers.append(LINK, HeaderValue::from_static("<a>"));
        headers.append(LINK, HeaderValue::from_static("<b>"));
        headers.append(SET_COOKIE, HeaderValue::from_static("session=secret"));
        let body = Bytes::from_static(b"\0\xffbody");
        let record =
            Record::new(fingerprint(), StatusCode::CREATED, &headers, &[CONTENT_TYPE, LINK], Some(&body));
        let (bytes, has_body) = record.clone().encoded();
        assert!(has_body);
        let decoded = Record::decoded(&bytes).unwrap();
        assert_eq!(decoded, record);
        assert_eq!(decoded.status(), StatusCode::CREATED);
        headers.remove(SET_COOKIE);
        assert_eq!(decoded.into_parts(), Some((headers, body)));
    }

    #[test]
    fn what_the_store_would_refuse_is_kept_without_its_body() {
        let body = Bytes::from(vec![7; OUTCOME_BYTES_MAX]);
        let record = Record::new(fingerprint(), StatusCode::OK, &HeaderMap::new(), &[], Some(&body));
        let (bytes, has_body) = record.encoded();
        assert!(!has_body);
        let decoded = Record::decoded(&bytes).unwrap();
        assert_eq!((decoded.status(), decoded.into_parts()), (StatusCode::OK, None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_not_and_never_a_panic(mut bytes: Vec<u8>, is_ours: bool) {
            if let (true, Some(first)) = (is_ours, bytes.first_mut()) {
                *first = LAYOUT;
            }
            let _ = Record::decoded(&bytes).map(Record::into_parts);
        }
    }
}
