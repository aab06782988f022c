//! Readers, writers and permits, each a process of its own.

use std::process::Stdio;

use rustix::process::Signal;

use crate::running::{holding, waiting};
use crate::support::{Running, Scene, code, is_full, parent};

/// Readers run together. With a writer in line, later readers wait behind it: it is not starved.
fn a_writer_in_line_is_not_passed(scene: &Scene) {
    let mut readers = [holding(scene, "x -s"), holding(scene, "x -s")];
    let mut line = Vec::new();
    for (options, name) in [("x", "writer"), ("x -s", "reader"), ("x -s", "reader"), ("x", "writer")] {
        line.push(Running::start(&mut scene.run(options, &format!("echo {name} >> order"))));
        waiting(scene, "x", line.len());
    }
    assert_eq!(code(&scene.run("x -s -n", "true").output().unwrap()), 75, "there is a line");
    for reader in &mut readers {
        assert_eq!(scene.read("order"), "", "one reader is enough to keep the writer out");
        reader.send(Signal::TERM);
        assert_eq!(reader.ended(), 143);
    }
    for party in &mut line {
        assert_eq!(party.ended(), 0);
    }
    assert_eq!(scene.read("order"), "writer\nreader\nreader\nwriter\n");
}

#[test]
fn a_writer_in_line_is_not_passed_on_files() {
    a_writer_in_line_is_not_passed(&Scene::new());
}

#[test]
fn a_writer_in_line_is_not_passed_on_redis() {
    a_writer_in_line_is_not_passed(&Scene::on_redis());
}

/// Both readers behind a writer are granted together: each waits for the other to have begun.
#[test]
fn readers_behind_a_writer_run_together() {
    let scene = Scene::new();
    let writer = holding(&scene, "x");
    let meet = |me: &str, other: &str| format!("echo > {me}; while ! test -e {other}; do sleep 0.01; done");
    let mut readers =
        [meet("a", "b"), meet("b", "a")].map(|script| Running::start(&mut scene.run("x -s", &script)));
    waiting(&scene, "x", 2);
    writer.send(Signal::TERM);
    assert_eq!(readers.each_mut().map(Running::ended), [0, 0]);
}

const PERMITS: usize = 10;
const VICTIMS: usize = 5;

/// The first few holders stay until they are killed. Everybody notes when it began and ended, in hundredths of a second
/// since boot.
const HOLDER: &str = "read -r up _ < /proc/uptime; echo + $up >> log; \
    for i in 1 2 3 4 5; do if mkdir taken.$i 2>/dev/null; then echo $$ > victim.$i; exec sleep 1000; fi; done; \
    sleep 0.1; read -r up _ < /proc/uptime; echo - $up >> log";

/// Many claims on ten permits: never more than ten hold, also when holders are killed.
fn permits_are_never_exceeded(scene: &Scene) {
    let claims = if is_full() { 100 } else { 25 };
    let options = format!("p --ttl 2s --permits 1/{PERMITS}");
    let mut claimants: Vec<Running> =
        (0..claims).map(|_| Running::start(scene.run(&options, HOLDER).stdout(Stdio::null()))).collect();
    let victims: Vec<_> = (1..=VICTIMS).map(|i| scene.pid_in(&format!("victim.{i}"))).collect();
    let mut log = String::new();
    for victim in victims {
        let wrapper = parent(parent(victim).unwrap()).unwrap();
        let killed = claimants.iter().position(|claimant| claimant.pid() == wrapper).unwrap();
        let up = std::fs::read_to_string("/proc/uptime").unwrap();
        claimants.remove(killed).0.kill().unwrap();
        log += &format!("- {}\n", up.split(' ').next().unwrap());
    }
    for claimant in &mut claimants {
        assert_eq!(claimant.ended(), 0);
    }
    log += &scene.read("log");
    // Who ended in the same hundredth as another began, ended first.
    let mut events: Vec<(u64, bool)> = log
        .lines()
        .map(|line| (line[2..].replace('.', "").parse().unwrap(), line.starts_with('+')))
        .collect();
    events.sort_unstable();
    let (mut holders, mut most) = (0, 0);
    for (_, begins) in events {
        holders = if begins { holders + 1 } else { holders - 1 };
        most = most.max(holders);
    }
    assert_eq!(log.matches('+').count(), claims);
    assert_eq!(holders, 0);
    assert!((VICTIMS..=PERMITS).contains(&most), "{most} at once");
}

#[test]
fn permits_are_never_exceeded_on_files() {
    permits_are_never_exceeded(&Scene::new());
}

#[test]
fn permits_are_never_exceeded_on_redis() {
    permits_are_never_exceeded(&Scene::on_redis());
}
