//! What a client counts: the signals of contention, in one place.
//!
//! Every count is kept here, for [`Locks::stats`](crate::Locks::stats), and told to the `metrics` facade, for whatever
//! exporter the program has installed before it made its client. Labels are bounded: never a lock's name.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::backend::Why;
use crate::error::Error;
use crate::name::LockName;
use crate::token::FencingToken;

/// The upper bounds of the buckets, in microseconds; the last one has none.
const BOUNDS_MICROS: [u64; 15] = [
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    30_000_000,
    300_000_000,
];

/// How an acquire ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    Settled,
    Busy,
    TimedOut,
    Unavailable,
    Refused,
    Cancelled,
}

impl Outcome {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Granted, "granted"),
        (Self::Settled, "settled"),
        (Self::Busy, "busy"),
        (Self::TimedOut, "timed_out"),
        (Self::Unavailable, "unavailable"),
        (Self::Refused, "refused"),
        (Self::Cancelled, "cancelled"),
    ];

    pub(crate) const fn of(error: &Error) -> Self {
        match error {
            Error::Busy { .. } => Self::Busy,
            Error::TimedOut { .. } => Self::TimedOut,
            Error::Unavailable { .. } => Self::Unavailable,
            Error::Refused { .. } | Error::Lost { .. } => Self::Refused,
            Error::Closed => Self::Cancelled,
        }
    }
}

const REASONS: [&str; 5] = ["expired", "gone", "evicted", "session", "closed"];

const fn reason_index(why: &Why) -> usize {
    match why {
        Why::Expired => 0,
        Why::Gone => 1,
        Why::Evicted { .. } => 2,
        Why::SessionEnded => 3,
        Why::Closed => 4,
    }
}

/// One count, here and at the exporter.
struct Tally {
    here: AtomicU64,
    there: metrics::Counter,
}

impl Tally {
    fn new(there: metrics::Counter) -> Self {
        Self { here: AtomicU64::new(0), there }
    }

    fn add(&self) {
        self.here.fetch_add(1, Ordering::Relaxed);
        self.there.increment(1);
    }

    fn get(&self) -> u64 {
        self.here.load(Ordering::Relaxed)
    }
}

/// One distribution of durations, here and at the exporter.
struct Durations {
    buckets: [AtomicU64; BOUNDS_MICROS.len() + 1],
    sum_micros: AtomicU64,
    there: metrics::Histogram,
}

impl Durations {
    fn new(there: metrics::Histogram) -> Self {
        Self { buckets: Default::default(), sum_micros: AtomicU64::new(0), there }
    }

    fn add(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
        self.there.record(duration);
    }

    fn get(&self) -> Distribution {
        Distribution {
            counts: self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect(),
            sum: Duration::from_micros(self.sum_micros.load(Ordering::Relaxed)),
        }
    }
}

/// All counts of one client.
pub(crate) struct Meters {
    acquired: [Tally; Outcome::ALL.len()],
    lost: [Tally; REASONS.len()],
    attempts: Tally,
    renewed: Tally,
    renewals_failed: Tally,
    acquire: Durations,
    hold: Durations,
    renew_slack: Durations,
    waiters: AtomicU64,
    waiters_there: metrics::Gauge,
    held_there: metrics::Gauge,
    fence: Fences,
    fence_regressions: Tally,
}

/// The highest tokens of the locks used lately: a lower one means that the store has forgotten, or is not the one it was.
#[derive(Default)]
struct Fences(Mutex<HashMap<LockName, FencingToken>>);

impl Fences {
    /// How many locks are kept in mind.
    const MAX: usize = 1024;

    /// Notes a grant; answers whether a higher token was seen before.
    fn is_regression(&self, name: &LockName, token: FencingToken) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(highest) = seen.get_mut(name) {
            let is_lower = token < *highest;
            *highest = token.max(*highest);
            return is_lower;
        }
        if seen.len() >= Self::MAX {
            seen.clear();
        }
        seen.insert(name.clone(), token);
        false
    }
}

