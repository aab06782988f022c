//! Which program a command means, found before anything is locked: a misspelt one must not wait in line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::exit_code::ExitCode;
use crate::failure::{Failure, Outcome};

/// Where shells look when there is no `PATH`.
const USUAL_PATH: &str = "/bin:/usr/bin";

/// The file that `command` names, as `execvp` would find it.
pub(crate) fn find(command: &OsStr) -> Outcome<PathBuf> {
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
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Some(false),
        Err(_) => None,
    }
}

pub(crate) fn not_found(command: &OsStr) -> Failure {
    Failure::new(
        ExitCode::NotFound,
        format!("command {} is not found; nothing was locked", command.to_string_lossy()),
    )
}

pub(crate) fn not_executable(command: &OsStr) -> Failure {
    let what = format!("command {} cannot be executed; nothing was locked", command.to_string_lossy());
    Failure::new(ExitCode::NotExecutable, what)
}
