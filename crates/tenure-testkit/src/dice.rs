//! Repeatable chance: the same seed, the same faults.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A splitmix64 that many tasks may throw at once.
#[derive(Debug)]
pub(crate) struct Dice(AtomicU64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    fn throw(&self) -> u64 {
        let step = 0x9e37_79b9_7f4a_7c15_u64;
        let mut z = self.0.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `0.0..1.0`.
    pub(crate) fn fraction(&self) -> f64 {
        f64::from(u32::try_from(self.throw() >> 32).unwrap_or(u32::MAX)) / (f64::from(u32::MAX) + 1.0)
    }

    pub(crate) fn is_below(&self, share: f64) -> bool {
        self.fraction() < share
    }

    pub(crate) fn up_to(&self, max: Duration) -> Duration {
        max.mul_f64(self.fraction())
    }
}
