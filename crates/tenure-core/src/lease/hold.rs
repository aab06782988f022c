//! The holder's side of a grant: its validity, its one alarm, its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use super::{End, LeaseState};
use crate::backend::{BoxFuture, Grant, Trail, Why};
use crate::claim::{Claim, Mode};
use crate::client::Shared;
use crate::clock::{Alarm, BootInstant, Clock};
use crate::token::FencingToken;
use crate::ttl::drift_margin;

/// The holder's side of one grant. At every moment of its life exactly one alarm is set: for the next renewal, or for
/// the end of its validity.
pub(crate) struct Hold {
    pub(crate) claim: Arc<Claim>,
    pub(crate) store: Arc<str>,
    pub(crate) token: FencingToken,
    pub(crate) trail: Trail,
    pub(crate) lane: u32,
    vital: Mutex<Vital>,
    pub(super) changed: Notify,
    client: Weak<Shared>,
    clock: Arc<dyn Clock>,
    /// Open as long as the lock is held.
    _span: tracing::Span,
}

pub(super) struct Vital {
    granted_at: BootInstant,
    pub(super) valid_until: BootInstant,
    /// The life that the last grant or renewal gave.
    ttl: Duration,
    renew_at: BootInstant,
    is_failing: bool,
    alarm: Option<Alarm>,
    revoked: Option<BoxFuture<'static, Why>>,
    /// Whether the revocation moved while it was looked at.
    must_look_again: bool,
    end: Option<End>,
    pub(super) ended_at: Option<BootInstant>,
}

impl Vital {
    /// When it is declared lost if nothing renews it: so early that whoever waits for the news has it in time.
    fn lost_at(&self) -> BootInstant {
        self.valid_until - told_early(self.ttl)
    }
}

/// What the keeper must do for a hold that rang.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    Renewal,
}

