//! The steps of `test` and `audit`, in the order in which they fail fastest.

use std::process::Command;

use crate::bench;

/// Runs one command in the workspace root and prints it first.
pub(crate) fn run(program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    let shown: Vec<String> = environment.iter().map(|(name, value)| format!("{name}={value:?} ")).collect();
    eprintln!("$ {}{program} {}", shown.concat(), arguments.join(" "));
    let status = Command::new(program)
        .args(arguments)
        .envs(environment.iter().copied())
        .status()
        .map_err(|error| format!("{program} could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program} {} failed: {status}", arguments.join(" "))) }
}

fn cargo(arguments: &[&str]) -> Result<(), String> {
    run("cargo", arguments, &[])
}

/// What a user may compile besides everything: each must stand alone, without what another crate switches on.
const FEATURE_SETS: &[(&str, &str)] = &[
    ("tenure", ""),
    ("tenure", "embedded"),
    ("tenure", "redis"),
    ("tenure-cli", "embedded"),
    ("tenure-redis", ""),
    ("tenure-tower", ""),
];

/// Formatting, lints, documentation, tests.
pub(crate) fn test() -> Result<(), String> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"])?;
    for (package, features) in FEATURE_SETS {
        let set = ["clippy", "--package", package, "--no-default-features", "--features", features];
        cargo(&[&set[..], &["--", "-D", "warnings"]].concat())?;
    }
    run("cargo", &["doc", "--workspace", "--no-deps", "--all-features"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    // To the end: one run tells everything that is wrong. Most tests wait for something most of the time.
    let test = ["test", "--workspace", "--all-features", "--no-fail-fast"];
    let tested = run("cargo", &test, &[("RUST_TEST_THREADS", "4")]);
    tested.and(bench::test())
}

/// Licences, bans and sources.
pub(crate) fn audit() -> Result<(), String> {
    let is_installed =
        Command::new("cargo").args(["deny", "--version"]).output().is_ok_and(|o| o.status.success());
    if !is_installed {
        cargo(&["install", "--locked", "cargo-deny"])?;
    }
    cargo(&["deny", "--all-features", "check", "licenses", "bans", "sources"])
}
