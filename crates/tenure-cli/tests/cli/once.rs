//! `once`: at most one success, whose output everybody gets.

use std::fs;
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tenure::clock::{Clock, SystemClock};

use crate::running::waiting;
use crate::support::{Running, Scene, code, is_alive, next_line, parent, stderr, stdout};

/// What a caller sees who is to do it with `script`.
fn call(scene: &Scene, script: &str) -> (i32, String) {
    let output = scene.once("x", script).output().unwrap();
    (code(&output), stdout(&output))
}

fn status(scene: &Scene) -> i32 {
    code(&scene.tenure("once x --status").output().unwrap())
}

/// Three failures and then a success run the body four times; a fifth call gets the result without running it.
fn failures_count_for_nothing(scene: &Scene) {
    let body = "echo run >> runs; n=$(wc -l < runs); echo output $n; test $n -eq 4 || exit $n";
    for n in 1..=3 {
        assert_eq!(call(scene, body), (n, format!("output {n}\n")));
        assert_eq!(status(scene), 1);
    }
    assert_eq!(call(scene, body), (0, "output 4\n".into()));
    assert_eq!(status(scene), 0);
    assert_eq!(call(scene, body), (0, "output 4\n".into()));
    assert_eq!(scene.read("runs"), "run\n".repeat(4));
}

#[test]
fn failures_count_for_nothing_on_files() {
    failures_count_for_nothing(&Scene::new());
}

#[test]
fn failures_count_for_nothing_on_redis() {
    failures_count_for_nothing(&Scene::on_redis());
}

/// Many callers at once, and whoever is first is killed at work: one other does it, and all get what that one wrote.
fn one_of_many_settles_although_the_first_is_killed(scene: &Scene) {
    let body = "echo $$ >> runs; if mkdir first 2>/dev/null; then echo $$ > victim; exec sleep 1000; fi; echo done by $$";
    let mut callers: Vec<Running> =
        (0..50).map(|_| Running::start(scene.once("x --ttl 2s", body).stdout(Stdio::piped()))).collect();
    let command = scene.pid_in("victim");
    let wrapper = parent(parent(command).unwrap()).unwrap();
    waiting(scene, "x", callers.len() - 1);
    let victim = callers.iter().position(|caller| caller.pid() == wrapper).unwrap();
    callers.remove(victim).0.kill().unwrap();
    let mut results: Vec<(i32, String)> = callers
        .iter_mut()
        .map(|caller| (caller.ended(), std::io::read_to_string(caller.0.stdout.take().unwrap()).unwrap()))
        .collect();
    results.dedup();
    let runs = scene.read("runs");
    let [first, second] = runs.lines().collect::<Vec<_>>()[..] else { panic!("ran: {runs}") };
    assert_ne!(first, second);
    assert_eq!(results, [(0, format!("done by {second}\n"))]);
    assert!(!is_alive(command));
    assert_eq!(status(scene), 0);
}

#[test]
fn one_of_many_settles_on_files() {
    one_of_many_settles_although_the_first_is_killed(&Scene::new());
}

#[test]
fn one_of_many_settles_on_redis() {
    one_of_many_settles_although_the_first_is_killed(&Scene::on_redis());
}

#[test]
fn output_is_repeated_byte_for_byte() {
    let scene = Scene::new();
    let first = scene.once("x", "printf 'a\\000b\\377\\n\\n'; echo not this >&2").output().unwrap();
    let second = scene.once("x", "echo must not run").output().unwrap();
    assert_eq!(first.stdout, b"a\0b\xff\n\n");
    assert_eq!((second.stdout, second.stderr), (first.stdout, Vec::new()));
}

