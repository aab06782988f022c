//! `tenure ls`: all locks that somebody holds or waits for, and what was done once.

use std::collections::BTreeMap;

use tenure::{LockName, LockState, Refusal};

use super::{block_on, told};
use crate::cli::{Global, Ls};
use crate::exit_code::ExitCode;
use crate::failure::{Failure, Outcome};
use crate::json::LockJson;
use crate::output::{locks_table, print, print_json};
use crate::store::Store;

const PAGE: usize = 500;

pub(crate) fn run(global: &Global, args: &Ls) -> Outcome {
    block_on(async {
        let store = Store::open(global).await?;
        let Listing { mut locks, unreadable } = all(&store, &args.prefix).await?;
        if args.held {
            locks.retain(is_in_use);
        }
        if global.json {
            let bad = unreadable
                .iter()
                .map(|(name, refusal)| LockJson::unreadable(name.as_str(), &refusal.message));
            print_json(&locks.iter().map(LockJson::from).chain(bad).collect::<Vec<_>>());
        } else if !locks.is_empty() {
            print(&locks_table(&locks));
        }
        for (name, refusal) in &unreadable {
            told_unreadable(&store, name, refusal).report(global.log_format);
        }
        Ok(if unreadable.is_empty() { ExitCode::Done } else { ExitCode::Configuration })
    })
}

/// Whether somebody holds it or waits for it. What was done once is listed without, for as long as its record is kept.
pub(super) fn is_in_use(lock: &LockState) -> bool {
    lock.is_held() || !lock.waiters.is_empty()
}

/// What there is, by name.
pub(super) struct Listing {
    pub(super) locks: Vec<LockState>,
    /// In place of these, another program wrote something.
    pub(super) unreadable: BTreeMap<LockName, Refusal>,
}

/// That a lock cannot be read, as if it had been asked for alone.
pub(super) fn told_unreadable(store: &Store, name: &LockName, refusal: &Refusal) -> Failure {
    let (lock, store_name) = (Some(name.clone()), Some(store.locks.store().into()));
    store.failure(&tenure::Error::Refused { lock, store: store_name, refusal: refusal.clone() })
}

/// Every lock whose name starts with `prefix`. A store may list one twice; it is told once.
pub(super) async fn all(store: &Store, prefix: &str) -> Outcome<Listing> {
    let mut locks = BTreeMap::new();
    let mut unreadable = BTreeMap::new();
    let mut after = None;
    loop {
        let page = store.locks.list(prefix, after.as_deref(), PAGE).await.map_err(told(store))?;
        locks.extend(page.locks.into_iter().map(|lock| (lock.name.clone(), lock)));
        unreadable.extend(page.unreadable);
        after = page.next;
        if after.is_none() {
            return Ok(Listing { locks: locks.into_values().collect(), unreadable });
        }
    }
}
