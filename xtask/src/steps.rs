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

/// Tests that the test run has in short, at full length: what to set, and which.
const CAMPAIGN: &[(&str, &str, &[&str])] = &[
    ("TENURE_HISTORIES", "10000", &["-p", "tenure-redis", "--lib", "the_scripts_and_the_machine_agree"]),
    ("TENURE_HISTORIES", "20000", &["-p", "tenure-redis", "--lib", "simulation"]),
    ("TENURE_BELIEFS", "120", &["-p", "tenure-redis", "--test", "beliefs"]),
    ("TENURE_HANDED_ON", "100", &["-p", "tenure-redis", "--test", "handed_on"]),
    ("TENURE_KILLS", "1000", &["-p", "tenure-embedded", "--test", "death"]),
    ("TENURE_FULL", "1", &["-p", "tenure-embedded", "--test", "sets"]),
    ("TENURE_FULL", "1", &["-p", "tenure-cli", "--test", "cli"]),
    ("PROPTEST_CASES", "20000", &["-p", "tenure-core", "--test", "queue"]),
];

/// The long versions of the random tests, one after the other.
pub(crate) fn campaign() -> Result<(), String> {
    CAMPAIGN.iter().try_for_each(|(setting, value, which)| {
        let test = [&["test", "--release", "--all-features"], *which, &["--", "--nocapture"]].concat();
        run("cargo", &test, &[(setting, value)])
    })
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
