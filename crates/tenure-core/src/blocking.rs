//! The same locks for code that is not async: threads, `spawn_blocking`, build scripts.
//!
//! Every call hands its work to one background thread of the process and waits for it, so it may be made inside and
//! outside of an async runtime alike (inside, it blocks that runtime's thread as any blocking call does). Leases are
//! renewed by the background thread, however long the caller is busy.
//!
//! ```
//! use tenure_core::blocking::Locks;
//!
//! let locks = Locks::in_memory();
//! let token = locks.lock("orders/1001").run(|lease| lease.token())?;
//! # let _ = token;
//! # Ok::<(), tenure_core::Error>(())
//! ```

mod all;
mod election;

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::{LazyLock, mpsc};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::{Builder, Handle};

pub use self::all::{All, AllGuard};
pub use self::election::{Election, Leadership, Observation};

use crate::backend::{Eviction, LockPage, LockState};
use crate::detach::DetachedClaim;
use crate::error::Result;
use crate::lease::{Lease, LeaseState};
use crate::name::IntoLockName;
use crate::once::{Once, OnceStatus};
use crate::stats::Stats;

/// The runtime behind all blocking clients of this process.
static ENGINE: LazyLock<Handle> = LazyLock::new(|| {
    let runtime =
        Builder::new_current_thread().enable_all().build().expect("the process may start a runtime");
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("tenure-blocking".into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .expect("the process may start one more thread");
    handle
});

/// Runs `future` on the engine and waits for it. Unlike `block_on`, this may be called inside of a runtime.
fn wait_for<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (sender, receiver) = mpsc::sync_channel(1);
    ENGINE.spawn(async move {
        // The caller waits until it is told: it cannot have gone away.
        let _ = sender.send(future.await);
    });
    receiver.recv().expect("the engine runs as long as the process, and our futures do not panic")
}

/// A client of one store: see [`crate::Locks`].
#[derive(Clone)]
pub struct Locks {
    inner: crate::Locks,
}

impl Locks {
    /// The client that `open` makes, on the background thread.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open<F, Fut, E>(open: F) -> Result<Self, E>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<crate::Locks, E>> + Send,
        E: Send + 'static,
    {
        wait_for(async move { Ok(Self { inner: open().await? }) })
    }

    /// A client of a store in this process's memory.
    pub fn in_memory() -> Self {
        wait_for(async { Self { inner: crate::Locks::in_memory() } })
    }

    /// The lock called `name`: see [`crate::Locks::lock`].
    pub fn lock(&self, name: impl IntoLockName) -> Lock {
        Lock { inner: self.inner.lock(name) }
    }

    /// The locks of these names as one: see [`crate::Locks::all`].
    pub fn all<N: IntoLockName>(&self, names: impl IntoIterator<Item = N>) -> All {
        All { inner: self.inner.all(names) }
    }

    /// The election called `name`: see [`crate::Locks::election`].
    pub fn election(&self, name: impl IntoLockName) -> Election {
        Election { inner: self.inner.election(name) }
    }

    /// The thing called `name`, to be done once: see [`crate::Locks::once`].
    pub fn once(&self, name: impl IntoLockName) -> DoOnce {
        DoOnce { inner: self.inner.once(name) }
    }

