//! One process of a contender in Rust: connects, says `ready`, does its job. The lines are told in `workers.rs`.

mod drain;
mod party;

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::BootInstant;
use tenure_core::clock::{Clock, SystemClock, sleep_until};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin, stdin};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::contender::Contender;
use crate::machine::now_nanos;
use crate::workers::Row;
use party::{Held, Locker};

/// How many locks are taken at once where many are to be held.
const TAKEN_AT_ONCE: usize = 512;
/// The ttl where nothing depends on it.
const TTL: Duration = Duration::from_secs(30);

pub(crate) fn run(job: &[&str]) -> Result<(), String> {
    // As `#[tokio::main]` makes it: what most programs run on.
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let [contender, url, job @ ..] = job else { return Err("a worker of whom, and where?".into()) };
        let contender = Contender::named(contender).ok_or("an unknown contender")?;
        let locker = Locker::connect(contender, url).await?;
        let mut orders = BufReader::new(stdin()).lines();
        say("ready");
        next(&mut orders).await;
        match job {
            ["loop", names, tasks, seconds] => {
                let seconds: f64 = number(seconds)?;
                round(&locker, *names == "own", number(tasks)?, Duration::from_secs_f64(seconds)).await;
                say("done");
                next(&mut orders).await;
            }
            ["hold", count, seconds] => {
                let seconds: f64 = number(seconds)?;
                hold(&locker, number(count)?, Duration::from_secs_f64(seconds), &mut orders).await?;
                say("done");
            }
            ["drain", parties, first, step, limit] => {
                let line = drain::Line {
                    parties: number(parties)?,
                    first: Duration::from_secs_f64(number(first)?),
                    step: Duration::from_secs_f64(number(step)?),
                    limit: Duration::from_secs_f64(number(limit)?),
                };
                drain::run(&locker, &line, &mut orders).await?;
                say("done");
            }
            ["wait", tasks] => {
                wait(&locker, number(tasks)?, &mut orders).await?;
                say("done");
            }
            _ => return Err(format!("an unknown job: {job:?}")),
        }
        Ok(())
    })
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

fn say(line: &str) {
    // Nobody reads any more: the bench was interrupted, and so are we.
    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(1);
    }
}

async fn next(orders: &mut Lines<BufReader<Stdin>>) -> Option<String> {
    orders.next_line().await.ok().flatten()
}

/// Every task takes and gives back a lock over and over: one of its own, or all the same.
async fn round(locker: &Arc<Locker>, own_names: bool, tasks: usize, span: Duration) {
    let until = SystemClock.now() + span;
    // A waiting party may be cut off in the middle; one with its own name ends by itself.
    let cut_off = if own_names { until + Duration::from_secs(1) } else { until };
    let rows: Vec<Arc<Mutex<Vec<Row>>>> = (0..tasks).map(|_| Arc::default()).collect();
    let mut running = JoinSet::new();
    for (party, rows) in rows.iter().cloned().enumerate() {
        let locker = locker.clone();
        let name = if own_names { format!("bench/{party}") } else { "bench/one".to_owned() };
        running.spawn(async move {
            tokio::select! {
                biased;
                () = one_party(&locker, party, &name, until, &rows) => {}
                () = sleep_until(Arc::new(SystemClock), cut_off) => {}
            }
        });
    }
    while running.join_next().await.is_some() {}
    locker.close().await;
    for rows in &rows {
        say_rows(&rows.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn say_rows(rows: &[Row]) {
    let mut text = String::new();
    for Row { party, asked, granted, released, freed } in rows {
        let _ = writeln!(text, "{party} {asked} {granted} {released} {freed}");
    }
    let _ = std::io::stdout().write_all(text.as_bytes());
}

async fn one_party(locker: &Locker, party: usize, name: &str, until: BootInstant, rows: &Mutex<Vec<Row>>) {
    while SystemClock.now() < until {
        if let Ok(row) = one_turn(locker, party, name).await {
            rows.lock().unwrap_or_else(PoisonError::into_inner).push(row);
        }
    }
}

/// Takes the lock, holds it for no time, and gives it back.
async fn one_turn(locker: &Locker, party: usize, name: &str) -> Result<Row, String> {
    let asked = now_nanos();
    let held = locker.acquire(name, TTL).await?;
    let granted = now_nanos();
    give_back(locker, party, asked, granted, held).await
}

async fn give_back(
    locker: &Locker,
    party: usize,
    asked: u64,
    granted: u64,
    held: Held,
) -> Result<Row, String> {
    let released = now_nanos();
    locker.release(held).await?;
    Ok(Row { party, asked, granted, released, freed: now_nanos() })
}

/// Takes many locks and keeps them until told to end; `status` asks how many were renewed and lost.
async fn hold(
    locker: &Arc<Locker>,
    count: usize,
    ttl: Duration,
    orders: &mut Lines<BufReader<Stdin>>,
) -> Result<(), String> {
    let gate = Arc::new(Semaphore::new(TAKEN_AT_ONCE));
    let mut taking = JoinSet::new();
    for i in 0..count {
        let (locker, gate) = (locker.clone(), gate.clone());
        taking.spawn(async move {
            let _place = gate.acquire().await;
            locker.acquire(&format!("bench/held/{i:06}"), ttl).await
        });
    }
    let mut held: Vec<Held> = Vec::with_capacity(count);
    while let Some(taken) = taking.join_next().await {
        held.push(taken.map_err(|error| error.to_string())??);
    }
    say("standing");
    while next(orders).await.as_deref() == Some("status") {
        let (renewed, lost) = locker.renewed_and_lost();
        say(&format!("{renewed} {lost}"));
    }
    let mut releasing = JoinSet::new();
    for held in held {
        let (locker, gate) = (locker.clone(), gate.clone());
        releasing.spawn(async move {
            let _place = gate.acquire().await;
            let _ = locker.release(held).await;
        });
    }
    while releasing.join_next().await.is_some() {}
    locker.close().await;
    Ok(())
}

/// Holds one lock, with so many parties waiting for it, until told to end.
async fn wait(
    locker: &Arc<Locker>,
    tasks: usize,
    orders: &mut Lines<BufReader<Stdin>>,
) -> Result<(), String> {
    let held = locker.acquire("bench/one", TTL).await?;
    let mut waiting = JoinSet::new();
    for _ in 0..tasks {
        let locker = locker.clone();
        waiting.spawn(async move { locker.acquire("bench/one", TTL).await.is_ok() });
    }
    sleep_until(Arc::new(SystemClock), SystemClock.now() + Duration::from_millis(1500)).await;
    say("standing");
    next(orders).await;
    waiting.shutdown().await;
    let _ = locker.release(held).await;
    locker.close().await;
    Ok(())
}