impl Meters {
    /// `kind` is the kind of store: `redis`, `file`.
    pub(crate) fn new(kind: &str) -> Self {
        describe();
        let kind: String = kind.into();
        Self {
            acquired: Outcome::ALL.map(|(_, outcome)| {
                Tally::new(
                    metrics::counter!("tenure_acquire_total", "store" => kind.clone(), "outcome" => outcome),
                )
            }),
            lost: REASONS.map(|reason| {
                Tally::new(
                    metrics::counter!("tenure_lost_total", "store" => kind.clone(), "reason" => reason),
                )
            }),
            attempts: Tally::new(metrics::counter!("tenure_attempts_total", "store" => kind.clone())),
            renewed: Tally::new(
                metrics::counter!("tenure_renew_total", "store" => kind.clone(), "outcome" => "renewed"),
            ),
            renewals_failed: Tally::new(
                metrics::counter!("tenure_renew_total", "store" => kind.clone(), "outcome" => "failed"),
            ),
            acquire: Durations::new(metrics::histogram!("tenure_acquire_seconds", "store" => kind.clone())),
            hold: Durations::new(metrics::histogram!("tenure_hold_seconds", "store" => kind.clone())),
            renew_slack: Durations::new(
                metrics::histogram!("tenure_renew_slack_seconds", "store" => kind.clone()),
            ),
            waiters: AtomicU64::new(0),
            waiters_there: metrics::gauge!("tenure_waiters", "store" => kind.clone()),
            held_there: metrics::gauge!("tenure_held", "store" => kind.clone()),
            fence: Fences::default(),
            fence_regressions: Tally::new(
                metrics::counter!("tenure_fence_regression_total", "store" => kind),
            ),
        }
    }

    pub(crate) fn acquired(&self, outcome: Outcome, waited: Duration) {
        self.acquired[outcome as usize].add();
        self.acquire.add(waited);
    }

    pub(crate) fn attempted(&self) {
        self.attempts.add();
    }

    /// A lock was granted.
    pub(crate) fn begun(&self) {
        self.held_there.increment(1.0);
    }

    /// A lock that was held is not any more.
    pub(crate) fn held(&self, duration: Duration) {
        self.held_there.decrement(1.0);
        self.hold.add(duration);
    }

    /// Of two exclusive grants of one lock, the later one must have the higher token.
    pub(crate) fn check_token(&self, name: &LockName, token: FencingToken) {
        if self.fence.is_regression(name, token) {
            self.fence_regressions.add();
            tracing::error!(lock = %name, %token, "a token is lower than one before: the store lost its memory");
        }
    }

    pub(crate) fn lost(&self, why: &Why) {
        self.lost[reason_index(why)].add();
    }

    /// A renewal was confirmed with `slack` of validity left.
    pub(crate) fn renewed(&self, slack: Duration) {
        self.renewed.add();
        self.renew_slack.add(slack);
    }

    pub(crate) fn renewal_failed(&self) {
        self.renewals_failed.add();
    }

    /// Counts a waiter for as long as the result lives.
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        self.waiters_there.increment(1.0);
        Waiting(self)
    }

    pub(crate) fn get(&self, held: usize) -> Stats {
        let acquired = |outcome: Outcome| self.acquired[outcome as usize].get();
        Stats {
            held: held as u64,
            waiting: self.waiters.load(Ordering::Relaxed),
            granted: acquired(Outcome::Granted),
            settled: acquired(Outcome::Settled),
            busy: acquired(Outcome::Busy),
            timed_out: acquired(Outcome::TimedOut),
            unavailable: acquired(Outcome::Unavailable),
            refused: acquired(Outcome::Refused),
            cancelled: acquired(Outcome::Cancelled),
            attempts: self.attempts.get(),
            renewed: self.renewed.get(),
            renewals_failed: self.renewals_failed.get(),
            fence_regressions: self.fence_regressions.get(),
            lost: REASONS.iter().zip(&self.lost).map(|(reason, tally)| (*reason, tally.get())).collect(),
            acquire: self.acquire.get(),
            hold: self.hold.get(),
            renew_slack: self.renew_slack.get(),
        }
    }
}

impl fmt::Debug for Meters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meters")
    }
}

/// Tells the exporter what the names mean.
fn describe() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    describe_counter!("tenure_acquire_total", "Acquires, by how they ended");
    describe_counter!("tenure_attempts_total", "Requests that acquires made");
    describe_counter!("tenure_renew_total", "Renewals, by how they ended");
    describe_counter!("tenure_lost_total", "Leases lost, by reason");
    describe_counter!("tenure_fence_regression_total", "Grants with a lower token than one before");
    describe_gauge!("tenure_waiters", "Acquires that stand in line");
    describe_gauge!("tenure_held", "Locks held");
    describe_histogram!(
        "tenure_acquire_seconds",
        Unit::Seconds,
        "How long acquires took, however they ended"
    );
    describe_histogram!("tenure_hold_seconds", Unit::Seconds, "How long locks were held");
    describe_histogram!(
        "tenure_renew_slack_seconds",
        Unit::Seconds,
        "Validity left when a renewal was confirmed"
    );
}

