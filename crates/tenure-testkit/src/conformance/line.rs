//! The line: who is served, in which order, and what the dead cost the living.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Line, Mode, Released, Trail};

use crate::scene::{
    SLACK, busy, claim, exclusive, granted, inspect, locks, ms, nothing_is_left, nothing_stays, sleep, until,
    within,
};
use crate::subject::Subject;

/// First come, first served, whoever asks first when the lock is free; the token says so too.
pub(super) async fn the_line_is_served_in_order(subject: Arc<dyn Subject>) {
    let holder = subject.open().await;
    let line_ttl = holder.capabilities().line_ttl;
    let mut held = exclusive("order");
    let mut token = granted(holder.attempt(&held, Line::Join).await).token;
    let mut line = Vec::new();
    for place in 0..5 {
        let (client, claim) = (subject.open().await, exclusive("order"));
        let busy = busy(client.attempt(&claim, Line::Join).await);
        assert_eq!(busy.ahead, Some(place));
        assert!(busy.wake.at_latest <= line_ttl / 3, "keeps its place: {busy:?}");
        line.push((client, claim));
    }
    while !line.is_empty() {
        assert_eq!(holder.release(&held, Trail::Clean).await, Ok(Released::Held));
        // The last in line asks first, and a newcomer before all.
        busy(holder.attempt(&exclusive("order"), Line::Pass).await);
        for (client, later) in line.iter().skip(1).rev() {
            busy(client.attempt(later, Line::Join).await);
        }
        let (client, next) = line.remove(0);
        let next_token = granted(client.attempt(&next, Line::Join).await).token;
        assert!(next_token > token, "tokens rise in the order of the line");
        (held, token) = (next, next_token);
    }
    assert_eq!(holder.release(&held, Trail::Clean).await, Ok(Released::Held));
    nothing_is_left(&*subject).await;
}

/// A lock found free goes to the head of the line, not to whoever finds it.
pub(super) async fn a_lock_found_free_goes_to_the_head(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let (expiring, head) = (claim("found", Mode::Exclusive, ms(300)), exclusive("found"));
    granted(a.attempt(&expiring, Line::Join).await);
    busy(b.attempt(&head, Line::Join).await);
    let is_over = async || {
        let state = inspect(&*a, "found").await;
        state.holders.iter().all(|holder| holder.fingerprint != expiring.id.fingerprint())
    };
    until(SLACK, "the grant expires", is_over).await;
    busy(a.attempt(&exclusive("found"), Line::Pass).await);
    granted(b.attempt(&head, Line::Join).await);
    assert_eq!(b.release(&head, Trail::Clean).await, Ok(Released::Held));
    nothing_is_left(&*subject).await;
}

/// A stream of readers never starves a writer: who comes after it waits behind it.
pub(super) async fn readers_do_not_pass_a_writer(subject: Arc<dyn Subject>) {
    let client = subject.open().await;
    let reader = || claim("rw", Mode::Shared, Duration::from_secs(60));
    let (first, writer, second, third) = (reader(), exclusive("rw"), reader(), reader());
    granted(client.attempt(&first, Line::Join).await);
    assert_eq!(busy(client.attempt(&writer, Line::Join).await).ahead, Some(0));
    busy(client.attempt(&reader(), Line::Pass).await);
    assert_eq!(busy(client.attempt(&second, Line::Join).await).ahead, Some(1));
    assert_eq!(busy(client.attempt(&third, Line::Join).await).ahead, Some(2));

    assert_eq!(client.release(&first, Trail::Clean).await, Ok(Released::Held));
    busy(client.attempt(&second, Line::Join).await);
    granted(client.attempt(&writer, Line::Join).await);
    assert_eq!(client.release(&writer, Trail::Clean).await, Ok(Released::Held));
    for waited in [&third, &second] {
        granted(client.attempt(waited, Line::Join).await);
    }
    assert_eq!(inspect(&*client, "rw").await.holders.len(), 2, "readers hold it together");
    for held in [&second, &third] {
        assert_eq!(client.release(held, Trail::Clean).await, Ok(Released::Held));
    }
    nothing_is_left(&*subject).await;
}

/// Who only tries leaves nothing, also if it stood in line before.
pub(super) async fn try_acquire_never_joins_the_line(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let held = exclusive("try");
    granted(a.attempt(&held, Line::Join).await);
    let trying = locks(b.clone());
    for _ in 0..3 {
        assert!(trying.lock("try").try_acquire().await.expect("the store answers").is_none());
    }
    let undecided = exclusive("try");
    busy(b.attempt(&undecided, Line::Join).await);
    assert_eq!(busy(b.attempt(&undecided, Line::Pass).await).ahead, None);
    assert_eq!(inspect(&*a, "try").await.waiters, []);
    assert_eq!(a.release(&held, Trail::Clean).await, Ok(Released::Held));
    assert!(!inspect(&*a, "try").await.is_held(), "given to somebody who went away");
    trying.close(SLACK).await.expect("nothing to clean up");
    nothing_is_left(&*subject).await;
}

