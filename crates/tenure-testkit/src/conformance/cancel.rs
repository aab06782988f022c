//! Cancellation: whoever stops waiting, at whatever moment, leaves nothing.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure_core::Locks;

use crate::dice::Dice;
use crate::scene::{SLACK, locks, ms, nothing_is_left, sleep, until};
use crate::subject::Subject;
use crate::wrappers::{Laggy, Yielding};

/// What goes on while the acquire is cancelled.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scene {
    /// The lock is free.
    Free,
    /// Another holds it all the while.
    Held,
    /// Another holds it, and gives it back as soon as somebody waits.
    HandedOver,
}

/// The acquire future is dropped after its k-th poll, for every k until it is ready: nothing is left at the store, and
/// the holder is not disturbed. redis-py 3847, rslock 30: a cancelled acquire that keeps the lock.
pub(super) async fn cancelled_acquire_leaves_no_claim(subject: Arc<dyn Subject>) {
    let mut points = 0;
    for scene in [Scene::Free, Scene::Held, Scene::HandedOver] {
        // How the tasks take turns differs from run to run: a few rounds find more of the moments.
        for _round in 0..3 {
            for polls in 0.. {
                assert!(polls < 10_000, "an acquire that is never ready");
                let client = locks(Arc::new(Yielding::new(subject.open().await)));
                let acquire = client.lock("cancel").wait(ms(60)).acquire();
                let cancel = async |acquire| after_polls(acquire, polls).await;
                let outcome = play(&subject, scene, acquire, cancel).await;
                client.close(SLACK).await.expect("cleaned up");
                nothing_is_left(&*subject).await;
                if outcome.is_some() {
                    break;
                }
                points += 1;
            }
        }
    }
    println!("cancellation points: {points}");
}

/// The same at any moment, over a network that takes its time: the attempt under way is finished, then released.
pub(super) async fn cancelled_at_any_moment_leaves_no_claim(subject: Arc<dyn Subject>) {
    let dice = Dice::new(7);
    for seed in 0..60 {
        let scene = [Scene::Free, Scene::Held, Scene::HandedOver][seed % 3];
        let backend = Laggy::new(subject.open().await, seed as u64, ms(4), ms(4));
        let client = locks(Arc::new(backend));
        let acquire = client.lock("cancel").wait(ms(60)).acquire();
        let patience = dice.up_to(ms(20));
        let cancel = async |acquire| {
            tokio::select! {
                outcome = acquire => Some(outcome),
                () = sleep(patience) => None,
            }
        };
        play(&subject, scene, acquire, cancel).await;
        client.close(SLACK).await.expect("cleaned up");
        nothing_is_left(&*subject).await;
    }
}

/// A guard that is dropped, a release that is cancelled, work that panics: the lock is free after each.
pub(super) async fn a_dropped_guard_releases(subject: Arc<dyn Subject>) {
    let (a, b) = (locks(subject.open().await), locks(subject.open().await));
    let next = async |a: &Locks, how: &str| {
        let bound = a.capabilities().line_ttl / 3 + SLACK;
        let guard = b.lock("drop").wait(bound).acquire().await;
        guard.unwrap_or_else(|error| panic!("after {how}: {error}")).release().await.expect("held");
    };
    let long = Duration::from_secs(60);

    let guard = a.lock("drop").ttl(long).acquire().await.expect("free");
    drop(guard);
    next(&a, "a drop").await;

    let guard = a.lock("drop").ttl(long).acquire().await.expect("free");
    drop(guard.release());
    next(&a, "a release that was never polled").await;

    let run = a.lock("drop").ttl(long).run(async |_| panic!("on purpose: work may panic"));
    assert!(tokio::spawn(run).await.is_err());
    next(&a, "a panic").await;

    let run = a.lock("drop").ttl(long).run(async |_| std::future::pending::<()>().await);
    let is_held = async || b.inspect("drop").await.is_ok_and(|state| state.is_held());
    tokio::select! {
        _ = run => panic!("the work never ends"),
        () = until(SLACK, "the work runs", is_held) => {}
    }
    next(&a, "a cancelled run").await;

    let answer = a.lock("drop").ttl(long).run(async |_| Err::<(), _>("the work's own error")).await;
    assert_eq!(answer.expect("it ran"), Err("the work's own error"));
    next(&a, "an error").await;

    a.close(SLACK).await.expect("cleaned up");
    nothing_is_left(&*subject).await;
}

/// Sets the scene, plays `acquire` in it up to where `cancel` stops it, and ends the scene: answers whether it was
/// ready.
async fn play<F, G>(subject: &Arc<dyn Subject>, scene: Scene, acquire: F, cancel: G) -> Option<()>
where
    F: Future<Output = tenure_core::Result<tenure_core::Guard>>,
    G: AsyncFnOnce(F) -> Option<F::Output>,
{
    let holding = locks(subject.open().await);
    let holder = match scene {
        Scene::Free => None,
        Scene::Held | Scene::HandedOver => Some(holding.lock("cancel").acquire().await.expect("free")),
    };
    let held = holder.as_ref().map(tenure_core::Guard::lease);
    let giving_back = match (scene, holder) {
        (Scene::HandedOver, Some(guard)) => {
            let holding = holding.clone();
            tokio::spawn(async move {
                // As soon as somebody waits; if nobody ever does, a little later.
                for _ in 0..50 {
                    let waits = holding.inspect("cancel").await.is_ok_and(|state| !state.waiters.is_empty());
                    if waits {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                guard.release().await.expect("held all along");
                None
            })
        }
        (_, holder) => tokio::spawn(std::future::ready(holder)),
    };
    let outcome = cancel(acquire).await;
    let is_ready = outcome.as_ref().map(|_| ());
    if let (Scene::Held, Some(lease)) = (scene, &held) {
        assert!(lease.is_held(), "the holder was disturbed: {lease:?}");
        assert!(!matches!(outcome, Some(Ok(_))), "two holders");
    }
    if let Some(Ok(guard)) = outcome {
        guard.release().await.expect("held");
    }
    if let Some(guard) = giving_back.await.expect("no panic") {
        guard.release().await.expect("held all along");
    }
    is_ready
}

/// Polls `future` so many times, then drops it.
async fn after_polls<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
