//! A server on a free port, a client that speaks to it over TCP, and a handler whose runs can be counted and held up.

#![allow(dead_code, reason = "every test program uses its own part of this")]

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tenure_core::Locks;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Serves `app` for as long as the test's runtime lives.
pub(crate) async fn serve(app: Router) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    Client { address }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    address: SocketAddr,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    /// Asserts that this is a problem of the layer's.
    #[track_caller]
    pub(crate) fn assert_problem(&self, status: u16, kind: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let json: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(json["type"], format!("urn:tenure:problem:{kind}"));
        assert_eq!(json["status"], status);
    }
}

impl Client {
    /// Sends one request over a connection of its own. `None` if the server hangs up without an answer.
    pub(crate) async fn try_send<B>(self, request: Request<B>) -> Option<Answer>
    where
        B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + 'static,
    {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        // Both end with this future: a caller that drops it hangs up.
        let exchange = async {
            let response = sender.send_request(request).await.ok()?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.ok()?.to_bytes();
            Some(Answer { status: parts.status, headers: parts.headers, body })
        };
        let connection = async {
            let _ = connection.await;
            std::future::pending().await
        };
        tokio::select! { answer = exchange => answer, never = connection => never }
    }

    pub(crate) async fn send(self, request: Request<Full<Bytes>>) -> Answer {
        self.try_send(request).await.expect("an answer")
    }

    pub(crate) async fn post(self, path: &str, key: &str, body: &str) -> Answer {
        self.send(request(Method::POST, path, Some(key), body)).await
    }
}

pub(crate) fn request(method: Method, path: &str, key: Option<&str>, body: &str) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    let request = match key {
        Some(key) => request.header("idempotency-key", key),
        None => request,
    };
    request.body(Full::from(body.to_owned())).unwrap()
}

/// A body that does not tell its length beforehand.
pub(crate) struct Unmeasured(pub(crate) Full<Bytes>);

impl Body for Unmeasured {
    type Data = Bytes;
    type Error = std::convert::Infallible;
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }
}

/// Counts runs, and holds them up until it is told to let go.
#[derive(Debug, Clone)]
pub(crate) struct Work(Arc<(AtomicU32, Semaphore, Semaphore)>);

impl Work {
    pub(crate) fn new() -> Self {
        Self(Arc::new((AtomicU32::new(0), Semaphore::new(0), Semaphore::new(0))))
    }

    /// One run that nothing holds up; answers its number.
    pub(crate) fn count(&self) -> u32 {
        self.0.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// One run that waits to be let go; answers its number.
    pub(crate) async fn run(&self) -> u32 {
        let run = self.count();
        self.0.1.add_permits(1);
        self.0.2.acquire().await.unwrap().forget();
        run
    }

    pub(crate) fn runs(&self) -> u32 {
        self.0.0.load(Ordering::SeqCst)
    }

    /// Waits until one more run has begun.
    pub(crate) async fn begun(&self) {
        self.0.1.acquire().await.unwrap().forget();
    }

    pub(crate) fn let_go(&self) {
        self.0.2.add_permits(1);
    }
}

/// Waits until so many acquires stand in line.
pub(crate) async fn until_waiting(locks: &Locks, waiters: u64) {
    while locks.stats().waiting != waiters {
        tokio::task::yield_now().await;
    }
}
