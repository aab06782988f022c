//! What the documentation shows is what the program says.

#[test]
fn the_reference_tells_the_truth() {
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
        .case("../../docs/reference/cli.md")
        .run();
}
