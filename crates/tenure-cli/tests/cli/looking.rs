//! `ls`, `show`, `watch`, `evict`: what is shown, to people and to programs.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::running::{holding, waiting};
use crate::support::{Running, Scene, code, next_line, stderr, stdout};
use crate::telling::ask;

fn json_of(scene: &Scene, arguments: &str) -> Value {
    let output = scene.tenure(arguments).output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn json_has_the_promised_shape() {
    let scene = Scene::new();
    assert_eq!(json_of(&scene, "ls --json"), json!([]));
    assert_eq!(
        json_of(&scene, "show x --json"),
        json!({"name": "x", "state": "free", "token": null, "holders": [], "waiters": [], "done": false, "kept_for_ms": null})
    );
    let _holder = holding(&scene, "x --reason backup");
    let _waiter = Running::start(&mut scene.run("x", "true"));
    waiting(&scene, "x", 1);
    let shown = json_of(&scene, "show x --json");
    assert_eq!(keys(&shown), ["done", "holders", "kept_for_ms", "name", "state", "token", "waiters"]);
    assert_eq!(
        keys(&shown["holders"][0]),
        ["evicted", "expires_in_ms", "label", "mode", "reason", "since", "token"]
    );
    assert_eq!(keys(&shown["waiters"][0]), ["label", "position", "waiting_ms"]);
    assert_eq!((&shown["state"], &shown["waiters"][0]["position"]), (&"held".into(), &1.into()));
    assert_eq!(
        (&shown["holders"][0]["mode"], &shown["holders"][0]["reason"]),
        (&"exclusive".into(), &"backup".into())
    );
    assert!(shown["holders"][0]["since"].as_str().unwrap().ends_with('Z'));
    assert_eq!(shown["token"], shown["holders"][0]["token"]);
    let listed = json_of(&scene, "ls --json");
    assert_eq!((listed.as_array().unwrap().len(), keys(&listed[0])), (1, keys(&shown)));
    assert_eq!(json_of(&scene, "ls y --json"), json!([]));
    assert_eq!(keys(&json_of(&scene, "check x --json")), keys(&shown));
}

#[test]
fn tables_say_who_since_when_and_who_waits() {
    let scene = Scene::new();
    assert_eq!(stdout(&scene.tenure("ls").output().unwrap()), "");
    assert_eq!(stdout(&scene.tenure("show x").output().unwrap()), "x is free\n");
    let holder = holding(&scene, "x --reason backup");
    let waiter = Running::start(&mut scene.run("x", "true"));
    waiting(&scene, "x", 1);
    let listed = stdout(&scene.tenure("ls").output().unwrap());
    let pid = |running: &Running| format!("/{}/tenure", running.0.id());
    assert!(listed.starts_with("LOCK ") && listed.contains(&pid(&holder)), "{listed}");
    let shown = stdout(&scene.tenure("show x").output().unwrap());
    for part in [&pid(&holder), &pid(&waiter), "backup", "x is held", "POSITION"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(!shown.contains('\u{1b}'), "{shown}");
}

#[test]
fn names_and_reasons_of_others_are_made_harmless() {
    let scene = Scene::new();
    let name = "invoice\u{202e}fdp\u{200b}";
    let mut command =
        scene.tenure_with(&["acquire", name, "--ttl", "1m", "--reason", "\u{2066}nice\u{feff} 名前"]);
    assert_eq!(code(&command.output().unwrap()), 0);
    let mut shown = stdout(&scene.tenure("ls").output().unwrap());
    shown += &stdout(&scene.tenure_with(&["show", name]).output().unwrap());
    shown += &stderr(&scene.tenure_with(&["run", name, "-n", "--", "true"]).output().unwrap());
    for hostile in ['\u{202e}', '\u{200b}', '\u{2066}', '\u{feff}', '\u{1b}'] {
        assert!(!shown.contains(hostile), "{hostile:?} in {shown}");
    }
    assert!(shown.contains("invoice\\u{202e}fdp") && shown.contains("名前"), "{shown}");
    // JSON is for programs: they get what it is.
    assert_eq!(json_of(&scene, "ls --json")[0]["name"], name);
}

#[test]
fn watch_tells_every_change_as_a_line() {
    let scene = Scene::new();
    let mut watch = Running::start(scene.tenure("watch --json").stdout(Stdio::piped()));
    let mut lines = watch.lines();
    let holder = holding(&scene, "x");
    let state = |line: &str| serde_json::from_str::<Value>(line).unwrap()["state"].clone();
    let line = next_line(&mut lines);
    assert_eq!(state(&line), "held");
    assert!(serde_json::from_str::<Value>(&line).unwrap()["at"].as_str().unwrap().ends_with('Z'));
    drop(holder);
    let mut line = next_line(&mut lines);
    while state(&line) == "held" {
        line = next_line(&mut lines);
    }
    assert_eq!(state(&line), "free");
    watch.send(Signal::TERM);
    assert_eq!(watch.ended(), 143);
    let mut watch = Running::start(scene.tenure("watch x").stdout(Stdio::piped()));
    assert!(next_line(&mut watch.lines()).ends_with(" x free"));
}

/// The time for which the record is still kept passes: that used to be a line at every look.
#[test]
fn what_is_done_is_no_change_again_and_again() {
    let scene = Scene::new();
    assert_eq!(code(&scene.once("before", "true").output().unwrap()), 0);
    let mut watch = Running::start(scene.tenure("watch").stdout(Stdio::piped()));
    let mut lines = watch.lines();
    let mut once = Running::start(&mut scene.once("x", "while ! test -e stop; do sleep 0.02; done"));
    assert!(next_line(&mut lines).contains(" x held by "));
    std::fs::write(scene.path("stop"), "").unwrap();
    assert_eq!(once.ended(), 0);
    assert!(next_line(&mut lines).ends_with(" x free, done"));
    // A few looks later, the next thing that is told is the next thing that happens.
    for turn in 0..4 {
        let holder = holding(&scene, &format!("y{turn}"));
        assert!(next_line(&mut lines).contains(&format!(" y{turn} held by ")));
        drop(holder);
        assert!(next_line(&mut lines).ends_with(&format!(" y{turn} free")));
    }
}

#[test]
fn watch_goes_on_when_the_store_goes_away_and_tells_so_once() {
    let mut scene = Scene::on_redis();
    let mut watch = scene.tenure("--store");
    watch.arg(format!("{}?timeout=300ms", scene.store())).args(["watch", "x"]);
    let mut watch = Running::start(watch.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let (mut lines, stderr) = (watch.lines(), watch.0.stderr.take().unwrap());
    assert!(next_line(&mut lines).ends_with(" x free"));
    scene.server.as_mut().unwrap().kill();
    let mut told = std::io::BufReader::new(stderr);
    let first = next_line(&mut told);
    assert!(first.starts_with("tenure: warning: store redis:") && first.ends_with("watching on"), "{first}");
    scene.server.as_mut().unwrap().restart();
    assert!(next_line(&mut told).ends_with("is back"));
    let _holder = holding(&scene, "x");
    assert!(next_line(&mut lines).contains(" x held by "));
    watch.send(Signal::INT);
    assert_eq!(watch.ended(), 130);
}

/// As with `watch | head -1`, on a store where nothing ever happens.
#[test]
fn watch_notices_that_its_reader_went_away_before_there_is_news() {
    let scene = Scene::new();
    let mut watch = Running::start(scene.tenure("watch x").stdout(Stdio::piped()));
    assert!(next_line(&mut watch.lines()).ends_with(" x free"));
    assert_eq!(watch.ended(), 141);
}

#[test]
fn what_is_done_is_listed_and_may_be_left_out() {
    let scene = Scene::new();
    assert_eq!(code(&scene.once("x", "true").output().unwrap()), 0);
    let shown = json_of(&scene, "show x --json");
    assert_eq!((&shown["state"], &shown["done"]), (&"free".into(), &true.into()));
    assert!(shown["kept_for_ms"].as_u64().unwrap() > 23 * 60 * 60 * 1000);
    let _holder = holding(&scene, "y");
    let names = |arguments: &str| {
        let listed = json_of(&scene, arguments);
        let names = listed.as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names("ls --json"), ["x", "y"]);
    assert_eq!(names("ls --held --json"), ["y"]);
    assert!(!stdout(&scene.tenure("ls --held").output().unwrap()).contains("done"));
}

#[test]
fn one_long_name_does_not_push_the_other_rows_aside() {
    let scene = Scene::new();
    let long = "n".repeat(256);
    for name in [&long, "short"] {
        assert_eq!(code(&scene.tenure_with(&["acquire", name, "--ttl", "1m"]).output().unwrap()), 0);
    }
    let listed = stdout(&scene.tenure("ls").output().unwrap());
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[1].starts_with(&format!("{long}  ")) && lines[1].contains("exclusive"), "{listed}");
    assert!(lines[0].len() < 160 && lines[2].len() < 160, "{listed}");
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let scene = Scene::new();
    let mut watch = Running::start(scene.tenure("watch").stdout(Stdio::piped()).stderr(Stdio::piped()));
    drop(watch.0.stdout.take());
    let _holder = holding(&scene, "x");
    assert_eq!(watch.ended(), 141);
    assert_eq!(std::io::read_to_string(watch.0.stderr.take().unwrap()).unwrap(), "");
}

#[test]
fn evict_says_what_it_did() {
    let scene = Scene::new();
    let evict =
        |more: &str| stdout(&scene.tenure(&format!("evict x --reason test {more}")).output().unwrap());
    assert_eq!(evict(""), "nobody holds x\n");
    assert_eq!(code(&scene.tenure("evict x --reason test").output().unwrap()), 1);
    assert_eq!(code(&scene.tenure("evict x --reason test --force --json").output().unwrap()), 1);
    scene.tenure("acquire x --ttl 1m").output().unwrap();
    assert!(evict("").contains("passes on when"));
    assert!(stdout(&scene.tenure("show x").output().unwrap()).contains("(evicted)"));
    assert_eq!(json_of(&scene, "show x --json")["holders"][0]["evicted"], true);
    assert!(evict("--force").contains("may still be at work"));
    assert!(scene.is_free("x"));
    let output = scene.tenure("evict x").output().unwrap();
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("--reason"));
}

#[test]
fn completions_and_the_manual_are_printed() {
    let scene = Scene::new();
    for shell in ["bash", "zsh", "fish"] {
        let output = scene.tenure(&format!("completions {shell}")).output().unwrap();
        assert!(stdout(&output).contains("acquire") && !stdout(&output).contains("guardian"), "{shell}");
    }
    let manual = stdout(&scene.tenure("man").output().unwrap());
    assert!(
        manual.contains(".TH tenure") && manual.contains("on\\-lost") && !manual.contains("__guardian"),
        "{manual}"
    );
    for part in
        ["run [OPTIONS] <NAME> \\-\\- <COMMAND>...", ".SH EXAMPLES\n.nf\n  tenure run nightly", ".SS OPTIONS"]
    {
        assert!(manual.contains(part), "{part} in {manual}");
    }
    // There are no pages of other names, and what every command has is told once.
    assert!(!manual.contains("run(1)") && !manual.contains("EXTRA"), "{manual}");
    assert_eq!(manual.matches("namespace\\fR").count(), 1, "{manual}");
    let (short, long) = ("run --help", "help run");
    let help = |arguments: &str| stdout(&scene.tenure(arguments).output().unwrap());
    assert!(help(short).contains("Run a command while the lock is held") && help(short) == help(long));
    assert!(!scene.path("store").exists());
}

#[test]
fn a_lock_that_cannot_be_read_is_named_and_the_others_are_listed() {
    let scene = Scene::on_redis();
    let _holder = holding(&scene, "x");
    ask(scene.server.as_ref().unwrap(), "LPUSH tenure:{foreign} y");
    let output = scene.tenure("ls").output().unwrap();
    assert_eq!(code(&output), 78);
    let (shown, told) = (stdout(&output), stderr(&output));
    assert!(shown.lines().any(|line| line.starts_with("x ")), "{shown}");
    assert!(
        told.starts_with("tenure: ") && told.contains("\"foreign\"") && told.lines().count() == 1,
        "{told}"
    );
    let output = scene.tenure("ls --json").output().unwrap();
    assert_eq!(code(&output), 78);
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let states: Vec<_> =
        listed.as_array().unwrap().iter().map(|lock| (&lock["name"], &lock["state"])).collect();
    assert_eq!(states, [(&json!("x"), &json!("held")), (&json!("foreign"), &json!("unreadable"))]);
    assert!(listed[1]["error"].as_str().unwrap().contains("another program"), "{listed}");
    let mut watch = scene.tenure("watch --json");
    let mut watch = Running::start(watch.stdout(Stdio::piped()).stderr(Stdio::null()));
    let seen: Value = serde_json::from_str(&next_line(&mut watch.lines())).unwrap();
    assert_eq!(seen["name"], "x");
}
