//! Killed or stopped, whichever process it is: nobody ever runs beside another.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tenure::clock::{Clock, SystemClock};

use crate::running::{holding, waiting};
use crate::support::{Running, Scene, code, eventually, is_alive, is_full, next_line};

/// What the issue asks for, where nothing else runs on the machine.
fn at_once() -> Duration {
    if is_full() { Duration::from_millis(200) } else { Duration::from_secs(2) }
}

/// A command with a grandchild, both of which note their pids and live for ever, and do not go when asked.
const FAMILY: &str = "trap '' TERM INT HUP; echo $$ > child; \
    sh -c 'trap \"\" TERM INT HUP; echo $$ > grandchild; while :; do sleep 0.05; done' & \
    while :; do sleep 0.05; done";

/// A waiter whose command tells who of the family it found alive.
fn successor(scene: &Scene) -> Running {
    // A zombie runs no more, whoever has yet to reap it.
    let script = "for who in child grandchild; do \
        grep -q '^State:.[^ZX]' /proc/$(cat $who)/status 2>/dev/null && echo $who >> beside; done; exit 0";
    let waiter = Running::start(&mut scene.run("x", script));
    waiting(scene, "x", 1);
    waiter
}

#[test]
fn a_killed_holder_is_followed_at_once_not_after_its_ttl() {
    let scene = Scene::new();
    let mut holder = holding(&scene, "x --ttl 1h");
    let mut next = Running::start(&mut scene.run("x", "true"));
    waiting(&scene, "x", 1);
    let killed = SystemClock.now();
    holder.0.kill().unwrap();
    assert_eq!(next.ended(), 0);
    let took = SystemClock.now().saturating_since(killed);
    assert!(took < at_once(), "{took:?}");
}

#[test]
fn a_killed_wrapper_takes_its_whole_family_along_before_anyone_else_runs() {
    let scene = Scene::new();
    let mut run = Running::start(&mut scene.run("x --ttl 1h", FAMILY));
    let (child, grandchild) = (scene.pid_in("child"), scene.pid_in("grandchild"));
    let mut next = successor(&scene);
    let killed = SystemClock.now();
    run.0.kill().unwrap();
    eventually("the end of the family", || (!is_alive(child) && !is_alive(grandchild)).then_some(()));
    let took = SystemClock.now().saturating_since(killed);
    assert!(took < at_once(), "{took:?}");
    assert_eq!(next.ended(), 0);
    assert_eq!(scene.read("beside"), "");
}

#[test]
fn a_killed_waiter_leaves_neither_its_place_nor_its_guardian() {
    let scene = Scene::new();
    let _holder = holding(&scene, "x");
    let mut waiter = Running::start(&mut scene.run("x", "true"));
    waiting(&scene, "x", 1);
    let guardian = waiter.guardian();
    waiter.0.kill().unwrap();
    eventually("the end of the guardian", || (!is_alive(guardian)).then_some(()));
    waiting(&scene, "x", 0);
}

#[test]
fn a_grandchild_in_a_session_of_its_own_does_not_escape() {
    let scene = Scene::new();
    let script = "setsid sh -c 'echo $$ > grandchild; exec sleep 1000' & echo $$ > child; exec sleep 1000";
    let mut run = Running::start(&mut scene.run("x --ttl 1h", script));
    let (child, grandchild) = (scene.pid_in("child"), scene.pid_in("grandchild"));
    run.0.kill().unwrap();
    eventually("the end of the family", || (!is_alive(child) && !is_alive(grandchild)).then_some(()));
}

#[test]
fn a_killed_guardian_takes_the_family_along_and_is_told() {
    let scene = Scene::new();
    let mut run = Running::start(scene.run("x --ttl 1h", FAMILY).stderr(Stdio::piped()));
    let (child, grandchild) = (scene.pid_in("child"), scene.pid_in("grandchild"));
    let mut next = successor(&scene);
    kill_process(run.guardian(), Signal::KILL).unwrap();
    assert_eq!(run.ended(), 70);
    assert!(!is_alive(child) && !is_alive(grandchild));
    let told = std::io::read_to_string(run.0.stderr.take().unwrap()).unwrap();
    assert!(told.contains("guardian"), "{told}");
    assert_eq!(next.ended(), 0);
    assert_eq!(scene.read("beside"), "");
}

