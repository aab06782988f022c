//! The verbs by themselves: idempotent, exact, and deaf to what comes late.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Claim, Line, Mode, RefusalKind, Released, Renewal, Trail, Ttl};

use crate::scene::{
    SLACK, busy, claim, exclusive, granted, inspect, ms, nothing_is_left, nothing_stays, now, refused, renew,
    sleep, until, valid_until,
};
use crate::subject::Subject;

/// A request may be repeated: the second does nothing, and answers what the first did.
pub(super) async fn verbs_are_idempotent(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let (first, second) = (exclusive("twice"), exclusive("twice"));

    let token = granted(a.attempt(&first, Line::Join).await).token;
    for line in [Line::Join, Line::Pass] {
        let again = granted(a.attempt(&first, line).await);
        assert_eq!(again.token, token, "mine already is answered with the same token");
    }
    for _ in 0..2 {
        assert!(matches!(renew(&*a, &first).await, Renewal::Renewed { .. }));
    }
    if b.capabilities().fifo {
        for _ in 0..2 {
            assert_eq!(busy(b.attempt(&second, Line::Join).await).ahead, Some(0), "one place in line");
        }
        let state = inspect(&*a, "twice").await;
        assert_eq!((state.holders.len(), state.waiters.len()), (1, 1), "{state:?}");
    }
    assert_eq!(a.release(&first, Trail::Clean).await, Ok(Released::Held));
    assert_eq!(a.release(&first, Trail::Clean).await, Ok(Released::Absent));
    let next = granted(b.attempt(&second, Line::Join).await).token;
    assert!(next > token);
    assert_eq!(a.release(&first, Trail::Clean).await, Ok(Released::Absent), "again, against a newer holder");
    assert_eq!(granted(b.attempt(&second, Line::Join).await).token, next);
    assert_eq!(b.release(&second, Trail::Clean).await, Ok(Released::Held));
    nothing_is_left(&*subject).await;
}

/// What a claim sent before it was released, and what arrives only then, finds it ended: nothing is taken, kept or
/// given away. `ZooKeeper` 1262, simstudio 6864: the timed-out request that took the lock after all.
pub(super) async fn late_duplicates_do_nothing(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let (held, waited, unseen, newer) =
        (exclusive("late"), exclusive("late"), exclusive("late"), exclusive("late"));

    granted(a.attempt(&held, Line::Join).await);
    busy(a.attempt(&waited, Line::Join).await);
    a.release(&waited, Trail::Doubtful).await.expect("the store answers");
    assert_eq!(a.release(&held, Trail::Doubtful).await, Ok(Released::Held));
    // Its attempt is still on its way when the release arrives.
    assert_eq!(a.release(&unseen, Trail::Doubtful).await, Ok(Released::Absent));

    for is_taken in [false, true] {
        let token = if is_taken { Some(granted(b.attempt(&newer, Line::Join).await).token) } else { None };
        for late in [&held, &waited, &unseen] {
            for line in [Line::Join, Line::Pass] {
                assert_eq!(refused(a.attempt(late, line).await).kind, RefusalKind::Ended);
            }
            assert!(matches!(renew(&*a, late).await, Renewal::Lost(_)), "a late renewal");
            assert_eq!(a.release(late, Trail::Doubtful).await, Ok(Released::Absent), "a late release");
        }
        let state = inspect(&*b, "late").await;
        assert_eq!(state.holders.len(), usize::from(is_taken), "{state:?}");
        assert!(state.waiters.is_empty(), "{state:?}");
        if is_taken {
            assert_eq!(Some(granted(b.attempt(&newer, Line::Join).await).token), token);
        }
    }
    assert_eq!(b.release(&newer, Trail::Clean).await, Ok(Released::Held));
    nothing_stays(&*subject).await;
}

