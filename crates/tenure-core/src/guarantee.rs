//! What a deployment promises under which fault: the table of the documentation, at run time.
//!
//! Owns the facts and the words for them. Which deployment it is, a backend says; `tenure doctor` prints it.

use std::fmt;

use crate::backend::Fence;

/// What kind of deployment a store is, as far as its promises differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Deployment {
    /// The memory of one process.
    Memory,
    /// Files of one machine.
    Embedded,
    /// One Redis or Valkey server that may forget what it acknowledged.
    RedisForgetful,
    /// One Redis or Valkey server that writes every change to disk before it answers.
    RedisDurable,
    /// A Redis or Valkey server with replicas that may be promoted before they have caught up.
    RedisReplicated,
    /// A store that does not say.
    Unknown,
}

impl Deployment {
    /// All that promise something.
    pub const ALL: [Self; 5] =
        [Self::Memory, Self::Embedded, Self::RedisForgetful, Self::RedisDurable, Self::RedisReplicated];
}

impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Embedded => "embedded",
            Self::RedisForgetful => "Redis, one node",
            Self::RedisDurable => "Redis, one node, `appendfsync always`",
            Self::RedisReplicated => "Redis with replicas",
            Self::Unknown => "unknown",
        })
    }
}

/// What can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// A holder's process dies.
    HolderCrash,
    /// A holder's process stands still past its ttl: `SIGSTOP`, garbage collection, a paused machine.
    HolderPause,
    /// The holder cannot reach the store.
    Partition,
    /// The store is killed and started again.
    StoreRestart,
    /// The store's machine loses power.
    PowerLoss,
    /// A replica takes over.
    Failover,
    /// The store's clock jumps ahead.
    StoreClockAhead,
    /// The store's clock jumps back.
    StoreClockBack,
    /// A client's wall clock jumps.
    ClientClock,
    /// Somebody deletes the lock's data: `FLUSHALL`, `DEL`, eviction by the store, `rm`.
    DataDeleted,
    /// An operator evicts a holder.
    Evict,
    /// An operator evicts a holder by force.
    EvictByForce,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::HolderCrash,
        Self::HolderPause,
        Self::Partition,
        Self::StoreRestart,
        Self::PowerLoss,
        Self::Failover,
        Self::StoreClockAhead,
        Self::StoreClockBack,
        Self::ClientClock,
        Self::DataDeleted,
        Self::Evict,
        Self::EvictByForce,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HolderCrash => "a holder's process dies",
            Self::HolderPause => "a holder stands still past its ttl",
            Self::Partition => "a holder cannot reach the store",
            Self::StoreRestart => "the store is killed and restarted",
            Self::PowerLoss => "the store's machine loses power",
            Self::Failover => "a replica takes over",
            Self::StoreClockAhead => "the store's clock jumps ahead",
            Self::StoreClockBack => "the store's clock jumps back",
            Self::ClientClock => "a client's wall clock jumps",
            Self::DataDeleted => "the lock's data is deleted",
            Self::Evict => "an operator evicts a holder",
            Self::EvictByForce => "an operator evicts by force",
        })
    }
}

/// What every lock promises, by its number in the documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// The validity windows of two conflicting grants never overlap.
    P1,
    /// The tokens of one lock are unique and rise.
    P2,
    /// A resource that checks tokens accepts no stale write.
    P3,
    /// Only the exact claim can renew or release.
    P4,
    /// The lock is free at most one ttl after its holder dies.
    P5,
    /// A holder is told *lost* before its validity ends.
    P6,
    /// An ambiguous outcome is never reported as a grant.
    P7,
}

impl Promise {
    /// All of them.
    pub const ALL: [Self; 7] = [Self::P1, Self::P2, Self::P3, Self::P4, Self::P5, Self::P6, Self::P7];

    /// What it says.
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::P1 => "The validity windows of two conflicting grants never overlap.",
            Self::P2 => "The tokens of one lock are unique and rise.",
            Self::P3 => "A resource that checks tokens accepts no stale write.",
            Self::P4 => "Only the exact claim can renew or release.",
            Self::P5 => "The lock is free at most one ttl after its holder dies.",
            Self::P6 => "A holder is told *lost* before its validity ends.",
            Self::P7 => "An ambiguous outcome is never reported as a grant.",
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What is left of the promises under a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// Everything: validity windows never overlap, tokens rise.
    Holds,
    /// Two parties may be at work at once, but tokens rise: safe if the resource checks them.
    SafeIfFenced,
    /// Two parties may be at work at once; tokens rise unless the store's clock goes back at the same time.
    SafeIfFencedByClock,
    /// Validity windows never overlap; tokens rise unless the store's wall clock goes back at the same time.
    TokensByClock,
    /// Everything, but the lock may stay held for longer than its ttl.
    HeldLonger,
    /// It cannot happen here.
    NotApplicable,
}

