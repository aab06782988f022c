//! The cost of core itself: uncontended acquire+release on the memory store, per second and in allocations.
//!
//! `cargo run --release -p tenure-core --example core_cost`

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::clock::SystemClock;
use tenure_core::{Clock, Locks};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything on to the system allocator; counting has no effect on it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const ROUNDS: usize = 5;
const OPERATIONS: u64 = 200_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> tenure_core::Result<()> {
    let locks = Locks::in_memory();
    let mut best = Duration::MAX;
    let mut allocations = u64::MAX;
    for _ in 0..ROUNDS {
        let (start, allocated) = (SystemClock.now(), ALLOCATIONS.load(Ordering::Relaxed));
        for _ in 0..OPERATIONS {
            locks.lock("orders/1001").acquire().await?.release().await?;
        }
        best = best.min(SystemClock.now().saturating_since(start));
        allocations = allocations.min(ALLOCATIONS.load(Ordering::Relaxed) - allocated);
    }
    let nanos = best.as_nanos() as f64 / OPERATIONS as f64;
    println!(
        "acquire+release: {:.0} per second ({nanos:.0} ns each), best of {ROUNDS} rounds of {OPERATIONS}",
        1e9 / nanos
    );
    println!("allocations per acquire+release: {:.1}", allocations as f64 / OPERATIONS as f64);
    Ok(())
}
