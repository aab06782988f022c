//! What a held lock weighs in the server, and what stays of it.

use crate::contender::Contender;
use crate::plan::Plan;
use crate::results::{Memory, Results};
use crate::server::Watched;
use crate::workers::Worker;

pub(super) fn run(plan: &Plan, server: &mut Watched, results: &mut Results) -> Result<(), String> {
    for contender in [Contender::Tenure, Contender::Rslock, Contender::Plain] {
        server.reset()?;
        let job = ["hold", &plan.held.to_string(), "60"];
        let mut worker = Worker::start(contender, &server.url(), &job)?;
        // Connected, scripts loaded: from here on only locks.
        let before = server.memory()?;
        worker.tell("go")?;
        worker.expect("standing")?;
        let held = server.memory()?;
        worker.end()?;
        let released = server.memory()?;
        let each = |memory: f64| (memory - before).max(0.0) / plan.held as f64;
        let figures = Memory {
            contender,
            locks: plan.held,
            bytes_per_held: each(held),
            bytes_per_released: each(released),
            keys_left: server.keys_left()?,
        };
        eprintln!(
            "memory, {} locks: {:8} {:5.0} bytes held, {:5.0} after release, {} keys left",
            figures.locks,
            contender.name(),
            figures.bytes_per_held,
            figures.bytes_per_released,
            figures.keys_left,
        );
        results.memory.push(figures);
    }
    Ok(())
}
