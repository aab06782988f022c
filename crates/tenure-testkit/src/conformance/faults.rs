//! What is not known: neither busy, nor granted, nor free.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Answer, Bytes, Capabilities, Error, Line, Mode, RefusalKind, StoreError, Tie, Trail};

use crate::scene::{
    SLACK, claim, eviction, exclusive, granted, inspect, locks, ms, name, nothing_is_left, nothing_stays,
    until, within,
};
use crate::subject::Subject;
use crate::wrappers::{Flaky, Limited};

/// The verb failed in a way that may pass: not an answer, and no refusal for ever.
#[track_caller]
fn is_unanswered<T: std::fmt::Debug>(verb: &str, answer: Answer<T>) {
    match answer {
        Err(error) if error.is_passing() => {}
        other => panic!("{verb} without a store was answered with {other:?}"),
    }
}

/// A store that cannot be reached has not said no. rslock: every error reads "resource is unavailable", and a held lock
/// reads as free when the first node is down.
pub(super) async fn unknown_is_neither_busy_nor_granted(subject: Arc<dyn Subject>) {
    let (a, cut_off) = (subject.open().await, subject.open_cut_off().await);
    let held = exclusive("cut off");
    granted(a.attempt(&held, Line::Join).await);
    let bound = Duration::from_secs(10);
    for lock in ["cut off", "free"] {
        let claim = exclusive(lock);
        for line in [Line::Join, Line::Pass] {
            is_unanswered("attempt", within(bound, "attempt", cut_off.attempt(&claim, line)).await);
        }
        let renewals = within(bound, "renew", cut_off.renew(&[Arc::new(claim.clone())])).await;
        assert_eq!(renewals.len(), 1);
        renewals.into_iter().for_each(|renewal| is_unanswered("renew", renewal));
        is_unanswered("release", within(bound, "release", cut_off.release(&claim, Trail::Clean)).await);
        is_unanswered("inspect", within(bound, "inspect", cut_off.inspect(&name(lock))).await);
        is_unanswered("evict", within(bound, "evict", cut_off.evict(&name(lock), &eviction(false))).await);
        if cut_off.capabilities().once {
            let once = claim_once(lock);
            let settled = cut_off.settle(&once, Bytes::from_static(b"x"), ms(100));
            is_unanswered("settle", within(bound, "settle", settled).await);
        }
    }
    is_unanswered("list", within(bound, "list", cut_off.list("", None, 10)).await);
    let client = locks(cut_off);
    let tried = within(bound, "trying", client.lock("cut off").try_acquire()).await;
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    assert!(tried.is_err_and(|error| error.is_retry_safe()));
    assert!(inspect(&*a, "cut off").await.is_held());
    a.release(&held, Trail::Clean).await.expect("the store answers");
}

fn claim_once(lock: &str) -> tenure_core::Claim {
    claim(lock, Mode::Once, Duration::from_secs(60))
}

/// An attempt that was granted but never answered is either found again or given back. simstudio 7680: the timed-out
/// request had taken the lock.
pub(super) async fn an_unanswered_grant_is_given_back(subject: Arc<dyn Subject>) {
    let a = subject.open().await;
    let flaky = |backend| Arc::new(Flaky::new(backend, 1, 0.0, 1.0).for_the_first(1));

    let trying = locks(flaky(subject.open().await));
    let tried = trying.lock("unanswered").ttl(Duration::from_secs(60)).try_acquire().await;
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    until(SLACK, "it is given back", async || !inspect(&*a, "unanswered").await.is_held()).await;

    let waiting = locks(flaky(subject.open().await));
    let acquire = waiting.lock("unanswered").ttl(Duration::from_secs(60)).wait(SLACK).acquire();
    let guard = within(SLACK * 2, "acquire", acquire).await.expect("found again");
    let state = inspect(&*a, "unanswered").await;
    let [holder] = &state.holders[..] else { panic!("not one holder: {state:?}") };
    assert!(holder.token.is_none_or(|seen| seen == guard.token()), "{state:?}");
    guard.release().await.expect("held");
    for client in [trying, waiting] {
        client.close(SLACK).await.expect("cleaned up");
    }
    nothing_stays(&*subject).await;
}

