//! The seam for time: what the hour is, and being woken at one.
//!
//! Everything in tenure that waits or measures does it through [`Clock`]. The real one counts suspend
//! (`CLOCK_BOOTTIME`) and wakes from a thread of its own, so that a lease is declared lost on time even when the async
//! runtime is starved by blocking code. Simulation replaces it; clippy bans the standard clocks elsewhere.

use std::fmt::{self, Debug};
use std::future::Future;
use std::ops::{Add, Sub};
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use std::collections::BTreeMap;

/// A moment on this machine's clock since boot, in nanoseconds. Suspend counts; wall-clock jumps do not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(u64);

impl BootInstant {
    /// Later than any moment that will come.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment so many nanoseconds after boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for BootInstant {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Debug for BootInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "boot+{:?}", Duration::from_nanos(self.0))
    }
}

/// Time, as tenure sees it.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The present moment. Never goes back.
    fn now(&self) -> BootInstant;

    /// Microseconds since 1970 by the wall clock: for display, and as the floor under fencing tokens. May jump.
    fn unix_micros(&self) -> u64;

    /// Wakes `waker` once, at `at` or as soon after it as this machine can, also when no async runtime makes progress.
    ///
    /// The waker is woken on a thread of the clock's and must not block.
    fn wake_at(&self, at: BootInstant, waker: Waker) -> Alarm;

    /// Takes an alarm back. Nothing happens if it has rung already.
    fn cancel(&self, alarm: Alarm);
}

/// An alarm that was set with [`Clock::wake_at`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alarm {
    /// When it rings.
    pub at: BootInstant,
    /// Tells it from others that ring at the same moment.
    pub serial: u64,
}

/// Completes at `at`, by `clock`.
///
/// # Cancel safety
/// Dropping the future takes the alarm back.
pub fn sleep_until(clock: Arc<dyn Clock>, at: BootInstant) -> Sleep {
    Sleep { clock, at, alarm: None }
}

/// The future of [`sleep_until`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    clock: Arc<dyn Clock>,
    at: BootInstant,
    alarm: Option<(Alarm, Waker)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let set_for_this_waker = self.alarm.as_ref().is_some_and(|(_, waker)| waker.will_wake(cx.waker()));
        if self.clock.now() >= self.at {
            self.disarm();
            return Poll::Ready(());
        }
        if !set_for_this_waker && self.at != BootInstant::NEVER {
            self.disarm();
            let alarm = self.clock.wake_at(self.at, cx.waker().clone());
            self.alarm = Some((alarm, cx.waker().clone()));
        }
        Poll::Pending
    }
}

impl Sleep {
    fn disarm(&mut self) {
        if let Some((alarm, _)) = self.alarm.take() {
            self.clock.cancel(alarm);
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.disarm();
    }
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> BootInstant {
        platform::now()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn unix_micros(&self) -> u64 {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since_epoch.map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX))
    }

    fn wake_at(&self, at: BootInstant, waker: Waker) -> Alarm {
        BELL.with(|bells| {
            bells.serial += 1;
            let alarm = Alarm { at, serial: bells.serial };
            bells.alarms.insert(alarm, waker);
            // Alarms that were taken back leave the timer as it is: one idle wake-up costs less than a system call
            // on every release.
            if at < bells.armed_for {
                bells.armed_for = at;
                BELL.timer.arm(at);
            }
            alarm
        })
    }

    fn cancel(&self, alarm: Alarm) {
        let waker = BELL.with(|bells| bells.alarms.remove(&alarm));
        // Dropped outside the lock: a waker may be the last thing that keeps a task alive, and that task's own alarms
        // are taken back here.
        drop(waker);
    }
}

/// One thread per process that rings every alarm.
static BELL: LazyLock<Bell> = LazyLock::new(|| {
    std::thread::Builder::new()
        .name("tenure-clock".into())
        .spawn(|| BELL.ring_for_ever())
        .expect("the process may start one more thread");
    Bell {
        bells: Mutex::new(Bells { alarms: BTreeMap::new(), armed_for: BootInstant::NEVER, serial: 0 }),
        timer: platform::Timer::new(),
    }
});

struct Bell {
    bells: Mutex<Bells>,
    timer: platform::Timer,
}

struct Bells {
    alarms: BTreeMap<Alarm, Waker>,
    /// When the timer goes off next; never later than the first alarm.
    armed_for: BootInstant,
    serial: u64,
}

