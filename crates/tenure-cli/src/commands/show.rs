//! `tenure show`: one lock, its holders and its line.

use super::{block_on, told};
use crate::cli::{Global, Show};
use crate::exit_code::ExitCode;
use crate::failure::Outcome;
use crate::json::LockJson;
use crate::output::{lock_page, print, print_json};
use crate::store::Store;

pub(crate) fn run(global: &Global, args: &Show) -> Outcome {
    block_on(async {
        let store = Store::open(global).await?;
        let state = store.locks.inspect(&args.name).await.map_err(told(&store))?;
        if global.json {
            print_json(&LockJson::from(&state));
        } else {
            print(&lock_page(&state));
        }
        Ok(ExitCode::Done)
    })
}
