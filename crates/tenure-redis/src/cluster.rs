//! A cluster: which node has which locks, and the way there.
//!
//! Locks are in 256 buckets, by their names. All keys of a bucket are in one slot, and with them the fence that numbers its
//! grants; so a bucket is what one server would be, and lives at whichever node has its slot. Nodes are asked who has which
//! slot when the first lock is wanted, when one of them says that a bucket has moved, and when one cannot be reached. All of
//! them are asked, and of each slot the newest owner counts, by its epoch.

mod topology;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use redis::Cmd;
use tenure_core::clock::sleep_until;
use tenure_core::{Answer, BootInstant, Clock, RefusalKind, StoreError};
use tokio::sync::watch;

use crate::attention::Watch;
use crate::config::{Host, RedisConfig};
use crate::pushes::{Orphan, Pushes};
use crate::renewals::Pace;
use crate::scripts::{Call, Scripts};
use crate::supervisor::{Reply, Supervisor};
use topology::Owners;
pub(crate) use topology::{BUCKETS, bucket_of, bucket_with, tag_of};

/// How long to wait before a request is repeated: one that was sent on before, or whose bucket is on its way.
const MOVING_PAUSE: Duration = Duration::from_millis(20);
/// The nodes are not asked for their slots more often than that; and only half as often, and so on, while that tells nothing
/// new, to once in so long.
const ASKED_EVERY: Duration = Duration::from_millis(200);
const ASKED_EVERY_MAX: Duration = Duration::from_secs(1);
/// Whoever waits is not told more often that buckets have moved.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// The nodes of a cluster.
pub(crate) struct Cluster {
    pub(crate) config: RedisConfig,
    pub(crate) scripts: Scripts,
    pub(crate) pushes: Arc<Pushes>,
    pub(crate) clock: Arc<dyn Clock>,
    given_up: Arc<watch::Sender<u64>>,
    state: Mutex<State>,
    ears: OnceLock<Ears>,
    /// Shared by all buckets: a node must not be busy with our renewals alone.
    pub(crate) pace: Arc<Pace>,
    this: Weak<Self>,
}

/// Who is told.
pub(crate) struct Ears {
    /// Of every grant that nobody here awaits.
    pub(crate) orphan: Box<dyn Fn(Orphan) + Send + Sync>,
    /// When buckets have other owners.
    pub(crate) moved: Box<dyn Fn() + Send + Sync>,
}

type Asked = Answer<()>;

#[derive(Default)]
struct State {
    owners: Owners,
    nodes: HashMap<Host, Arc<Supervisor>>,
    /// Somebody is asking the nodes.
    asking: Option<watch::Receiver<Option<Asked>>>,
    /// What came of it when they were last asked, and when they may be asked again.
    asked: Option<(Asked, BootInstant)>,
    /// How often in a row that told nothing new.
    in_vain: u32,
    /// When everybody that waits was last told that buckets have moved, or will be.
    told_at: Option<BootInstant>,
}

/// What a node answers to a request that it does not carry out.
#[derive(Debug, PartialEq, Eq)]
enum Elsewhere {
    /// Another has the slot.
    At(Host),
    /// Another, and the node does not say which.
    Somewhere,
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
            ears: OnceLock::new(),
            pace: Arc::default(),
            this: this.clone(),
            pushes,
            config,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is told. Once.
    pub(crate) fn set_ears(&self, ears: Ears) {
        let _ = self.ears.set(ears);
    }

