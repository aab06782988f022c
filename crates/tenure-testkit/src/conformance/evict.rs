//! Eviction: the holder is told, cannot renew, and the lock passes on when it is safe, or at once if that is wanted.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Eviction, Line, Mode, Reason, RefusalKind, Renewal, Trail, Why};

use crate::scene::{
    SLACK, busy, claim, eviction, exclusive, granted, inspect, locks, ms, name, nothing_stays, now, refused,
    renew, valid_until, within,
};
use crate::subject::Subject;

/// Its renewals are refused from now on, forced or not, and it cannot come back as itself.
pub(super) async fn an_evicted_claim_cannot_renew(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    for force in [false, true] {
        let evicted = exclusive("evicted");
        granted(a.attempt(&evicted, Line::Join).await);
        assert_eq!(b.evict(&name("evicted"), &eviction(force)).await, Ok(1));
        let lost = renew(&*a, &evicted).await;
        assert!(matches!(lost, Renewal::Lost(Why::Evicted { .. })), "{lost:?}");
        assert_eq!(renew(&*a, &evicted).await, lost);
        for line in [Line::Join, Line::Pass] {
            assert_eq!(refused(a.attempt(&evicted, line).await).kind, RefusalKind::Ended);
        }
        let state = inspect(&*b, "evicted").await;
        assert_eq!(state.holders.len(), usize::from(!force), "{state:?}");
        assert!(state.holders.iter().all(|holder| holder.evicted), "{state:?}");
        a.release(&evicted, Trail::Clean).await.expect("the store answers");
        assert!(!inspect(&*b, "evicted").await.is_held());
    }
    assert_eq!(b.evict(&name("evicted"), &eviction(true)).await, Ok(0), "nobody holds it");
    nothing_stays(&*subject).await;
}

/// Whoever is evicted twice is told what was said first.
pub(super) async fn what_was_said_first_stays_said(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let evicted = exclusive("said");
    granted(a.attempt(&evicted, Line::Join).await);
    assert_eq!(b.evict(&name("said"), &eviction(false)).await, Ok(1));
    let lost = renew(&*a, &evicted).await;
    for force in [false, true] {
        let again = Eviction { reason: Reason::new("something else").expect("short"), ..eviction(force) };
        assert_eq!(b.evict(&name("said"), &again).await, Ok(1));
        assert_eq!(renew(&*a, &evicted).await, lost);
    }
    a.release(&evicted, Trail::Clean).await.expect("the store answers");
    nothing_stays(&*subject).await;
}

/// Not before the evicted grant has ended, so that nobody holds it twice; at once if forced. Waiters keep their places.
pub(super) async fn eviction_passes_the_lock_on(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let next = locks(subject.open().await);
    let evicted = claim("passes", Mode::Exclusive, ms(700));
    let grant = granted(a.attempt(&evicted, Line::Join).await);
    assert_eq!(b.evict(&name("passes"), &eviction(false)).await, Ok(1));
    let bound = grant.ttl + next.capabilities().line_ttl / 3 + SLACK;
    let successor = within(bound, "the next", next.lock("passes").acquire()).await.expect("a grant");
    assert!(now() > valid_until(&grant), "passed on while the evicted one was still valid");
    assert!(successor.token() > grant.token);
    successor.release().await.expect("held");

    let evicted = exclusive("passes");
    let grant = granted(a.attempt(&evicted, Line::Join).await);
    let waiting = exclusive("passes");
    busy(b.attempt(&waiting, Line::Join).await);
    assert_eq!(b.evict(&name("passes"), &eviction(true)).await, Ok(1));
    assert!(granted(b.attempt(&waiting, Line::Join).await).token > grant.token, "at once");
    b.release(&waiting, Trail::Clean).await.expect("the store answers");
    nothing_stays(&*subject).await;
}

/// With a token, only the grant of that number is taken away.
pub(super) async fn eviction_by_token_spares_the_others(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let reader = || claim("spares", Mode::Shared, Duration::from_secs(60));
    let (first, second) = (reader(), reader());
    let token = granted(a.attempt(&first, Line::Join).await).token;
    granted(a.attempt(&second, Line::Join).await);
    let one = Eviction { token: Some(token), ..eviction(false) };
    assert_eq!(b.evict(&name("spares"), &one).await, Ok(1));
    assert!(matches!(renew(&*a, &first).await, Renewal::Lost(Why::Evicted { .. })));
    assert!(matches!(renew(&*a, &second).await, Renewal::Renewed { .. }));
    for claim in [&first, &second] {
        a.release(claim, Trail::Clean).await.expect("the store answers");
    }
    nothing_stays(&*subject).await;
}

/// The evicted holder is told why, at the latest at its next renewal.
pub(super) async fn an_evicted_holder_is_told(subject: Arc<dyn Subject>) {
    let (a, b) = (locks(subject.open().await), locks(subject.open().await));
    for force in [false, true] {
        let guard = a.lock("told").ttl(Duration::from_secs(3)).acquire().await.expect("free");
        assert_eq!(b.evict("told", eviction(force)).await.expect("the store answers"), 1);
        match within(SLACK, "the holder is told", guard.lost()).await {
            Why::Evicted { reason } => {
                assert!(reason.is_none_or(|reason| reason.as_str() == "on purpose"));
            }
            other => panic!("expected an eviction, got {other:?}"),
        }
        // It has stopped, and core has given back what was left of it: the next need not wait for the ttl.
        let next = within(SLACK, "the next", b.lock("told").acquire()).await.expect("a grant");
        next.release().await.expect("held");
    }
    for client in [a, b] {
        client.close(SLACK).await.expect("cleaned up");
    }
    nothing_stays(&*subject).await;
}
