//! The wrapper's side of the guardian: starts it, keeps it informed, watches it in turn.
//!
//! Owns no lock: it is told of a lease and answers how the command ended. If the guardian sleeps through the end of the
//! lease, or is killed, the wrapper does its work.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use clap::ValueEnum;
use nix::sys::signal::Signal;
use nix::unistd::getpgrp;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, WaitOptions, getpid, kill_process, set_child_subreaper, wait};
use tenure::clock::{Clock, SystemClock, sleep_until};
use tenure::{BootInstant, Lease};

use crate::child_env;
use crate::cli::OnLost;
use crate::guardian::wire::{self, How, Order, Report, Setup};
use crate::guardian::{self, tree};
use crate::job::Job;
use crate::readable::Readable;
use crate::signals::{Event, Events, STOPPING, take_default_action};
use crate::store::Store;
use crate::terminal::Terminal;

/// How long at most the guardian may take to answer before it is thought stopped; a third of the ttl if that is less.
const HEARD_WITHIN_MAX: Duration = Duration::from_secs(1);
/// How long the guardian may take to report after the wrapper had to do its work.
const REPORT_WITHIN: Duration = Duration::from_secs(2);

/// How the command ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// By itself, or by somebody's signal, or because its lease was about to end.
    Command { how: How, at: BootInstant, is_enforced: bool, left: u32 },
    /// It never started.
    CannotStart(io::Error),
    /// The guardian died, and everything was ended.
    GuardianDied,
}

#[derive(Debug)]
pub(crate) struct Wrapper {
    guardian: Child,
    connection: OwnedFd,
    readable: Readable,
    on_lost: OnLost,
    lead: Duration,
    heard_within: Duration,
    /// Whether the command is in our own process group: then the terminal's signals reach it without us.
    shares_group: bool,
    /// Whether the terminal interrupted both of us.
    is_interrupted: bool,
    /// Whether somebody sent the command a signal that is meant to end it.
    is_told_to_end: bool,
    /// The validity of the lease as we know it.
    valid_until: BootInstant,
    terminal: Option<Terminal>,
    clock: Arc<dyn Clock>,
}

impl Wrapper {
    /// Starts the guardian. It waits for the lock to be granted. The command writes to `stdout`, or to our own.
    pub(crate) fn start(job: &Job<'_>, store: &Store, stdout: Option<OwnedFd>) -> io::Result<Self> {
        let (ours, theirs) = wire::pair()?;
        // If the guardian is killed, its family becomes ours.
        set_child_subreaper(Some(getpid()))?;
        // In another session than the terminal's, the command could not read from it. So with a terminal the guardian
        // only gets a group of its own, and the command stays in ours.
        let shares_group = fs::File::options().read(true).write(true).open("/dev/tty").is_ok();
        let lead = (job.ttl / 20).clamp(Duration::from_millis(10), Duration::from_millis(500));
        let mut command = guardian::command();
        let on_lost = job.on_lost.to_possible_value().expect("every way has a name");
        command.args(["--on-lost", on_lost.get_name()]);
        command.args(["--grace-ms", &job.grace.as_millis().to_string()]);
        command.args(["--lead-ms", &lead.as_millis().to_string()]);
        if shares_group {
            let group = getpgrp().as_raw();
            command.args(["--group", &group.to_string()]);
            // A group that began outside our pid namespace has no number here (0), so nobody could go back into it:
            // then all stay in it. The guardian is deaf to what the terminal sends there.
            if group != 0 {
                command.process_group(0);
            }
        }
        command.arg("--").arg(&job.program).args(job.command);
        child_env::prepare(&mut command, store, job.name);
        if let Some(stdout) = stdout {
            command.stdout(Stdio::from(stdout));
        }
        let guardian = command.stdin(Stdio::from(theirs)).spawn()?;
        let stdin = io::stdin();
        let liveness = store.connected.liveness.as_ref().map(AsFd::as_fd);
        let descriptors: Vec<_> = std::iter::once(stdin.as_fd()).chain(liveness).collect();
        wire::send_with_descriptors(&ours, &Setup { has_liveness: liveness.is_some() }, &descriptors)?;
        Ok(Self {
            guardian,
            readable: Readable::new(&ours)?,
            connection: ours,
            on_lost: job.on_lost,
            lead,
            heard_within: (job.ttl / 3).min(HEARD_WITHIN_MAX),
            shares_group,
            is_interrupted: false,
            is_told_to_end: false,
            valid_until: BootInstant::NEVER,
            terminal: Terminal::note(),
            clock: Arc::new(SystemClock),
        })
    }

