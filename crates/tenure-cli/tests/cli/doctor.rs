//! `tenure doctor`, and the other commands on Redis.

use std::process::Stdio;

use tenure_testkit::servers::{Kind, Server};

use crate::support::{Running, Scene, code, next_line, stderr, stdout};
use crate::telling::ask;

fn answer(scene: &Scene, arguments: &str) -> (serde_json::Value, i32) {
    let output = scene.tenure(arguments).output().unwrap();
    (serde_json::from_slice(&output.stdout).unwrap(), code(&output))
}

#[test]
fn the_embedded_store_is_examined() {
    let scene = Scene::new();
    let (answer, exit) = answer(&scene, "doctor --json --require exclusive");
    assert_eq!(exit, 0, "{answer}");
    assert_eq!(answer["exclusive"], true);
    assert_eq!(answer["under"]["a holder's process dies"], "holds");
    let subjects: Vec<_> =
        answer["findings"].as_array().unwrap().iter().map(|f| f["subject"].clone()).collect();
    assert!(subjects.contains(&"a lock".into()), "{subjects:?}");
    assert_eq!(code(&scene.tenure("doctor --require fence").output().unwrap()), 78);
    assert!(scene.is_free("tenure-doctor"));
}

/// Cron has no `XDG_RUNTIME_DIR` and a login shell has one: each had a store of its own, and both ran.
#[test]
fn the_default_store_does_not_depend_on_the_environment() {
    let scene = Scene::new();
    // This user's real store: a name of our own.
    let name = scene.path("").file_name().unwrap().to_string_lossy().into_owned();
    let mut holder = scene.run(&name, "echo ready; exec sleep 1000");
    holder.env_remove("TENURE_STORE").env("XDG_RUNTIME_DIR", scene.path("")).stdout(Stdio::piped());
    let mut holder = Running::start(&mut holder);
    assert_eq!(next_line(&mut holder.lines()), "ready");
    for (variable, value) in [("XDG_RUNTIME_DIR", None), ("TMPDIR", Some(scene.path("")))] {
        let mut other = scene.run(&format!("{name} -n"), "echo both");
        other.env_remove("TENURE_STORE").env_remove(variable).envs(value.map(|value| (variable, value)));
        let output = other.output().unwrap();
        assert_eq!((code(&output), stdout(&output).as_str()), (75, ""), "{}", stderr(&output));
    }
    let examined = scene.tenure("doctor").env_remove("TENURE_STORE").output().unwrap();
    let uid = rustix::process::geteuid().as_raw();
    assert!(stdout(&examined).starts_with(&format!("file:/tmp/tenure-{uid}\n")), "{}", stdout(&examined));
    assert!(stdout(&examined).contains("one user of one machine"), "{}", stdout(&examined));
    assert!(!stdout(&scene.tenure("doctor").output().unwrap()).contains("one user of one machine"));
}

#[test]
fn a_redis_that_would_throw_locks_away_is_a_problem() {
    let scene = Scene::new();
    let server =
        Server::start_with(Kind::Redis7, &["--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"]);
    let (answer, exit) = answer(&scene, &format!("--store {} doctor --json", server.url()));
    assert_eq!(exit, 78, "{answer}");
    assert_eq!(answer["exclusive"], false);
    let findings = answer["findings"].as_array().unwrap();
    let problems: Vec<_> = findings.iter().filter(|f| f["severity"] == "problem").collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0]["subject"], "eviction policy");
    let plain = scene.tenure(&format!("--store {} doctor", server.url())).output().unwrap();
    assert!(String::from_utf8_lossy(&plain.stdout).contains("What is promised"));
}

#[test]
fn a_durable_redis_gives_what_is_required() {
    let scene = Scene::new();
    let server = Server::start_with(Kind::Redis7, &["--appendonly", "yes", "--appendfsync", "always"]);
    let doctor = format!("--store {} doctor --require exclusive --require fence", server.url());
    let output = scene.tenure(&doctor).output().unwrap();
    assert_eq!(code(&output), 0, "{}", String::from_utf8_lossy(&output.stdout));
}

const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

fn observed<'a>(answer: &'a serde_json::Value, subject: &str) -> &'a serde_json::Value {
    answer["findings"].as_array().unwrap().iter().find(|finding| finding["subject"] == subject).unwrap()
}

