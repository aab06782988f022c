//! The life of a grant: renewed while its guard lives, passed on when it ends, numbered whatever ended it.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Claim, Error, LeaseState, Line, Mode, Released, Tie, Trail, Why};

use crate::scene::{
    SLACK, claim, eviction, exclusive, granted, inspect, locks, ms, name, nothing_is_left, nothing_stays,
    now, sleep, until, valid_until, within,
};
use crate::subject::Subject;

/// A lease is renewed for as long as its guard lives. node-redlock: dead after the second period.
pub(super) async fn a_lease_is_renewed_past_many_ttls(subject: Arc<dyn Subject>) {
    let (a, b) = (locks(subject.open().await), subject.open().await);
    // A machine that stands still for most of a ttl loses the lease, and rightly: then a longer one is tried.
    for ttl in [200, 400, 800, 1600, 3200] {
        let guard = a.lock("renewed").ttl(ms(ttl)).acquire().await.expect("free");
        let (token, start) = (guard.token(), now());
        while guard.is_held() && now() < start + ms(ttl) * 6 {
            let known = guard.valid_until();
            tokio::select! {
                () = guard.changed(known) => {}
                () = sleep(ms(ttl)) => {}
            }
        }
        if guard.is_held() {
            let state = inspect(&*b, "renewed").await;
            let [holder] = &state.holders[..] else { panic!("not one holder: {state:?}") };
            assert!(holder.token.is_none_or(|seen| seen == token), "{state:?}");
            guard.release().await.expect("held all along");
            return nothing_is_left(&*subject).await;
        }
        eprintln!("a lease of {ttl} ms was lost: {:?}", guard.state());
        drop(guard);
    }
    panic!("no lease, however long, lived for six ttls");
}

/// A grant that nobody renews ends with its ttl, not before, and the next in line has it soon after.
pub(super) async fn an_expired_grant_passes_on(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, locks(subject.open().await));
    let expiring = claim("expires", Mode::Exclusive, ms(500));
    let grant = granted(a.attempt(&expiring, Line::Join).await);
    let bound = grant.ttl + b.capabilities().line_ttl / 3 + SLACK;
    let next = within(bound, "the next", b.lock("expires").acquire()).await.expect("a grant");
    assert!(now() > valid_until(&grant), "granted while the other was valid");
    assert!(next.token() > grant.token);
    next.release().await.expect("held");
    a.release(&expiring, Trail::Clean).await.expect("the store answers");
    nothing_is_left(&*subject).await;
}

/// A holder that dies holds the lock no longer than its ttl, and no longer than the store needs to notice.
pub(super) async fn a_vanished_holder_is_succeeded(subject: Arc<dyn Subject>) {
    let (dying, b) = (subject.open().await, locks(subject.open().await));
    let noticed_within = subject.notices_death_within();
    let ttl = if noticed_within.is_some() { Duration::from_secs(600) } else { ms(500) };
    let token = granted(dying.attempt(&claim("vanished", Mode::Exclusive, ttl), Line::Join).await).token;
    let acquire = tokio::spawn(b.lock("vanished").acquire());
    subject.vanish(dying).await;
    let bound = noticed_within.unwrap_or(ttl) + b.capabilities().line_ttl / 3 + SLACK;
    let next = within(bound, "the next", acquire).await.expect("no panic").expect("a grant");
    assert!(next.token() > token);
    next.release().await.expect("held");
    nothing_stays(&*subject).await;
}

/// A claim tied to nothing but its ttl outlives its client; who knows it may end it.
pub(super) async fn a_claim_without_tie_outlives_its_client(subject: Arc<dyn Subject>) {
    let (dying, b) = (subject.open().await, subject.open().await);
    let untied = Claim { tie: Tie::Ttl, ..exclusive("untied") };
    granted(dying.attempt(&untied, Line::Join).await);
    subject.vanish(dying).await;
    // Give the store the time to notice what it must not act upon.
    sleep(subject.notices_death_within().unwrap_or_default()).await;
    let waiting = locks(b.clone());
    assert!(waiting.lock("untied").try_acquire().await.expect("the store answers").is_none());
    assert_eq!(b.release(&untied, Trail::Clean).await, Ok(Released::Held));
    nothing_is_left(&*subject).await;
}

/// Of two grants of one lock, the later one has the higher token: after a release, an expiry, an eviction, by any
/// client, and after everybody had left.
pub(super) async fn tokens_rise_whatever_ended_the_last(subject: Arc<dyn Subject>) {
    let mut last = None;
    for round in 0..12 {
        let client = subject.open().await;
        let ttl = if round % 3 == 1 { ms(100) } else { Duration::from_secs(60) };
        let claim = claim("token", Mode::Exclusive, ttl);
        let token = granted(client.attempt(&claim, Line::Join).await).token;
        assert!(last < Some(token), "{token} after {last:?}");
        last = Some(token);
        match round % 3 {
            0 => assert_eq!(client.release(&claim, Trail::Clean).await, Ok(Released::Held)),
            1 => until(SLACK, "expiry", async || !inspect(&*client, "token").await.is_held()).await,
            _ => assert_eq!(client.evict(&name("token"), &eviction(true)).await, Ok(1)),
        }
    }
    nothing_stays(&*subject).await;
}

/// Who closes its client gives everything back, and is told so everywhere.
pub(super) async fn a_closed_client_leaves_nothing(subject: Arc<dyn Subject>) {
    let (a, b) = (locks(subject.open().await), locks(subject.open().await));
    let mut held = Vec::new();
    for i in 0..20 {
        held.push(b.lock(format!("closed/{i}")).acquire().await.expect("free"));
    }
    let other = a.lock("closed/other").acquire().await.expect("free");
    let waiting = tokio::spawn(b.lock("closed/other").acquire());
    if a.capabilities().fifo {
        let stands = async || a.inspect("closed/other").await.is_ok_and(|state| state.waiters.len() == 1);
        until(SLACK, "it stands in line", stands).await;
    }
    b.close(SLACK).await.expect("cleaned up");
    assert_eq!(a.inspect("closed/other").await.expect("the store answers").waiters, [], "left the line");
    let waited = within(SLACK, "the waiter", waiting).await.expect("no panic");
    assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    for guard in &held {
        assert_eq!(guard.state(), LeaseState::Lost { why: Why::Closed });
    }
    assert!(matches!(b.lock("closed/more").acquire().await, Err(Error::Closed)));
    assert!(other.is_held());
    other.release().await.expect("held all along");
    nothing_is_left(&*subject).await;
}
