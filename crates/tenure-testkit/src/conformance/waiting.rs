//! How long acquire blocks, and what it says when it stops.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Error;

use crate::scene::{SLACK, locks, ms, nothing_is_left, now, sleep, until, within};
use crate::subject::Subject;
use crate::wrappers::Deaf;

/// Trying takes what is free, leaves what is held, and says who holds it.
pub(super) async fn trying_never_waits(subject: Arc<dyn Subject>) {
    let (a, b) = (locks(subject.open().await), locks(subject.open().await));
    let guard =
        a.lock("try").label("the holder").try_acquire().await.expect("the store answers").expect("free");
    // The holder renews for ever: whoever waited for it would still.
    let tried = within(SLACK, "trying", b.lock("try").try_acquire()).await;
    assert!(tried.expect("the store answers").is_none());
    match within(SLACK, "trying", b.lock("try").wait(Duration::ZERO).acquire()).await {
        Err(Error::Busy { lock, holder, .. }) => {
            assert_eq!(lock.as_str(), "try");
            if let Some(holder) = holder {
                assert_eq!(holder.label.as_str(), "the holder");
            }
        }
        other => panic!("expected busy, got {other:?}"),
    }
    guard.release().await.expect("held all along");
    let guard = b.lock("try").try_acquire().await.expect("the store answers").expect("free again");
    guard.release().await.expect("held all along");
    nothing_is_left(&*subject).await;
}

/// A bounded wait takes as long as it says and leaves the line.
pub(super) async fn a_bounded_wait_times_out(subject: Arc<dyn Subject>) {
    let (a, b) = (locks(subject.open().await), locks(subject.open().await));
    let guard = a.lock("bounded").acquire().await.expect("free");
    let start = now();
    match within(SLACK, "waiting", b.lock("bounded").wait(ms(300)).acquire()).await {
        Err(Error::TimedOut { lock, waited, .. }) => {
            assert_eq!(lock.as_str(), "bounded");
            assert!(waited >= ms(300), "gave up after {waited:?}");
        }
        other => panic!("expected a time-out, got {other:?}"),
    }
    assert!(now() >= start + ms(300));
    b.close(SLACK).await.expect("cleaned up");
    assert_eq!(a.inspect("bounded").await.expect("the store answers").waiters, []);
    guard.release().await.expect("held all along");
    nothing_is_left(&*subject).await;
}

/// Who waits for ever waits past every ttl of the holder.
pub(super) async fn waiting_for_ever_outlasts_the_holder(subject: Arc<dyn Subject>) {
    let (a, b) = (locks(subject.open().await), locks(subject.open().await));
    let guard = a.lock("for ever").ttl(ms(2500)).acquire().await.expect("free");
    let acquire = tokio::spawn(b.lock("for ever").acquire());
    sleep(ms(3200)).await;
    assert!(!acquire.is_finished(), "{:?}", acquire.await);
    guard.release().await.expect("held all along");
    let bound = b.capabilities().line_ttl / 3 + SLACK;
    let next = within(bound, "the waiter", acquire).await.expect("no panic").expect("a grant");
    next.release().await.expect("held all along");
    nothing_is_left(&*subject).await;
}

/// A lock that became free unnoticed is still had by who looks once more at the deadline. distributed-lock (Rust): a
/// single attempt, then `Timeout`.
pub(super) async fn one_last_attempt_is_made_at_the_deadline(subject: Arc<dyn Subject>) {
    let a = locks(subject.open().await);
    let b = locks(Arc::new(Deaf::new(subject.open().await)));
    let guard = a.lock("last").acquire().await.expect("free");
    let acquire = tokio::spawn(b.lock("last").wait(ms(2000)).acquire());
    if a.capabilities().fifo {
        let stands = async || a.inspect("last").await.is_ok_and(|state| state.waiters.len() == 1);
        until(SLACK, "it stands in line", stands).await;
    } else {
        sleep(ms(50)).await;
    }
    guard.release().await.expect("held all along");
    let guard = within(SLACK, "the deadline", acquire).await.expect("no panic");
    guard.expect("the lock is free at the deadline").release().await.expect("held");
    nothing_is_left(&*subject).await;
}
