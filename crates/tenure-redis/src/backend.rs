//! [`Redis`]: the boundary, by scripts. Each verb is one script call, one round trip.

mod buckets;
mod listing;
mod told;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Cmd;
use tenure_core::{
    Answer, Attempt, Backend, BootInstant, BoxFuture, Busy, Bytes, Capabilities, Claim, ClaimId, Clock,
    Deployment, Eviction, Fence, FencingToken, Label, Line, LockName, LockPage, LockState, Mode, Released,
    Renewal, Settled, StoreError, Tie, Trail, Wake, async_trait,
};

use crate::attention::Watch;
use crate::batch::{Answered, Batch, Request, Terms};
use crate::cluster::bucket_of;
use crate::config::RedisConfig;
use crate::dating::Anchor;
use crate::keys::{Keys, Layout};
use crate::native;
use crate::newcomers::Newcomers;
use crate::place::Place;
use crate::pushes::{Orphan, Pushes, Waiting};
use crate::renewals::Pace;
use crate::reply::{self, Answers, Attempted, garbled, unsigned};
use crate::scripts::{Filled, Script};
use crate::server::{Means, Server};
use crate::succession::Succession;
use crate::supervisor::{Live, Reply, Supervisor};
pub(crate) use buckets::Buckets;

/// How often a fence that is in use is told to live on.
const FENCE_KEPT_EVERY: Duration = Duration::from_secs(60);

/// Locks in one Redis or Valkey server, or in a cluster of them.
///
/// Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Redis {
    /// Of a cluster, one of its buckets.
    pub(crate) inner: Arc<Inner>,
    pub(crate) buckets: Option<Arc<Buckets>>,
}

/// Locks that are in one place.
pub(crate) struct Inner {
    pub(crate) place: Place,
    pub(crate) pushes: Arc<Pushes>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) layout: Layout,
    pub(crate) means: Means,
    /// The highest token seen: no lower one is given out, even if the store has lost its memory.
    pub(crate) seen: AtomicU64,
    /// When the fence was last told to live on, by our clock in ns, and over which connection.
    fence_kept: AtomicU64,
    fence_kept_over: AtomicU64,
    pub(crate) newcomers: Arc<Newcomers>,
    pub(crate) succession: Succession,
    /// The last attempt found its lock busy: the next is likely to.
    pub(crate) finds_busy: AtomicBool,
    /// The last release handed its lock to another claim of this process.
    pub(crate) hands_to_own: AtomicBool,
    pub(crate) pace: Arc<Pace>,
    capabilities: Capabilities,
    pub(crate) attempts: Batch,
    pub(crate) releases: Batch,
}

impl Redis {
    /// Connects to the server, or to the nodes of a cluster.
    ///
    /// # Errors
    /// A refusal if it cannot be reached, does not accept us, or cannot carry locks; it says why.
    pub async fn connect(config: RedisConfig) -> Answer<Self> {
        config.check_login()?;
        if config.cluster().is_some() {
            return buckets::connect(config).await;
        }
        let pushes = Arc::new(Pushes::new());
        let orphans = Arc::new(std::sync::OnceLock::<Weak<Inner>>::new());
        let for_orphans = orphans.clone();
        let supervisor = Supervisor::new(config, pushes.clone(), Arc::default(), move |orphan| {
            if let Some(inner) = for_orphans.get().and_then(Weak::upgrade) {
                tokio::spawn(async move { inner.release_orphan(orphan).await });
            }
        });
        let first = supervisor.ask(&redis::cmd("PING")).await?;
        let layout = Layout::new(&supervisor.config.prefix, supervisor.config.plain);
        let inner = Inner::new(Place::One(supervisor), layout, pushes, Arc::default(), &first.live.server);
        let _ = orphans.set(Arc::downgrade(&inner));
        Ok(Self { inner, buckets: None })
    }

    /// Where a lock is.
    fn at(&self, name: &LockName) -> &Arc<Inner> {
        self.buckets.as_ref().map_or(&self.inner, |buckets| buckets.of(name))
    }

    /// Another client of the same.
    pub(crate) async fn another(&self) -> Answer<Self> {
        let other = Self::connect(self.inner.place.config().clone()).await?;
        match (&self.inner.place, &other.buckets, &self.buckets) {
            (Place::Bucket(bucket), Some(buckets), None) => Ok(buckets.only(bucket.number)),
            _ => Ok(other),
        }
    }
}

