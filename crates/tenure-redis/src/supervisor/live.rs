//! A connection in use, and the answers that come over it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tenure_core::{BootInstant, Clock, StoreError};

use super::Supervisor;
use super::connecting::EndsWithUs;
use crate::attention::Attention;
use crate::reply::{self, Answers};
use crate::server::Server;

/// How much longer than its deadline a request may still be carried out by the store.
const LATE_BY: Duration = Duration::from_millis(500);

/// A connection that works as far as we know.
pub(crate) struct Live {
    /// Who keeps it.
    pub(super) keeper: Weak<Supervisor>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) timeout: Duration,
    pub(super) connection: MultiplexedConnection,
    pub(crate) server: Server,
    pub(crate) is_retired: Arc<AtomicBool>,
    /// The store's clock minus ours in µs, as of the newest answer: never too little.
    pub(super) store_ahead: AtomicI64,
    /// Where this process is told, if it can be.
    pub(super) channel: Option<String>,
    /// The newest name of a request: see [`Supervisor::latest`].
    pub(super) named: AtomicU64,
    /// Tells it from all others.
    pub(crate) number: u64,
    pub(super) attention: Arc<Attention>,
    /// Who reads the pushes, where they have a connection of their own.
    pub(super) _listener: Option<EndsWithUs>,
    /// What moves the bytes, where that is not the client library's business.
    pub(super) _driver: Option<EndsWithUs>,
    /// Who listens to the sentinels.
    pub(super) _sentinels: Vec<EndsWithUs>,
}

/// An answer, and the exchange it came from.
pub(crate) struct Reply {
    pub(crate) value: Value,
    pub(crate) sent: BootInstant,
    pub(crate) live: Arc<Live>,
}

impl Live {
    /// Where this process is told; empty if it cannot be.
    pub(crate) fn channel(&self) -> &str {
        self.channel.as_deref().unwrap_or_default()
    }

    /// Whether pushes reach this process.
    pub(crate) const fn is_subscribed(&self) -> bool {
        self.channel.is_some()
    }

    /// The store's moment, in µs, after which a request that is sent now must not be carried out any more. Never the
    /// same twice on one connection: it names the request, and its answer repeats it.
    pub(crate) fn latest(&self) -> u64 {
        let late = u64::try_from((self.timeout + LATE_BY).as_micros()).unwrap_or(u64::MAX);
        let latest = self.store_time().saturating_add(late);
        let before = self.named.fetch_max(latest, Ordering::Relaxed);
        if before < latest { latest } else { self.named.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// The store's moment, in µs, until which the answer to a request that is sent now is surely read: then, or when its
    /// deadline comes, everybody here that waits is told.
    pub(crate) fn awaits_until(&self) -> u64 {
        let half = u64::try_from(self.timeout.as_micros() / 2).unwrap_or(0);
        self.store_time().saturating_add(half)
    }

    /// The store's time now in µs, or a little more.
    pub(super) fn store_time(&self) -> u64 {
        let now = i64::try_from(self.clock.now().as_nanos() / 1000).unwrap_or(i64::MAX);
        u64::try_from(now.saturating_add(self.store_ahead.load(Ordering::Relaxed))).unwrap_or(0)
    }

    fn retire(&self) {
        match self.keeper.upgrade() {
            Some(keeper) => keeper.retire(&self.is_retired),
            None => self.is_retired.store(true, Ordering::Release),
        }
    }

    pub(super) fn note_time(&self, sent: BootInstant, store_micros: u64) {
        let ours = i64::try_from(sent.as_nanos() / 1000).unwrap_or(i64::MAX);
        let ahead = i64::try_from(store_micros).unwrap_or(i64::MAX) - ours;
        self.store_ahead.store(ahead, Ordering::Relaxed);
    }
}

impl Reply {
    /// Reads the answers of a script. Replies that do not go with the requests end the connection: a middlebox may have
    /// delivered something twice.
    pub(crate) fn read(&mut self, asked: u64) -> Result<Answers, StoreError> {
        let answers = Answers::parse(std::mem::replace(&mut self.value, Value::Nil), asked);
        match &answers {
            Ok(answers) => {
                if answers.store_micros > 0 {
                    self.live.note_time(self.sent, answers.store_micros);
                }
                // As if it were the whole answer: where the name leads now, there may be another server.
                if answers.came_from_a_replica() {
                    self.live.retire();
                }
            }
            Err(StoreError::Unknown(_)) => self.live.retire(),
            Err(_) => {}
        }
        answers
    }

    /// Reads a reply that is one list, and takes the name of the request out of it.
    pub(crate) fn read_list(self, asked: u64) -> Result<Value, StoreError> {
        let list = reply::without_name(self.value, asked);
        if list.is_err() {
            self.live.retire();
        }
        list
    }
}
