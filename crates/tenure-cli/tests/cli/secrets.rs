//! A canary in every place where a secret may come in, looked for in every place where it must not come out.

use std::process::Stdio;

use tenure_testkit::servers::{Kind, Server};

use crate::support::{Running, Scene, code, eventually, next_line, stderr, stdout};

const CANARY: &str = "c4n4ry-sesame";

#[test]
fn a_password_in_the_store_url_is_never_printed() {
    let scene = Scene::new();
    for url in [
        format!("redis://me:{CANARY}@localhost:1/0"),
        format!("redis+unix:///nowhere?user=me&pass={CANARY}"),
        format!("redis+unix:///nowhere?pass={CANARY}&colour=blue"),
        format!("redis://localhost:1?pass={CANARY}"),
        format!("redis://localhost:1?password={CANARY}"),
        format!("carrier-pigeon:loft?password={CANARY}"),
    ] {
        for arguments in ["ls", "run x -- true", "-vv ls", "--log-format json -vv acquire x", "show x --json"]
        {
            let by_variable = scene.tenure(arguments).env("TENURE_STORE", &url).output().unwrap();
            let mut by_argument = scene.tenure_with(&["--store", &url]);
            let by_argument = by_argument.args(arguments.split(' ')).output().unwrap();
            for output in [&by_variable, &by_argument] {
                assert_ne!(code(output), 0, "{arguments}");
                let said = stdout(output) + &stderr(output);
                assert!(!said.contains(CANARY), "{arguments}: {said}");
            }
            let (by_argument, by_variable) = (stderr(&by_argument), stderr(&by_variable));
            assert!(by_argument.contains("warning: a password in --store"), "{by_argument}");
            assert!(!by_variable.contains("warning"), "{by_variable}");
        }
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
fn an_empty_password_is_refused_and_not_taken_for_none() {
    let scene = Scene::on_redis();
    for (content, said) in [("", "the password file"), ("\n", "the password file"), ("\r\n", "is empty")] {
        std::fs::write(scene.path("password"), content).unwrap();
        for user in ["", "me@"] {
            let store = scene.store().replace("//", &format!("//{user}"));
            let mut run = scene.run("x", "touch ran");
            run.env("TENURE_STORE", store).env("TENURE_PASSWORD_FILE", scene.path("password"));
            let output = run.output().unwrap();
            assert_eq!(code(&output), 78, "{}", stderr(&output));
            assert!(stderr(&output).contains(said), "{}", stderr(&output));
        }
    }
    let output = scene.run("x", "touch ran").env("TENURE_PASSWORD_FILE", "").output().unwrap();
    assert_eq!(code(&output), 78);
    assert!(stderr(&output).contains("TENURE_PASSWORD_FILE is set and names no file"), "{}", stderr(&output));
    assert!(!scene.path("ran").exists());
}

#[test]
fn a_store_url_with_a_password_is_given_to_the_command_without_it() {
    let scene = Scene::new();
    for (url, without) in [
        (format!("redis://:{CANARY}@h/0"), "redis://h/0"),
        (format!("redis://me:{CANARY}@h/0"), "redis://me@h/0"),
        (format!("redis+unix:///s?user=me&pass={CANARY}"), "redis+unix:///s?user=me"),
    ] {
        let mut run = scene.tenure("--store");
        run.arg(scene.store()).args(["run", "x", "--", "env"]);
        let output = run.env("TENURE_STORE", url).output().unwrap();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let said = stdout(&output);
        assert!(!said.contains(CANARY) && said.contains(&format!("TENURE_STORE={without}\n")), "{said}");
    }
}

/// A server that lets in `locker` alone, with the canary for a password.
fn guarded_server() -> Server {
    let rule = format!("--user locker on >{CANARY} ~* &* +@all --user default off");
    Server::start_with(Kind::Redis7, &rule.split(' ').collect::<Vec<_>>())
}

#[test]
fn a_password_file_opens_a_server_by_host_and_by_socket() {
    let (scene, server) = (Scene::new(), guarded_server());
    std::fs::write(scene.path("password"), format!("{CANARY}\n")).unwrap();
    for url in [
        format!("redis://locker@127.0.0.1:{}", server.port()),
        format!("redis+unix://{}?user=locker", server.socket().display()),
    ] {
        let run = || {
            let mut run = scene.run("x", "echo in");
            run.env("TENURE_STORE", &url);
            run
        };
        let output = run().env("TENURE_PASSWORD_FILE", scene.path("password")).output().unwrap();
        assert_eq!((code(&output), stdout(&output).as_str()), (0, "in\n"), "{url}: {}", stderr(&output));
        assert_eq!(code(&run().output().unwrap()), 78, "{url}");
    }
}

/// The variable was taken away: the inner command fell back to the default store, where the lock was free.
#[test]
fn a_nested_command_asks_the_same_store_or_none() {
    let (scene, server) = (Scene::new(), guarded_server());
    std::fs::write(scene.path("password"), CANARY).unwrap();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let by_host = format!("redis://locker:{CANARY}@127.0.0.1:{}", server.port());
    let by_socket = format!("redis+unix://{}?user=locker&pass={CANARY}", server.socket().display());
    for url in [by_host, by_socket] {
        for (password, inner, expected, said) in [
            ("", "x -n", 78, "in TENURE_PASSWORD_FILE"),
            ("TENURE_PASSWORD_FILE=password", "x", 78, "wait for itself"),
            ("TENURE_PASSWORD_FILE=password", "y", 0, "inner"),
        ] {
            let script = format!("{password} {tenure} run {inner} -- echo inner");
            let output = scene.run("x", &script).env("TENURE_STORE", &url).output().unwrap();
            let all = stdout(&output) + &stderr(&output);
            assert_eq!(code(&output), expected, "{inner}: {all}");
            assert!(all.contains(said) && !all.contains(CANARY), "{inner}: {all}");
        }
    }
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
    std::fs::write(scene.path("password"), CANARY).unwrap();
    run.env("TENURE_CLAIM", "").env("TENURE_PASSWORD_FILE", scene.path("password")).stdout(Stdio::piped());
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