pub(crate) struct Waiting<'a>(&'a Meters);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::Relaxed);
        self.0.waiters_there.decrement(1.0);
    }
}

/// What a client has counted since it was made: see [`Locks::stats`](crate::Locks::stats).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Locks held at the moment.
    pub held: u64,
    /// Acquires that stand in line at the moment.
    pub waiting: u64,
    /// Acquires that ended with the lock.
    pub granted: u64,
    /// Do-onces that were answered with an earlier result.
    pub settled: u64,
    /// Acquires that did not want to wait, and would have had to.
    pub busy: u64,
    /// Acquires that waited as long as they wanted, in vain: with `granted`, the time-out rate.
    pub timed_out: u64,
    /// Acquires that failed because the store did not serve.
    pub unavailable: u64,
    /// Acquires that the store or tenure refused.
    pub refused: u64,
    /// Acquires that were dropped, or ended by closing the client.
    pub cancelled: u64,
    /// Requests that acquires made: with all of the above, the attempts per acquisition.
    pub attempts: u64,
    /// Renewals that were confirmed.
    pub renewed: u64,
    /// Renewals that were not.
    pub renewals_failed: u64,
    /// Grants with a lower token than one before: the store lost its memory, or is not the one it was.
    pub fence_regressions: u64,
    /// Leases that were lost, by reason.
    pub lost: Vec<(&'static str, u64)>,
    /// How long acquires took, however they ended.
    pub acquire: Distribution,
    /// How long locks were held.
    pub hold: Distribution,
    /// How much validity was left when a renewal was confirmed: the early warning.
    pub renew_slack: Distribution,
}

impl Stats {
    /// Leases lost, for whatever reason.
    pub fn lost_total(&self) -> u64 {
        self.lost.iter().map(|(_, count)| count).sum()
    }
}

/// How durations were distributed, to the precision of a few buckets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distribution {
    counts: Vec<u64>,
    sum: Duration,
}

impl Distribution {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    pub const fn sum(&self) -> Duration {
        self.sum
    }

    /// A duration that the fraction `q` of them did not exceed: the upper bound of a bucket. `None` if there were none,
    /// or if it lies beyond the last bound (five minutes).
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let rank = (self.count() as f64 * q.clamp(0.0, 1.0)).ceil().max(1.0);
        let mut seen = 0;
        for (count, bound) in self.counts.iter().zip(BOUNDS_MICROS) {
            seen += count;
            if seen as f64 >= rank {
                return Some(Duration::from_micros(bound));
            }
        }
        None
    }

    /// Each bucket's upper bound and how many fell into it; the last bucket has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        let bounds = BOUNDS_MICROS.iter().map(|micros| Some(Duration::from_micros(*micros))).chain([None]);
        bounds.zip(self.counts.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_bounds_of_buckets() {
        let meters = Meters::new("memory");
        for micros in [1, 40, 90, 200_000] {
            meters.acquired(Outcome::Granted, Duration::from_micros(micros));
        }
        let stats = meters.get(0);
        assert_eq!((stats.granted, stats.acquire.count()), (4, 4));
        assert_eq!(stats.acquire.quantile(0.5), Some(Duration::from_micros(50)));
        assert_eq!(stats.acquire.quantile(0.75), Some(Duration::from_micros(100)));
        assert_eq!(stats.acquire.quantile(1.0), Some(Duration::from_micros(500_000)));
        assert_eq!(stats.hold.quantile(0.5), None);
        assert_eq!(stats.acquire.buckets().map(|(_, count)| count).sum::<u64>(), 4);
    }

    #[test]
    fn a_lower_token_is_noticed() {
        let meters = Meters::new("memory");
        let name = LockName::new("x").unwrap();
        for token in [5, 6, 6, 3, 7] {
            meters.check_token(&name, FencingToken::new(token));
        }
        for i in 0..3000 {
            meters.check_token(&LockName::new(format!("{i}")).unwrap(), FencingToken::new(1));
        }
        assert_eq!(meters.get(0).fence_regressions, 1);
        assert!(meters.fence.0.lock().unwrap().len() <= Fences::MAX);
    }

    #[test]
    fn outcomes_are_counted_at_their_own_place() {
        for (i, (outcome, _)) in Outcome::ALL.iter().enumerate() {
            assert_eq!(*outcome as usize, i);
        }
    }
}
