//! Measures tenure on Redis against its peers, in one run on one machine, and writes what came out.
//!
//! * `run [--smoke] [--only SCENARIO] [--rounds N] [--out FILE]`: every scenario, rounds interleaved, raw figures as JSON
//! * `report [--from FILE]`: tables, plots and verdict, recomputed from that JSON alone
//! * `worker …`: one process of a contender; started by `run`
//!
//! `cargo xtask bench` calls it.

mod contender;
mod machine;
mod peers;
mod plan;
mod probe;
mod report;
mod results;
mod scenarios;
mod server;
mod worker;
mod workers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str =
    "usage: cargo xtask bench [run [--smoke] [--only SCENARIO]... [--rounds N] [--out FILE]] | report [--from FILE]

scenarios: uncontended, handover, drain, standing, memory, renewal
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["worker", job @ ..] => worker::run(job),
        ["report"] => report::run(&latest()),
        ["report", "--from", file] => report::run(Path::new(file)),
        ["run", options @ ..] => run(options),
        options => run(options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("bench: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &[&str]) -> Result<(), String> {
    let (mut smoke, mut only, mut rounds, mut out) = (false, Vec::new(), None, None);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match (*option, options.as_slice().first()) {
            ("--smoke", _) => smoke = true,
            ("--only", Some(_)) => only.extend(options.next().map(|name| (*name).to_owned())),
            ("--rounds", Some(number)) => {
                rounds = Some(number.parse().map_err(|_| format!("--rounds {number}: give a number"))?);
                options.next();
            }
            ("--out", Some(_)) => out = options.next().map(PathBuf::from),
            _ => return Err(format!("{option} is not understood\n{USAGE}")),
        }
    }
    // A smoke run proves that the bench works; its figures mean nothing and must not replace real ones.
    let out = out.unwrap_or_else(|| if smoke { build_folder().join("smoke.json") } else { latest() });
    let mut plan = plan::Plan::new(smoke);
    if let Some(rounds) = rounds {
        (plan.uncontended_rounds, plan.handover_rounds) = (rounds, rounds);
    }
    let results = scenarios::run(&plan, &only)?;
    let json = serde_json::to_string_pretty(&results).map_err(|error| error.to_string())?;
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    }
    std::fs::write(&out, json + "\n").map_err(|error| format!("{}: {error}", out.display()))?;
    eprintln!("raw figures: {}", out.display());
    print!("{}", report::verdict::table(&results));
    Ok(())
}

/// The workspace that is measured.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Where peers are installed, and nothing that is committed.
fn build_folder() -> PathBuf {
    root().join("target/bench")
}

fn latest() -> PathBuf {
    root().join("bench/results/latest.json")
}
