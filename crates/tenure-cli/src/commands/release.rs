//! `tenure release`: a claim that `acquire` printed is given back.

use serde::Serialize;
use tenure::FencingToken;

use super::{block_on, told};
use crate::claim_source;
use crate::cli::{Global, Release};
use crate::exit_code::ExitCode;
use crate::failure::Outcome;
use crate::output::print_json;
use crate::store::Store;

#[derive(Serialize)]
struct Released<'a> {
    name: &'a str,
    token: FencingToken,
    released: bool,
}

pub(crate) fn run(global: &Global, args: &Release) -> Outcome {
    block_on(async {
        let store = Store::open(global).await?;
        let claim = claim_source::required(&args.claim, args.name.as_ref(), &store)?;
        store.locks.release(&claim).await.map_err(told(&store))?;
        if global.json {
            print_json(&Released { name: claim.name().as_str(), token: claim.token(), released: true });
        }
        Ok(ExitCode::Done)
    })
}
