//! A lock that stays held while many wait for it: what waiting costs the server, in memory and in requests.

use crate::contender::Contender;
use crate::machine::now_nanos;
use crate::plan::Plan;
use crate::results::{Results, Standing};
use crate::server::Watched;
use crate::workers::Worker;

pub(super) fn run(plan: &Plan, server: &mut Watched, results: &mut Results) -> Result<(), String> {
    for contender in Contender::WAITING {
        server.reset()?;
        let connections_before = server.connections()?;
        let memory_before = server.memory()?;
        let job = ["wait", &plan.standing.to_string()];
        let mut worker = Worker::start(contender, &server.url(), &job)?;
        worker.tell("go")?;
        worker.expect("standing")?;
        // What a waiter needs includes its share of connections.
        let memory = server.memory()? - memory_before;
        let connections = server.connections()? - connections_before;
        let (begin, requests_before) = (now_nanos(), server.requests(contender)?);
        std::thread::sleep(plan.standing_span);
        let requests = server.requests(contender)? - requests_before;
        let span = (now_nanos() - begin) as f64 / 1e9;
        worker.end()?;
        let figures = Standing {
            contender,
            waiters: plan.standing,
            bytes_per_waiter: memory / plan.standing as f64,
            connections,
            commands_per_second: requests as f64 / span,
        };
        eprintln!(
            "standing, {} waiters: {:8} {:6.0} bytes each, {} connections, {:6.0} commands/s",
            figures.waiters,
            contender.name(),
            figures.bytes_per_waiter,
            figures.connections,
            figures.commands_per_second,
        );
        results.standing.push(figures);
    }
    Ok(())
}