#[test]
fn too_much_output_is_cut_in_the_record_and_nothing_is_done_twice() {
    let scene = Scene::new();
    let first = scene.once("x", "echo run >> runs; yes | head -c 1000000").output().unwrap();
    assert_eq!((code(&first), first.stdout.len(), stderr(&first).as_str()), (0, 1_000_000, ""));
    for _ in 0..2 {
        let later = scene.once("x", "echo run >> runs").output().unwrap();
        assert_eq!((code(&later), later.stdout.len()), (0, 256 * 1024 - 13));
        assert!(first.stdout.starts_with(&later.stdout));
        let told = stderr(&later);
        assert!(told.contains("only the first 262131 bytes of 1000000"), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    assert_eq!(scene.read("runs"), "run\n");
}

#[test]
fn output_comes_while_the_command_runs() {
    let scene = Scene::new();
    let script = "echo first; while ! test -e go; do sleep 0.01; done; echo last";
    let mut run = Running::start(scene.once("x", script).stdout(Stdio::piped()));
    let mut lines = run.lines();
    assert_eq!(next_line(&mut lines), "first");
    fs::write(scene.path("go"), "").unwrap();
    assert_eq!(next_line(&mut lines), "last");
    assert_eq!(run.ended(), 0);
}

/// A pipe that nobody empties stops the command, and nothing else: the lease is renewed past several ttls.
#[test]
fn a_slow_reader_costs_no_lease() {
    let scene = Scene::new();
    let script = "echo $$ > child; head -c 1000000 /dev/zero";
    let mut run = Running::start(scene.once("x --ttl 500ms", script).stdout(Stdio::piped()));
    scene.pid_in("child");
    let begun = SystemClock.now();
    while SystemClock.now() < begun + Duration::from_secs(2) {
        assert_eq!(status(&scene), 75);
    }
    let mut output = Vec::new();
    run.lines().read_to_end(&mut output).unwrap();
    assert_eq!((output.len(), run.ended(), status(&scene)), (1_000_000, 0, 0));
}

#[test]
fn what_a_command_leaves_running_is_not_waited_for() {
    let scene = Scene::new();
    // It also writes for ever: what comes after the command's end is not the command's.
    let script =
        "(echo $BASHPID > left; exec yes) & while ! test -s left; do sleep 0.01; done; echo done >&2";
    let mut bash = scene.tenure("once x -- bash -c");
    let mut run = Running::start(bash.arg(script).stdout(Stdio::null()).stderr(Stdio::piped()));
    assert_eq!(run.ended(), 0);
    let told = std::io::read_to_string(run.0.stderr.take().unwrap()).unwrap();
    assert!(told.contains("left 1 process running"), "{told}");
    assert_eq!(status(&scene), 0);
}

#[test]
fn a_run_in_progress_is_waited_for_or_told_of() {
    let scene = Scene::new();
    let script = "echo ready; while ! test -e go; do sleep 0.01; done";
    let mut run = Running::start(scene.once("x", script).stdout(Stdio::piped()));
    assert_eq!(next_line(&mut run.lines()), "ready");
    for options in ["x -n", "x --wait 0", "x --wait 20ms"] {
        let output = scene.once(options, "echo must not run").output().unwrap();
        let told = stderr(&output);
        assert_eq!((code(&output), stdout(&output).as_str()), (75, ""), "{options}: {told}");
        assert!(told.contains("in progress, by ") && told.contains("--wait"), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    assert_eq!(status(&scene), 75);
    let waiter = Running::start(scene.once("x", "echo must not run").stdout(Stdio::piped()));
    waiting(&scene, "x", 1);
    fs::write(scene.path("go"), "").unwrap();
    let output = { waiter }.0.stdout.take().map(std::io::read_to_string).unwrap().unwrap();
    assert_eq!((run.ended(), output.as_str()), (0, "ready\n"));
}

#[test]
fn a_failure_hands_over_to_whoever_waits() {
    let scene = Scene::new();
    let script = "echo ready; while ! test -e go; do sleep 0.01; done; exit 9";
    let mut run = Running::start(scene.once("x --ttl 1h", script).stdout(Stdio::piped()));
    assert_eq!(next_line(&mut run.lines()), "ready");
    let mut waiter = Running::start(scene.once("x", "echo second").stdout(Stdio::piped()));
    waiting(&scene, "x", 1);
    fs::write(scene.path("go"), "").unwrap();
    assert_eq!(run.ended(), 9);
    assert_eq!(next_line(&mut waiter.lines()), "second");
    assert_eq!(waiter.ended(), 0);
}

#[test]
fn signals_reach_the_command_and_leave_it_undone() {
    let scene = Scene::new();
    let mut run = Running::start(scene.once("x", "echo ready; exec sleep 1000").stdout(Stdio::piped()));
    assert_eq!(next_line(&mut run.lines()), "ready");
    let mut waiter = Running::start(&mut scene.once("x", "true"));
    waiting(&scene, "x", 1);
    waiter.send(Signal::TERM);
    assert_eq!(waiter.ended(), 143);
    run.send(Signal::TERM);
    assert_eq!((run.ended(), status(&scene)), (143, 1));
}

/// The library drops its work when the lease is lost, and then gives up the claim. The command must be gone by then,
/// and is not killed without warning.
fn an_evicted_command_gets_its_grace_and_nobody_runs_beside_it(scene: &Scene) {
    let script = "trap 'echo asked > asked; echo last words; while :; do sleep 0.02; done' TERM; \
        echo $$ > child; while :; do sleep 0.02; done";
    let mut run =
        Running::start(scene.once("x --ttl 4s", script).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let child = scene.pid_in("child");
    let look = "grep -q '^State:.[^ZX]' /proc/$(cat child)/status 2>/dev/null && echo beside; echo next";
    let mut next = Running::start(scene.once("x", look).stdout(Stdio::piped()));
    waiting(scene, "x", 1);
    assert!(scene.tenure("evict x --reason maintenance").output().unwrap().status.success());
    assert_eq!(run.ended(), 76);
    assert!(!is_alive(child));
    assert_eq!(scene.line_of("asked"), "asked");
    assert_eq!(next_line(&mut run.lines()), "last words");
    let told = std::io::read_to_string(run.0.stderr.take().unwrap()).unwrap();
    assert!(told.contains("was lost") && told.contains("maintenance"), "{told}");
    assert_eq!(next_line(&mut next.lines()), "next");
    assert_eq!(next.ended(), 0);
}

#[test]
fn an_evicted_command_gets_its_grace_on_files() {
    an_evicted_command_gets_its_grace_and_nobody_runs_beside_it(&Scene::new());
}

#[test]
fn an_evicted_command_gets_its_grace_on_redis() {
    an_evicted_command_gets_its_grace_and_nobody_runs_beside_it(&Scene::on_redis());
}

/// Stopped past its ttl: the next caller does it, and the first does not claim that it did.
fn a_stopped_run_is_not_settled(scene: &Scene) {
    let script = "echo $$ > child; while ! test -e go; do sleep 0.02; done; echo first";
    let mut run = Running::start(scene.once("x --ttl 1s", script).stdout(Stdio::null()));
    let child = scene.pid_in("child");
    run.send(Signal::STOP);
    let look = "grep -q '^State:.[^ZX]' /proc/$(cat child)/status 2>/dev/null && echo beside; echo second";
    assert_eq!(call(scene, look), (0, "second\n".into()));
    assert!(!is_alive(child));
    run.send(Signal::CONT);
    assert_eq!(run.ended(), 76);
    assert_eq!(call(scene, "echo must not run"), (0, "second\n".into()));
}

#[test]
fn a_stopped_run_is_not_settled_on_files() {
    a_stopped_run_is_not_settled(&Scene::new());
}

#[test]
fn a_stopped_run_is_not_settled_on_redis() {
    a_stopped_run_is_not_settled(&Scene::on_redis());
}

#[test]
fn a_success_that_could_not_be_recorded_is_told() {
    let mut scene = Scene::on_redis();
    let script = "echo $$ > child; while ! test -e go; do sleep 0.02; done; echo out";
    let mut run =
        Running::start(scene.once("x --ttl 3s", script).stdout(Stdio::piped()).stderr(Stdio::piped()));
    scene.pid_in("child");
    scene.server.as_mut().unwrap().kill();
    fs::write(scene.path("go"), "").unwrap();
    assert_eq!(run.ended(), 76);
    assert_eq!(next_line(&mut run.lines()), "out");
    let told = std::io::read_to_string(run.0.stderr.take().unwrap()).unwrap();
    assert!(told.contains("was done") && told.contains("may do it again"), "{told}");
}

/// Asked to end because its lease is about to, a command may well exit 0; it has not done what it was to do.
#[test]
fn a_command_that_was_asked_to_end_is_not_done_whatever_its_exit_code() {
    let scene = Scene::on_redis();
    let script = "trap 'echo asked > asked; exit 0' TERM; echo $$ > child; while :; do sleep 0.02; done";
    let mut run = Running::start(scene.once("x --ttl 3s", script).stdout(Stdio::null()));
    scene.pid_in("child");
    let server = scene.server.as_ref().unwrap();
    server.pause();
    assert_eq!(scene.line_of("asked"), "asked");
    server.resume();
    assert_eq!(run.ended(), 76);
    assert_eq!(status(&scene), 1);
}

#[test]
fn a_killed_guardian_leaves_it_undone() {
    let scene = Scene::new();
    let mut run = Running::start(&mut scene.once("x --ttl 1h", "echo $$ > child; exec sleep 1000"));
    let child = scene.pid_in("child");
    kill_process(run.guardian(), Signal::KILL).unwrap();
    assert_eq!(run.ended(), 70);
    assert!(!is_alive(child));
    assert_eq!(call(&scene, "echo second"), (0, "second\n".into()));
}

#[test]
fn a_record_is_kept_as_long_as_asked_and_may_be_forgotten() {
    let scene = Scene::new();
    assert_eq!(code(&scene.once("x --keep 300ms", "echo 1").output().unwrap()), 0);
    crate::support::eventually("the end of the record", || (status(&scene) == 1).then_some(()));
    assert_eq!(call(&scene, "echo 2"), (0, "2\n".into()));
    let forget = || code(&scene.tenure("once x --forget").output().unwrap());
    assert_eq!((forget(), forget()), (0, 1));
    assert_eq!(call(&scene, "echo 3"), (0, "3\n".into()));
    let status = scene.tenure("once x --status --json").output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!((&status["name"], &status["status"]), (&"x".into(), &"done".into()));
    assert!(status["kept_for_ms"].as_u64().unwrap() > 86_000_000);
}

#[test]
fn a_reader_that_goes_away_ends_the_command_as_it_would_without_us() {
    let scene = Scene::new();
    let mut run = Running::start(scene.tenure("once x -- yes").stdout(Stdio::piped()));
    assert_eq!(next_line(&mut run.lines()), "y");
    assert_eq!((run.ended(), status(&scene)), (141, 1));
}

#[test]
fn a_nested_once_of_the_same_name_is_refused() {
    let scene = Scene::new();
    let output =
        scene.once("x", &format!("{} once x -- true", env!("CARGO_BIN_EXE_tenure"))).output().unwrap();
    assert_eq!(code(&output), 78);
    assert!(stderr(&output).contains("wait for itself"), "{}", stderr(&output));
}

#[test]
fn a_reason_is_told_and_busy_is_what_was_asked_for() {
    let scene = Scene::new();
    let script = "echo $$ > child; while ! test -e stop; do sleep 0.02; done";
    let mut once = Running::start(&mut scene.once("x --reason first --grace 1s", script));
    scene.pid_in("child");
    assert!(stdout(&scene.tenure("show x").output().unwrap()).contains("first"));
    assert_eq!(code(&scene.once("x -n -E 9", "true").output().unwrap()), 9);
    fs::write(scene.path("stop"), "").unwrap();
    assert_eq!(once.ended(), 0);
}
