//! Who in this process listens for news of which claim, and how news becomes a grant or a loss.
//!
//! News is only ever an hour early: whoever misses it looks by itself.

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
    waiting: tenure_core::Listeners<Option<Pushed>>,
    holding: tenure_core::Listeners<Option<tenure_core::Reason>>,
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
        let told = (state.waiting.take(id), state.holding.take(id));
        drop(state);
        // Dropped outside the lock: it wakes whoever listens.
        drop(told);
    }

    pub(crate) fn tell(&self, id: ClaimId, news: News) {
        match news {
            News::Granted(pushed) => {
                let ear = self.state().waiting.take(id);
                ear.map(|ear| ear.send(Some(pushed)));
            }
            News::Look => {
                let ear = self.state().waiting.take(id);
                ear.map(|ear| ear.send(None));
            }
            News::Evicted(reason) => {
                let ear = self.state().holding.take(id);
                ear.map(|ear| ear.send(reason));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
