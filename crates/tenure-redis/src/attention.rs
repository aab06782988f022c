//! Watching for an answer, instead of sleeping until it comes.
//!
//! A server nearby answers within some tens of µs: less than it takes to put a processor to sleep and to wake it up again.
//! So for a moment after a request was written that travels alone, its connection watches the socket, giving way to
//! every other thread meanwhile. Where answers turn out to take longer, hardly any request is watched any more; where
//! requests are many, none is. See `docs/decisions/0010-watched-answers.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::Clock;

/// How long an answer is watched for. The thread does nothing else: it must be a moment for a runtime, too.
const MOMENT: Duration = Duration::from_micros(100);
/// How often is looked, at the most: also on a clock that stands still.
const LOOKS_MAX: u32 = 2000;
/// How many requests are not watched, at the most, after one that was watched in vain.
const PASSED_OVER_MAX: u32 = 256;

/// How many requests may be under way, the watched one included. More than one only where the other is not urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watch(u32);

impl Watch {
    /// Not to be watched.
    pub(crate) const NO: Self = Self(0);
    /// To be watched while it is alone.
    pub(crate) const ALONE: Self = Self(1);
    /// To be watched also beside one other.
    pub(crate) const BESIDE_ONE: Self = Self(2);
}

/// Whether to watch, on one connection.
#[derive(Debug)]
pub(crate) struct Attention {
    clock: Arc<dyn Clock>,
    is_on: bool,
    /// Requests that are under way.
    under_way: AtomicU32,
    /// How many may be under way while the one that was sent last is watched. None: it is not.
    wanted: AtomicU32,
    /// How many requests are passed over from now, and after the next one that is watched in vain.
    passing_over: AtomicU32,
    next_pause: AtomicU32,
}

/// A request that is under way, until this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay<'a>(&'a Attention);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Attention {
    pub(crate) fn new(clock: Arc<dyn Clock>, is_on: bool) -> Self {
        // With one processor the server could not even begin.
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            clock,
            is_on: is_on && processors > 1,
            under_way: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
            passing_over: AtomicU32::new(0),
            next_pause: AtomicU32::new(1),
        }
    }

    /// A request is about to be written, which may be watched as `watch` says.
    pub(crate) fn sent(&self, watch: Watch) -> UnderWay<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.wanted.store(if self.is_on { watch.0 } else { 0 }, Ordering::Relaxed);
        UnderWay(self)
    }

    /// Watches for the answer to what was just written, if that is worth it. Ends when it `has_come`, when the moment is
    /// over, or when there is something else to write.
    pub(crate) fn watch(&self, has_come: impl Fn() -> bool) {
        let most = self.wanted.swap(0, Ordering::Relaxed);
        let is_quiet = || (1..=most).contains(&self.under_way.load(Ordering::Relaxed));
        if !is_quiet() {
            return;
        }
        let to_pass = self.passing_over.load(Ordering::Relaxed);
        if to_pass > 0 {
            self.passing_over.store(to_pass - 1, Ordering::Relaxed);
            return;
        }
        let until = self.clock.now() + MOMENT;
        for _ in 0..LOOKS_MAX {
            if has_come() {
                self.next_pause.store(1, Ordering::Relaxed);
                return;
            }
            if !is_quiet() {
                return;
            }
            if self.clock.now() >= until {
                break;
            }
            // The server may be on this processor.
            std::thread::yield_now();
        }
        let pause = self.next_pause.load(Ordering::Relaxed);
        self.passing_over.store(pause, Ordering::Relaxed);
        self.next_pause.store((2 * pause).min(PASSED_OVER_MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::task::Waker;

    use tenure_core::BootInstant;
    use tenure_core::clock::{Alarm, SystemClock};

    use super::*;

    /// Only the number of looks ends the watch.
    #[derive(Debug)]
    struct StillClock;

    impl Clock for StillClock {
        fn now(&self) -> BootInstant {
            BootInstant::from_nanos(1)
        }

        fn unix_micros(&self) -> u64 {
            1
        }

        fn wake_at(&self, at: BootInstant, waker: Waker) -> Alarm {
            SystemClock.wake_at(at, waker)
        }

        fn cancel(&self, alarm: Alarm) {
            SystemClock.cancel(alarm);
        }
    }

    /// As with several processors.
    fn attention() -> Attention {
        Attention { is_on: true, ..Attention::new(Arc::new(StillClock), true) }
    }

    /// How often a request was looked at; its answer comes with the `n`th look.
    fn looks(attention: &Attention, n: u32) -> u32 {
        let seen = Cell::new(0);
        attention.watch(|| {
            seen.set(seen.get() + 1);
            seen.get() >= n
        });
        seen.get()
    }

    #[test]
    fn a_request_alone_is_watched_once() {
        let attention = attention();
        let under_way = attention.sent(Watch::ALONE);
        assert_eq!(looks(&attention, 3), 3);
        assert_eq!(looks(&attention, 3), 0, "written in two parts, or something else was");
        drop(under_way);
        let _may_not = attention.sent(Watch::NO);
        assert_eq!(looks(&attention, 3), 0);
    }

    #[test]
    fn nobody_watches_while_others_are_under_way() {
        let attention = attention();
        let first = attention.sent(Watch::ALONE);
        let second = attention.sent(Watch::ALONE);
        assert_eq!(looks(&attention, 3), 0);
        drop((first, second));
        let _third = attention.sent(Watch::ALONE);
        let seen = Cell::new(0);
        attention.watch(|| {
            seen.set(seen.get() + 1);
            if seen.get() == 2 {
                // Another task sends something: it must not wait for this answer.
                std::mem::forget(attention.sent(Watch::ALONE));
            }
            false
        });
        assert_eq!(seen.get(), 2);
    }

    #[test]
    fn some_are_watched_beside_one_other() {
        let attention = attention();
        let _joins = attention.sent(Watch::NO);
        let second = attention.sent(Watch::BESIDE_ONE);
        assert_eq!(looks(&attention, 3), 3);
        let _third = attention.sent(Watch::BESIDE_ONE);
        assert_eq!(looks(&attention, 3), 0);
        drop(second);
        let _alone = attention.sent(Watch::ALONE);
        assert_eq!(looks(&attention, 3), 0);
    }

    #[test]
    fn a_server_far_away_is_soon_hardly_watched() {
        let attention = attention();
        let watched = |n| {
            let _under_way = attention.sent(Watch::ALONE);
            looks(&attention, n) > 0
        };
        let in_vain = (0..1000).filter(|_| watched(u32::MAX)).count();
        assert!((2..=12).contains(&in_vain), "{in_vain}");
        // One that comes soon is enough to watch again, each time.
        while !watched(1) {}
        assert!(watched(1) && watched(1));
    }

    #[test]
    fn a_moment_ends() {
        let attention = Attention { is_on: true, ..Attention::new(Arc::new(SystemClock), true) };
        let begin = SystemClock.now();
        let in_vain = attention.sent(Watch::ALONE);
        looks(&attention, u32::MAX);
        assert!(SystemClock.now().saturating_since(begin) >= MOMENT);
        drop(in_vain);
        let _next = attention.sent(Watch::ALONE);
        assert_eq!(looks(&attention, 1), 0, "passed over");
    }

    #[test]
    fn turned_off_it_never_watches() {
        let attention = Attention::new(Arc::new(StillClock), false);
        let _under_way = attention.sent(Watch::ALONE);
        assert_eq!(looks(&attention, 1), 0);
    }
}
