//! The peers in other languages: installed under the build folder, started from `bench/peers`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::{build_folder, root};

fn python_folder() -> PathBuf {
    build_folder().join("python")
}

fn node_folder() -> PathBuf {
    build_folder().join("node")
}

/// Installs what is missing.
pub(crate) fn install() -> Result<(), String> {
    if !python_folder().join("redis").is_dir() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--target"]).arg(python_folder()).arg("redis");
        succeed(&mut pip)?;
    }
    if !node_folder().join("node_modules/redlock").is_dir() {
        std::fs::create_dir_all(node_folder()).map_err(|error| error.to_string())?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(node_folder());
        succeed(npm.args(["redlock", "ioredis"]))?;
    }
    Ok(())
}

fn succeed(command: &mut Command) -> Result<(), String> {
    eprintln!("$ {command:?}");
    match command.stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

pub(crate) fn redis_py() -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", python_folder()).arg(root().join("bench/peers/redis_py.py"));
    command
}

pub(crate) fn redlock() -> Command {
    let mut command = Command::new("node");
    command.env("NODE_PATH", node_folder().join("node_modules")).arg(root().join("bench/peers/redlock.js"));
    command
}

/// What is installed, by name.
pub(crate) fn versions() -> Vec<(String, String)> {
    let first_line = |command: &mut Command| {
        let output = command.output().ok()?;
        String::from_utf8(output.stdout).ok()?.lines().next().map(str::to_owned)
    };
    let python = "import redis, sys; print(redis.__version__, 'on Python', sys.version.split()[0])";
    let node = "console.log(require('redlock/package.json').version + ' with ioredis ' + \
                require('ioredis/package.json').version + ' on Node ' + process.version)";
    let mut redis_py = Command::new("python3");
    redis_py.env("PYTHONPATH", python_folder()).args(["-c", python]);
    let mut redlock = Command::new("node");
    redlock.env("NODE_PATH", node_folder().join("node_modules")).args(["-e", node]);
    let mut versions = Vec::new();
    for (name, mut command) in [("redis-py", redis_py), ("redlock", redlock)] {
        if let Some(version) = first_line(&mut command) {
            versions.push((name.to_owned(), version));
        }
    }
    // As in Cargo.lock, which is committed beside this.
    let lock = std::fs::read_to_string(root().join("bench/Cargo.lock")).unwrap_or_default();
    for (package, name) in [("rslock", "rslock"), ("redis", "plain")] {
        let entry =
            lock.split("[[package]]").find(|entry| entry.contains(&format!("name = \"{package}\"\n")));
        let version = entry.and_then(|entry| entry.split("version = \"").nth(1)?.split('"').next());
        if let Some(version) = version {
            versions.push((name.to_owned(), format!("{package} {version}")));
        }
    }
    versions
}