/// Only who knows the claim can end it. etcd 22082: a stale unlock that deletes the newer grant.
pub(super) async fn only_the_exact_claim_releases(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let (older, held, other) = (exclusive("mine"), exclusive("mine"), exclusive("mine"));
    granted(a.attempt(&older, Line::Join).await);
    assert_eq!(a.release(&older, Trail::Clean).await, Ok(Released::Held));
    let token = granted(a.attempt(&held, Line::Join).await).token;

    for client in [&a, &b] {
        for stranger in [&older, &other] {
            assert_eq!(client.release(stranger, Trail::Clean).await, Ok(Released::Absent));
            assert!(matches!(renew(&**client, stranger).await, Renewal::Lost(_)));
        }
    }
    assert_eq!(granted(a.attempt(&held, Line::Join).await).token, token, "still held");
    let elsewhere = Claim { name: exclusive("other").name, ..held.clone() };
    assert_eq!(
        a.release(&elsewhere, Trail::Clean).await,
        Ok(Released::Absent),
        "the same id under another name"
    );
    // Whoever knows the claim may end it, whichever client that is.
    assert_eq!(b.release(&held, Trail::Clean).await, Ok(Released::Held));
    nothing_is_left(&*subject).await;
}

/// Two tasks of one process are two parties. distributed-lock (Rust): one identity per lock object.
pub(super) async fn claims_of_one_client_exclude_each_other(subject: Arc<dyn Subject>) {
    let client = subject.open().await;
    let (first, second) = (exclusive("siblings"), exclusive("siblings"));
    granted(client.attempt(&first, Line::Pass).await);
    busy(client.attempt(&second, Line::Pass).await);
    assert_eq!(client.release(&second, Trail::Clean).await, Ok(Released::Absent));
    assert_eq!(client.release(&first, Trail::Clean).await, Ok(Released::Held));
    granted(client.attempt(&second, Line::Pass).await);
    assert_eq!(client.release(&second, Trail::Clean).await, Ok(Released::Held));
    nothing_is_left(&*subject).await;
}

/// Once lost, lost: a renewal never re-creates. redis-semaphore 175, redlock-rb 36.
pub(super) async fn a_lost_claim_is_never_renewed_back(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let lost = claim("gone", Mode::Exclusive, ms(150));
    granted(a.attempt(&lost, Line::Join).await);
    until(SLACK, "the grant expires", async || !inspect(&*b, "gone").await.is_held()).await;

    assert!(matches!(renew(&*a, &lost).await, Renewal::Lost(_)), "expired, and nobody came");
    assert!(!inspect(&*b, "gone").await.is_held(), "re-created");

    let next = exclusive("gone");
    let token = granted(b.attempt(&next, Line::Join).await).token;
    assert!(matches!(renew(&*a, &lost).await, Renewal::Lost(_)), "taken by another");
    assert_eq!(granted(b.attempt(&next, Line::Join).await).token, token);
    assert_eq!(b.release(&next, Trail::Clean).await, Ok(Released::Held));

    assert!(matches!(renew(&*b, &next).await, Renewal::Lost(_)), "released");
    assert!(matches!(renew(&*a, &exclusive("gone")).await, Renewal::Lost(_)), "never granted");
    assert!(!inspect(&*b, "gone").await.is_held(), "re-created");
    nothing_is_left(&*subject).await;
}

/// A renewal is never for less than what is left.
pub(super) async fn renewing_never_shortens(subject: Arc<dyn Subject>) {
    let client = subject.open().await;
    let long = exclusive("long");
    let short = Claim { ttl: Ttl::new(ms(60)).expect("a valid ttl"), ..long.clone() };
    granted(client.attempt(&long, Line::Join).await);
    assert!(matches!(renew(&*client, &short).await, Renewal::Renewed { .. }));
    granted(client.attempt(&short, Line::Join).await);
    // Not a race: however late this looks, sixty seconds are not over.
    sleep(ms(200)).await;
    assert!(inspect(&*client, "long").await.is_held(), "shortened");
    assert_eq!(client.release(&long, Trail::Clean).await, Ok(Released::Held));
    nothing_is_left(&*subject).await;
}

