//! `cargo xtask bench`: builds and runs the bench, which is a workspace of its own.

use crate::steps;

/// Hands its arguments on: `run` (also if nothing is said) and `report`.
pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    // A build folder of its own, so that neither build waits for the other's lock.
    let build = [
        "run",
        "--release",
        "--manifest-path",
        "bench/Cargo.toml",
        "--target-dir",
        "target/bench-build",
        "--",
    ];
    steps::run("cargo", &[&build, arguments].concat(), &[])
}
