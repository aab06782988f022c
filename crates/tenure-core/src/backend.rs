//! The boundary: what a store must do to carry locks.
//!
//! A backend answers with a few atomic steps. It owns no timer and no loop: waiting, deadlines, cancellation, renewal,
//! loss and metrics are written once, in this crate. Users never call these methods; they use
//! [`Locks`](crate::Locks). Everything a backend must obey is said here, and every rule names the conformance test
//! (in `tenure-testkit`) that fails without it.

use std::fmt::{self, Debug};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::claim::{Claim, ClaimId, InvalidText, Label, Mode, Reason};
use crate::clock::BootInstant;
use crate::guarantee::Deployment;
use crate::name::LockName;
use crate::token::FencingToken;

/// A future in a box.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a store answers.
pub type Answer<T> = Result<T, StoreError>;

/// A store that carries locks.
///
/// # For all verbs
/// * MUST be atomic: two clients never see half a verb.
/// * MUST be idempotent for one claim id: the request may arrive twice, or late (`verbs_are_idempotent`,
///   `late_duplicates_do_nothing`).
/// * MUST answer [`StoreError::Refused`] only if nothing changed and nothing will; MUST answer
///   [`StoreError::Unknown`] whenever it cannot tell (`unknown_is_neither_busy_nor_granted`).
/// * MUST answer within a deadline of its own, a second or two: core never waits for ever for one request.
/// * MUST count every stored lifetime on the store's own clock, never on the client's wall clock.
/// * MUST NOT retry, renew, or wait for a lock to become free.
/// * MUST tell names apart byte for byte (`names_are_told_apart_byte_for_byte`).
/// * MAY be dropped in mid-flight: a cancelled verb is one that may or may not have happened.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// What this store can do. Asked often; MUST NOT do I/O. Core refuses what is not offered before any I/O
    /// (`missing_capabilities_are_refused_without_io`).
    fn capabilities(&self) -> Capabilities;

    /// Which store this is, for messages: like `redis://db1:6379/0`. MUST NOT contain a secret.
    fn store(&self) -> &str;

    /// Claims of one lane are renewed together: the node, shard or session that carries `name`.
    fn lane(&self, name: &LockName) -> u32;

    /// One step towards holding the lock. Never waits.
    ///
    /// * MUST, if the claim holds already, re-arm its ttl and answer the same token (`verbs_are_idempotent`).
    /// * MUST grant if the claim is compatible with every live claim ahead of it, and with capability
    ///   [`fifo`](Capabilities::fifo) never before (`the_line_is_served_in_order`, `readers_do_not_pass_a_writer`).
    /// * MUST, with [`Line::Join`] and `fifo`, leave a claim that is not granted in the line, alive for
    ///   [`line_ttl`](Capabilities::line_ttl) from now, at its old place if it had one.
    /// * MUST, with [`Line::Pass`], leave nothing of a claim that is not granted: if it stood in the line, it left
    ///   (`try_acquire_never_joins_the_line`).
    /// * MUST serve the line: a lock found free goes to the head of the line, whoever attempts
    ///   (`a_vanished_waiter_holds_nobody_up`).
    /// * MUST, with [`Line::Succeed`], put this claim in the place of the one that holds, in one step, with the same
    ///   token; refuse it ([`RefusalKind::Ended`]) if that one does not hold; and treat that one as ended from then on
    ///   (`a_detached_claim_is_adopted_once`). MAY refuse it always, without the capability
    ///   [`detach`](Capabilities::detach).
    /// * MUST refuse another [`Shape`](crate::Shape) than that of the live claims, naming both
    ///   (`another_shape_is_refused`), and a claim that was released with [`Trail::Doubtful`] or evicted
    ///   ([`RefusalKind::Ended`]; `late_duplicates_do_nothing`).
    /// * MUST, in mode [`Once`](Mode::Once), answer the record if there is one.
    /// * MUST date the grant from before the request was sent (`a_grant_is_dated_before_its_request`).
    async fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt>;

    /// Renews claims of one lane, in one round trip where the store can. Answers in the order of `claims`.
    ///
    /// * MUST set the remaining life to at least `claim.ttl` and never shorten it.
    /// * MUST NOT re-create: a claim that does not hold is [`Renewal::Lost`]
    ///   (`a_lost_claim_is_never_renewed_back`).
    async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>>;

    /// Ends a claim, held or waiting: the same verb.
    ///
    /// * MUST act on exactly this claim id, whoever holds the lock now (`only_the_exact_claim_releases`).
    /// * MUST serve the line, also when an incompatible waiter left (`a_leaving_waiter_lets_the_line_move`).
    /// * MUST, with [`Trail::Doubtful`], see to it that an earlier attempt of this claim that arrives later is
    ///   refused (`late_duplicates_do_nothing`).
    /// * MUST work when the store refuses new data (out of memory, disk full), if at all possible.
    async fn release(&self, claim: &Claim, trail: Trail) -> Answer<Released>;

    /// Ends a held [`Once`](Mode::Once) claim with its result, which later attempts are answered with for `keep`.
    ///
    /// * MUST refuse unless the claim holds, unexpired (`settling_after_loss_is_refused`).
    /// * MUST answer [`Settled::Recorded`] again to the claim that settled (`a_repeated_settle_is_recorded_once`).
    /// * MUST wake all waiters (`settling_wakes_all_waiters`).
    async fn settle(&self, claim: &Claim, outcome: Bytes, keep: Duration) -> Answer<Settled>;

    /// Forgets the record of a settled do-once; answers whether there was one (`a_forgotten_result_is_run_again`). MUST
    /// leave claims alone.
    async fn forget(&self, name: &LockName) -> Answer<bool>;

    /// Who holds and who waits, as of now (`inspect_tells_the_truth`).
    async fn inspect(&self, name: &LockName) -> Answer<LockState>;

    /// The locks whose names start with `prefix`, a page of about `limit`, from the cursor `after` of the page before
    /// (`listing_pages_through_every_lock`). MAY repeat a lock; MUST NOT leave out one that is held all along. MAY name
    /// locks that it cannot read in [`unreadable`](LockPage::unreadable).
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Answer<LockPage>;

    /// Takes the lock away from its holders; answers from how many.
    ///
    /// * MUST refuse their renewals from now on, telling [`Why::Evicted`] (`an_evicted_claim_cannot_renew`).
    /// * MUST pass the lock on when the evicted claims expire, or at once with [`Eviction::force`]
    ///   (`eviction_passes_the_lock_on`).
    async fn evict(&self, name: &LockName, eviction: &Eviction) -> Answer<u32>;

    /// Completes when the store may have lost what it granted before this was called: it was restarted, or another server
    /// took its place, as far as can be seen from here. Every lease is renewed then, at once: its holder learns of a loss long
    /// before the next renewal would have told. Nothing if that cannot be seen. MUST NOT do I/O by itself.
    fn in_doubt(&self) -> Option<BoxFuture<'static, ()>> {
        None
    }
}

