//! A cluster: which node has which locks, and the way there.
//!
//! Locks are in 256 buckets, by their names. All keys of a bucket are in one slot, and with them the fence that numbers its
//! grants; so a bucket is what one server would be, and lives at whichever node has its slot. Nodes are asked who has which
//! slot when the first lock is wanted, when one of them says that a bucket has moved, and when one cannot be reached. All of
//! them are asked, and of each slot the newest owner counts, by its epoch.

mod topology;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use redis::Cmd;
use tenure_core::clock::sleep_until;
use tenure_core::{Answer, BootInstant, Clock, RefusalKind, StoreError};
use tokio::sync::watch;

use crate::attention::Watch;
use crate::config::{Host, RedisConfig};
use crate::pushes::{Orphan, Pushes};
use crate::scripts::{Call, Scripts};
use crate::supervisor::{Reply, Supervisor};
use topology::Owners;
pub(crate) use topology::{BUCKETS, bucket_of, bucket_with, tag_of};

/// How long to wait before a node is asked again that is about to give a bucket away.
const MOVING_PAUSE: Duration = Duration::from_millis(20);
/// The nodes are not asked for their slots more often.
const ASKED_EVERY: Duration = Duration::from_millis(200);

/// The nodes of a cluster.
pub(crate) struct Cluster {
    pub(crate) config: RedisConfig,
    pub(crate) scripts: Scripts,
    pub(crate) pushes: Arc<Pushes>,
    pub(crate) clock: Arc<dyn Clock>,
    given_up: Arc<watch::Sender<u64>>,
    state: Mutex<State>,
    /// One that asks for all.
    asking: tokio::sync::Mutex<()>,
    /// Somebody does so in the background.
    is_looking: AtomicBool,
    /// Is told of every grant that nobody here awaits.
    orphanage: OnceLock<Box<dyn Fn(Orphan) + Send + Sync>>,
    this: Weak<Self>,
}

#[derive(Default)]
struct State {
    owners: Owners,
    nodes: HashMap<Host, Arc<Supervisor>>,
    asked_at: Option<BootInstant>,
}

/// Whoever asks the nodes in the background: one at a time.
struct Looking(Arc<Cluster>);

impl Looking {
    fn begin(cluster: Arc<Cluster>) -> Option<Self> {
        (!cluster.is_looking.swap(true, Ordering::AcqRel)).then_some(Self(cluster))
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.is_looking.store(false, Ordering::Release);
    }
}

/// What a node answers to a request that it does not carry out.
#[derive(Debug, PartialEq, Eq)]
enum Elsewhere {
    /// Another has the slot.
    At(Host),
    /// It is on its way to another.
    OnItsWay,
}

