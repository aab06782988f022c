//! [`Run`]: a run that goes on when its caller leaves.
//!
//! A client that loses patience closes its connection, and the server drops the future of its request. Without this,
//! that would cut the handler short half-way, and the client's retry would run it from the start: the very thing that
//! the key is to prevent. So a run that has begun is finished and recorded without its caller. One that has not begun,
//! because it still waits for another, is dropped with it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use tokio::task::JoinHandle;
use tracing::Instrument;

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const LEFT: u8 = 2;

/// What a run and its caller agree by on whether it has begun.
#[derive(Debug, Default)]
pub(crate) struct Departure(AtomicU8);

impl Departure {
    /// The run is about to begin; answers whether its caller is still there. From now on it is finished either way.
    pub(crate) fn begin(&self) -> bool {
        self.0.compare_exchange(WAITING, BEGUN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The caller leaves; answers whether that was before the run began.
    fn leave(&self) -> bool {
        self.0.compare_exchange(WAITING, LEFT, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// A run in a task of its own. A panic in it goes on in whoever awaits it.
pub(crate) struct Run<T> {
    departure: Arc<Departure>,
    task: JoinHandle<T>,
}

impl<T: Send + 'static> Run<T> {
    pub(crate) fn start<Fut>(run: impl FnOnce(Arc<Departure>) -> Fut) -> Self
    where
        Fut: Future<Output = T> + Send + 'static,
    {
        let departure = Arc::new(Departure::default());
        let task = tokio::spawn(run(departure.clone()).in_current_span());
        Self { departure, task }
    }
}

impl<T> Future for Run<T> {
    /// `None` if the runtime shut down before the run ended.
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        Poll::Ready(match ready!(Pin::new(&mut self.task).poll(cx)) {
            Ok(output) => Some(output),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => None,
            },
        })
    }
}

impl<T> Drop for Run<T> {
    fn drop(&mut self) {
        if self.departure.leave() {
            self.task.abort();
        }
    }
}