impl Bell {
    fn with<T>(&self, f: impl FnOnce(&mut Bells) -> T) -> T {
        f(&mut self.bells.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ring_for_ever(&self) {
        let mut due = Vec::new();
        loop {
            self.with(|bells| {
                let now = platform::now();
                while let Some(first) = bells.alarms.first_entry().filter(|e| e.key().at <= now) {
                    due.push(first.remove());
                }
                bells.armed_for =
                    bells.alarms.first_key_value().map_or(BootInstant::NEVER, |(alarm, _)| alarm.at);
                if due.is_empty() {
                    self.timer.arm(bells.armed_for);
                }
            });
            if due.is_empty() {
                self.timer.wait();
            }
            // A waker that panics must not silence the alarms of everybody else.
            for waker in due.drain(..) {
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
            }
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod platform {
    use super::BootInstant;
    use rustix::fd::OwnedFd;
    use rustix::time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
        timerfd_create, timerfd_settime,
    };

    pub(super) fn now() -> BootInstant {
        let time = clock_gettime(ClockId::Boottime);
        BootInstant::from_nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
    }

    /// A timer that counts suspend and can be re-armed from any thread while another waits on it.
    pub(super) struct Timer(OwnedFd);

    impl Timer {
        pub(super) fn new() -> Self {
            Self(
                timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)
                    .expect("the process may open one more file descriptor"),
            )
        }

        pub(super) fn arm(&self, at: BootInstant) {
            let nanos = if at == BootInstant::NEVER { 0 } else { at.as_nanos().max(1) };
            let value = Timespec {
                tv_sec: (nanos / 1_000_000_000).try_into().unwrap_or(i64::MAX),
                tv_nsec: (nanos % 1_000_000_000).try_into().expect("below a second"),
            };
            let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &spec).expect("the timer takes any moment");
        }

        pub(super) fn wait(&self) {
            let mut expirations = [0; 8];
            // An interrupted read rings nothing early: the caller looks at the clock.
            let _ = rustix::io::read(&self.0, &mut expirations);
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod platform {
    use super::{BootInstant, Duration, LazyLock, Mutex, PoisonError};
    use std::sync::Condvar;
    use std::time::Instant;

    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    /// Counts suspend where the standard clock of the platform does.
    pub(super) fn now() -> BootInstant {
        let start = *START;
        BootInstant::from_nanos(1) + start.elapsed()
    }

    /// Without a timer that counts suspend, looks at the clock at least this often.
    const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(100);

    pub(super) struct Timer {
        at: Mutex<BootInstant>,
        changed: Condvar,
    }

    impl Timer {
        pub(super) fn new() -> Self {
            Self { at: Mutex::new(BootInstant::NEVER), changed: Condvar::new() }
        }

        pub(super) fn arm(&self, at: BootInstant) {
            *self.at.lock().unwrap_or_else(PoisonError::into_inner) = at;
            self.changed.notify_all();
        }

        pub(super) fn wait(&self) {
            let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let left = at.saturating_since(now());
                if left.is_zero() {
                    return;
                }
                at = if *at == BootInstant::NEVER {
                    self.changed.wait(at).unwrap_or_else(PoisonError::into_inner)
                } else {
                    let result = self.changed.wait_timeout(at, left.min(LOOK_AT_LEAST_EVERY));
                    result.unwrap_or_else(PoisonError::into_inner).0
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::task::Wake;

    struct Note(usize, mpsc::Sender<(usize, BootInstant)>);
    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.1.send((self.0, SystemClock.now())).unwrap();
        }
    }

    #[test]
    fn alarms_ring_in_order_never_early_and_not_when_cancelled() {
        let (sender, rung) = mpsc::channel();
        let start = SystemClock.now();
        let alarm = |i: usize, ms: u64| {
            SystemClock.wake_at(start + Duration::from_millis(ms), Arc::new(Note(i, sender.clone())).into())
        };
        let _late = alarm(3, 40);
        let cancelled = alarm(2, 20);
        let _early = alarm(1, 10);
        SystemClock.cancel(cancelled);
        for (expected, ms) in [(1, 10), (3, 40)] {
            let (i, at) = rung.recv().unwrap();
            assert_eq!(i, expected);
            assert!(at >= start + Duration::from_millis(ms));
        }
        assert!(rung.try_recv().is_err());
    }

    #[test]
    fn a_panicking_waker_does_not_silence_the_clock() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("a bad waker, on purpose");
            }
        }
        let (sender, rung) = mpsc::channel();
        let now = SystemClock.now();
        SystemClock.wake_at(now, Arc::new(Panics).into());
        SystemClock.wake_at(now + Duration::from_millis(1), Arc::new(Note(7, sender)).into());
        assert_eq!(rung.recv().unwrap().0, 7);
    }

    #[tokio::test]
    async fn a_dropped_sleep_leaves_no_alarm() {
        static WOKEN: AtomicUsize = AtomicUsize::new(0);
        struct Count;
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                WOKEN.fetch_add(1, Ordering::SeqCst);
            }
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let waker = Waker::from(Arc::new(Count));
        let mut sleep = Box::pin(sleep_until(clock.clone(), clock.now() + Duration::from_millis(5)));
        assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(sleep);
        sleep_until(clock.clone(), clock.now() + Duration::from_millis(20)).await;
        assert_eq!(WOKEN.load(Ordering::SeqCst), 0);
    }
}