    fn orphan(&self, orphan: Orphan) {
        if let Some(ears) = self.ears.get() {
            (ears.orphan)(orphan);
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

    fn deadline(&self) -> BootInstant {
        self.clock.now() + self.config.timeout
    }

    /// The nodes that have buckets, each with one of them.
    pub(crate) async fn primaries(&self) -> Answer<Vec<(Host, usize)>> {
        self.ask_nodes(self.deadline()).await?;
        let mut primaries = HashMap::new();
        for (bucket, host) in self.state().owners.all() {
            primaries.entry(host.clone()).or_insert(bucket);
        }
        let mut primaries: Vec<_> = primaries.into_iter().collect();
        primaries.sort();
        Ok(primaries)
    }

    /// The node at a host.
    pub(crate) fn node(&self, host: &Host) -> Arc<Supervisor> {
        let mut state = self.state();
        let node = state.nodes.entry(host.clone()).or_insert_with(|| {
            let this = self.this.clone();
            let orphanage = move |orphan| {
                if let Some(this) = this.upgrade() {
                    this.orphan(orphan);
                }
            };
            let config = self.config.of_node(host);
            Supervisor::new(config, self.pushes.clone(), self.given_up.clone(), orphanage)
        });
        node.clone()
    }

    /// How many buckets are on their way from one node to another.
    pub(crate) fn moving(&self) -> usize {
        self.state().owners.moving()
    }

    /// How many buckets no node has.
    pub(crate) fn unowned(&self) -> usize {
        BUCKETS - self.state().owners.all().count()
    }

    /// The node that has a bucket.
    async fn owner(&self, bucket: usize, deadline: BootInstant) -> Answer<(Host, Arc<Supervisor>)> {
        let mut host = self.known_owner(bucket);
        if host.is_none() {
            self.ask_nodes(deadline).await?;
            host = self.known_owner(bucket);
        }
        let host = host.ok_or_else(|| {
            let message = format!("no node of the cluster has slot {}", topology::slot_of(tag_of(bucket)));
            StoreError::refused(RefusalKind::Unavailable, message)
        })?;
        let node = self.node(&host);
        Ok((host, node))
    }

    fn known_owner(&self, bucket: usize) -> Option<Host> {
        self.state().owners.of(bucket).cloned()
    }

    /// Asks the nodes who has which slot; if somebody did a moment ago, what came of that.
    async fn ask_nodes(&self, deadline: BootInstant) -> Asked {
        let mut asking = match self.asked() {
            Ok(asked) => return asked,
            Err(asking) => asking,
        };
        let too_late = || {
            let message = "no node has said in time who has which slot";
            Err(StoreError::refused(RefusalKind::Unavailable, message))
        };
        tokio::select! {
            biased;
            asked = asking.wait_for(Option::is_some) => match asked {
                Ok(asked) => asked.clone().unwrap_or_else(too_late),
                Err(_) => too_late(),
            },
            () = sleep_until(self.clock.clone(), deadline) => too_late(),
        }
    }

    /// A node could not be reached, or has given a bucket away. Nobody waits for what the others say.
    fn look_around(&self) {
        drop(self.asked());
    }

    /// What the nodes said a moment ago, or where it is told what they say.
    fn asked(&self) -> Result<Asked, watch::Receiver<Option<Asked>>> {
        let mut state = self.state();
        if let Some((asked, again_at)) = &state.asked
            && self.clock.now() < *again_at
        {
            return Ok(asked.clone());
        }
        match &state.asking {
            // Otherwise the runtime that it was made on has ended, and whoever asked with it.
            Some(asking) if asking.has_changed().is_ok() => Err(asking.clone()),
            _ => {
                let (sender, receiver) = watch::channel(None);
                state.asking = Some(receiver.clone());
                let this = self.this.upgrade().expect("called on it");
                // A task of its own: the callers that wait for it may give up.
                tokio::spawn(async move { this.ask_all(sender).await });
                Err(receiver)
            }
        }
    }

    async fn ask_all(self: Arc<Self>, done: watch::Sender<Option<Asked>>) {
        let mut hosts: Vec<Host> = self.config.cluster().unwrap_or_default().to_vec();
        hosts.extend(self.state().owners.hosts());
        hosts.sort();
        hosts.dedup();
        let found = topology::find(&self.config, hosts).await;
        if let Err(error) = &found {
            tracing::debug!(store = self.config.store(), %error, "no node says who has which slot");
        }
        let (asked, has_moved, gone) = {
            let mut state = self.state();
            let (asked, is_news, has_moved) = match found {
                Ok(owners) => {
                    let (is_news, has_moved) = (state.owners != owners, state.owners.differ_from(&owners));
                    state.owners = owners;
                    (Ok(()), is_news, has_moved)
                }
                Err(error) => (Err(error), false, false),
            };
            state.in_vain = if is_news { 0 } else { state.in_vain + 1 };
            let pause = (ASKED_EVERY * 2_u32.pow(state.in_vain.min(4))).min(ASKED_EVERY_MAX);
            let jitter = (1.0 + self.config.seams.entropy.fraction()) / 2.0;
            state.asked = Some((asked.clone(), self.clock.now() + pause.mul_f64(jitter)));
            state.asking = None;
            let State { owners, nodes, .. } = &mut *state;
            let gone: Vec<_> = nodes.extract_if(|host, _| !owners.has(host)).collect();
            (asked, has_moved, gone)
        };
        // Outside the lock: connections end with them.
        drop(gone);
        if has_moved {
            self.has_moved();
        }
        // Nobody may be waiting any more.
        let _ = done.send(Some(asked));
    }

    /// Buckets have other owners, which may not know what was granted, nor where this process listens.
    fn has_moved(&self) {
        if let Some(ears) = self.ears.get() {
            (ears.moved)();
        }
        let now = self.clock.now();
        let at = {
            let mut state = self.state();
            let at = match state.told_at {
                // Somebody is about to.
                Some(told_at) if told_at > now => return,
                Some(told_at) => now.max(told_at + TOLD_EVERY),
                None => now,
            };
            state.told_at = Some(at);
            at
        };
        if at <= now {
            self.tell();
            return;
        }
        let (this, clock) = (self.this.clone(), self.clock.clone());
        tokio::spawn(async move {
            sleep_until(clock, at).await;
            if let Some(this) = this.upgrade() {
                this.tell();
            }
        });
    }

    fn tell(&self) {
        self.pushes.tell_all_to_look();
        self.given_up.send_modify(|count| *count += 1);
    }

    /// Where a bucket is that a node has not.
    fn note(&self, bucket: usize, host: Host) {
        let has_moved = self.state().owners.set(bucket, host);
        if has_moved {
            self.has_moved();
            self.look_around();
        }
    }
}

/// A request on its way: to one node, and perhaps on to another.
struct Journey<'a> {
    cluster: &'a Cluster,
    bucket: usize,
    deadline: BootInstant,
    /// How often it was sent on.
    hops: u32,
}

impl Journey<'_> {
    /// Whether to ask again: `host` has said that it did not carry out the request, and there is time.
    async fn goes_on<T>(&mut self, host: &Host, answer: &Result<T, StoreError>) -> bool {
        let Err(error) = answer else { return false };
        let cluster = self.cluster;
        let is_over = cluster.clock.now() >= self.deadline;
        match elsewhere(error, host) {
            Some(_) if is_over => {
                cluster.look_around();
                false
            }
            Some(at) => {
                match at {
                    Elsewhere::At(host) => cluster.note(self.bucket, host),
                    // Whatever comes of it, there is a pause.
                    Elsewhere::Somewhere => drop(cluster.ask_nodes(self.deadline).await),
                    Elsewhere::OnItsWay => self.hops = self.hops.max(1),
                }
                // Nodes that send it to each other are given time to agree.
                if self.hops > 0 {
                    let clock = cluster.clock.clone();
                    sleep_until(clock, cluster.clock.now() + MOVING_PAUSE).await;
                }
                self.hops += 1;
                true
            }
            // Nothing was done: if another has the bucket by now, it is asked.
            None if error.is_passing() && matches!(error, StoreError::Refused(_)) && !is_over => {
                let asked = cluster.ask_nodes(self.deadline).await;
                asked.is_ok() && cluster.known_owner(self.bucket).is_some_and(|owner| owner != *host)
            }
            None => {
                if error.is_passing() {
                    cluster.look_around();
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
    // Without a name, it is where it was asked; but it was asked there.
    let name = if name.is_empty() { &asked.name } else { name.trim_matches(['[', ']']) };
    let host = Host { name: name.to_owned(), port: port.parse().ok()? };
    Some(if host == *asked || host.name == "?" { Elsewhere::Somewhere } else { Elsewhere::At(host) })
}

/// One bucket of a cluster: where it is, whoever has it.
#[derive(Clone)]
pub(crate) struct Bucket {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) number: usize,
}

impl Bucket {
    fn journey(&self) -> Journey<'_> {
        let (cluster, bucket) = (&*self.cluster, self.number);
        Journey { cluster, bucket, deadline: cluster.deadline(), hops: 0 }
    }

    /// See [`Supervisor::run`].
    pub(crate) async fn run(&self, call: &dyn Call, watch: Watch) -> Result<Reply, StoreError> {
        let mut journey = self.journey();
        loop {
            let (host, node) = self.cluster.owner(self.number, journey.deadline).await?;
            let reply = node.run(call, watch).await;
            if !journey.goes_on(&host, &reply).await {
                return reply;
            }
        }
    }

    /// See [`Supervisor::run_all`]. What a node did not carry out is asked again, one after the other. If that is one of the
    /// `strict` first, then also what came after it: it must come after it.
    pub(crate) async fn run_all(
        &self,
        calls: &[&dyn Call],
        strict: usize,
        watch: Watch,
    ) -> Vec<Result<Reply, StoreError>> {
        let (host, node) = match self.cluster.owner(self.number, self.cluster.deadline()).await {
            Ok(owner) => owner,
            Err(error) => return calls.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut replies = node.run_all(calls, strict, watch).await;
        if let Some(Err(error)) = replies.first()
            && error.is_passing()
        {
            self.cluster.look_around();
        }
        let mut is_again = false;
        for (place, call) in calls.iter().enumerate() {
            let Some(reply) = replies.get_mut(place) else { break };
            let is_elsewhere = reply.as_ref().err().is_some_and(|error| elsewhere(error, &host).is_some());
            is_again |= is_elsewhere && place < strict;
            if is_elsewhere || is_again {
                *reply = self.run(*call, watch).await;
            }
        }
        replies
    }

    /// See [`Supervisor::ask`].
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Reply, StoreError> {
        let mut journey = self.journey();
        loop {
            let (host, node) = self.cluster.owner(self.number, journey.deadline).await?;
            let reply = node.ask(command).await;
            if !journey.goes_on(&host, &reply).await {
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
            ("MOVED 3999 :7000", Some(Elsewhere::Somewhere)),
            ("MOVED 3999 h1:7000", Some(Elsewhere::Somewhere)),
            ("MOVED 3999 ?:6381", Some(Elsewhere::Somewhere)),
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
