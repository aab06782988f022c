//! `tenure completions`: what a shell needs to complete this command.

use clap::CommandFactory;

use crate::cli::{Cli, Completions};
use crate::exit_code::ExitCode;
use crate::failure::Outcome;
use crate::output::print;

pub(crate) fn run(args: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tenure", &mut script);
    print(&String::from_utf8_lossy(&script));
    Ok(ExitCode::Done)
}