#[test]
fn a_wrapper_stopped_past_the_ttl_finds_its_command_ended_and_exits_76() {
    let scene = Scene::new();
    let mut run = Running::start(scene.run("x --ttl 2s --grace 500ms", FAMILY).stderr(Stdio::piped()));
    let (child, grandchild) = (scene.pid_in("child"), scene.pid_in("grandchild"));
    let mut next = successor(&scene);
    run.send(Signal::STOP);
    assert_eq!(next.ended(), 0);
    assert_eq!(scene.read("beside"), "");
    assert!(!is_alive(child) && !is_alive(grandchild));
    run.send(Signal::CONT);
    assert_eq!(run.ended(), 76);
    let told = std::io::read_to_string(run.0.stderr.take().unwrap()).unwrap();
    assert!(told.contains("\"x\"") && told.contains("was lost"), "{told}");
    assert!(told.contains("a longer --ttl"), "{told}");
    assert!(scene.is_free("x"));
}

#[test]
fn a_command_gets_its_grace_before_it_is_killed() {
    let scene = Scene::new();
    let script = "trap 'echo term > asked; exit 0' TERM; echo $$ > child; while :; do sleep 0.02; done";
    let mut run = Running::start(&mut scene.run("x --ttl 2s --grace 1s", script));
    scene.pid_in("child");
    run.send(Signal::STOP);
    assert_eq!(scene.line_of("asked"), "term");
    run.send(Signal::CONT);
    assert_eq!(run.ended(), 76);
}

#[test]
fn a_guardian_stopped_past_the_ttl_is_continued_and_the_command_stays_covered() {
    let scene = Scene::new();
    let script = "echo $$ > child; while ! test -e stop; do sleep 0.02; done; exit 5";
    let mut run = Running::start(scene.run("x --ttl 1s -v", script).stderr(Stdio::piped()));
    let child = scene.pid_in("child");
    let guardian = run.guardian();
    kill_process(guardian, Signal::STOP).unwrap();
    // Until well past the ttl, whoever asks finds it held and running.
    let stopped = SystemClock.now();
    while SystemClock.now() < stopped + Duration::from_millis(2500) {
        assert!(!scene.is_free("x"));
        assert!(is_alive(child));
        std::thread::sleep(Duration::from_millis(100));
    }
    fs::write(scene.path("stop"), "").unwrap();
    assert_eq!(run.ended(), 5);
    let told = std::io::read_to_string(run.0.stderr.take().unwrap()).unwrap();
    assert!(told.contains("the guardian does not answer"), "{told}");
    assert!(scene.is_free("x"));
}

#[test]
fn a_lease_lost_while_the_guardian_is_stopped_still_ends_the_command() {
    let scene = Scene::new();
    let mut run = Running::start(&mut scene.run("x --ttl 2s --grace 200ms", FAMILY));
    let (child, grandchild) = (scene.pid_in("child"), scene.pid_in("grandchild"));
    let mut next = successor(&scene);
    // Stopped again and again, so that being continued does not help.
    let guardian = run.guardian();
    kill_process(guardian, Signal::STOP).unwrap();
    let evicted = scene.tenure("evict x --reason maintenance").output().unwrap();
    assert!(evicted.status.success());
    let code = eventually("the end", || {
        let _ = kill_process(guardian, Signal::STOP);
        run.0.try_wait().unwrap()
    });
    assert_eq!(code.code(), Some(76));
    assert!(!is_alive(child) && !is_alive(grandchild));
    assert_eq!(next.ended(), 0);
    assert_eq!(scene.read("beside"), "");
}

#[test]
fn a_command_stopped_past_the_ttl_keeps_its_lock() {
    let scene = Scene::new();
    let script = "echo $$ > child; while ! test -e stop; do sleep 0.02; done; exit 5";
    let mut run = Running::start(&mut scene.run("x --ttl 500ms", script));
    let child = scene.pid_in("child");
    kill_process(child, Signal::STOP).unwrap();
    let stopped = SystemClock.now();
    while SystemClock.now() < stopped + Duration::from_millis(1500) {
        assert!(!scene.is_free("x"));
        std::thread::sleep(Duration::from_millis(50));
    }
    kill_process(child, Signal::CONT).unwrap();
    fs::write(scene.path("stop"), "").unwrap();
    assert_eq!(run.ended(), 5);
}

#[test]
fn an_evicted_run_ends_its_command_and_exits_76() {
    let scene = Scene::new();
    let script = "trap 'echo term > asked; exit 0' TERM; echo $$ > child; while :; do sleep 0.02; done";
    let mut run = Running::start(scene.run("x", script).stderr(Stdio::piped()));
    scene.pid_in("child");
    let mut next = Running::start(&mut scene.run("x", "true"));
    waiting(&scene, "x", 1);
    assert!(
        scene.tenure("evict x --force").args(["--reason", "stuck since noon"]).status().unwrap().success()
    );
    assert_eq!(run.ended(), 76);
    assert_eq!(scene.line_of("asked"), "term");
    let told = std::io::read_to_string(run.0.stderr.take().unwrap()).unwrap();
    assert!(told.contains("stuck since noon") && !told.contains("--ttl"), "{told}");
    assert_eq!(next.ended(), 0);
}

