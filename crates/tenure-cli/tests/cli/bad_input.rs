//! Bad input: a clear error that names the culprit, the right exit code, nothing changed, never a panic.

use std::os::unix::fs::PermissionsExt;

use crate::support::{Scene, code, listing, stderr};

#[test]
fn nonsense_is_named_and_changes_nothing() {
    let scene = Scene::new();
    let long = "n".repeat(257);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["run", "", "--", "touch", "ran"], 2, "empty"),
        (&["run", &long, "--", "touch", "ran"], 2, "257"),
        (&["run", "a\nb", "--", "touch", "ran"], 2, "control"),
        (&["run", "x", "--ttl", "soon", "--", "touch", "ran"], 2, "soon"),
        (&["run", "x", "--ttl", "30", "--", "touch", "ran"], 2, "30s"),
        (&["run", "x", "--ttl", "10ms", "--", "touch", "ran"], 2, "50ms"),
        (&["run", "x", "--ttl", "2d", "--", "touch", "ran"], 2, "24h"),
        (&["run", "x", "--wait", "-1s", "--", "touch", "ran"], 2, "-1s"),
        (&["run", "x", "-w", "NaN", "--", "touch", "ran"], 2, "NaN"),
        (&["run", "x", "-w", "-1", "--", "touch", "ran"], 2, "cannot be negative"),
        (&["run", "x", "--permits", "1/99999999999", "--", "touch", "ran"], 2, "at most 4294967295"),
        (&["run", "x", "-n", "--wait", "3s", "--", "touch", "ran"], 2, "--wait"),
        (&["run", "x", "-E", "256", "--", "touch", "ran"], 2, "256"),
        (&["run", "x", "--permits", "3/2", "--", "touch", "ran"], 2, "3 of 2"),
        (&["run", "x", "--permits", "0/2", "--", "touch", "ran"], 2, "0 of 2"),
        (&["run", "x", "--permits", "many", "--", "touch", "ran"], 2, "1/4"),
        (&["run", "x", "-s", "--permits", "1/2", "--", "touch", "ran"], 2, "--permits"),
        (&["run", "x", "--on-lost", "panic", "--", "touch", "ran"], 2, "panic"),
        (&["run", "x", "--colour", "--", "touch", "ran"], 2, "--colour"),
        (&["run", "x"], 2, "COMMAND"),
        (&["run", "x", "touch", "ran"], 2, "touch"),
        (&["run", "x", "--ttl", "10s", "--grace", "6s", "--", "touch", "ran"], 78, "--grace 6s"),
        (&["--store", "carrier-pigeon:x", "run", "x", "--", "touch", "ran"], 78, "carrier-pigeon"),
        (&["--store", "file:/tmp?colour=blue", "run", "x", "--", "touch", "ran"], 78, "colour"),
        (&["--store", "nonsense", "run", "x", "--", "touch", "ran"], 78, "nonsense"),
        (&["--store", "", "run", "x", "--", "touch", "ran"], 2, "'--store <URL>': it is empty"),
        (&["--store", "memory:", "run", "x", "--", "touch", "ran"], 78, "inside one process"),
        (&["--store", "Memory:", "doctor"], 78, "inside one process"),
        (&["--store", "/tmp/dir", "run", "x", "--", "touch", "ran"], 78, "file:/tmp/dir"),
        (&["--store", "redis://", "run", "x", "--", "touch", "ran"], 78, "names no host"),
        (&["--store", "redis://u@localhost:1", "run", "x", "--", "touch", "ran"], 78, "TENURE_PASSWORD_FILE"),
        (
            &["--store", "redis+unix:///s?user=u", "run", "x", "--", "touch", "ran"],
            78,
            "TENURE_PASSWORD_FILE",
        ),
        (&["--store", "file:/dev/null/x", "run", "x", "--", "touch", "ran"], 78, "/dev/null"),
        (&["--namespace", "a\nb", "run", "x", "--", "touch", "ran"], 2, "namespace"),
        (&["--namespace", "", "run", "x", "--", "touch", "ran"], 2, "'--namespace <NS>': it is empty"),
        (&["once", "x"], 2, "COMMAND"),
        (&["once", "x", "--keep", "0", "--", "touch", "ran"], 2, "not kept"),
        (&["once", "x", "--status", "--", "touch", "ran"], 2, "--status"),
        (&["once", "x", "--status", "--forget"], 2, "--forget"),
        (&["once", "x", "-n", "--wait", "3s", "--", "touch", "ran"], 2, "--wait"),
        (&["elect", "x"], 2, "COMMAND"),
        (&["elect", "x", "-n", "--", "touch", "ran"], 2, "-n"),
        (&["elect", "x", "--ttl", "10s", "--grace", "6s", "--", "touch", "ran"], 78, "--grace 6s"),
        (&["once", "x", "--ttl", "10s", "--grace", "6s", "--", "touch", "ran"], 78, "--grace 6s"),
        (&["run", "x", "--grace", "3600s", "--", "touch", "ran"], 78, "--grace 1h"),
        (&["show", ""], 2, "empty"),
        (&["evict", "x", "--reason", "a\u{7}b"], 2, "control"),
        (&["frobnicate"], 2, "frobnicate"),
        (&["completions", "tcsh"], 2, "tcsh"),
        (&["--log-format", "xml", "ls"], 2, "xml"),
    ];
    for (arguments, expected, culprit) in cases {
        let output = scene.tenure_with(arguments).output().unwrap();
        let told = stderr(&output);
        assert_eq!(code(&output), *expected, "{arguments:?}: {told}");
        assert!(told.contains(culprit), "{arguments:?}: {told}");
        assert!(!told.contains("panicked"), "{arguments:?}: {told}");
        assert!(told.starts_with("tenure: ") && told.lines().count() == 1, "{arguments:?}: {told}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    assert_eq!(listing(&scene.path("")), Vec::<String>::new());
}

#[test]
fn arguments_that_are_no_text_are_refused_or_passed_on() {
    use std::os::unix::ffi::OsStrExt;
    let scene = Scene::new();
    let wild = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let output = scene.tenure("show").arg(wild).output().unwrap();
    assert_eq!(code(&output), 2);
    let output = scene.tenure("run x -- printf %s").arg(wild).output().unwrap();
    assert_eq!((code(&output), output.stdout.as_slice()), (0, wild.as_bytes()));
    let output = scene.tenure("ls").env("TENURE_STORE", wild).output().unwrap();
    assert_eq!(code(&output), 78);
    assert!(stderr(&output).contains("TENURE_STORE"));
}

#[test]
fn a_directory_that_cannot_be_written_is_77() {
    let scene = Scene::new();
    let directory = scene.path("theirs");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o500)).unwrap();
    let store = format!("file:{}/store", directory.display());
    let mut command = scene.tenure("ls");
    if rustix::process::getuid().is_root() {
        // Root may write everywhere: look through the eyes of somebody else, who may at least come near.
        std::fs::set_permissions(scene.path(""), PermissionsExt::from_mode(0o755)).unwrap();
        // By a process of its own: a child that another test starts meanwhile would hold our copy open for writing.
        let copied = std::process::Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_tenure"))
            .arg(scene.path("tenure"))
            .status();
        assert!(copied.unwrap().success());
        command = std::process::Command::new(scene.path("tenure"));
        std::os::unix::process::CommandExt::uid(command.arg("ls"), 65534);
    }
    let output = command.env("TENURE_STORE", &store).output().unwrap();
    assert_eq!(code(&output), 77, "{}", stderr(&output));
    assert!(stderr(&output).contains("theirs") && stderr(&output).contains("--store"), "{}", stderr(&output));
    assert_eq!(listing(&directory), Vec::<String>::new());
}

#[test]
fn errors_are_json_where_logs_are() {
    let scene = Scene::new();
    let output = scene.tenure("--log-format json --store nonsense ls").output().unwrap();
    let told: serde_json::Value = serde_json::from_str(stderr(&output).trim()).unwrap();
    assert_eq!((&told["level"], &told["exit_code"]), (&"ERROR".into(), &78.into()));
}

#[test]
fn a_command_line_that_makes_no_sense_is_json_where_logs_are() {
    let scene = Scene::new();
    for arguments in
        ["--log-format json run x --ttl soon -- true", "run x --log-format=json", "ls --log-format json --no"]
    {
        let output = scene.tenure(arguments).output().unwrap();
        assert_eq!(code(&output), 2, "{arguments}");
        let told: serde_json::Value = serde_json::from_str(stderr(&output).trim()).unwrap();
        assert_eq!((&told["level"], &told["exit_code"]), (&"ERROR".into(), &2.into()), "{arguments}");
    }
    // What belongs to the command is not ours to read.
    let output = scene.tenure("run x --ttl soon -- log --log-format json").output().unwrap();
    assert!(stderr(&output).starts_with("tenure: invalid value 'soon'"), "{}", stderr(&output));
}