/// What a store can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// [`Mode::Shared`].
    pub shared: bool,
    /// [`Mode::Permits`].
    pub permits: bool,
    /// [`Mode::Once`].
    pub once: bool,
    /// Waiting claims stand in a line and are served in order.
    pub fifo: bool,
    /// Claims may live on without their process ([`Tie::Ttl`](crate::Tie::Ttl)).
    pub detach: bool,
    /// How far tokens can be trusted to rise.
    pub fence: Fence,
    /// What kind of deployment this is, as far as its promises differ.
    pub deployment: Deployment,
    /// How long a waiting claim keeps its place without another attempt.
    pub line_ttl: Duration,
    /// How long at most a granted waiter that never looks holds the lock: the bound for dead waiters.
    pub first_ttl: Duration,
}

impl Capabilities {
    /// A store that can do everything, with a line of its own.
    pub const fn full(fence: Fence, line_ttl: Duration, first_ttl: Duration) -> Self {
        let deployment = Deployment::Unknown;
        Self {
            deployment,
            shared: true,
            permits: true,
            once: true,
            fifo: true,
            detach: true,
            fence,
            line_ttl,
            first_ttl,
        }
    }

    /// Whether `mode` is among them.
    pub const fn offers(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => true,
            Mode::Shared => self.shared,
            Mode::Permits { .. } => self.permits,
            Mode::Once => self.once,
        }
    }
}

