//! Doing a thing once: one record, for whoever asked or will ask.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Attempt, Bytes, Claim, Error, Line, Mode, Once, Released, Settled, Trail};

use crate::scene::{
    SLACK, busy, claim, eviction, granted, inspect, locks, ms, name, nothing_stays, sleep, until, within,
};
use crate::subject::Subject;
use crate::wrappers::Flaky;

const KEEP: Duration = Duration::from_secs(60);
const DONE: Bytes = Bytes::from_static(b"\0done\xff");

fn once(lock: &str) -> Claim {
    claim(lock, Mode::Once, Duration::from_secs(60))
}

#[track_caller]
fn is_settled(answer: tenure_core::Answer<Attempt>, outcome: &Bytes) {
    match answer {
        Ok(Attempt::Settled(recorded)) => assert_eq!(recorded, outcome),
        other => panic!("expected the record, got {other:?}"),
    }
}

/// Who lost the lock has no say any more: not after expiry, not after its successor began, not after its eviction.
pub(super) async fn settling_after_loss_is_refused(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let lost = claim("lost", Mode::Once, ms(150));
    granted(a.attempt(&lost, Line::Join).await);
    until(SLACK, "the grant expires", async || !inspect(&*b, "lost").await.is_held()).await;
    assert_eq!(a.settle(&lost, DONE, KEEP).await, Ok(Settled::NotHeld), "expired");
    assert_eq!(inspect(&*b, "lost").await.settled_for, None);

    let next = once("lost");
    granted(b.attempt(&next, Line::Join).await);
    assert_eq!(a.settle(&lost, DONE, KEEP).await, Ok(Settled::NotHeld), "another is at it");
    granted(b.attempt(&next, Line::Join).await);
    assert_eq!(b.release(&next, Trail::Clean).await, Ok(Released::Held));
    assert_eq!(b.settle(&next, DONE, KEEP).await, Ok(Settled::NotHeld), "released");
    assert_eq!(a.settle(&once("lost"), DONE, KEEP).await, Ok(Settled::NotHeld), "never granted");

    let evicted = once("lost");
    granted(a.attempt(&evicted, Line::Join).await);
    assert_eq!(b.evict(&name("lost"), &eviction(false)).await, Ok(1));
    assert_eq!(a.settle(&evicted, DONE, KEEP).await, Ok(Settled::NotHeld), "evicted");
    granted_after_all(&*b).await;
    nothing_stays(&*subject).await;
}

/// The lock is free once the evicted claim is released, and nothing was recorded.
async fn granted_after_all(backend: &dyn tenure_core::Backend) {
    assert_eq!(backend.evict(&name("lost"), &eviction(true)).await, Ok(1));
    let last = once("lost");
    granted(backend.attempt(&last, Line::Join).await);
    assert_eq!(backend.release(&last, Trail::Clean).await, Ok(Released::Held));
}

/// The settle whose answer was lost may be sent again: it is recorded, once, as it was the first time.
pub(super) async fn a_repeated_settle_is_recorded_once(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let first = once("settled");
    let token = granted(a.attempt(&first, Line::Join).await).token;
    assert_eq!(a.settle(&first, DONE, KEEP).await, Ok(Settled::Recorded));
    assert_eq!(a.settle(&first, Bytes::from_static(b"other"), KEEP).await, Ok(Settled::Recorded), "again");
    is_settled(b.attempt(&once("settled"), Line::Join).await, &DONE);
    is_settled(b.attempt(&once("settled"), Line::Pass).await, &DONE);
    assert_eq!(
        b.settle(&once("settled"), Bytes::from_static(b"b"), KEEP).await,
        Ok(Settled::NotHeld),
        "by another"
    );
    is_settled(b.attempt(&once("settled"), Line::Pass).await, &DONE);
    // A late release of the claim that settled takes nothing away.
    a.release(&first, Trail::Clean).await.expect("the store answers");
    is_settled(a.attempt(&once("settled"), Line::Pass).await, &DONE);
    let state = inspect(&*b, "settled").await;
    assert!(!state.is_held() && state.settled_for.is_some_and(|left| left <= KEEP), "{state:?}");

    assert_eq!(b.forget(&name("settled")).await, Ok(true));
    let again = once("settled");
    assert!(granted(b.attempt(&again, Line::Join).await).token > token);
    assert_eq!(b.release(&again, Trail::Clean).await, Ok(Released::Held));
    nothing_stays(&*subject).await;
}