impl Hold {
    /// Takes over a grant, unless it is worth nothing any more. `now` may be a moment ago: an alarm that is set for the
    /// past rings at once.
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        claim: Arc<Claim>,
        grant: Grant,
        trail: Trail,
        now: BootInstant,
    ) -> Option<Arc<Self>> {
        let valid_until = valid_until(&grant);
        if now >= valid_until - told_early(grant.ttl) {
            return None;
        }
        let hold = Arc::new(Self {
            store: shared.store.clone(),
            token: grant.token,
            trail,
            lane: shared.backend.lane(&claim.name),
            vital: Mutex::new(Vital {
                granted_at: grant.since,
                valid_until,
                ttl: grant.ttl,
                renew_at: renewal_moment(grant.since, grant.ttl, shared.keeper.held_about()),
                is_failing: false,
                alarm: None,
                revoked: grant.revoked,
                must_look_again: false,
                end: None,
                ended_at: None,
            }),
            changed: Notify::new(),
            client: Arc::downgrade(shared),
            clock: shared.clock.clone(),
            _span: tracing::debug_span!("tenure.hold", lock = %claim.name, token = %grant.token),
            claim,
        });
        shared.keeper.keep(&hold);
        shared.meters.begun();
        // Only those who hold alone are told apart by order: shared grants may be noted in any.
        if matches!(hold.claim.mode, Mode::Exclusive | Mode::Once) {
            shared.meters.check_token(&hold.claim.name, hold.token);
        }
        hold.poll_revoked();
        if shared.is_closed() {
            hold.lose(Why::Closed);
        }
        hold.schedule(shared, now);
        Some(hold)
    }

    pub(super) fn vital(&self) -> MutexGuard<'_, Vital> {
        self.vital.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the alarm, and asks for a renewal if one is due already: an answer may arrive late.
    fn schedule(self: &Arc<Self>, shared: &Arc<Shared>, now: BootInstant) {
        if self.set_next_alarm(now) == Due::Renewal {
            shared.keeper.ring(shared, self.clone());
        }
    }

    /// Sets the one alarm: for the next renewal, or, once that is due, for the end of validity.
    fn set_next_alarm(self: &Arc<Self>, now: BootInstant) -> Due {
        let mut vital = self.vital();
        if vital.end.is_some() {
            return Due::Nothing;
        }
        let is_due = now >= vital.renew_at;
        let at = if is_due { vital.lost_at() } else { vital.renew_at.min(vital.lost_at()) };
        if let Some(alarm) = vital.alarm.take() {
            self.clock.cancel(alarm);
        }
        vital.alarm = Some(self.clock.wake_at(at, Waker::from(self.clone())));
        if is_due { Due::Renewal } else { Due::Nothing }
    }

    pub(super) fn state(&self) -> LeaseState {
        let vital = self.vital();
        let now = self.clock.now();
        match &vital.end {
            Some(End::Released) => LeaseState::Released,
            Some(End::Lost(why)) => LeaseState::Lost { why: why.clone() },
            None if now >= vital.lost_at() => {
                drop(vital);
                self.lose(Why::Expired);
                LeaseState::Lost { why: Why::Expired }
            }
            None => {
                let left = vital.valid_until.saturating_since(now);
                let is_overdue = now > vital.renew_at + vital.ttl / 6;
                if vital.is_failing || is_overdue {
                    LeaseState::AtRisk { left }
                } else {
                    LeaseState::Held { left }
                }
            }
        }
    }

    /// Ends the hold, whose `vital` says that it has not ended yet.
    fn end(&self, mut vital: MutexGuard<'_, Vital>, end: End, now: BootInstant) {
        vital.end = Some(end);
        vital.ended_at = Some(now);
        let held_for = now.saturating_since(vital.granted_at);
        if let Some(alarm) = vital.alarm.take() {
            self.clock.cancel(alarm);
        }
        let revoked = vital.revoked.take();
        drop(vital);
        // Dropped outside the lock: it is the backend's code.
        drop(revoked);
        self.changed.notify_waiters();
        if let Some(shared) = self.client.upgrade() {
            shared.keeper.forget(self.claim.id);
            shared.meters.held(held_for);
        }
    }

    /// Declares the lease lost. Whatever the store still knows of it is released by its guard, once the work under it is
    /// over, and expires if that never ends; a closed client does not wait for its guards.
    pub(crate) fn lose(&self, why: Why) {
        // From before it is forgotten until its clean-up is under way.
        let _ticket = self.client.upgrade().map(|shared| shared.ticket());
        let vital = self.vital();
        // The first end stands.
        if vital.end.is_some() {
            return;
        }
        self.end(vital, End::Lost(why.clone()), self.clock.now());
        tracing::warn!(lock = %self.claim.name, token = %self.token, %why, "lease lost");
        if let Some(shared) = self.client.upgrade() {
            shared.meters.lost(&why);
            // Released here, the lock would pass on while the work under it has yet to hear of its loss.
            if why == Why::Closed {
                shared.clean_up(self.claim.clone(), self.trail);
            }
        }
    }

    /// The holder gives the lease back.
    ///
    /// # Errors
    /// Why it was lost, if it was lost before.
    pub(crate) fn give_back(&self) -> Result<(), Why> {
        let vital = self.vital();
        let now = self.clock.now();
        match &vital.end {
            Some(End::Released) => Ok(()),
            Some(End::Lost(why)) => Err(why.clone()),
            // The clock first: a lease that ran out unnoticed was lost, not released.
            None if now >= vital.lost_at() => {
                drop(vital);
                self.lose(Why::Expired);
                Err(Why::Expired)
            }
            None => {
                self.end(vital, End::Released, now);
                Ok(())
            }
        }
    }

    /// The store renewed the claim: valid from when the request was `sent`.
    pub(crate) fn renewed(self: &Arc<Self>, sent: BootInstant, ttl: Duration) {
        if matches!(self.state(), LeaseState::Lost { .. } | LeaseState::Released) {
            return;
        }
        let shared = self.client.upgrade();
        let held_about = shared.as_ref().map_or(0, |shared| shared.keeper.held_about());
        let mut vital = self.vital();
        if vital.end.is_some() {
            return;
        }
        let now = self.clock.now();
        let slack = vital.valid_until.saturating_since(now);
        vital.valid_until = vital.valid_until.max(sent + ttl - drift_margin(ttl));
        vital.ttl = ttl;
        vital.renew_at = renewal_moment(sent, ttl, held_about);
        vital.is_failing = false;
        drop(vital);
        tracing::debug!(lock = %self.claim.name, token = %self.token, ?ttl, "renewed");
        self.changed.notify_waiters();
        if let Some(shared) = shared {
            shared.meters.renewed(slack);
            self.schedule(&shared, now);
        }
    }

    /// The store did not say whether it renewed the claim: try again at `retry_at`. Answers whether the renewal before it
    /// had not failed.
    pub(crate) fn renewal_failed(self: &Arc<Self>, retry_at: BootInstant) -> bool {
        let mut vital = self.vital();
        let had_failed = std::mem::replace(&mut vital.is_failing, true);
        vital.renew_at = retry_at;
        drop(vital);
        self.set_next_alarm(self.clock.now());
        !had_failed
    }

    /// Asks for a renewal now, not when it would be due.
    pub(crate) fn hasten(self: &Arc<Self>, shared: &Arc<Shared>, now: BootInstant) {
        let mut vital = self.vital();
        vital.renew_at = vital.renew_at.min(now);
        drop(vital);
        self.schedule(shared, now);
    }

    /// Looks what is to be done: called by the keeper for every hold that rang.
    pub(crate) fn due(self: &Arc<Self>) -> Due {
        self.poll_revoked();
        let vital = self.vital();
        if vital.end.is_none() && self.clock.now() >= vital.renew_at { Due::Renewal } else { Due::Nothing }
    }

    /// How long its ttl is, by powers of two.
    pub(crate) fn magnitude(&self) -> u32 {
        self.vital().ttl.as_millis().max(1).ilog2()
    }

    /// The longest that an answer to a renewal is worth waiting for.
    pub(crate) fn answer_within(&self) -> Duration {
        (self.vital().ttl / 3).clamp(Duration::from_millis(20), Duration::from_secs(5))
    }

    fn poll_revoked(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        loop {
            let mut vital = self.vital();
            let Some(mut revoked) = vital.revoked.take() else {
                // Another thread is at it, and may have looked before there was news.
                vital.must_look_again = true;
                return;
            };
            vital.must_look_again = false;
            drop(vital);
            if let Poll::Ready(why) = revoked.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.lose(why);
                return;
            }
            let mut vital = self.vital();
            if vital.end.is_some() {
                // Dropped outside the lock: it is the backend's code.
                drop(vital);
                return;
            }
            vital.revoked = Some(revoked);
            if !vital.must_look_again {
                return;
            }
        }
    }
}

