//! Several locks as one, between processes: overlapping sets, written in any order, never wait for each other in a
//! circle, and nobody ever has part of a set.

mod common;

use std::fs::{self, File};
use std::path::Path;

use common::{Actor, open, role, run, say, scratch, secs};
use tenure_core::{Entropy as _, Locks, SystemEntropy};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const TASKS: usize = 4;

fn rounds() -> usize {
    if std::env::var_os("TENURE_FULL").is_some() { 1000 } else { 100 }
}

/// Not a test by itself: what the other processes of this test do.
#[test]
fn role_play() {
    let Some((role, directory)) = role() else { return };
    assert_eq!(role, "sets");
    run(async {
        let locks = open(&directory);
        let tasks: Vec<_> =
            (0..TASKS).map(|_| tokio::spawn(take_sets(locks.clone(), directory.clone()))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    say("done");
}

/// Takes random sets in random order. While it has one, a file for each of its names says so.
async fn take_sets(locks: Locks, directory: impl AsRef<Path>) {
    for _ in 0..rounds() {
        let names = random_set();
        if names.is_empty() {
            continue;
        }
        let set = locks.all(names.iter().copied()).ttl(secs(60)).wait(secs(60)).acquire().await;
        let set = set.expect("a circle of waiters would wait for ever");
        let marks: Vec<_> = names.iter().map(|name| directory.as_ref().with_extension(name)).collect();
        for mark in &marks {
            File::create_new(mark).expect("nobody else has it");
        }
        tokio::task::yield_now().await;
        assert!(set.is_held());
        for mark in &marks {
            fs::remove_file(mark).unwrap();
        }
        set.release().await.unwrap();
    }
}

fn random_set() -> Vec<&'static str> {
    let mut dice = [0; NAMES.len()];
    SystemEntropy.fill(&mut dice);
    let mut set: Vec<_> = NAMES.into_iter().zip(dice).filter(|(_, die)| die % 2 == 0).collect();
    set.sort_by_key(|(_, die)| *die);
    set.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn two_processes_with_overlapping_sets_never_deadlock() {
    let (_outer, directory) = scratch();
    let mut processes = [Actor::start("sets", &directory), Actor::start("sets", &directory)];
    for process in &mut processes {
        assert_eq!(process.hear(), "done");
    }
}