impl Verdict {
    /// The sign for it in the table of the documentation.
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Holds => "✔",
            Self::SafeIfFenced => "F",
            Self::SafeIfFencedByClock => "f",
            Self::TokensByClock => "t",
            Self::HeldLonger => "L",
            Self::NotApplicable => "–",
        }
    }
}

impl Verdict {
    /// The promises that may not hold then; what else must come together for that, the verdict says.
    pub const fn at_stake(self) -> &'static [Promise] {
        match self {
            Self::Holds | Self::NotApplicable => &[],
            Self::SafeIfFenced => &[Promise::P1],
            Self::SafeIfFencedByClock => &[Promise::P1, Promise::P2, Promise::P3],
            Self::TokensByClock => &[Promise::P2, Promise::P3],
            Self::HeldLonger => &[Promise::P5],
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "holds",
            Self::SafeIfFenced => "two may work at once; safe if the resource checks tokens",
            Self::SafeIfFencedByClock => {
                "two may work at once; safe if the resource checks tokens and the store's clock does not go back"
            }
            Self::TokensByClock => "never two at once; tokens rise unless the wall clock goes back at the same time",
            Self::HeldLonger => "holds, but the lock may stay held longer than its ttl",
            Self::NotApplicable => "does not apply",
        })
    }
}

/// What a deployment promises: see [`Locks::guarantee`](crate::Locks::guarantee).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Guarantee {
    /// Which deployment.
    pub deployment: Deployment,
    /// How far its tokens can be trusted to rise.
    pub fence: Fence,
}

impl Guarantee {
    /// What is left of the promises under `fault`.
    pub const fn under(&self, fault: Fault) -> Verdict {
        use Deployment as D;
        use Fault as E;
        use Verdict as V;
        match (self.deployment, fault) {
            (D::Unknown, _) => V::SafeIfFencedByClock,
            // The promises of every store: they come from the lease, not from the store.
            (_, E::ClientClock | E::Evict) => V::Holds,
            (_, E::HolderPause | E::EvictByForce) => V::SafeIfFenced,
            (D::Memory, _) => V::NotApplicable,
            (_, E::HolderCrash) => V::Holds,
            (D::Embedded, E::Partition | E::Failover) => V::NotApplicable,
            (D::Embedded, E::StoreRestart | E::StoreClockAhead | E::StoreClockBack) => V::Holds,
            (D::Embedded, E::PowerLoss) => V::TokensByClock,
            (_, E::DataDeleted) => V::SafeIfFencedByClock,
            (_, E::Partition) => V::Holds,
            (_, E::StoreClockAhead) => V::SafeIfFenced,
            (_, E::StoreClockBack) => V::HeldLonger,
            (D::RedisDurable, E::StoreRestart | E::PowerLoss) => V::Holds,
            (D::RedisForgetful | D::RedisDurable, E::Failover) => V::NotApplicable,
            (D::RedisForgetful | D::RedisReplicated, E::StoreRestart | E::PowerLoss) => {
                V::SafeIfFencedByClock
            }
            (D::RedisReplicated, E::Failover) => V::SafeIfFencedByClock,
        }
    }

    /// Whether two parties never hold the lock at once, as long as nobody's process stands still past its ttl, no
    /// operator forces it, nobody deletes the data, and the clocks go on.
    pub fn is_exclusive(&self) -> bool {
        [Fault::StoreRestart, Fault::PowerLoss, Fault::Failover, Fault::Partition, Fault::HolderCrash]
            .iter()
            .all(|fault| !matches!(self.under(*fault), Verdict::SafeIfFenced | Verdict::SafeIfFencedByClock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in the documentation is this one.
    #[test]
    fn the_documentation_says_the_same() {
        let page = include_str!("../../../docs/concepts/promises.md");
        let guarantee = |deployment| Guarantee { deployment, fence: Fence::ClockFloor };
        let columns = Deployment::ALL;
        let header: Vec<String> = columns.iter().map(ToString::to_string).collect();
        let mut table =
            format!("| fault | {} |\n|---|{}\n", header.join(" | "), "---|".repeat(columns.len()));
        for fault in Fault::ALL {
            let signs: Vec<&str> = columns.iter().map(|d| guarantee(*d).under(fault).sign()).collect();
            table += &format!("| {fault} | {} |\n", signs.join(" | "));
        }
        assert!(page.contains(&table), "docs/concepts/promises.md must contain:\n{table}");
        for promise in Promise::ALL {
            let row = format!("| {promise} | {} |\n", promise.in_words());
            assert!(page.contains(&row), "docs/concepts/promises.md must contain:\n{row}");
        }
    }

    #[test]
    fn a_forgetful_store_is_not_exclusive() {
        let is_exclusive = |deployment| Guarantee { deployment, fence: Fence::ClockFloor }.is_exclusive();
        assert!(is_exclusive(Deployment::Embedded) && is_exclusive(Deployment::RedisDurable));
        assert!(!is_exclusive(Deployment::RedisForgetful) && !is_exclusive(Deployment::RedisReplicated));
        assert!(!is_exclusive(Deployment::Unknown));
    }
}
