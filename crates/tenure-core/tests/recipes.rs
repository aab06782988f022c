//! What is built on locks: do-once, several as one, elections, the blocking front, detach and adopt.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::{Error, Eviction, Locks, Memory, Once, OnceStatus, RefusalKind, Why, blocking};

/// Requirement A5: three failures, then a success, run four times and leave it settled; a fifth call gets the stored
/// result without running.
#[tokio::test]
async fn three_failures_then_a_success_run_four_times() {
    let locks = Locks::in_memory();
    let runs = AtomicU32::new(0);
    let call = || {
        locks.once("charge").run(|_| async {
            match runs.fetch_add(1, Ordering::SeqCst) {
                0..3 => Err("declined"),
                n => Ok(n),
            }
        })
    };
    for _ in 0..3 {
        assert_eq!(call().await.unwrap(), Err("declined"));
        assert_eq!(locks.once("charge").status().await.unwrap(), OnceStatus::Open);
    }
    assert_eq!(call().await.unwrap(), Ok(Once::Ran(3)));
    assert_eq!(call().await.unwrap(), Ok(Once::AlreadyDone(3)));
    assert_eq!(runs.load(Ordering::SeqCst), 4);
    assert!(matches!(locks.once("charge").status().await.unwrap(), OnceStatus::Done { .. }));
}

/// Requirement A4: *processing* and *processed* are told apart, and each has its own lifetime.
#[tokio::test]
async fn a_second_caller_is_told_or_waits_for_the_result() {
    let locks = Locks::in_memory();
    let (go, gate) = tokio::sync::oneshot::channel::<()>();
    let (started, has_started) = tokio::sync::oneshot::channel::<()>();
    let first = tokio::spawn(locks.once("report").run(|_| async move {
        started.send(()).unwrap();
        gate.await.unwrap();
        Ok::<_, ()>(String::from("done"))
    }));
    has_started.await.unwrap();
    let never = |_| async { panic!("ran twice") };
    let told = locks.once("report").run::<String, (), _, _>(never).await.unwrap().unwrap();
    assert!(matches!(told, Once::InProgress { left: Some(_) }), "{told:?}");
    assert!(matches!(locks.once("report").status().await.unwrap(), OnceStatus::InProgress(_)));

    let joined: Vec<_> = (0..5)
        .map(|_| {
            let wait = locks.once("report").wait(Duration::from_secs(30));
            tokio::spawn(wait.run::<String, (), _, _>(|_| async { panic!("ran twice") }))
        })
        .collect();
    while locks.stats().waiting < 5 {
        tokio::task::yield_now().await;
    }
    go.send(()).unwrap();
    assert_eq!(first.await.unwrap().unwrap(), Ok(Once::Ran("done".into())));
    for waiter in joined {
        assert_eq!(waiter.await.unwrap().unwrap(), Ok(Once::AlreadyDone("done".into())));
    }
}

#[tokio::test]
async fn a_panic_or_a_cancellation_frees_a_do_once_for_the_next() {
    let locks = Locks::in_memory();
    let panicked = tokio::spawn(locks.once("x").run::<(), (), _, _>(|_| async { panic!("on purpose") }));
    assert!(panicked.await.is_err());
    let (started, has_started) = tokio::sync::oneshot::channel::<()>();
    let cancelled =
        tokio::spawn(locks.once("x").wait(Duration::from_secs(30)).run::<(), (), _, _>(|_| async {
            started.send(()).unwrap();
            std::future::pending().await
        }));
    has_started.await.unwrap();
    cancelled.abort();
    let ran = locks.once("x").wait(Duration::from_secs(30)).run(|_| async { Ok::<_, ()>(7) }).await.unwrap();
    assert_eq!(ran, Ok(Once::Ran(7)));
}

#[tokio::test]
async fn a_run_whose_lease_was_taken_is_told_that_nothing_is_recorded() {
    let locks = Locks::in_memory();
    let evictor = locks.clone();
    let done = locks
        .once("x")
        .run(|_| async move {
            // Taken away and passed on at once: the settle must be refused. No await after it, so that the loss is not
            // noticed before the work is done.
            evictor.evict("x", Eviction::because("test").unwrap().force()).await.unwrap();
            Ok::<_, ()>(1)
        })
        .await;
    assert!(
        matches!(done, Ok(Ok(Once::Unrecorded(1))) | Err(Error::Lost { why: Why::Evicted { .. }, .. })),
        "{done:?}"
    );
    assert_eq!(locks.once("x").status().await.unwrap(), OnceStatus::Open);
}

