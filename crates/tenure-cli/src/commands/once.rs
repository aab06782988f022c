//! `tenure once`: a command whose success is recorded, with its output, for everybody who comes later.
//!
//! What *once* means is the library's; here a command is its work. It runs under a guardian as that of `run` does.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use serde::Serialize;
use tenure::{Bytes, DoOnce, Error, Lease, LeaseState, Once, OnceStatus, in_words};
use tokio::sync::Notify;

use super::{End, GIVE_BACK_WITHIN, Waited, block_on, told, told_busy, wait_for};
use crate::child_env;
use crate::cli::{self, Global, OnLost};
use crate::exit_code::ExitCode;
use crate::failure::{Failure, Outcome, internal};
use crate::guardian::wire::How;
use crate::job::{Job, Over};
use crate::output::{clean, end_quietly, note, print, print_json, write_through};
use crate::record::{KEPT_BYTES_MAX, Record};
use crate::signals::{Blocked, Events, FORWARDED, STOPPING};
use crate::store::Store;
use crate::tee::Tee;
use crate::wrapper::{Ended, Wrapper};

pub(crate) fn run(global: &Global, args: &cli::Once) -> Outcome<u8> {
    if args.status || args.forget {
        return block_on(look(global, args)).map(ExitCode::number);
    }
    let job = Job::new(&args.name, &args.ttl, OnLost::Term, args.grace.grace, &args.command)?;
    let signals = Blocked::new(FORWARDED.into_iter().chain(STOPPING));
    let signals = signals.map_err(internal("take over signals"))?;
    block_on(async {
        let events = signals.events().map_err(internal("read signals"))?;
        let store = Store::open(global).await?;
        child_env::refuse_nested(&store, &args.name).await?;
        let end = once(args, &job, &store, &events).await;
        store.close(GIVE_BACK_WITHIN).await;
        Ok(end?.code())
    })
}

async fn once(args: &cli::Once, job: &Job<'_>, store: &Store, events: &Events) -> Outcome<End> {
    let wait = args.wait.wait();
    let mut once =
        store.locks.once(&args.name).ttl(job.ttl).keep(args.keep).wait(wait.unwrap_or(Duration::MAX));
    if let Some(reason) = &args.reason.reason {
        once = once.reason(reason.as_str());
    }
    let (begun, seen) = (Notify::new(), Seen::default());
    let work = |lease| {
        begun.notify_one();
        perform(job, store, events, lease, &seen)
    };
    let mut doing = std::pin::pin!(once.clone().run_bytes(work));
    let waiting = async {
        tokio::select! {
            biased;
            done = &mut doing => Some(done),
            () = begun.notified() => None,
        }
    };
    // Signals are for us while we wait, and for the command as soon as there is one.
    let done = match wait_for(store, waiting, &args.name, wait, events).await {
        Waited::Came(Some(done)) => done,
        Waited::Came(None) => doing.await,
        Waited::Interrupted(end) => return Ok(end),
    };
    match done {
        Ok(Ok(Once::Ran(_))) => match seen.trouble.take() {
            None => Ok(End::Code(0)),
            Some(error) => Err(unwritten(args, &error)),
        },
        Ok(Ok(Once::AlreadyDone(record))) => repeat(args, store, &record),
        // Not one of ours: those always fit.
        Ok(Ok(Once::ResultNotKept)) => repeat(args, store, &[]),
        Ok(Ok(Once::InProgress { .. })) => Err(in_progress(args, store, &once).await),
        Ok(Ok(Once::Unrecorded(_))) => Err(unrecorded(args, store)),
        Ok(Err(end)) => end,
        // The command was done; only its recording was not.
        Err(Error::Lost { .. }) if seen.own_end.get() == Some(How::Exit(0)) => Err(unrecorded(args, store)),
        Err(Error::Lost { why, .. }) => Err(job.lost(store, &LeaseState::Lost { why }, true)),
        Err(error) => Err(told_busy(store, args.busy_code)(error)),
    }
}

/// What is seen of the command beside its result.
#[derive(Default)]
struct Seen {
    /// How it ended, if that was by itself.
    own_end: Cell<Option<How>>,
    /// Why not all of its output could be written. That its reader went away is no trouble: it had enough.
    trouble: Cell<Option<io::Error>>,
}

/// Runs the command; answers the record of its success, or how the program ends without one.
///
/// Dropped when the lease is lost. The command has ended then.
async fn perform(
    job: &Job<'_>,
    store: &Store,
    events: &Events,
    lease: Lease,
    seen: &Seen,
) -> Result<Bytes, Outcome<End>> {
    let (tee, stdout) = Tee::start(KEPT_BYTES_MAX).map_err(internal("pass on the output")).map_err(Err)?;
    let wrapper =
        Wrapper::start(job, store, Some(stdout)).map_err(internal("start the guardian")).map_err(Err)?;
    let mut watch = Watch { wrapper, seen, is_over: false };
    let ended = watch.wrapper.watch(&lease, events).await;
    watch.note(&ended);
    let over = job.judge(store, &lease, ended);
    // Also what a failed one had to say.
    let output = tee.finish().await;
    match over.map_err(Err)? {
        Over::Covered(How::Exit(0)) => {}
        Over::Covered(how) => return Err(Ok(End::of(how, watch.wrapper.is_interrupted()))),
        Over::Lost { failure, .. } => return Err(Err(failure)),
    }
    seen.trouble.set(output.error.filter(|error| error.kind() != io::ErrorKind::BrokenPipe));
    let is_truncated = output.is_cut || output.written > output.kept.len() as u64;
    Ok(Record { kept: &output.kept, written: output.written, is_truncated }.encode())
}

