//! What observers see: the truth, and all of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Backend, Claim, Label, Line, Mode, Reason, Released, Trail};

use crate::scene::{SLACK, busy, claim, exclusive, granted, inspect, ms, nothing_is_left, until};
use crate::subject::Subject;

fn labelled(claim: Claim, label: &str) -> Claim {
    let reason = Reason::new(format!("because of {label}")).expect("a valid reason");
    Claim { label: Label::new(label).expect("a valid label"), reason: Some(reason), ..claim }
}

/// Who holds, since when and for how long, who waits and in which order; and nobody else. rslock: a held lock reads as
/// free.
pub(super) async fn inspect_tells_the_truth(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let state = inspect(&*b, "seen").await;
    assert!(!state.is_held() && state.waiters.is_empty() && state.settled_for.is_none(), "{state:?}");

    let held = labelled(exclusive("seen"), "the holder");
    let token = granted(a.attempt(&held, Line::Join).await).token;
    let mut waiting = Vec::new();
    if b.capabilities().fifo {
        for label in ["the first", "the second"] {
            let waiter = labelled(exclusive("seen"), label);
            busy(b.attempt(&waiter, Line::Join).await);
            waiting.push(waiter);
        }
    }
    for client in [&a, &b] {
        let state = inspect(&**client, "seen").await;
        assert_eq!(state.name, held.name);
        let [holder] = &state.holders[..] else { panic!("not one holder: {state:?}") };
        assert_eq!(holder.label, held.label);
        assert_eq!(holder.fingerprint, held.id.fingerprint());
        assert!(holder.token.is_none_or(|seen| seen == token), "{holder:?}");
        assert!(holder.mode.is_none_or(|mode| mode == Mode::Exclusive), "{holder:?}");
        assert!(holder.expires_in.is_none_or(|left| !left.is_zero() && left <= held.ttl.get()), "{holder:?}");
        assert!(holder.held_for.is_none_or(|held_for| held_for < held.ttl.get()), "{holder:?}");
        assert!(holder.reason.is_none() || holder.reason == held.reason, "{holder:?}");
        assert!(!holder.evicted);
        assert!(state.token.is_none_or(|highest| highest == token), "{state:?}");
        let seen: Vec<_> = state.waiters.iter().map(|waiter| waiter.fingerprint.clone()).collect();
        let expected: Vec<_> = waiting.iter().map(|waiter| waiter.id.fingerprint()).collect();
        assert_eq!(seen, expected, "in the order of the line");
        for (seen, waiter) in state.waiters.iter().zip(&waiting) {
            assert_eq!(seen.label, waiter.label);
            assert!(seen.mode.is_none_or(|mode| mode == Mode::Exclusive), "{seen:?}");
        }
        let secrets = format!("{state:?}");
        assert!(!secrets.contains(&held.id.to_hex()), "the claim's id is a secret");
    }
    for waiter in &waiting {
        assert_eq!(b.release(waiter, Trail::Clean).await, Ok(Released::Waited));
    }
    assert_eq!(a.release(&held, Trail::Clean).await, Ok(Released::Held));
    let state = inspect(&*b, "seen").await;
    assert!(!state.is_held() && state.waiters.is_empty(), "{state:?}");

    let expiring = claim("seen", Mode::Exclusive, ms(150));
    granted(a.attempt(&expiring, Line::Join).await);
    until(SLACK, "an expired grant is not shown", async || !inspect(&*b, "seen").await.is_held()).await;
    a.release(&expiring, Trail::Clean).await.expect("the store answers");
    nothing_is_left(&*subject).await;
}

/// Page by page, every lock that is held all along is listed, whatever else comes and goes meanwhile.
pub(super) async fn listing_pages_through_every_lock(subject: Arc<dyn Subject>) {
    let client = subject.open().await;
    let mut held = Vec::new();
    for i in 0..57 {
        held.push(exclusive(&format!("list/a{{{i}}}%")));
    }
    held.push(exclusive("list/"));
    held.push(exclusive("list/*"));
    let others = ["list", "lis", "LIST/a", "other/1", "list%2Fa"].map(exclusive);
    for claim in held.iter().chain(&others) {
        granted(client.attempt(claim, Line::Pass).await);
    }
    let expected: BTreeSet<_> = held.iter().map(|claim| claim.name.as_str().to_owned()).collect();
    for limit in [1, 10, 59, 1000] {
        assert_eq!(listed(&*client, "list/", limit).await, expected, "pages of {limit}");
    }
    let all = listed(&*client, "", 7).await;
    assert_eq!(all.len(), held.len() + others.len(), "everything");
    assert_eq!(listed(&*client, "list/*", 10).await, BTreeSet::from(["list/*".to_owned()]), "no pattern");
    assert_eq!(listed(&*client, "nothing/", 10).await, BTreeSet::new());
    for claim in held.iter().chain(&others) {
        assert_eq!(client.release(claim, Trail::Clean).await, Ok(Released::Held));
    }
    assert_eq!(listed(&*client, "", 10).await, BTreeSet::new(), "nobody holds or waits");
    nothing_is_left(&*subject).await;
}

/// The names of all pages. Between the pages, another lock comes and goes.
async fn listed(client: &dyn Backend, prefix: &str, limit: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut after = None;
    for page in 0.. {
        assert!(page < 1000, "a listing without end");
        let answer = client.list(prefix, after.as_deref(), limit).await.expect("the store answers");
        for state in answer.locks {
            assert!(
                state.name.as_str().starts_with(prefix),
                "{:?} does not start with {prefix:?}",
                state.name
            );
            if state.is_held() {
                names.insert(state.name.as_str().to_owned());
            }
        }
        let Some(next) = answer.next else { break };
        after = Some(next);
        let passing = claim(&format!("{prefix}passing/{page}"), Mode::Exclusive, Duration::from_secs(60));
        granted(client.attempt(&passing, Line::Pass).await);
        assert_eq!(client.release(&passing, Trail::Clean).await, Ok(Released::Held));
    }
    names
}
