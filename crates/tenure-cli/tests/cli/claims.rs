//! `acquire`, `renew`, `release`, `check`: a lock without a process.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Scene, code, stderr, stdout};

fn acquire(scene: &Scene, arguments: &str) -> Value {
    let output = scene.tenure(&format!("acquire {arguments} --json")).output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_claim_outlives_its_process_until_it_is_released() {
    let scene = Scene::new();
    let acquired = acquire(&scene, "x --ttl 1m --reason deploy");
    assert_eq!(
        (&acquired["name"], &acquired["mode"], &acquired["ttl_ms"]),
        (&"x".into(), &"exclusive".into(), &60_000.into())
    );
    assert!(acquired["valid_for_ms"].as_u64().unwrap() > 50_000 && acquired["token"].as_u64().unwrap() > 0);
    assert_eq!(acquired.as_object().unwrap().len(), 6);
    let claim = acquired["claim"].as_str().unwrap();
    assert_eq!(code(&scene.tenure("check x").output().unwrap()), 0);
    let renewed = scene.tenure("renew x --ttl 2m --json").env("TENURE_CLAIM", claim).output().unwrap();
    let renewed: Value = serde_json::from_slice(&renewed.stdout).unwrap();
    assert_eq!((&renewed["token"], &renewed["ttl_ms"]), (&acquired["token"], &120_000.into()));
    let released = scene.tenure("release --json").env("TENURE_CLAIM", claim).output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&released.stdout).unwrap()["released"], true);
    assert_eq!(code(&scene.tenure("check x").output().unwrap()), 1);
    for verb in ["renew", "release"] {
        let output = scene.tenure(verb).env("TENURE_CLAIM", claim).output().unwrap();
        assert_eq!(code(&output), 76, "{verb}: {}", stderr(&output));
    }
}

#[test]
fn check_with_a_claim_asks_whether_it_is_this_one() {
    let scene = Scene::new();
    let first = acquire(&scene, "x --ttl 1m")["claim"].as_str().unwrap().to_owned();
    let check = |claim: &str| code(&scene.tenure("check x").env("TENURE_CLAIM", claim).output().unwrap());
    assert_eq!(check(&first), 0);
    scene.tenure("release").env("TENURE_CLAIM", &first).status().unwrap();
    let second = acquire(&scene, "x --ttl 1m")["claim"].as_str().unwrap().to_owned();
    assert_eq!((check(&first), check(&second)), (1, 0));
    // A claim of another lock in the environment has nothing to do with it.
    let other = acquire(&scene, "y --ttl 1m")["claim"].as_str().unwrap().to_owned();
    assert_eq!(check(&other), 0);
}

#[test]
fn a_claim_comes_from_a_file_or_from_standard_input_and_never_from_an_argument() {
    let scene = Scene::new();
    let claim = acquire(&scene, "x --ttl 1m")["claim"].as_str().unwrap().to_owned();
    std::fs::write(scene.path("claim"), format!("{claim}\n")).unwrap();
    assert_eq!(code(&scene.tenure("renew --claim-file claim").output().unwrap()), 0);
    let mut renew = scene.tenure("renew --claim -");
    let mut renew = renew.stdin(Stdio::piped()).spawn().unwrap();
    renew.stdin.take().unwrap().write_all(claim.as_bytes()).unwrap();
    assert_eq!(renew.wait().unwrap().code(), Some(0));
    let output = scene.tenure("renew --claim").arg(&claim).output().unwrap();
    assert_eq!(code(&output), 2);
    assert!(
        !stderr(&output).contains(&claim) && stderr(&output).contains("TENURE_CLAIM"),
        "{}",
        stderr(&output)
    );
    let output = scene.tenure("release y").env("TENURE_CLAIM", &claim).output().unwrap();
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("\"x\"") && stderr(&output).contains("\"y\""), "{}", stderr(&output));
    for (arguments, culprit) in [("renew", "TENURE_CLAIM"), ("renew --claim-file nowhere", "nowhere")] {
        let output = scene.tenure(arguments).output().unwrap();
        assert_eq!(code(&output), 2);
        assert!(stderr(&output).contains(culprit), "{}", stderr(&output));
    }
    for bad in ["nonsense", "tenure1-00", "tenure1-zz", "tenure1-\u{e9}"] {
        assert_eq!(code(&scene.tenure("renew").env("TENURE_CLAIM", bad).output().unwrap()), 2, "{bad}");
    }
}

