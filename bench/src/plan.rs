//! How much of everything.

use std::time::Duration;

/// The sizes of one run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) smoke: bool,
    /// Tasks that lock without contention, and how often each is measured.
    pub(crate) tasks: &'static [usize],
    pub(crate) uncontended_rounds: usize,
    pub(crate) uncontended_span: Duration,
    /// Parties on one name, and the processes they are spread over.
    pub(crate) waiters: &'static [usize],
    pub(crate) processes: &'static [usize],
    pub(crate) handover_rounds: usize,
    /// Not measured: until every process is at it.
    pub(crate) warm_up: Duration,
    pub(crate) handover_span: Duration,
    /// How long a whole line stands before it is served.
    pub(crate) settle: Duration,
    /// Parties that stand in line for a lock that stays held.
    pub(crate) standing: usize,
    pub(crate) standing_span: Duration,
    /// Locks held at once to weigh them.
    pub(crate) held: usize,
    /// Locks held while they are renewed, how often that is measured, and for how long.
    pub(crate) renewed: &'static [usize],
    pub(crate) renewal_rounds: usize,
    pub(crate) renewal_span: Duration,
}

impl Plan {
    pub(crate) const fn new(smoke: bool) -> Self {
        if smoke {
            return Self {
                smoke,
                tasks: &[1, 8],
                uncontended_rounds: 1,
                uncontended_span: Duration::from_millis(200),
                waiters: &[2, 8],
                processes: &[1, 2],
                handover_rounds: 1,
                warm_up: Duration::from_millis(200),
                handover_span: Duration::from_millis(300),
                settle: Duration::from_millis(50),
                standing: 20,
                standing_span: Duration::from_millis(300),
                held: 500,
                renewed: &[500],
                renewal_rounds: 1,
                // Long enough for one renewal at ttl/3.
                renewal_span: Duration::from_millis(2500),
            };
        }
        Self {
            smoke,
            tasks: &[1, 64, 512],
            uncontended_rounds: 11,
            uncontended_span: Duration::from_millis(1000),
            waiters: &[2, 16, 128, 1000],
            processes: &[1, 4],
            handover_rounds: 3,
            warm_up: Duration::from_millis(1000),
            handover_span: Duration::from_millis(2000),
            settle: Duration::from_secs(1),
            standing: 1000,
            standing_span: Duration::from_secs(3),
            held: 20_000,
            renewed: &[10_000, 100_000],
            renewal_rounds: 3,
            // Two periods of renewal.
            renewal_span: Duration::from_secs(20),
        }
    }

    /// How many lines of so many parties are served in one round. A short line is served in no time, so several of them
    /// make a figure. Odd, so that there is one in the middle.
    pub(crate) const fn drains(&self, waiters: usize) -> usize {
        match waiters {
            _ if self.smoke => 1,
            0..=8 => 7,
            9..=32 => 5,
            33..=256 => 3,
            _ => 1,
        }
    }

    /// The ttl of the locks that are renewed: a third of it passes between renewals.
    pub(crate) const fn renewal_ttl(&self) -> Duration {
        if self.smoke { Duration::from_secs(3) } else { Duration::from_secs(30) }
    }
}