/// How far tokens can be trusted to rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fence {
    /// Not at all.
    None,
    /// As long as the store's clock does not go back at the same time as its data is lost.
    ClockFloor,
    /// Always: the counter is as durable as the store.
    Durable,
}

/// What to do when the lock cannot be had at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// Join the line, or stay in it.
    Join,
    /// Pass by: leave nothing behind.
    Pass,
    /// Take over the grant that this claim holds, token and all, and end that claim; or nothing.
    Succeed(ClaimId),
}

/// What came before a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trail {
    /// Every earlier request of this claim was answered.
    Clean,
    /// An earlier attempt was not answered and may still arrive: it must find the claim ended.
    Doubtful,
}

/// The answer to an attempt.
#[derive(Debug)]
pub enum Attempt {
    /// The claim holds.
    Granted(Grant),
    /// It does not: others are ahead.
    Busy(Busy),
    /// The thing was done before, with this result.
    Settled(Bytes),
}

/// The store's answer that a claim now holds.
pub struct Grant {
    /// Its number.
    pub token: FencingToken,
    /// How long it lives without renewal, counted from `since`. May be shorter than the claim's ttl.
    pub ttl: Duration,
    /// A moment on this machine's clock that is surely not later than the store's grant.
    pub since: BootInstant,
    /// Completes if the store takes the grant away early: session ended, claim evicted.
    pub revoked: Option<BoxFuture<'static, Why>>,
}

impl Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("token", &self.token)
            .field("ttl", &self.ttl)
            .field("since", &self.since)
            .field("revoked", &self.revoked.is_some())
            .finish()
    }
}

/// Others are ahead.
#[derive(Debug)]
pub struct Busy {
    /// One of them, if the store says.
    pub holder: Option<Holder>,
    /// How many waiting claims are ahead of this one, if it stands in a line.
    pub ahead: Option<u32>,
    /// When to attempt again.
    pub wake: Wake,
}

/// When to attempt again: at the signal or after `at_latest`, whichever comes first.
pub struct Wake {
    /// MUST be at most a third of [`line_ttl`](Capabilities::line_ttl); never depends on the signal.
    pub at_latest: Duration,
    /// Completes when it is worth attempting again, or with the grant itself. Dropping it ends the subscription.
    pub signal: Option<BoxFuture<'static, Option<Grant>>>,
}

impl Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wake")
            .field("at_latest", &self.at_latest)
            .field("signal", &self.signal.is_some())
            .finish()
    }
}

/// The answer to a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// Lives on for `ttl`, counted from before the request was sent.
    Renewed {
        /// The new life.
        ttl: Duration,
    },
    /// Does not hold any more, and never will again.
    Lost(Why),
}

/// Why a lease was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// Its validity ran out before a renewal was confirmed: the store was silent, or this process was not running.
    Expired,
    /// The store does not know the claim any more: it expired there, or the store lost or was made to forget it.
    Gone,
    /// An operator took it away.
    Evicted {
        /// What the operator said.
        reason: Option<Reason>,
    },
    /// The session that carried the claim ended.
    SessionEnded,
    /// [`Locks::close`](crate::Locks::close) was called while it was held.
    Closed,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("its validity ran out before it could be renewed"),
            Self::Gone => f.write_str("the store no longer knows the claim"),
            Self::Evicted { reason: Some(reason) } => write!(f, "it was evicted: {reason}"),
            Self::Evicted { reason: None } => f.write_str("it was evicted"),
            Self::SessionEnded => f.write_str("the session with the store ended"),
            Self::Closed => f.write_str("the client was closed"),
        }
    }
}

/// The answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The claim held, and holds no more.
    Held,
    /// The claim waited, and left the line.
    Waited,
    /// There was nothing to end.
    Absent,
}

/// The answer to a settle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// The result is recorded, and the claim ended.
    Recorded,
    /// The claim does not hold: nothing was recorded.
    NotHeld,
}

/// Which grants to take away, and how: all of them, when they expire, if nothing else is said.
#[derive(Debug, Clone)]
pub struct Eviction {
    /// Only the grant with this token; all of them if not said.
    pub token: Option<FencingToken>,
    /// Pass the lock on at once, not when the grant expires. Two parties may then hold it at the same time.
    pub force: bool,
    /// What the holder and the log are told.
    pub reason: Reason,
}

