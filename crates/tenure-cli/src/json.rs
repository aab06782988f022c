//! The JSON shapes that `--json` prints. They are part of the interface: fields are added, never renamed.

use std::time::Duration;

use serde::Serialize;
use tenure::{DetachedClaim, FencingToken, LockState, Reason};

use crate::output::timestamp;

/// A lock as `show --json` and `ls --json` print it. What the store does not know is null.
#[derive(Debug, Serialize)]
pub(crate) struct LockJson<'a> {
    name: &'a str,
    state: &'static str,
    token: Option<FencingToken>,
    holders: Vec<HolderJson<'a>>,
    waiters: Vec<WaiterJson<'a>>,
    /// Whether `once` has done it, and for how long that is still kept.
    done: bool,
    kept_for_ms: Option<u64>,
    /// Only where it cannot be read: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// Only where a claim was asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mine: Option<bool>,
}

#[derive(Debug, Serialize)]
struct HolderJson<'a> {
    label: &'a str,
    token: Option<FencingToken>,
    since: Option<String>,
    expires_in_ms: Option<u64>,
    mode: Option<String>,
    reason: Option<&'a str>,
    /// Whether its renewals are refused, and it only waits to expire.
    evicted: bool,
}

#[derive(Debug, Serialize)]
struct WaiterJson<'a> {
    label: &'a str,
    position: usize,
    waiting_ms: Option<u64>,
}

impl<'a> From<&'a LockState> for LockJson<'a> {
    fn from(lock: &'a LockState) -> Self {
        let holders = lock.holders.iter().map(|holder| HolderJson {
            label: holder.label.as_str(),
            token: holder.token,
            since: holder.held_for.map(timestamp),
            expires_in_ms: holder.expires_in.map(millis),
            mode: holder.mode.map(|mode| mode.to_string()),
            reason: holder.reason.as_ref().map(Reason::as_str),
            evicted: holder.evicted,
        });
        let waiters = lock.waiters.iter().zip(1..).map(|(waiter, position)| WaiterJson {
            label: waiter.label.as_str(),
            position,
            waiting_ms: waiter.waiting_for.map(millis),
        });
        Self {
            name: lock.name.as_str(),
            state: if lock.is_held() { "held" } else { "free" },
            token: lock.token,
            holders: holders.collect(),
            waiters: waiters.collect(),
            done: lock.settled_for.is_some(),
            kept_for_ms: lock.settled_for.map(millis),
            error: None,
            mine: None,
        }
    }
}

impl<'a> LockJson<'a> {
    /// A lock that cannot be read.
    pub(crate) const fn unreadable(name: &'a str, error: &'a str) -> Self {
        Self {
            name,
            state: "unreadable",
            token: None,
            holders: Vec::new(),
            waiters: Vec::new(),
            done: false,
            kept_for_ms: None,
            error: Some(error),
            mine: None,
        }
    }
}

/// A claim as `acquire --json` and `renew --json` print it. Only the former tells the claim itself.
#[derive(Debug, Serialize)]
pub(crate) struct ClaimJson<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    claim: Option<String>,
    token: FencingToken,
    ttl_ms: u64,
    valid_for_ms: u64,
    mode: String,
}

impl<'a> ClaimJson<'a> {
    pub(crate) fn new(claim: &'a DetachedClaim, valid_for: Duration) -> Self {
        Self {
            name: claim.name().as_str(),
            claim: None,
            token: claim.token(),
            ttl_ms: millis(claim.claim().ttl.get()),
            valid_for_ms: millis(valid_for),
            mode: claim.claim().mode.to_string(),
        }
    }

    /// With the secret.
    pub(crate) fn exposed(claim: &'a DetachedClaim, valid_for: Duration) -> Self {
        Self { claim: Some(claim.to_string()), ..Self::new(claim, valid_for) }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
