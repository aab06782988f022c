//! [`IdempotencyLayer`]: the options, each with its default, and the layer that carries them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION, CONTENT_TYPE,
    ETAG, EXPIRES, LAST_MODIFIED, LINK, LOCATION, VARY,
};
use http::request::Parts;
use http::{HeaderName, StatusCode};
use tenure_core::{DoOnce, Locks, OUTCOME_BYTES_MAX, Result};
use tower_layer::Layer;

use crate::key::LOCK_NAME_BYTES_MAX;
use crate::service::IdempotencyService;

/// The request header that makes a request one that may be sent twice.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The response header, `true`, that tells a repeated response from a first one.
pub const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// The response header that a handler's response carries if it will not be repeated: `false` if nothing was recorded and
/// another request with the key runs again, `without-body` if it was recorded that the request was done, but not the
/// response.
pub const IDEMPOTENCY_RECORDED: HeaderName = HeaderName::from_static("idempotency-recorded");

/// The largest response body that can be kept: what a store takes, less room for the headers.
pub const RESPONSE_BODY_BYTES_MAX: usize = OUTCOME_BYTES_MAX - 16 * 1024;

/// Those that describe the body, say where the result is, or rule caches.
const KEPT_HEADERS: [HeaderName; 12] = [
    CACHE_CONTROL,
    CONTENT_DISPOSITION,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_LOCATION,
    CONTENT_TYPE,
    ETAG,
    EXPIRES,
    LAST_MODIFIED,
    LINK,
    LOCATION,
    VARY,
];

type ScopeOf = dyn Fn(&Parts) -> Option<String> + Send + Sync;
type KeepsStatus = dyn Fn(StatusCode) -> bool + Send + Sync;

/// A tower layer that answers a repeated request with the first response.
///
/// Requests with a safe method (`GET`, `HEAD`, `OPTIONS`, `TRACE`), `CONNECT`, and requests without the header pass
/// through untouched. The others are read whole, up to [`request_body_max`](Self::request_body_max), and then:
///
/// | the key was | the request gets |
/// |---|---|
/// | never used | the handler's response; it is recorded if its [status](Self::keep_status) is to be kept |
/// | used by a request that is done | the recorded response, with `Idempotency-Replayed: true` |
/// | used by a request in progress | after [`wait`](Self::wait), the response of that; else 409 |
/// | used by a request with another method, path or body | 422, also while that one is in progress |
///
/// The handler runs in a task of its own: if its client goes away, it is finished and recorded nevertheless, and the
/// client's retry gets its response. Its request carries the [`Lease`](tenure_core::Lease) of the run as an extension.
///
/// # Errors as responses
/// Besides those: 400 for a key that is malformed, or missing though [`required`](Self::required); 403 if the scope
/// cannot be told; 413 for a request that is too large; 503 with `Retry-After` if the store does not serve (nothing was
/// run); 500 if the lease was lost and the handler was cut short. All are `application/problem+json`.
///
/// # Which requests it is for
/// Not for responses that never end (server-sent events, upgrades): a response is read before it is sent, up to the
/// limit. Not in front of authentication: who asks must be known, and be allowed to, before a record is given out.
#[derive(Debug, Clone)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct IdempotencyLayer {
    settings: Settings,
}

#[derive(Clone)]
pub(crate) struct Settings {
    /// In a namespace of their own.
    locks: Locks,
    /// `None` if all clients share their keys.
    pub(crate) scope: Option<Arc<ScopeOf>>,
    pub(crate) header: HeaderName,
    pub(crate) is_required: bool,
    pub(crate) wait: Duration,
    ttl: Duration,
    keep: Duration,
    pub(crate) request_body_max: usize,
    pub(crate) response_body_max: usize,
    pub(crate) kept_headers: Vec<HeaderName>,
    pub(crate) keeps_status: Arc<KeepsStatus>,
}

impl IdempotencyLayer {
    /// A layer whose keys count per scope: per tenant, per account, per API key.
    ///
    /// `scope` says whose request it is. **It must not trust the client**: take it from what authentication has put
    /// into the extensions. If it answers `None` or an empty text, the request is refused with 403.
    ///
    /// Records live in the namespace `idempotency` of `locks`. Services that share a store and must not share keys give
    /// it a namespace of their own first.
    ///
    /// # Errors
    /// [`Error::Refused`](tenure_core::Error::Refused) if the namespace of `locks` leaves no room for keys.
    pub fn scoped(
        locks: &Locks,
        scope: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::new(locks, Some(Arc::new(scope)))
    }

