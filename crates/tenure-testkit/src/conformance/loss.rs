//! Loss: told in time, by the local clock alone, once and for ever.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use tenure_core::{BootInstant, Error, Lease, LeaseState, Why};

use crate::scene::{SLACK, locks, ms, nothing_stays, now, sleep, until, within};
use crate::subject::Subject;
use crate::wrappers::Silent;

/// How often a lease is lost in a case that measures when its holder is told. A busy machine may delay some of the
/// news; a broken clock delays all of it.
const ROUNDS: u32 = 8;

/// A silent store takes a lease away on time: nobody is told late, and whoever looks later sees it at first look.
pub(super) async fn loss_is_told_when_the_store_falls_silent(subject: Arc<dyn Subject>) {
    let mut told_in_time = 0;
    for _ in 0..ROUNDS {
        let silent = Silent::new(subject.open().await);
        let switch = silent.switch();
        let client = locks(Arc::new(silent));
        let guard = client.lock("silent").ttl(ms(600)).acquire().await.expect("free");
        switch.fall_silent();
        let told = watch(guard.lease());
        assert_eq!(within(ms(600) + SLACK, "the loss", guard.lost()).await, Why::Expired);
        told_in_time += u32::from(in_time(&told));
        // The store knows the claim for a little longer: core releases it once the store speaks again.
        switch.speak();
        client.close(Duration::from_secs(20)).await.expect("cleaned up");
    }
    println!("told before the end of validity: {told_in_time} of {ROUNDS}");
    assert!(told_in_time > 0, "nobody was told in time");
    nothing_stays(&*subject).await;
}

/// Blocking code in the async runtime, the classic mistake, does not keep a watcher on another thread from being told.
pub(super) async fn loss_is_told_when_the_runtime_is_blocked(subject: Arc<dyn Subject>) {
    let mut told_in_time = 0;
    for _ in 0..ROUNDS {
        let subject = subject.clone();
        let holder = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let client = locks(subject.open().await);
                let guard = client.lock("blocked").ttl(ms(300)).acquire().await.expect("free");
                let told = watch(guard.lease());
                std::thread::sleep(ms(450));
                assert_eq!(guard.state(), LeaseState::Lost { why: Why::Expired }, "at the first look");
                assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
                client.close(SLACK).await.expect("cleaned up");
                in_time(&told)
            })
        });
        let joined = tokio::task::spawn_blocking(|| holder.join()).await.expect("no panic");
        told_in_time += u32::from(joined.expect("no panic"));
    }
    println!("told before the end of validity: {told_in_time} of {ROUNDS}");
    assert!(told_in_time > 0, "nobody was told in time");
    nothing_stays(&*subject).await;
}

/// A watcher with a thread and a runtime of its own: what it knew of the end of validity, and when it was told.
fn watch(lease: Lease) -> mpsc::Receiver<(BootInstant, BootInstant)> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut known = lease.valid_until();
            loop {
                tokio::select! {
                    biased;
                    _ = lease.ended() => break,
                    () = lease.changed(known) => {}
                }
                // Renewed, or ended: an end is not a new validity.
                if lease.is_held() {
                    known = lease.valid_until();
                }
            }
            // The receiver may have failed for another reason.
            let _ = sender.send((known, now()));
        });
    });
    receiver
}

fn in_time(told: &mpsc::Receiver<(BootInstant, BootInstant)>) -> bool {
    let (valid_until, told_at) = told.recv_timeout(SLACK).expect("the watcher is told");
    told_at <= valid_until
}

/// Lost is for ever, also when the store speaks again and would still renew. distkit: "clears the mark if ownership is
/// later regained".
pub(super) async fn a_lost_lease_never_comes_back(subject: Arc<dyn Subject>) {
    let silent = Silent::new(subject.open().await);
    let switch = silent.switch();
    let client = locks(Arc::new(silent.with_deadline(ms(50))));
    let other = locks(subject.open().await);
    let guard = client.lock("lost").ttl(ms(400)).acquire().await.expect("free");
    let lease = guard.lease();
    switch.fall_silent();
    within(ms(400) + SLACK, "the loss", lease.lost()).await;
    switch.speak();
    // Core releases what it lost: the next has it without anybody dropping the guard.
    let bound = other.capabilities().line_ttl + SLACK;
    let next = within(bound, "the next", other.lock("lost").acquire()).await.expect("a grant");
    assert!(next.token() > guard.token());
    for _ in 0..20 {
        assert_eq!(lease.state(), LeaseState::Lost { why: Why::Expired });
        sleep(ms(10)).await;
    }
    assert!(matches!(guard.release().await, Err(Error::Lost { why: Why::Expired, .. })));
    assert!(next.is_held(), "the lost one's release touched its successor");
    next.release().await.expect("held");
    client.close(Duration::from_secs(20)).await.expect("cleaned up");
    nothing_stays(&*subject).await;
}

/// An unknown renewal neither renews nor loses: the store may be gone for a while. redbeat 230, dynamolock 280: one
/// error, lock dropped.
pub(super) async fn a_short_silence_loses_nothing(subject: Arc<dyn Subject>) {
    let silent = Silent::new(subject.open().await).with_deadline(ms(50));
    let switch = silent.switch();
    let client = locks(Arc::new(silent));
    let guard = client.lock("blip").ttl(Duration::from_secs(10)).acquire().await.expect("free");
    switch.fall_silent();
    let is_at_risk = async || matches!(guard.state(), LeaseState::AtRisk { .. });
    until(Duration::from_secs(10), "the lease is at risk", is_at_risk).await;
    switch.speak();
    let is_held = async || matches!(guard.state(), LeaseState::Held { .. });
    until(Duration::from_secs(10), "the lease is renewed again", is_held).await;
    guard.release().await.expect("held all along");
    nothing_stays(&*subject).await;
}

/// Work under `run` is dropped when the lock is lost, and its caller is told.
pub(super) async fn run_stops_the_work_at_loss(subject: Arc<dyn Subject>) {
    struct Dropped(mpsc::Sender<BootInstant>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            // The receiver may be gone if the case has failed.
            let _ = self.0.send(now());
        }
    }
    let silent = Silent::new(subject.open().await);
    let switch = silent.switch();
    let client = locks(Arc::new(silent));
    let (sender, dropped) = mpsc::channel();
    let silencing = switch.clone();
    let run = client.lock("run").ttl(ms(400)).run(async move |_lease| {
        let _dropped = Dropped(sender);
        silencing.fall_silent();
        std::future::pending::<()>().await;
    });
    let answer = within(ms(400) + SLACK, "the run", run).await;
    assert!(matches!(answer, Err(Error::Lost { why: Why::Expired, .. })), "{answer:?}");
    assert!(dropped.try_recv().is_ok(), "the work was still alive when the caller was told");
    switch.speak();
    client.close(Duration::from_secs(20)).await.expect("cleaned up");
    nothing_stays(&*subject).await;
}
