//! `run`: exit codes, environment, options.

use std::process::Stdio;

use rustix::process::Signal;

use crate::support::{Running, Scene, code, eventually, next_line, stderr, stdout};

#[test]
fn the_command_runs_under_the_lock_and_its_output_is_its_own() {
    let scene = Scene::new();
    let output = scene.tenure("run hello -- echo hi").output().unwrap();
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str(), code(&output)), ("hi\n", "", 0));
    assert!(scene.is_free("hello"));
}

#[test]
fn exit_codes_of_the_command_pass_through() {
    let scene = Scene::new();
    for (script, expected) in
        [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -9 $$", 137)]
    {
        assert_eq!(code(&scene.run("x", script).output().unwrap()), expected, "{script}");
        assert!(scene.is_free("x"), "{script}");
    }
}

#[test]
fn a_command_that_cannot_run_is_told_before_anything_is_locked() {
    let scene = Scene::new();
    std::fs::write(scene.path("plain"), "").unwrap();
    for (name, first_line) in [("lonely", "#! /no/such/interpreter -x"), ("plainly", "#!./plain")] {
        std::fs::write(scene.path(name), format!("{first_line}\ntouch ran\n")).unwrap();
        std::fs::set_permissions(scene.path(name), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
    }
    for (arguments, expected) in [
        ("run x -- no-such-command-anywhere", 127),
        ("run x -- ./no-such-file", 127),
        ("run x -- ./plain", 126),
        ("run x -- /", 126),
        ("run x -- ./lonely", 127),
        ("run x -- ./plainly", 126),
    ] {
        let output = scene.tenure(arguments).output().unwrap();
        assert_eq!(code(&output), expected, "{arguments}");
        assert!(stderr(&output).contains("nothing was locked"), "{}", stderr(&output));
        assert_eq!(stderr(&output).contains("interpreter"), arguments.ends_with("ly"), "{}", stderr(&output));
    }
    assert!(!scene.path("store").exists());
}

/// What only the kernel finds out comes after the lock, and is not told as if it had come before.
#[test]
fn a_command_that_cannot_be_started_is_told_as_it_was() {
    let scene = Scene::new();
    for (name, first_line) in [("lonely", "#!/no/such/interpreter"), ("chained", "#!./lonely")] {
        std::fs::write(scene.path(name), format!("{first_line}\n")).unwrap();
        std::fs::set_permissions(scene.path(name), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
    }
    let output = scene.tenure("run x -- ./chained").output().unwrap();
    assert_eq!(code(&output), 127, "{}", stderr(&output));
    assert!(stderr(&output).contains("could not be started: "), "{}", stderr(&output));
    assert!(!stderr(&output).contains("nothing was locked"), "{}", stderr(&output));
    assert!(scene.is_free("x"));
}

#[test]
fn a_script_without_an_interpreter_line_runs_as_shells_run_it() {
    let scene = Scene::new();
    std::fs::write(scene.path("script"), "echo from the script\n").unwrap();
    std::fs::set_permissions(scene.path("script"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let output = scene.tenure("run x -- ./script").output().unwrap();
    assert_eq!((stdout(&output).as_str(), code(&output)), ("from the script\n", 0));
}

#[test]
fn standard_input_reaches_the_command() {
    let scene = Scene::new();
    std::fs::write(scene.path("input"), "through\n").unwrap();
    let mut command = scene.tenure("run x -- cat");
    let output = command.stdin(std::fs::File::open(scene.path("input")).unwrap()).output().unwrap();
    assert_eq!(stdout(&output), "through\n");
}

#[test]
fn a_busy_lock_is_75_or_what_was_asked_for() {
    let scene = Scene::new();
    let _holder = holding(&scene, "x");
    for (options, expected) in [
        ("x -n", 75),
        ("x --wait 0", 75),
        ("x -w 0", 75),
        ("x --wait 30ms", 75),
        ("x -w 0.03", 75),
        ("x -n -E 9", 9),
        ("x -s -n", 75),
        ("x -e -n", 75),
    ] {
        let output = scene.run(options, "echo must not run").output().unwrap();
        assert_eq!((code(&output), stdout(&output).as_str()), (expected, ""), "{options}");
        let told = stderr(&output);
        assert!(
            told.contains("\"x\"") && told.contains("trying again is safe") && told.contains("--wait"),
            "{told}"
        );
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}

#[test]
fn readers_share_and_permits_are_counted() {
    let scene = Scene::new();
    let _reader = holding(&scene, "x -s");
    assert_eq!(code(&scene.run("x -s -n", "true").output().unwrap()), 0);
    assert_eq!(code(&scene.run("x -x -n", "true").output().unwrap()), 75);
    let _first = holding(&scene, "y --permits 1/2");
    let _second = holding(&scene, "y --permits 1/2");
    assert_eq!(code(&scene.run("y -n --permits 1/2", "true").output().unwrap()), 75);
    // Another shape of the same name is a mistake, not a reason to wait.
    assert_eq!(code(&scene.run("y -n", "true").output().unwrap()), 78);
}

#[test]
fn the_command_knows_its_lock_and_a_namespace_is_part_of_it() {
    let scene = Scene::new();
    let script = "echo $TENURE_LOCK $TENURE_STORE_KIND; test $TENURE_TOKEN -gt 0";
    let output = scene.run("job --namespace billing", script).output().unwrap();
    assert_eq!((stdout(&output).as_str(), code(&output)), ("billing/job file\n", 0));
    let output = scene.run("job", script).env("TENURE_NAMESPACE", "billing").output().unwrap();
    assert_eq!(stdout(&output), "billing/job file\n");
}

#[test]
fn a_nested_run_of_the_same_lock_is_refused_and_of_another_is_not() {
    let scene = Scene::new();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let inner = |options: &str| format!("{tenure} run {options} -- echo inner");
    let output = scene.run("x", &inner("x")).output().unwrap();
    assert_eq!(code(&output), 78, "{}", stderr(&output));
    assert!(stderr(&output).contains("wait for itself"), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    let elsewhere = format!("x --store file:{}", scene.path("elsewhere").display());
    for other in ["y", "x --namespace n", &elsewhere] {
        let output = scene.run("x", &inner(other)).output().unwrap();
        assert_eq!((code(&output), stdout(&output).as_str()), (0, "inner\n"), "{other}: {}", stderr(&output));
    }
    // Also with another lock in between.
    let output = scene.run("x", &format!("{tenure} run y -- {}", inner("x"))).output().unwrap();
    assert_eq!(code(&output), 78);
}

/// The names of the stores were compared, and one server has many: the inner run waited for the outer one for ever.
#[test]
fn a_nested_run_is_refused_by_whatever_name_it_calls_the_store() {
    let scene = Scene::on_redis();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let server = scene.server.as_ref().unwrap();
    let by_name = format!("redis://localhost:{}", server.port());
    let by_socket = format!("redis+unix://{}", server.socket().display());
    for other in [by_name, by_socket] {
        let inner = format!("{tenure} --store {other} run x --wait 10s -- echo inner");
        let output = scene.run("x", &inner).output().unwrap();
        assert_eq!((code(&output), stdout(&output).as_str()), (78, ""), "{other}: {}", stderr(&output));
    }
}

#[test]
fn a_process_left_behind_by_a_run_may_take_the_lock_again() {
    let scene = Scene::new();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let script =
        format!("(while ! test -e go; do sleep 0.01; done; {tenure} run x -- echo again > out) > err 2>&1 &");
    let output = scene.run("x", &script).output().unwrap();
    assert_eq!(code(&output), 0);
    assert!(stderr(&output).contains("running, without lock \"x\""), "{}", stderr(&output));
    std::fs::write(scene.path("go"), "").unwrap();
    assert_eq!(scene.line_of("out"), "again", "{}", scene.read("err"));
}

#[test]
fn signals_are_passed_on() {
    let scene = Scene::new();
    for (signal, name, expected) in [
        (Signal::TERM, "TERM", 41),
        (Signal::HUP, "HUP", 42),
        (Signal::USR1, "USR1", 43),
        (Signal::USR2, "USR2", 44),
        (Signal::INT, "INT", 45),
        (Signal::QUIT, "QUIT", 46),
        (Signal::WINCH, "WINCH", 47),
    ] {
        let script = format!("trap 'exit {expected}' {name}; echo ready; while :; do sleep 0.01; done");
        let mut run = Running::start(scene.run("x", &script).stdout(Stdio::piped()));
        assert_eq!(next_line(&mut run.lines()), "ready");
        run.send(signal);
        assert_eq!(run.ended(), expected, "{name}");
    }
    let mut run = Running::start(scene.run("x", "echo ready; sleep 1000; exit 3").stdout(Stdio::piped()));
    assert_eq!(next_line(&mut run.lines()), "ready");
    run.send(Signal::TERM);
    assert_eq!(run.ended(), 143);
    assert!(scene.is_free("x"));
}

#[test]
fn a_signal_while_waiting_gives_up_the_place_in_line() {
    let scene = Scene::new();
    let _holder = holding(&scene, "x");
    let mut waiter = Running::start(&mut scene.run("x", "true"));
    waiting(&scene, "x", 1);
    waiter.send(Signal::TERM);
    assert_eq!(waiter.ended(), 143);
    waiting(&scene, "x", 0);
}

/// `nohup` has hang-ups ignored. Blocked to be read as events, they were heeded again, and a waiter gave up its place
/// when its terminal went away.
#[test]
fn a_signal_that_is_to_be_ignored_is_ignored() {
    let scene = Scene::new();
    let holder = holding(&scene, "x");
    let mut shell = std::process::Command::new("sh");
    let script = format!(
        "trap '' HUP; exec {} run x -- sh -c 'kill -HUP $$; echo ran > ran'",
        env!("CARGO_BIN_EXE_tenure")
    );
    shell.args(["-c", &script]).env("TENURE_STORE", scene.store()).current_dir(scene.path(""));
    let mut waiter = Running::start(&mut shell);
    waiting(&scene, "x", 1);
    waiter.send(Signal::HUP);
    drop(holder);
    assert_eq!(waiter.ended(), 0);
    assert_eq!(scene.line_of("ran"), "ran");
}

#[test]
fn a_broken_pipe_ends_a_command_as_it_does_elsewhere() {
    let scene = Scene::new();
    let output =
        scene.tenure("run x -- bash -c").arg("yes | head -n 1; exit ${PIPESTATUS[0]}").output().unwrap();
    assert_eq!((stdout(&output).as_str(), code(&output)), ("y\n", 141));
}

#[test]
fn letters_of_flock_that_mean_nothing_here_are_refused_with_a_hint() {
    let scene = Scene::new();
    for (letter, hint) in
        [("-c true", "sh -c"), ("-o", "leave it out"), ("-u", "tenure release"), ("-F", "leave it out")]
    {
        let output = scene.tenure(&format!("run x {letter} -- true")).output().unwrap();
        assert_eq!(code(&output), 2, "{letter}");
        assert!(stderr(&output).contains(hint), "{}", stderr(&output));
    }
}

#[test]
fn waiters_are_served_in_order() {
    let scene = Scene::new();
    let holder = holding(&scene, "x");
    let mut waiters = Vec::new();
    for i in 0..4 {
        waiters.push(Running::start(&mut scene.run("x", &format!("echo {i} >> order"))));
        waiting(&scene, "x", i + 1);
    }
    holder.send(Signal::TERM);
    for waiter in &mut waiters {
        assert_eq!(waiter.ended(), 0);
    }
    assert_eq!(scene.read("order"), "0\n1\n2\n3\n");
}

/// A process that holds `options`, until it is dropped.
pub(crate) fn holding(scene: &Scene, options: &str) -> Running {
    let mut run = Running::start(scene.run(options, "echo held; exec sleep 1000").stdout(Stdio::piped()));
    assert_eq!(next_line(&mut run.lines()), "held");
    run
}

/// Waits until so many wait for `lock`.
pub(crate) fn waiting(scene: &Scene, lock: &str, count: usize) {
    eventually(&format!("{count} waiters"), || {
        let output = scene.tenure(&format!("show {lock} --json")).output().unwrap();
        let state: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (state["waiters"].as_array().unwrap().len() == count).then_some(())
    });
}

/// LMDB lets children inherit its descriptor of the data: whatever the command was, and whoever it ran as, it could write
/// to the locks of everybody.
#[test]
fn the_command_gets_no_descriptor_of_ours() {
    let scene = Scene::new();
    let list = ["ls", "-l", "/proc/self/fd"];
    for command in ["run", "once", "elect"] {
        let output = scene.tenure_with(&[command, command, "--"]).args(list).output().unwrap();
        let listed = String::from_utf8_lossy(&output.stdout);
        assert!(listed.contains(" 2 -> "), "{listed}");
        for ours in ["store", "socket:", "anon_inode:"] {
            assert!(!listed.contains(ours), "{command}: {listed}");
        }
    }
}
