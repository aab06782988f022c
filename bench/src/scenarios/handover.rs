//! Hand-overs: parties that all want one lock, over and over, in one process and in several. One more than there are
//! waiters, for one of them holds it.

use std::collections::BTreeSet;

use super::parties::{self, Passed};
use super::quantile;
use crate::contender::Contender;
use crate::machine::now_nanos;
use crate::plan::Plan;
use crate::results::{Handover, Results};
use crate::server::Watched;

pub(super) fn run(plan: &Plan, server: &mut Watched, results: &mut Results) -> Result<(), String> {
    for processes in plan.processes.iter().copied() {
        for waiters in plan.waiters.iter().copied() {
            for round in 0..plan.handover_rounds {
                for contender in Contender::HANDED_OVER {
                    let figures = measure(plan, server, contender, waiters, processes, round)?;
                    eprintln!(
                        "hand-over, {waiters} waiters in {processes}, round {round}: {:13} {:6.0}/s of {:6.0} grants/s, \
                         gap p50 {:7.1} p99 {:8.1} µs, wait p99 {:7.1} ms, {:6.2} commands, {} served",
                        contender.name(),
                        figures.handovers_per_second,
                        figures.grants_per_second,
                        figures.gap_p50_us,
                        figures.gap_p99_us,
                        figures.wait_p99_ms,
                        figures.commands_per_grant,
                        figures.served,
                    );
                    results.handover.push(figures);
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
) -> Result<Handover, String> {
    server.reset()?;
    let seconds = (plan.warm_up + plan.handover_span).as_secs_f64() + 0.2;
    let mut workers = parties::start(contender, &server.url(), waiters + 1, processes, |share| {
        vec!["loop".into(), "one".into(), share.parties.to_string(), seconds.to_string()]
    })?;
    for worker in &mut workers {
        worker.tell("go")?;
    }
    std::thread::sleep(plan.warm_up);
    let (begin, requests_before) = (now_nanos(), server.requests(contender)?);
    std::thread::sleep(plan.handover_span);
    let (end, requests_after) = (now_nanos(), server.requests(contender)?);
    let mut rows = parties::grants(&mut workers)?;
    drop(workers);
    rows.retain(|row| (begin..end).contains(&row.granted));
    let Passed { mut gaps, overlaps } = parties::passed(&rows);
    gaps.sort_unstable();
    let mut waits: Vec<u64> = rows.iter().map(|row| row.granted - row.asked).collect();
    waits.sort_unstable();
    let span = (end - begin) as f64 / 1e9;
    Ok(Handover {
        contender,
        waiters,
        processes,
        round,
        grants_per_second: rows.len() as f64 / span,
        handovers_per_second: gaps.len() as f64 / span,
        gap_p50_us: quantile(&gaps, 0.5) / 1e3,
        gap_p99_us: quantile(&gaps, 0.99) / 1e3,
        wait_p50_ms: quantile(&waits, 0.5) / 1e6,
        wait_p99_ms: quantile(&waits, 0.99) / 1e6,
        served: rows.iter().map(|row| row.party).collect::<BTreeSet<_>>().len(),
        commands_per_grant: (requests_after - requests_before) as f64 / rows.len().max(1) as f64,
        overlaps,
        keys_left: server.keys_left()?,
    })
}
