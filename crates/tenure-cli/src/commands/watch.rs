//! `tenure watch`: a lock, or all of them, as they change.
//!
//! On a terminal the table stays in place and moves with the time; elsewhere every change is a line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::future::Future;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tenure::clock::{Clock, SystemClock, sleep_until};
use tenure::{LockName, LockState};

use super::ls::is_in_use;
use super::{block_on, end_by, ls, told};
use crate::cli::{Global, LogFormat, Watch};
use crate::exit_code::ExitCode;
use crate::failure::{Outcome, internal};
use crate::json::LockJson;
use crate::output::{clean, end_without_reader, lock_page, locks_table, note, print, print_json, timestamp};
use crate::signals::{Blocked, Events};
use crate::store::Store;

const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The locks that are to be seen, by name.
type Seen = BTreeMap<LockName, LockState>;

pub(crate) fn run(global: &Global, args: &Watch) -> Outcome<u8> {
    use nix::sys::signal::Signal::{SIGINT, SIGTERM};
    let signals = Blocked::new([SIGINT, SIGTERM]).map_err(internal("take over signals"))?;
    block_on(async {
        let events = signals.events().map_err(internal("read signals"))?;
        let store = Store::open(global).await?;
        let format = global.log_format;
        let watch = Watching {
            store: &store,
            args,
            events: &events,
            format,
            heard: Heard::Never,
            unreadable: BTreeSet::new(),
        };
        if std::io::stdout().is_terminal() && !global.json {
            on_screen(watch).await
        } else {
            as_lines(watch, global.json).await
        }
    })
}

async fn on_screen(mut watch: Watching<'_>) -> Outcome<u8> {
    const CLEAR: &str = "\u{1b}[H\u{1b}[J";
    loop {
        let mut locks = match watch.next().await? {
            Ok(locks) => locks,
            Err(code) => return Ok(code),
        };
        if watch.args.name.is_none() {
            locks.retain(|_, lock| is_in_use(lock));
        }
        let page = match (&watch.args.name, locks.values().next()) {
            (Some(_), Some(lock)) => lock_page(lock),
            _ if locks.is_empty() => "nobody holds a lock\n".into(),
            _ => locks_table(&locks.into_values().collect::<Vec<_>>()),
        };
        // Past anstream for the cursor: without colours it would strip that too.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), CLEAR.as_bytes());
        print(&page);
    }
}

async fn as_lines(mut watch: Watching<'_>, json: bool) -> Outcome<u8> {
    let mut told: BTreeMap<LockName, Vec<String>> = BTreeMap::new();
    loop {
        let mut locks = match watch.next().await? {
            Ok(locks) => locks,
            Err(code) => return Ok(code),
        };
        for name in told.keys() {
            // A lock that nobody uses is forgotten by the store: it is free.
            locks.entry(name.clone()).or_insert_with(|| LockState::free(name.clone()));
        }
        let is_followed = |lock: &LockState| is_in_use(lock) || watch.args.name.is_some();
        // What was done once is no news for as long as its record is kept: only that it came to be.
        locks.retain(|name, lock| is_followed(lock) || told.contains_key(name));
        for (name, lock) in &locks {
            if told.get(name) != Some(&gist(lock)) {
                if json {
                    print_json(&ChangeJson { at: timestamp(Duration::ZERO), lock: lock.into() });
                } else {
                    print(&line(lock));
                }
            }
        }
        let followed = locks.into_iter().filter(|(_, lock)| is_followed(lock));
        told = followed.map(|(name, lock)| (name, gist(&lock))).collect();
    }
}

/// Looks again and again.
struct Watching<'a> {
    store: &'a Store,
    args: &'a Watch,
    events: &'a Events,
    format: LogFormat,
    heard: Heard,
    /// Those that cannot be read: each is told of once.
    unreadable: BTreeSet<LockName>,
}

/// What came of the last look.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heard {
    /// There was none yet.
    Never,
    Answer,
    Silence,
}

impl Watching<'_> {
    /// What is to be seen at the next look that is answered, or the exit code if a signal ends it. That the store went
    /// silent is told once, and so is that it is back. One that never answered is a failure.
    async fn next(&mut self) -> Outcome<Result<Seen, u8>> {
        loop {
            if self.heard != Heard::Never {
                if let Some(code) = self.until_ended(pause()).await.err() {
                    return Ok(Err(code));
                }
                end_without_reader();
            }
            let looked = match self.until_ended(look(self.store, self.args)).await {
                Ok(looked) => looked,
                Err(code) => return Ok(Err(code)),
            };
            match looked {
                Ok(ls::Listing { locks, unreadable }) => {
                    if self.heard == Heard::Silence {
                        self.tell("store back", &format!("store {} is back", self.store.locks.store()));
                    }
                    self.heard = Heard::Answer;
                    for (name, refusal) in unreadable {
                        let unreadable = ls::told_unreadable(self.store, &name, &refusal);
                        if self.unreadable.insert(name) {
                            unreadable.report(self.format);
                        }
                    }
                    return Ok(Ok(locks.into_iter().map(|lock| (lock.name.clone(), lock)).collect()));
                }
                Err(failure)
                    if self.heard != Heard::Never && failure.code == ExitCode::Unavailable.number() =>
                {
                    if self.heard == Heard::Answer {
                        self.tell("store silent", &format!("{}; watching on", failure.what()));
                    }
                    self.heard = Heard::Silence;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// What `work` answers, or the exit code if a signal comes first.
    async fn until_ended<T>(&self, work: impl Future<Output = T>) -> Result<T, u8> {
        tokio::select! {
            event = self.events.next() => Err(end_by(event.signal, event.is_from_terminal)),
            answer = work => Ok(answer),
        }
    }

    fn tell(&self, event: &str, what: &str) {
        let line = match self.format {
            LogFormat::Text => clean(&format!("tenure: warning: {what}")),
            LogFormat::Json => json!({ "level": "WARN", "message": what, "event": event }).to_string(),
        };
        let _ = note(&line);
    }
}

async fn look(store: &Store, args: &Watch) -> Outcome<ls::Listing> {
    match &args.name {
        Some(name) => {
            let lock = store.locks.inspect(name).await.map_err(told(store))?;
            Ok(ls::Listing { locks: vec![lock], unreadable: BTreeMap::new() })
        }
        None => ls::all(store, "").await,
    }
}

async fn pause() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let until = clock.now() + LOOK_EVERY;
    sleep_until(clock, until).await;
}

/// A lock that changed.
#[derive(Serialize)]
struct ChangeJson<'a> {
    /// When that was seen.
    at: String,
    #[serde(flatten)]
    lock: LockJson<'a>,
}

/// What of a lock is a change if it differs: who, not for how long.
fn gist(lock: &LockState) -> Vec<String> {
    let holders = lock.holders.iter().map(|holder| format!("{} {}", holder.fingerprint, holder.evicted));
    let waiters = lock.waiters.iter().map(|waiter| format!("waits {}", waiter.fingerprint));
    let done = lock.settled_for.map(|_| "done".to_string());
    holders.chain(waiters).chain(done).collect()
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
    if lock.settled_for.is_some() {
        line.push_str(", done");
    }
    if !lock.waiters.is_empty() {
        let _ = write!(line, ", {} waiting", lock.waiters.len());
    }
    line.push('\n');
    line
}
