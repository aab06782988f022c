//! `tenure run`: a command while the lock is held.

use std::ffi::OsStr;
use std::time::Duration;

use nix::sys::signal::Signal;
use tenure::{Guard, LeaseState};

use super::{Waited, block_on, end_by, wait_for, wanted};
use crate::cli::{Global, OnLost, Run};
use crate::exit_code::{ExitCode, of_signal};
use crate::failure::{Failure, Outcome, internal};
use crate::guardian::wire::How;
use crate::output::{clean, note};
use crate::signals::{Blocked, Events, FORWARDED, STOPPING};
use crate::store::Store;
use crate::wrapper::{Ended, Wrapper, cannot_start};
use crate::{child_env, program};

/// What the command gets between TERM and KILL if nothing is said, unless a quarter of the ttl is less.
const USUAL_GRACE: Duration = Duration::from_secs(5);

pub(crate) fn run(global: &Global, args: &Run) -> Outcome<u8> {
    if let Some((letter, instead)) = args.foreign.used() {
        let what = format!("{letter} of flock(1) means nothing here");
        return Err(Failure::new(ExitCode::Usage, what).hint(instead));
    }
    let grace = fitting_grace(args)?;
    let name: &OsStr = &args.command[0];
    let program = program::find(name)?;
    let signals = Blocked::new(FORWARDED.into_iter().chain(STOPPING));
    let signals = signals.map_err(internal("take over signals"))?;
    block_on(async {
        let events = signals.events().map_err(internal("read signals"))?;
        let store = Store::open(global).await?;
        child_env::refuse_nested(&store, &args.name).await?;
        // Started before the lock is held: it costs the others nothing then.
        let mut wrapper =
            Wrapper::start(args, &program, grace, &store).map_err(internal("start the guardian"))?;
        let code = locked(args, &store, &mut wrapper, &events).await;
        store.close().await;
        match code? {
            End::Code(code) => Ok(code),
            End::Signal { signal, is_from_terminal } => Ok(end_by(signal, is_from_terminal)),
        }
    })
}

/// How the program ends.
enum End {
    Code(u8),
    Signal { signal: Signal, is_from_terminal: bool },
}

async fn locked(args: &Run, store: &Store, wrapper: &mut Wrapper, events: &Events) -> Outcome<End> {
    let wait = args.wait.wait();
    let mut lock = wanted(store, &args.name, &args.ttl, &args.mode, wait);
    if let Some(reason) = &args.reason {
        lock = lock.reason(reason.as_str());
    }
    let guard = match wait_for(store, lock, &args.name, wait, args.busy_code, events).await? {
        Waited::Granted(guard) => guard,
        Waited::Interrupted { signal, is_from_terminal } => {
            return Ok(End::Signal { signal, is_from_terminal });
        }
    };
    let lease = guard.lease();
    let ended = wrapper.watch(&lease, events).await;
    let (how, at, is_enforced, left) = match ended {
        Ended::Command { how, at, is_enforced, left } => (how, at, is_enforced, left),
        Ended::CannotStart(error) => {
            release(guard, store).await;
            return Err(cannot_start(&args.command[0], &error));
        }
        Ended::GuardianDied => {
            release(guard, store).await;
            let what =
                format!("the guardian of lock {:?} was killed, and the command ended with it", args.name);
            return Err(Failure::new(ExitCode::Internal, what).retry_safe(false));
        }
    };
    // The clock decides, not the news: a command that was reaped before the validity ended was covered, also if we
    // were stopped meanwhile and hear of it late.
    let is_covered = at <= lease.valid_until();
    let state = lease.state();
    release(guard, store).await;
    if left > 0 {
        let _ = note(&clean(&format!(
            "tenure: warning: the command left {left} {} running, without lock {:?}",
            if left == 1 { "process" } else { "processes" },
            args.name
        )));
    }
    if is_enforced || !is_covered {
        let failure = lost(args, store, &state, is_enforced);
        if args.on_lost != OnLost::Ignore {
            return Err(failure);
        }
        failure.report(crate::cli::LogFormat::Text);
    }
    Ok(match how {
        How::Exit(code) => End::Code(u8::try_from(code).unwrap_or(u8::MAX)),
        How::Signal(number) => match Signal::try_from(number) {
            Ok(signal) => End::Signal { signal, is_from_terminal: wrapper.is_interrupted() },
            Err(_) => End::Code(of_signal(number)),
        },
    })
}

fn lost(args: &Run, store: &Store, state: &LeaseState, is_enforced: bool) -> Failure {
    let why = match state {
        LeaseState::Lost { why } => why.to_string(),
        _ => "a renewal came too late".into(),
    };
    let end = match (is_enforced, args.on_lost) {
        (true, _) => "the command was ended before the lease was",
        (false, OnLost::Ignore) => "the command ran on, perhaps beside another (--on-lost ignore)",
        (false, _) => "the command ended too late",
    };
    let name = &args.name;
    let what = format!("lock {name:?} on store {} was lost: {why}; {end}", store.locks.store());
    Failure::new(ExitCode::Lost, what).retry_safe(false).hint("a longer --ttl bears a longer silence")
}

/// Gives the lock back. The command has ended; whatever goes wrong now is not its fault, and the lock expires.
async fn release(guard: Guard, store: &Store) {
    if let Err(error @ tenure::Error::Unavailable { .. }) = guard.release().await {
        let _ = note(&clean(&format!(
            "tenure: warning: the lock could not be given back and is left to expire: {error} (store {})",
            store.locks.store()
        )));
    }
}

/// The grace, if it leaves the command enough of the ttl to work in.
fn fitting_grace(args: &Run) -> Outcome<Duration> {
    let ttl = args.ttl.ttl.get();
    match args.grace {
        None => Ok(USUAL_GRACE.min(ttl / 4)),
        Some(grace) if grace <= ttl / 2 => Ok(grace),
        Some(grace) => {
            let what =
                format!("--grace {grace:?} does not fit --ttl {ttl:?}: it may be half of it, {:?}", ttl / 2);
            Err(Failure::new(ExitCode::Configuration, what).hint("a longer --ttl or a shorter --grace"))
        }
    }
}
