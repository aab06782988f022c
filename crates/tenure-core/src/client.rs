//! [`Locks`]: the client, and what its locks share.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::all::All;
use crate::backend::{Backend, Capabilities, Eviction, LockPage, LockState, Trail, Why};
use crate::claim::{Claim, Label};
use crate::clock::{Clock, SystemClock, sleep_until};
use crate::election::Election;
use crate::entropy::{Entropy, SystemEntropy};
use crate::error::{Error, Result};
use crate::guarantee::Guarantee;
use crate::keeper::{self, Keeper};
use crate::lock::Lock;
use crate::memory::Memory;
use crate::name::{IntoLockName, LockName};
use crate::once::DoOnce;
use crate::pending::finish;
use crate::stats::{Meters, Stats};

/// A client of one store: makes locks, renews them, cleans up after them.
///
/// Cheap to clone; clones share everything. One client per process and store is enough, however many locks it takes.
/// It belongs to the Tokio runtime it was made in: its renewals run there.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure_core::Locks;
///
/// let locks = Locks::in_memory();
/// let sold = locks.lock("orders/1001").run(|lease| async move {
///     // … one party at a time …
///     lease.token()
/// }).await?;
/// # let _ = sold;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Locks {
    shared: Arc<Shared>,
    namespace: Option<Arc<str>>,
}

/// Where time and randomness come from. The real ones, unless a simulation says otherwise.
#[derive(Debug, Clone)]
pub struct Seams {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
}

impl Default for Seams {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock), entropy: Arc::new(SystemEntropy) }
    }
}