/// What a store does not offer is refused before it hears of it.
pub(super) async fn missing_capabilities_are_refused_without_io(subject: Arc<dyn Subject>) {
    let backend = subject.open().await;
    let offers = backend.capabilities();
    let without = |change: fn(&mut Capabilities)| {
        let mut less = offers;
        change(&mut less);
        let limited = Arc::new(Limited::new(backend.clone(), less));
        (locks(limited.clone()), limited)
    };
    let is_refused = |answer: tenure_core::Result<tenure_core::Guard>| match answer {
        Err(Error::Refused { refusal, .. }) => {
            assert_eq!(refusal.kind, RefusalKind::Unsupported, "{refusal}");
        }
        other => panic!("expected a refusal, got {other:?}"),
    };
    let (client, limited) = without(|offers| offers.shared = false);
    is_refused(client.lock("none").shared().acquire().await);
    assert_eq!(limited.asked(), 0);

    let (client, limited) = without(|offers| offers.permits = false);
    is_refused(client.lock("none").permits(1, 2).acquire().await);
    assert_eq!(limited.asked(), 0);

    let (client, limited) = without(|offers| offers.detach = false);
    is_refused(client.lock("none").tie(Tie::Ttl).acquire().await);
    assert_eq!(limited.asked(), 0);
    let guard = client.lock("none").acquire().await.expect("free");
    let asked = limited.asked();
    let detached = guard.detach().await;
    assert!(matches!(detached, Err(Error::Refused { .. })), "{detached:?}");
    client.close(SLACK).await.expect("cleaned up");
    assert!(limited.asked() <= asked + 1, "nothing but the release");

    let (client, limited) = without(|offers| offers.once = false);
    let once = client.once("none").run(async |_| Ok::<u32, String>(1)).await;
    assert!(
        matches!(&once, Err(Error::Refused { refusal, .. }) if refusal.kind == RefusalKind::Unsupported),
        "{once:?}"
    );
    assert_eq!(limited.asked(), 0);
    nothing_is_left(&*subject).await;
}

/// A refusal says that nothing changed: whatever a store refuses can be seen not to have happened.
pub(super) async fn a_refusal_changes_nothing(subject: Arc<dyn Subject>) {
    let client = subject.open().await;
    if client.capabilities().permits {
        let greedy = claim("refused", Mode::Permits { n: 4, of: 3 }, ms(1000));
        match client.attempt(&greedy, Line::Join).await {
            Err(StoreError::Refused(refusal)) => assert_eq!(refusal.kind, RefusalKind::Limit, "{refusal}"),
            other => panic!("4 of 3 permits: {other:?}"),
        }
        let state = inspect(&*client, "refused").await;
        assert!(!state.is_held() && state.waiters.is_empty(), "{state:?}");
    }
    let locks = locks(client);
    for (what, lock) in [
        ("an empty name", locks.lock("")),
        ("a long name", locks.lock("x".repeat(257))),
        ("a control character", locks.lock("a\nb")),
        ("a short ttl", locks.lock("x").ttl(ms(49))),
        ("a long ttl", locks.lock("x").ttl(Duration::from_secs(86_401))),
        ("no permits", locks.lock("x").permits(0, 3)),
        ("a long label", locks.lock("x").label("x".repeat(129))),
        ("a long reason", locks.lock("x").reason("x".repeat(1025))),
    ] {
        match lock.try_acquire().await {
            Err(Error::Refused { refusal, .. }) => assert_eq!(refusal.kind, RefusalKind::Limit, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
    }
    nothing_is_left(&*subject).await;
}
