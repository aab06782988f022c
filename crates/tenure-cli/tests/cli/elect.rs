//! `elect`: one leads, the others stand by, and no two lead at once.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::running::waiting;
use crate::support::{Running, Scene, code, eventually, is_alive, is_full, next_line, parent, stdout};

fn elect(scene: &Scene, options: &str, script: &str) -> Command {
    let mut command = scene.tenure(&format!("elect x {options}"));
    command.args(["--", "sh", "-c", script]);
    command
}

/// A leader that tells of itself every few milliseconds, in nanoseconds since boot as it sees them, until `stop` is there.
/// What it wrote last is the end of its lead as its work saw it.
const TERM_OF_OFFICE: &str = "echo $$ > leader.$TENURE_TOKEN; trap '' TERM; \
    while ! test -e stop; do read -r up _ < /proc/uptime; echo $TENURE_TOKEN $up >> terms; sleep 0.01; done";

/// The terms of office by token: when each began and ended, in hundredths of a second.
fn terms(scene: &Scene) -> Vec<(u64, u64, u64)> {
    let mut terms: Vec<(u64, u64, u64)> = Vec::new();
    let text = scene.read("terms");
    // A line that crosses a page of the file can be read half written: only whole ones count.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines() {
        let (token, at) = line.split_once(' ').unwrap();
        let (token, at) = (token.parse().unwrap(), at.replace('.', "").parse().unwrap());
        match terms.iter_mut().find(|term| term.0 == token) {
            Some(term) => term.2 = at,
            None => terms.push((token, at, at)),
        }
    }
    terms.sort_unstable();
    terms
}

fn leader(scene: &Scene, after: usize) -> u64 {
    eventually("a new leader", || terms(scene).get(after).map(|term| term.0))
}

/// Whoever leads is stopped past its ttl, three times over. When the next leads, the old command is gone, and the terms
/// that the leaders recorded themselves do not overlap. The stopped ones stand again.
fn no_two_lead_at_once(scene: &Scene) {
    let candidates: Vec<Running> = (0..3)
        .map(|_| {
            let mut candidate = elect(scene, "--ttl 1s --grace 200ms", TERM_OF_OFFICE);
            let told = fs::File::options().create(true).append(true).open(scene.path("told")).unwrap();
            Running::start(candidate.stderr(told))
        })
        .collect();
    let rounds = if is_full() { 10 } else { 3 };
    for round in 0..rounds {
        let token = leader(scene, round);
        let command = scene.pid_in(&format!("leader.{token}"));
        let wrapper = parent(parent(command).unwrap()).unwrap();
        let candidate = candidates.iter().find(|candidate| candidate.pid() == wrapper).unwrap();
        candidate.send(Signal::STOP);
        leader(scene, round + 1);
        assert!(!is_alive(command), "the command of the old leader runs beside the new one");
        candidate.send(Signal::CONT);
    }
    fs::write(scene.path("stop"), "").unwrap();
    for mut candidate in candidates {
        // All lead in turn now, for no time at all.
        assert_eq!(candidate.ended(), 0);
    }
    // Every stopped one found that it had lost the lead.
    assert_eq!(scene.read("told").matches("was lost").count(), rounds, "{}", scene.read("told"));
    for pair in terms(scene).windows(2) {
        assert!(pair[0].0 < pair[1].0 && pair[0].2 <= pair[1].1, "{pair:?} overlap");
    }
}

#[test]
fn no_two_lead_at_once_on_files() {
    no_two_lead_at_once(&Scene::new());
}

#[test]
fn no_two_lead_at_once_on_redis() {
    no_two_lead_at_once(&Scene::on_redis());
}