    /// A layer whose keys count for whoever sends them: **a client that uses or guesses another's key is answered with
    /// the other's response.** Only for services with one client, or whose responses hold nothing private.
    ///
    /// # Errors
    /// As [`scoped`](Self::scoped).
    pub fn unscoped(locks: &Locks) -> Result<Self> {
        Self::new(locks, None)
    }

    fn new(locks: &Locks, scope: Option<Arc<ScopeOf>>) -> Result<Self> {
        let locks = locks.namespace("idempotency")?;
        // The longest name there can be: refused now, or never.
        locks.namespace("x".repeat(LOCK_NAME_BYTES_MAX))?;
        Ok(Self {
            settings: Settings {
                locks,
                scope,
                header: IDEMPOTENCY_KEY,
                is_required: false,
                wait: Duration::ZERO,
                ttl: Duration::from_secs(30),
                keep: DoOnce::KEEP_DEFAULT,
                request_body_max: 1024 * 1024,
                response_body_max: RESPONSE_BODY_BYTES_MAX,
                kept_headers: KEPT_HEADERS.into(),
                keeps_status: Arc::new(keeps_status),
            },
        })
    }

    /// Refuse requests without the header with 400. Without this, they pass through.
    pub fn required(mut self) -> Self {
        self.settings.is_required = true;
        self
    }

    /// Another header than `Idempotency-Key`.
    pub fn header(mut self, header: HeaderName) -> Self {
        self.settings.header = header;
        self
    }

    /// How long a request waits for another with the same key to be done, in order to get its response: not at all if
    /// not said. If it is still not done then: 409.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// How long the lock of a run in progress lives without renewal: 30 s if not said. It is renewed while the handler
    /// runs; if the process dies, requests with the key get 409 for that long.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// How long a response is kept and repeated: 24 h if not said. A retry that comes later runs again.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.settings.keep = keep;
        self
    }

    /// The largest request body, in bytes: 1 MiB if not said. It is held in memory while the request is worked on; a
    /// larger one is refused with 413.
    pub fn request_body_max(mut self, bytes: usize) -> Self {
        self.settings.request_body_max = bytes;
        self
    }

    /// The largest response body that is kept, in bytes: [`RESPONSE_BODY_BYTES_MAX`] if not said, and never more.
    ///
    /// A larger one is passed on, marked `Idempotency-Recorded: without-body`. The request counts as done: a repetition
    /// does not run it again, and gets a 409 that says so. The same goes for a response with trailers.
    pub fn response_body_max(mut self, bytes: usize) -> Self {
        self.settings.response_body_max = bytes.min(RESPONSE_BODY_BYTES_MAX);
        self
    }

    /// Keep and repeat this response header too. Without this: those that describe the body, `Location`, `Link`, and
    /// those that rule caches. Think twice about `Set-Cookie`: it would lie in the store for as long as the record does.
    pub fn keep_header(mut self, header: HeaderName) -> Self {
        self.settings.kept_headers.push(header);
        self
    }

    /// Which responses are kept, by their status. If not said: all but 5xx, 408, 425 and 429, which ask to be tried again.
    /// One that is not kept is passed on, marked `Idempotency-Recorded: false`, and the next request runs again at once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
    /// # let locks = tenure_core::Locks::in_memory();
    /// // Let clients correct a request that was refused, under the same key.
    /// let layer = tenure_tower::IdempotencyLayer::unscoped(&locks)?.keep_status(|status| status.is_success());
    /// # let _ = layer;
    /// # Ok(()) }
    /// ```
    pub fn keep_status(mut self, keeps: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.settings.keeps_status = Arc::new(keeps);
        self
    }
}

fn keeps_status(status: StatusCode) -> bool {
    let asks_for_a_retry =
        matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS);
    !status.is_server_error() && !asks_for_a_retry
}

impl Settings {
    /// The run of the request with this lock name. Its reason, which others see while it is in progress, is the
    /// request's fingerprint.
    pub(crate) fn once(&self, name: &str, fingerprint: &str) -> DoOnce {
        self.locks.once(name).ttl(self.ttl).keep(self.keep).reason(fingerprint)
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, Arc::new(self.settings.clone()))
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("locks", &self.locks)
            .field("is_scoped", &self.scope.is_some())
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}