/// A command that is being watched, and ended if that is given up.
struct Watch<'a> {
    wrapper: Wrapper,
    seen: &'a Seen,
    is_over: bool,
}

impl Watch<'_> {
    fn note(&mut self, ended: &Ended) {
        self.is_over = true;
        if let Ended::Command { how, is_enforced: false, .. } = ended {
            self.seen.own_end.set(Some(*how));
        }
    }
}

impl Drop for Watch<'_> {
    /// The library drops the work when the lease is lost, and only then gives up the claim: so the command is ended
    /// here, to the end.
    fn drop(&mut self) {
        if !self.is_over {
            let ended = self.wrapper.end_without_lease();
            self.note(&ended);
        }
    }
}

/// Prints what was recorded.
fn repeat(args: &cli::Once, store: &Store, record: &[u8]) -> Outcome<End> {
    let record = Record::decode(record).map_err(|what| {
        let what = format!("{:?} on store {} is done, but {what}", args.name, store.locks.store());
        Failure::new(ExitCode::Configuration, what).hint("--forget makes room, another name leaves it alone")
    })?;
    if let Err(error) = write_through(record.kept) {
        end_quietly(&error);
    }
    if record.is_truncated {
        let (name, kept) = (&args.name, record.kept.len());
        let more =
            if record.written > kept as u64 { format!(" of {}", record.written) } else { String::new() };
        let _ = note(&clean(&format!(
            "tenure: {name:?} was done before, and only the first {kept} bytes{more} of its output were kept"
        )));
    }
    Ok(End::Code(0))
}

async fn in_progress(args: &cli::Once, store: &Store, once: &DoOnce) -> Failure {
    let who = match once.status().await {
        Ok(OnceStatus::InProgress(holder)) => format!(", by {}", holder.label),
        _ => String::new(),
    };
    let what = format!("{:?} on store {} is in progress{who}", args.name, store.locks.store());
    let mut failure = Failure::new(ExitCode::Busy, what).retry_safe(true);
    failure.code = args.busy_code.unwrap_or(failure.code);
    failure.hint("a longer --wait waits for its result")
}

fn unrecorded(args: &cli::Once, store: &Store) -> Failure {
    let what = format!(
        "{:?} was done, but store {} does not confirm that this is recorded: the next caller may do it again",
        args.name,
        store.locks.store()
    );
    Failure::new(ExitCode::Lost, what).retry_safe(false).hint("--status tells how it stands")
}

fn unwritten(args: &cli::Once, error: &io::Error) -> Failure {
    let what =
        format!("{:?} was done and is recorded, but its output could not be written: {error}", args.name);
    Failure::new(ExitCode::Internal, what).hint("the same command again prints what is recorded")
}

#[derive(Serialize)]
struct StatusJson {
    name: String,
    status: &'static str,
    /// Who is at it.
    label: Option<String>,
    kept_for_ms: Option<u64>,
}

#[derive(Serialize)]
struct ForgottenJson {
    name: String,
    forgotten: bool,
}

/// `--status` and `--forget`.
async fn look(global: &Global, args: &cli::Once) -> Outcome {
    let store = Store::open(global).await?;
    let (once, name) = (store.locks.once(&args.name), store.full_name(args.name.as_str()));
    if args.forget {
        let forgotten = once.forget().await.map_err(told(&store))?;
        match (global.json, forgotten) {
            (true, _) => print_json(&ForgottenJson { name, forgotten }),
            (false, true) => print(&format!("{} is forgotten\n", clean(&name))),
            (false, false) => print(&format!("{} has no record\n", clean(&name))),
        }
        return Ok(if forgotten { ExitCode::Done } else { ExitCode::No });
    }
    let (code, status, label, kept_for) = match once.status().await.map_err(told(&store))? {
        OnceStatus::Done { kept_for } => (ExitCode::Done, "done", None, Some(kept_for)),
        OnceStatus::Open => (ExitCode::No, "open", None, None),
        OnceStatus::InProgress(holder) => {
            (ExitCode::Busy, "in progress", Some(holder.label.to_string()), None)
        }
    };
    if global.json {
        let kept_for_ms = kept_for.map(|kept| u64::try_from(kept.as_millis()).unwrap_or(u64::MAX));
        print_json(&StatusJson { name, status, label, kept_for_ms });
    } else {
        let by = label.map(|label| format!(", by {}", clean(&label)));
        let kept = kept_for.map(|kept| format!("; the record is kept for {}", in_words(kept)));
        print(&format!("{} is {status}{}\n", clean(&name), by.or(kept).unwrap_or_default()));
    }
    Ok(code)
}
