//! The `Fencing-Token` request header: how the holder of a lock shows a service that it is not too late.
//!
//! Owns the header's syntax, and the extractor for axum. Which token was the highest so far is the resource's to
//! remember, where it can be compared and written in one step: in the database, beside the data.

use http::{HeaderMap, HeaderName, HeaderValue};
use tenure_core::FencingToken;

/// The header: the number of the grant under which the request is made, in decimal digits.
pub const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");

/// Why a `Fencing-Token` header was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidFencingToken {
    /// It stands there more than once, and which of them counts cannot be told.
    #[error("it was sent more than once")]
    Repeated,
    /// It is not a number of at most 64 bits in decimal digits.
    #[error("it must be a whole number in decimal digits, of at most 64 bits")]
    NotANumber,
}

/// The token that a request carries, if it carries one.
///
/// ```
/// use tenure_core::FencingToken;
/// use tenure_tower::{FENCING_TOKEN, fencing_token, fencing_token_value};
///
/// let mut headers = http::HeaderMap::new();
/// assert_eq!(fencing_token(&headers), Ok(None));
/// headers.insert(FENCING_TOKEN, fencing_token_value(FencingToken::new(34)));
/// assert_eq!(fencing_token(&headers), Ok(Some(FencingToken::new(34))));
/// ```
///
/// # Errors
/// [`InvalidFencingToken`] if it is not one number. Do not go on as if there were none.
pub fn fencing_token(headers: &HeaderMap) -> Result<Option<FencingToken>, InvalidFencingToken> {
    let mut values = headers.get_all(FENCING_TOKEN).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(InvalidFencingToken::Repeated);
    }
    let digits = value.to_str().map_err(|_| InvalidFencingToken::NotANumber)?;
    // `parse` alone would take a plus sign.
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InvalidFencingToken::NotANumber);
    }
    digits.parse().map(|number| Some(FencingToken::new(number))).map_err(|_| InvalidFencingToken::NotANumber)
}

/// The value of the header that carries `token`.
pub fn fencing_token_value(token: FencingToken) -> HeaderValue {
    HeaderValue::from(token.get())
}

#[cfg(feature = "axum")]
pub use extractor::{Fenced, FencingRejection};

#[cfg(feature = "axum")]
mod extractor {
    use axum::body::Body;
    use axum::extract::{FromRequestParts, OptionalFromRequestParts};
    use axum::response::{IntoResponse, Response};
    use http::request::Parts;
    use tenure_core::FencingToken;

    use super::fencing_token;
    use crate::problem::Problem;

    /// The token that a request carries: an extractor for axum.
    ///
    /// A request without one is refused with 428 (Precondition Required), a malformed one with 400. With
    /// `Option<Fenced>`, one without is let through.
    ///
    /// ```
    /// use axum::{Router, routing::put};
    /// use tenure_tower::Fenced;
    ///
    /// async fn write(Fenced(token): Fenced, text: String) {
    ///     // UPDATE document SET text = …, token = $token WHERE token <= $token
    /// #   let _ = (token, text);
    /// }
    /// let app: Router = Router::new().route("/document", put(write));
    /// # let _ = app;
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Fenced(pub FencingToken);

    /// What [`Fenced`] refuses a request with.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FencingRejection(Problem);

    fn read(parts: &Parts) -> Result<Option<Fenced>, FencingRejection> {
        match fencing_token(&parts.headers) {
            Ok(token) => Ok(token.map(Fenced)),
            Err(invalid) => Err(FencingRejection(Problem::TokenInvalid(invalid))),
        }
    }

    impl<S: Sync> FromRequestParts<S> for Fenced {
        type Rejection = FencingRejection;
        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, FencingRejection> {
            read(parts)?.ok_or(FencingRejection(Problem::TokenMissing))
        }
    }

    impl<S: Sync> OptionalFromRequestParts<S> for Fenced {
        type Rejection = FencingRejection;
        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, FencingRejection> {
            read(parts)
        }
    }

    impl IntoResponse for FencingRejection {
        fn into_response(self) -> Response {
            self.0.into_response(Body::from)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Result<Option<u64>, InvalidFencingToken> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(FENCING_TOKEN, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        fencing_token(&headers).map(|token| token.map(FencingToken::get))
    }

    #[test]
    fn a_token_is_one_whole_number() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["0"]), Ok(Some(0)));
        assert_eq!(read(&["18446744073709551615"]), Ok(Some(u64::MAX)));
        assert_eq!(read(&["7", "7"]), Err(InvalidFencingToken::Repeated));
        for bad in ["", "+7", "-7", "7.0", "0x7", "7 ", "seven", "18446744073709551616", "７"] {
            assert_eq!(read(&[bad]), Err(InvalidFencingToken::NotANumber), "{bad:?}");
        }
    }
}