impl Cluster {
    pub(crate) fn new(config: RedisConfig, pushes: Arc<Pushes>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            scripts: Scripts::new(&config.rules),
            clock: config.seams.clock.clone(),
            given_up: Arc::default(),
            state: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            is_looking: AtomicBool::new(false),
            orphanage: OnceLock::new(),
            this: this.clone(),
            pushes,
            config,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is told of grants that nobody here awaits.
    pub(crate) fn set_orphanage(&self, orphanage: impl Fn(Orphan) + Send + Sync + 'static) {
        let _ = self.orphanage.set(Box::new(orphanage));
    }

    fn orphan(&self, orphan: Orphan) {
        if let Some(orphanage) = self.orphanage.get() {
            orphanage(orphan);
        }
    }

    /// Takes in what this process is told in an answer.
    pub(crate) fn message(&self, message: &[u8]) {
        if let Some(orphan) = self.pushes.receive(message, self.clock.now()) {
            self.orphan(Orphan { may_be_late: true, ..orphan });
        }
    }

    /// Completes when a connection is given up, or a bucket has another owner.
    pub(crate) fn in_doubt(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut given_up = self.given_up.subscribe();
        async move { drop(given_up.changed().await) }
    }

    /// The nodes that have buckets, each with one of them.
    pub(crate) async fn primaries(&self) -> Answer<Vec<(Host, usize)>> {
        self.ask_nodes().await?;
        let mut primaries = HashMap::new();
        for (bucket, owner) in self.state().owners.all() {
            primaries.entry(owner.host.clone()).or_insert(bucket);
        }
        let mut primaries: Vec<_> = primaries.into_iter().collect();
        primaries.sort();
        Ok(primaries)
    }

    /// How many buckets no node has.
    pub(crate) fn unowned(&self) -> usize {
        BUCKETS - self.state().owners.all().count()
    }

    /// The node that has a bucket.
    async fn owner(&self, bucket: usize) -> Answer<(Host, Arc<Supervisor>)> {
        if let Some(known) = self.known_owner(bucket) {
            return Ok(known);
        }
        self.ask_nodes().await?;
        self.known_owner(bucket).ok_or_else(|| {
            let message = format!("no node of the cluster has slot {}", topology::slot_of(tag_of(bucket)));
            StoreError::refused(RefusalKind::Unavailable, message)
        })
    }

    fn known_owner(&self, bucket: usize) -> Option<(Host, Arc<Supervisor>)> {
        let mut state = self.state();
        let host = state.owners.of(bucket)?.host.clone();
        let node = state.nodes.entry(host.clone()).or_insert_with(|| {
            let this = self.this.clone();
            let orphanage = move |orphan| {
                if let Some(this) = this.upgrade() {
                    this.orphan(orphan);
                }
            };
            let config = self.config.of_node(&host);
            Supervisor::new(config, self.pushes.clone(), self.given_up.clone(), orphanage)
        });
        Some((host, node.clone()))
    }

    /// Asks the nodes who has which slot; not if somebody did a moment ago.
    async fn ask_nodes(&self) -> Answer<()> {
        let _turn = self.asking.lock().await;
        let now = self.clock.now();
        if self.state().asked_at.is_some_and(|at| now < at + ASKED_EVERY) {
            return Ok(());
        }
        let mut hosts: Vec<Host> = self.config.cluster().unwrap_or_default().to_vec();
        hosts.extend(self.state().owners.hosts());
        hosts.sort();
        hosts.dedup();
        let owners = topology::find(&self.config, hosts).await?;
        let (has_moved, gone) = {
            let mut state = self.state();
            state.asked_at = Some(now);
            let has_moved = state.owners.differ_from(&owners);
            state.owners = owners;
            let State { owners, nodes, .. } = &mut *state;
            let gone: Vec<_> = nodes.extract_if(|host, _| !owners.has(host)).collect();
            (has_moved, gone)
        };
        // Outside the lock: connections end with them.
        drop(gone);
        if has_moved {
            self.has_moved();
        }
        Ok(())
    }

    /// A bucket has another owner, which may not know what was granted, nor where this process listens.
    fn has_moved(&self) {
        self.pushes.tell_all_to_look();
        self.given_up.send_modify(|count| *count += 1);
    }

    /// A node could not be reached: another may have its slots by now. Nobody waits for it.
    fn look_around(&self) {
        let Some(this) = self.this.upgrade() else { return };
        // Over when this is dropped, also with its runtime.
        let Some(looking) = Looking::begin(this) else { return };
        tokio::spawn(async move {
            let cluster = &looking.0;
            if let Err(error) = cluster.ask_nodes().await {
                tracing::debug!(store = cluster.config.store(), %error, "no node says who has which slot");
            }
        });
    }

    /// Where a bucket is that a node has not.
    fn note(&self, bucket: usize, host: Host) {
        let has_moved = self.state().owners.set(bucket, host);
        if has_moved {
            self.has_moved();
            self.look_around();
        }
    }

    /// What to do about an answer of `host`: nothing, if it is one.
    async fn elsewhere<T>(
        &self,
        bucket: usize,
        host: &Host,
        answer: &Result<T, StoreError>,
        deadline: BootInstant,
    ) -> bool {
        let Err(error) = answer else { return false };
        match elsewhere(error, host) {
            Some(_) if self.clock.now() >= deadline => false,
            Some(Elsewhere::At(host)) => {
                self.note(bucket, host);
                true
            }
            Some(Elsewhere::OnItsWay) => {
                sleep_until(self.clock.clone(), self.clock.now() + MOVING_PAUSE).await;
                true
            }
            // Nothing was done: if another has the bucket by now, it is asked.
            None if error.is_passing() && matches!(error, StoreError::Refused(_)) => {
                tokio::select! {
                    biased;
                    _ = self.ask_nodes() => {}
                    () = sleep_until(self.clock.clone(), deadline) => return false,
                }
                self.state().owners.of(bucket).is_some_and(|owner| owner.host != *host)
            }
            None => {
                if error.is_passing() {
                    self.look_around();
                }
                false
            }
        }
    }
}

/// Whether a node did not carry out a request because it does not have the slot.
fn elsewhere(error: &StoreError, asked: &Host) -> Option<Elsewhere> {
    let StoreError::Unknown(text) = error else { return None };
    if text.starts_with("TRYAGAIN") || text.starts_with("ASK ") {
        return Some(Elsewhere::OnItsWay);
    }
    let (_, address) = text.strip_prefix("MOVED ")?.trim().split_once(' ')?;
    let (name, port) = address.rsplit_once(':')?;
    // A node that does not know its own name means itself, or the host that it was asked at.
    let name = if name.is_empty() { &asked.name } else { name.trim_matches(['[', ']']) };
    Some(Elsewhere::At(Host { name: name.to_owned(), port: port.parse().ok()? }))
}

/// One bucket of a cluster: where it is, whoever has it.
#[derive(Clone)]
pub(crate) struct Bucket {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) number: usize,
}

