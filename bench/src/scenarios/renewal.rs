//! Many locks held by one process: what renewing them costs both sides, and a bystander.

use super::quantile;
use crate::contender::Contender;
use crate::machine::now_nanos;
use crate::plan::Plan;
use crate::probe::Probe;
use crate::results::{Renewal, Results};
use crate::server::Watched;
use crate::workers::Worker;

pub(super) fn run(plan: &Plan, server: &mut Watched, results: &mut Results) -> Result<(), String> {
    for round in 0..plan.renewal_rounds {
        for locks in plan.renewed.iter().copied() {
            let figures = measured(plan, server, round, locks)?;
            eprintln!("{figures:?}");
            results.renewal.push(figures);
        }
    }
    Ok(())
}

fn measured(plan: &Plan, server: &mut Watched, round: usize, locks: usize) -> Result<Renewal, String> {
    server.reset()?;
    let pid = server.pid()?;
    let idle = Probe::start(&server.url(), pid)?;
    std::thread::sleep(plan.renewal_span);
    let idle = idle.end()?;
    let ttl = plan.renewal_ttl().as_secs_f64();
    let job = ["hold", &locks.to_string(), &ttl.to_string()];
    let mut worker = Worker::start(Contender::Tenure, &server.url(), &job)?;
    worker.tell("go")?;
    worker.expect("standing")?;
    // Forgets the acquisitions, so that the longest command is a renewal.
    server.reset_counters()?;
    let before = worker.ask("status")?;
    let (client_before, server_before) = (worker.cpu_time()?, server.cpu_seconds()?);
    let begin = now_nanos();
    let probe = Probe::start(&server.url(), pid)?;
    std::thread::sleep(plan.renewal_span);
    let pings = probe.end()?;
    let span = (now_nanos() - begin) as f64 / 1e9;
    let client = worker.cpu_time()?.saturating_sub(client_before).as_secs_f64();
    let server_cpu = server.cpu_seconds()? - server_before;
    let after = worker.ask("status")?;
    let commands = server.requests(Contender::Tenure)?;
    let command_max_ms = server.script_call_max_ms()?;
    worker.end()?;
    let status = |values: &[u64], i: usize| values.get(i).copied().unwrap_or(0) as f64;
    Ok(Renewal {
        round,
        locks,
        ttl_s: ttl,
        seconds: span,
        renewals_per_second: (status(&after, 0) - status(&before, 0)) / span,
        commands_per_second: commands as f64 / span,
        client_cores: client / span,
        server_cores: server_cpu / span,
        ping_max_ms: quantile(&pings.took, 1.0) / 1e6,
        ping_p999_ms: quantile(&pings.took, 0.999) / 1e6,
        ping_max_with_processor_ms: pings.longest_with_processor_ms(),
        ping_max_idle_ms: quantile(&idle.took, 1.0) / 1e6,
        ping_max_idle_with_processor_ms: idle.longest_with_processor_ms(),
        command_max_ms,
        lost: status(&after, 1) as u64,
        keys_left: server.keys_left()?,
    })
}
