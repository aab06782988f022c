//! The suite can fail: every known-bad backend is killed by the case it names, and the good one passes that case.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_testkit::known_bad::{self, verdict};
use tenure_testkit::{MemorySubject, conformance};

/// A case that takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(30);
/// Cases spend their time waiting: a few can wait together.
const AT_A_TIME: usize = 6;

#[test]
fn every_known_bad_backend_is_killed() {
    let killers: BTreeSet<_> = known_bad::all().iter().map(|bad| bad.killed_by).collect();
    for killer in &killers {
        assert!(conformance::all().iter().any(|case| case.name == *killer), "there is no case {killer}");
    }
    let mut jobs: Vec<Box<dyn FnOnce() -> Result<String, String> + Send>> = Vec::new();
    for bad in known_bad::all() {
        jobs.push(Box::new(move || match verdict(bad.killed_by, move || bad.subject(), LIMIT) {
            Err(complaint) => {
                let first = complaint.lines().next().unwrap_or_default().to_owned();
                Ok(format!("{:?} ({}) killed by {}: {first}", bad.bug, bad.story, bad.killed_by))
            }
            Ok(()) => Err(format!("{:?} ({}) survived {}", bad.bug, bad.story, bad.killed_by)),
        }));
    }
    for killer in killers {
        jobs.push(Box::new(move || match verdict(killer, || Arc::new(MemorySubject::new()), LIMIT) {
            Ok(()) => Ok(String::new()),
            Err(complaint) => Err(format!("the good backend fails {killer}: {complaint}")),
        }));
    }
    // The slow ones first would be better still; nobody knows which they are.
    let (jobs, outcomes) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let Some(job) = jobs.lock().unwrap().pop() else { return };
                    let outcome = job();
                    outcomes.lock().unwrap().push(outcome);
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap();
    outcomes.sort();
    let killed = outcomes.iter().filter(|outcome| matches!(outcome, Ok(how) if !how.is_empty())).count();
    for how in outcomes.iter().flatten().filter(|how| !how.is_empty()) {
        println!("{how}");
    }
    println!("{killed} of {} known-bad backends killed", known_bad::all().len());
    let failures: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{failures:#?}");
}
