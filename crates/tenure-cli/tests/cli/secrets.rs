//! A canary in every place where a secret may come in, looked for in every place where it must not come out.

use std::process::Stdio;

use crate::support::{Running, Scene, code, eventually, next_line, stderr, stdout};

const CANARY: &str = "c4n4ry-sesame";

#[test]
fn a_password_in_the_store_url_is_never_printed() {
    let scene = Scene::new();
    let url = format!("redis://me:{CANARY}@localhost:1/0");
    for arguments in ["ls", "run x -- true", "-vv ls", "--log-format json -vv acquire x", "show x --json"] {
        let by_flag =
            scene.tenure(arguments).args([] as [&str; 0]).env("TENURE_STORE", &url).output().unwrap();
        let mut by_argument = scene.tenure_with(&["--store", &url]);
        let by_argument = by_argument.args(arguments.split(' ')).output().unwrap();
        for output in [&by_flag, &by_argument] {
            assert_ne!(code(output), 0, "{arguments}");
            let said = stdout(output) + &stderr(output);
            assert!(!said.contains(CANARY), "{arguments}: {said}");
        }
        assert!(stderr(&by_argument).contains("warning: a password in --store"), "{}", stderr(&by_argument));
        assert!(!stderr(&by_flag).contains("warning"), "{}", stderr(&by_flag));
    }
}

#[test]
fn the_command_sees_no_secret_in_its_environment_or_in_any_command_line() {
    let scene = Scene::new();
    let claim = stdout(&scene.tenure("acquire other --ttl 1m").output().unwrap()).trim().to_owned();
    std::fs::write(scene.path("password"), CANARY).unwrap();
    let script = "env; tr '\\0' '\\n' < /proc/self/environ; tr '\\0' '\\n' < /proc/$PPID/environ; \
        for p in $$ $PPID; do tr '\\0' ' ' < /proc/$p/cmdline; done";
    let mut run = scene.run("x", script);
    run.env("TENURE_CLAIM", &claim).env("TENURE_PASSWORD_FILE", scene.path("password"));
    let output = run.output().unwrap();
    let said = stdout(&output);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(said.contains("TENURE_LOCK=x") && said.contains("TENURE_TOKEN="), "{said}");
    for secret in [&claim, CANARY, "TENURE_CLAIM", "TENURE_PASSWORD_FILE"] {
        assert!(!said.contains(secret), "{secret} in {said}");
    }
    // A URL without a password is no secret, and inner commands find the same store by it.
    assert!(said.contains("TENURE_STORE=file:"), "{said}");
}

#[test]
fn a_password_file_that_cannot_be_read_is_named() {
    let scene = Scene::new();
    let output = scene.tenure("ls").env("TENURE_PASSWORD_FILE", scene.path("nowhere")).output().unwrap();
    assert_eq!(code(&output), 78);
    assert!(stderr(&output).contains("nowhere"), "{}", stderr(&output));
}

#[test]
fn a_store_url_with_a_password_is_kept_from_the_command() {
    let scene = Scene::new();
    let mut run = scene.tenure("--store");
    run.arg(scene.store()).args(["run", "x", "--", "env"]);
    let output = run.env("TENURE_STORE", format!("redis://:{CANARY}@h/0")).output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(!stdout(&output).contains(CANARY), "{}", stdout(&output));
}

#[test]
fn a_claim_is_printed_by_acquire_alone() {
    let scene = Scene::new();
    let claim = stdout(&scene.tenure("acquire x --ttl 1m").output().unwrap()).trim().to_owned();
    let id = &claim["tenure1-".len()..][4..36];
    for arguments in [
        "show x",
        "show x --json",
        "ls",
        "ls --json",
        "-vv renew --json",
        "-vv check x --json",
        "-vv release",
    ] {
        let output = scene.tenure(arguments).env("TENURE_CLAIM", &claim).output().unwrap();
        let said = stdout(&output) + &stderr(&output);
        assert_eq!(code(&output), 0, "{arguments}: {said}");
        assert!(!said.contains(id), "{arguments}: {said}");
    }
}

#[test]
fn the_environment_of_the_guardian_holds_no_secret_either() {
    let scene = Scene::new();
    let mut run = scene.run("x", "echo ready; exec sleep 1000");
    run.env("TENURE_CLAIM", "").env("TENURE_PASSWORD_FILE", "/dev/null").stdout(Stdio::piped());
    let mut run = Running::start(&mut run);
    assert_eq!(next_line(&mut run.lines()), "ready");
    let environment = eventually("the environment", || {
        std::fs::read(format!("/proc/{}/environ", run.guardian().as_raw_pid()))
            .ok()
            .filter(|text| !text.is_empty())
    });
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(environment.contains("TENURE_LOCK=x") && !environment.contains("PASSWORD_FILE"), "{environment}");
}
