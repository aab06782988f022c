//! Signals as events: blocked for the whole process before its first thread, read one by one.
//!
//! A signal that a handler would have to race with is lost or comes twice; one that is read from a file descriptor
//! waits its turn and tells where it came from.

use std::io;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::readable::Readable;

/// What is passed on to the command.
pub(crate) const FORWARDED: [Signal; 8] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
];

/// What the terminal stops a job with. The wrapper stops when its command has, and only then: stopped by the terminal
/// as well, it would stop once more when `fg` lets it read of the command's stop.
pub(crate) const STOPPING: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// The signals of this process, from now on.
#[derive(Debug)]
pub(crate) struct Blocked(SignalFd);

impl Blocked {
    /// Blocks `signals`, except those that whoever started us told us to ignore, like `nohup`: blocked, they would not
    /// be ignored any more. Must come before the first thread is started: threads inherit it.
    pub(crate) fn new(signals: impl IntoIterator<Item = Signal>) -> io::Result<Self> {
        let ignored = ignored()?;
        let is_heeded = |signal: &Signal| ignored & (1 << (*signal as i32 - 1)) == 0;
        let mask: SigSet = signals.into_iter().filter(is_heeded).collect();
        mask.thread_block()?;
        Ok(Self(SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// For use inside a runtime.
    pub(crate) fn events(self) -> io::Result<Events> {
        Ok(Events { readable: Readable::new(&self.0)?, signals: self.0 })
    }
}

/// The signals that this process ignores, as bits.
fn ignored() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.ok_or_else(|| io::Error::other("/proc does not tell which signals are ignored"))
}

/// One signal that came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    pub(crate) signal: Signal,
    /// Whether the kernel sent it: that is the terminal. INT, QUIT, TSTP and WINCH it sends to the whole foreground
    /// group; HUP and CONT, when it hangs up, to the leader of the session alone.
    pub(crate) is_from_terminal: bool,
}

#[derive(Debug)]
pub(crate) struct Events {
    signals: SignalFd,
    readable: Readable,
}

impl Events {
    /// The next signal.
    ///
    /// # Cancel safety
    /// No signal is lost.
    pub(crate) async fn next(&self) -> Event {
        let read = || self.signals.read_signal()?.ok_or_else(|| io::ErrorKind::WouldBlock.into());
        loop {
            let Ok(info) = self.readable.read(read).await else {
                // It was readable once and is ours alone: this cannot be. Signals are then as if they never came.
                return std::future::pending().await;
            };
            if let Some(event) = event(&info) {
                return event;
            }
        }
    }

    /// A signal that came already.
    pub(crate) fn pending(&self) -> Option<Event> {
        event(&self.signals.read_signal().ok()??)
    }
}

fn event(info: &nix::sys::signalfd::siginfo) -> Option<Event> {
    /// `SI_KERNEL`.
    const FROM_KERNEL: i32 = 0x80;
    let signal = Signal::try_from(i32::try_from(info.ssi_signo).ok()?).ok()?;
    Some(Event { signal, is_from_terminal: info.ssi_code == FROM_KERNEL })
}

/// Does to this process what `signal` does by default: stops or ends it. Returns when it is continued.
pub(crate) fn take_default_action(signal: Signal) {
    let alone = SigSet::from(signal);
    // Raised first and let through then, together with one that may be waiting already: to be continued clears them
    // both. The other way round, Ctrl-Z would stop us twice. None of this can fail for a signal that exists.
    let _ = nix::sys::signal::raise(signal);
    let _ = alone.thread_unblock();
    let _ = alone.thread_block();
}
