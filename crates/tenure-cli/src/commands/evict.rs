//! `tenure evict`: takes a lock away from its holders.

use serde::Serialize;
use tenure::Eviction;

use super::{block_on, told};
use crate::cli::{Evict, Global};
use crate::exit_code::ExitCode;
use crate::failure::Outcome;
use crate::output::{clean, print, print_json};
use crate::store::Store;

#[derive(Serialize)]
struct Evicted<'a> {
    name: &'a str,
    /// How many.
    evicted: u32,
    force: bool,
}

pub(crate) fn run(global: &Global, args: &Evict) -> Outcome {
    block_on(async {
        let store = Store::open(global).await?;
        let eviction = Eviction { token: None, force: args.force, reason: args.reason.clone() };
        let evicted = store.locks.evict(&args.name, eviction).await;
        let evicted = evicted.map_err(told(&store))?;
        if global.json {
            print_json(&Evicted { name: &store.full_name(args.name.as_str()), evicted, force: args.force });
        } else {
            let name = clean(&store.full_name(args.name.as_str()));
            print(&match (evicted, args.force) {
                (0, _) => format!("nobody holds {name}\n"),
                (n, false) => format!("{n} evicted; {name} passes on when what they were granted expires\n"),
                (n, true) => format!(
                    "{n} evicted; {name} has passed on, and they may still be at work: only tokens keep them out\n"
                ),
            });
        }
        Ok(if evicted > 0 { ExitCode::Done } else { ExitCode::No })
    })
}
