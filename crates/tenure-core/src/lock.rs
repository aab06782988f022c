//! [`Lock`]: what is wanted of a lock, and the ways to take it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tracing::Instrument;

use crate::backend::RefusalKind;
use crate::claim::{Claim, ClaimId, Label, Mode, Reason, Tie};
use crate::client::Shared;
use crate::clock::BootInstant;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::lease::Lease;
use crate::name::LockName;
use crate::pending::Pending;
use crate::stats::Outcome;
use crate::ttl::Ttl;
use crate::waiting::{Obtained, Wait, obtain};

/// A lock to be taken: made by [`Locks::lock`](crate::Locks::lock), refined by its methods, taken by one of
/// [`run`](Self::run), [`try_run`](Self::try_run), [`acquire`](Self::acquire) and [`try_acquire`](Self::try_acquire).
///
/// Bad values (an empty name, a ttl of a week) are kept and answered by those four as [`Error::Refused`], before
/// anything is sent to the store.
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is taken"]
pub struct Lock {
    shared: Arc<Shared>,
    wanted: Result<Wanted>,
}

#[derive(Debug, Clone)]
struct Wanted {
    name: LockName,
    mode: Mode,
    ttl: Ttl,
    wait: Wait,
    tie: Tie,
    label: Option<Label>,
    reason: Option<Reason>,
}

impl Lock {
    pub(crate) fn new(shared: Arc<Shared>, name: Result<LockName>) -> Self {
        let wanted = name.map(|name| Wanted {
            name,
            mode: Mode::Exclusive,
            ttl: Ttl::DEFAULT,
            wait: Wait::ForEver,
            tie: Tie::Process,
            label: None,
            reason: None,
        });
        Self { shared, wanted }
    }

    fn refine(mut self, change: impl FnOnce(&mut Wanted) -> Result<(), String>) -> Self {
        self.wanted = self.wanted.and_then(|mut wanted| match change(&mut wanted) {
            Ok(()) => Ok(wanted),
            Err(message) => Err(Error::refused(Some(&wanted.name), RefusalKind::Limit, message)),
        });
        self
    }

