//! The one renewal loop.
//!
//! Owns every hold of a client from grant to end, and renews them in batches: those of one lane and magnitude of ttl
//! together, so that a few with a short ttl never wait for many with a long one; one request at a time, or a few where
//! more are due than fit into one. It is woken by the holds' own alarms and has no timer of its own. A renewal that
//! fails is tried again until the lease's validity ends; the end itself is declared by the lease, not here, so that it
//! never depends on this loop.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tracing::Instrument;

use crate::backend::{BoxFuture, Renewal, StoreError};
use crate::by_claim::ByClaim;
use crate::claim::{Claim, ClaimId};
use crate::client::Shared;
use crate::clock::sleep_until;
use crate::lease::{Due, Hold};
use crate::words::in_words;

/// How many claims one request renews at most: what comes of it is seen to in one go, by a thread that others need too.
const BATCH_MAX: usize = 256;
/// How many requests of one track are under way at most, if all of them are full.
const UNDER_WAY_MAX: usize = 4;
/// A store that is in doubt more often does not make everything be renewed more often.
const DOUBTED_EVERY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Keeper {
    state: Mutex<State>,
    /// As many as there were when this was last written.
    held_about: AtomicUsize,
}

#[derive(Default)]
struct State {
    holds: ByClaim<Arc<Hold>>,
    rung: Vec<Arc<Hold>>,
    is_sorting: bool,
    tracks: HashMap<Track, Backlog>,
}

/// Holds of one track are renewed together: those of one lane, whose ttls differ by less than a factor of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Track {
    lane: u32,
    magnitude: u32,
}

#[derive(Default)]
struct Backlog {
    due: VecDeque<Arc<Hold>>,
    under_way: usize,
}

impl Keeper {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep(&self, hold: &Arc<Hold>) {
        let mut state = self.state();
        state.holds.insert(hold.claim.id, hold.clone());
        self.held_about.store(state.holds.len(), Ordering::Relaxed);
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        let forgotten = {
            let mut state = self.state();
            let forgotten = state.holds.remove(&id);
            self.held_about.store(state.holds.len(), Ordering::Relaxed);
            forgotten
        };
        // Dropped outside the lock: it may be the last reference, and holds backend code.
        drop(forgotten);
    }

    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.state().holds.values().cloned().collect()
    }

    pub(crate) fn held_count(&self) -> usize {
        self.state().holds.len()
    }

    /// The same, for those who need not know exactly.
    pub(crate) fn held_about(&self) -> usize {
        self.held_about.load(Ordering::Relaxed)
    }

    /// A hold's alarm rang, or its revocation moved. Never blocks: called from wakers.
    pub(crate) fn ring(&self, shared: &Arc<Shared>, hold: Arc<Hold>) {
        let mut state = self.state();
        state.rung.push(hold);
        if !std::mem::replace(&mut state.is_sorting, true) {
            shared.spawn(sort(shared.clone()));
        }
    }
}

/// Renews everything whenever the store is in doubt, as long as there is a client.
pub(crate) async fn renew_when(mut in_doubt: BoxFuture<'static, ()>, client: Weak<Shared>) {
    loop {
        in_doubt.await;
        let Some(shared) = client.upgrade() else { return };
        // Before anything is renewed: no doubt from then on is missed.
        let Some(next) = shared.backend.in_doubt() else { return };
        in_doubt = next;
        let (now, clock) = (shared.clock.now(), shared.clock.clone());
        for hold in shared.keeper.holds() {
            hold.hasten(&shared, now);
        }
        drop(shared);
        sleep_until(clock, now + DOUBTED_EVERY).await;
    }
}

