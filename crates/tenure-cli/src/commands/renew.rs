//! `tenure renew`: a claim that `acquire` printed lives on.

use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::{DetachedClaim, drift_margin};

use super::{block_on, told};
use crate::claim_source;
use crate::cli::{Global, Renew};
use crate::exit_code::ExitCode;
use crate::failure::Outcome;
use crate::json::ClaimJson;
use crate::output::print_json;
use crate::store::Store;

pub(crate) fn run(global: &Global, args: &Renew) -> Outcome {
    block_on(async {
        let store = Store::open(global).await?;
        let mut claim = claim_source::required(&args.claim, args.name.as_ref(), &store)?;
        if let Some(ttl) = args.ttl {
            claim = claim.with_ttl(ttl);
        }
        let valid_for = store.locks.renew(&claim).await.map_err(told(&store))?;
        if global.json {
            let valid_for = valid_for.max(left_of(&store, &claim).await.unwrap_or_default());
            print_json(&ClaimJson::new(&claim, valid_for));
        }
        Ok(ExitCode::Done)
    })
}

/// For how long the claim is valid from now, as the store sees it: a renewal never shortens, so that may be longer than
/// what the renewal asked for.
async fn left_of(store: &Store, claim: &DetachedClaim) -> Option<Duration> {
    let asked = SystemClock.now();
    // The claim says the whole name.
    let state = store.connected.locks.inspect(claim.name()).await.ok()?;
    let fingerprint = claim.claim().id.fingerprint();
    let left = state.holders.iter().find(|holder| holder.fingerprint == fingerprint)?.expires_in?;
    let until = asked + left.saturating_sub(drift_margin(left));
    Some(until.saturating_since(SystemClock.now()))
}
