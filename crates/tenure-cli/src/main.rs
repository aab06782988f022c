//! The command `tenure`: parses, runs one command, ends with its exit code.
//!
//! Owns nothing else: the command line is `cli.rs`, each command is a file in `commands/`, what a lock is stands in the
//! library.

#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "the command `tenure` is for Linux: its guardian needs subreapers, timers that count suspend, and /proc"
);

mod child_env;
mod claim_source;
mod cli;
mod closed_stdout;
mod commands;
mod exit_code;
mod failure;
mod guardian;
mod job;
mod json;
mod log;
mod output;
mod program;
mod readable;
mod record;
mod signals;
mod store;
mod tee;
mod terminal;
mod usage;
mod waiting_line;
mod wrapper;

use clap::Parser;

use cli::{Cli, Command};
use exit_code::ExitCode;
use failure::Outcome;

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == cli::GUARDIAN) {
        // The name of the program is what the parser expects first.
        let args = cli::Guardian::parse_from(std::iter::once(cli::GUARDIAN.into()).chain(arguments));
        std::process::exit(guardian::main(&args).number().into());
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            std::process::exit(refused(&error).into());
        }
    };
    log::start(cli.global.verbose, cli.global.log_format);
    let code = match dispatch(&cli) {
        Ok(code) => code,
        Err(failure) => {
            failure.report(cli.global.log_format);
            failure.code
        }
    };
    std::process::exit(code.into());
}

/// What the parser answers instead of a command: help, version, or that it makes no sense.
fn refused(error: &clap::Error) -> u8 {
    let is_help = error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if error.use_stderr() && !is_help {
        let failure = usage::failure(error);
        failure.report(usage::format(std::env::args_os()));
        return failure.code;
    }
    // Help and version go to stdout, which may be a pipe that nobody reads any more.
    let _ = error.print();
    if is_help { ExitCode::Usage.number() } else { ExitCode::Done.number() }
}

fn dispatch(cli: &Cli) -> Outcome<u8> {
    let global = &cli.global;
    let code = match &cli.command {
        Command::Run(args) => return commands::run::run(global, args),
        Command::Once(args) => return commands::once::run(global, args),
        Command::Elect(args) => return commands::elect::run(global, args),
        Command::Acquire(args) => commands::acquire::run(global, args),
        Command::Renew(args) => commands::renew::run(global, args),
        Command::Release(args) => commands::release::run(global, args),
        Command::Check(args) => commands::check::run(global, args),
        Command::Ls(args) => commands::ls::run(global, args),
        Command::Show(args) => commands::show::run(global, args),
        Command::Watch(args) => return commands::watch::run(global, args),
        Command::Evict(args) => commands::evict::run(global, args),
        Command::Doctor(args) => commands::doctor::run(global, args),
        Command::Bench(args) => commands::bench::run(global, args),
        Command::Completions(args) => commands::completions::run(args),
        Command::Man => commands::man::run(),
    };
    code.map(ExitCode::number)
}