/// Nobody needs the lock any more: every waiter is told, not only the next.
pub(super) async fn settling_wakes_all_waiters(subject: Arc<dyn Subject>) {
    let a = subject.open().await;
    let running = once("wakes");
    granted(a.attempt(&running, Line::Join).await);
    let mut waiting = Vec::new();
    for _ in 0..6 {
        let (client, claim) = (subject.open().await, once("wakes"));
        let signal = busy(client.attempt(&claim, Line::Join).await).wake.signal;
        waiting.push((client, claim, signal));
    }
    assert_eq!(a.settle(&running, DONE, KEEP).await, Ok(Settled::Recorded));
    for (client, claim, signal) in waiting {
        if let Some(signal) = signal {
            let told = within(SLACK, "every waiter is woken", signal).await;
            assert!(told.is_none(), "granted, though there is nothing left to do: {told:?}");
        }
        is_settled(client.attempt(&claim, Line::Join).await, &DONE);
    }
    let state = inspect(&*a, "wakes").await;
    assert!(!state.is_held() && state.waiters.is_empty(), "{state:?}");
    assert_eq!(a.forget(&name("wakes")).await, Ok(true));
    nothing_stays(&*subject).await;
}

/// A record that was forgotten, or not kept longer, is no record: the thing is done again. Claims are left alone.
pub(super) async fn a_forgotten_result_is_run_again(subject: Arc<dyn Subject>) {
    let a = subject.open().await;
    assert_eq!(a.forget(&name("forgotten")).await, Ok(false), "never settled");
    let first = once("forgotten");
    granted(a.attempt(&first, Line::Join).await);
    assert_eq!(a.forget(&name("forgotten")).await, Ok(false), "not settled yet");
    assert_eq!(a.settle(&first, DONE, KEEP).await, Ok(Settled::Recorded), "the claim was left alone");
    assert_eq!(a.forget(&name("forgotten")).await, Ok(true));
    assert_eq!(a.forget(&name("forgotten")).await, Ok(false), "again");

    let second = once("forgotten");
    granted(a.attempt(&second, Line::Join).await);
    assert_eq!(a.settle(&second, DONE, ms(200)).await, Ok(Settled::Recorded));
    until(SLACK, "the record ends", async || inspect(&*a, "forgotten").await.settled_for.is_none()).await;
    let third = once("forgotten");
    granted(a.attempt(&third, Line::Join).await);
    assert_eq!(a.release(&third, Trail::Clean).await, Ok(Released::Held));
    nothing_stays(&*subject).await;
}

/// Many callers, one run; everybody gets its result. An error frees it at once for the next.
pub(super) async fn once_runs_once_for_everybody(subject: Arc<dyn Subject>) {
    let (a, b) = (locks(subject.open().await), locks(subject.open().await));
    let failed = a.once("front").run(async |_| Err::<u32, _>("not today")).await.expect("it ran");
    assert_eq!(failed, Err("not today"));
    let runs = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut callers = tokio::task::JoinSet::new();
    for i in 0..12 {
        let client = if i % 2 == 0 { a.clone() } else { b.clone() };
        let runs = runs.clone();
        callers.spawn(async move {
            let work = async move |_| {
                runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                sleep(ms(30)).await;
                Ok::<u32, String>(42)
            };
            client.once("front").wait(SLACK * 2).run(work).await
        });
    }
    let mut ran = 0;
    while let Some(answer) = within(SLACK * 3, "a caller", callers.join_next()).await {
        match answer.expect("no panic") {
            Ok(Ok(Once::Ran(42))) => ran += 1,
            Ok(Ok(Once::AlreadyDone(42))) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((ran, runs.load(std::sync::atomic::Ordering::SeqCst)), (1, 1));
    assert!(a.once("front").forget().await.expect("the store answers"));
    nothing_stays(&*subject).await;
}

/// A record whose answer was lost on the way is found again, or said not to be known: never claimed.
pub(super) async fn an_unanswered_settle_is_never_claimed(subject: Arc<dyn Subject>) {
    let plain = locks(subject.open().await);
    for seed in 0..6 {
        let flaky = Flaky::new(subject.open().await, seed, 0.3, 0.3);
        let client = locks(Arc::new(flaky));
        let thing = format!("flaky/{seed}");
        let outcome = client.once(thing.as_str()).wait(SLACK).run(async |_| Ok::<u64, String>(seed)).await;
        let recorded = async || {
            let again = plain.once(thing.as_str()).wait(SLACK).run(async |_| Err::<u64, _>("open")).await;
            again.expect("the store answers")
        };
        match outcome {
            Ok(Ok(Once::Ran(_))) => assert_eq!(recorded().await, Ok(Once::AlreadyDone(seed)), "claimed"),
            Ok(Ok(Once::Unrecorded(_))) | Err(Error::Unavailable { .. }) => {}
            Ok(Ok(Once::AlreadyDone(_))) => assert_eq!(recorded().await, Ok(Once::AlreadyDone(seed))),
            other => panic!("{other:?}"),
        }
        // What could not be released in time is left to expire: that is said, and it is no fault here.
        let _ = client.close(SLACK).await;
        plain.once(thing.as_str()).forget().await.expect("the store answers");
    }
}
