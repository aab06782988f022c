//! Locks that move between processes.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{DetachedClaim, Error, RefusalKind};

use crate::scene::{SLACK, locks, ms, nothing_is_left, until, within};
use crate::subject::Subject;

/// A detached claim outlives its client, travels as text, and is the same lock with the same token where it arrives.
pub(super) async fn a_detached_claim_is_adopted(subject: Arc<dyn Subject>) {
    let (a, b) = (locks(subject.open().await), locks(subject.open().await));
    let guard = a.lock("detached").ttl(Duration::from_secs(60)).acquire().await.expect("free");
    let token = guard.token();
    let detached = guard.detach().await.expect("the store answers");
    assert_eq!((detached.name().as_str(), detached.token()), ("detached", token));
    a.close(SLACK).await.expect("cleaned up");
    assert!(b.inspect("detached").await.expect("the store answers").is_held(), "released with its client");
    assert!(b.lock("detached").try_acquire().await.expect("the store answers").is_none());

    let arrived: DetachedClaim = detached.to_string().parse().expect("its own text");
    assert_eq!(arrived, detached);
    let guard = b.adopt(arrived.clone()).await.expect("still held");
    assert_eq!(guard.token(), token);
    match b.adopt(arrived.clone()).await {
        Err(Error::Refused { refusal, .. }) => assert_eq!(refusal.kind, RefusalKind::Ended),
        other => panic!("adopted twice: {other:?}"),
    }
    assert!(guard.is_held());
    guard.release().await.expect("held");
    let late = b.adopt(arrived).await;
    assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    nothing_is_left(&*subject).await;
}

/// A detached claim is not renewed by anybody: it ends with its ttl, and cannot be adopted after that.
pub(super) async fn a_detached_claim_ends_with_its_ttl(subject: Arc<dyn Subject>) {
    let (a, b) = (locks(subject.open().await), locks(subject.open().await));
    let guard = a.lock("left").ttl(ms(500)).acquire().await.expect("free");
    let token = guard.token();
    let detached = guard.detach().await.expect("the store answers");
    let is_over = async || b.inspect("left").await.is_ok_and(|state| !state.is_held());
    until(SLACK, "the claim expires", is_over).await;
    let late = b.adopt(detached).await;
    assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    let next = within(SLACK, "the next", b.lock("left").acquire()).await.expect("a grant");
    assert!(next.token() > token);
    next.release().await.expect("held");
    nothing_is_left(&*subject).await;
}
