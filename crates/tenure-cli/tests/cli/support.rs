//! What the tests share: a store of their own, processes that do not outlive them, waiting for events.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::clock::{Clock, SystemClock};
use tenure_testkit::servers::{Kind, Server};

/// Long enough for a machine that is busy with something else.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A directory with a store in it, or one and a server.
pub(crate) struct Scene {
    directory: tempfile::TempDir,
    pub(crate) server: Option<Server>,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), server: None }
    }

    pub(crate) fn on_redis() -> Self {
        Self { server: Some(Server::start(Kind::Redis7)), ..Self::new() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn store(&self) -> String {
        match &self.server {
            Some(server) => server.url(),
            None => format!("file:{}", self.path("store").display()),
        }
    }

    /// `tenure` with these arguments, words separated by spaces, in the scene's directory.
    pub(crate) fn tenure(&self, arguments: &str) -> Command {
        self.tenure_with(&arguments.split_whitespace().collect::<Vec<_>>())
    }

    pub(crate) fn tenure_with(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TENURE_") {
                command.env_remove(name);
            }
        }
        command.args(arguments).env("TENURE_STORE", self.store()).current_dir(self.directory.path());
        command.stdin(Stdio::null());
        command
    }

    /// `tenure run` of a shell script.
    pub(crate) fn run(&self, options: &str, script: &str) -> Command {
        let mut command = self.tenure(&format!("run {options}"));
        command.args(["--", "sh", "-c", script]);
        command
    }

    /// `tenure once` of a shell script.
    pub(crate) fn once(&self, options: &str, script: &str) -> Command {
        let mut command = self.tenure(&format!("once {options}"));
        command.args(["--", "sh", "-c", script]);
        command
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits until the file has a whole line, and answers it.
    pub(crate) fn line_of(&self, name: &str) -> String {
        eventually(&format!("a line in {name}"), || {
            let text = self.read(name);
            text.ends_with('\n').then(|| text.trim_end().to_owned())
        })
    }

    pub(crate) fn pid_in(&self, name: &str) -> Pid {
        Pid::from_raw(self.line_of(name).parse().unwrap()).unwrap()
    }

    pub(crate) fn is_free(&self, lock: &str) -> bool {
        code(&self.tenure(&format!("check {lock}")).output().unwrap()) == 1
    }
}

/// A process that is killed with the test, whatever the test does.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for its end; answers the exit code, or 128 and the signal.
    pub(crate) fn ended(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let status = eventually("the end of a process", || self.0.try_wait().unwrap());
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
    }

    pub(crate) fn lines(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.0.stdout.take().unwrap())
    }

    /// The guardian of this wrapper.
    pub(crate) fn guardian(&self) -> Pid {
        eventually("the guardian", || {
            children(self.pid()).into_iter().find(|pid| {
                let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid())).unwrap_or_default();
                line.windows(10).any(|window| window == b"__guardian")
            })
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn children(of: Pid) -> Vec<Pid> {
    let pids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(Pid::from_raw).filter(|pid| parent(*pid) == Some(of)).collect()
}

pub(crate) fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    Pid::from_raw(stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(1)?.parse().ok()?)
}

/// A process that has ended and that nobody collects is dead: in a container, the first process may be no init.
pub(crate) fn is_alive(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| stat[stat.rfind(')')? + 1..].trim_start().chars().next())
        .is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Waits until `look` answers something.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = SystemClock.now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(SystemClock.now() < start + LONG, "waited {LONG:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn code(output: &Output) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap())
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub(crate) fn next_line(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

pub(crate) fn is_full() -> bool {
    std::env::var_os("TENURE_FULL").is_some()
}

/// Everything in a directory, by name.
pub(crate) fn listing(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .map(|entries| {
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}
