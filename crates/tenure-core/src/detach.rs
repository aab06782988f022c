//! Locks that move between processes: [`Guard::detach`] and [`Locks::adopt`].

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::{Answer, Attempt, Line, RefusalKind, Released, Renewal, StoreError, Trail, Why};
use crate::claim::{Claim, ClaimId, Tie};
use crate::client::{Locks, Shared};
use crate::clock::sleep_until;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::name::LockName;
use crate::pending::Pending;
use crate::token::FencingToken;
use crate::ttl::{Ttl, drift_margin};

/// A claim that no process holds: it lives at the store until somebody adopts or releases it, or its ttl ends.
///
/// Complete in itself: serialise it (serde, or as text), give it to another process, adopt it there. It contains the
/// claim's secret id: who has it may release the lock.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachedClaim {
    claim: Claim,
    token: FencingToken,
}

impl DetachedClaim {
    /// The lock it is a claim on.
    pub const fn name(&self) -> &LockName {
        &self.claim.name
    }

    /// The number of its grant.
    pub const fn token(&self) -> FencingToken {
        self.token
    }

    /// The claim itself.
    pub const fn claim(&self) -> &Claim {
        &self.claim
    }

    fn lost(&self, shared: &Shared, why: Why) -> Error {
        Error::Lost { lock: self.name().clone(), store: shared.store.clone(), token: self.token, why }
    }

    /// The same claim, to be renewed for another ttl.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Ttl) -> Self {
        self.claim.ttl = ttl;
        self
    }
}

/// The text form starts with its version.
const TEXT_PREFIX: &str = "tenure1-";

impl fmt::Display for DetachedClaim {
    /// The claim as text, secret and all.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TEXT_PREFIX)?;
        let bytes = postcard::to_allocvec(self).map_err(|_| fmt::Error)?;
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for DetachedClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedClaim").field("claim", &self.claim).field("token", &self.token).finish()
    }
}

/// The text is not that of a detached claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is not a claim as tenure prints it ({TEXT_PREFIX}...)")]
pub struct InvalidDetachedClaim;

impl FromStr for DetachedClaim {
    type Err = InvalidDetachedClaim;
    fn from_str(text: &str) -> Result<Self, InvalidDetachedClaim> {
        let hex = text.trim().strip_prefix(TEXT_PREFIX).ok_or(InvalidDetachedClaim)?;
        if hex.len() % 2 != 0 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(InvalidDetachedClaim);
        }
        let digits = hex.as_bytes().chunks_exact(2);
        let bytes: Option<Vec<u8>> =
            digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
        postcard::from_bytes(&bytes.ok_or(InvalidDetachedClaim)?).map_err(|_| InvalidDetachedClaim)
    }
}

impl Guard {
    /// Lets go of the lock without giving it back: it lives on at the store until its ttl ends, and whoever has the
    /// returned claim may [adopt](Locks::adopt) it.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost, [`Error::Refused`] if the store ties every claim to a session, and
    /// [`Error::Unavailable`] if it did not answer. The lock is released then.
    ///
    /// # Cancel safety
    /// The lock is released.
    pub async fn detach(mut self) -> Result<DetachedClaim> {
        let mut pending = self.end().map_err(|why| self.lost_error(why))?;
        let shared = pending.shared.clone();
        if !shared.backend.capabilities().detach {
            let message = format!("claims on {} end with their process and cannot be detached", shared.store);
            return Err(Error::refused(Some(self.name()), RefusalKind::Unsupported, message));
        }
        if pending.claim.tie == Tie::Process {
            // The attempt of a claim that holds re-arms it, and tells the store its new tie.
            pending.claim = Arc::new(Claim { tie: Tie::Ttl, ..Claim::clone(&pending.claim) });
            match pending.attempt(Line::Pass).await {
                Ok(Attempt::Granted(grant)) if grant.token == self.token() => {}
                Ok(_) => return Err(self.lost_error(Why::Gone)),
                Err(error) => return Err(Error::from_store(Some(self.name()), &shared.store, error)),
            }
        }
        let claim = Claim::clone(&pending.claim);
        pending.dismiss();
        Ok(DetachedClaim { claim, token: self.token() })
    }
}

