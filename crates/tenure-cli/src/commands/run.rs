//! `tenure run`: a command while the lock is held.

use std::time::Duration;

use tenure::{Guard, Lock};

use super::{End, GIVE_BACK_WITHIN, Waited, block_on, give_back, told_busy, wait_for, wanted};
use crate::child_env;
use crate::cli::{Global, LogFormat, OnLost, Run};
use crate::exit_code::ExitCode;
use crate::failure::{Failure, Outcome, internal};
use crate::job::{Job, Over};
use crate::signals::{Blocked, Events, FORWARDED, STOPPING};
use crate::store::Store;
use crate::wrapper::Wrapper;

pub(crate) fn run(global: &Global, args: &Run) -> Outcome<u8> {
    if let Some((letter, instead)) = args.foreign.used() {
        let what = format!("{letter} of flock(1) means nothing here");
        return Err(Failure::new(ExitCode::Usage, what).hint(instead));
    }
    let job = Job::new(&args.name, &args.ttl, args.on_lost, args.grace.grace, &args.command)?;
    let signals = Blocked::new(FORWARDED.into_iter().chain(STOPPING));
    let signals = signals.map_err(internal("take over signals"))?;
    block_on(async {
        let events = signals.events().map_err(internal("read signals"))?;
        let store = Store::open(global).await?;
        child_env::refuse_nested(&store, &args.name).await?;
        // Started before the lock is held: it costs the others nothing then.
        let mut wrapper = Wrapper::start(&job, &store, None).map_err(internal("start the guardian"))?;
        let wait = args.wait.wait();
        let lock = lock(args, &store, wait);
        let guard = match wait_for(&store, lock.acquire(), &args.name, wait, &events).await {
            Waited::Came(guard) => guard.map_err(told_busy(&store, args.busy_code)),
            Waited::Interrupted(end) => {
                store.close(GIVE_BACK_WITHIN).await;
                return Ok(end.code());
            }
        };
        match guard {
            Ok(guard) => {
                Ok(under(args, &job, &store, guard, &mut wrapper, &events, global.log_format).await?.code())
            }
            Err(failure) => {
                store.close(GIVE_BACK_WITHIN).await;
                Err(failure)
            }
        }
    })
}

fn lock(args: &Run, store: &Store, wait: Option<Duration>) -> Lock {
    let lock = wanted(store, &args.name, &args.ttl, &args.mode, wait);
    match &args.reason.reason {
        Some(reason) => lock.reason(reason.as_str()),
        None => lock,
    }
}

/// Runs the command under the lock, and gives it back.
async fn under(
    args: &Run,
    job: &Job<'_>,
    store: &Store,
    guard: Guard,
    wrapper: &mut Wrapper,
    events: &Events,
    format: LogFormat,
) -> Outcome<End> {
    let lease = guard.lease();
    let ended = wrapper.watch(&lease, events).await;
    let (over, valid_until) = (job.judge(store, &lease, ended), lease.valid_until());
    let released = give_back(store, guard).await;
    let how = match job.judge_release(over?, released, valid_until) {
        Over::Covered(how) => how,
        Over::Lost { how, failure } if args.on_lost == OnLost::Ignore => {
            failure.report(format);
            how
        }
        Over::Lost { failure, .. } => return Err(failure),
    };
    Ok(End::of(how, wrapper.is_interrupted()))
}