/// Whether the server syncs was called a plain no, where this user may not ask.
#[test]
fn what_may_not_be_asked_is_not_known() {
    let scene = Scene::new();
    let server = Server::start_with(Kind::Redis7, &DURABLE);
    ask(&server, "ACL SETUSER shy on >secret ~* &* +@all -config");
    let store = format!("redis://shy:secret@127.0.0.1:{}", server.port());
    let doctor = |arguments: &str| scene.tenure(arguments).env("TENURE_STORE", &store).output().unwrap();
    let output = doctor("doctor --json");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(code(&output), 0, "{answer}");
    assert_eq!(
        (&answer["exclusive"], &answer["fence"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
    assert_eq!(observed(&answer, "persistence")["severity"], "unknown", "{answer}");
    let output = doctor("doctor --require exclusive");
    assert_eq!(code(&output), 78);
    let told = stderr(&output);
    assert!(told.contains("it is not known") && told.contains("+config|get"), "{told}");
}

/// The one answer said exclusive, the exit code and the other said not.
#[test]
fn a_durable_redis_that_throws_locks_away_is_not_exclusive() {
    let scene = Scene::new();
    let thrifty = ["--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"];
    let server = Server::start_with(Kind::Redis7, &[DURABLE, thrifty].concat());
    let (answer, exit) = answer(&scene, &format!("--store {} doctor --json", server.url()));
    assert_eq!(
        (exit, &answer["exclusive"], &answer["fence"]),
        (78, &false.into(), &false.into()),
        "{answer}"
    );
    assert_eq!(observed(&answer, "eviction policy")["at_stake"][0], "P1");
}

#[test]
fn a_redis_that_does_not_sync_while_it_rewrites_is_not_durable() {
    let scene = Scene::new();
    let server =
        Server::start_with(Kind::Redis7, &[&DURABLE[..], &["--no-appendfsync-on-rewrite", "yes"]].concat());
    let (answer, exit) =
        answer(&scene, &format!("--store {} doctor --json --require exclusive", server.url()));
    assert_eq!((exit, &answer["exclusive"]), (78, &false.into()), "{answer}");
    let found = observed(&answer, "persistence");
    assert_eq!(found["severity"], "advice");
    assert!(found["observed"].as_str().unwrap().contains("rewritten"), "{found}");
}

#[test]
fn promises_are_named_by_their_numbers() {
    let scene = Scene::new();
    let (answer, _) = answer(&scene, "doctor --json");
    assert_eq!(answer["promises"].as_object().unwrap().len(), 7);
    assert_eq!(answer["at_stake"]["a holder stands still past its ttl"], serde_json::json!(["P1"]));
    assert_eq!(answer["at_stake"]["a holder's process dies"], serde_json::json!([]));
    let page = stdout(&scene.tenure("doctor").output().unwrap());
    assert!(page.contains("P1  The validity windows of two conflicting grants never overlap."), "{page}");
    let paused = page.lines().find(|line| line.contains("stands still")).unwrap();
    assert!(paused.contains(" P1 ") && paused.contains("two may work at once"), "{paused}");
}

#[test]
fn commands_work_on_redis_as_they_do_on_files() {
    let scene = Scene::new();
    let server = Server::start(Kind::Redis7);
    let on_redis = |arguments: &str| {
        let mut command = scene.tenure(arguments);
        command.env("TENURE_STORE", server.url());
        command.output().unwrap()
    };
    assert_eq!(on_redis("run hello -- echo hi").stdout, b"hi\n");
    let claim = on_redis("acquire deploy --ttl 20s");
    std::fs::write(scene.path("claim"), &claim.stdout).unwrap();
    assert_eq!(code(&on_redis("check deploy")), 0);
    assert_eq!(code(&on_redis("run -n deploy -- true")), 75);
    assert_eq!(code(&on_redis("renew --claim-file claim")), 0);
    assert_eq!(code(&on_redis("release --claim-file claim")), 0);
    assert_eq!(code(&on_redis("release --claim-file claim")), 76, "once is enough");
    assert_eq!(code(&on_redis("check deploy")), 1);
}
