//! `bench`: figures for people and programs, and nothing left behind.

use serde_json::{Value, json};

use crate::support::{Scene, code, stderr, stdout};

#[test]
fn bench_measures_and_leaves_nothing_behind() {
    let scene = Scene::new();
    let output = scene.tenure("bench --for 50ms --tasks 4 --waiters 3 --json").output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["store"], json!(scene.store()));
    let figures = [&told["acquire_release"][0], &told["acquire_release"][1], &told["hand_over"]];
    assert_eq!([&figures[0]["tasks"], &figures[1]["tasks"], &figures[2]["waiters"]], [1, 4, 3]);
    for figure in figures {
        let number = |name: &str| figure[name].as_f64().unwrap();
        assert!(number("per_second") > 0.0 && number("p50_us") > 0.0, "{told}");
        assert!(number("p50_us") <= number("p99_us"), "{told}");
    }
    assert_eq!(stdout(&scene.tenure("ls").output().unwrap()), "");
}

#[test]
fn bench_is_a_table_for_people_and_refuses_nonsense() {
    let scene = Scene::new();
    let shown = stdout(&scene.tenure("bench --for 20ms --tasks 2 --waiters 2").output().unwrap());
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 4, "{shown}");
    assert!(lines[0].starts_with("WHAT") && lines[3].starts_with("hand-over"), "{shown}");
    for bad in ["--tasks 0", "--waiters none", "--for 1h", "--for 0"] {
        assert_eq!(code(&scene.tenure(&format!("bench {bad}")).output().unwrap()), 2, "{bad}");
    }
}
