//! A lease is lost on time whatever the async runtime does: the news comes from the clock's own thread.

use std::sync::mpsc;
use std::time::Duration;

use tenure_core::clock::{Clock, SystemClock};
use tenure_core::{BootInstant, Error, Lease, LeaseState, Locks, Why};

const TTL: Duration = Duration::from_millis(300);
/// A busy machine may delay some of the news; a lease that tells too late delays all of it.
const ROUNDS: usize = 10;

/// Blocking code in an async task, the classic mistake: the holder's only thread sleeps past its lease.
#[test]
fn a_holder_that_blocks_its_runtime_sees_the_loss_at_first_look() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let locks = Locks::in_memory();
        let guard = locks.lock("blocked").ttl(TTL).acquire().await.unwrap();
        std::thread::sleep(TTL + TTL / 10);
        assert_eq!(guard.state(), LeaseState::Lost { why: Why::Expired });
        assert_eq!(guard.valid_for(), Duration::ZERO);
        assert!(matches!(guard.release().await, Err(Error::Lost { why: Why::Expired, .. })));
        // And its successor is not disturbed by what was lost.
        let next = locks.lock("blocked").ttl(TTL).acquire().await.unwrap();
        assert!(next.is_held());
    });
}

/// Found with this test: the alarm was set for the end of validity, so that nobody ever was told before it.
#[test]
fn a_watcher_elsewhere_is_told_before_the_end_of_validity() {
    let mut told_in_time = 0;
    for _ in 0..ROUNDS {
        let told = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let locks = Locks::in_memory();
                let guard = locks.lock("watched").ttl(TTL).acquire().await.unwrap();
                let told = watch(guard.lease());
                std::thread::sleep(TTL + TTL / 10);
                told.recv().unwrap()
            })
        });
        let (valid_until, told_at) = told.join().unwrap();
        told_in_time += usize::from(told_at <= valid_until);
    }
    println!("told before the end of validity: {told_in_time} of {ROUNDS}");
    assert!(told_in_time > 0, "nobody was told in time");
}

/// A thread with a runtime of its own that waits for the loss: answers until when it took the lease to be valid, and
/// when it was told.
fn watch(lease: Lease) -> mpsc::Receiver<(BootInstant, BootInstant)> {
    let valid_until = lease.valid_until();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(lease.lost()), Why::Expired);
        sender.send((valid_until, SystemClock.now())).unwrap();
    });
    receiver
}
