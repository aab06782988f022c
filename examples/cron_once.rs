//! The same cron entry on three machines: the report of the night is made once, and all three get to know its result.
//!
//! A lock alone would not do: the second machine would find it free again and make the report a second time. `once`
//! remembers. The machines are tasks of one process here; with a store that they share, they are machines.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::{Locks, Once};
use tokio::task::JoinSet;

/// What cron starts on every machine.
async fn nightly_report(locks: Locks, night: u64, machine: u32) -> Result<String, tenure::Error> {
    let done = locks
        .once(format!("nightly-report/{night}"))
        .keep(Duration::from_secs(48 * 60 * 60)) // longer than the clocks of the machines can be apart
        .wait(Duration::from_secs(60)) // if another is at it: for its result
        .label(format!("machine-{machine}"))
        .run(|_lease| async move {
            // An error here would free it at once for the next machine.
            Ok::<_, std::convert::Infallible>(format!("42 rows, by machine-{machine}"))
        })
        .await?
        .unwrap_or_else(|never| match never {});
    Ok(match done {
        Once::Ran(report) => format!("machine-{machine}: made the report ({report})"),
        Once::AlreadyDone(report) => format!("machine-{machine}: it was made already ({report})"),
        Once::ResultNotKept => format!("machine-{machine}: it was made already, and was too large to keep"),
        Once::InProgress { .. } => format!("machine-{machine}: another is still at it"),
        Once::Unrecorded(report) => {
            format!("machine-{machine}: made it, but could not record that ({report})")
        }
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = std::env::var("TENURE_STORE").unwrap_or_else(|_| "memory:".into());
    let locks = tenure::connect(&store).await?;
    let night = SystemClock.unix_micros() / (24 * 60 * 60 * 1_000_000);
    let mut machines = JoinSet::new();
    for machine in 1..=3 {
        machines.spawn(nightly_report(locks.clone(), night, machine));
    }
    for line in machines.join_all().await {
        println!("{}", line?);
    }
    locks.close(Duration::from_secs(5)).await?;
    Ok(())
}
