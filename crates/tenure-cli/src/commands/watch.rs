//! `tenure watch`: a lock, or all of them, as they change.
//!
//! On a terminal the table stays in place and moves with the time; elsewhere every change is a line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use tenure::clock::{Clock, SystemClock, sleep_until};
use tenure::{LockName, LockState};

use super::{block_on, end_by, ls, told};
use crate::cli::{Global, Watch};
use crate::failure::{Outcome, internal};
use crate::json::LockJson;
use crate::output::{clean, lock_page, locks_table, print, print_json, timestamp};
use crate::signals::{Blocked, Events};
use crate::store::Store;

const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(crate) fn run(global: &Global, args: &Watch) -> Outcome<u8> {
    use nix::sys::signal::Signal::{SIGINT, SIGTERM};
    let signals = Blocked::new([SIGINT, SIGTERM]).map_err(internal("take over signals"))?;
    block_on(async {
        let events = signals.events().map_err(internal("read signals"))?;
        let store = Store::open(global).await?;
        if std::io::stdout().is_terminal() && !global.json {
            on_screen(&store, args, &events).await
        } else {
            as_lines(&store, args, global.json, &events).await
        }
    })
}

async fn on_screen(store: &Store, args: &Watch, events: &Events) -> Outcome<u8> {
    const CLEAR: &str = "\u{1b}[H\u{1b}[J";
    loop {
        let locks = look(store, args).await?;
        let page = match (&args.name, locks.values().next()) {
            (Some(_), Some(lock)) => lock_page(lock),
            _ if locks.is_empty() => "nobody holds a lock\n".into(),
            _ => locks_table(&locks.into_values().collect::<Vec<_>>()),
        };
        // Past anstream for the cursor: without colours it would strip that too.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), CLEAR.as_bytes());
        print(&page);
        if let Some(code) = pause(events).await {
            return Ok(code);
        }
    }
}

async fn as_lines(store: &Store, args: &Watch, json: bool, events: &Events) -> Outcome<u8> {
    let mut seen: BTreeMap<LockName, Vec<String>> = BTreeMap::new();
    loop {
        let mut locks = look(store, args).await?;
        for name in seen.keys() {
            // A lock that nobody uses is forgotten by the store: it is free.
            locks.entry(name.clone()).or_insert_with(|| LockState::free(name.clone()));
        }
        let mut next = BTreeMap::new();
        for (name, lock) in locks {
            let gist = gist(&lock);
            if seen.get(&name) != Some(&gist) {
                if json {
                    print_json(&LockJson::from(&lock));
                } else {
                    print(&line(&lock));
                }
            }
            if lock.is_held() || !lock.waiters.is_empty() || args.name.is_some() {
                next.insert(name, gist);
            }
        }
        seen = next;
        if let Some(code) = pause(events).await {
            return Ok(code);
        }
    }
}

async fn look(store: &Store, args: &Watch) -> Outcome<BTreeMap<LockName, LockState>> {
    let locks = match &args.name {
        Some(name) => vec![store.locks.inspect(name).await.map_err(told(store))?],
        None => ls::all(store, "").await?,
    };
    Ok(locks.into_iter().map(|lock| (lock.name.clone(), lock)).collect())
}

/// Waits a moment; answers the exit code if a signal ends it.
async fn pause(events: &Events) -> Option<u8> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let until = clock.now() + LOOK_EVERY;
    tokio::select! {
        event = events.next() => Some(end_by(event.signal, event.is_from_terminal)),
        () = sleep_until(clock, until) => None,
    }
}

/// What of a lock is a change if it differs: who, not for how long.
fn gist(lock: &LockState) -> Vec<String> {
    let holders = lock.holders.iter().map(|holder| format!("{} {}", holder.fingerprint, holder.evicted));
    let waiters = lock.waiters.iter().map(|waiter| format!("waits {}", waiter.fingerprint));
    holders.chain(waiters).collect()
}

fn line(lock: &LockState) -> String {
    let mut line = format!("{} {}", timestamp(Duration::ZERO), clean(lock.name.as_str()));
    if lock.is_held() {
        let holders: Vec<String> = lock.holders.iter().map(|holder| clean(holder.label.as_str())).collect();
        let _ = write!(line, " held by {}", holders.join(", "));
        if let Some(token) = lock.holders.iter().filter_map(|holder| holder.token).max() {
            let _ = write!(line, ", token {token}");
        }
    } else {
        line.push_str(" free");
    }
    if !lock.waiters.is_empty() {
        let _ = write!(line, ", {} waiting", lock.waiters.len());
    }
    line.push('\n');
    line
}
