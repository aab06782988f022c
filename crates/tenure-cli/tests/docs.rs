//! What the documentation shows is what the program says. Each page has a store of its own.

#[test]
fn the_reference_tells_the_truth() {
    run_examples_of("reference/cli.md");
}

#[test]
fn the_guide_to_once_tells_the_truth() {
    run_examples_of("guides/once.md");
}

fn run_examples_of(page: &str) {
    let directory = tempfile::tempdir().unwrap();
    let tenure = std::path::Path::new(env!("CARGO_BIN_EXE_tenure"));
    // Examples that run `tenure` under `tenure` find it as their reader would.
    let path =
        format!("{}:{}", tenure.parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    trycmd::TestCases::new()
        .env("PATH", path)
        .env("TENURE_STORE", format!("file:{}", directory.path().join("store").display()))
        .env("NO_COLOR", "1")
        .env("COLUMNS", "120")
        .case(format!("../../docs/{page}"))
        .run();
}
