//! [`Store`]: one open store as its clients in this process share it. Hands requests to the store thread and waits
//! for the answer, never for ever.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::clock::{Clock as _, SystemClock, sleep_until};
use tenure_core::queue::Rules;
use tenure_core::{Answer, RefusalKind, StoreError};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::batch::Batch;
use crate::fork;
use crate::listeners::Listeners;
use crate::liveness::Liveness;

/// How many requests may wait for the store thread.
const REQUESTS_MAX: usize = 100_000;
/// How often a thread steps aside before it goes to sleep. A transaction takes a few microseconds, falling asleep and
/// waking up several times that: it triples what one task alone can do, and costs some 20 µs when nothing comes. Only
/// who is alone waits like that for an answer: the others have tasks to run meanwhile, and make batches.
const YIELDS: u32 = 40;

#[derive(Debug)]
pub(crate) struct Store {
    /// For messages: `file:/path`.
    pub(crate) url: String,
    pub(crate) directory: std::path::PathBuf,
    pub(crate) is_shared: bool,
    pub(crate) timeout: Duration,
    pub(crate) rules: Rules,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) listeners: Arc<Listeners>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) generation: u32,
    /// How many requests are waited for.
    pub(crate) under_way: AtomicUsize,
}

impl Store {
    /// Runs `run` inside a write transaction, perhaps together with other requests, perhaps twice if the first time
    /// came to nothing.
    ///
    /// # Cancel safety
    /// A request that has not been started is not started any more.
    pub(crate) async fn call<T, F>(&self, run: F) -> Answer<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Batch<'_>) -> heed::Result<Answer<T>> + Send + 'static,
    {
        if self.generation != fork::generation() {
            return Err(StoreError::refused(
                RefusalKind::Unsupported,
                format!(
                    "store {} was opened before this process was forked: open it after the fork",
                    self.url
                ),
            ));
        }
        let fate = Arc::new(Fate::default());
        let (reply, mut answer) = oneshot::channel();
        let request = Request { run, fate: fate.clone(), answer: None, reply };
        let is_alone = self.under_way.fetch_add(1, Ordering::Relaxed) == 0;
        let _under_way = UnderWay(&fate, &self.under_way);
        if !self.inbox.put(Box::new(request)) {
            return Err(if self.inbox.is_closed() { self.ended() } else { self.blocked() });
        }
        if is_alone {
            for _ in 0..YIELDS {
                match answer.try_recv() {
                    Ok(answer) => return answer,
                    Err(TryRecvError::Empty) => std::thread::yield_now(),
                    Err(TryRecvError::Closed) => return Err(self.ended()),
                }
            }
        }
        let deadline = SystemClock.now() + self.timeout;
        tokio::select! {
            biased;
            answer = &mut answer => answer.unwrap_or_else(|_| Err(self.ended())),
            () = sleep_until(Arc::new(SystemClock), deadline) => {
                if fate.abandon() {
                    Err(self.blocked())
                } else {
                    Err(StoreError::unknown(format!(
                        "store {} did not finish within {:?}: its disk is slow, or this process was stopped",
                        self.url, self.timeout
                    )))
                }
            }
        }
    }

    fn ended(&self) -> StoreError {
        StoreError::unknown(format!("the thread that serves store {} ended", self.url))
    }

    fn blocked(&self) -> StoreError {
        StoreError::refused(
            RefusalKind::Unavailable,
            format!(
                "store {} is blocked, nothing changed and trying again is safe: a process may be stopped inside a \
                 transaction, `fuser -v {}/data.mdb` shows which use it",
                self.url,
                self.directory.display()
            ),
        )
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // In a forked child there is no thread to be told, and its mutex may be locked for ever.
        if self.generation == fork::generation() {
            self.inbox.close();
        }
    }
}

/// Whether a request was begun or given up: one of the two, whichever came first.
#[derive(Debug, Default)]
pub(crate) struct Fate(AtomicU8);

impl Fate {
    const OPEN: u8 = 0;
    const STARTED: u8 = 1;
    const ABANDONED: u8 = 2;

    /// Whether it may be run.
    pub(crate) fn start(&self) -> bool {
        self.decide(Self::STARTED)
    }

    /// Whether it will surely never run.
    fn abandon(&self) -> bool {
        self.decide(Self::ABANDONED)
    }

    fn decide(&self, fate: u8) -> bool {
        match self.0.compare_exchange(Self::OPEN, fate, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(decided) => decided == fate,
        }
    }
}