/// The arguments that the scripts start with, after the keys; attempt and release have headers of their own. Answers the
/// name of the request.
pub(crate) fn header(inner: &Inner, live: &Live, command: &mut Cmd) -> u64 {
    let asked = live.latest();
    command.arg(&*live.server.run_id).arg(live.channel());
    command.arg(inner.seen.load(Ordering::Relaxed)).arg(asked);
    asked
}

/// What a claim's key holds while it holds alone: readable, then secret.
pub(crate) fn value_of(claim: &Claim) -> String {
    value(&claim.label, claim.id)
}

pub(crate) fn value(label: &Label, id: ClaimId) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let label = label.as_str();
    let mut value = String::with_capacity(label.len() + 33);
    value.push_str(label);
    value.push('#');
    for byte in id.as_bytes() {
        value.push(char::from(DIGITS[usize::from(byte >> 4)]));
        value.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    value
}

/// In whole milliseconds, rounded up: the store never forgets before we do.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

pub(crate) fn mode_text(mode: Mode, line: Line) -> String {
    let text = match mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared => "s".into(),
        Mode::Once => "o".into(),
        Mode::Permits { n, of } => format!("p:{n}:{of}"),
    };
    match line {
        Line::Join => text,
        Line::Pass => text.to_uppercase(),
        Line::Succeed(before) => format!("{text}={}", before.to_hex()),
    }
}

impl Inner {
    fn new(place: Place, layout: Layout, pushes: Arc<Pushes>, pace: Arc<Pace>, server: &Server) -> Arc<Self> {
        let (config, means, deployment) = (place.config(), server.means, server.deployment);
        let fence = if deployment == Deployment::RedisDurable { Fence::Durable } else { Fence::ClockFloor };
        let mut capabilities = Capabilities::full(fence, config.rules.line_ttl, config.rules.first_ttl);
        capabilities.deployment = deployment;
        if config.plain {
            // They have no main key: nobody else would know of them.
            (capabilities.shared, capabilities.permits) = (false, false);
        }
        if means != Means::Scripts {
            (capabilities.shared, capabilities.permits, capabilities.once) = (false, false, false);
            (capabilities.fifo, capabilities.detach) = (false, false);
        }
        Arc::new(Self {
            pushes,
            clock: config.seams.clock.clone(),
            layout,
            means,
            seen: AtomicU64::new(0),
            fence_kept: AtomicU64::new(0),
            fence_kept_over: AtomicU64::new(0),
            newcomers: Arc::default(),
            succession: Succession::default(),
            finds_busy: AtomicBool::new(false),
            hands_to_own: AtomicBool::new(false),
            pace,
            capabilities,
            attempts: Batch::new(|scripts| &scripts.attempt),
            releases: Batch::new(|scripts| &scripts.release),
            place,
        })
    }

    /// Whether it is time to let the fence live on: with the first attempt over a connection, and every minute.
    pub(crate) fn is_fence_due(&self, live: &Live) -> bool {
        let kept_at = BootInstant::from_nanos(self.fence_kept.load(Ordering::Relaxed));
        self.clock.now().saturating_since(kept_at) > FENCE_KEPT_EVERY
            || self.fence_kept_over.load(Ordering::Relaxed) != live.number
    }

    /// The store has let the fence live on.
    pub(crate) fn fence_is_kept(&self, live: &Live) {
        self.fence_kept.store(self.clock.now().as_nanos(), Ordering::Relaxed);
        self.fence_kept_over.store(live.number, Ordering::Relaxed);
    }

    /// Runs a script about one lock and reads its answers.
    async fn about(
        &self,
        script: &Script,
        keys: &Keys,
        size: usize,
        arguments: impl Fn(&mut Cmd) + Sync,
    ) -> Answer<(Answers, Reply)> {
        let asked = AtomicU64::new(0);
        let fill = |live: &Live, command: &mut Cmd| {
            command.arg(1 + keys.count()).arg(self.layout.fence());
            keys.write_to(command);
            asked.store(header(self, live, command), Ordering::Relaxed);
            arguments(command);
        };
        let call = Filled { script, arguments: 16, size: keys.size() + size + 200, fill };
        let mut reply = self.place.run(&call, Watch::NO).await?;
        let answers = reply.read(asked.into_inner())?;
        Ok((answers, reply))
    }

