//! [`Subject`]: a store under test, and how to look at it from the side.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::clock::SystemClock;
use tenure_core::queue::Rules;
use tenure_core::{Backend, Memory};

use crate::wrappers::Silent;

/// A store under test. Each is a store of its own, empty at first: cases use the same names.
///
/// Lines and tombstones should be short lived in it, so that the suite is quick: cases take what
/// [`Capabilities`](tenure_core::Capabilities) says and wait that long.
#[async_trait]
pub trait Subject: Debug + Send + Sync + 'static {
    /// A further client of the store, as another process would be.
    async fn open(&self) -> Arc<dyn Backend>;

    /// A client whose requests never reach the store, or whose answers never arrive. It must still answer within a few
    /// seconds: with an error. A store behind a network says here how to cut the wire.
    async fn open_cut_off(&self) -> Arc<dyn Backend> {
        let silent = Silent::new(self.open().await);
        silent.switch().fall_silent();
        Arc::new(silent.with_deadline(Duration::from_millis(100)))
    }

    /// Everything in the store that should not be there once nobody holds or waits, for people to read. Looks from the
    /// side: not through the backend. What is left to expire by itself so that tokens rise does not count; tombstones
    /// and once records do, while they last.
    async fn leftovers(&self) -> Vec<String>;

    /// Lets a client die without goodbye: nothing is released. It is the last reference to it.
    async fn vanish(&self, client: Arc<dyn Backend>) {
        drop(client);
    }

    /// How long after its client vanished a claim tied to the process is ended at the latest, if the store notices
    /// that at all. `None`: the ttl ends it.
    fn notices_death_within(&self) -> Option<Duration> {
        None
    }

    /// How long tombstones stay at the most.
    fn forgets_within(&self) -> Duration {
        Duration::from_secs(20)
    }
}

/// The reference backend, with a line that forgets quickly.
#[derive(Debug, Clone)]
pub struct MemorySubject {
    memory: Memory,
}

impl MemorySubject {
    /// How long things last in it: as short as a noisy machine allows.
    pub const RULES: Rules = Rules {
        line_ttl: Duration::from_millis(2100),
        first_ttl: Duration::from_millis(700),
        tombstone_ttl: Duration::from_secs(3),
        ..Rules::DEFAULT
    };

    /// A new, empty store.
    pub fn new() -> Self {
        Self { memory: Memory::with(Arc::new(SystemClock), Self::RULES) }
    }
}

impl Default for MemorySubject {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Subject for MemorySubject {
    async fn open(&self) -> Arc<dyn Backend> {
        Arc::new(self.memory.clone())
    }

    async fn leftovers(&self) -> Vec<String> {
        self.memory.stored_names().iter().map(|name| format!("{name:?}")).collect()
    }
}