    /// How long the lock lives without renewal: 50 ms to 24 h, 30 s if not said.
    ///
    /// It is renewed every third of that while it is held, so this is not how long the work may take. It is how long
    /// the others wait when this process dies, and how long the store may be silent before the lock is lost.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.refine(|wanted| Ttl::new(ttl).map(|ttl| wanted.ttl = ttl).map_err(|invalid| invalid.to_string()))
    }

    /// How long to wait for the lock: for ever if not said. With zero, as [`try_acquire`](Self::try_acquire) does but
    /// with an error.
    pub fn wait(self, wait: Duration) -> Self {
        self.refine(|wanted| {
            wanted.wait = if wait.is_zero() { Wait::No } else { Wait::AtMost(wait) };
            Ok(())
        })
    }

    /// Hold it together with other shared holders: a reader. Writers take it without this.
    pub fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// Hold `n` of `of` permits: a semaphore. All users of the name must say the same `of`.
    pub fn permits(self, n: u32, of: u32) -> Self {
        self.refine(|wanted| {
            wanted.mode = Mode::Permits { n, of };
            if n == 0 || n > of {
                return Err(format!("{n} of {of} permits can never be had: ask for 1 to {of}"));
            }
            Ok(())
        })
    }

    /// Who holds it, for people to read: `host/pid/program` if not said.
    pub fn label(self, label: impl AsRef<str>) -> Self {
        self.refine(|wanted| {
            wanted.label = Some(Label::new(label).map_err(|invalid| invalid.to_string())?);
            Ok(())
        })
    }

    /// Why, for people to read.
    pub fn reason(self, reason: impl AsRef<str>) -> Self {
        self.refine(|wanted| {
            wanted.reason = Some(Reason::new(reason).map_err(|invalid| invalid.to_string())?);
            Ok(())
        })
    }

    /// What ends the claim besides its ttl: the end of this process, if not said.
    pub fn tie(self, tie: Tie) -> Self {
        self.refine(|wanted| {
            wanted.tie = tie;
            Ok(())
        })
    }

    /// Takes the lock, waiting for it as long as [`wait`](Self::wait) says.
    ///
    /// Waiters are served first come, first served, on stores that keep a line.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if others held it all the while ([`Error::Busy`] if the wait was zero),
    /// [`Error::Unavailable`] if the store did not serve, [`Error::Refused`] if it never will. The lock is not held
    /// then, and nothing stays behind. A store that has not answered at all is given up after 10 s, or when the wait is
    /// over; one that has answered before may be away for as long as the wait lasts.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in line, and releases the lock if it was granted meanwhile.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
    /// # use std::time::Duration;
    /// let locks = tenure_core::Locks::in_memory();
    /// let guard = locks.lock("orders/1001").ttl(Duration::from_secs(10)).acquire().await?;
    /// assert!(guard.is_held());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire(self) -> Result<Guard> {
        match self.take().await? {
            Taken::Guard(guard) => Ok(guard),
            Taken::Settled(outcome) => {
                let message =
                    format!("the store answered with a record of {} bytes, as to a do-once", outcome.len());
                Err(Error::refused(None, RefusalKind::Configuration, message))
            }
        }
    }

    /// Takes the lock if it is free: `None` if it is not. Never waits for other holders.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store did not serve, [`Error::Refused`] if it never will.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock if it was granted meanwhile.
    pub async fn try_acquire(self) -> Result<Option<Guard>> {
        match self.wait(Duration::ZERO).acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the lock, runs `work` under it, and gives it back: on success, error, panic and cancellation alike. It is
    /// renewed meanwhile, however long the work takes.
    ///
    /// If the lock is lost, the work's future is dropped at its next `await`, and the caller is told. Work that cannot
    /// be stopped there, because its writes are already on their way, sends the [token](Lease::token) along.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire), and [`Error::Lost`]. The work's own result is returned as it is, so a
    /// fallible one is unpacked twice: `run(…).await??`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    ///
    /// # Examples
    /// The work may borrow, and return its own error:
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure_core::Locks::in_memory();
    /// let mut stock = vec![1, 2, 3];
    /// let stock = &mut stock;
    /// let item: i32 = locks
    ///     .lock("stock")
    ///     .run(|_lease| async move {
    ///         let item = stock.pop().ok_or("sold out")?;
    ///         Ok::<_, String>(item)
    ///     })
    ///     .await??;
    /// # assert_eq!(item, 3);
    /// # Ok(()) }
    /// ```
    /// The whole run may be spawned:
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure_core::Locks::in_memory();
    /// let run = locks.lock("report").run(|lease| async move { lease.token() });
    /// let token = tokio::spawn(run).await??;
    /// # let _ = token;
    /// # Ok(()) }
    /// ```
    /// And it may capture what is not `Send`, if it is not spawned:
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure_core::Locks::in_memory();
    /// let seen = std::rc::Rc::new(std::cell::Cell::new(0));
    /// let counter = seen.clone();
    /// locks.lock("count").run(|_| async move { counter.set(counter.get() + 1) }).await?;
    /// assert_eq!(seen.get(), 1);
    /// # Ok(()) }
    /// ```
    pub async fn run<F, Fut>(self, work: F) -> Result<Fut::Output>
    where
        F: FnOnce(Lease) -> Fut,
        Fut: Future,
    {
        self.acquire().await?.run(work).await
    }

    /// Runs `work` under the lock if it is free, as [`run`](Self::run) does; otherwise does nothing and answers
    /// `None`.
    ///
    /// # Errors
    /// Those of [`try_acquire`](Self::try_acquire), and [`Error::Lost`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
    /// # let locks = tenure_core::Locks::in_memory();
    /// let guard = locks.lock("nightly").acquire().await?;
    /// assert_eq!(locks.lock("nightly").try_run(|_| async { "ran" }).await?, None);
    /// guard.release().await?;
    /// assert_eq!(locks.lock("nightly").try_run(|_| async { "ran" }).await?, Some("ran"));
    /// # Ok(()) }
    /// ```
    pub async fn try_run<F, Fut>(self, work: F) -> Result<Option<Fut::Output>>
    where
        F: FnOnce(Lease) -> Fut,
        Fut: Future,
    {
        match self.try_acquire().await? {
            Some(guard) => guard.run(work).await.map(Some),
            None => Ok(None),
        }
    }
}

