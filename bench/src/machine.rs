//! What the machine says: time, and the CPU time of a process.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tenure_core::clock::{Clock, SystemClock};

/// Nanoseconds since boot, the same in every process.
pub(crate) fn now_nanos() -> u64 {
    SystemClock.now().as_nanos()
}

/// How far [`now_nanos`] is ahead of the monotonic clock: not all languages know the clock that counts suspend.
pub(crate) fn ahead_of_monotonic_nanos() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let monotonic = time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs();
    // Two readings differ by less than a microsecond; suspend by seconds.
    let ahead = now_nanos().saturating_sub(monotonic);
    if ahead < 100_000_000 { 0 } else { ahead }
}

/// The CPU time that a process has used, all threads, to the precision of a tick (10 ms).
pub(crate) fn cpu_time(pid: u32) -> Result<Duration, String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .map_err(|error| format!("process {pid}: {error}"))?;
    // The name of the program stands in parentheses and may contain anything.
    let fields: Vec<&str> = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis((ticks(11) + ticks(12)) * 1000 / ticks_per_second))
}
