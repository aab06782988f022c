//! `tenure acquire`: takes a lock that outlives this process, and prints its claim.

use tenure::Tie;

use super::{GIVE_BACK_WITHIN, Waited, block_on, told, told_busy, wait_for, wanted};
use crate::claim_source::CLAIM;
use crate::cli::{Acquire, Global};
use crate::closed_stdout;
use crate::exit_code::ExitCode;
use crate::failure::{Failure, Outcome, internal};
use crate::json::ClaimJson;
use crate::output::{clean, end_quietly, json_line, note, try_print};
use crate::signals::{Blocked, FORWARDED, STOPPING};
use crate::store::Store;

pub(crate) fn run(global: &Global, args: &Acquire) -> Outcome {
    refuse_without_stdout()?;
    let signals = Blocked::new(FORWARDED.into_iter().chain(STOPPING));
    let signals = signals.map_err(internal("take over signals"))?;
    block_on(async {
        let events = signals.events().map_err(internal("read signals"))?;
        let store = Store::open(global).await?;
        let wait = args.wait.wait();
        let mut lock = wanted(&store, &args.name, &args.ttl, &args.mode, wait).tie(Tie::Ttl);
        if let Some(reason) = &args.reason.reason {
            lock = lock.reason(reason.as_str());
        }
        let guard = match wait_for(&store, lock.acquire(), &args.name, wait, &events).await {
            Waited::Came(Ok(guard)) => guard,
            Waited::Came(Err(error)) => {
                store.close(GIVE_BACK_WITHIN).await;
                return Err(told_busy(&store, args.busy_code)(error));
            }
            Waited::Interrupted(end) => {
                store.close(GIVE_BACK_WITHIN).await;
                std::process::exit(end.code().into());
            }
        };
        let valid_for = guard.valid_for();
        let claim = guard.detach().await.map_err(told(&store))?;
        let text = if global.json {
            json_line(&ClaimJson::exposed(&claim, valid_for))
        } else if args.export {
            // Letters, digits and a hyphen: nothing that a shell would look twice at, quoted all the same.
            format!("export {CLAIM}='{claim}'\nexport TENURE_TOKEN='{}'\n", claim.token())
        } else {
            format!("{claim}\n")
        };
        if let Err(error) = try_print(&text) {
            // Nobody has the claim, so nobody could give the lock back.
            if let Err(unreleased) = store.locks.release(&claim).await {
                let what = format!("the lock could not be given back and is left to expire: {unreleased}");
                let _ = note(&clean(&format!("tenure: warning: {what}")));
            }
            end_quietly(&error);
        }
        Ok(ExitCode::Done)
    })
}

/// A claim that cannot be told to anybody keeps everybody out for nothing.
fn refuse_without_stdout() -> Outcome<()> {
    if closed_stdout::was_closed() {
        let what = "standard output is closed, and the claim could not be told; nothing was locked";
        return Err(Failure::new(ExitCode::Configuration, what));
    }
    Ok(())
}
