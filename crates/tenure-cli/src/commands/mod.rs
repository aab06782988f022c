//! The commands, one file each.

pub(crate) mod acquire;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod elect;
pub(crate) mod evict;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod once;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod run;
pub(crate) mod show;
pub(crate) mod watch;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{getpid, getsid};
use tenure::clock::{Clock, SystemClock, sleep_until};
use tenure::{Guard, Lock, LockName};

use crate::cli::{ModeArgs, TtlArg};
use crate::failure::{Failure, Outcome, internal};
use crate::guardian::wire::How;
use crate::output::not_given_back;
use crate::signals::{Events, STOPPING, take_default_action};
use crate::store::Store;
use crate::{exit_code, waiting_line};

/// Runs `work` on a runtime of one thread: a command does one thing.
fn block_on<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    runtime.map_err(internal("start the runtime"))?.block_on(work)
}

/// The lock that the arguments ask for.
fn wanted(store: &Store, name: &LockName, ttl: &TtlArg, mode: &ModeArgs, wait: Option<Duration>) -> Lock {
    let mut lock = store.locks.lock(name).ttl(ttl.ttl.get());
    if let Some(wait) = wait {
        lock = lock.wait(wait);
    }
    if mode.shared {
        lock = lock.shared();
    }
    if let Some((n, of)) = mode.permits {
        lock = lock.permits(n, of);
    }
    lock
}

/// What waiting led to.
enum Waited<T> {
    Came(T),
    /// A signal came first. Nothing is held, and nobody waits any more.
    Interrupted(End),
}

/// Waits for what is `coming` when it is our turn at `name`, with the live line on a terminal, and gives up its place
/// when a signal comes.
async fn wait_for<T>(
    store: &Store,
    coming: impl Future<Output = T>,
    name: &LockName,
    wait: Option<Duration>,
    events: &Events,
) -> Waited<T> {
    let mut coming = std::pin::pin!(coming);
    let mut line = std::pin::pin!(waiting_line::show(&store.locks, name.as_str(), wait));
    loop {
        tokio::select! {
            biased;
            came = &mut coming => return Waited::Came(came),
            event = events.next() => match event.signal {
                Signal::SIGWINCH | Signal::SIGCONT => {}
                signal if STOPPING.contains(&signal) => take_default_action(signal),
                signal => {
                    return Waited::Interrupted(End::Signal { signal, is_from_terminal: event.is_from_terminal });
                }
            },
            () = &mut line => {}
        }
    }
}

/// As [`told`], with the exit code that was asked for if the lock is busy.
fn told_busy<'a>(store: &'a Store, busy_code: Option<u8>) -> impl Fn(tenure::Error) -> Failure + 'a {
    move |error| {
        let mut failure = store.failure(&error);
        if let (Some(code), tenure::Error::Busy { .. } | tenure::Error::TimedOut { .. }) = (busy_code, &error)
        {
            failure.code = code;
        }
        failure
    }
}

/// How long giving a lock back may take, with what must still be told to the store.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(3);
/// How long it is tried at least: a store that serves needs less.
const GIVE_BACK_TRIED_FOR: Duration = Duration::from_millis(500);

/// Gives the lock back, and closes the store. The command has ended; a silent store is not waited for longer than until the
/// lease has ended by itself.
async fn give_back(store: &Store, guard: Guard) -> tenure::Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let now = clock.now();
    let by = guard.valid_until().max(now + GIVE_BACK_TRIED_FOR).min(now + GIVE_BACK_WITHIN);
    let released = tokio::select! {
        released = guard.release() => released,
        () = sleep_until(clock.clone(), by) => {
            not_given_back(&"no answer from the store in time");
            Ok(())
        }
    };
    store.close(by.saturating_since(clock.now())).await;
    released
}

/// How the program ends, once its command has.
#[derive(Debug, Clone, Copy)]
enum End {
    Code(u8),
    Signal { signal: Signal, is_from_terminal: bool },
}

impl End {
    /// As the command did.
    fn of(how: How, is_from_terminal: bool) -> Self {
        match how {
            How::Exit(code) => Self::Code(u8::try_from(code).unwrap_or(u8::MAX)),
            How::Signal(number) => match Signal::try_from(number) {
                Ok(signal) => Self::Signal { signal, is_from_terminal },
                Err(_) => Self::Code(exit_code::of_signal(number)),
            },
        }
    }

    /// The exit code, unless the program must not exit but die.
    fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal { signal, is_from_terminal } => end_by(signal, is_from_terminal),
        }
    }
}

/// Ends as `signal` ends a program. Answers the exit code if it is only to look so.
///
/// A shell that runs a script stops at Ctrl-C only if the program it waits for died of it, and does not stop at exit
/// code 130: so after the terminal's interrupt we die of it. Unless there is no shell to see it: to whoever waits for
/// the leader of a session, 130 is the plainer answer.
fn end_by(signal: Signal, is_from_terminal: bool) -> u8 {
    let is_leader = getsid(None).is_ok_and(|session| session == getpid());
    if signal == Signal::SIGINT && is_from_terminal && !is_leader {
        take_default_action(signal);
    }
    exit_code::of_signal(signal as i32)
}

/// The failure of `store` for `error`.
fn told<'a>(store: &'a Store) -> impl Fn(tenure::Error) -> Failure + 'a {
    move |error| store.failure(&error)
}
