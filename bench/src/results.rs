//! What was measured, as it is written: one entry per round, nothing summarised over rounds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::contender::Contender;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    /// Tiny figures that only prove that the bench works.
    pub(crate) smoke: bool,
    pub(crate) cores: usize,
    /// The server and every contender.
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) uncontended: Vec<Uncontended>,
    pub(crate) handover: Vec<Handover>,
    /// Not in files from before it was measured.
    #[serde(default)]
    pub(crate) drain: Vec<Drain>,
    pub(crate) standing: Vec<Standing>,
    pub(crate) memory: Vec<Memory>,
    pub(crate) renewal: Vec<Renewal>,
}

/// Tasks that each take and give back a lock of their own, over and over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Uncontended {
    pub(crate) contender: Contender,
    pub(crate) tasks: usize,
    pub(crate) round: usize,
    /// Acquire and release, together one.
    pub(crate) pairs_per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) client_cpu_us_per_pair: f64,
    pub(crate) server_cpu_us_per_pair: f64,
    pub(crate) commands_per_pair: f64,
    pub(crate) keys_left: u64,
}

/// Parties that all want the same lock, over and over, and hold it for no time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Handover {
    pub(crate) contender: Contender,
    pub(crate) waiters: usize,
    pub(crate) processes: usize,
    pub(crate) round: usize,
    pub(crate) grants_per_second: f64,
    /// Grants that went to another party than the one before.
    pub(crate) handovers_per_second: f64,
    /// From the call of release by one party to the grant of the next, another one.
    pub(crate) gap_p50_us: f64,
    pub(crate) gap_p99_us: f64,
    /// From asking to the grant.
    pub(crate) wait_p50_ms: f64,
    pub(crate) wait_p99_ms: f64,
    /// Parties that got the lock at least once while it was measured.
    pub(crate) served: usize,
    pub(crate) commands_per_grant: f64,
    /// Grants that began before the one before had ended. There may be none.
    pub(crate) overlaps: u64,
    pub(crate) keys_left: u64,
}

/// Parties that come to wait for a held lock; when all of them stand it is released, and each takes it once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Drain {
    pub(crate) contender: Contender,
    pub(crate) waiters: usize,
    pub(crate) processes: usize,
    pub(crate) round: usize,
    /// How many such lines were served one after the other.
    pub(crate) drains: usize,
    /// Of the middle one of them: the hand-overs by the time from the first release to the end of the last hold.
    pub(crate) handovers_per_second: f64,
    pub(crate) drain_ms: f64,
    /// From the call of release by one party to the grant of the next, in all of them.
    pub(crate) gap_p50_us: f64,
    pub(crate) gap_p99_us: f64,
    /// The first of these in each line, the median: the only one that finds everybody asleep.
    pub(crate) first_gap_us: f64,
    /// Parties that had not got the lock when the time was over.
    pub(crate) unserved: usize,
    pub(crate) overlaps: u64,
    pub(crate) keys_left: u64,
}

/// Parties that wait for a lock that nobody gives back.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Standing {
    pub(crate) contender: Contender,
    pub(crate) waiters: usize,
    pub(crate) bytes_per_waiter: f64,
    pub(crate) connections: u64,
    pub(crate) commands_per_second: f64,
}

/// What the server's memory says of held locks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) contender: Contender,
    pub(crate) locks: usize,
    pub(crate) bytes_per_held: f64,
    /// After all of them were released.
    pub(crate) bytes_per_released: f64,
    pub(crate) keys_left: u64,
}

/// Many locks that one process holds and renews.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Renewal {
    #[serde(default)]
    pub(crate) round: usize,
    pub(crate) locks: usize,
    pub(crate) ttl_s: f64,
    pub(crate) seconds: f64,
    pub(crate) renewals_per_second: f64,
    pub(crate) commands_per_second: f64,
    /// CPU time per second: 1.0 is one core.
    pub(crate) client_cores: f64,
    pub(crate) server_cores: f64,
    /// The longest round trip of a PING every millisecond over another connection, and the same before, for as
    /// long, while the server was idle: the difference is ours.
    pub(crate) ping_max_ms: f64,
    pub(crate) ping_p999_ms: f64,
    pub(crate) ping_max_idle_ms: f64,
    /// The longest without the time that server or bystander stood ready and had no processor, if the kernel told.
    #[serde(default)]
    pub(crate) ping_max_with_processor_ms: Option<f64>,
    #[serde(default)]
    pub(crate) ping_max_idle_with_processor_ms: Option<f64>,
    /// The longest single command by the server's own clock.
    pub(crate) command_max_ms: f64,
    pub(crate) lost: u64,
    pub(crate) keys_left: u64,
}