/// Claims of a lane are renewed together, and each gets its own answer.
pub(super) async fn renewals_are_answered_in_order(subject: Arc<dyn Subject>) {
    let client = subject.open().await;
    let names: Vec<_> = (0..20).map(|i| format!("batch/{i}")).collect();
    let claims: Vec<_> = names.iter().map(|name| Arc::new(exclusive(name))).collect();
    for held in claims.iter().step_by(3) {
        granted(client.attempt(held, Line::Pass).await);
    }
    let mut lanes = std::collections::BTreeMap::<u32, Vec<usize>>::new();
    for (i, claim) in claims.iter().enumerate() {
        lanes.entry(client.lane(&claim.name)).or_default().push(i);
    }
    for numbers in lanes.values() {
        let lane: Vec<_> = numbers.iter().map(|&i| claims[i].clone()).collect();
        let answers = client.renew(&lane).await;
        assert_eq!(answers.len(), lane.len());
        for (&i, answer) in numbers.iter().zip(answers) {
            let is_renewed = matches!(answer, Ok(Renewal::Renewed { .. }));
            assert_eq!(is_renewed, i % 3 == 0, "claim {i}: {answer:?}");
        }
    }
    assert_eq!(client.renew(&[]).await.len(), 0);
    for held in claims.iter().step_by(3) {
        assert_eq!(client.release(held, Trail::Clean).await, Ok(Released::Held));
    }
    nothing_is_left(&*subject).await;
}

/// A holder's validity ends before the store's: whatever the answer's way took, and however late a pushed grant was
/// read.
pub(super) async fn a_grant_is_dated_before_its_request(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let first = claim("dated", Mode::Exclusive, ms(600));
    let asked_at = now();
    let grant = granted(a.attempt(&first, Line::Join).await);
    assert!(grant.ttl <= first.ttl.get());
    assert!(grant.since >= asked_at, "dated before anybody asked");
    until(SLACK, "the grant expires", async || !inspect(&*b, "dated").await.is_held()).await;
    let free_at = now();
    assert!(
        valid_until(&grant) < free_at,
        "valid for {:?} more",
        valid_until(&grant).saturating_since(free_at)
    );

    if !a.capabilities().fifo {
        return;
    }
    let (holder, waiter) = (exclusive("dated"), exclusive("dated"));
    granted(a.attempt(&holder, Line::Join).await);
    let signal = busy(b.attempt(&waiter, Line::Join).await).wake.signal;
    assert_eq!(a.release(&holder, Trail::Clean).await, Ok(Released::Held));
    let bound = a.capabilities().first_ttl.max(a.capabilities().line_ttl) + SLACK;
    until(bound, "an unread grant expires", async || {
        let state = inspect(&*a, "dated").await;
        !state.is_held() && state.waiters.is_empty()
    })
    .await;
    if let Some(signal) = signal {
        let told = tokio::select! {
            told = signal => told,
            () = sleep(ms(500)) => None,
        };
        if let Some(pushed) = told {
            assert!(
                valid_until(&pushed) < now(),
                "a grant that lay unread past its end is dated from its reading"
            );
        }
    }
    b.release(&waiter, Trail::Clean).await.expect("the store answers");
    nothing_is_left(&*subject).await;
}

/// What a name is used as is fixed while anyone holds or waits; the refusal names both uses.
pub(super) async fn another_shape_is_refused(subject: Arc<dyn Subject>) {
    let client = subject.open().await;
    let offers = client.capabilities();
    let five = Mode::Permits { n: 1, of: 5 };
    let modes = [Mode::Exclusive, Mode::Permits { n: 1, of: 3 }, five, Mode::Once];
    let modes: Vec<_> = modes.into_iter().filter(|mode| offers.offers(*mode)).collect();
    for used in &modes {
        let holder = claim("shape", *used, Duration::from_secs(60));
        granted(client.attempt(&holder, Line::Join).await);
        for wanted in modes.iter().filter(|mode| *mode != used) {
            let other = claim("shape", *wanted, Duration::from_secs(60));
            for line in [Line::Join, Line::Pass] {
                let refusal = refused(client.attempt(&other, line).await);
                assert_eq!(refusal.kind, RefusalKind::Shape);
                for shape in [used.shape(), wanted.shape()] {
                    let shape = shape.to_string();
                    assert!(refusal.message.contains(&shape), "{:?} does not name {shape}", refusal.message);
                }
            }
        }
        let state = inspect(&*client, "shape").await;
        assert_eq!((state.holders.len(), state.waiters.len()), (1, 0), "nothing changed");
        assert_eq!(client.release(&holder, Trail::Clean).await, Ok(Released::Held));
    }
    nothing_is_left(&*subject).await;
}