#[test]
fn the_end_of_the_command_is_the_end_of_the_candidate() {
    let scene = Scene::new();
    let output = elect(&scene, "", "echo led; exit 7").output().unwrap();
    assert_eq!((code(&output), output.stdout.as_slice()), (7, &b"led\n"[..]));
    let told = String::from_utf8(output.stderr).unwrap();
    let [began, ended] = told.lines().collect::<Vec<_>>()[..] else { panic!("{told}") };
    assert!(began.contains("leads \"x\" with token") && ended.contains("leads \"x\" no longer"), "{told}");
    assert!(scene.is_free("x"));
    assert_eq!(code(&scene.tenure("elect x -- no-such-command").output().unwrap()), 127);
    let json = elect(&scene, "--log-format json", "true").output().unwrap();
    let lines: Vec<serde_json::Value> =
        json.stderr.split(|byte| *byte == b'\n').flat_map(serde_json::from_slice).collect();
    assert_eq!([&lines[0]["event"], &lines[1]["event"]], ["leading", "not leading"]);
}

#[test]
fn the_next_leads_when_the_leader_is_killed_or_resigns() {
    let scene = Scene::new();
    let script = "echo $TENURE_TOKEN; exec sleep 1000";
    let mut first = Running::start(elect(&scene, "--ttl 1h", script).stdout(Stdio::piped()));
    assert_ne!(next_line(&mut first.lines()), "");
    let mut second = Running::start(elect(&scene, "--ttl 1h", script).stdout(Stdio::piped()));
    waiting(&scene, "x", 1);
    first.0.kill().unwrap();
    assert_ne!(next_line(&mut second.lines()), "");
    let mut third = Running::start(elect(&scene, "--ttl 1h", script).stdout(Stdio::piped()));
    waiting(&scene, "x", 1);
    second.send(Signal::TERM);
    assert_eq!(second.ended(), 143);
    assert_ne!(next_line(&mut third.lines()), "");
}

#[test]
fn an_evicted_leader_stands_again() {
    let scene = Scene::new();
    let script = "echo $TENURE_TOKEN; exec sleep 1000";
    let mut only =
        Running::start(elect(&scene, "--ttl 3s", script).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut lines = only.lines();
    let first: u64 = next_line(&mut lines).parse().unwrap();
    assert!(scene.tenure("evict x --reason maintenance").output().unwrap().status.success());
    let second: u64 = next_line(&mut lines).parse().unwrap();
    assert!(second > first);
    only.send(Signal::TERM);
    assert_eq!(only.ended(), 143);
    let told = std::io::read_to_string(only.0.stderr.take().unwrap()).unwrap();
    assert!(told.contains("maintenance"), "{told}");
}

#[test]
fn a_signal_ends_a_candidate_that_stands_by() {
    let scene = Scene::new();
    let _leader = crate::running::holding(&scene, "x");
    let mut candidate = Running::start(&mut elect(&scene, "", "true"));
    waiting(&scene, "x", 1);
    candidate.send(Signal::TERM);
    assert_eq!(candidate.ended(), 143);
    waiting(&scene, "x", 0);
}

/// A store that goes away takes the lead along, and not the candidate.
#[test]
fn a_leader_outlives_an_outage_of_its_store() {
    let mut scene = Scene::on_redis();
    let script = "echo $TENURE_TOKEN; exec sleep 1000";
    let mut only =
        Running::start(elect(&scene, "--ttl 1s", script).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut lines = only.lines();
    let first: u64 = next_line(&mut lines).parse().unwrap();
    let guardian = only.guardian();
    scene.server.as_mut().unwrap().kill();
    eventually("the end of the lead", || (!is_alive(guardian)).then_some(()));
    std::thread::sleep(Duration::from_millis(300));
    scene.server.as_mut().unwrap().restart();
    let second: u64 = next_line(&mut lines).parse().unwrap();
    assert!(second > first);
    only.send(Signal::TERM);
    assert_eq!(only.ended(), 143);
}

#[test]
fn a_leader_says_why() {
    let scene = Scene::new();
    let mut leader =
        Running::start(&mut elect(&scene, "--reason nightly", "echo $$ > child; exec sleep 1000"));
    scene.pid_in("child");
    assert!(stdout(&scene.tenure("show x").output().unwrap()).contains("nightly"));
    leader.send(Signal::TERM);
    assert_eq!(leader.ended(), 143);
}
