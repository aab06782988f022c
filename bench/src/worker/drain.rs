//! Lines that are served once: this process's part of them. What it is told and says stands in `workers.rs`.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::BootInstant;
use tenure_core::clock::{Clock, SystemClock, sleep_until};
use tokio::io::{BufReader, Lines, Stdin};

use super::party::{Held, Locker};
use super::{TTL, give_back, next, one_turn, say, say_rows};
use crate::machine::now_nanos;
use crate::workers::Row;

const NAME: &str = "bench/one";

/// The part of a line that stands in this process.
pub(super) struct Line {
    pub(super) parties: usize,
    /// When the first of them comes, and how much later each of the others.
    pub(super) first: Duration,
    pub(super) step: Duration,
    /// How long they may need to come to stand, and to be served.
    pub(super) limit: Duration,
}

/// A lock in the hands of the party before all others.
struct Holding {
    asked: u64,
    granted: u64,
    held: Held,
}

pub(super) async fn run(
    locker: &Arc<Locker>,
    line: &Line,
    orders: &mut Lines<BufReader<Stdin>>,
) -> Result<(), String> {
    let mut holding = None;
    loop {
        match next(orders).await.as_deref() {
            Some("hold") => {
                let asked = now_nanos();
                let held = locker.acquire(NAME, TTL).await?;
                holding = Some(Holding { asked, granted: now_nanos(), held });
                say("held");
            }
            Some("wait") => {
                say_rows(&serve(locker, line, holding.take(), orders).await?);
                say("done");
            }
            _ => break,
        }
    }
    locker.close().await;
    Ok(())
}

/// Lets the parties come, gives back what is held when told to, and waits until all of them had their turn.
async fn serve(
    locker: &Arc<Locker>,
    line: &Line,
    holding: Option<Holding>,
    orders: &mut Lines<BufReader<Stdin>>,
) -> Result<Vec<Row>, String> {
    let began = SystemClock.now();
    let mut waiting = Vec::new();
    for party in 0..line.parties {
        let (locker, comes) = (locker.clone(), began + line.first + line.step * party as u32);
        waiting.push(tokio::spawn(async move {
            pause_until(comes).await;
            loop {
                if let Ok(row) = one_turn(&locker, party, NAME).await {
                    return row;
                }
            }
        }));
    }
    while locker.waiting() < line.parties as u64 {
        if SystemClock.now() > began + line.limit {
            return Err(format!("only {} of {} parties came to stand", locker.waiting(), line.parties));
        }
        pause_until(SystemClock.now() + Duration::from_millis(5)).await;
    }
    let is_over = SystemClock.now() + line.limit;
    say("standing");
    let mut rows = Vec::new();
    if let Some(Holding { asked, granted, held }) = holding {
        next(orders).await;
        rows.push(give_back(locker, line.parties, asked, granted, held).await?);
    }
    // From the end of the line, so that this task is not woken for every turn while they are being measured.
    while let Some(mut party) = waiting.pop() {
        tokio::select! {
            biased;
            row = &mut party => rows.push(row.map_err(|error| error.to_string())?),
            () = pause_until(is_over) => party.abort(),
        }
    }
    Ok(rows)
}

async fn pause_until(at: BootInstant) {
    sleep_until(Arc::new(SystemClock), at).await;
}