impl Bucket {
    fn deadline(&self) -> BootInstant {
        self.cluster.clock.now() + self.cluster.config.timeout
    }

    /// See [`Supervisor::run`].
    pub(crate) async fn run(&self, call: &dyn Call, watch: Watch) -> Result<Reply, StoreError> {
        let deadline = self.deadline();
        loop {
            let (host, node) = self.cluster.owner(self.number).await?;
            let reply = node.run(call, watch).await;
            if !self.cluster.elsewhere(self.number, &host, &reply, deadline).await {
                return reply;
            }
        }
    }

    /// See [`Supervisor::run_all`]. What a node did not carry out for it has the bucket no more is asked again, one after the
    /// other.
    pub(crate) async fn run_all(
        &self,
        calls: &[&dyn Call],
        strict: usize,
        watch: Watch,
    ) -> Vec<Result<Reply, StoreError>> {
        let (host, node) = match self.cluster.owner(self.number).await {
            Ok(owner) => owner,
            Err(error) => return calls.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut replies = node.run_all(calls, strict, watch).await;
        let is_elsewhere = |reply: &Result<Reply, StoreError>| {
            reply.as_ref().err().is_some_and(|error| elsewhere(error, &host).is_some())
        };
        let Some(first) = replies.iter().position(is_elsewhere) else {
            if let Some(Err(error)) = replies.first()
                && error.is_passing()
            {
                self.cluster.look_around();
            }
            return replies;
        };
        replies.truncate(first);
        for call in &calls[first..] {
            replies.push(self.run(*call, watch).await);
        }
        replies
    }

    /// See [`Supervisor::ask`].
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Reply, StoreError> {
        let deadline = self.deadline();
        loop {
            let (host, node) = self.cluster.owner(self.number).await?;
            let reply = node.ask(command).await;
            if !self.cluster.elsewhere(self.number, &host, &reply, deadline).await {
                return reply;
            }
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let mut nodes: Vec<_> = state.nodes.keys().map(ToString::to_string).collect();
        nodes.sort();
        f.debug_struct("Cluster")
            .field("config", &self.config)
            .field("nodes", &nodes)
            .field("registered_claims", &self.pushes.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket").field("number", &self.number).field("cluster", &self.cluster).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_says_that_does_not_have_the_slot() {
        let asked = Host { name: "h1".into(), port: 7000 };
        let at = |name: &str, port| Some(Elsewhere::At(Host { name: name.into(), port }));
        for (text, expected) in [
            ("MOVED 3999 10.0.0.2:6381", at("10.0.0.2", 6381)),
            ("MOVED 3999 db2.example:6381", at("db2.example", 6381)),
            ("MOVED 3999 :6381", at("h1", 6381)),
            ("MOVED 3999 ::1:6381", at("::1", 6381)),
            ("ASK 3999 10.0.0.2:6381", Some(Elsewhere::OnItsWay)),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Some(Elsewhere::OnItsWay)),
            ("MOVED 3999 nonsense", None),
            ("nothing within 2s", None),
        ] {
            assert_eq!(elsewhere(&StoreError::unknown(text), &asked), expected, "{text}");
        }
        let refused = StoreError::refused(RefusalKind::Unavailable, "MOVED 1 h:1");
        assert_eq!(elsewhere(&refused, &asked), None);
    }
}