    async fn attempt(
        self: &Arc<Self>,
        claim: &Claim,
        line: Line,
        is_newcomer: bool,
    ) -> Answer<(Attempted, Anchor, bool)> {
        let terms = Terms::Attempt {
            mode: claim.mode,
            line,
            ttl: millis(claim.ttl.get()),
            reason: claim.reason.clone(),
        };
        let request = Request { keys: self.layout.keys(&claim.name), value: value_of(claim), terms };
        let Answered { item, anchor, is_subscribed } =
            // In a box: it is rare, and would make every attempt larger.
            if is_newcomer { Box::pin(self.announce(request)).await? } else { self.ask(request).await? };
        let attempted = reply::attempted(&claim.name, claim.mode.shape(), item)?;
        let is_busy = matches!(attempted, Attempted::Busy { .. });
        // Looked at first: all threads read it all the time.
        if self.finds_busy.load(Ordering::Relaxed) != is_busy {
            self.finds_busy.store(is_busy, Ordering::Relaxed);
        }
        if let Attempted::Granted(token) = &attempted {
            self.seen.fetch_max(token.get(), Ordering::Relaxed);
        }
        Ok((attempted, anchor, is_subscribed))
    }

    pub(crate) async fn ask(self: &Arc<Self>, request: Request) -> Answer<Answered> {
        self.attempts.send(self, |inner| &inner.attempts, request).await
    }

    pub(crate) async fn release(
        self: &Arc<Self>,
        keys: Keys,
        value: String,
        trail: Trail,
    ) -> Answer<Released> {
        let request = Request { keys, value, terms: Terms::Release { trail } };
        let answered = self.releases.send(self, |inner| &inner.releases, request).await?;
        reply::released(&answered.item)
    }

    /// A grant came for a claim that nobody here knows any more: the lock must not wait for it.
    async fn release_orphan(self: &Arc<Self>, orphan: Orphan) {
        let Some(keys) = self.layout.keys_of_main(&orphan.main) else { return };
        self.succession.stop(&keys, orphan.id);
        // Then its claim was released in the usual way, and needs no tombstone.
        let trail = if orphan.may_be_late { Trail::Clean } else { Trail::Doubtful };
        if let Err(error) = self.release(keys, orphan.value, trail).await {
            tracing::debug!(%error, "a grant that nobody awaited is left to expire");
        }
    }
}

