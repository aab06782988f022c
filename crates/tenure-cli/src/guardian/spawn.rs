//! Starts the command, so that it cannot outlive the guardian.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::signal::SigSet;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use crate::signals::FORWARDED;
use crate::{child_env, cli};

/// `args.command` is the program as it was found, then the command as it was typed.
pub(super) fn spawn(args: &cli::Guardian, token: u64, stdin: Option<OwnedFd>) -> io::Result<Pid> {
    let [program, name, rest @ ..] = &args.command[..] else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut command = Command::new(program);
    command.arg0(name).args(rest);
    child_env::number(&mut command, token);
    command.stdin(stdin.map_or_else(Stdio::null, Stdio::from));
    // In a terminal's session: the wrapper's own group, which the terminal knows as the foreground or background job
    // it is. Without a terminal: one of its own.
    // A group without a number here is the guardian's too.
    match args.group {
        Some(0) => {}
        group => {
            command.process_group(group.unwrap_or(0));
        }
    }
    set_free(&mut command);
    let child = command.spawn()?;
    Ok(Pid::from_child(&child))
}

/// Gives the command back the signals that wrapper and guardian blocked for themselves, which it would inherit; and has
/// the kernel kill it if the guardian is killed. The guardian has one thread, so its death is the process's.
#[expect(unsafe_code, reason = "there is no safe way to do something between fork and exec")]
fn set_free(command: &mut Command) {
    let guardian = getpid();
    let blocked: SigSet = FORWARDED.into_iter().chain(super::DEAF_TO).collect();
    let before_exec = move || {
        blocked.thread_unblock()?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // Killed in between: nobody is left to watch.
        if getppid() != Some(guardian) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe things are done: three system calls, no allocation, no lock.
    unsafe { command.pre_exec(before_exec) };
}