    /// The same client, for names inside a namespace: see [`crate::Locks::namespace`].
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) if `prefix` is not a valid name.
    pub fn namespace(&self, prefix: impl IntoLockName) -> Result<Self> {
        Ok(Self { inner: self.inner.namespace(prefix)? })
    }

    /// Who holds `name` and who waits for it, as of now.
    ///
    /// # Errors
    /// Those of [`crate::Locks::inspect`].
    pub fn inspect(&self, name: impl IntoLockName) -> Result<LockState> {
        let (locks, name) = (self.inner.clone(), name.into_lock_name()?);
        wait_for(async move { locks.inspect(name).await })
    }

    /// One page of the locks whose names start with `prefix`: see [`crate::Locks::list`].
    ///
    /// # Errors
    /// Those of [`crate::Locks::list`].
    pub fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<LockPage> {
        let (locks, prefix, after) = (self.inner.clone(), prefix.to_owned(), after.map(str::to_owned));
        wait_for(async move { locks.list(&prefix, after.as_deref(), limit).await })
    }

    /// Takes `name` away from its holders: see [`crate::Locks::evict`].
    ///
    /// # Errors
    /// Those of [`crate::Locks::evict`].
    pub fn evict(&self, name: impl IntoLockName, eviction: Eviction) -> Result<u32> {
        let (locks, name) = (self.inner.clone(), name.into_lock_name()?);
        wait_for(async move { locks.evict(name, eviction).await })
    }

    /// Takes over a claim that was detached: see [`crate::Locks::adopt`].
    ///
    /// # Errors
    /// Those of [`crate::Locks::adopt`].
    pub fn adopt(&self, detached: DetachedClaim) -> Result<Guard> {
        let locks = self.inner.clone();
        wait_for(async move { locks.adopt(detached).await }).map(|inner| Guard { inner })
    }

    /// What this client has counted since it was made.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Ends the client: see [`crate::Locks::close`].
    ///
    /// # Errors
    /// Those of [`crate::Locks::close`].
    pub fn close(&self, within: Duration) -> Result<()> {
        let locks = self.inner.clone();
        wait_for(async move { locks.close(within).await })
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Locks").field(&self.inner).finish()
    }
}

/// A lock to be taken: see [`crate::Lock`].
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is taken"]
pub struct Lock {
    inner: crate::Lock,
}

impl Lock {
    /// See [`crate::Lock::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { inner: self.inner.ttl(ttl) }
    }

    /// See [`crate::Lock::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self { inner: self.inner.wait(wait) }
    }

    /// See [`crate::Lock::shared`].
    pub fn shared(self) -> Self {
        Self { inner: self.inner.shared() }
    }

    /// See [`crate::Lock::permits`].
    pub fn permits(self, n: u32, of: u32) -> Self {
        Self { inner: self.inner.permits(n, of) }
    }

    /// See [`crate::Lock::label`].
    pub fn label(self, label: impl AsRef<str>) -> Self {
        Self { inner: self.inner.label(label) }
    }

    /// See [`crate::Lock::reason`].
    pub fn reason(self, reason: impl AsRef<str>) -> Self {
        Self { inner: self.inner.reason(reason) }
    }

    /// Takes the lock, waiting for it as long as [`wait`](Self::wait) says.
    ///
    /// # Errors
    /// Those of [`crate::Lock::acquire`].
    pub fn acquire(self) -> Result<Guard> {
        wait_for(self.inner.acquire()).map(|inner| Guard { inner })
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// Those of [`crate::Lock::try_acquire`].
    pub fn try_acquire(self) -> Result<Option<Guard>> {
        Ok(wait_for(self.inner.try_acquire())?.map(|inner| Guard { inner }))
    }

    /// Takes the lock, runs `work` under it on this thread, and gives it back, also after a panic.
    ///
    /// A thread cannot be stopped from outside: if the lock is lost meanwhile, `work` runs on, sees it by
    /// [`Lease::is_held`] if it looks, and the caller is told afterwards.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire), and [`Error::Lost`](crate::Error::Lost).
    pub fn run<T>(self, work: impl FnOnce(&Lease) -> T) -> Result<T> {
        self.acquire()?.run(work)
    }

    /// Runs `work` under the lock if it is free, as [`run`](Self::run) does; otherwise does nothing.
    ///
    /// # Errors
    /// Those of [`try_acquire`](Self::try_acquire), and [`Error::Lost`](crate::Error::Lost).
    pub fn try_run<T>(self, work: impl FnOnce(&Lease) -> T) -> Result<Option<T>> {
        self.try_acquire()?.map(|guard| guard.run(work)).transpose()
    }
}

/// Holds a lock: see [`crate::Guard`]. Dereferences to its [`Lease`].
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    inner: crate::Guard,
}

