//! [`IdempotencyService`]: the way of one request through the layer.
//!
//! Admits it (or passes it through, or refuses it) and reads it; what becomes of it then is the errand's. Owns no option:
//! those are the layer's.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tower_service::Service;

use crate::body::ReplayBody;
use crate::departure::Run;
use crate::errand::{BoxError, Errand, refuse};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::layer::Settings;
use crate::problem::Problem;

/// A service behind an [`IdempotencyLayer`](crate::IdempotencyLayer).
#[derive(Debug, Clone)]
pub struct IdempotencyService<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> IdempotencyService<S> {
    pub(crate) const fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }
}

impl<S, B, R> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError> + Send,
{
    type Response = Response<ReplayBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that was polled ready is the one to call; its clone may not be ready.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let settings = self.settings.clone();
        Box::pin(async move {
            match admit(&settings, request).await {
                Admission::Passes(request) => Ok(inner.call(request).await?.map(ReplayBody::inner)),
                Admission::Refused(problem) => Ok(refuse(problem)),
                Admission::Runs(request, errand) => {
                    let run = Run::start(|departure| errand.run(settings, inner, request, departure));
                    // Without a runtime nobody is left to read this, but the type asks for an answer.
                    run.await.unwrap_or_else(|| Ok(refuse(Problem::Closed)))
                }
            }
        })
    }
}

enum Admission<B> {
    Passes(Request<B>),
    Refused(Problem),
    Runs(Request<B>, Errand),
}

/// Decides what becomes of a request, and reads the body of one that is to be run once.
async fn admit<B>(settings: &Settings, request: Request<B>) -> Admission<B>
where
    B: Body + From<Bytes>,
    B::Error: Into<BoxError>,
{
    if request.method().is_safe() || request.method() == Method::CONNECT {
        return Admission::Passes(request);
    }
    let header = &settings.header;
    let key = match Key::read(request.headers(), header) {
        Ok(Some(key)) => key,
        Ok(None) if !settings.is_required => return Admission::Passes(request),
        Ok(None) => return Admission::Refused(Problem::KeyMissing(header.clone())),
        Err(why) => return Admission::Refused(Problem::KeyInvalid(header.clone(), why)),
    };
    let (parts, body) = request.into_parts();
    let scope = match &settings.scope {
        None => String::new(),
        // An empty scope would be that of a layer without one.
        Some(scope) => match scope(&parts).filter(|scope| !scope.is_empty()) {
            Some(scope) => scope,
            None => return Admission::Refused(Problem::NoScope),
        },
    };
    let body = match read_request(body, settings.request_body_max).await {
        Ok(body) => body,
        Err(problem) => return Admission::Refused(problem),
    };
    let errand = Errand { name: key.lock_name(&scope), fingerprint: Fingerprint::of(&parts, &body) };
    Admission::Runs(Request::from_parts(parts, body.into()), errand)
}

async fn read_request<B>(body: B, limit: usize) -> Result<Bytes, Problem>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    if body.size_hint().lower() > limit as u64 {
        return Err(Problem::RequestTooLarge { limit });
    }
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Problem::RequestTooLarge { limit }),
        Err(error) => {
            tracing::debug!(%error, "the body of a request could not be read");
            Err(Problem::RequestUnreadable)
        }
    }
}