#[async_trait]
impl Backend for Redis {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities
    }

    fn store(&self) -> &str {
        self.inner.place.config().store()
    }

    fn lane(&self, name: &LockName) -> u32 {
        self.buckets.as_ref().map_or(0, |_| u32::try_from(bucket_of(name.as_str())).unwrap_or_default())
    }

    async fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        let inner = self.at(&claim.name);
        // What is rare is in a box: every attempt would be as large.
        if let Means::Native(_) = inner.means {
            return Box::pin(native::attempt(inner, claim, line)).await;
        }
        if !inner.succession.is_idle() {
            Box::pin(inner.make_known(claim)).await?;
        }
        // Before the request is sent: the push may overtake the answer.
        let joins = line == Line::Join && claim.mode == Mode::Exclusive;
        let may_inherit = (joins && claim.tie == Tie::Process)
            .then(|| Waiting { label: claim.label.clone(), ttl: claim.ttl.get() });
        let (news, was_known) = inner.listen(claim.id, may_inherit);
        let is_newcomer = joins && !was_known && !inner.newcomers.is_idle();
        match inner.attempt(claim, line, is_newcomer).await {
            Ok((Attempted::Granted(token), anchor, _)) => {
                Ok(Attempt::Granted(inner.grant(claim, token, claim.ttl.get(), anchor.sent, news)))
            }
            Ok((Attempted::Settled(outcome), ..)) => {
                inner.forget(claim.id);
                Ok(Attempt::Settled(outcome))
            }
            Ok((Attempted::Busy { ahead, at_latest, holder }, anchor, is_subscribed)) => {
                // Who has no token is not tenure, or may run no scripts: it serves nobody when it lets go.
                let tells =
                    holder.as_ref().map_or(!inner.place.config().plain, |holder| holder.token.is_some());
                let at_latest = inner.look_after(at_latest, ahead, is_subscribed, tells);
                let signal = if line == Line::Join {
                    Some(inner.signal(claim, anchor, news))
                } else {
                    inner.forget(claim.id);
                    None
                };
                Ok(Attempt::Busy(Busy { holder, ahead, wake: Wake { at_latest, signal } }))
            }
            Err(error) => {
                // The store knows nothing of it, so nobody will come to release it.
                if matches!(error, StoreError::Refused(_)) && !was_known {
                    inner.forget(claim.id);
                }
                Err(error)
            }
        }
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
        if let Means::Native(_) = self.inner.means {
            return native::renew(&self.inner, claims).await;
        }
        match &self.buckets {
            None => self.inner.renew(claims).await,
            Some(buckets) => Box::pin(buckets.renew(claims)).await,
        }
    }

    async fn release(&self, claim: &Claim, trail: Trail) -> Answer<Released> {
        let inner = self.at(&claim.name);
        let answer = match inner.means {
            Means::Native(commands) => Box::pin(native::release(inner, commands, claim, trail)).await,
            Means::Scripts => inner.end(claim, trail).await,
        };
        // Not before the answer: a grant that is pushed meanwhile is this release's business, and no orphan.
        inner.forget(claim.id);
        answer
    }

    async fn settle(&self, claim: &Claim, outcome: Bytes, keep: Duration) -> Answer<Settled> {
        let inner = self.at(&claim.name);
        let keys = inner.layout.keys(&claim.name);
        let (value, keep) = (value_of(claim), millis(keep).max(1));
        let arguments = |command: &mut Cmd| {
            command.arg(&value).arg(&*outcome).arg(keep);
        };
        let script = &inner.place.scripts().settle;
        let (mut answers, _) = inner.about(script, &keys, outcome.len() + 200, arguments).await?;
        let settled = match unsigned(&answers.next()?) {
            Some(1) => Settled::Recorded,
            Some(0) => Settled::NotHeld,
            _ => return Err(garbled("nothing settled")),
        };
        if settled == Settled::Recorded {
            inner.forget(claim.id);
        }
        Ok(settled)
    }

    async fn forget(&self, name: &LockName) -> Answer<bool> {
        let inner = self.at(name);
        let record = inner.layout.keys(name).record();
        let mut delete = redis::cmd("DEL");
        delete.arg(&record);
        unsigned(&inner.place.ask(&delete).await?.value)
            .map(|forgotten| forgotten > 0)
            .ok_or_else(|| garbled("nothing forgotten"))
    }

    async fn inspect(&self, name: &LockName) -> Answer<LockState> {
        let inner = self.at(name);
        if let Means::Native(_) = inner.means {
            return native::inspect(inner, name).await;
        }
        let (keys, asked) = (inner.layout.keys(name), AtomicU64::new(0));
        let fill = |live: &Live, command: &mut Cmd| {
            command.arg(1 + keys.count()).arg(inner.layout.fence());
            keys.write_to(command);
            let name = live.latest();
            command.arg(name);
            asked.store(name, Ordering::Relaxed);
        };
        let script = &inner.place.scripts().inspect;
        let call = Filled { script, arguments: 4 + keys.count(), size: keys.size() + 20, fill };
        let reply = inner.place.run(&call, Watch::NO).await?;
        reply::lock_state(name.clone(), reply.read_list(asked.into_inner())?)
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Answer<LockPage> {
        match &self.buckets {
            None => listing::of_one(self, prefix, after, limit).await,
            Some(buckets) => listing::of_cluster(self, buckets, prefix, after, limit).await,
        }
    }

    async fn evict(&self, name: &LockName, eviction: &Eviction) -> Answer<u32> {
        let inner = self.at(name);
        if let Means::Native(commands) = inner.means {
            return native::evict(inner, commands, name, eviction).await;
        }
        let keys = inner.layout.keys(name);
        let arguments = |command: &mut Cmd| {
            command
                .arg(eviction.token.map_or(0, FencingToken::get))
                .arg(u8::from(eviction.force))
                .arg(eviction.reason.as_str());
        };
        let script = &inner.place.scripts().evict;
        let (mut answers, _) = inner.about(script, &keys, 1100, arguments).await?;
        let evicted = unsigned(&answers.next()?).ok_or_else(|| garbled("nothing evicted"))?;
        Ok(u32::try_from(evicted).unwrap_or(u32::MAX))
    }

    fn in_doubt(&self) -> Option<BoxFuture<'static, ()>> {
        Some(self.inner.place.in_doubt())
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("place", &self.place)
            .field("means", &self.means)
            .finish_non_exhaustive()
    }
}
