//! Who in this process listens for news of which claim, and how news becomes a grant or a loss.
//!
//! News is only ever an hour early: whoever misses it looks by itself.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_core::ClaimId;
use tokio::sync::oneshot;

use crate::wake::{News, Pushed};

#[derive(Debug, Default)]
pub(crate) struct Listeners {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Ears<Option<Pushed>>,
    holding: Ears<Option<tenure_core::Reason>>,
}

impl Listeners {
    /// Completes with the grant, or with nothing: look.
    pub(crate) fn for_grant(&self, id: ClaimId) -> oneshot::Receiver<Option<Pushed>> {
        self.state().waiting.listen(id)
    }

    /// Completes when the claim is evicted.
    pub(crate) fn for_eviction(&self, id: ClaimId) -> oneshot::Receiver<Option<tenure_core::Reason>> {
        self.state().holding.listen(id)
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        let mut state = self.state();
        let told = (state.waiting.by_claim.remove(&id), state.holding.by_claim.remove(&id));
        drop(state);
        // Dropped outside the lock: it wakes whoever listens.
        drop(told);
    }

    pub(crate) fn tell(&self, id: ClaimId, news: News) {
        match news {
            News::Granted(pushed) => {
                let ear = self.state().waiting.by_claim.remove(&id);
                ear.map(|ear| ear.send(Some(pushed)));
            }
            News::Look => {
                let ear = self.state().waiting.by_claim.remove(&id);
                ear.map(|ear| ear.send(None));
            }
            News::Evicted(reason) => {
                let ear = self.state().holding.by_claim.remove(&id);
                ear.map(|ear| ear.send(reason));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets those that stopped listening, a little at a time.
#[derive(Debug)]
struct Ears<T> {
    by_claim: HashMap<ClaimId, oneshot::Sender<T>>,
    sweep_at: usize,
}

impl<T> Default for Ears<T> {
    fn default() -> Self {
        Self { by_claim: HashMap::new(), sweep_at: 64 }
    }
}

impl<T> Ears<T> {
    fn listen(&mut self, id: ClaimId) -> oneshot::Receiver<T> {
        if self.by_claim.len() >= self.sweep_at {
            self.by_claim.retain(|_, ear| !ear.is_closed());
            self.sweep_at = 64 + 2 * self.by_claim.len();
        }
        let (ear, told) = oneshot::channel();
        self.by_claim.insert(id, ear);
        told
    }
}
