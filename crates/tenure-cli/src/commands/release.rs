//! `tenure release`: a claim that `acquire` printed is given back.

use serde::Serialize;
use tenure::{Error, FencingToken};

use super::block_on;
use crate::claim_source;
use crate::cli::{Global, Release};
use crate::exit_code::ExitCode;
use crate::failure::{Failure, Outcome};
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
        let released = store.locks.release(&claim).await;
        released.map_err(|error| match error {
            // There is no work of ours that could be run again.
            Error::Lost { .. } => Failure::new(ExitCode::Lost, error.to_string()),
            error => store.failure(&error),
        })?;
        if global.json {
            print_json(&Released { name: claim.name().as_str(), token: claim.token(), released: true });
        }
        Ok(ExitCode::Done)
    })
}
