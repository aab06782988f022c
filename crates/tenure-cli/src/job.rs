//! [`Job`]: a command to be run under a lock, and what its end means. What `run`, `once` and `elect` share.
//!
//! Takes no lock and starts nothing: the one is the command's business, the other the wrapper's.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tenure::clock::{Clock as _, SystemClock};
use tenure::{BootInstant, Error, Lease, LeaseState, LockName, Why};

use crate::cli::{OnLost, TtlArg};
use crate::exit_code::ExitCode;
use crate::failure::{Failure, Outcome};
use crate::guardian::wire::How;
use crate::output::{clean, not_given_back, note};
use crate::program;
use crate::store::Store;
use crate::wrapper::Ended;

/// What the command gets between TERM and KILL if nothing is said, unless a quarter of the ttl is less.
const USUAL_GRACE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) ttl: Duration,
    pub(crate) on_lost: OnLost,
    pub(crate) grace: Duration,
    /// As it was typed.
    pub(crate) command: &'a [OsString],
    /// As it was found.
    pub(crate) program: PathBuf,
}

/// How a command ended that was started.
#[derive(Debug)]
pub(crate) enum Over {
    /// While the lease was valid, by itself or by somebody's signal.
    Covered(How),
    /// Because the lease was about to end, or after it had.
    Lost { how: How, failure: Failure },
}

impl<'a> Job<'a> {
    /// Everything that can be wrong with it is found here, before anything is locked.
    pub(crate) fn new(
        name: &'a LockName,
        ttl: &TtlArg,
        on_lost: OnLost,
        grace: Option<Duration>,
        command: &'a [OsString],
    ) -> Outcome<Self> {
        let ttl = ttl.ttl.get();
        let grace = fitting_grace(ttl, grace)?;
        Ok(Self { name, ttl, on_lost, grace, command, program: program::find(&command[0])? })
    }

    /// What the end of the command means; to be asked before the lock is given back.
    pub(crate) fn judge(&self, store: &Store, lease: &Lease, ended: Ended) -> Outcome<Over> {
        let (how, at, is_enforced, left) = match ended {
            Ended::Command { how, at, is_enforced, left } => (how, at, is_enforced, left),
            Ended::CannotStart(error) => return Err(program::cannot_start(&self.command[0], &error)),
            Ended::GuardianDied => {
                let what =
                    format!("the guardian of lock {:?} was killed, and the command ended with it", self.name);
                return Err(Failure::new(ExitCode::Internal, what).retry_safe(false));
            }
        };
        if left > 0 {
            let _ = note(&clean(&format!(
                "tenure: warning: the command left {left} {} running, without lock {:?}",
                if left == 1 { "process" } else { "processes" },
                self.name
            )));
        }
        // The clock decides, not the news: a command that was reaped before the validity ended was covered, also if we
        // were stopped meanwhile and hear of it late.
        let is_covered = at <= lease.valid_until();
        Ok(if is_enforced || !is_covered {
            Over::Lost { how, failure: self.lost(store, &lease.state(), is_enforced) }
        } else {
            Over::Covered(how)
        })
    }

    /// What it means besides how the lock was given back. `valid_until` is of before that.
    ///
    /// A store that did not know the claim while it should have may have given the lock to others meanwhile: it was wiped,
    /// replaced or damaged. Whatever else goes wrong now is not the command's fault, and the lock expires.
    pub(crate) fn judge_release(
        &self,
        over: Over,
        released: tenure::Result<()>,
        valid_until: BootInstant,
    ) -> Over {
        match (over, released) {
            (Over::Covered(how), Err(error @ Error::Lost { why: Why::Gone, .. }))
                if SystemClock.now() < valid_until =>
            {
                let what = format!("{error}; the command ran to its end, perhaps beside another");
                Over::Lost { how, failure: Failure::new(ExitCode::Lost, what).retry_safe(false) }
            }
            (over, Err(error @ (Error::Unavailable { .. } | Error::Refused { .. }))) => {
                not_given_back(&error);
                over
            }
            (over, _) => over,
        }
    }

    /// That the lock was lost, and what became of the command.
    pub(crate) fn lost(&self, store: &Store, state: &LeaseState, is_enforced: bool) -> Failure {
        // Where the lease does not know it yet, the guardian did, from the clock alone.
        let (why, told) = match state {
            LeaseState::Lost { why } => (why, why.to_string()),
            _ => (&Why::Expired, "a renewal came too late".into()),
        };
        let end = match (is_enforced, self.on_lost) {
            (true, _) => "the command was ended before the lease was",
            (false, OnLost::Ignore) => "the command ran on, perhaps beside another (--on-lost ignore)",
            (false, _) => "the command ended too late",
        };
        let name = self.name;
        let what = format!("lock {name:?} on store {} was lost: {told}; {end}", store.locks.store());
        Failure::new(ExitCode::Lost, what).retry_safe(false).hint_at_silence(why)
    }
}

/// The grace, if it leaves the command enough of the ttl to work in.
fn fitting_grace(ttl: Duration, grace: Option<Duration>) -> Outcome<Duration> {
    match grace {
        None => Ok(USUAL_GRACE.min(ttl / 4)),
        Some(grace) if grace <= ttl / 2 => Ok(grace),
        Some(grace) => {
            // To the millisecond: it may be about one.
            let [grace, ttl, half] = [grace, ttl, ttl / 2].map(humantime::format_duration);
            let what = format!("--grace {grace} does not fit --ttl {ttl}: it may be half of it, {half}");
            Err(Failure::new(ExitCode::Configuration, what).hint("a longer --ttl or a shorter --grace"))
        }
    }
}