impl Eviction {
    /// Takes the lock away from its holders, who are told `reason`.
    ///
    /// # Errors
    /// [`InvalidText`] if the reason is too long or holds a control character.
    pub fn because(reason: impl AsRef<str>) -> Result<Self, InvalidText> {
        Ok(Self { token: None, force: false, reason: Reason::new(reason)? })
    }

    /// Only from the holder with this token.
    pub const fn only(mut self, token: FencingToken) -> Self {
        self.token = Some(token);
        self
    }

    /// At once, not when the grant expires: the old holder may then still be at work beside the new one.
    pub const fn force(mut self) -> Self {
        self.force = true;
        self
    }
}

/// A lock as an observer sees it. Durations, not moments: the store's clock is not the observer's.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockState {
    /// Its name.
    pub name: LockName,
    /// The highest token given out, if the store still knows.
    pub token: Option<FencingToken>,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// Who waits, in order.
    pub waiters: Vec<Waiter>,
    /// How long the record of a settled do-once is still kept.
    pub settled_for: Option<Duration>,
}

impl LockState {
    /// A lock nobody holds or waits for.
    pub const fn free(name: LockName) -> Self {
        Self { name, token: None, holders: Vec::new(), waiters: Vec::new(), settled_for: None }
    }

    /// Whether anyone holds it.
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }
}

/// A party that holds a lock. Fields that a store cannot tell are `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Who.
    pub label: Label,
    /// Tells its claim from others without giving it away: [`ClaimId::fingerprint`](crate::ClaimId::fingerprint).
    pub fingerprint: String,
    /// The number of its grant.
    pub token: Option<FencingToken>,
    /// How it holds the lock.
    pub mode: Option<Mode>,
    /// For how long.
    pub held_for: Option<Duration>,
    /// What is left without renewal.
    pub expires_in: Option<Duration>,
    /// Why.
    pub reason: Option<Reason>,
    /// Whether its renewals are refused: evicted, and waiting to expire.
    pub evicted: bool,
}

/// A party that waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// Who.
    pub label: Label,
    /// Tells its claim from others without giving it away.
    pub fingerprint: String,
    /// How it wants to hold the lock.
    pub mode: Option<Mode>,
    /// For how long it has waited.
    pub waiting_for: Option<Duration>,
    /// Why.
    pub reason: Option<Reason>,
}

/// Part of a listing.
#[derive(Debug, Clone, Default)]
pub struct LockPage {
    /// The locks, in no particular order.
    pub locks: Vec<LockState>,
    /// Those that cannot be read, and why: another program wrote what is there. The others are not held up by them.
    pub unreadable: Vec<(LockName, Refusal)>,
    /// Where the next page starts; `None` on the last one.
    pub next: Option<String>,
}

/// A verb that was not carried out, or perhaps was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing changed, and nothing will.
    #[error(transparent)]
    Refused(Refusal),
    /// Anything may have happened: no answer, or none that could be understood.
    #[error("no clear answer from the store: {0}")]
    Unknown(String),
}

/// A verb that was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Of what kind.
    pub kind: RefusalKind,
    /// What, and what to do about it, for people to read.
    pub message: String,
}

/// What kind of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// The store cannot be reached or does not serve now. The only kind that a later try can mend by itself.
    Unavailable,
    /// A limit was exceeded.
    Limit,
    /// The name is in use as something else.
    Shape,
    /// Not allowed: authentication or rights.
    Permission,
    /// This store cannot do that.
    Unsupported,
    /// This claim was ended before: released, or evicted.
    Ended,
    /// The store holds something that is not ours, or is set up in a way that cannot work.
    Configuration,
}

impl StoreError {
    /// Nothing changed, for this reason.
    pub fn refused(kind: RefusalKind, message: impl Into<String>) -> Self {
        Self::Refused(Refusal { kind, message: message.into() })
    }

    /// Anything may have happened.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::Unknown(message.into())
    }

    /// Whether the same request may succeed a little later without anybody changing anything.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.kind == RefusalKind::Unavailable,
            Self::Unknown(_) => true,
        }
    }
}

impl From<Refusal> for StoreError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
