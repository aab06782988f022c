//! [`Errand`]: a request that is to be run once, and the answer to it: live, or from the record.
//!
//! Owns what is recorded and what is told to the client. Waiting, renewing and losing are core's.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use tenure_core::{DoOnce, Error, Lease, Once, OnceStatus};
use tower_service::Service;

use crate::body::{self, Reading, ReplayBody};
use crate::departure::Departure;
use crate::fingerprint::Fingerprint;
use crate::layer::{IDEMPOTENCY_RECORDED, IDEMPOTENCY_REPLAYED, Settings};
use crate::problem::Problem;
use crate::record::Record;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request to be run once: under which lock, and how to tell it from others with the same key.
pub(crate) struct Errand {
    pub(crate) name: String,
    pub(crate) fingerprint: Fingerprint,
}

/// What a run left that is not recorded.
enum Unkept<R, E> {
    Response(Response<ReplayBody<R>>),
    Failed(E),
    Problem(Problem),
}

impl Errand {
    pub(crate) async fn run<S, B, R>(
        self,
        settings: Arc<Settings>,
        inner: S,
        request: Request<B>,
        departure: Arc<Departure>,
    ) -> Result<Response<ReplayBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>>,
        R: Body<Data = Bytes>,
        R::Error: Into<BoxError>,
    {
        let once = settings.once(&self.name, &self.fingerprint.to_hex());
        let mut call = Some((inner, request));
        let mut live = None;
        let mut wait = Duration::ZERO;
        let outcome = loop {
            let work = async |lease| match call.take() {
                Some((inner, request)) if departure.begin() => {
                    let (record, response) = self.work(&settings, inner, request, lease).await?;
                    live = Some(response);
                    Ok(record)
                }
                // Its caller left just before it was granted.
                _ => Err(Unkept::Problem(Problem::Closed)),
            };
            match once.clone().wait(wait).run_bytes(work).await {
                // Look who is at it before standing in line: waiting for another request's response is in vain.
                Ok(Ok(Once::InProgress { .. })) if wait.is_zero() => match self.is_another(&once).await {
                    Ok(true) => return Ok(refuse(Problem::KeyReused)),
                    Ok(false) if settings.wait.is_zero() => return Ok(refuse(Problem::InProgress)),
                    Ok(false) => wait = settings.wait,
                    Err(error) => break Err(error),
                },
                outcome => break outcome,
            }
        };
        match outcome {
            Ok(Ok(Once::Ran(_))) => Ok(live.expect("a run that was recorded has left its response")),
            Ok(Ok(Once::Unrecorded(_))) => {
                Ok(unrecorded(live.expect("a run that came to its end has left its response")))
            }
            Ok(Ok(Once::AlreadyDone(record))) => Ok(self.replay(&record)),
            // Not one of ours: those always fit.
            Ok(Ok(Once::ResultNotKept)) => Ok(self.replay(&[])),
            Ok(Ok(Once::InProgress { .. })) => Ok(refuse(Problem::InProgress)),
            Ok(Err(Unkept::Response(response))) => Ok(unrecorded(response)),
            Ok(Err(Unkept::Failed(error))) => Err(error),
            Ok(Err(Unkept::Problem(problem))) => Ok(refuse(problem)),
            Err(error) => Ok(refuse(self.problem_of(&error))),
        }
    }

    /// Whether the run in progress is of another request with the same key.
    async fn is_another(&self, once: &DoOnce) -> Result<bool, Error> {
        let OnceStatus::InProgress(holder) = once.status().await? else { return Ok(false) };
        Ok(holder.reason.is_some_and(|reason| reason.as_str() != self.fingerprint.to_hex()))
    }

    /// Calls the handler, and makes a record of its response.
    async fn work<S, B, R>(
        &self,
        settings: &Settings,
        mut inner: S,
        mut request: Request<B>,
        lease: Lease,
    ) -> Result<(Bytes, Response<ReplayBody<R>>), Unkept<R, S::Error>>
    where
        S: Service<Request<B>, Response = Response<R>>,
        R: Body<Data = Bytes>,
        R::Error: Into<BoxError>,
    {
        request.extensions_mut().insert(lease);
        let response = inner.call(request).await.map_err(Unkept::Failed)?;
        let (parts, body) = response.into_parts();
        // An informational one is an upgrade: what follows it is no body.
        if parts.status.is_informational() || !(settings.keeps_status)(parts.status) {
            return Err(Unkept::Response(Response::from_parts(parts, ReplayBody::inner(body))));
        }
        let (kept, body) = match body::read(body, settings.response_body_max).await {
            Reading::Whole(bytes) => (Some(bytes.clone()), ReplayBody::whole(bytes)),
            Reading::Beyond(body) => (None, body),
            Reading::Failed(error) => {
                let error: BoxError = error.into();
                tracing::warn!(%error, lock = self.name, "a response broke off, it is not recorded");
                return Err(Unkept::Problem(Problem::ResponseUnreadable));
            }
        };
        let kept_headers = &settings.kept_headers;
        let record = Record::new(self.fingerprint, parts.status, &parts.headers, kept_headers, kept.as_ref());
        let (record, has_body) = record.encoded();
        let mut response = Response::from_parts(parts, body);
        if !has_body {
            let value = HeaderValue::from_static("without-body");
            response.headers_mut().insert(IDEMPOTENCY_RECORDED, value);
        }
        Ok((record, response))
    }

    fn replay<R>(&self, record: &[u8]) -> Response<ReplayBody<R>> {
        let Some(record) = Record::decoded(record) else {
            tracing::error!(lock = self.name, "the record is not one of ours, or of a newer version");
            return refuse(Problem::Misconfigured);
        };
        if record.fingerprint != self.fingerprint {
            return refuse(Problem::KeyReused);
        }
        let status = record.status();
        let mut response = match record.into_parts() {
            None => refuse(Problem::ResponseNotKept { status }),
            Some((headers, body)) => {
                let mut response = Response::new(ReplayBody::whole(body));
                *response.status_mut() = status;
                *response.headers_mut() = headers;
                response
            }
        };
        response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
        response
    }

    fn problem_of(&self, error: &Error) -> Problem {
        tracing::warn!(%error, lock = self.name, "a request with an idempotency key was refused");
        match error {
            Error::Busy { .. } | Error::TimedOut { .. } => Problem::InProgress,
            Error::Lost { .. } => Problem::LeaseLost,
            Error::Unavailable { .. } => Problem::StoreUnavailable,
            Error::Closed => Problem::Closed,
            _ => Problem::Misconfigured,
        }
    }
}

pub(crate) fn refuse<R>(problem: Problem) -> Response<ReplayBody<R>> {
    problem.into_response(ReplayBody::whole)
}

fn unrecorded<R>(mut response: Response<ReplayBody<R>>) -> Response<ReplayBody<R>> {
    response.headers_mut().insert(IDEMPOTENCY_RECORDED, HeaderValue::from_static("false"));
    response
}
