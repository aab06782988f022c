//! [`Error`]: what a caller is told. Busy, timed out, lost, unreachable and refused are different things.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Holder, Refusal, RefusalKind, StoreError, Why};
use crate::claim::InvalidText;
use crate::name::{InvalidName, LockName};
use crate::token::FencingToken;
use crate::words::in_words;

/// What tenure answers with.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a lock was not taken, kept or given back. Says what happened, to which lock, on which store, and
/// ([`is_retry_safe`](Self::is_retry_safe)) whether trying again can do harm.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another party holds the lock, and the caller did not want to wait.
    #[error("lock {lock:?} on {store} is busy{}", Held(.holder.as_deref()))]
    Busy {
        /// Which lock.
        lock: LockName,
        /// On which store.
        store: Arc<str>,
        /// Who holds it, if the store says.
        holder: Option<Box<Holder>>,
    },
    /// The caller waited as long as it wanted, and others were still ahead.
    #[error("timed out after {} waiting for lock {lock:?} on {store}{}", in_words(*.waited), Held(.holder.as_deref()))]
    TimedOut {
        /// Which lock.
        lock: LockName,
        /// On which store.
        store: Arc<str>,
        /// For how long.
        waited: Duration,
        /// Who holds it, if the store says.
        holder: Option<Box<Holder>>,
    },
    /// The lock was held, and is not any more: whatever the caller did under it may overlap with its successor.
    #[error("lock {lock:?} on {store} was lost: {why}")]
    Lost {
        /// Which lock.
        lock: LockName,
        /// On which store.
        store: Arc<str>,
        /// The number of the grant that ended.
        token: FencingToken,
        /// How.
        why: Why,
    },
    /// The store could not be reached, or did not answer.
    #[error("store {store} is unavailable{}: {cause}", For(.lock.as_ref()))]
    Unavailable {
        /// Which lock, if it was about one.
        lock: Option<LockName>,
        /// Which store.
        store: Arc<str>,
        /// What was tried, and what came of it.
        cause: StoreError,
    },
    /// The store, or tenure itself, refused: nothing changed, and trying again as it is will not help.
    #[error("refused{}{}: {}", For(.lock.as_ref()), On(.store.as_deref()), .refusal.message)]
    Refused {
        /// Which lock, if it was about one.
        lock: Option<LockName>,
        /// By which store, if it was one.
        store: Option<Arc<str>>,
        /// Of what kind, and why.
        refusal: Refusal,
    },
    /// [`Locks::close`](crate::Locks::close) was called.
    #[error("this client was closed")]
    Closed,
}

impl Error {
    /// The lock it is about.
    pub const fn lock(&self) -> Option<&LockName> {
        match self {
            Self::Busy { lock, .. } | Self::TimedOut { lock, .. } | Self::Lost { lock, .. } => Some(lock),
            Self::Unavailable { lock, .. } | Self::Refused { lock, .. } => lock.as_ref(),
            Self::Closed => None,
        }
    }

    /// Whether the same call may simply be made again.
    ///
    /// `false` for [`Lost`](Self::Lost): the work may be half done, and only its owner knows whether doing it again
    /// is safe. `false` for [`Refused`](Self::Refused) and [`Closed`](Self::Closed): it would be in vain.
    pub const fn is_retry_safe(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::TimedOut { .. } | Self::Unavailable { .. } => true,
            Self::Lost { .. } | Self::Refused { .. } | Self::Closed => false,
        }
    }

    /// The store it is about.
    pub fn store(&self) -> Option<&str> {
        match self {
            Self::Busy { store, .. } | Self::TimedOut { store, .. } => Some(store),
            Self::Lost { store, .. } | Self::Unavailable { store, .. } => Some(store),
            Self::Refused { store, .. } => store.as_deref(),
            Self::Closed => None,
        }
    }

    pub(crate) fn from_store(lock: Option<&LockName>, store: &Arc<str>, cause: StoreError) -> Self {
        match cause {
            StoreError::Refused(refusal) if refusal.kind != RefusalKind::Unavailable => {
                Self::Refused { lock: lock.cloned(), store: Some(store.clone()), refusal }
            }
            cause => Self::Unavailable { lock: lock.cloned(), store: store.clone(), cause },
        }
    }

    pub(crate) fn refused(lock: Option<&LockName>, kind: RefusalKind, message: impl Into<String>) -> Self {
        Self::Refused { lock: lock.cloned(), store: None, refusal: Refusal { kind, message: message.into() } }
    }
}

impl From<InvalidName> for Error {
    fn from(invalid: InvalidName) -> Self {
        Self::refused(None, RefusalKind::Limit, invalid.to_string())
    }
}

impl From<InvalidText> for Error {
    fn from(invalid: InvalidText) -> Self {
        Self::refused(None, RefusalKind::Limit, invalid.to_string())
    }
}

struct Held<'a>(Option<&'a Holder>);

impl fmt::Display for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(holder) = self.0 else { return Ok(()) };
        write!(f, ", held by {}", holder.label)?;
        if let Some(held_for) = holder.held_for {
            write!(f, " for {}", in_words(held_for))?;
        }
        if let Some(reason) = &holder.reason {
            write!(f, " ({reason})")?;
        }
        Ok(())
    }
}

struct For<'a>(Option<&'a LockName>);

impl fmt::Display for For<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |lock| write!(f, " for lock {lock:?}"))
    }
}

struct On<'a>(Option<&'a str>);

impl fmt::Display for On<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |store| write!(f, " by {store}"))
    }
}