    /// Has the command started, and watches it to its end.
    pub(crate) async fn watch(&mut self, lease: &Lease, events: &Events) -> Ended {
        self.valid_until = lease.valid_until();
        let mut told = self.valid_until;
        let mut unheard_since = None;
        let mut is_lost_told = false;
        let mut ended_by_us = None;
        self.order(&Order::Start { token: lease.token().get(), valid_until: told.as_nanos() });
        loop {
            let take_over_at = match (self.on_lost, ended_by_us) {
                (OnLost::Ignore, _) | (_, Some(_)) => BootInstant::NEVER,
                _ => self.take_over_at(),
            };
            let give_up_at = ended_by_us.map_or(BootInstant::NEVER, |at: BootInstant| at + REPORT_WITHIN);
            let nudge_at = unheard_since.map_or(BootInstant::NEVER, |at: BootInstant| at + self.heard_within);
            tokio::select! {
                biased;
                report = self.report() => match report {
                    Ok(Some(Report::Ended { how, at, is_enforced, left })) => {
                        // Ctrl-C reached us before the command could die of it; the report may have been quicker.
                        while let Some(event) = events.pending() {
                            self.forward(event);
                        }
                        let at = BootInstant::from_nanos(at);
                        let is_enforced = is_enforced || ended_by_us.is_some();
                        if is_enforced {
                            self.restore_terminal();
                        }
                        return Ended::Command { how, at, is_enforced, left };
                    }
                    Ok(Some(Report::CannotStart { errno })) => {
                        return Ended::CannotStart(io::Error::from_raw_os_error(errno));
                    }
                    Ok(Some(Report::Stopped { number })) => self.stop_with_command(number),
                    Ok(Some(Report::Started)) => {}
                    Ok(Some(Report::Heard)) => {
                        unheard_since = None;
                        if told != self.valid_until {
                            told = self.extend(self.valid_until);
                            unheard_since = Some(self.clock.now());
                        }
                    }
                    Ok(None) | Err(_) => {
                        self.end_orphans();
                        return Ended::GuardianDied;
                    }
                },
                event = events.next() => self.forward(event),
                _ = lease.lost(), if !is_lost_told => {
                    is_lost_told = true;
                    self.order(&Order::Lost);
                }
                () = lease.changed(self.valid_until), if !is_lost_told && lease.is_held() => {
                    self.valid_until = lease.valid_until();
                    // One packet under way at a time: a stopped guardian must not find a heap of old news.
                    if unheard_since.is_none() {
                        told = self.extend(self.valid_until);
                        unheard_since = Some(self.clock.now());
                    }
                }
                () = sleep_until(self.clock.clone(), take_over_at) => {
                    ended_by_us = Some(self.clock.now());
                    for process in tree::descendants(self.pid()).unwrap_or_default() {
                        process.signal(rustix::process::Signal::KILL);
                    }
                    self.nudge();
                }
                () = sleep_until(self.clock.clone(), nudge_at) => {
                    tracing::warn!("the guardian does not answer and is continued");
                    // Before it wakes and looks at its timer.
                    told = self.extend(self.valid_until);
                    unheard_since = Some(self.clock.now() + HEARD_WITHIN_MAX);
                    self.nudge();
                }
                () = sleep_until(self.clock.clone(), give_up_at) => {
                    self.end_orphans();
                    let at = self.clock.now();
                    return Ended::Command { how: How::Signal(Signal::SIGKILL as i32), at, is_enforced: true, left: 0 };
                }
            }
        }
    }

    /// When a guardian that has not ended the command has slept through it.
    fn take_over_at(&self) -> BootInstant {
        self.valid_until - self.lead / 2
    }

