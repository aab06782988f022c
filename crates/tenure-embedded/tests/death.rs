//! What the death of a process does to its locks: it frees them at once, however it died, and breaks nothing.

mod common;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use common::{Actor, listen, ms, open, role, run, say, scratch, secs, timed};
use rustix::process::Signal;
use tenure_core::clock::{Clock as _, SystemClock};
use tenure_core::{Entropy as _, Locks, SystemEntropy};
use tenure_embedded::{Config, Embedded};

/// Not a test by itself: what the other processes of these tests do.
#[test]
fn role_play() {
    let Some((role, directory)) = role() else { return };
    run(async {
        match role.as_str() {
            "holder" => {
                let guard = open(&directory).lock("x").ttl(secs(60)).acquire().await.unwrap();
                say(guard.token());
                listen();
            }
            "waiter" => {
                let locks = open(&directory);
                say("waiting");
                let guard = locks.lock("x").ttl(secs(60)).acquire().await.unwrap();
                say(guard.token());
                listen();
            }
            "two" => {
                let locks = open(&directory);
                let _x = locks.lock("x").ttl(secs(60)).acquire().await.unwrap();
                let _y = locks.lock("y").ttl(secs(60)).acquire().await.unwrap();
                say("holding");
                listen();
            }
            "forks" => {
                let _guard = open(&directory).lock("x").ttl(secs(60)).acquire().await.unwrap();
                fork_and_stay();
                say("forked");
                listen();
            }
            "guarded" => {
                let store = Embedded::open(Config::at(&directory)).unwrap();
                let locks = Locks::new(store.clone());
                let _guard = locks.lock("x").ttl(secs(60)).acquire().await.unwrap();
                let mut guardian = start_guardian(&store);
                say(guardian.id());
                listen();
                guardian.wait().unwrap();
            }
            "leaves" => {
                let locks = open(&directory);
                let guard = locks.lock("x").ttl(secs(60)).acquire().await.unwrap();
                say(guard.token());
                // Neither released nor dropped: the store goes first.
                std::mem::forget(guard);
            }
            "hammer" => hammer(&directory).await,
            "writer" => stand_inside_a_transaction(&directory),
            other => panic!("there is no role {other}"),
        }
    });
}

#[test]
fn a_killed_holder_frees_the_lock_at_once() {
    let (_outer, directory) = scratch();
    run(async {
        let locks = open(&directory);
        let mut took = Vec::new();
        for _ in 0..5 {
            let mut holder = Actor::start("holder", &directory);
            let token: u64 = holder.hear().parse().unwrap();
            let waiting = tokio::spawn(locks.lock("x").acquire());
            while locks.inspect("x").await.unwrap().waiters.is_empty() {
                tokio::time::sleep(ms(1)).await;
            }
            holder.kill();
            let (time, guard) = timed(waiting).await;
            let guard = guard.unwrap().unwrap();
            assert!(guard.token().get() > token);
            assert!(time < secs(5), "after {time:?}");
            took.push(time);
            guard.release().await.unwrap();
        }
        println!("from the kill to the grant: {took:?}");
    });
}

#[test]
fn a_killed_waiter_is_passed_over() {
    let (_outer, directory) = scratch();
    run(async {
        let locks = open(&directory);
        let guard = locks.lock("x").acquire().await.unwrap();
        let mut waiter = Actor::start("waiter", &directory);
        waiter.hear();
        while locks.inspect("x").await.unwrap().waiters.is_empty() {
            tokio::time::sleep(ms(1)).await;
        }
        let second = tokio::spawn(locks.lock("x").acquire());
        while locks.inspect("x").await.unwrap().waiters.len() < 2 {
            tokio::time::sleep(ms(1)).await;
        }
        waiter.kill();
        assert_eq!(locks.inspect("x").await.unwrap().waiters.len(), 1, "the dead are not shown");
        let (time, _) = timed(guard.release()).await;
        let second = tokio::time::timeout(secs(2), second).await.expect("it is served").unwrap().unwrap();
        assert!(time < secs(2));
        second.release().await.unwrap();
    });
}

#[test]
fn the_dead_are_not_shown_as_holders() {
    let (_outer, directory) = scratch();
    run(async {
        let locks = open(&directory);
        let mut holder = Actor::start("two", &directory);
        holder.hear();
        assert_eq!(locks.list("", None, 10).await.unwrap().locks.len(), 2);
        holder.kill();
        assert!(!locks.inspect("x").await.unwrap().is_held());
        assert!(locks.list("", None, 10).await.unwrap().locks.is_empty());
    });
}

