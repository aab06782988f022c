//! [`Election`]: one leader at a time, and everybody can see who.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;

use crate::backend::{BoxFuture, Holder};
use crate::client::Locks;
use crate::clock::sleep_until;
use crate::error::Result;
use crate::guard::Guard;
use crate::lease::Lease;
use crate::lock::Lock;
use crate::name::LockName;

/// An election: made by [`Locks::election`](crate::Locks::election).
///
/// The leader is whoever holds the lock of that name; candidates wait in line. Leadership is a [`Lease`]: by its own
/// clock, the old leader's ends before the new one's begins.
#[derive(Debug, Clone)]
#[must_use = "an election does nothing until somebody campaigns or looks"]
pub struct Election {
    locks: Locks,
    lock: Lock,
    look_every: Duration,
}

impl Election {
    pub(crate) const fn new(locks: Locks, lock: Lock) -> Self {
        Self { locks, lock, look_every: Duration::from_secs(1) }
    }

    /// How long leadership lives without renewal: 30 s if not said. If the leader dies, the others wait that long.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { lock: self.lock.ttl(ttl), ..self }
    }

    /// Who stands for election, for people to read.
    pub fn label(self, label: impl AsRef<str>) -> Self {
        Self { lock: self.lock.label(label), ..self }
    }

    /// Why, for people to read.
    pub fn reason(self, reason: impl AsRef<str>) -> Self {
        Self { lock: self.lock.reason(reason), ..self }
    }

    /// How long to wait for leadership: for ever if not said.
    pub fn wait(self, wait: Duration) -> Self {
        Self { lock: self.lock.wait(wait), ..self }
    }

    /// How often [`observe`](Self::observe) looks: every second if not said.
    pub fn look_every(self, look_every: Duration) -> Self {
        Self { look_every: look_every.max(Duration::from_millis(10)), ..self }
    }

    /// Waits to become the leader.
    ///
    /// # Errors
    /// Those of [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the candidate.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
    /// # let locks = tenure_core::Locks::in_memory();
    /// let election = locks.election("scheduler").label("node-1");
    /// let leadership = election.campaign().await?;
    /// assert_eq!(election.leader().await?.unwrap().label.as_str(), "node-1");
    /// // … lead, while leadership.is_held() …
    /// leadership.resign().await?;
    /// # Ok(()) }
    /// ```
    pub async fn campaign(&self) -> Result<Leadership> {
        Ok(Leadership { guard: self.lock.clone().acquire().await? })
    }

    /// Who leads, as of now.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) if the store did not serve.
    ///
    /// # Cancel safety
    /// May be dropped at any time: it only looks.
    pub async fn leader(&self) -> Result<Option<Holder>> {
        let name = self.lock.name()?;
        leader_of(&self.locks, &name).await
    }

    /// Who leads, now and whenever it changes: a stream that never ends. What changed and changed back between two
    /// looks is not seen. An error is an item like any other; the next look comes after it.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) if the name is not a valid one.
    pub fn observe(&self) -> Result<Observation> {
        let name = self.lock.name()?;
        Ok(Observation {
            locks: self.locks.root(),
            name,
            look_every: self.look_every,
            known: None,
            look: None,
        })
    }
}

async fn leader_of(locks: &Locks, name: &LockName) -> Result<Option<Holder>> {
    Ok(locks.root().inspect(name).await?.holders.into_iter().next())
}

/// Being the leader. Dereferences to its [`Lease`].
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership {
    guard: Guard,
}

impl Leadership {
    /// Steps down: the next candidate in line leads.
    ///
    /// # Errors
    /// Those of [`Guard::release`].
    ///
    /// # Cancel safety
    /// The resignation goes on in the background.
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }
}

impl Deref for Leadership {
    type Target = Lease;
    fn deref(&self) -> &Lease {
        &self.guard
    }
}

/// The changes of leadership: see [`Election::observe`].
pub struct Observation {
    locks: Locks,
    name: LockName,
    look_every: Duration,
    /// What was told last: nothing yet, nobody, or the claim of the leader.
    known: Option<Option<String>>,
    look: Option<BoxFuture<'static, Result<Option<Holder>>>>,
}

impl Observation {
    /// The next change; the first call tells who leads now.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) if the store did not serve: ask again.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub async fn next(&mut self) -> Result<Option<Holder>> {
        let change = std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await;
        change.expect("an observation never ends")
    }

    fn look(&self, is_first: bool) -> BoxFuture<'static, Result<Option<Holder>>> {
        let (locks, name, look_every) = (self.locks.clone(), self.name.clone(), self.look_every);
        Box::pin(async move {
            if !is_first {
                let clock = locks.shared().clock.clone();
                let at = clock.now() + look_every;
                sleep_until(clock, at).await;
            }
            leader_of(&locks, &name).await
        })
    }
}

impl Stream for Observation {
    type Item = Result<Option<Holder>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut is_first = self.known.is_none();
        loop {
            let mut look = self.look.take().unwrap_or_else(|| self.look(is_first));
            let Poll::Ready(seen) = Future::poll(look.as_mut(), cx) else {
                self.look = Some(look);
                return Poll::Pending;
            };
            is_first = false;
            match seen {
                Ok(leader) => {
                    let now = Some(leader.as_ref().map(|leader| leader.fingerprint.clone()));
                    if self.known != now {
                        self.known = now;
                        return Poll::Ready(Some(Ok(leader)));
                    }
                }
                Err(error) => {
                    self.known.get_or_insert(None);
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observation").field("name", &self.name).finish_non_exhaustive()
    }
}
