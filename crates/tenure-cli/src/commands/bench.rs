//! `tenure bench`: how fast this store is from this machine, in a few seconds, on names that nobody else uses.
//!
//! Measures one process. What it takes it gives back; if it is killed, what is left expires within seconds.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tenure::clock::SystemClock;
use tenure::{BootInstant, Clock, Locks};
use tokio::task::JoinSet;

use super::{GIVE_BACK_WITHIN, block_on, told};
use crate::cli::{Bench, Global};
use crate::exit_code::ExitCode;
use crate::failure::{Outcome, internal};
use crate::output::{print, print_json};
use crate::store::Store;

/// What an interrupted bench leaves behind is gone after this.
const TTL: Duration = Duration::from_secs(10);

pub(crate) fn run(global: &Global, args: &Bench) -> Outcome {
    block_on(async {
        let store = Store::open(global).await?;
        let one = own_locks(&store, 1, args.span).await?;
        let many = own_locks(&store, args.tasks, args.span).await?;
        let handovers = one_lock(&store, args.waiters, args.span).await?;
        store.close(GIVE_BACK_WITHIN).await;
        if global.json {
            print_json(&json!({
                "store": store.locks.store(),
                "acquire_release": [one.json("tasks"), many.json("tasks")],
                "hand_over": handovers.json("waiters"),
            }));
        } else {
            print(&table(&[
                ("acquire+release", &one),
                ("acquire+release", &many),
                ("hand-over", &handovers),
            ]));
        }
        Ok(ExitCode::Done)
    })
}

/// One measurement.
struct Figures {
    parties: usize,
    per_second: f64,
    p50: Duration,
    p99: Duration,
}

impl Figures {
    fn new(parties: usize, mut took: Vec<Duration>, within: Duration) -> Self {
        took.sort_unstable();
        let share = |q: f64| {
            let rank = (took.len() as f64 * q).ceil().max(1.0) as usize - 1;
            took.get(rank).copied().unwrap_or_default()
        };
        let per_second = took.len() as f64 / within.as_secs_f64().max(1e-9);
        Self { parties, per_second, p50: share(0.5), p99: share(0.99) }
    }

    fn json(&self, parties: &str) -> Value {
        let micros = |duration: Duration| (duration.as_nanos() as f64 / 100.0).round() / 10.0;
        json!({
            parties: self.parties,
            "per_second": self.per_second.round(),
            "p50_us": micros(self.p50),
            "p99_us": micros(self.p99),
        })
    }
}

fn table(rows: &[(&str, &Figures)]) -> String {
    let mut text =
        format!("{:<16} {:>7} {:>11} {:>9} {:>9}\n", "WHAT", "PARTIES", "PER SECOND", "P50", "P99");
    for (what, Figures { parties, per_second, p50, p99 }) in rows {
        let (p50, p99) = (said(*p50), said(*p99));
        let _ = writeln!(text, "{what:<16} {parties:>7} {per_second:>11.0} {p50:>9} {p99:>9}");
    }
    text
}

/// A short time, to three digits or so.
fn said(duration: Duration) -> String {
    match duration.as_nanos() as f64 / 1000.0 {
        micros if micros < 1000.0 => format!("{micros:.1} µs"),
        micros if micros < 1e6 => format!("{:.2} ms", micros / 1e3),
        micros => format!("{:.2} s", micros / 1e6),
    }
}

/// A name that no other bench uses at the same time.
fn fresh(what: &str) -> String {
    format!("tenure-bench/{}-{}/{what}", std::process::id(), SystemClock.unix_micros())
}

/// So many tasks, each taking and giving back a lock of its own. A latency is that of both together.
async fn own_locks(store: &Store, tasks: usize, span: Duration) -> Outcome<Figures> {
    let name = fresh("own");
    let start = SystemClock.now();
    let mut running = JoinSet::new();
    for i in 0..tasks {
        running.spawn(one_task(store.locks.clone(), format!("{name}/{i}"), start + span));
    }
    let took = all(store, running).await?;
    Ok(Figures::new(tasks, took, SystemClock.now().saturating_since(start)))
}

async fn one_task(locks: Locks, name: String, until: BootInstant) -> tenure::Result<Vec<Duration>> {
    let mut took = Vec::new();
    loop {
        let asked = SystemClock.now();
        if asked >= until {
            return Ok(took);
        }
        locks.lock(&name).ttl(TTL).acquire().await?.release().await?;
        took.push(SystemClock.now().saturating_since(asked));
    }
}

/// So many waiters that all want the same lock. A latency is from the call of release to the grant of the next.
async fn one_lock(store: &Store, waiters: usize, span: Duration) -> Outcome<Figures> {
    let name = fresh("one");
    let start = SystemClock.now();
    let last_released = Arc::new(AtomicU64::new(0));
    let mut running = JoinSet::new();
    for _ in 0..waiters {
        running.spawn(one_waiter(store.locks.clone(), name.clone(), start + span, last_released.clone()));
    }
    let took = all(store, running).await?;
    Ok(Figures::new(waiters, took, SystemClock.now().saturating_since(start)))
}

async fn one_waiter(
    locks: Locks,
    name: String,
    until: BootInstant,
    last_released: Arc<AtomicU64>,
) -> tenure::Result<Vec<Duration>> {
    let mut took = Vec::new();
    while SystemClock.now() < until {
        let guard = locks.lock(&name).ttl(TTL).acquire().await?;
        let granted = SystemClock.now();
        // Written only under the lock, so it is the release before this grant.
        let released = last_released.swap(SystemClock.now().as_nanos(), Ordering::Relaxed);
        if released > 0 {
            took.push(granted.saturating_since(BootInstant::from_nanos(released)));
        }
        guard.release().await?;
    }
    Ok(took)
}

async fn all(store: &Store, mut running: JoinSet<tenure::Result<Vec<Duration>>>) -> Outcome<Vec<Duration>> {
    let mut took = Vec::new();
    while let Some(ended) = running.join_next().await {
        let ended = ended.map_err(|error| internal("run a task")(error.into()))?;
        took.extend(ended.map_err(told(store))?);
    }
    Ok(took)
}