#[test]
fn whoever_opens_next_sweeps_up_after_the_dead() {
    let (_outer, directory) = scratch();
    run(async {
        for _ in 0..3 {
            let mut holder = Actor::start("two", &directory);
            holder.hear();
            holder.kill();
        }
        let store = Embedded::open(Config::at(&directory)).unwrap();
        assert!(store.stored_names().await.unwrap().is_empty());
        let traces = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name());
        let traces = traces.filter(|name| {
            let name = name.to_string_lossy();
            name.starts_with("live-") || name.starts_with("wake-")
        });
        assert_eq!(traces.count(), 2, "only those of this process");
    });
}

#[test]
fn a_store_that_is_closed_ends_what_is_left_of_its_claims() {
    let (_outer, directory) = scratch();
    run(async {
        let locks = open(&directory);
        let mut leaver = Actor::start("leaves", &directory);
        let token: u64 = leaver.hear().parse().unwrap();
        let guard = tokio::time::timeout(secs(5), locks.lock("x").acquire()).await.expect("in time").unwrap();
        assert!(guard.token().get() > token);
    });
}

/// The lock on the liveness file belongs to every copy of its descriptor, and `fork` copies descriptors: a child that
/// knows nothing of locks kept those of its dead parent.
#[test]
fn a_forked_child_does_not_keep_the_locks_of_its_dead_parent() {
    let (_outer, directory) = scratch();
    run(async {
        let locks = open(&directory);
        let mut parent = Actor::start("forks", &directory);
        assert_eq!(parent.hear(), "refused", "in the child, the store of the parent is closed");
        assert_eq!(parent.hear(), "forked");
        assert!(locks.inspect("x").await.unwrap().is_held(), "the fork alone ends nothing");
        parent.kill();
        let (time, guard) = timed(locks.lock("x").acquire()).await;
        drop(guard.unwrap());
        assert!(time < secs(5), "after {time:?}");
    });
}

#[expect(unsafe_code, reason = "there is no safe fork")]
fn fork_and_stay() {
    // SAFETY: the child of this threaded process only does what needs none of the other threads: one request, which
    // is refused before it reaches one, a line, a nap.
    match unsafe { libc::fork() } {
        -1 => panic!("cannot fork"),
        0 => {
            // The runtime and the store of the parent are only looked at.
            std::mem::forget(std::panic::catch_unwind(|| {
                let (_, directory) = role().unwrap();
                match Embedded::open(Config::at(directory)) {
                    Err(_) => say("refused"),
                    Ok(_) => say("opened"),
                }
            }));
            std::thread::sleep(secs(20));
            std::process::abort();
        }
        _ => std::thread::sleep(ms(300)),
    }
}

/// LMDB lets children inherit its descriptor of the data, on purpose: whoever they ran as, they could write to the store.
#[test]
fn a_program_that_is_started_gets_no_descriptor_of_the_store() {
    let (_outer, directory) = scratch();
    run(async {
        let locks = open(&directory);
        let _guard = locks.lock("x").acquire().await.unwrap();
        let listed = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert!(listed.contains(" 2 -> "), "{listed}");
        assert!(!listed.contains(directory.to_str().unwrap()), "{listed}");
    });
}

/// Whoever is given the liveness descriptor on purpose keeps the claims alive: `tenure run` depends on it.
#[test]
fn a_guardian_with_the_liveness_descriptor_keeps_the_locks() {
    let (_outer, directory) = scratch();
    run(async {
        let locks = open(&directory);
        let mut wrapper = Actor::start("guarded", &directory);
        let guardian: i32 = wrapper.hear().parse().unwrap();
        wrapper.kill();
        tokio::time::sleep(ms(300)).await;
        assert!(locks.inspect("x").await.unwrap().is_held(), "the guardian lives");
        let guardian = rustix::process::Pid::from_raw(guardian).unwrap();
        rustix::process::kill_process(guardian, Signal::KILL).unwrap();
        let (time, guard) = timed(locks.lock("x").acquire()).await;
        drop(guard.unwrap());
        assert!(time < secs(5), "after {time:?}");
    });
}

fn start_guardian(store: &Embedded) -> std::process::Child {
    use std::os::fd::AsFd as _;
    let copy = store.liveness_fd().try_clone_to_owned().unwrap();
    rustix::io::fcntl_setfd(copy.as_fd(), rustix::io::FdFlags::empty()).unwrap();
    std::process::Command::new("sleep").arg("30").spawn().unwrap()
}

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Takes locks as fast as it can, and checks under each that it is alone and that tokens rise.
async fn hammer(directory: &Path) {
    let locks = open(directory);
    say("ready");
    let ground = directory.parent().unwrap().to_path_buf();
    let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(hammer_on(locks.clone(), ground.clone()))).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

