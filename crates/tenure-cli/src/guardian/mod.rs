//! The guardian: a process of its own between `run` and the command, so that the command never outlives its lease.
//!
//! It is parent and subreaper of the command, knows until when the lease is valid, and ends the command and all its
//! descendants before that, from a timer that counts suspend: whether the wrapper is alive, stopped or dead, and
//! whether the store answers or not. It also has the liveness of the claim, so that the lock of a killed wrapper
//! becomes free only after the command is gone. It knows nothing of stores and takes no decision but this one.
//! Why it is built so: `docs/decisions/0003-a-guardian-between-run-and-the-command.md`.

mod deadline;
mod spawn;
pub(crate) mod tree;
pub(crate) mod wire;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, WaitOptions, getpid, wait};
use tenure::clock::{Clock, SystemClock};

use crate::cli::{self, OnLost};
use crate::exit_code::ExitCode;
use deadline::{Deadline, Due};
use wire::{How, Order, Report};

/// Everything that ends or stops a process by default and is meant for the command or for the wrapper: a `kill` of the
/// whole service, or the terminal's. The guardian goes when the command is gone.
const DEAF_TO: [Signal; 11] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGPIPE,
    Signal::SIGCHLD,
];

/// Is the guardian, to the end.
pub(crate) fn main(args: &cli::Guardian) -> ExitCode {
    match Guardian::set_up(args).and_then(Guardian::watch) {
        Ok(()) => ExitCode::Done,
        // The wrapper sees the connection end without a report, and says so. Whatever runs is killed: by the kernel
        // the command itself, by the wrapper the rest.
        Err(_) => ExitCode::Internal,
    }
}

struct Guardian<'a> {
    args: &'a cli::Guardian,
    wrapper: OwnedFd,
    children: SignalFd,
    deadline: Deadline,
    /// The command's standard input: the guardian's own is the connection to the wrapper.
    stdin: Option<OwnedFd>,
    /// Kept open, not used: the claim lives as long as this does.
    _liveness: Option<OwnedFd>,
    command: Option<Pid>,
    /// Whether the end of the command is our doing.
    is_ending: bool,
    is_wrapper_gone: bool,
}

enum Obeyed {
    Order,
    NoOrder,
    /// There is nothing left to watch.
    Last,
}

impl<'a> Guardian<'a> {
    fn set_up(args: &'a cli::Guardian) -> io::Result<Self> {
        let deaf: SigSet = DEAF_TO.into_iter().collect();
        deaf.thread_block()?;
        let children = SignalFd::with_flags(
            &SigSet::from(Signal::SIGCHLD),
            SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC,
        )?;
        // For people who look at the list of processes.
        let _ = rustix::thread::set_name(c"tenure-guardian");
        if args.group.is_none() {
            rustix::process::setsid()?;
        }
        rustix::process::set_child_subreaper(Some(getpid()))?;
        let wrapper = io::stdin().as_fd().try_clone_to_owned()?;
        let (setup, mut descriptors) = wire::receive_with_descriptors::<wire::Setup>(&wrapper)?;
        let mut next = || descriptors.next();
        Ok(Self {
            args,
            wrapper,
            children,
            deadline: Deadline::new(args)?,
            stdin: next(),
            _liveness: if setup.has_liveness { next() } else { None },
            command: None,
            is_ending: false,
            is_wrapper_gone: false,
        })
    }