#[tokio::test]
async fn a_forgotten_result_is_run_again_and_a_foreign_record_is_refused() {
    let locks = Locks::in_memory();
    let run = || locks.once("x").run(|_| async { Ok::<_, ()>(1) });
    assert_eq!(run().await.unwrap(), Ok(Once::Ran(1)));
    let other_type = locks.once("x").run::<String, (), _, _>(|_| async { unreachable!() }).await.unwrap_err();
    assert!(matches!(other_type, Error::Refused { .. }), "{other_type}");
    assert!(locks.once("x").forget().await.unwrap());
    assert!(!locks.once("x").forget().await.unwrap());
    assert_eq!(run().await.unwrap(), Ok(Once::Ran(1)));
}

/// A result that could not be kept was thrown away, and the work done again by every caller.
#[tokio::test]
async fn what_was_done_is_never_done_again_for_its_result() {
    let locks = Locks::in_memory();
    let runs = AtomicU32::new(0);
    let work = |result| {
        runs.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ()>(result) }
    };
    let large = "x".repeat(300_000);
    let done = locks.once("large").run(|_| work(large.clone())).await.unwrap();
    assert_eq!(done, Ok(Once::Ran(large.clone())), "who ran it has the result");
    for _ in 0..2 {
        assert_eq!(locks.once("large").run(|_| work(large.clone())).await.unwrap(), Ok(Once::ResultNotKept));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert!(matches!(locks.once("large").status().await.unwrap(), OnceStatus::Done { .. }));
    // JSON has no such keys.
    let keyed = || locks.once("keyed").run(|_| async { Ok::<_, ()>(HashMap::from([((1, 2), 3)])) });
    assert_eq!(keyed().await.unwrap(), Ok(Once::Ran(HashMap::from([((1, 2), 3)]))));
    assert_eq!(keyed().await.unwrap(), Ok(Once::ResultNotKept));
    // The largest that fits, byte for byte, and one more.
    for (name, bytes, then) in [("fits", 256 << 10, true), ("not", (256 << 10) + 1, false)] {
        let bytes = tenure_core::Bytes::from(vec![0; bytes]);
        let run = || locks.once(name).run_bytes(|_| async { Ok::<_, ()>(bytes.clone()) });
        assert_eq!(run().await.unwrap(), Ok(Once::Ran(bytes.clone())));
        let then = if then { Once::AlreadyDone(bytes.clone()) } else { Once::ResultNotKept };
        assert_eq!(run().await.unwrap(), Ok(then));
    }
}

