//! Who lives: each process holds a lock on a file of its own, and is dead as soon as anybody else can get that lock.
//!
//! The identity of a process is the random number in the file's name, never its pid. A file stays until every claim of
//! its process is gone: so a file that is missing was removed by a stranger, says nothing, and the claims tied to it
//! last for their ttl. Knows nothing of claims.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use tenure_core::queue::Owner;
use tenure_core::{Entropy as _, SystemEntropy};

use crate::directory::Directory;
use crate::fork::Guarded;

const PREFIX: &str = "live-";
/// A file that is not locked yet goes by this name: nobody may take it for a dead process's.
const PREFIX_UNLOCKED: &str = "new-";

fn path_of(directory: &Path, owner: Owner) -> PathBuf {
    directory.join(format!("{PREFIX}{:016x}", owner.0))
}

/// This process lives, while this does. A process that inherits a copy of the descriptor takes part in that.
#[derive(Debug)]
pub(crate) struct Liveness {
    pub(crate) owner: Owner,
    path: PathBuf,
    _guard: Guarded,
    file: File,
}

impl Liveness {
    pub(crate) fn begin(directory: &Directory) -> io::Result<Self> {
        let mut bytes = [0; 8];
        SystemEntropy.fill(&mut bytes);
        let owner = Owner(u64::from_le_bytes(bytes));
        let unlocked = directory.path.join(format!("{PREFIX_UNLOCKED}{:016x}", owner.0));
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(directory.file_mode).open(&unlocked)?;
        rustix::fs::fchmod(&file, directory.file_mode.into())?;
        // For people who look into the directory; the number may mean somebody else by then.
        let _ = writeln!(file, "pid {}", std::process::id());
        // Kept from forked children before there is a lock to carry.
        let guard = Guarded::new(file.as_fd())?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let path = path_of(&directory.path, owner);
        fs::rename(&unlocked, &path)?;
        Ok(Self { owner, path, _guard: guard, file })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// To be called when no claim of this process is left in the store.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Looks whether other processes live.
#[derive(Debug)]
pub(crate) struct Watch {
    directory: PathBuf,
    me: Owner,
    known: HashMap<Owner, Known>,
}

#[derive(Debug)]
enum Known {
    /// Its file, opened once: a name is never used for two processes, so this cannot go stale.
    File(File),
    /// The dead stay dead.
    Dead,
}

/// How many processes are kept in mind, each with an open file.
const KNOWN_MAX: usize = 256;

impl Watch {
    pub(crate) fn new(directory: &Path, me: Owner) -> Self {
        Self { directory: directory.into(), me, known: HashMap::new() }
    }

    /// Whether the process is surely dead: its lock was obtained. In doubt it lives.
    ///
    /// To be asked inside a write transaction only: two that ask at the same time could take each other for it.
    pub(crate) fn is_dead(&mut self, owner: Owner) -> bool {
        if owner == self.me {
            return false;
        }
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&owner) {
            self.known.clear();
        }
        let known = match self.known.entry(owner) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(unknown) => {
                match open(&path_of(&self.directory, owner)) {
                    Ok(file) => unknown.insert(Known::File(file)),
                    Err(_) => return false,
                }
            }
        };
        match known {
            Known::Dead => true,
            Known::File(file) => {
                let is_dead = rustix::fs::flock(&*file, FlockOperation::NonBlockingLockExclusive).is_ok();
                if is_dead {
                    *known = Known::Dead;
                }
                is_dead
            }
        }
    }

    /// The dead processes whose files still lie here. To be asked inside a write transaction only.
    pub(crate) fn dead(&mut self) -> Vec<Owner> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let owners: Vec<_> = entries
            .filter_map(|entry| {
                let name = entry.file_name();
                let number = name.to_str()?.strip_prefix(PREFIX)?;
                u64::from_str_radix(number, 16).ok().map(Owner)
            })
            .collect();
        owners.into_iter().filter(|owner| self.is_dead(*owner)).collect()
    }

    /// Removes the file of a dead process. To be called when none of its claims is left in the store.
    pub(crate) fn bury(&self, owner: Owner) {
        let _ = fs::remove_file(path_of(&self.directory, owner));
    }
}

/// Removes what processes left that died before they were anybody. To be called by who is alone.
pub(crate) fn clear(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX_UNLOCKED) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// A sweeper that came between the making of the file and its locking took the process for dead, for good: its
    /// claims were given to others while it held them.
    #[test]
    fn nobody_is_taken_for_dead_while_being_born() {
        let outer = tempfile::tempdir().unwrap();
        let directory = Directory::prepare(&Config::at(outer.path().join("locks"))).unwrap();
        let path = directory.path.clone();
        let (done, passes, buried) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    let dead = Watch::new(&path, Owner(0)).dead();
                    buried.lock().unwrap().extend(dead);
                    passes.fetch_add(1, Ordering::SeqCst);
                }
            });
            for _ in 0..300 {
                let born = Liveness::begin(&directory).unwrap();
                let pass = passes.load(Ordering::SeqCst);
                while passes.load(Ordering::SeqCst) < pass + 2 {
                    std::thread::yield_now();
                }
                let is_buried = buried.lock().unwrap().contains(&born.owner);
                born.remove();
                if is_buried {
                    done.store(true, Ordering::SeqCst);
                    panic!("the living were taken for dead");
                }
            }
            done.store(true, Ordering::SeqCst);
        });
    }

    #[test]
    fn the_dead_are_known_by_their_lock_and_the_missing_are_left_alone() {
        let outer = tempfile::tempdir().unwrap();
        let directory = Directory::prepare(&Config::at(outer.path().join("locks"))).unwrap();
        let mut watch = Watch::new(&directory.path, Owner(0));
        let (lives, dies, lost) =
            (Liveness::begin(&directory).unwrap(), Liveness::begin(&directory).unwrap(), Owner(7));
        let dead = dies.owner;
        assert!(!watch.is_dead(dead));
        drop(dies);
        assert!(watch.is_dead(dead));
        assert!(!watch.is_dead(lives.owner));
        assert!(!watch.is_dead(lost), "a missing file says nothing");
        assert_eq!(watch.dead(), [dead]);
        watch.bury(dead);
        assert_eq!(watch.dead(), []);
        assert!(watch.is_dead(dead), "the dead stay dead");
    }
}
