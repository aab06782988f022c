//! `cargo xtask dist`: one static binary that runs on any Linux of this architecture.
//!
//! Owns the recipe. Needs the musl target of the toolchain and a C compiler for it (LMDB is C); says how to get them if
//! they are missing. Does not publish anything.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds `target/dist/tenure-VERSION-TARGET.tar.gz` and shows that the binary needs nothing else.
///
/// # Errors
/// What is missing, and the command that installs it.
pub(crate) fn run() -> Result<(), String> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let compiler = compiler(&target)?;
    let variable = target.replace('-', "_");
    succeed(
        Command::new("cargo")
            .args(["build", "--release", "--package", "tenure-cli", "--bin", "tenure", "--target", &target])
            .env(format!("CC_{variable}"), compiler)
            .env(
                format!("CARGO_TARGET_{}_RUSTFLAGS", variable.to_uppercase()),
                "-C target-feature=+crt-static",
            )
            .current_dir(&root),
    )
    .map_err(|error| format!("{error}\nif the target is missing: rustup target add {target}"))?;
    let built = target_directory(&root).join(&target).join("release/tenure");
    let told = Command::new(&built).arg("--version").output().map_err(|error| error.to_string())?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let version = told.split_whitespace().nth(1).ok_or("the binary does not tell its version")?.to_owned();
    refuse_dynamic(&built)?;
    let dist = target_directory(&root).join("dist");
    let name = format!("tenure-{version}-{target}");
    let folder = dist.join(&name);
    let fail = |error: std::io::Error| format!("cannot write to {}: {error}", dist.display());
    std::fs::create_dir_all(&folder).map_err(fail)?;
    for (from, to) in [
        (built, "tenure"),
        (root.join("LICENSE-MIT"), "LICENSE-MIT"),
        (root.join("LICENSE-APACHE"), "LICENSE-APACHE"),
        (root.join("README.md"), "README.md"),
    ] {
        std::fs::copy(from, folder.join(to)).map_err(fail)?;
    }
    let manual = Command::new(folder.join("tenure")).arg("man").output().map_err(fail)?;
    std::fs::write(folder.join("tenure.1"), manual.stdout).map_err(fail)?;
    succeed(Command::new("tar").args(["-czf", &format!("{name}.tar.gz"), &name]).current_dir(&dist))?;
    println!("{}\n{told}", dist.join(format!("{name}.tar.gz")).display());
    Ok(())
}

/// A C compiler for the target: the one the user named, or musl's own.
fn compiler(target: &str) -> Result<String, String> {
    let named = std::env::var(format!("CC_{}", target.replace('-', "_")));
    let usual = "musl-gcc".to_string();
    let compiler = named.unwrap_or(usual);
    match Command::new(&compiler).arg("--version").output() {
        Ok(_) => Ok(compiler),
        Err(error) => Err(format!("{compiler}: {error}\non Debian and Ubuntu: apt-get install musl-tools")),
    }
}

fn target_directory(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// A dynamic binary names its loader near its beginning; a static one has none.
fn refuse_dynamic(binary: &Path) -> Result<(), String> {
    let bytes = std::fs::read(binary).map_err(|error| error.to_string())?;
    let beginning = &bytes[..bytes.len().min(4096)];
    if beginning.windows(4).any(|window| window == b"/ld-") {
        return Err(format!("{} is not static", binary.display()));
    }
    Ok(())
}

fn succeed(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