/// Random overlapping sets, in any order, never deadlock; each set is exclusive on each of its names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_sets_never_deadlock() {
    let locks = Locks::in_memory();
    let inside: Arc<[AtomicU32; 5]> = Arc::default();
    let tasks: Vec<_> = (0..40_u32)
        .map(|seed| {
            let (locks, inside) = (locks.clone(), inside.clone());
            tokio::spawn(async move {
                let mut random = u64::from(seed) * 2 + 1;
                for _ in 0..20 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let mut members: Vec<usize> = (0..5).filter(|i| random >> (40 + i) & 1 == 1).collect();
                    if members.is_empty() {
                        members.push(0);
                    }
                    if random >> 60 & 1 == 1 {
                        members.reverse();
                    }
                    let names: Vec<String> = members.iter().map(|i| format!("lock-{i}")).collect();
                    let set = locks.all(&names).run(|leases| async move {
                        assert!(leases.iter().all(tenure_core::Lease::is_held));
                    });
                    let guard = locks.all(&names).acquire().await.unwrap();
                    for i in &members {
                        assert_eq!(inside[*i].fetch_add(1, Ordering::SeqCst), 0, "two in lock-{i}");
                    }
                    tokio::task::yield_now().await;
                    for i in &members {
                        inside[*i].fetch_sub(1, Ordering::SeqCst);
                    }
                    guard.release().await.unwrap();
                    set.await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(locks.held_count(), 0);
}

#[tokio::test]
async fn a_set_is_taken_whole_or_not_at_all_and_lost_with_any_member() {
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let c = locks.lock("c").acquire().await.unwrap();
    let failed = locks.all(["c", "a", "b"]).wait(Duration::from_millis(50)).acquire().await;
    assert!(matches!(failed, Err(Error::TimedOut { lock, .. }) if lock.as_str() == "c"));
    assert_eq!(memory.stored_names().len(), 1, "a and b were given back");
    // What was not even one lock was held for ever.
    let none = locks.all(Vec::<String>::new()).run(|_| async { unreachable!() }).await;
    assert!(matches!(none, Err(Error::Refused { refusal, .. }) if refusal.kind == RefusalKind::Limit));
    c.release().await.unwrap();

    let all = locks.all(["b", "a", "b"]).acquire().await.unwrap();
    assert!(all.token("a").unwrap() < all.token("b").unwrap(), "taken in the order of their names");
    assert_eq!(all.token("c"), None);
    locks.evict("a", Eviction::because("test").unwrap()).await.unwrap();
    assert!(matches!(all.lost().await, Error::Lost { lock, .. } if lock.as_str() == "a"));
    assert!(!all.is_held() && all.valid_for().is_zero());
    assert!(all.release().await.is_err());
    locks.close(Duration::from_secs(10)).await.unwrap();
    assert!(
        memory.stored_names().iter().all(|name| name.as_str() == "a"),
        "only the tombstone of the evicted"
    );
}

#[tokio::test]
async fn leadership_passes_on_and_everybody_sees_it() {
    let locks = Locks::in_memory().namespace("cluster").unwrap();
    let election =
        |label: &str| locks.election("scheduler").label(label).look_every(Duration::from_millis(10));
    let mut observation = election("observer").observe().unwrap();
    assert_eq!(observation.next().await.unwrap(), None);
    let first = election("one").campaign().await.unwrap();
    assert_eq!(observation.next().await.unwrap().unwrap().label.as_str(), "one");
    let candidate = election("two");
    let second = tokio::spawn(async move { candidate.campaign().await });
    while locks.stats().waiting < 1 {
        tokio::task::yield_now().await;
    }
    let lease = tenure_core::Lease::clone(&first);
    first.resign().await.unwrap();
    assert!(!lease.is_held());
    let second = second.await.unwrap().unwrap();
    assert_eq!(observation.next().await.unwrap().unwrap().label.as_str(), "two");
    assert_eq!(election("x").leader().await.unwrap().unwrap().token, Some(second.token()));
}

#[test]
fn the_blocking_front_works_outside_and_inside_a_runtime() {
    let exercise = || {
        let locks = blocking::Locks::in_memory();
        let guard = locks.lock("x").ttl(Duration::from_millis(100)).acquire().unwrap();
        assert!(locks.lock("x").try_acquire().unwrap().is_none());
        assert!(matches!(
            locks.lock("x").wait(Duration::from_millis(20)).acquire(),
            Err(Error::TimedOut { .. })
        ));
        // Busy for several ttls: the background thread renews.
        std::thread::sleep(Duration::from_millis(400));
        assert!(guard.is_held());
        guard.release().unwrap();
        assert!(locks.lock("x").run(tenure_core::Lease::is_held).unwrap());
        assert_eq!(locks.lock("x").try_run(|_| 5).unwrap(), Some(5));
        assert_eq!(locks.once("y").run(|_| Err::<i32, _>("no")).unwrap(), Err("no"));
        assert_eq!(locks.once("y").run(|_| Ok::<_, ()>(1)).unwrap(), Ok(Once::Ran(1)));
        assert_eq!(locks.once("y").run(|_| Ok::<_, ()>(2)).unwrap(), Ok(Once::AlreadyDone(1)));
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            locks.lock("x").run(|_| panic!("on purpose"))
        }));
        assert!(unwound.is_err());
        locks.lock("x").wait(Duration::from_secs(30)).acquire().unwrap().release().unwrap();
        locks.close(Duration::from_secs(30)).unwrap();
    };
    exercise();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { exercise() });
}

