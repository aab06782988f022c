//! What cases are told with: claims, clients, bounds. Not cases themselves.
//!
//! Every bound here is one that only a broken store misses, on a machine however busy: no case depends on speed.

use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::{BootInstant, Clock, SystemClock, sleep_until};
use tenure_core::{
    Answer, Attempt, Backend, Busy, Claim, ClaimId, Eviction, Grant, Label, LockName, LockState, Locks, Mode,
    Reason, Refusal, Renewal, Seams, StoreError, SystemEntropy, Tie, Ttl, drift_margin,
};

use crate::subject::Subject;

/// What a busy machine may add to anything.
pub const SLACK: Duration = Duration::from_secs(5);

/// The present moment.
pub fn now() -> BootInstant {
    SystemClock.now()
}

/// So many milliseconds.
pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Completes after `duration`.
pub async fn sleep(duration: Duration) {
    sleep_until(Arc::new(SystemClock), now() + duration).await;
}

/// Waits for `future`, but not longer than `limit`.
///
/// # Panics
/// If it takes longer.
#[track_caller]
pub fn within<F: Future>(limit: Duration, what: &str, future: F) -> impl Future<Output = F::Output> {
    let caller = Location::caller();
    async move {
        tokio::select! {
            biased;
            output = future => output,
            () = sleep(limit) => panic!("{what}: not within {limit:?} ({caller})"),
        }
    }
}

/// Waits until `is_so` answers true, looking often.
///
/// # Panics
/// If it does not within `limit`.
#[track_caller]
pub fn until<F: Future<Output = bool>>(
    limit: Duration,
    what: &str,
    mut is_so: impl FnMut() -> F,
) -> impl Future<Output = ()> {
    within(limit, what, async move {
        while !is_so().await {
            sleep(ms(5)).await;
        }
    })
}

/// A client on top of `backend`.
pub fn locks(backend: Arc<dyn Backend>) -> Locks {
    Locks::with(backend, Seams::default())
}

/// A name.
///
/// # Panics
/// If it is none.
pub fn name(name: &str) -> LockName {
    LockName::new(name).expect("a valid name")
}

/// A new claim on `lock`, labelled like itself.
///
/// # Panics
/// If the name or the ttl is not valid.
pub fn claim(lock: &str, mode: Mode, ttl: Duration) -> Claim {
    Claim {
        name: name(lock),
        id: ClaimId::draw(&SystemEntropy),
        mode,
        ttl: Ttl::new(ttl).expect("a valid ttl"),
        tie: Tie::Process,
        label: Label::new("the conformance suite").expect("a valid label"),
        reason: None,
    }
}

/// A new exclusive claim with a ttl that no case outlives.
pub fn exclusive(lock: &str) -> Claim {
    claim(lock, Mode::Exclusive, Duration::from_secs(60))
}

/// The grant that was answered.
///
/// # Panics
/// If something else was.
#[track_caller]
pub fn granted(answer: Answer<Attempt>) -> Grant {
    match answer {
        Ok(Attempt::Granted(grant)) => grant,
        other => panic!("expected a grant, got {other:?}"),
    }
}

/// The busy that was answered.
///
/// # Panics
/// If something else was.
#[track_caller]
pub fn busy(answer: Answer<Attempt>) -> Busy {
    match answer {
        Ok(Attempt::Busy(busy)) => busy,
        other => panic!("expected busy, got {other:?}"),
    }
}

/// The refusal that was answered.
///
/// # Panics
/// If something else was.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(answer: Answer<T>) -> Refusal {
    match answer {
        Err(StoreError::Refused(refusal)) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Renews one claim.
///
/// # Panics
/// If the store gave no answer, or not exactly one.
pub async fn renew(backend: &dyn Backend, claim: &Claim) -> Renewal {
    let mut answers = backend.renew(&[Arc::new(claim.clone())]).await;
    assert_eq!(answers.len(), 1, "one answer per claim");
    answers.remove(0).expect("the store answers")
}

/// Who holds and waits, as `backend` says.
///
/// # Panics
/// If the store gave no answer.
pub async fn inspect(backend: &dyn Backend, lock: &str) -> LockState {
    backend.inspect(&name(lock)).await.expect("the store answers")
}

/// An eviction of all holders.
///
/// # Panics
/// Never.
pub fn eviction(force: bool) -> Eviction {
    Eviction { token: None, force, reason: Reason::new("on purpose").expect("a valid reason") }
}

/// Until when a holder may think that it holds.
pub fn valid_until(grant: &Grant) -> BootInstant {
    grant.since + grant.ttl - drift_margin(grant.ttl)
}

/// Nothing is in the store: every claim was ended by its own release.
///
/// # Panics
/// If something is.
pub async fn nothing_is_left(subject: &dyn Subject) {
    assert_eq!(subject.leftovers().await, Vec::<String>::new(), "left behind");
}

/// Nothing stays in the store, once what was left so that late requests find it has expired.
///
/// # Panics
/// If something does.
pub async fn nothing_stays(subject: &dyn Subject) {
    let limit = subject.forgets_within() + SLACK;
    let deadline = now() + limit;
    loop {
        let left = subject.leftovers().await;
        if left.is_empty() {
            return;
        }
        assert!(now() < deadline, "after {limit:?}, still left behind: {left:?}");
        sleep(ms(20)).await;
    }
}