impl Guard {
    /// Gives the lock back, and returns when it is free.
    ///
    /// # Errors
    /// Those of [`crate::Guard::release`].
    pub fn release(self) -> Result<()> {
        wait_for(self.inner.release())
    }

    /// Lets go of the lock without giving it back: see [`crate::Guard::detach`].
    ///
    /// # Errors
    /// Those of [`crate::Guard::detach`].
    pub fn detach(self) -> Result<DetachedClaim> {
        wait_for(self.inner.detach())
    }

    fn run<T>(self, work: impl FnOnce(&Lease) -> T) -> Result<T> {
        let output = work(&self.inner);
        if let LeaseState::Lost { why } = self.state() {
            return Err(self.inner.lost_error(why));
        }
        if let Err(error) = self.release() {
            tracing::warn!(%error, "the release after a finished run failed");
        }
        Ok(output)
    }
}

impl Deref for Guard {
    type Target = Lease;
    fn deref(&self) -> &Lease {
        &self.inner
    }
}

/// A thing to be done once: see [`crate::DoOnce`].
#[derive(Debug, Clone)]
#[must_use = "does nothing until it is run"]
pub struct DoOnce {
    inner: crate::DoOnce,
}

impl DoOnce {
    /// See [`crate::DoOnce::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { inner: self.inner.ttl(ttl) }
    }

    /// See [`crate::DoOnce::keep`].
    pub fn keep(self, keep: Duration) -> Self {
        Self { inner: self.inner.keep(keep) }
    }

    /// See [`crate::DoOnce::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self { inner: self.inner.wait(wait) }
    }

    /// See [`crate::DoOnce::label`].
    pub fn label(self, label: impl AsRef<str>) -> Self {
        Self { inner: self.inner.label(label) }
    }

    /// See [`crate::DoOnce::reason`].
    pub fn reason(self, reason: impl AsRef<str>) -> Self {
        Self { inner: self.inner.reason(reason) }
    }

    /// How it stands: see [`crate::DoOnce::status`].
    ///
    /// # Errors
    /// Those of [`crate::DoOnce::status`].
    pub fn status(&self) -> Result<OnceStatus> {
        let once = self.inner.clone();
        wait_for(async move { once.status().await })
    }

    /// Forgets the recorded result: see [`crate::DoOnce::forget`].
    ///
    /// # Errors
    /// Those of [`crate::DoOnce::forget`].
    pub fn forget(&self) -> Result<bool> {
        let once = self.inner.clone();
        wait_for(async move { once.forget().await })
    }

    /// Runs `work` on this thread if nobody has, and records its result; otherwise answers with what is recorded.
    ///
    /// # Errors
    /// Those of [`crate::DoOnce::run`].
    pub fn run<T, E>(self, work: impl FnOnce(&Lease) -> Result<T, E>) -> Result<Result<Once<T>, E>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        /// What the engine wants of this thread: to run the work.
        enum Turn<T> {
            Run(Lease, tokio::sync::oneshot::Sender<Result<T, ()>>),
            Done(Result<Result<Once<T>, ()>>),
        }
        let (sender, turns) = mpsc::sync_channel(2);
        let done = sender.clone();
        ENGINE.spawn(async move {
            let run = self.inner.run(move |lease| async move {
                let (told, hears) = tokio::sync::oneshot::channel();
                let _ = sender.send(Turn::Run(lease, told));
                // A work that panicked tells nothing: it failed.
                hears.await.unwrap_or(Err(()))
            });
            let _ = done.send(Turn::Done(run.await));
        });
        let mut work = Some(work);
        let mut failure = None;
        loop {
            match turns.recv().expect("the engine runs as long as the process") {
                Turn::Run(lease, told) => {
                    let work = work.take().expect("the work is asked for once");
                    let result = work(&lease).map_err(|error| failure = Some(error));
                    let _ = told.send(result);
                }
                Turn::Done(Ok(Ok(once))) => return Ok(Ok(once)),
                Turn::Done(Ok(Err(()))) => {
                    return Ok(Err(failure.expect("the run fails after the work has")));
                }
                Turn::Done(Err(error)) => return Err(error),
            }
        }
    }
}
