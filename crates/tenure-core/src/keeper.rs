//! The one renewal loop.
//!
//! Owns every hold of a client from grant to end, and renews them in batches: one request per lane at a time. It is
//! woken by the holds' own alarms and has no timer of its own. A renewal that fails is tried again until the lease's
//! validity ends; the end itself is declared by the lease, not here, so that it never depends on this loop.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::Instrument;

use crate::backend::{Renewal, StoreError};
use crate::by_claim::ByClaim;
use crate::claim::{Claim, ClaimId};
use crate::client::Shared;
use crate::clock::sleep_until;
use crate::lease::{Due, Hold};
use crate::words::in_words;

/// How many claims one request renews at most.
const BATCH_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct Keeper {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    holds: ByClaim<Arc<Hold>>,
    rung: Vec<Arc<Hold>>,
    is_sorting: bool,
    lanes: HashMap<u32, Lane>,
}

#[derive(Default)]
struct Lane {
    due: Vec<Arc<Hold>>,
    is_renewing: bool,
}

impl Keeper {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep(&self, hold: &Arc<Hold>) {
        self.state().holds.insert(hold.claim.id, hold.clone());
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        let forgotten = self.state().holds.remove(&id);
        // Dropped outside the lock: it may be the last reference, and holds backend code.
        drop(forgotten);
    }

    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.state().holds.values().cloned().collect()
    }

    pub(crate) fn held_count(&self) -> usize {
        self.state().holds.len()
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

/// Hands every hold that rang to its lane, and starts the lanes that stand still.
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
            let number = hold.lane;
            let lane = state.lanes.entry(number).or_default();
            lane.due.push(hold);
            if !std::mem::replace(&mut lane.is_renewing, true) {
                shared.spawn(renew_lane(shared.clone(), number));
            }
        }
    }
}

/// Renews what is due in one lane until nothing is.
async fn renew_lane(shared: Arc<Shared>, number: u32) {
    loop {
        let batch = {
            let mut state = shared.keeper.state();
            let Some(lane) = state.lanes.get_mut(&number) else {
                return;
            };
            if lane.due.is_empty() {
                state.lanes.remove(&number);
                return;
            }
            let left = lane.due.len().saturating_sub(BATCH_MAX);
            lane.due.split_off(left)
        };
        let span = tracing::debug_span!("tenure.renew", lane = number, claims = batch.len());
        renew(&shared, &batch).instrument(span).await;
    }
}

async fn renew(shared: &Arc<Shared>, batch: &[Arc<Hold>]) {
    let claims: Vec<Arc<Claim>> = batch.iter().map(|hold| hold.claim.clone()).collect();
    let patience = batch.iter().map(|hold| hold.answer_within()).min().unwrap_or_default();
    let sent = shared.clock.now();
    let answers = tokio::select! {
        answers = shared.backend.renew(&claims) => answers,
        () = sleep_until(shared.clock.clone(), sent + patience) => Vec::new(),
    };
    let mut answers = answers.into_iter();
    for hold in batch {
        match answers.next() {
            Some(Ok(Renewal::Renewed { ttl })) => hold.renewed(sent, ttl),
            Some(Ok(Renewal::Lost(why))) => hold.lose(why),
            Some(Err(error)) => retry(shared, hold, patience, &error),
            None => {
                let error = StoreError::unknown(format!("nothing within {}", in_words(patience)));
                retry(shared, hold, patience, &error);
            }
        }
    }
}

/// An unknown renewal neither renews nor loses: the validity clock decides, and until then we try again.
fn retry(shared: &Shared, hold: &Arc<Hold>, patience: Duration, error: &StoreError) {
    tracing::warn!(lock = %hold.claim.name, token = %hold.token, %error, "renewal failed, will be tried again");
    shared.meters.renewal_failed();
    let pause = (patience / 4).min(Duration::from_millis(500));
    let jittered = pause.mul_f64(0.5 + shared.entropy.fraction());
    hold.renewal_failed(shared.clock.now() + jittered);
}
