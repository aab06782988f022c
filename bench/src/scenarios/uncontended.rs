//! Acquire and release without contention: every task has a name of its own.

use super::quantile;
use crate::contender::Contender;
use crate::plan::Plan;
use crate::results::{Results, Uncontended};
use crate::server::Watched;
use crate::workers::Worker;

pub(super) fn run(plan: &Plan, server: &mut Watched, results: &mut Results) -> Result<(), String> {
    for tasks in plan.tasks.iter().copied() {
        for round in 0..plan.uncontended_rounds {
            for contender in Contender::UNCONTENDED {
                let figures = measure(plan, server, contender, tasks, round)?;
                eprintln!(
                    "uncontended, {tasks} tasks, round {round}: {:8} {:8.0} pairs/s, p50 {:6.1} µs, p99 {:6.1} µs, \
                     CPU per pair {:5.1} + {:5.1} µs",
                    contender.name(),
                    figures.pairs_per_second,
                    figures.p50_us,
                    figures.p99_us,
                    figures.client_cpu_us_per_pair,
                    figures.server_cpu_us_per_pair,
                );
                results.uncontended.push(figures);
            }
        }
    }
    Ok(())
}

fn measure(
    plan: &Plan,
    server: &mut Watched,
    contender: Contender,
    tasks: usize,
    round: usize,
) -> Result<Uncontended, String> {
    server.reset()?;
    let seconds = plan.uncontended_span.as_secs_f64().to_string();
    let job = ["loop", "own", &tasks.to_string(), &seconds];
    let mut worker = Worker::start(contender, &server.url(), &job)?;
    let (client_before, server_before) = (worker.cpu_time()?, server.cpu_seconds()?);
    let requests_before = server.requests(contender)?;
    worker.tell("go")?;
    // Read while it is at it, so that it never waits for us; it prints only when it is done.
    let rows = worker.rows()?;
    let requests = server.requests(contender)? - requests_before;
    let server_cpu = server.cpu_seconds()? - server_before;
    let client_cpu = worker.cpu_time()?.saturating_sub(client_before).as_secs_f64();
    let mut took: Vec<u64> = rows.iter().map(|row| row.freed - row.asked).collect();
    took.sort_unstable();
    let first = rows.iter().map(|row| row.asked).min().unwrap_or(0);
    let last = rows.iter().map(|row| row.freed).max().unwrap_or(1);
    let pairs = rows.len().max(1) as f64;
    Ok(Uncontended {
        contender,
        tasks,
        round,
        pairs_per_second: pairs / ((last - first) as f64 / 1e9),
        p50_us: quantile(&took, 0.5) / 1e3,
        p99_us: quantile(&took, 0.99) / 1e3,
        client_cpu_us_per_pair: client_cpu * 1e6 / pairs,
        server_cpu_us_per_pair: server_cpu * 1e6 / pairs,
        commands_per_pair: requests as f64 / pairs,
        keys_left: server.keys_left()?,
    })
}
