//! A line that is served once: one party holds the lock, others come to wait for it, and when all of them stand it is
//! released. Each takes it once, holds it for no time, and leaves.

use std::time::Duration;

use super::parties::{self, Passed};
use super::quantile;
use crate::contender::Contender;
use crate::machine::now_nanos;
use crate::plan::Plan;
use crate::results::{Drain, Results};
use crate::server::Watched;
use crate::workers::{Row, Worker};

/// No measurement takes longer, whoever is still waiting.
const LIMIT: Duration = Duration::from_secs(60);
/// Parties come within this time, evenly. It is the period of the one peer that polls at a fixed one: its parties would
/// otherwise knock in step, and all but one of them in vain.
const ARRIVAL: Duration = Duration::from_millis(100);

pub(super) fn run(plan: &Plan, server: &mut Watched, results: &mut Results) -> Result<(), String> {
    for processes in plan.processes.iter().copied() {
        for waiters in plan.waiters.iter().copied() {
            for round in 0..plan.handover_rounds {
                for contender in Contender::WAITING {
                    let figures = measure(plan, server, contender, waiters, processes, round)?;
                    eprintln!(
                        "drain, {waiters} waiters in {processes}, round {round}: {:8} {:6.0}/s, {:8.2} ms each of {}, \
                         gap p50 {:7.1} p99 {:8.1} first {:8.1} µs, {} unserved, {} overlaps, {} keys left",
                        contender.name(),
                        figures.handovers_per_second,
                        figures.drain_ms,
                        figures.drains,
                        figures.gap_p50_us,
                        figures.gap_p99_us,
                        figures.first_gap_us,
                        figures.unserved,
                        figures.overlaps,
                        figures.keys_left,
                    );
                    results.drain.push(figures);
                }
            }
        }
    }
    Ok(())
}

fn measure(
    plan: &Plan,
    server: &mut Watched,
    contender: Contender,
    waiters: usize,
    processes: usize,
    round: usize,
) -> Result<Drain, String> {
    server.reset()?;
    let drains = plan.drains(waiters);
    let limit = LIMIT.as_secs_f64() / drains as f64;
    let apart = ARRIVAL.as_secs_f64() / waiters as f64;
    let mut workers = parties::start(contender, &server.url(), waiters, processes, |share| {
        let (first, step) = (apart * share.first as f64, apart * share.step as f64);
        vec![
            "drain".into(),
            share.parties.to_string(),
            first.to_string(),
            step.to_string(),
            limit.to_string(),
        ]
    })?;
    for worker in &mut workers {
        worker.tell("go")?;
    }
    let mut served: Vec<Served> = Vec::new();
    while served.len() < drains && served.iter().all(|line| line.grants == waiters) {
        let rows = serve(plan, &mut workers)?;
        served.extend(Served::of(&rows, waiters, limit));
    }
    for worker in workers {
        worker.end()?;
    }
    let mut gaps: Vec<u64> = served.iter().flat_map(|line| &line.passed.gaps).copied().collect();
    gaps.sort_unstable();
    let mut first_gaps: Vec<u64> =
        served.iter().filter_map(|line| line.passed.gaps.first()).copied().collect();
    first_gaps.sort_unstable();
    served.sort_by(|a, b| a.per_second().total_cmp(&b.per_second()));
    let middle = served.get(served.len() / 2).ok_or("the holder is not among the rows")?;
    Ok(Drain {
        contender,
        waiters,
        processes,
        round,
        drains: served.len(),
        handovers_per_second: middle.per_second(),
        drain_ms: middle.seconds * 1e3,
        gap_p50_us: quantile(&gaps, 0.5) / 1e3,
        gap_p99_us: quantile(&gaps, 0.99) / 1e3,
        first_gap_us: quantile(&first_gaps, 0.5) / 1e3,
        unserved: served.iter().map(|line| waiters - line.grants).sum(),
        overlaps: served.iter().map(|line| line.passed.overlaps).sum(),
        keys_left: server.keys_left()?,
    })
}

/// One line: the first process holds the lock, and all of them wait for it.
fn serve(plan: &Plan, workers: &mut [Worker]) -> Result<Vec<Row>, String> {
    workers[0].tell("hold")?;
    workers[0].expect("held")?;
    for worker in &mut *workers {
        worker.tell("wait")?;
    }
    for worker in &mut *workers {
        worker.expect("standing")?;
    }
    // Not always as long, or a poller with a fixed period would be met at the same point of it every time.
    let uneven = Duration::from_nanos(now_nanos() % ARRIVAL.as_nanos() as u64);
    std::thread::sleep(plan.settle + uneven);
    workers[0].tell("release")?;
    parties::grants(workers)
}

/// What became of one line.
struct Served {
    grants: usize,
    seconds: f64,
    passed: Passed,
}

impl Served {
    /// The first row is the holder's: it had the lock before anybody waited.
    fn of(rows: &[Row], waiters: usize, limit: f64) -> Option<Self> {
        let (holder, last) = (rows.first()?, rows.last()?);
        let grants = rows.len() - 1;
        let seconds = (last.released.saturating_sub(holder.released)) as f64 / 1e9;
        let seconds = if grants < waiters { limit } else { seconds };
        Some(Self { grants, seconds, passed: parties::passed(rows) })
    }

    fn per_second(&self) -> f64 {
        self.grants as f64 / self.seconds
    }
}
