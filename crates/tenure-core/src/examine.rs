//! What can be found out about a deployment: the words for `tenure doctor`.
//!
//! Not a verb of the boundary: a lock works without it. A backend that can look at its store implements [`Examine`].

use std::fmt::{self, Debug};

use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{Answer, Attempt, Backend, Line, StoreError, Trail};
use crate::claim::{Claim, ClaimId, Label, Mode, Tie};
use crate::client::Seams;
use crate::guarantee::Promise;
use crate::name::LockName;
use crate::ttl::Ttl;

/// A store that can be examined.
#[async_trait]
pub trait Examine: Debug + Send + Sync + 'static {
    /// What there is to say about the store, in the order in which people should read it. Changes nothing but
    /// locks of its own, which it gives back.
    async fn examine(&self) -> Answer<Vec<Finding>>;
}

/// One thing that was found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What about: `eviction policy`.
    pub subject: &'static str,
    /// How bad.
    pub severity: Severity,
    /// What was seen.
    pub observed: String,
    /// What to do about it.
    pub remedy: Option<String>,
    /// The promises that it breaks, or that cannot be vouched for because of it.
    pub at_stake: &'static [Promise],
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Works, but promises less than it could.
    Advice,
    /// Could not be found out: the least is assumed.
    Unknown,
    /// Will break or lose locks sooner or later.
    Problem,
}

impl Finding {
    /// As it should be.
    pub fn fine(subject: &'static str, observed: impl Into<String>) -> Self {
        Self { subject, severity: Severity::Fine, observed: observed.into(), remedy: None, at_stake: &[] }
    }

    /// Works, but promises less than it could.
    pub fn advice(subject: &'static str, observed: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Advice, remedy: Some(remedy.into()), ..Self::fine(subject, observed) }
    }

    /// Could not be found out: the least is assumed.
    pub fn unknown(subject: &'static str, observed: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Unknown, ..Self::advice(subject, observed, remedy) }
    }

    /// Will break or lose locks sooner or later.
    pub fn problem(subject: &'static str, observed: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Problem, ..Self::advice(subject, observed, remedy) }
    }

    /// The same, with these promises at stake.
    pub fn at_stake(self, at_stake: &'static [Promise]) -> Self {
        Self { at_stake, ..self }
    }
}

/// Takes and gives back a lock of its own: whether that works, and how long it takes. If it does not, `remedy` knows what to
/// do about it.
pub async fn try_a_lock(
    backend: &dyn Backend,
    seams: &Seams,
    remedy: impl Fn(&StoreError) -> String,
) -> Finding {
    const SUBJECT: &str = "a lock";
    let id = ClaimId::draw(&*seams.entropy);
    // Always the same: a store may remember the token of every name for a day.
    let name = LockName::new("tenure-doctor").expect("a valid name");
    let ttl = Ttl::new(Duration::from_secs(5)).expect("a valid ttl");
    let label = Label::of_this_process();
    let claim = Claim { name, id, mode: Mode::Exclusive, ttl, tie: Tie::Process, label, reason: None };
    let start = seams.clock.now();
    let attempt = backend.attempt(&claim, Line::Pass).await;
    let took = seams.clock.now().saturating_since(start);
    let trail = if attempt.is_ok() { Trail::Clean } else { Trail::Doubtful };
    let release = backend.release(&claim, trail).await;
    match (attempt, release) {
        (Ok(Attempt::Granted(_)), Ok(_)) => {
            Finding::fine(SUBJECT, format!("was taken in {took:.1?} and given back"))
        }
        (Err(error), _) => Finding::problem(SUBJECT, format!("could not be taken: {error}"), remedy(&error)),
        (_, Err(error)) => {
            Finding::problem(SUBJECT, format!("could not be given back: {error}"), remedy(&error))
        }
        (Ok(_), _) => Finding::fine(SUBJECT, "is held by another examination at this moment"),
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fine => "fine",
            Self::Advice => "advice",
            Self::Unknown => "unknown",
            Self::Problem => "problem",
        })
    }
}