impl Locks {
    /// A client of the store behind `backend`.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn new(backend: impl Backend) -> Self {
        Self::with(Arc::new(backend), Seams::default())
    }

    /// A client of a store in this process's memory: for tests, and for locking between tasks.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn in_memory() -> Self {
        Self::new(Memory::new())
    }

    /// A client of the store behind `backend`, with other seams than the usual.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn with(backend: Arc<dyn Backend>, seams: Seams) -> Self {
        let shared = Shared {
            store: backend.store().into(),
            meters: Meters::new(backend.store().split(':').next().unwrap_or_default()),
            backend,
            clock: seams.clock,
            entropy: seams.entropy,
            label: Label::of_this_process(),
            runtime: Handle::current(),
            keeper: Keeper::default(),
            clean_ups: AtomicUsize::new(0),
            clean_up_done: Notify::new(),
            is_closed: AtomicBool::new(false),
            closing: Notify::new(),
        };
        let shared = Arc::new(shared);
        if let Some(in_doubt) = shared.backend.in_doubt() {
            shared.spawn(keeper::renew_when(in_doubt, Arc::downgrade(&shared)));
        }
        Self { shared, namespace: None }
    }

    /// The lock called `name`, in this client's namespace.
    pub fn lock(&self, name: impl IntoLockName) -> Lock {
        Lock::new(self.shared.clone(), self.name(name))
    }

    /// The locks of these names as one: all of them are taken, or none. There must be one at least.
    pub fn all<N: IntoLockName>(&self, names: impl IntoIterator<Item = N>) -> All {
        All::new(names.into_iter().map(|name| self.lock(name)))
    }

    /// The election called `name`, in this client's namespace.
    pub fn election(&self, name: impl IntoLockName) -> Election {
        Election::new(self.clone(), self.lock(name))
    }

    /// The thing called `name`, to be done once, in this client's namespace.
    pub fn once(&self, name: impl IntoLockName) -> DoOnce {
        DoOnce::new(self.lock(name))
    }

    /// The same client, for names inside the namespace `prefix`: its lock `a` is the lock `prefix/a`. Namespaces nest.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
    /// # let locks = tenure_core::Locks::in_memory();
    /// let billing = locks.namespace("billing")?;
    /// let _guard = billing.lock("invoice/7").acquire().await?;
    /// assert!(locks.inspect("billing/invoice/7").await?.is_held());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`] if `prefix` is not a valid name.
    pub fn namespace(&self, prefix: impl IntoLockName) -> Result<Self> {
        let prefix = self.name(prefix)?;
        Ok(Self { shared: self.shared.clone(), namespace: Some(prefix.as_str().into()) })
    }

    /// Who holds `name` and who waits for it, as of now.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store did not serve, [`Error::Refused`] if it never will.
    ///
    /// # Cancel safety
    /// May be dropped at any time: it only looks.
    pub async fn inspect(&self, name: impl IntoLockName) -> Result<LockState> {
        let name = self.name(name)?;
        let answer = self.shared.backend.inspect(&name).await;
        answer.map_err(|error| Error::from_store(Some(&name), &self.shared.store, error))
    }

    /// One page of the locks in this namespace whose names start with `prefix`, from where `after` left off. Names are
    /// given whole, namespace included.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store did not serve, [`Error::Refused`] if it never will.
    ///
    /// # Cancel safety
    /// May be dropped at any time: it only looks.
    pub async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<LockPage> {
        let prefix = match &self.namespace {
            Some(namespace) => format!("{namespace}/{prefix}"),
            None => prefix.into(),
        };
        let answer = self.shared.backend.list(&prefix, after, limit).await;
        answer.map_err(|error| Error::from_store(None, &self.shared.store, error))
    }

    /// Takes `name` away from its holders, or from one of them; answers from how many.
    ///
    /// Their renewals are refused from now on, and they are told; the lock passes on when their grants expire, so that
    /// it is never held twice. With [`force`](Eviction::force) it passes on at once: the old holder may then still be at
    /// work beside the new one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
    /// use tenure_core::Eviction;
    /// # let locks = tenure_core::Locks::in_memory();
    ///
    /// let guard = locks.lock("report").acquire().await?;
    /// let evicted = locks.evict("report", Eviction::because("it hangs")?.only(guard.token()).force()).await?;
    /// assert_eq!(evicted, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store did not serve, [`Error::Refused`] if it never will.
    ///
    /// # Cancel safety
    /// The eviction may or may not happen; it may be asked for again.
    pub async fn evict(&self, name: impl IntoLockName, eviction: Eviction) -> Result<u32> {
        let name = self.name(name)?;
        let answer = self.shared.backend.evict(&name, &eviction).await;
        answer.map_err(|error| Error::from_store(Some(&name), &self.shared.store, error))
    }

    /// What the store can do.
    pub fn capabilities(&self) -> Capabilities {
        self.shared.backend.capabilities()
    }

    /// What this store promises, and under which faults.
    pub fn guarantee(&self) -> Guarantee {
        let Capabilities { deployment, fence, .. } = self.capabilities();
        Guarantee { deployment, fence }
    }

    /// Which store this is a client of, without secrets.
    pub fn store(&self) -> &str {
        &self.shared.store
    }

    /// How many locks this client holds at the moment.
    pub fn held_count(&self) -> usize {
        self.shared.keeper.held_count()
    }

    /// What this client has counted since it was made.
    pub fn stats(&self) -> Stats {
        self.shared.meters.get(self.held_count())
    }

    /// Ends the client: waiting acquires answer [`Error::Closed`], held leases end as lost ([`Why::Closed`]) and are
    /// released, and all clean-up is waited for, at most for `within`. An acquire that is neither polled nor dropped
    /// cannot leave: it is waited for in vain. A lease that was lost before is not waited for while its guard lives.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if something could not be released in time; it is left to expire.
    ///
    /// # Cancel safety
    /// The client is closed all the same; the clean-up goes on in the background.
    pub async fn close(&self, within: Duration) -> Result<()> {
        let shared = &self.shared;
        let deadline = shared.clock.now() + within;
        shared.is_closed.store(true, Ordering::SeqCst);
        shared.closing.notify_waiters();
        loop {
            for hold in shared.keeper.holds() {
                hold.lose(Why::Closed);
            }
            let done = shared.clean_up_done.notified();
            let left = shared.clean_ups.load(Ordering::SeqCst);
            if left == 0 && shared.keeper.held_count() == 0 {
                return Ok(());
            }
            tokio::select! {
                () = done => {}
                () = sleep_until(shared.clock.clone(), deadline) => {
                    let cause = crate::StoreError::unknown(format!("{left} claims were not released in time"));
                    return Err(Error::from_store(None, &shared.store, cause));
                }
            }
        }
    }

    /// The same client without its namespace: for names that are whole.
    pub(crate) fn root(&self) -> Self {
        Self { shared: self.shared.clone(), namespace: None }
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn name(&self, name: impl IntoLockName) -> Result<LockName> {
        let name = name.into_lock_name()?;
        Ok(match &self.namespace {
            Some(namespace) => name.within(namespace)?,
            None => name,
        })
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("store", &self.shared.store)
            .field("namespace", &self.namespace)
            .field("held", &self.held_count())
            .finish()
    }
}

/// What all locks of a client share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) store: Arc<str>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) label: Label,
    pub(crate) keeper: Keeper,
    pub(crate) meters: Meters,
    runtime: Handle,
    clean_ups: AtomicUsize,
    clean_up_done: Notify,
    is_closed: AtomicBool,
    closing: Notify,
}

impl Shared {
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Completes when the client is closed.
    pub(crate) async fn closed(&self) {
        let closing = self.closing.notified();
        if !self.is_closed() {
            closing.await;
        }
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// Releases a claim in the background.
    pub(crate) fn clean_up(self: &Arc<Self>, claim: Arc<Claim>, trail: Trail) {
        self.spawn_clean_up(finish(self.clone(), claim, trail, None));
    }

    pub(crate) fn ticket(self: &Arc<Self>) -> Ticket {
        self.clean_ups.fetch_add(1, Ordering::SeqCst);
        Ticket(self.clone())
    }

    /// Runs a task that [`Locks::close`] waits for, also if it ends in a panic or with the runtime.
    pub(crate) fn spawn_clean_up(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let ticket = self.ticket();
        self.runtime.spawn(async move {
            let _ticket = ticket;
            task.await;
        });
    }
}

/// While one exists, [`Locks::close`] waits: somebody has yet to see to a claim.
pub(crate) struct Ticket(Arc<Shared>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.clean_ups.fetch_sub(1, Ordering::SeqCst);
        self.0.clean_up_done.notify_waiters();
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("store", &self.store).finish_non_exhaustive()
    }
}
