//! `tenure ls`: all locks that somebody holds or waits for, and what was done once.

use std::collections::BTreeMap;

use tenure::LockState;

use super::{block_on, told};
use crate::cli::{Global, Ls};
use crate::exit_code::ExitCode;
use crate::failure::Outcome;
use crate::json::LockJson;
use crate::output::{locks_table, print, print_json};
use crate::store::Store;

const PAGE: usize = 500;

pub(crate) fn run(global: &Global, args: &Ls) -> Outcome {
    block_on(async {
        let store = Store::open(global).await?;
        let mut locks = all(&store, &args.prefix).await?;
        if args.held {
            locks.retain(is_in_use);
        }
        if global.json {
            print_json(&locks.iter().map(LockJson::from).collect::<Vec<_>>());
        } else if !locks.is_empty() {
            print(&locks_table(&locks));
        }
        Ok(ExitCode::Done)
    })
}

/// Whether somebody holds it or waits for it. What was done once is listed without, for as long as its record is kept.
pub(super) fn is_in_use(lock: &LockState) -> bool {
    lock.is_held() || !lock.waiters.is_empty()
}

/// Every lock whose name starts with `prefix`, by name. A store may list one twice; it is told once.
pub(super) async fn all(store: &Store, prefix: &str) -> Outcome<Vec<LockState>> {
    let mut locks = BTreeMap::new();
    let mut after = None;
    loop {
        let page = store.locks.list(prefix, after.as_deref(), PAGE).await.map_err(told(store))?;
        locks.extend(page.locks.into_iter().map(|lock| (lock.name.clone(), lock)));
        after = page.next;
        if after.is_none() {
            return Ok(locks.into_values().collect());
        }
    }
}