/// Hands every hold that rang to its track, and starts those that stand still or cannot keep up.
async fn sort(shared: Arc<Shared>) {
    loop {
        let rung = {
            let mut state = shared.keeper.state();
            if state.rung.is_empty() {
                state.is_sorting = false;
                return;
            }
            std::mem::take(&mut state.rung)
        };
        let due: Vec<_> = rung.into_iter().filter(|hold| hold.due() == Due::Renewal).collect();
        let mut state = shared.keeper.state();
        for hold in due {
            let track = Track { lane: hold.lane, magnitude: hold.magnitude() };
            let backlog = state.tracks.entry(track).or_default();
            backlog.due.push_back(hold);
            let is_behind = backlog.due.len() > BATCH_MAX && backlog.under_way < UNDER_WAY_MAX;
            if backlog.under_way == 0 || is_behind {
                backlog.under_way += 1;
                shared.spawn(renew_track(shared.clone(), track));
            }
        }
    }
}

/// Renews what is due on one track until nothing is. Who was due first is renewed first.
async fn renew_track(shared: Arc<Shared>, track: Track) {
    loop {
        let batch: Vec<_> = {
            let mut state = shared.keeper.state();
            let Some(backlog) = state.tracks.get_mut(&track) else {
                return;
            };
            if backlog.due.is_empty() {
                backlog.under_way -= 1;
                if backlog.under_way == 0 {
                    state.tracks.remove(&track);
                }
                return;
            }
            let count = backlog.due.len().min(BATCH_MAX);
            backlog.due.drain(..count).collect()
        };
        let span = tracing::debug_span!("tenure.renew", lane = track.lane, claims = batch.len());
        renew(&shared, &batch).instrument(span).await;
    }
}

async fn renew(shared: &Arc<Shared>, batch: &[Arc<Hold>]) {
    let claims: Vec<Arc<Claim>> = batch.iter().map(|hold| hold.claim.clone()).collect();
    let patience = batch.iter().map(|hold| hold.answer_within()).min().unwrap_or_default();
    let sent = shared.clock.now();
    let answers = tokio::select! {
        answers = or_panicked(shared.backend.renew(&claims)) => answers,
        () = sleep_until(shared.clock.clone(), sent + patience) => {
            Err(StoreError::unknown(format!("nothing within {}", in_words(patience))))
        }
    };
    let (mut answers, otherwise) = match answers {
        Ok(answers) => (answers.into_iter(), StoreError::unknown("an answer is missing")),
        Err(error) => (Vec::new().into_iter(), error),
    };
    for hold in batch {
        match answers.next() {
            Some(Ok(Renewal::Renewed { ttl })) => hold.renewed(sent, ttl),
            Some(Ok(Renewal::Lost(why))) => hold.lose(why),
            Some(Err(error)) => retry(shared, hold, patience, &error),
            None => retry(shared, hold, patience, &otherwise),
        }
    }
}

/// What a backend answers, if it does not panic: this loop renews everybody, and must go on.
async fn or_panicked<T>(mut asked: BoxFuture<'_, T>) -> Result<T, StoreError> {
    std::future::poll_fn(|context| {
        // It is not looked at again once it has panicked.
        match catch_unwind(AssertUnwindSafe(|| asked.as_mut().poll(context))) {
            Ok(answer) => answer.map(Ok),
            Err(_) => Poll::Ready(Err(StoreError::unknown("the backend panicked"))),
        }
    })
    .await
}

/// An unknown renewal neither renews nor loses: the validity clock decides, and until then we try again.
fn retry(shared: &Shared, hold: &Arc<Hold>, patience: Duration, error: &StoreError) {
    shared.meters.renewal_failed();
    let pause = (patience / 4).min(Duration::from_millis(500));
    let jittered = pause.mul_f64(0.5 + shared.entropy.fraction());
    let (lock, token) = (&hold.claim.name, hold.token);
    // Once in a row: an outage is long, and there may be many.
    if hold.renewal_failed(shared.clock.now() + jittered) {
        tracing::warn!(%lock, %token, %error, "renewal failed, will be tried again");
    } else {
        tracing::debug!(%lock, %token, %error, "renewal failed again");
    }
}