/// The store forgot the lock while the command ran: only giving it back tells, and the exit code was that of the command.
#[test]
fn a_lock_that_is_gone_when_the_command_ends_is_told_with_76() {
    let scene = Scene::new();
    let gone = scene.run("x", "rm -r store; exit 3").output().unwrap();
    let told = String::from_utf8_lossy(&gone.stderr);
    assert_eq!(code(&gone), 76, "{told}");
    assert!(told.contains("no longer knows the claim") && told.contains("perhaps beside another"), "{told}");
    let ignored = scene.run("x --on-lost ignore", "rm -r store; exit 3").output().unwrap();
    assert_eq!(code(&ignored), 3);
    assert_eq!(ignored.stderr, gone.stderr);
}

/// Pages of nonsense ended the store thread with a panic, and the program as if all were well.
#[test]
fn a_store_damaged_under_a_command_is_told_of_without_a_panic() {
    let scene = Scene::new();
    let damage = "head -c 8192 /dev/zero | tr '\\0' '\\377' | dd of=store/data.mdb conv=notrunc status=none";
    let run = scene.run("x", damage).output().unwrap();
    let told = String::from_utf8_lossy(&run.stderr);
    assert_eq!(code(&run), 0, "the lock was held to the end: {told}");
    assert!(told.contains("could not be given back") && told.contains("is damaged"), "{told}");
    assert!(told.lines().all(|line| line.starts_with("tenure:")), "{told}");
    assert_eq!(code(&scene.run("x", "true").output().unwrap()), 0, "who comes next starts afresh");
    assert!(scene.path("store/damaged.mdb").exists());
}

#[test]
fn on_lost_ignore_lets_the_command_run_on_and_passes_its_code() {
    let scene = Scene::new();
    let script = "echo $$ > child; while ! test -e stop; do sleep 0.02; done; exit 5";
    let mut run = Running::start(scene.run("x --ttl 1s --on-lost ignore", script).stderr(Stdio::piped()));
    scene.pid_in("child");
    run.send(Signal::STOP);
    assert_eq!(scene.run("x", "true").status().unwrap().code(), Some(0));
    run.send(Signal::CONT);
    fs::write(scene.path("stop"), "").unwrap();
    assert_eq!(run.ended(), 5);
    let told = std::io::read_to_string(run.0.stderr.take().unwrap()).unwrap();
    assert!(told.contains("ran on"), "{told}");
}

#[test]
fn with_on_lost_ignore_even_a_killed_wrapper_leaves_the_command_alone() {
    let scene = Scene::new();
    let script = "echo $$ > child; while ! test -e stop; do sleep 0.02; done; echo over > over";
    let mut run = Running::start(&mut scene.run("x --ttl 1h --on-lost ignore", script));
    let (child, guardian) = (scene.pid_in("child"), run.guardian());
    run.0.kill().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(is_alive(child) && !scene.is_free("x"));
    // It waits, and does not spin: in hundredths of a second, fields 14 and 15.
    let stat = fs::read_to_string(format!("/proc/{}/stat", guardian.as_raw_pid())).unwrap();
    let times = stat[stat.rfind(')').unwrap()..].split(' ').skip(12).take(2);
    assert!(times.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>() < 15, "{stat}");
    fs::write(scene.path("stop"), "").unwrap();
    assert_eq!(scene.line_of("over"), "over");
    eventually("the end of the claim", || scene.is_free("x").then_some(()));
}

#[test]
fn a_child_that_died_of_a_signal_leaves_nothing_running() {
    let scene = Scene::new();
    let script = "sh -c 'echo $$ > grandchild; exec sleep 1000' & while ! test -s grandchild; do sleep 0.01; done; kill -9 $$";
    let mut run = Running::start(&mut scene.run("x", script));
    assert_eq!(run.ended(), 137);
    assert!(!is_alive(scene.pid_in("grandchild")));
}

#[test]
fn the_lock_is_held_until_the_command_is_reaped() {
    let scene = Scene::new();
    let mut run = Running::start(
        scene
            .run("x", "trap 'sleep 0.3; exit 0' TERM; echo ready; while :; do sleep 0.01; done")
            .stdout(Stdio::piped()),
    );
    assert_eq!(next_line(&mut run.lines()), "ready");
    run.send(Signal::TERM);
    let mut held = 0;
    while run.0.try_wait().unwrap().is_none() {
        held += usize::from(!scene.is_free("x"));
    }
    assert!(held > 0 && scene.is_free("x"));
}
