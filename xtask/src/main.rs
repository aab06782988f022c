//! `cargo xtask`: everything a contributor or CI runs, as one program without dependencies.
//!
//! `setup` installs by name what the tests need and is missing, where it may, and says exactly what is missing where it
//! may not. `test` does the set-up and then runs everything. Each step prints the command it runs, so that any of them
//! can be repeated by hand.

mod bench;
mod dist;
mod setup;
mod steps;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask COMMAND

  setup    install what the tests need
  test     setup, formatting, lints, docs, all tests
  campaign the long versions of the random tests, an hour or so; each prints its seed
  audit    licences, bans and sources of every dependency (installs cargo-deny on first use)
  dist     build one static binary for any Linux of this architecture
  bench    measure against other locks: `bench [run] [--smoke]`, then `bench report` for tables and plots
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["setup"] => setup::run(),
        ["test"] => setup::run().and_then(|()| steps::test()),
        ["campaign"] => setup::run().and_then(|()| steps::campaign()),
        ["audit"] => steps::audit(),
        ["dist"] => dist::run(),
        ["bench", ref arguments @ ..] => bench::run(arguments),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