#[test]
fn the_blocking_front_has_what_is_built_on_locks() {
    let locks = blocking::Locks::in_memory();
    let both = locks.all(["b", "a"]).wait(Duration::from_secs(30)).acquire().unwrap();
    assert!(both.is_held() && both.token("a").is_some());
    let names = |page: tenure_core::LockPage| page.locks.into_iter().map(|lock| lock.name.to_string());
    assert_eq!(names(locks.list("", None, 10).unwrap()).collect::<Vec<_>>(), ["a", "b"]);
    let eviction = Eviction::because("test").unwrap().only(both.token("a").unwrap()).force();
    assert_eq!(locks.evict("a", eviction).unwrap(), 1);
    assert!(matches!(both.release(), Err(Error::Lost { lock, .. }) if lock.as_str() == "a"));
    assert_eq!(locks.all(["a", "b"]).run(<[tenure_core::Lease]>::len).unwrap(), 2);
    let lost = locks.all(["a"]).run(|leases| {
        locks.evict("a", Eviction::because("test").unwrap().force()).unwrap();
        while leases[0].is_held() {
            std::thread::yield_now();
        }
    });
    assert!(matches!(lost, Err(Error::Lost { why: Why::Evicted { .. }, .. })), "{lost:?}");
    assert!(matches!(locks.all(Vec::<String>::new()).acquire(), Err(Error::Refused { .. })));

    let election = locks.election("scheduler").label("one").look_every(Duration::from_millis(10));
    let mut leaders = election.observe().unwrap().map(|leader| leader.unwrap().map(|leader| leader.token));
    assert_eq!(leaders.next(), Some(None));
    let leadership = election.campaign().unwrap();
    assert_eq!(election.leader().unwrap().unwrap().label.as_str(), "one");
    assert_eq!(leaders.next(), Some(Some(Some(leadership.token()))));
    leadership.resign().unwrap();
    assert_eq!(leaders.next(), Some(None));

    let once = || locks.once("x").label("one").reason("test");
    assert_eq!(once().status().unwrap(), OnceStatus::Open);
    assert_eq!(once().run(|_| Ok::<_, ()>(1)).unwrap(), Ok(Once::Ran(1)));
    assert!(matches!(once().status().unwrap(), OnceStatus::Done { .. }));
    assert!(once().forget().unwrap() && !once().forget().unwrap());
}

#[tokio::test]
async fn a_detached_claim_moves_and_is_adopted_once() {
    let memory = Memory::new();
    let (here, there) = (Locks::new(memory.clone()), Locks::new(memory.clone()));
    let guard = here.lock("x").ttl(Duration::from_secs(5)).acquire().await.unwrap();
    let token = guard.token();
    let detached = guard.detach().await.unwrap();
    assert!(there.lock("x").try_acquire().await.unwrap().is_none(), "it lives on without its guard");
    let text = detached.to_string();
    assert!(!format!("{detached:?}").contains(&text[60..80]), "only the text form gives the secret away");
    assert!(there.renew(&detached).await.unwrap() > Duration::from_secs(4));
    let adopted = there.adopt(text.parse().unwrap()).await.unwrap();
    assert_eq!(adopted.token(), token);
    for locks in [&here, &there] {
        let twice = locks.adopt(detached.clone()).await;
        assert!(matches!(twice, Err(Error::Lost { why: Why::Gone, .. })), "not twice: {twice:?}");
        assert!(
            matches!(locks.renew(&detached).await, Err(Error::Lost { .. })),
            "its text is worth nothing now"
        );
        assert!(
            matches!(locks.release(&detached).await, Err(Error::Lost { .. })),
            "its text is worth nothing now"
        );
    }
    assert!(adopted.is_held());
    let again = adopted.detach().await.unwrap();
    here.release(&again).await.unwrap();
    assert!(matches!(there.adopt(again).await, Err(Error::Lost { why: Why::Gone, .. })), "not after its end");
    assert!(there.lock("x").try_acquire().await.unwrap().is_some());
    assert!("tenure1-00".parse::<tenure_core::DetachedClaim>().is_err());
}

/// What is refused before anything is sent to the store is an acquire all the same: the count of refusals stood still.
#[tokio::test]
async fn refusals_before_any_request_are_counted() {
    let locks = Locks::in_memory();
    assert!(locks.lock("b").ttl(Duration::ZERO).acquire().await.is_err());
    assert!(locks.lock("").try_acquire().await.is_err());
    assert!(locks.lock("b").permits(3, 2).run(|_| async {}).await.is_err());
    assert!(locks.all(["a", "", "b"]).acquire().await.is_err());
    assert!(locks.all(["a", "b"]).ttl(Duration::ZERO).acquire().await.is_err());
    assert!(locks.once("").run(|_| async { Ok::<_, ()>(1) }).await.is_err());
    let stats = locks.stats();
    assert_eq!((stats.refused, stats.acquire.count(), stats.attempts), (6, 6, 0));
}