async fn hammer_on(locks: Locks, ground: PathBuf) {
    loop {
        let mut dice = [0; 2];
        SystemEntropy.fill(&mut dice);
        let name = NAMES[usize::from(dice[0]) % 3];
        let guard = locks.lock(name).ttl(secs(60)).acquire().await.unwrap();
        let token = guard.token().get();
        let path = ground.join(format!("resource-{name}"));
        let before = last_token(&path);
        if token <= before {
            violation(&ground, &format!("{name}: token {token} after {before}"));
        }
        fs::write(&path, token.to_le_bytes()).unwrap();
        for _ in 0..dice[1] % 8 {
            std::hint::spin_loop();
            tokio::task::yield_now().await;
        }
        let after = last_token(&path);
        if after != token {
            violation(&ground, &format!("{name}: {after} came in while {token} held"));
        }
        guard.release().await.unwrap();
    }
}

/// The highest token that the resource has seen; 0 if its last writer was killed before it wrote.
fn last_token(path: &Path) -> u64 {
    let stored = fs::read(path).ok().and_then(|bytes| bytes.try_into().ok());
    stored.map_or(0, u64::from_le_bytes)
}

fn violation(ground: &Path, what: &str) {
    let file = fs::OpenOptions::new().create(true).append(true).open(ground.join("violations"));
    writeln!(file.unwrap(), "{what}").unwrap();
}

/// `TENURE_KILLS=1000` for the long one.
#[test]
fn kills_at_any_moment_break_nothing() {
    let kills: usize = std::env::var("TENURE_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let (outer, directory) = scratch();
    let mut hammers: Vec<Actor> = (0..4).map(|_| Actor::start("hammer", &directory)).collect();
    let mut highest = [0; 3];
    let mut progress = 0;
    for kill in 0..kills {
        let victim = kill % hammers.len();
        // From the first moments of opening to full speed.
        std::thread::sleep(ms(30).mul_f64(SystemEntropy.fraction().powi(2)));
        hammers[victim].kill();
        hammers[victim] = Actor::start("hammer", &directory);
        for (name, highest) in NAMES.iter().zip(&mut highest) {
            let token = last_token(&outer.path().join(format!("resource-{name}")));
            progress += usize::from(token > *highest);
            *highest = token.max(*highest);
        }
    }
    assert!(progress > kills / 4, "the locks moved {progress} times over {kills} kills");
    // Those that are left still get on: nothing is stuck.
    let stuck_at = highest;
    let deadline = SystemClock.now() + secs(20);
    while NAMES
        .iter()
        .zip(stuck_at)
        .any(|(name, token)| last_token(&outer.path().join(format!("resource-{name}"))) <= token)
    {
        assert!(SystemClock.now() < deadline, "a lock is stuck");
        std::thread::sleep(ms(5));
    }
    drop(hammers);
    let violations = fs::read_to_string(outer.path().join("violations")).unwrap_or_default();
    assert_eq!(violations, "");
    run(async {
        let locks = open(&directory);
        for name in NAMES {
            let token = last_token(&outer.path().join(format!("resource-{name}")));
            let guard =
                tokio::time::timeout(secs(5), locks.lock(name).acquire()).await.expect("not stuck").unwrap();
            assert!(guard.token().get() > token);
            guard.release().await.unwrap();
        }
    });
    assert!(!directory.join("damaged.mdb").exists(), "the store was damaged");
    println!("{kills} kills, highest tokens {highest:?}");
}

#[expect(unsafe_code, reason = "opens LMDB past the store")]
fn stand_inside_a_transaction(directory: &Path) {
    // SAFETY: as in the store itself, whose directory this is.
    let env = unsafe { heed::EnvOpenOptions::new().map_size(1 << 30).open(directory) }.unwrap();
    let txn = env.write_txn().unwrap();
    say("inside");
    listen();
    txn.abort();
}

/// A writer stopped inside a transaction blocks the directory: others are told so in time, and go on when it does, or
/// when it dies.
#[test]
fn a_stopped_writer_is_told_of_in_time() {
    let (_outer, directory) = scratch();
    run(async {
        let mut config = Config::at(&directory);
        config.timeout = ms(300);
        let locks = Locks::new(Embedded::open(config).unwrap());
        for is_killed in [false, true] {
            let mut writer = Actor::start("writer", &directory);
            assert_eq!(writer.hear(), "inside");
            writer.signal(Signal::STOP);
            let (time, refused) = timed(locks.lock("x").try_acquire()).await;
            let refused = refused.unwrap_err();
            assert!(time < secs(4), "after {time:?}");
            assert!(matches!(refused, tenure_core::Error::Unavailable { .. }), "{refused}");
            assert!(refused.to_string().contains("stopped inside a transaction"), "{refused}");
            if is_killed {
                writer.kill();
            } else {
                writer.tell("go on");
                writer.signal(Signal::CONT);
            }
            let guard =
                tokio::time::timeout(secs(5), locks.lock("x").acquire()).await.expect("in time").unwrap();
            guard.release().await.unwrap();
        }
    });
}
