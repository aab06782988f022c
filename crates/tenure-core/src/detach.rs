//! Locks that move between processes: [`Guard::detach`] and [`Locks::adopt`].

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::backend::{Attempt, Grant, Line, RefusalKind, Renewal, StoreError, Why};
use crate::claim::{Claim, Tie};
use crate::client::Locks;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::name::LockName;
use crate::pending::Pending;
use crate::token::FencingToken;
use crate::ttl::Ttl;

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
    /// It is renewed first, and its validity counts from that request: how long it travelled does not matter.
    ///
    /// # Errors
    /// [`Error::Lost`] if it has ended meanwhile, [`Error::Refused`] if this client holds it already,
    /// [`Error::Unavailable`] if the store did not answer: it may be tried again.
    ///
    /// # Cancel safety
    /// The claim stays detached, perhaps renewed.
    pub async fn adopt(&self, detached: DetachedClaim) -> Result<Guard> {
        let DetachedClaim { claim, token } = detached;
        let (shared, claim) = (self.shared(), Arc::new(claim));
        let lock = claim.name.clone();
        if shared.is_closed() {
            return Err(Error::Closed);
        }
        if shared.keeper.is_kept(claim.id) {
            let message = "this client holds the claim already: it cannot be adopted twice";
            return Err(Error::refused(Some(&lock), RefusalKind::Ended, message));
        }
        let since = shared.clock.now();
        let answer = shared.backend.renew(std::slice::from_ref(&claim)).await.pop();
        match answer.unwrap_or_else(|| Err(StoreError::unknown("nothing"))) {
            Ok(Renewal::Renewed { ttl }) => {
                let grant = Grant { token, ttl, since, revoked: None };
                Guard::new(Pending::held(shared.clone(), claim), grant).map_err(|mut pending| {
                    pending.dismiss();
                    Error::Lost { lock, token, why: Why::Expired }
                })
            }
            Ok(Renewal::Lost(why)) => Err(Error::Lost { lock, token, why }),
            Err(error) => Err(Error::from_store(Some(&lock), &shared.store, error)),
        }
    }
}