/// Dead waiters cost the living at most the bound that the store states. Redisson: 5 s each.
pub(super) async fn a_vanished_waiter_holds_nobody_up(subject: Arc<dyn Subject>) {
    let (a, c) = (subject.open().await, subject.open().await);
    let offers = a.capabilities();
    let held = exclusive("dead");
    granted(a.attempt(&held, Line::Join).await);
    for _ in 0..3 {
        let dying = subject.open().await;
        busy(dying.attempt(&exclusive("dead"), Line::Join).await);
        subject.vanish(dying).await;
    }
    let living = locks(c);
    let acquire = tokio::spawn(living.lock("dead").label("the living").acquire());
    let waits = async || inspect(&*a, "dead").await.waiters.iter().any(|w| w.label.as_str() == "the living");
    until(SLACK, "it stands in line", waits).await;

    assert_eq!(a.release(&held, Trail::Clean).await, Ok(Released::Held));
    let bound = offers.line_ttl + offers.first_ttl + SLACK;
    let guard = within(bound, "the dead give way", acquire).await.expect("no panic").expect("a grant");
    guard.release().await.expect("held all along");
    living.close(SLACK).await.expect("nothing to clean up");
    nothing_stays(&*subject).await;
}

/// Who leaves the line may have been the only one in the way. The line moves without anybody asking.
pub(super) async fn a_leaving_waiter_lets_the_line_move(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let reader = || claim("leave", Mode::Shared, Duration::from_secs(60));
    let (first, writer, second) = (reader(), exclusive("leave"), reader());
    for leaves_by_passing in [false, true] {
        granted(a.attempt(&first, Line::Join).await);
        busy(a.attempt(&writer, Line::Join).await);
        busy(b.attempt(&second, Line::Join).await);
        if leaves_by_passing {
            busy(a.attempt(&writer, Line::Pass).await);
        } else {
            assert_eq!(a.release(&writer, Trail::Clean).await, Ok(Released::Waited));
        }
        let state = inspect(&*a, "leave").await;
        assert_eq!(state.waiters, [], "{state:?}");
        assert_eq!(state.holders.len(), 2, "the reader behind the writer was served: {state:?}");
        granted(b.attempt(&second, Line::Join).await);
        for held in [&first, &second] {
            assert_eq!(a.release(held, Trail::Clean).await, Ok(Released::Held));
        }
    }
    nothing_is_left(&*subject).await;
}

/// A waiter is woken when its turn comes, or looks by itself before long. Redisson 5761, 1763: asleep until the ttl.
pub(super) async fn a_release_wakes_the_next(subject: Arc<dyn Subject>) {
    let (holding, waiting) = (locks(subject.open().await), locks(subject.open().await));
    let offers = holding.capabilities();
    for _ in 0..5 {
        let guard = holding.lock("wake").ttl(Duration::from_secs(60)).acquire().await.expect("free");
        let token = guard.token();
        let acquire = tokio::spawn(waiting.lock("wake").acquire());
        if offers.fifo {
            let stands = async || holding.inspect("wake").await.is_ok_and(|state| state.waiters.len() == 1);
            until(SLACK, "it stands in line", stands).await;
        } else {
            sleep(ms(50)).await;
        }
        guard.release().await.expect("held all along");
        let bound = offers.line_ttl / 3 + SLACK;
        let next = within(bound, "the next is woken", acquire).await.expect("no panic").expect("a grant");
        assert!(next.token() > token);
        next.release().await.expect("held all along");
    }
    nothing_is_left(&*subject).await;
}

/// A living waiter keeps its place, however long it takes. Redisson 3004: expelled after five minutes.
pub(super) async fn a_living_waiter_keeps_its_place(subject: Arc<dyn Subject>) {
    let (holding, waiting) = (locks(subject.open().await), locks(subject.open().await));
    let line_ttl = holding.capabilities().line_ttl;
    let guard = holding.lock("patience").ttl(Duration::from_secs(60)).acquire().await.expect("free");
    let stand = async |count| {
        let stands =
            async || holding.inspect("patience").await.is_ok_and(|state| state.waiters.len() == count);
        until(SLACK, "it stands in line", stands).await;
    };
    let first = tokio::spawn(waiting.lock("patience").acquire());
    stand(1).await;
    sleep(line_ttl + line_ttl / 4).await;
    let second = tokio::spawn(waiting.lock("patience").acquire());
    stand(2).await;
    guard.release().await.expect("held all along");
    let first = within(line_ttl + SLACK, "the first", first).await.expect("no panic").expect("a grant");
    assert!(!second.is_finished(), "the second came before the first");
    first.release().await.expect("held all along");
    let second = within(line_ttl + SLACK, "the second", second).await.expect("no panic").expect("a grant");
    second.release().await.expect("held all along");
    nothing_is_left(&*subject).await;
}
