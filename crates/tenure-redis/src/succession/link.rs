//! What those that have held a lock in turn share: one request to the store at a time, and what came of it.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::{Answer, BoxFuture, Released, StoreError};
use tokio::sync::Notify;

/// What those that have held a lock in turn share.
#[derive(Debug, Default)]
pub(crate) struct Link {
    turns: Mutex<Turns>,
    /// A request has ended.
    ended: Notify,
    /// The store knew none of them.
    pub(super) is_lost: AtomicBool,
    /// A release of the last of them may have been carried out, and nobody knows: it may know none of them for that.
    is_doubtful: AtomicBool,
    /// While that was so, the lock came to another claim here: whether it was lost, only the answer to that release tells.
    is_overtaken: AtomicBool,
}

/// One request at a time.
#[derive(Debug, Default)]
struct Turns {
    /// How many have begun.
    begun: u64,
    is_under_way: bool,
    /// The last that failed, by its number.
    failed: Option<(u64, StoreError)>,
}

/// The one request of a link that is under way. Over when this is dropped, also with its runtime.
struct Turn(Arc<Link>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.turns().is_under_way = false;
        self.0.ended.notify_waiters();
    }
}

impl Link {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a request when it is its turn, unless it is `settled` by then. If one that began after this was called has
    /// failed meanwhile, it was made for this caller, too: a store that is silent makes nobody wait for more than two
    /// requests. The request is a task of its own: others wait for it, also if its caller does not look.
    pub(crate) async fn in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        settled: impl Fn() -> Option<Answer<T>>,
        request: impl FnOnce() -> BoxFuture<'static, Answer<T>>,
    ) -> Answer<T> {
        let came = self.turns().begun;
        let (turn, number) = loop {
            let mut ended = pin!(self.ended.notified());
            // From here on, it misses no end.
            ended.as_mut().enable();
            if let Some(answer) = settled() {
                return answer;
            }
            {
                let mut turns = self.turns();
                if let Some((_, error)) = turns.failed.as_ref().filter(|(number, _)| *number > came) {
                    return Err(error.clone());
                }
                if !turns.is_under_way {
                    turns.is_under_way = true;
                    turns.begun += 1;
                    break (Turn(self.clone()), turns.begun);
                }
            }
            ended.await;
        };
        let request = request();
        let task = tokio::spawn(async move {
            let answer = request.await;
            turn.0.turns().failed = answer.as_ref().err().map(|error| (number, error.clone()));
            answer
        });
        task.await.unwrap_or_else(|_| Err(StoreError::unknown("the request was dropped on the way")))
    }

    /// The last of them is about to be released. Until that [is answered](Self::is_answered), nobody knows. Answers whether
    /// nobody knew before: an earlier release was not answered.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_doubtful.swap(true, Ordering::SeqCst)
    }

    /// A release was answered, and none before it was not.
    pub(crate) fn is_answered(&self) {
        self.is_doubtful.store(false, Ordering::SeqCst);
    }

    /// The lock came to another claim here. Answers whether that may be for the release of the last of them, which is not
    /// answered yet: pushes and answers are read by different tasks, and whoever held since may have been quick.
    pub(super) fn is_overtaken(&self) -> bool {
        let is_doubtful = self.is_doubtful.load(Ordering::SeqCst);
        self.is_overtaken.fetch_or(is_doubtful, Ordering::SeqCst) || is_doubtful
    }

    /// Whether only the answer to a release tells how they ended.
    pub(super) fn is_to_be_answered(&self) -> bool {
        self.is_overtaken.load(Ordering::SeqCst) && self.is_doubtful.load(Ordering::SeqCst)
    }

    /// How a claim ended of which the store need hear nothing any more.
    pub(crate) fn verdict(&self) -> Answer<Released> {
        let is_lost = self.is_lost.load(Ordering::SeqCst);
        if self.is_doubtful.load(Ordering::SeqCst) && (is_lost || self.is_overtaken.load(Ordering::SeqCst)) {
            Err(StoreError::unknown(
                "the store knows nothing of it, which may be for a release that it did not answer",
            ))
        } else if is_lost {
            Ok(Released::Absent)
        } else {
            Ok(Released::Held)
        }
    }
}
