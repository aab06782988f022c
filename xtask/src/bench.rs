//! `cargo xtask bench`: builds and runs the bench, which is a workspace of its own.

use crate::steps;

/// A build folder of its own, so that neither build waits for the other's lock.
const PLACE: [&str; 4] = ["--manifest-path", "bench/Cargo.toml", "--target-dir", "target/bench-build"];

/// Hands its arguments on: `run` (also if nothing is said) and `report`.
pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    steps::run("cargo", &[&["run", "--release"], &PLACE[..], &["--"], arguments].concat(), &[])
}

/// Lints it, and tests how it judges: nothing is measured.
pub(crate) fn test() -> Result<(), String> {
    let lint = [&["clippy", "--all-targets"], &PLACE[..], &["--", "-D", "warnings"]].concat();
    steps::run("cargo", &lint, &[])?;
    steps::run("cargo", &[&["test"], &PLACE[..]].concat(), &[])
}
