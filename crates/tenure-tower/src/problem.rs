//! [`Problem`]: what the layer itself answers with, as small JSON bodies (RFC 9457).
//!
//! Says what happened and whether to try again. Never says which store or which lock: that is for the log.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};

/// How long a client should wait before it tries again, in seconds.
const RETRY_AFTER_SECS: u64 = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    KeyMissing(HeaderName),
    KeyInvalid(HeaderName, String),
    /// The scope function could not tell whose request it is.
    NoScope,
    RequestTooLarge {
        limit: usize,
    },
    RequestUnreadable,
    /// Another request with this key is being worked on.
    InProgress,
    /// The key was used for another request.
    KeyReused,
    /// Done before, but the response could not be kept.
    ResponseNotKept {
        status: StatusCode,
    },
    /// The handler's response broke off while it was read.
    ResponseUnreadable,
    /// The store did not serve; nothing was run.
    StoreUnavailable,
    /// This process is shutting down; nothing was run.
    Closed,
    /// The run was cut short.
    LeaseLost,
    /// The store refused, or holds a record that is not ours.
    Misconfigured,
    #[cfg(feature = "axum")]
    TokenMissing,
    #[cfg(feature = "axum")]
    TokenInvalid(crate::InvalidFencingToken),
}

impl Problem {
    /// Status, the last part of the type, and what to tell people.
    fn parts(&self) -> (StatusCode, &'static str, String) {
        let (status, kind, detail) = match self {
            Self::KeyMissing(header) => {
                let detail = format!("This request must carry the header {header}, with a key of its own.");
                return (StatusCode::BAD_REQUEST, "key-missing", detail);
            }
            Self::KeyInvalid(header, why) => {
                let detail = format!("The header {header} was refused: {why}.");
                return (StatusCode::BAD_REQUEST, "key-invalid", detail);
            }
            Self::RequestTooLarge { limit } => {
                let detail =
                    format!("A request with an idempotency key may have a body of at most {limit} bytes.");
                return (StatusCode::PAYLOAD_TOO_LARGE, "request-too-large", detail);
            }
            Self::ResponseNotKept { status } => {
                let detail = format!(
                    "This request was done before and answered with status {}, but its response could not be kept. \
                     It was not done again.",
                    status.as_u16()
                );
                return (StatusCode::CONFLICT, "response-not-kept", detail);
            }
            Self::NoScope => (
                StatusCode::FORBIDDEN,
                "no-scope",
                "It is not known whose request this is, so its idempotency key cannot be told from another client's.",
            ),
            Self::RequestUnreadable => {
                (StatusCode::BAD_REQUEST, "request-unreadable", "The body could not be read.")
            }
            Self::InProgress => (
                StatusCode::CONFLICT,
                "in-progress",
                "A request with this idempotency key is being worked on. Try again for its response.",
            ),
            Self::KeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "key-reused",
                "This idempotency key was used for a request with another method, path or body. A new request needs a \
                 new key.",
            ),
            Self::ResponseUnreadable => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "response-unreadable",
                "The response broke off while it was made. Nothing was recorded: trying again does the request again.",
            ),
            Self::StoreUnavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "store-unavailable",
                "It cannot be told whether this request was done before. Nothing was done now; trying again with the \
                 same key is safe.",
            ),
            Self::Closed => (
                StatusCode::SERVICE_UNAVAILABLE,
                "closing",
                "This server is shutting down. Try again with the same key.",
            ),
            Self::LeaseLost => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "lease-lost",
                "The request was cut short, and may have been done in part. Nothing was recorded: trying again does \
                 the request again.",
            ),
            Self::Misconfigured => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "misconfigured",
                "Idempotency keys do not work on this server as it is set up.",
            ),
            #[cfg(feature = "axum")]
            Self::TokenMissing => (
                StatusCode::PRECONDITION_REQUIRED,
                "fencing-token-missing",
                "This request must carry the header fencing-token, with the token of the lock it is made under.",
            ),
            #[cfg(feature = "axum")]
            Self::TokenInvalid(why) => {
                let detail = format!("The header fencing-token was refused: {why}.");
                return (StatusCode::BAD_REQUEST, "fencing-token-invalid", detail);
            }
        };
        (status, kind, detail.into())
    }

    const fn is_worth_a_retry(&self) -> bool {
        matches!(self, Self::InProgress | Self::StoreUnavailable | Self::Closed)
    }

    pub(crate) fn into_response<B>(self, body: impl FnOnce(Bytes) -> B) -> Response<B> {
        let (status, kind, detail) = self.parts();
        let json = serde_json::json!({
            "type": format!("urn:tenure:problem:{kind}"),
            "title": status.canonical_reason().unwrap_or_default(),
            "status": status.as_u16(),
            "detail": detail,
        });
        let mut response = Response::new(body(json.to_string().into()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.is_worth_a_retry() {
            headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECS));
        }
        response
    }
}
