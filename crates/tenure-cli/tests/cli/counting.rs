//! Many processes, one file, no lost update.

use crate::support::{Running, Scene, is_full};

#[test]
fn processes_count_together_without_losing_one() {
    let (processes, times) = if is_full() { (16, 50) } else { (8, 15) };
    let scene = Scene::new();
    std::fs::write(scene.path("f"), "0\n").unwrap();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let one = format!("{tenure} run c -- sh -c 'n=$(cat f); echo $((n+1)) > f'");
    let script = format!("i=0; while [ $i -lt {times} ]; do {one} || exit 1; i=$((i+1)); done");
    let mut shells: Vec<Running> = (0..processes)
        .map(|_| {
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", &script]).env("TENURE_STORE", scene.store()).current_dir(scene.path(""));
            Running::start(&mut shell)
        })
        .collect();
    for shell in &mut shells {
        // Not `ended`: at full length it takes as long as it takes.
        assert!(shell.0.wait().unwrap().success());
    }
    assert_eq!(scene.read("f").trim(), (processes * times).to_string());
}
