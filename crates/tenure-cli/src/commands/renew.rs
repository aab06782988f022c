//! `tenure renew`: a claim that `acquire` printed lives on.

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
            print_json(&ClaimJson::new(&claim, valid_for));
        }
        Ok(ExitCode::Done)
    })
}