    /// Watches until there is nothing left to watch.
    fn watch(mut self) -> io::Result<()> {
        loop {
            if self.is_wrapper_gone && self.command.is_none() {
                return Ok(());
            }
            let mut ready = [
                PollFd::new(&self.deadline, PollFlags::IN),
                PollFd::new(&self.children, PollFlags::IN),
                PollFd::new(&self.wrapper, PollFlags::IN),
            ];
            // Gone, it would be ready for ever, whatever is asked about it.
            let count = if self.is_wrapper_gone { 2 } else { 3 };
            match poll(&mut ready[..count], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            // First what the wrapper has to say: if we were stopped, the newest validity may be in its last packet.
            while !self.is_wrapper_gone {
                match self.obey()? {
                    Obeyed::Order => {}
                    Obeyed::NoOrder => break,
                    Obeyed::Last => return Ok(()),
                }
            }
            match self.deadline.due(SystemClock.now()) {
                Due::Nothing => {}
                Due::Term => self.ask_to_end()?,
                Due::Kill => return self.end_all(),
            }
            if self.see_to_children()? {
                return Ok(());
            }
        }
    }

    /// Does the next thing that the wrapper says.
    fn obey(&mut self) -> io::Result<Obeyed> {
        let order = match wire::receive::<Order>(&self.wrapper) {
            Ok(order) => order,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Obeyed::NoOrder),
            // Killed, or gone mad: the same to us.
            Err(_) => None,
        };
        match order {
            Some(Order::Start { token, valid_until }) => {
                self.deadline.extend(SystemClock.now(), valid_until)?;
                match spawn::spawn(self.args, token, self.stdin.take()) {
                    Ok(pid) => {
                        self.command = Some(pid);
                        self.report(&Report::Started)?;
                    }
                    Err(error) => {
                        self.report(&Report::CannotStart {
                            errno: error.raw_os_error().unwrap_or_default(),
                        })?;
                        return Ok(Obeyed::Last);
                    }
                }
            }
            Some(Order::Extend { valid_until }) => {
                self.deadline.extend(SystemClock.now(), valid_until)?;
                self.report(&Report::Heard)?;
            }
            Some(Order::Lost) => self.deadline.lost(SystemClock.now())?,
            Some(Order::Signal { number }) => {
                if let (Some(pid), Some(signal)) =
                    (self.command, rustix::process::Signal::from_named_raw(number))
                {
                    // Not reaped yet, so the number is still its own. It may be dead already.
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
            None => {
                self.is_wrapper_gone = true;
                // Nobody renews any more. The lock is ours until we go; so the command goes first, and now.
                if self.command.is_some() && self.args.on_lost != OnLost::Ignore {
                    self.end_all()?;
                    return Ok(Obeyed::Last);
                }
            }
        }
        Ok(Obeyed::Order)
    }

    /// Asks everything to end. Stopped processes are continued, to be able to.
    fn ask_to_end(&mut self) -> io::Result<()> {
        self.is_ending = true;
        for process in tree::descendants(getpid())? {
            process.signal(rustix::process::Signal::TERM);
            process.signal(rustix::process::Signal::CONT);
        }
        Ok(())
    }

    /// Kills everything that descends from us, and reports how the command ended.
    fn end_all(&mut self) -> io::Result<()> {
        self.is_ending = true;
        let mut how = None;
        let mut pause_ms = 1;
        loop {
            how = how.or(self.reap()?);
            let alive = tree::descendants(getpid())?;
            if alive.is_empty() {
                how = how.or(self.reap()?);
                break;
            }
            // Whatever was forked meanwhile is found in the next round: nobody can leave a subreaper's family.
            for process in alive {
                process.signal(rustix::process::Signal::KILL);
            }
            // Something that cannot be killed just now, because the kernel works for it, may take a while.
            pause_ms = (pause_ms * 2).min(128);
            let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: pause_ms * 1_000_000 };
            let _ = poll(&mut [PollFd::new(&self.children, PollFlags::IN)], Some(&timeout));
            while let Ok(Some(_)) = self.children.read_signal() {}
        }
        if self.command.take().is_some() {
            let how = how.unwrap_or(How::Signal(Signal::SIGKILL as i32));
            self.report_end(how, 0)?;
        }
        Ok(())
    }

    /// Looks after children that ended or stopped; answers whether the command ended.
    fn see_to_children(&mut self) -> io::Result<bool> {
        while let Ok(Some(_)) = self.children.read_signal() {}
        let Some(how) = self.reap()? else { return Ok(false) };
        // A command that was killed did not finish, and neither may what it started. One that ended by itself knows
        // what it leaves running.
        if self.is_ending || matches!(how, How::Signal(_)) {
            self.command = None;
            let ending = self.is_ending;
            self.end_all()?;
            self.is_ending = ending;
        }
        let left = tree::descendants(getpid())?.len();
        self.command = None;
        self.report_end(how, left)?;
        Ok(true)
    }

    /// Reaps every child that ended; answers how the command did, if it was among them.
    fn reap(&self) -> io::Result<Option<How>> {
        let mut how = None;
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if Some(pid) == self.command => {
                    if let Some(signal) = status.stopping_signal() {
                        self.report(&Report::Stopped { number: signal })?;
                    } else if let Some(code) = status.exit_status() {
                        how = Some(How::Exit(code));
                    } else if let Some(signal) = status.terminating_signal() {
                        how = Some(How::Signal(signal));
                    }
                }
                // An orphan that was left to us.
                Ok(Some(_)) => {}
                Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(how),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn report_end(&self, how: How, left: usize) -> io::Result<()> {
        self.report(&Report::Ended {
            how,
            at: SystemClock.now().as_nanos(),
            is_enforced: self.is_ending,
            left: u32::try_from(left).unwrap_or(u32::MAX),
        })
    }

    /// Tells the wrapper. One that is gone, or stopped for so long that nothing more fits, is not waited for.
    fn report(&self, report: &Report) -> io::Result<()> {
        match wire::send(&self.wrapper, report) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error),
            _ => Ok(()),
        }
    }
}

/// How the wrapper starts its guardian: this program, whatever became of its file meanwhile.
pub(crate) fn command() -> process::Command {
    use std::os::unix::process::CommandExt;
    let mut command = process::Command::new("/proc/self/exe");
    command.arg0("tenure").arg(cli::GUARDIAN);
    command
}