/// A request for as long as somebody waits for its answer.
struct UnderWay<'a>(&'a Fate, &'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.abandon();
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One request, whatever it asks for.
pub(crate) trait Job: Send {
    /// Whether it is still wanted.
    fn start(&self) -> bool;
    /// Runs it. May be called again if the transaction came to nothing.
    ///
    /// # Errors
    /// Those that spoil the whole transaction.
    fn run(&mut self, batch: &mut Batch<'_>) -> heed::Result<()>;
    /// Answers: what `run` found, or that the transaction came to nothing.
    fn finish(self: Box<Self>, outcome: Answer<()>);
}

struct Request<T, F> {
    run: F,
    fate: Arc<Fate>,
    answer: Option<Answer<T>>,
    reply: oneshot::Sender<Answer<T>>,
}

impl<T, F> Job for Request<T, F>
where
    T: Send,
    F: FnMut(&mut Batch<'_>) -> heed::Result<Answer<T>> + Send,
{
    fn start(&self) -> bool {
        self.fate.start()
    }

    fn run(&mut self, batch: &mut Batch<'_>) -> heed::Result<()> {
        self.answer = Some((self.run)(batch)?);
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Answer<()>) {
        let answer = match (outcome, self.answer) {
            (Ok(()), Some(answer)) => answer,
            (Ok(()), None) => Err(StoreError::unknown("the request was not run")),
            (Err(error), _) => Err(error),
        };
        // Nobody may be waiting any more.
        let _ = self.reply.send(answer);
    }
}

/// The requests that wait for the store thread.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Box<dyn Job>>,
    is_closed: bool,
    is_waiting: bool,
}

impl Inbox {
    /// Puts a request in; answers whether it was taken.
    fn put(&self, job: Box<dyn Job>) -> bool {
        let mut state = self.state();
        if state.is_closed || state.jobs.len() >= REQUESTS_MAX {
            return false;
        }
        state.jobs.push_back(job);
        let is_waiting = state.is_waiting;
        drop(state);
        if is_waiting {
            self.arrived.notify_one();
        }
        true
    }

    /// Takes at most `max` requests, once there are any; nothing once it is closed and empty.
    pub(crate) fn take(&self, max: usize) -> Vec<Box<dyn Job>> {
        for _ in 0..YIELDS {
            if !self.state().jobs.is_empty() {
                break;
            }
            std::thread::yield_now();
        }
        let mut state = self.state();
        while state.jobs.is_empty() && !state.is_closed {
            state.is_waiting = true;
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.is_waiting = false;
        }
        let count = state.jobs.len().min(max);
        state.jobs.drain(..count).collect()
    }

    /// Takes no more requests; those inside are still served.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.arrived.notify_one();
    }

    fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::directory::{Company, Directory};
    use crate::registry;
    use bytes::Bytes;
    use tenure_core::queue::{Now, Step};
    use tenure_core::{
        Attempt, Backend as _, Claim, ClaimId, Label, Line, LockName, Mode, SystemEntropy, Tie, Ttl,
    };

    /// A panic of the store thread took the process out of its directory, so that others started afresh there while it
    /// held locks; and whoever asked next panicked too.
    #[tokio::test]
    async fn a_panic_is_an_unknown_answer_and_leaves_the_process_inside() {
        let outer = tempfile::tempdir().unwrap();
        let config = Config::at(outer.path().join("locks"));
        let store = registry::open(&config).unwrap();
        for _ in 0..3 {
            let answer: Answer<()> = store.call(|_| panic!("a test that panics on purpose")).await;
            assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
        }
        let other = Directory::prepare(&config).unwrap();
        while !registry::has_ended(other.identity) {
            std::thread::yield_now();
        }
        let soon = SystemClock.now() + config.timeout;
        assert_eq!(other.enter(soon).unwrap(), Company::Others);
    }

    /// Pages that were taken and given back in one transaction are never written, and the file was taken for one that
    /// was cut short.
    #[tokio::test]
    async fn a_file_that_ends_in_pages_never_written_is_in_order() {
        let outer = tempfile::tempdir().unwrap();
        let config = Config::at(outer.path().join("locks"));
        let embedded = crate::Embedded::open(config.clone()).unwrap();
        let claim = Claim {
            name: LockName::new("x").unwrap(),
            id: ClaimId::draw(&SystemEntropy),
            mode: Mode::Once,
            ttl: Ttl::DEFAULT,
            tie: Tie::Ttl,
            label: Label::of_this_process(),
            reason: None,
        };
        assert!(matches!(embedded.attempt(&claim, Line::Join).await, Ok(Attempt::Granted(_))));
        let kept = Claim { name: LockName::new("kept").unwrap(), ..claim.clone() };
        // Often enough for LMDB to have pages to use again: only then does it take some back at once.
        for _ in 0..20 {
            assert!(matches!(embedded.attempt(&kept, Line::Join).await, Ok(Attempt::Granted(_))));
        }
        let store = registry::open(&config).unwrap();
        let (name, id, rules) = (claim.name, claim.id, store.rules);
        let large = Bytes::from(vec![7; 256 << 10]);
        let both = store.call(move |batch| {
            let keep = Duration::from_secs(60);
            let settle =
                |queue: &mut tenure_core::queue::Queue, now: Now| queue.settle(now, &rules, id, &large, keep);
            batch.grow(&name, settle)?.unwrap();
            batch.change(&name, |queue, now| Step { answer: queue.forget(now), notices: Vec::new() })
        });
        assert!(both.await.unwrap());
        drop((store, embedded));
        let store = crate::Embedded::open(config).unwrap();
        assert!(!store.directory().join("damaged.mdb").exists(), "it was thrown away");
        assert_eq!(store.stored_names().await.unwrap(), [kept.name]);
    }
}