#[test]
fn export_is_for_eval() {
    let scene = Scene::new();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let script = format!(
        "eval \"$({tenure} acquire x --ttl 1m --export)\" && test $TENURE_TOKEN -gt 0 && {tenure} renew && \
         {tenure} check x && {tenure} release && ! {tenure} check x"
    );
    let mut shell = std::process::Command::new("sh");
    let status = shell.args(["-c", &script]).env("TENURE_STORE", scene.store()).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_claim_ends_with_its_ttl() {
    let scene = Scene::new();
    acquire(&scene, "x --ttl 300ms");
    assert_eq!(code(&scene.tenure("acquire x -n").output().unwrap()), 75);
    let output = scene.tenure("acquire x --wait 20s").output().unwrap();
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).starts_with("tenure1-"));
}

#[test]
fn a_busy_acquire_prints_nothing_on_stdout() {
    let scene = Scene::new();
    acquire(&scene, "x --ttl 1m");
    for arguments in ["acquire x -n", "acquire x -n --json", "acquire x -n --export", "acquire x --wait 20ms"]
    {
        let output = scene.tenure(arguments).output().unwrap();
        assert_eq!((code(&output), stdout(&output).as_str()), (75, ""), "{arguments}");
    }
    assert_eq!(code(&scene.tenure("acquire x -n -E 3").output().unwrap()), 3);
}

/// It used to keep the lock for all of its ttl, with a claim that nobody had.
#[test]
fn a_claim_that_cannot_be_delivered_is_given_back() {
    let scene = Scene::new();
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let unread = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    let ways: [(&dyn Fn() -> Stdio, i32, &str); 2] = [(&full, 70, "No space left"), (&unread, 141, "")];
    for (stdout, expected, told) in ways {
        for arguments in ["acquire x --ttl 1m", "acquire x --ttl 1m --json", "acquire x --ttl 1m --export"] {
            let output = scene.tenure(arguments).stdout(stdout()).stderr(Stdio::piped()).output().unwrap();
            assert_eq!(code(&output), expected, "{arguments}: {}", stderr(&output));
            assert!(stderr(&output).contains(told), "{}", stderr(&output));
            assert!(scene.is_free("x"), "{arguments}");
        }
    }
}

#[test]
fn without_standard_output_nothing_is_locked() {
    let scene = Scene::new();
    let mut shell = std::process::Command::new("sh");
    let script = format!("{} acquire x --ttl 1m >&-", env!("CARGO_BIN_EXE_tenure"));
    let output = shell.args(["-c", &script]).env("TENURE_STORE", scene.store()).output().unwrap();
    assert_eq!(code(&output), 78, "{}", stderr(&output));
    assert!(stderr(&output).contains("standard output is closed"), "{}", stderr(&output));
    assert!(!scene.path("store").exists());
}

/// The store never shortens; that was told as if it had.
#[test]
fn a_renewal_never_shortens_and_does_not_say_so() {
    let scene = Scene::new();
    let claim = acquire(&scene, "x --ttl 10m")["claim"].as_str().unwrap().to_owned();
    let renewed = scene.tenure("renew --ttl 100ms --json").env("TENURE_CLAIM", &claim).output().unwrap();
    let renewed: Value = serde_json::from_slice(&renewed.stdout).unwrap();
    assert_eq!(renewed["ttl_ms"], 100);
    let (valid, left) = (renewed["valid_for_ms"].as_u64().unwrap(), 600_000);
    assert!(500_000 < valid && valid < left, "{renewed}");
}

#[test]
fn what_a_longer_ttl_would_not_have_helped_gets_no_such_advice() {
    let scene = Scene::new();
    let claim = acquire(&scene, "x --ttl 1m")["claim"].as_str().unwrap().to_owned();
    scene.tenure("release").env("TENURE_CLAIM", &claim).status().unwrap();
    for verb in ["release", "renew"] {
        let output = scene.tenure(verb).env("TENURE_CLAIM", &claim).output().unwrap();
        assert_eq!(code(&output), 76, "{verb}");
        assert!(!stderr(&output).contains("--ttl"), "{}", stderr(&output));
        assert_eq!(stderr(&output).contains("only its owner knows"), verb == "renew", "{}", stderr(&output));
    }
}
