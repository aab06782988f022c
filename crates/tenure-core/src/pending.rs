//! The one clean-up.
//!
//! A [`Pending`] claim is one that the store may know of. However its owner lets go of it (cancelled acquire, dropped
//! guard, cancelled release, panic), it is ended: an attempt that is still under way is finished first, then the claim
//! is released, on a task that nobody can cancel. [`Locks::close`](crate::Locks::close) waits for those tasks.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing::Instrument;

use crate::backend::{Answer, Attempt, BoxFuture, Line, Released, StoreError, Trail};
use crate::claim::Claim;
use crate::client::{Shared, Ticket};
use crate::clock::sleep_until;

/// How long an abandoned request is waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

pub(crate) struct Pending {
    pub(crate) shared: Arc<Shared>,
    pub(crate) claim: Arc<Claim>,
    trail: Trail,
    /// Whether the store may know the claim.
    may_be_stored: bool,
    /// A mutex that is never locked, only owned: it lets a guard be shared between threads, though a request is not.
    in_flight: Mutex<Option<BoxFuture<'static, Answer<Attempt>>>>,
    /// Makes [`Locks::close`](crate::Locks::close) wait, except while a keeper knows the claim. Dropped last: the
    /// clean-up is under way by then.
    ticket: Option<Ticket>,
}

impl Pending {
    pub(crate) fn new(shared: Arc<Shared>, claim: Arc<Claim>) -> Self {
        let ticket = Some(shared.ticket());
        Self { shared, claim, trail: Trail::Clean, may_be_stored: false, in_flight: Mutex::new(None), ticket }
    }

    /// The keeper knows the claim from now on.
    pub(crate) fn kept(&mut self) {
        self.ticket = None;
    }

    /// The keeper is about to forget the claim.
    pub(crate) fn not_kept(&mut self) {
        self.ticket = Some(self.shared.ticket());
    }

    pub(crate) const fn trail(&self) -> Trail {
        self.trail
    }

    /// One attempt.
    ///
    /// # Cancel safety
    /// The request is finished by the clean-up.
    pub(crate) async fn attempt(&mut self, line: Line) -> Answer<Attempt> {
        self.shared.meters.attempted();
        let (backend, claim) = (self.shared.backend.clone(), self.claim.clone());
        let request = in_flight(&mut self.in_flight)
            .insert(Box::pin(async move { backend.attempt(&claim, line).await }));
        let answer = poll_fn(|cx| request.as_mut().poll(cx)).await;
        *in_flight(&mut self.in_flight) = None;
        match &answer {
            Ok(Attempt::Granted(_)) => self.may_be_stored = true,
            Ok(Attempt::Busy(_)) => self.may_be_stored = line == Line::Join,
            Ok(Attempt::Settled(_)) => self.may_be_stored = false,
            Err(StoreError::Unknown(_)) => self.trail = Trail::Doubtful,
            // Nothing changed: whatever was so before still is.
            Err(StoreError::Refused(_)) => {}
        }
        answer
    }

    /// Ends the claim. If that fails, it goes on in the background.
    ///
    /// # Cancel safety
    /// The release goes on in the background.
    pub(crate) async fn release(mut self) -> Answer<Released> {
        let span = tracing::debug_span!("tenure.release", lock = %self.claim.name);
        let answer = self.shared.backend.release(&self.claim, self.trail).instrument(span).await;
        if !answer.as_ref().is_err_and(StoreError::is_passing) {
            self.dismiss();
        }
        answer
    }

    /// Somebody else has taken care of the claim, or will.
    pub(crate) fn dismiss(&mut self) {
        self.trail = Trail::Clean;
        self.may_be_stored = false;
        *in_flight(&mut self.in_flight) = None;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let in_flight = in_flight(&mut self.in_flight).take();
        if in_flight.is_some() || self.may_be_stored || self.trail == Trail::Doubtful {
            let (shared, claim, trail) = (self.shared.clone(), self.claim.clone(), self.trail);
            self.shared.spawn_clean_up(finish(shared, claim, trail, in_flight));
        }
    }
}

fn in_flight<T>(owned: &mut Mutex<Option<T>>) -> &mut Option<T> {
    owned.get_mut().unwrap_or_else(PoisonError::into_inner)
}

/// Finishes what is under way, then releases until the store has answered or the claim must have expired by itself.
pub(crate) async fn finish(
    shared: Arc<Shared>,
    claim: Arc<Claim>,
    mut trail: Trail,
    in_flight: Option<BoxFuture<'static, Answer<Attempt>>>,
) {
    if let Some(request) = in_flight {
        let answer = tokio::select! {
            answer = request => Some(answer),
            () = sleep_until(shared.clock.clone(), shared.clock.now() + ANSWER_WITHIN) => None,
        };
        if !matches!(answer, Some(Ok(_) | Err(StoreError::Refused(_)))) {
            trail = Trail::Doubtful;
        }
    }
    let capabilities = shared.backend.capabilities();
    let expired_at = shared.clock.now() + claim.ttl.get().max(capabilities.line_ttl);
    let mut pause = Duration::from_millis(20);
    loop {
        let answer = tokio::select! {
            answer = shared.backend.release(&claim, trail) => answer,
            () = sleep_until(shared.clock.clone(), shared.clock.now() + ANSWER_WITHIN) => {
                Err(StoreError::unknown("nothing"))
            }
        };
        match answer {
            Err(error) if error.is_passing() && shared.clock.now() < expired_at => {
                tracing::info!(lock = %claim.name, %error, "a release failed, is tried again");
                let jittered = pause.mul_f64(0.5 + shared.entropy.fraction());
                sleep_until(shared.clock.clone(), shared.clock.now() + jittered).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            Err(error) => {
                tracing::warn!(lock = %claim.name, %error, "a claim could not be released and is left to expire");
                return;
            }
            Ok(_) => {
                tracing::debug!(lock = %claim.name, "cleaned up: nothing of the claim is left");
                return;
            }
        }
    }
}
