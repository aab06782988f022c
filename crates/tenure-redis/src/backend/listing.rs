//! Which locks there are: found by their keys, page by page.

use std::collections::BTreeSet;

use tenure_core::{Answer, Backend, LockName, LockPage, StoreError};

use super::{Buckets, Redis};
use crate::error;
use crate::keys::Layout;
use crate::place::Place;
use crate::reply::garbled;

/// How many keys one step of a listing looks at, and how many steps one page takes at most.
const SCAN_COUNT: usize = 1000;
const SCAN_STEPS: usize = 16;

/// One page of the locks of a server.
pub(super) async fn of_one(
    redis: &Redis,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Answer<LockPage> {
    let layout = &redis.inner.layout;
    let named = |key: &str| layout.name_in_use(key).filter(|name| name.as_str().starts_with(prefix));
    let (names, next) =
        scan(&redis.inner.place, &layout.pattern(prefix), after.unwrap_or("0"), limit, named).await?;
    let mut page = looked_at(redis, names).await?;
    page.next = (next != "0").then_some(next);
    Ok(page)
}

/// One page of the locks of a cluster: one node after the other. The cursor is that of a node, and after it which.
pub(super) async fn of_cluster(
    redis: &Redis,
    buckets: &Buckets,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Answer<LockPage> {
    let ours = &redis.inner.place.config().prefix;
    let pattern = Layout::pattern_in_any_slot(ours, prefix);
    let named = |key: &str| {
        let tag = Layout::tag_in(ours, key)?;
        Layout::in_slot_of(ours, tag).name_in_use(key).filter(|name| name.as_str().starts_with(prefix))
    };
    let mut nodes = buckets.places().await?;
    // A node that has no locks any more was replaced, perhaps by one that comes before it: then from the start.
    let after = after.and_then(|after| after.split_once(' '));
    let after = after.filter(|(_, from)| nodes.iter().any(|(host, _)| host == from));
    let (mut cursor, mut from) = after
        .map_or_else(|| ("0".into(), String::new()), |(cursor, from)| (cursor.to_owned(), from.to_owned()));
    nodes.retain(|(host, _)| *host >= from);
    let mut names = BTreeSet::new();
    let mut next = None;
    for (host, node) in nodes {
        if names.len() >= limit.max(1) {
            next = Some(format!("0 {host}"));
            break;
        }
        if host != from {
            (cursor, from) = ("0".into(), host);
        }
        let left = limit.saturating_sub(names.len());
        let (found, rest) = scan(&node, &pattern, &cursor, left, named).await?;
        names.extend(found);
        if rest != "0" {
            next = Some(format!("{rest} {from}"));
            break;
        }
    }
    let mut page = looked_at(redis, names).await?;
    page.next = next;
    Ok(page)
}

/// The names that a server has keys of, from a cursor on, and the next cursor.
async fn scan(
    place: &Place,
    pattern: &str,
    from: &str,
    limit: usize,
    named: impl Fn(&str) -> Option<LockName>,
) -> Answer<(BTreeSet<LockName>, String)> {
    let (mut names, mut cursor) = (BTreeSet::new(), from.to_owned());
    for _ in 0..SCAN_STEPS {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
        let reply = place.ask(&scan).await?;
        let (next, keys): (String, Vec<Vec<u8>>) =
            redis::from_redis_value(reply.value).map_err(|_| garbled("no scan"))?;
        names.extend(keys.iter().filter_map(|key| named(std::str::from_utf8(key).ok()?)));
        cursor = next;
        if cursor == "0" || names.len() >= limit.max(1) {
            break;
        }
    }
    Ok((names, cursor))
}

/// What is known of these locks.
async fn looked_at(redis: &Redis, names: BTreeSet<LockName>) -> Answer<LockPage> {
    let states = names.iter().map(|name| redis.inspect(name));
    let states = futures_util::future::join_all(states).await;
    let mut page = LockPage::default();
    for (name, state) in names.iter().zip(states) {
        let state = match state {
            Err(StoreError::Refused(refusal)) if error::is_foreign(&refusal) => {
                page.unreadable.push((name.clone(), refusal));
                continue;
            }
            state => state?,
        };
        // It may have ended since we saw its key.
        if state.is_held() || !state.waiters.is_empty() || state.settled_for.is_some() {
            page.locks.push(state);
        }
    }
    Ok(page)
}
