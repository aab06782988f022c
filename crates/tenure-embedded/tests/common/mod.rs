//! Processes for tests: the test program starts itself again in a role, and the two talk over pipes, a line at a time.

#![allow(dead_code, reason = "each test program uses its part")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tenure_core::Locks;
use tenure_core::clock::{Clock as _, SystemClock};
use tenure_embedded::{Config, Embedded};

const ROLE: &str = "TENURE_TEST_ROLE";
const DIRECTORY: &str = "TENURE_TEST_DIRECTORY";

/// The role that this process was started in, and the directory of the store.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(DIRECTORY)?.into()))
}

/// A place for a store, with nothing in it.
pub(crate) fn scratch() -> (TempDir, PathBuf) {
    let outer = tempfile::tempdir().unwrap();
    let directory = outer.path().join("locks");
    (outer, directory)
}

pub(crate) fn open(directory: &Path) -> Locks {
    Locks::new(Embedded::open(Config::at(directory)).unwrap())
}

/// Another process.
pub(crate) struct Actor {
    pub(crate) child: Child,
    out: BufReader<ChildStdout>,
}

impl Actor {
    /// Starts this test program again, in `role`: its test `role_play` takes it from there.
    pub(crate) fn start(role: &str, directory: &Path) -> Self {
        Self::start_with(Command::new(std::env::current_exe().unwrap()), role, directory)
    }

    /// As [`start`](Self::start), with a command in front.
    pub(crate) fn start_with(mut command: Command, role: &str, directory: &Path) -> Self {
        command
            .args(["--exact", "role_play", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(DIRECTORY, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// What it says next, past the chatter of the test harness.
    pub(crate) fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.out.read_line(&mut line).unwrap(), 0, "the other process ended without a word");
            // The harness writes the name of the test before our first word, in the same line.
            if let Some((_, said)) = line.split_once("> ") {
                return said.trim().to_string();
            }
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Kills it as nobody can survive, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says something to who started this process.
pub(crate) fn say(what: impl std::fmt::Display) {
    println!("> {what}");
}

/// Waits for a line from who started this process.
pub(crate) fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    line.trim().to_string()
}

/// Runs `work` on a runtime of its own.
pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// How long `work` takes, and what comes out.
pub(crate) async fn timed<T>(work: impl Future<Output = T>) -> (Duration, T) {
    let start = SystemClock.now();
    let out = work.await;
    (SystemClock.now().saturating_since(start), out)
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
