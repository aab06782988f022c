//! On a real pseudo-terminal: the command reads from it, Ctrl-C and Ctrl-Z do what they do everywhere.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::running::{holding, waiting};
use crate::support::{Running, Scene, eventually, is_alive};

/// A process that leads a session on a terminal of its own.
struct Terminal {
    keyboard: std::fs::File,
    screen: Arc<Mutex<String>>,
    /// What was expected and found so far.
    seen: usize,
    process: Running,
}

/// Starts the leader of a session on a terminal of its own; answers the other end of that. To close it is to hang up.
fn start_on_terminal(mut command: Command, columns: u16) -> (std::fs::File, Running) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave =
        rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&slave, size).unwrap();
    let end = || Stdio::from(slave.try_clone().unwrap());
    command.stdin(end()).stdout(end()).stderr(end());
    let take_terminal = move || {
        rustix::process::setsid()?;
        rustix::process::ioctl_tiocsctty(&slave)?;
        Ok(())
    };
    // SAFETY: two system calls, nothing else, between fork and exec.
    #[expect(unsafe_code, reason = "there is no safe way to give a child its controlling terminal")]
    unsafe {
        command.pre_exec(take_terminal);
    }
    let process = Running::start(&mut command);
    // The command still has the slave: without this, the screen would never end.
    drop(command);
    (std::fs::File::from(master), process)
}

impl Terminal {
    fn start(command: Command) -> Self {
        Self::of_width(command, 100)
    }

    fn of_width(command: Command, columns: u16) -> Self {
        let (keyboard, process) = start_on_terminal(command, columns);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut reader, writer) = (keyboard.try_clone().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                writer.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self { keyboard, screen, seen: 0, process }
    }

    fn shell(scene: &Scene) -> Self {
        let mut shell = Command::new("bash");
        shell.args(["--norc", "--noprofile", "-i"]).current_dir(scene.path(""));
        shell.env("TENURE_STORE", scene.store()).env("PS1", "READY ").env("TERM", "xterm");
        shell.env("T", env!("CARGO_BIN_EXE_tenure"));
        let mut terminal = Self::start(shell);
        terminal.expect("READY ");
        terminal
    }

    fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until `text` is on the screen, behind whatever was expected before.
    fn expect(&mut self, text: &str) -> String {
        let found = eventually_on(&self.screen, self.seen, text);
        let before = self.screen.lock().unwrap()[self.seen..found].to_owned();
        self.seen = found + text.len();
        before
    }
}