impl Locks {
    /// Takes over a claim that was [detached](Guard::detach), here or elsewhere.
    ///
    /// The claim gets a new secret id in the same step, so it can be adopted once: whoever else has the text has nothing.
    /// Its validity counts from that request: how long it travelled does not matter.
    ///
    /// # Errors
    /// [`Error::Lost`] if it has ended meanwhile or was adopted by another; [`Error::Unavailable`] if the store did not
    /// answer: then it is either still detached or will be released, never adopted.
    ///
    /// # Cancel safety
    /// As with [`Error::Unavailable`].
    pub async fn adopt(&self, detached: DetachedClaim) -> Result<Guard> {
        let DetachedClaim { claim: predecessor, token } = detached;
        let shared = self.shared();
        let lost =
            |why| Error::Lost { lock: predecessor.name.clone(), store: shared.store.clone(), token, why };
        if shared.is_closed() {
            return Err(Error::Closed);
        }
        let id = ClaimId::draw(&*shared.entropy);
        let claim = Claim { id, tie: Tie::Process, label: shared.label.clone(), ..predecessor.clone() };
        let mut pending = Pending::new(shared.clone(), Arc::new(claim));
        let mut tries = Tries::new(shared);
        let answer = loop {
            let answer = pending.attempt(Line::Succeed(predecessor.id)).await;
            if !tries.again(is_passing(&answer)).await {
                break answer;
            }
        };
        match answer {
            Ok(Attempt::Granted(grant)) if grant.token == token => {
                Guard::new(pending, grant, shared.clock.now()).map_err(|_too_late| lost(Why::Expired))
            }
            Ok(_) => Err(lost(Why::Gone)),
            Err(StoreError::Refused(refusal)) if refusal.kind == RefusalKind::Ended => Err(lost(Why::Gone)),
            Err(error) => Err(Error::from_store(Some(&predecessor.name), &shared.store, error)),
        }
    }

    /// Renews a detached claim without adopting it; answers for how long it is valid from now.
    ///
    /// # Errors
    /// [`Error::Lost`] if it has ended meanwhile, [`Error::Unavailable`] if the store did not answer.
    ///
    /// # Cancel safety
    /// The claim stays detached, perhaps renewed.
    pub async fn renew(&self, detached: &DetachedClaim) -> Result<Duration> {
        let (shared, claim) = (self.shared(), Arc::new(detached.claim.clone()));
        let mut tries = Tries::new(shared);
        let (sent, answer) = loop {
            let sent = shared.clock.now();
            let answer = shared.backend.renew(std::slice::from_ref(&claim)).await.pop();
            let answer = answer.unwrap_or_else(|| Err(StoreError::unknown("nothing")));
            if !tries.again(is_passing(&answer)).await {
                break (sent, answer);
            }
        };
        match answer {
            Ok(Renewal::Renewed { ttl }) => {
                Ok((sent + ttl - drift_margin(ttl)).saturating_since(shared.clock.now()))
            }
            Ok(Renewal::Lost(why)) => Err(detached.lost(shared, why)),
            Err(error) => Err(Error::from_store(Some(&claim.name), &shared.store, error)),
        }
    }

    /// Releases a detached claim without adopting it.
    ///
    /// # Errors
    /// [`Error::Lost`] if it has ended before, [`Error::Unavailable`] if the store did not answer.
    ///
    /// # Cancel safety
    /// The claim stays detached, or is released.
    pub async fn release(&self, detached: &DetachedClaim) -> Result<()> {
        let (shared, claim) = (self.shared(), &detached.claim);
        let mut tries = Tries::new(shared);
        let answer = loop {
            let answer = shared.backend.release(claim, Trail::Clean).await;
            if !tries.again(is_passing(&answer)).await {
                break answer;
            }
        };
        match answer {
            // It found the work of the request before done.
            Ok(Released::Absent) if tries.count > 1 => Ok(()),
            Ok(Released::Held) => Ok(()),
            Ok(Released::Waited | Released::Absent) => Err(detached.lost(shared, Why::Gone)),
            Err(error) => Err(Error::from_store(Some(&claim.name), &shared.store, error)),
        }
    }
}

fn is_passing<T>(answer: &Answer<T>) -> bool {
    answer.as_ref().is_err_and(StoreError::is_passing)
}

/// A few tries: every request here may be repeated.
struct Tries<'a> {
    shared: &'a Shared,
    count: u32,
}

impl<'a> Tries<'a> {
    const fn new(shared: &'a Shared) -> Self {
        Self { shared, count: 0 }
    }

    /// Counts one try. If it failed in passing, and was not the last, pauses and answers that it may be tried again.
    async fn again(&mut self, failed_in_passing: bool) -> bool {
        self.count += 1;
        if !failed_in_passing || self.count > 3 {
            return false;
        }
        let clock = &self.shared.clock;
        sleep_until(clock.clone(), clock.now() + Duration::from_millis(20) * 5_u32.pow(self.count - 1)).await;
        true
    }
}
