//! What can go wrong: opening ([`OpenError`]), and what LMDB's errors mean to a request.

use std::io;
use std::path::PathBuf;

use tenure_core::{RefusalKind, StoreError};

use crate::environment;

/// Why an embedded store was not opened. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The directory cannot be made, read or written.
    #[error("cannot {what} {}: {cause}; name another directory, or mend this one", .path.display())]
    Unusable {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The directory lies on a file system of other machines: memory and file locks are not shared through it.
    #[error(
        "{} lies on a {kind} file system, where processes of other machines could hold the same lock; \
         name a directory on a local disk, or use a store that is made for many machines", .directory.display()
    )]
    NetworkFileSystem {
        /// Which directory.
        directory: PathBuf,
        /// What kind of file system.
        kind: &'static str,
    },
    /// Others may write to the directory.
    #[error(
        "{} {problem}, so others could make themselves holders of any lock; \
         make it yours alone (chmod 700), or say that it is shared on purpose (?shared)", .directory.display()
    )]
    Insecure {
        /// Which directory.
        directory: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A newer version of tenure wrote the store.
    #[error(
        "the store in {} has layout {found}, this version knows layout {known}: upgrade tenure",
        .directory.display()
    )]
    NewerLayout {
        /// Which directory.
        directory: PathBuf,
        /// The layout of the store.
        found: u32,
        /// The newest that this version knows.
        known: u32,
    },
    /// Processes of another machine, container or boot have the store open.
    #[error(
        "the store in {} is in use from another {what}, and processes cannot watch each other across that; \
         give each its own directory", .directory.display()
    )]
    Foreign {
        /// Which directory.
        directory: PathBuf,
        /// Another what.
        what: &'static str,
    },
    /// The store is damaged, and other processes have it open.
    #[error(
        "the store in {} is damaged ({problem}) while other processes have it open; \
         end them, and the next to open it starts afresh", .directory.display()
    )]
    Damaged {
        /// Which directory.
        directory: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Another process is opening the store, or is stopped inside a transaction, and did not get on in time.
    #[error(
        "the store in {} is blocked: {what}; trying again is safe, \
         and `fuser -v` on its files shows which process may be stopped", .directory.display()
    )]
    Blocked {
        /// Which directory.
        directory: PathBuf,
        /// By what.
        what: &'static str,
    },
    /// This process has the store open already in a way that cannot be shared.
    #[error("the store in {} is already open in this process {how}", .directory.display())]
    AlreadyOpen {
        /// Which directory.
        directory: PathBuf,
        /// How.
        how: &'static str,
    },
}

impl OpenError {
    /// Of what kind of refusal this is.
    pub fn kind(&self) -> RefusalKind {
        match self {
            Self::Unusable { cause, .. } => match cause.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    RefusalKind::Permission
                }
                io::ErrorKind::NotADirectory | io::ErrorKind::NotFound | io::ErrorKind::InvalidInput => {
                    RefusalKind::Configuration
                }
                _ => RefusalKind::Unavailable,
            },
            Self::Insecure { .. } => RefusalKind::Permission,
            Self::Blocked { .. } => RefusalKind::Unavailable,
            Self::NetworkFileSystem { .. }
            | Self::NewerLayout { .. }
            | Self::Foreign { .. }
            | Self::Damaged { .. }
            | Self::AlreadyOpen { .. } => RefusalKind::Configuration,
        }
    }

    pub(crate) fn unusable(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Self::Unusable { what, path, cause }
    }
}

impl From<OpenError> for StoreError {
    fn from(error: OpenError) -> Self {
        Self::refused(error.kind(), error.to_string())
    }
}

/// What to do about an error, for who may change the machine.
pub(crate) fn remedy(error: &StoreError) -> String {
    let text = error.to_string();
    let known = [
        ("its disk is full", "make room on the file system of this directory"),
        ("map_size", "give all processes a larger ?map_size=, or release locks"),
        ("is damaged", "end all processes that use it: the next starts afresh"),
        (
            "blocked",
            "continue or end the process that is stopped inside: `fuser -v` on its files shows which",
        ),
    ];
    match known.iter().find(|(words, _)| text.contains(words)) {
        Some((_, remedy)) => (*remedy).into(),
        None => "see docs/backends/embedded.md, under what can go wrong".into(),
    }
}

/// What an error of LMDB before the commit means to a request: nothing changed.
pub(crate) fn refused(store: &str, error: &heed::Error) -> StoreError {
    use heed::MdbError;
    let (kind, message) = match error {
        heed::Error::Mdb(MdbError::MapFull | MdbError::TxnFull) => (
            RefusalKind::Unavailable,
            "it is full (map_size); releasing locks makes room, a larger map_size for all processes makes more"
                .to_string(),
        ),
        heed::Error::Mdb(MdbError::MapResized) => (
            RefusalKind::Configuration,
            "another process opened it with a larger map_size and filled it; use that size here too".into(),
        ),
        error if environment::is_damage(error) => (
            RefusalKind::Configuration,
            format!("it is damaged ({error}); end all processes that use it, and the next starts afresh"),
        ),
        heed::Error::Io(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
            (RefusalKind::Unavailable, "its disk is full".into())
        }
        error => (RefusalKind::Unavailable, error.to_string()),
    };
    StoreError::refused(kind, format!("store {store} did not take the request, nothing changed: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_cause_has_its_own_remedy() {
        let full = heed::Error::Io(io::Error::from_raw_os_error(libc::ENOSPC));
        assert!(remedy(&refused("file:/x", &full)).starts_with("make room"));
        let map_full = heed::Error::Mdb(heed::MdbError::MapFull);
        assert!(remedy(&refused("file:/x", &map_full)).contains("map_size"));
    }
}