impl Lock {
    /// Waits for the lock and takes it, or the record in its place.
    pub(crate) async fn take(self) -> Result<Taken> {
        let shared = self.shared;
        let start = shared.clock.now();
        let mut timing = Timing { start, outcome: Outcome::Cancelled, shared: &shared };
        let wanted = self.wanted.inspect_err(|error| timing.outcome = Outcome::of(error))?;
        let span = tracing::debug_span!("tenure.acquire", lock = %wanted.name, mode = %wanted.mode);
        let taken = take(&shared, wanted, start).instrument(span).await;
        timing.outcome = match &taken {
            Ok(Taken::Guard(_)) => Outcome::Granted,
            Ok(Taken::Settled(_)) => Outcome::Settled,
            Err(error) => Outcome::of(error),
        };
        taken
    }

    pub(crate) fn mode(self, mode: Mode) -> Self {
        self.refine(|wanted| {
            wanted.mode = mode;
            Ok(())
        })
    }

    pub(crate) const fn client(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn name(&self) -> Result<LockName> {
        self.wanted.as_ref().map(|wanted| wanted.name.clone()).map_err(Error::clone)
    }
}

/// What taking a lock led to.
pub(crate) enum Taken {
    Guard(Guard),
    Settled(Bytes),
}

async fn take(shared: &Arc<Shared>, wanted: Wanted, start: BootInstant) -> Result<Taken> {
    let wait = wanted.wait;
    let mut pending = Pending::new(shared.clone(), Arc::new(wanted.into_claim(shared)?));
    loop {
        match obtain(&mut pending, wait, start).await? {
            Obtained::Settled(outcome) => return Ok(Taken::Settled(outcome)),
            Obtained::Grant { grant, now } => match Guard::new(pending, grant, now) {
                Ok(guard) => return Ok(Taken::Guard(guard)),
                // So little is left of it that it would be lost at once.
                Err(unlucky) => pending = unlucky,
            },
        }
    }
}

/// Counts one acquire, also if it is cancelled.
struct Timing<'a> {
    shared: &'a Shared,
    start: BootInstant,
    outcome: Outcome,
}

impl Drop for Timing<'_> {
    fn drop(&mut self) {
        let waited = self.shared.clock.now().saturating_since(self.start);
        self.shared.meters.acquired(self.outcome, waited);
    }
}

impl Wanted {
    /// The claim that bids for it. Whatever the store cannot do is refused here, before any I/O.
    fn into_claim(self, shared: &Shared) -> Result<Claim> {
        if shared.is_closed() {
            return Err(Error::Closed);
        }
        let capabilities = shared.backend.capabilities();
        let unsupported = |what: &str| {
            let message = format!("{} does not offer {what}", shared.store);
            Err(Error::refused(Some(&self.name), RefusalKind::Unsupported, message))
        };
        if !capabilities.offers(self.mode) {
            return unsupported(&format!("locks of mode {}", self.mode));
        }
        if self.tie == Tie::Ttl && !capabilities.detach {
            return unsupported("claims that outlive their process");
        }
        Ok(Claim {
            id: ClaimId::draw(&*shared.entropy),
            name: self.name,
            mode: self.mode,
            ttl: self.ttl,
            tie: self.tie,
            label: self.label.unwrap_or_else(|| shared.label.clone()),
            reason: self.reason,
        })
    }
}
