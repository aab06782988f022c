//! What the tests need besides cargo and a C compiler, each by its name, and how it is had.

use std::path::Path;
use std::process::Command;

use crate::steps;

/// A program that the tests start, and the Debian package that brings it.
struct Need {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

const NEEDS: &[Need] = &[Need { program: "cc", package: "gcc", why: "LMDB and ring are C" }];

/// Installs what is missing, or says what is.
pub(crate) fn run() -> Result<(), String> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !is_on_path(need.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for need in &missing {
        eprintln!("xtask: {} is missing ({}): Debian package {}", need.program, need.why, need.package);
    }
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    install(&packages)
}

fn install(packages: &[&str]) -> Result<(), String> {
    let by_hand = format!("install by hand, then try again: apt-get install {}", packages.join(" "));
    if !is_on_path("apt-get") {
        return Err(format!("this is not Debian; {by_hand}"));
    }
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.trim_ascii() == b"0");
    let may_sudo = || Command::new("sudo").args(["-n", "true"]).output().is_ok_and(|o| o.status.success());
    let prefix: &[&str] = match (is_root, is_root || may_sudo()) {
        (true, _) => &[],
        (false, true) => &["sudo", "-n"],
        (false, false) => return Err(format!("not allowed to install; {by_hand}")),
    };
    let apt = |arguments: &[&str]| {
        let words: Vec<&str> =
            [prefix, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"], arguments].concat();
        steps::run(words[0], &words[1..], &[])
    };
    apt(&["update"])?;
    apt(&[&["install", "--yes", "--no-install-recommends"], packages].concat())
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| is_executable(&directory.join(program)))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}
