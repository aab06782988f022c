//! [`Listeners`]: who in this process listens for news of which claim.

use tokio::sync::oneshot;

use crate::by_claim::ByClaim;
use crate::claim::ClaimId;

/// Who listens for news of which claim: for backends that are told by somebody else. Forgets those that stopped listening,
/// a little at a time.
#[derive(Debug)]
pub struct Listeners<T> {
    by_claim: ByClaim<oneshot::Sender<T>>,
    sweep_at: usize,
}

/// However few listen, so many may be kept before the first sweep.
const SWEEP_MIN: usize = 64;

impl<T> Default for Listeners<T> {
    fn default() -> Self {
        Self { by_claim: ByClaim::default(), sweep_at: SWEEP_MIN }
    }
}

impl<T> Listeners<T> {
    /// Completes with the news of this claim; fails when somebody else listens in its place, or it is forgotten.
    pub fn listen(&mut self, id: ClaimId) -> oneshot::Receiver<T> {
        if self.by_claim.len() >= self.sweep_at {
            self.by_claim.retain(|_, listener| !listener.is_closed());
            self.sweep_at = SWEEP_MIN + 2 * self.by_claim.len();
        }
        let (listener, news) = oneshot::channel();
        self.by_claim.insert(id, listener);
        news
    }

    /// Whoever listens for this claim. It wakes when it is told, and when it is dropped: do neither under a lock that it
    /// could want.
    pub fn take(&mut self, id: ClaimId) -> Option<oneshot::Sender<T>> {
        self.by_claim.remove(&id)
    }

    /// Tells whoever listens for this claim. Nobody may be listening any more; whoever cares will look.
    pub fn tell(&mut self, id: ClaimId, news: T) {
        if let Some(listener) = self.take(id) {
            let _ = listener.send(news);
        }
    }

    /// Nobody needs to be told any more.
    pub fn forget(&mut self, id: ClaimId) {
        drop(self.take(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_stopped_listening_are_forgotten() {
        let mut listeners = Listeners::<u32>::default();
        let mut kept = listeners.listen(ClaimId::from_bytes([0xff; 16]));
        for i in 0..100_000_u32 {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&i.to_le_bytes());
            drop(listeners.listen(ClaimId::from_bytes(id)));
        }
        assert!(listeners.by_claim.len() <= 2 * SWEEP_MIN + 2, "{}", listeners.by_claim.len());
        listeners.tell(ClaimId::from_bytes([0xff; 16]), 7);
        assert_eq!(kept.try_recv(), Ok(7));
    }
}
