//! [`Lease`]: what the running work sees of its grant.
//!
//! Owns the life of one grant on the holder's side: how long it is valid by the local clock, and its one end. Knows
//! that it must be renewed, not how: that is the keeper's. Never comes back from its end.

mod hold;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Why;
use crate::claim::Mode;
use crate::clock::BootInstant;
use crate::name::LockName;
use crate::token::FencingToken;
pub(crate) use hold::{Due, Hold, valid_until};

/// What the running work sees of its grant: whether it still holds the lock, for how long, under which token.
///
/// Cheap to clone; a clone may outlive the [`Guard`](crate::Guard) and then says how it ended.
#[derive(Clone)]
pub struct Lease {
    pub(crate) hold: Arc<Hold>,
}

/// How it stands with a lease. It moves from `Held` to `AtRisk` and back as renewals fail and succeed, and once to one
/// of its ends, for good.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseState {
    /// Valid, and renewed on time.
    Held {
        /// How long it is valid without another renewal.
        left: Duration,
    },
    /// Still valid, but a renewal is overdue or failing: a good moment to stop starting things.
    AtRisk {
        /// How long it is valid without another renewal.
        left: Duration,
    },
    /// Not valid any more: another party may hold the lock.
    Lost {
        /// How that came.
        why: Why,
    },
    /// Given back by its holder.
    Released,
}

/// How a lease ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Given back by its holder.
    Released,
    /// Lost.
    Lost(Why),
}

impl Lease {
    /// The lock it is a lease of.
    pub fn name(&self) -> &LockName {
        &self.hold.claim.name
    }

    /// The number of the grant: send it along with every write to the protected resource.
    pub fn token(&self) -> FencingToken {
        self.hold.token
    }

    /// How the lock is held.
    pub fn mode(&self) -> Mode {
        self.hold.claim.mode
    }

    /// How it stands, as of now and by the local clock alone: also right when the store is silent, when the runtime
    /// was starved, and when this process was stopped.
    pub fn state(&self) -> LeaseState {
        self.hold.state()
    }

    /// Whether the lock is held: the state is `Held` or `AtRisk`.
    pub fn is_held(&self) -> bool {
        matches!(self.state(), LeaseState::Held { .. } | LeaseState::AtRisk { .. })
    }

    /// How long the lease is valid without another renewal; zero once it ended.
    pub fn valid_for(&self) -> Duration {
        match self.state() {
            LeaseState::Held { left } | LeaseState::AtRisk { left } => left,
            LeaseState::Lost { .. } | LeaseState::Released => Duration::ZERO,
        }
    }

    /// The moment until which the lease is valid without another renewal; in the past once it ended.
    pub fn valid_until(&self) -> BootInstant {
        let vital = self.hold.vital();
        vital.valid_until.min(vital.ended_at.unwrap_or(BootInstant::NEVER))
    }

    /// Completes when the lease is lost, no later than its validity ends, and tells why. Never completes if it is
    /// released first, so that it can stand in a `select!` beside the work.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub async fn lost(&self) -> Why {
        match self.ended().await {
            End::Lost(why) => why,
            End::Released => std::future::pending().await,
        }
    }

    /// Completes when the lease has ended, either way.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub async fn ended(&self) -> End {
        loop {
            let changed = self.hold.changed.notified();
            match self.state() {
                LeaseState::Released => return End::Released,
                LeaseState::Lost { why } => return End::Lost(why),
                LeaseState::Held { .. } | LeaseState::AtRisk { .. } => changed.await,
            }
        }
    }

    /// Completes when [`valid_until`](Self::valid_until) is no longer `known`: renewed, or ended.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub async fn changed(&self, known: BootInstant) {
        loop {
            let changed = self.hold.changed.notified();
            if self.valid_until() != known {
                return;
            }
            changed.await;
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", self.name())
            .field("token", &self.token())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
