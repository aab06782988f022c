//! Which program a command means, found before anything is locked: a misspelt one must not wait in line.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::exit_code::ExitCode;
use crate::failure::{Failure, Outcome};

/// Where shells look when there is no `PATH`.
const USUAL_PATH: &str = "/bin:/usr/bin";

/// The file that `command` names, as `execvp` would find it.
pub(crate) fn find(command: &OsStr) -> Outcome<PathBuf> {
    let file = find_file(command)?;
    match interpreter(&file).map(|interpreter| (judge(&interpreter), interpreter)) {
        None | Some((Some(true), _)) => Ok(file),
        Some((Some(false), interpreter)) => Err(Failure::new(
            ExitCode::NotExecutable,
            format!("{} cannot be executed; nothing was locked", needed(command, &interpreter)),
        )),
        Some((None, interpreter)) => Err(Failure::new(
            ExitCode::NotFound,
            format!("{} is not found; nothing was locked", needed(command, &interpreter)),
        )),
    }
}

fn needed(command: &OsStr, interpreter: &Path) -> String {
    format!("the interpreter {} of command {}", interpreter.display(), command.to_string_lossy())
}

fn find_file(command: &OsStr) -> Outcome<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return match judge(Path::new(command)) {
            Some(true) => Ok(command.into()),
            Some(false) => Err(not_executable(command)),
            None => Err(not_found(command)),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(USUAL_PATH));
    let mut is_there = false;
    for directory in std::env::split_paths(&path).filter(|_| !command.is_empty()) {
        let file = if directory.as_os_str().is_empty() {
            Path::new(".").join(command)
        } else {
            directory.join(command)
        };
        match judge(&file) {
            Some(true) => return Ok(file),
            Some(false) => is_there = true,
            None => {}
        }
    }
    Err(if is_there { not_executable(command) } else { not_found(command) })
}

/// Whether the file can be executed; `None` if there is none.
fn judge(file: &Path) -> Option<bool> {
    match std::fs::metadata(file) {
        Ok(metadata) => Some(metadata.is_file() && access(file, Access::EXEC_OK).is_ok()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Some(false),
        Err(_) => None,
    }
}

/// What the first line of a script says is to run it. The rest of the line is its argument.
fn interpreter(file: &Path) -> Option<PathBuf> {
    /// As much as the kernel looks at.
    const LOOKED_AT: u64 = 256;
    let mut start = Vec::new();
    // One that may be executed and not read is left to the kernel.
    std::fs::File::open(file).ok()?.take(LOOKED_AT).read_to_end(&mut start).ok()?;
    // A longer line is no interpreter line to the kernel.
    if start.len() as u64 == LOOKED_AT && !start.contains(&b'\n') {
        return None;
    }
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t' | 0)).filter(|word| !word.is_empty());
    Some(PathBuf::from(OsStr::from_bytes(words.next()?)))
}

fn not_found(command: &OsStr) -> Failure {
    Failure::new(
        ExitCode::NotFound,
        format!("command {} is not found; nothing was locked", command.to_string_lossy()),
    )
}

fn not_executable(command: &OsStr) -> Failure {
    let what = format!("command {} cannot be executed; nothing was locked", command.to_string_lossy());
    Failure::new(ExitCode::NotExecutable, what)
}

/// What the guardian met when it started the command under the lock, as shells say it.
pub(crate) fn cannot_start(command: &OsStr, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => ExitCode::NotFound,
        _ => ExitCode::NotExecutable,
    };
    let command = command.to_string_lossy();
    Failure::new(
        code,
        format!("command {command} could not be started: {error}; nothing was done under the lock"),
    )
}