impl Wake for Hold {
    /// Its alarm rang, or its revocation moved. Runs on any thread, also when the runtime stands still: the loss is
    /// declared right here, everything else is left to the keeper.
    fn wake(self: Arc<Self>) {
        if matches!(self.state(), LeaseState::Lost { .. } | LeaseState::Released) {
            return;
        }
        self.set_next_alarm(self.clock.now());
        if let Some(shared) = self.client.upgrade() {
            shared.keeper.ring(&shared, self);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let alarm = self.vital.get_mut().unwrap_or_else(PoisonError::into_inner).alarm.take();
        if let Some(alarm) = alarm {
            self.clock.cancel(alarm);
        }
    }
}

/// Until when a grant is valid: a little less than the store says.
pub(crate) fn valid_until(grant: &Grant) -> BootInstant {
    grant.since + grant.ttl - drift_margin(grant.ttl)
}

/// How long before the end of validity a lease is declared lost: the news must reach its holder before, and an alarm
/// rings at its moment or later, never earlier.
fn told_early(ttl: Duration) -> Duration {
    (ttl / 200).min(Duration::from_millis(20)) + Duration::from_millis(1)
}

/// How many leases may be due at the same moment, if they were taken at any: more are a burst of work, on a machine that
/// others use too.
const DUE_AT_ONCE: usize = 64;

/// When to renew: a third into the ttl, or a little earlier. Rounded down to a grid, so that leases taken at about the
/// same time are renewed in one request; the more are held, the finer.
fn renewal_moment(since: BootInstant, ttl: Duration, held: usize) -> BootInstant {
    let third = (since + ttl / 3).as_nanos();
    let finer = u64::try_from(held / (24 * DUE_AT_ONCE)).unwrap_or(u64::MAX).max(1);
    let widest = u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX) / 24 / finer;
    let grid = 1 << widest.max(1).ilog2();
    BootInstant::from_nanos(third - third % grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_fall_on_a_grid_a_little_before_a_third_of_the_ttl() {
        for ttl_ms in [50, 200, 30_000, 86_400_000] {
            let ttl = Duration::from_millis(ttl_ms);
            let mut moments = std::collections::BTreeSet::new();
            for i in 0..1000 {
                let since = BootInstant::from_nanos(1 << 50) + ttl / 1000 * i;
                let at = renewal_moment(since, ttl, 1000);
                assert!(at <= since + ttl / 3 && at > since + ttl / 4, "{ttl:?}");
                moments.insert(at);
            }
            assert!(moments.len() <= 50, "{} batches for 1000 leases over one ttl", moments.len());
        }
    }

    /// A hundred thousand that were taken within a second rang at the same moment, and kept two processors busy.
    #[test]
    fn many_leases_are_not_all_due_at_once() {
        let (ttl, held) = (Duration::from_secs(30), 100_000);
        let mut due = std::collections::BTreeMap::<_, usize>::new();
        for i in 0..held {
            let since = BootInstant::from_nanos(1 << 50) + ttl / 100_000 * u32::try_from(i).unwrap();
            *due.entry(renewal_moment(since, ttl, held)).or_default() += 1;
        }
        let most = due.values().max().unwrap();
        assert!(*most <= DUE_AT_ONCE && *most > DUE_AT_ONCE / 4, "{most}");
    }
}
