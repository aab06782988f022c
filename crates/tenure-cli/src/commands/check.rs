//! `tenure check`: is it held, and by this claim?

use tenure::{DetachedClaim, LockState};

use super::{block_on, told};
use crate::claim_source;
use crate::cli::{Check, Global};
use crate::exit_code::ExitCode;
use crate::failure::{Failure, Outcome};
use crate::json::LockJson;
use crate::output::print_json;
use crate::store::Store;

pub(crate) fn run(global: &Global, args: &Check) -> Outcome {
    block_on(async {
        let store = Store::open(global).await?;
        let claim = claim(args, &store)?;
        let state = store.locks.inspect(&args.name).await.map_err(told(&store))?;
        let is_held = match &claim {
            Some(claim) => holds(&state, claim),
            None => state.is_held(),
        };
        if global.json {
            let mut answer = LockJson::from(&state);
            answer.mine = claim.as_ref().map(|_| is_held);
            print_json(&answer);
        }
        Ok(if is_held { ExitCode::Done } else { ExitCode::No })
    })
}

/// The claim to ask about. One in the environment that is of another lock has nothing to do with the question.
fn claim(args: &Check, store: &Store) -> Outcome<Option<DetachedClaim>> {
    let name = store.full_name(args.name.as_str());
    match claim_source::explicit(&args.claim)? {
        Some(claim) if claim.name().as_str() == name => Ok(Some(claim)),
        Some(claim) => {
            let what = format!("the claim is of lock {:?}, not of {name:?}", claim.name());
            Err(Failure::new(ExitCode::Usage, what))
        }
        None => Ok(claim_source::from_environment()?.filter(|claim| claim.name().as_str() == name)),
    }
}

fn holds(state: &LockState, claim: &DetachedClaim) -> bool {
    let fingerprint = claim.claim().id.fingerprint();
    state
        .holders
        .iter()
        .any(|holder| holder.fingerprint == fingerprint && holder.token == Some(claim.token()))
}