fn eventually_on(screen: &Arc<Mutex<String>>, seen: usize, text: &str) -> usize {
    let start = tenure::Clock::now(&tenure::clock::SystemClock);
    loop {
        if let Some(at) = screen.lock().unwrap()[seen..].find(text) {
            return seen + at;
        }
        let now = tenure::Clock::now(&tenure::clock::SystemClock);
        assert!(now < start + crate::support::LONG, "{text:?} never came: {:?}", screen.lock().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn cat_echoes_and_ends_at_the_end_of_input() {
    let scene = Scene::new();
    let mut terminal = Terminal::start(scene.tenure("run x -- cat"));
    terminal.type_in("over and out\n");
    terminal.expect("over and out\r\n");
    terminal.expect("over and out\r\n");
    terminal.type_in("\u{4}");
    assert_eq!(terminal.process.ended(), 0);
    assert!(scene.is_free("x"));
}

/// As under `nsenter` or a CI runner: session and process group began outside the pid namespace, so they have no number
/// inside it. The command is still a job of the terminal.
#[test]
fn a_session_from_outside_the_pid_namespace_is_no_obstacle() {
    let scene = Scene::new();
    let inside = |command: &Command| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        unshare.arg(command.get_program()).args(command.get_args());
        unshare.current_dir(scene.path("")).env("TENURE_STORE", scene.store());
        unshare
    };
    if !inside(&Command::new("true")).output().is_ok_and(|output| output.status.success()) {
        eprintln!("left out: this machine allows no user namespaces");
        return;
    }
    let ended = inside(&scene.run("x", "kill -TERM $$")).output().unwrap();
    assert_eq!(ended.status.code(), Some(143), "{ended:?}");
    let mut terminal = Terminal::start(inside(&scene.run("x", "read line; echo got $line; read line")));
    terminal.type_in("this\n");
    terminal.expect("got this\r\n");
    terminal.type_in("\u{3}");
    terminal.process.0.wait().unwrap();
    assert!(scene.is_free("x"));
}

#[test]
fn ctrl_c_ends_it_with_130() {
    let scene = Scene::new();
    let mut terminal = Terminal::start(scene.run("x", "echo go; exec cat"));
    terminal.expect("go\r\n");
    terminal.type_in("\u{3}");
    assert_eq!(terminal.process.0.wait().unwrap().code(), Some(130));
    assert!(scene.is_free("x"));
}

/// As `xterm -e`, `docker run -it` and `ssh -t` start it: the leader of the session, and the only one whom the kernel
/// tells that the terminal is gone. It used to keep that to itself, and the lock with it.
#[test]
fn a_terminal_that_hangs_up_ends_the_command() {
    let scene = Scene::new();
    for verb in ["run", "once", "elect"] {
        let mut command = scene.tenure(verb);
        command.args(["x", "--", "sh", "-c", "echo $$ > pid; while :; do sleep 0.05; done"]);
        let (terminal, mut process) = start_on_terminal(command, 80);
        let pid = scene.pid_in("pid");
        drop(terminal);
        assert_eq!(process.ended(), 129, "{verb}");
        assert!(!is_alive(pid) && scene.is_free("x"), "{verb}");
        std::fs::remove_file(scene.path("pid")).unwrap();
    }
}

/// Its output goes through a pipe, but it is a job of the terminal like any other.
#[test]
fn once_reads_from_the_terminal_and_is_undone_by_ctrl_c() {
    let scene = Scene::new();
    let open = |scene: &Scene| scene.tenure("once x --status").output().unwrap().status.code();
    let mut terminal = Terminal::start(scene.once("x", "echo go; exec cat"));
    terminal.expect("go\r\n");
    terminal.type_in("\u{3}");
    assert_eq!(terminal.process.0.wait().unwrap().code(), Some(130));
    assert_eq!(open(&scene), Some(1));
    let mut terminal = Terminal::start(scene.once("x", "read answer; echo you said $answer"));
    terminal.type_in("yes\n");
    terminal.expect("you said yes\r\n");
    assert_eq!(terminal.process.ended(), 0);
    assert_eq!(open(&scene), Some(0));
}

#[test]
fn ctrl_c_in_a_shell_ends_the_command_and_the_script_around_it() {
    let scene = Scene::new();
    let mut terminal = Terminal::shell(&scene);
    terminal.type_in("$T run x -- sh -c 'echo g\"\"o; exec cat'\n");
    terminal.expect("go\r\n");
    terminal.type_in("\u{3}");
    terminal.expect("READY ");
    // On a line of its own: an interactive shell drops the rest of a line whose command was interrupted.
    terminal.type_in("echo rc=$?\n");
    terminal.expect("rc=130");
    std::fs::write(scene.path("script"), "$T run x -- sh -c 'echo go; exec cat'\necho the script went on\n")
        .unwrap();
    terminal.type_in("bash ./script\n");
    terminal.expect("go\r\n");
    terminal.type_in("\u{3}");
    let before = terminal.expect("READY ");
    terminal.type_in("echo script=$?\n");
    terminal.expect("script=130");
    assert!(!before.contains("went on"), "{before}");
    assert!(scene.is_free("x"));
}

#[test]
fn a_command_that_handles_ctrl_c_gets_it_once() {
    let scene = Scene::new();
    let mut terminal = Terminal::start(scene.run(
        "x",
        "n=0; trap 'n=$((n+1)); echo int $n' INT; echo go; while ! test -e stop; do sleep 0.05; done; exit 4",
    ));
    terminal.expect("go\r\n");
    terminal.type_in("\u{3}");
    terminal.expect("int 1");
    std::fs::write(scene.path("stop"), "").unwrap();
    assert_eq!(terminal.process.ended(), 4);
    assert!(!terminal.screen.lock().unwrap().contains("int 2"));
}

#[test]
fn ctrl_z_stops_it_and_fg_continues_it() {
    let scene = Scene::new();
    let mut terminal = Terminal::shell(&scene);
    terminal.type_in("$T run x --ttl 1m -- sh -c 'echo g\"\"o; exec cat'\n");
    terminal.expect("go\r\n");
    terminal.type_in("one\n");
    terminal.expect("one\r\n");
    terminal.expect("one\r\n");
    terminal.type_in("\u{1a}");
    terminal.expect("Stopped");
    terminal.expect("READY ");
    assert!(!scene.is_free("x"));
    terminal.type_in("fg\n");
    terminal.expect("run x --ttl 1m");
    terminal.type_in("two\n");
    terminal.expect("two\r\n");
    terminal.expect("two\r\n");
    terminal.type_in("\u{4}");
    terminal.expect("READY ");
    assert!(scene.is_free("x"));
}

#[test]
fn ctrl_z_past_the_lease_ends_in_76() {
    let scene = Scene::new();
    let mut terminal = Terminal::shell(&scene);
    terminal.type_in("$T run x --ttl 1s -- sh -c 'echo g\"\"o; exec cat'\n");
    terminal.expect("go\r\n");
    terminal.type_in("one\n");
    terminal.expect("one\r\n");
    terminal.expect("one\r\n");
    terminal.type_in("\u{1a}");
    terminal.expect("Stopped");
    eventually("the end of the lease", || scene.is_free("x").then_some(()));
    terminal.type_in("fg; echo rc=$?\n");
    terminal.expect("was lost");
    terminal.expect("rc=76");
}

#[test]
fn a_killed_command_leaves_the_terminal_as_it_found_it() {
    let scene = Scene::new();
    let script = "stty -echo -icanon; echo go; while :; do sleep 0.05; done";
    let mut terminal = Terminal::start(scene.run("x --on-lost kill", script));
    terminal.expect("go");
    assert!(scene.tenure("evict x --force --reason test").status().unwrap().success());
    terminal.expect("was lost");
    assert_eq!(terminal.process.ended(), 76);
    let modes = rustix::termios::tcgetattr(&terminal.keyboard).unwrap().local_modes;
    assert!(modes.contains(rustix::termios::LocalModes::ECHO | rustix::termios::LocalModes::ICANON));
}

#[test]
fn in_the_background_it_stops_when_it_reads_and_fg_brings_it_back() {
    let scene = Scene::new();
    let mut terminal = Terminal::shell(&scene);
    terminal.type_in("$T run x --ttl 1m -- sh -c 'read line; echo got:$line' &\n");
    terminal.expect("READY ");
    // The shell tells of it before its next prompt.
    let stopped = |screen: &str| screen.contains("Stopped");
    eventually("the stop", || {
        terminal.type_in("\n");
        std::thread::sleep(std::time::Duration::from_millis(50));
        stopped(&terminal.screen.lock().unwrap()).then_some(())
    });
    terminal.type_in("fg\n");
    terminal.type_in("word\n");
    terminal.expect("got:word");
}

#[test]
fn while_it_waits_one_line_tells_for_whom_and_then_it_is_gone() {
    let scene = Scene::new();
    let holder = holding(&scene, "x --reason backup");
    let mut command = scene.run("x --wait 1m", "echo mine");
    command.env("NO_COLOR", "1");
    let mut terminal = Terminal::start(command);
    waiting(&scene, "x", 1);
    terminal.expect("waiting for x, held by ");
    let line = terminal.expect("giving up in ");
    assert!(line.contains("(backup), place 1 of 1 in line"), "{line:?}");
    drop(holder);
    let rest = terminal.expect("mine\r\n");
    assert!(rest.ends_with("\r\u{1b}[K"), "{rest:?}");
    assert!(!terminal.screen.lock().unwrap().contains("\u{1b}[2m"));
    assert_eq!(terminal.process.ended(), 0);
}

#[test]
fn a_terminal_that_does_not_know_its_width_is_taken_for_a_usual_one() {
    let scene = Scene::new();
    let _holder = holding(&scene, "x");
    let mut terminal = Terminal::of_width(scene.run("x --wait 1m", "true"), 0);
    terminal.expect("waiting for x, held by ");
    terminal.type_in("\u{3}");
    assert_eq!(terminal.process.ended(), 130);
}

#[test]
fn ctrl_c_while_waiting_gives_up_the_place() {
    let scene = Scene::new();
    let _holder = holding(&scene, "x");
    let mut terminal = Terminal::start(scene.run("x", "true"));
    waiting(&scene, "x", 1);
    terminal.type_in("\u{3}");
    assert_eq!(terminal.process.ended(), 130);
    waiting(&scene, "x", 0);
}

#[test]
fn colours_are_for_terminals_and_not_against_the_users_wish() {
    let scene = Scene::new();
    let _holder = holding(&scene, "x");
    let mut terminal = Terminal::start(scene.tenure("show x"));
    terminal.expect("\u{1b}[");
    terminal.expect("held");
    let mut command = scene.tenure("show x");
    command.env("NO_COLOR", "1");
    let mut terminal = Terminal::start(command);
    terminal.expect("HELD BY");
    assert!(!terminal.screen.lock().unwrap().contains('\u{1b}'));
}

#[test]
fn watch_refreshes_in_place() {
    let scene = Scene::new();
    let mut terminal = Terminal::start(scene.tenure("watch"));
    terminal.expect("nobody holds a lock");
    let _holder = holding(&scene, "x");
    terminal.expect("\u{1b}[H\u{1b}[J");
    terminal.expect("exclusive");
    terminal.type_in("\u{3}");
    assert_eq!(terminal.process.ended(), 130);
}
