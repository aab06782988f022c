//! What is told on stderr without being asked, and with `-vv`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use rustix::process::Signal;
use tenure_testkit::servers::Server;

use crate::running::{holding, waiting};
use crate::support::{Running, Scene, code, stderr, stdout};

/// Tells the server one thing, beside `tenure`.
pub(crate) fn ask(server: &Server, command: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(!answer.starts_with('-'), "{command}: {answer}");
    answer
}

/// `tenure run` ended well and said nothing, and the lock stayed held until its ttl was over.
#[test]
fn a_release_that_is_refused_is_told_of() {
    let scene = Scene::on_redis();
    let server = scene.server.as_ref().unwrap();
    ask(server, "ACL SETUSER poor on >secret ~* &* +@all -del");
    let mut run = scene.tenure("run kept -- true");
    run.env("TENURE_STORE", format!("redis://poor:secret@127.0.0.1:{}", server.port()));
    let output = run.output().unwrap();
    assert_eq!(code(&output), 0, "the command's own");
    let told = stderr(&output);
    assert!(told.starts_with("tenure: warning: the lock could not be given back"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}

/// The command had been ended in time, but releasing what was lost took as long again as the store was waited for.
#[test]
fn a_silent_store_does_not_keep_the_wrapper_once_the_lease_is_over() {
    let scene = Scene::on_redis();
    let server = scene.server.as_ref().unwrap();
    let mut run = scene.run("x --ttl 2s", "echo $$ > child; exec sleep 1000");
    run.env("TENURE_STORE", format!("{}?timeout=60s", server.url())).stderr(Stdio::null());
    let mut run = Running::start(&mut run);
    scene.pid_in("child");
    server.pause();
    // Long before the request would be given up.
    assert_eq!(run.ended(), 76);
    server.resume();
}

/// The documentation lists it among what you see; it was seen with `-v` only.
#[test]
fn damage_is_told_of_once_and_unasked() {
    let scene = Scene::new();
    assert_eq!(code(&scene.tenure("run x -- true").output().unwrap()), 0);
    let data = std::fs::OpenOptions::new().write(true).open(scene.path("store/data.mdb")).unwrap();
    data.write_all_at(&[0; 4 * 4096], 0).unwrap();
    let output = scene.tenure("ls").output().unwrap();
    assert_eq!(code(&output), 0);
    let told = stderr(&output);
    assert!(told.starts_with("tenure: warning: the store is damaged: starting afresh"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert_eq!(stderr(&scene.tenure("ls").output().unwrap()), "");
}

#[test]
fn every_step_is_told_if_asked_for_and_none_otherwise() {
    for scene in [Scene::new(), Scene::on_redis()] {
        let holder = holding(&scene, "v");
        let mut verbose = scene.tenure_with(&["-vv", "run", "v", "--ttl", "300ms", "--", "sleep", "0.5"]);
        let verbose = verbose.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        waiting(&scene, "v", 1);
        holder.send(Signal::TERM);
        let output = verbose.wait_with_output().unwrap();
        assert_eq!((code(&output), stdout(&output)), (0, String::new()));
        let told = stderr(&output);
        for step in ["busy", "granted", "renewed", "released"] {
            assert!(told.lines().any(|line| line.starts_with(&format!("tenure: {step}"))), "{step}: {told}");
        }
        assert!(told.lines().all(|line| line.starts_with("tenure: ")), "{told}");
        assert!(told.contains("lock=v") && told.contains("token="), "{told}");
        let is_secret = |word: &str| word.len() >= 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(!told.split(|c: char| !c.is_ascii_alphanumeric()).any(is_secret), "{told}");
        assert_eq!(stderr(&scene.run("v --ttl 300ms", "sleep 0.5").output().unwrap()), "");
    }
}