    /// What [`watch`](Self::watch) would have come to, had it not been dropped because the lease was lost: has the command
    /// ended, and blocks until it has. It gets its grace, as far as the validity of the lease allows.
    pub(crate) fn end_without_lease(&mut self) -> Ended {
        self.order(&Order::Lost);
        loop {
            let left = self.take_over_at().saturating_since(self.clock.now());
            match self.last_report() {
                Ok(Some(Report::Ended { how, at, is_enforced, left })) => {
                    self.restore_terminal();
                    return Ended::Command { how, at: BootInstant::from_nanos(at), is_enforced, left };
                }
                Ok(Some(Report::CannotStart { errno })) => {
                    return Ended::CannotStart(io::Error::from_raw_os_error(errno));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !left.is_zero() => {
                    // A longer one would not fit, and the next round waits on.
                    let timeout = rustix::time::Timespec::try_from(left.min(Duration::from_secs(60))).ok();
                    let _ = poll(&mut [PollFd::new(&self.connection, PollFlags::IN)], timeout.as_ref());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.end_orphans();
                    let how = How::Signal(Signal::SIGKILL as i32);
                    return Ended::Command { how, at: self.clock.now(), is_enforced: true, left: 0 };
                }
                Ok(_) | Err(_) => {
                    self.end_orphans();
                    return Ended::GuardianDied;
                }
            }
        }
    }

    /// The next report that is an end, past all others.
    fn last_report(&self) -> io::Result<Option<Report>> {
        loop {
            match wire::receive(&self.connection)? {
                Some(Report::Started | Report::Heard | Report::Stopped { .. }) => {}
                report => return Ok(report),
            }
        }
    }

    async fn report(&self) -> io::Result<Option<Report>> {
        self.readable.read(|| wire::receive(&self.connection)).await
    }

    /// Tells the guardian until when the lease is valid; it answers.
    fn extend(&self, valid_until: BootInstant) -> BootInstant {
        self.order(&Order::Extend { valid_until: valid_until.as_nanos() });
        valid_until
    }

    fn order(&self, order: &Order) {
        // A guardian that is gone is noticed by its silence on the other side of the connection.
        let _ = wire::send(&self.connection, order);
    }

    /// Whether the terminal interrupted us together with the command.
    pub(crate) const fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Whether a signal came that is meant to end the command, from wherever.
    pub(crate) const fn is_told_to_end(&self) -> bool {
        self.is_told_to_end
    }

    fn forward(&mut self, event: Event) {
        self.is_told_to_end |=
            matches!(event.signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT);
        // When the terminal is gone, the kernel tells that to the leader of the session alone, and continues it alone.
        let is_hang_up = matches!(event.signal, Signal::SIGHUP | Signal::SIGCONT);
        if self.shares_group && event.is_from_terminal && !is_hang_up {
            self.is_interrupted |= event.signal == Signal::SIGINT;
        } else {
            self.order(&Order::Signal { number: event.signal as i32 });
        }
    }

    /// The command was stopped by the terminal: so are we, for the shell to see its job stopped. Continued, we see to it
    /// that it is, too. A command that was stopped in any other way is none of our business: its lock is renewed.
    fn stop_with_command(&self, number: i32) {
        let stop = Signal::try_from(number).ok().filter(|stop| STOPPING.contains(stop));
        if let Some(stop) = stop.filter(|_| self.shares_group) {
            take_default_action(stop);
            self.order(&Order::Signal { number: Signal::SIGCONT as i32 });
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.guardian)
    }

    /// Continues a guardian that somebody stopped: nobody has a reason to.
    fn nudge(&self) {
        let _ = kill_process(self.pid(), rustix::process::Signal::CONT);
    }

    /// Ends the guardian, and whatever it leaves to us, and waits until all is gone.
    fn end_orphans(&mut self) {
        let _ = self.guardian.kill();
        let _ = self.guardian.wait();
        while let Ok(family) = tree::descendants(getpid()) {
            if family.is_empty() {
                break;
            }
            for process in family {
                process.signal(rustix::process::Signal::KILL);
            }
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            std::thread::sleep(Duration::from_millis(1));
        }
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        self.restore_terminal();
    }

    /// A command that is killed cannot put the terminal back as it found it.
    fn restore_terminal(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.restore();
        }
    }
}

impl Drop for Wrapper {
    /// The connection ends with us; that ends a guardian that waits. One that has reported is gone already.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.connection, rustix::net::Shutdown::Both);
        self.nudge();
        let _ = self.guardian.wait();
    }
}
