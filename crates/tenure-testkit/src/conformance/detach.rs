//! Locks that move between processes.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Claim, DetachedClaim, Error, Line, RefusalKind, Released, Renewal, Tie, Trail};

use crate::scene::{
    SLACK, busy, exclusive, granted, inspect, locks, ms, nothing_is_left, nothing_stays, refused, renew,
    until, within,
};
use crate::subject::Subject;

/// The successor has the grant, token and all; the claim it succeeded is ended, and nobody else can succeed it.
pub(super) async fn a_detached_claim_is_adopted_once(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let untied = || Claim { tie: Tie::Ttl, ..exclusive("succeeded") };
    let (first, successor, other) = (untied(), untied(), untied());
    let succeed = Line::Succeed(first.id);
    assert_eq!(refused(b.attempt(&successor, succeed).await).kind, RefusalKind::Ended, "nobody holds it");
    let token = granted(a.attempt(&first, Line::Join).await).token;
    let waiting = exclusive("succeeded");
    busy(b.attempt(&waiting, Line::Join).await);
    let of_a_waiter = b.attempt(&other, Line::Succeed(waiting.id)).await;
    assert_eq!(refused(of_a_waiter).kind, RefusalKind::Ended, "who waits has nothing to pass on");

    for _ in 0..2 {
        assert_eq!(granted(b.attempt(&successor, succeed).await).token, token, "also when asked again");
    }
    assert_eq!(refused(b.attempt(&other, succeed).await).kind, RefusalKind::Ended, "adopted twice");
    assert!(matches!(renew(&*a, &first).await, Renewal::Lost(_)));
    assert_eq!(a.release(&first, Trail::Clean).await, Ok(Released::Absent));
    assert_eq!(refused(a.attempt(&first, Line::Join).await).kind, RefusalKind::Ended);
    assert!(matches!(renew(&*b, &successor).await, Renewal::Renewed { .. }));
    let state = inspect(&*a, "succeeded").await;
    let holders: Vec<_> = state.holders.iter().map(|holder| holder.fingerprint.clone()).collect();
    assert_eq!(holders, [successor.id.fingerprint()], "{state:?}");

    assert_eq!(b.release(&successor, Trail::Clean).await, Ok(Released::Held));
    b.release(&waiting, Trail::Clean).await.expect("the store answers");
    nothing_stays(&*subject).await;
}

/// A detached claim outlives its client, travels as text, and is the same lock with the same token where it arrives.
pub(super) async fn a_detached_claim_travels(subject: Arc<dyn Subject>) {
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
    let again = b.adopt(arrived.clone()).await;
    assert!(matches!(again, Err(Error::Lost { .. })), "adopted twice: {again:?}");
    assert!(guard.is_held());
    guard.release().await.expect("held");
    let late = b.adopt(arrived).await;
    assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    b.close(SLACK).await.expect("cleaned up");
    nothing_stays(&*subject).await;
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
