//! Parties that want one lock, spread over processes: started, and their grants put in order.

use crate::contender::Contender;
use crate::workers::{Row, Worker};

/// The part of the parties that one process runs: every `step`th of them, from the `first`.
pub(super) struct Share {
    pub(super) parties: usize,
    pub(super) first: usize,
    pub(super) step: usize,
}

/// Starts the processes, each with the job that `job` makes of its share.
pub(super) fn start(
    contender: Contender,
    url: &str,
    waiters: usize,
    processes: usize,
    job: impl Fn(Share) -> Vec<String>,
) -> Result<Vec<Worker>, String> {
    // Not more processes than parties.
    let step = processes.min(waiters);
    let start_one = |first: usize| {
        let parties = waiters / step + usize::from(first < waiters % step);
        let job = job(Share { parties, first, step });
        Worker::start(contender, url, &job.iter().map(String::as_str).collect::<Vec<_>>())
    };
    (0..step).map(start_one).collect()
}

/// What all of them were granted, in order. Parties are numbered in their process; here they are numbered over all.
pub(super) fn grants(workers: &mut [Worker]) -> Result<Vec<Row>, String> {
    let step = workers.len();
    let mut rows = Vec::new();
    for (first, worker) in workers.iter_mut().enumerate() {
        let of_worker = worker.rows()?;
        rows.extend(of_worker.into_iter().map(|row| Row { party: row.party * step + first, ..row }));
    }
    rows.sort_unstable_by_key(|row| row.granted);
    Ok(rows)
}

pub(super) struct Passed {
    /// From the release by one party to the grant of the next, where that is another one which was waiting by then.
    pub(super) gaps: Vec<u64>,
    /// Grants that began before the one before had ended.
    pub(super) overlaps: u64,
}

/// How the lock went from each grant to the next.
pub(super) fn passed(rows: &[Row]) -> Passed {
    let mut passed = Passed { gaps: Vec::new(), overlaps: 0 };
    for pair in rows.windows(2) {
        if pair[1].granted < pair[0].released {
            passed.overlaps += 1;
        } else if pair[1].party != pair[0].party && pair[1].asked < pair[0].released {
            passed.gaps.push(pair[1].granted - pair[0].released);
        }
    }
    passed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_needs_another_party_that_waited_and_an_overlap_is_none() {
        let row = |party, asked, granted, released| Row { party, asked, granted, released, freed: released };
        let rows =
            [row(0, 0, 10, 20), row(1, 19, 25, 30), row(1, 0, 31, 40), row(2, 0, 39, 50), row(0, 51, 52, 60)];
        let passed = passed(&rows);
        assert_eq!(passed.gaps, [5]);
        assert_eq!(passed.overlaps, 1);
    }
}
