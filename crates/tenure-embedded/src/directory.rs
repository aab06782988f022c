//! The directory of a store: that it is there, local, and nobody else's; and the guard lock that says who is inside.
//!
//! The guard is a file lock on the directory itself: shared by every process that has the store open, exclusive for
//! the one that sets it up or repairs it. Cleaners of temporary files leave a locked directory alone, too. Knows
//! nothing of what is in the files.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use tenure_core::BootInstant;
use tenure_core::clock::{Clock as _, SystemClock};

use crate::config::Config;
use crate::error::OpenError;
use crate::fork::Guarded;

/// A directory that may hold a store.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Absolute, without links.
    pub(crate) path: PathBuf,
    /// Tells it from every other directory of this machine.
    pub(crate) identity: Identity,
    /// What its files may be read and written by.
    pub(crate) file_mode: u32,
    guard: Guarded,
    descriptor: OwnedFd,
}

/// A file or directory, whatever its name is by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub(crate) fn of(descriptor: impl AsFd) -> io::Result<Self> {
        Ok(Self::from(&rustix::fs::fstat(descriptor)?))
    }
}

impl From<&rustix::fs::Stat> for Identity {
    fn from(stat: &rustix::fs::Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// Who else is inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Company {
    /// Nobody: the store may be set up and repaired.
    None,
    /// Somebody: it is used as it is.
    Others,
}

impl Directory {
    /// Makes the directory if need be, and checks that it can be trusted.
    pub(crate) fn prepare(config: &Config) -> Result<Self, OpenError> {
        let (wanted, follow) = match &config.directory {
            Some(named) => (named.clone(), OFlags::empty()),
            // Somebody else may have put a link where the default is looked for.
            None => (default_path(), OFlags::NOFOLLOW),
        };
        make(&wanted, config.shared)?;
        let unusable = |what| OpenError::unusable(what, &wanted);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | follow;
        let descriptor = rustix::fs::open(&wanted, flags, Mode::empty())
            .map_err(|error| unusable("open the directory")(error.into()))?;
        let path = wanted.canonicalize().map_err(unusable("resolve"))?;
        let stat = rustix::fs::fstat(&descriptor).map_err(|error| unusable("examine")(error.into()))?;
        let identity = Identity::from(&stat);
        refuse_network(&path, &descriptor)?;
        if !config.shared {
            refuse_others(&path, &stat)?;
        }
        let file_mode = if config.shared { stat.st_mode & 0o066 | 0o600 } else { 0o600 };
        let guard = Guarded::new(descriptor.as_fd()).map_err(unusable("guard"))?;
        Ok(Self { path, identity, file_mode, guard, descriptor })
    }

    /// Waits until nobody is setting the store up, and goes in: alone if possible. If alone, [`settle`](Self::settle)
    /// follows.
    pub(crate) fn enter(&self, deadline: BootInstant) -> Result<Company, OpenError> {
        loop {
            for (lock, company) in [
                (FlockOperation::NonBlockingLockExclusive, Company::None),
                (FlockOperation::NonBlockingLockShared, Company::Others),
            ] {
                match rustix::fs::flock(&self.descriptor, lock) {
                    Ok(()) => return Ok(company),
                    Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(OpenError::unusable("lock", &self.path)(error.into())),
                }
            }
            self.pause(deadline)?;
        }
    }

    /// Lets others in beside us.
    pub(crate) fn settle(&self, deadline: BootInstant) -> Result<(), OpenError> {
        // Between the two locks another may be alone for a moment: it finds a store in order, and leaves it so.
        while rustix::fs::flock(&self.descriptor, FlockOperation::NonBlockingLockShared).is_err() {
            self.pause(deadline)?;
        }
        Ok(())
    }

    /// A path to the directory of at most so many bytes, for the address of a socket.
    pub(crate) fn socket_directory(&self, bytes_max: usize) -> PathBuf {
        if self.path.as_os_str().len() <= bytes_max {
            return self.path.clone();
        }
        format!("/proc/self/fd/{}", self.descriptor.as_raw_fd()).into()
    }

    /// Goes out again.
    pub(crate) fn leave(&self) {
        let _ = rustix::fs::flock(&self.descriptor, FlockOperation::Unlock);
    }

    pub(crate) fn pause(&self, deadline: BootInstant) -> Result<(), OpenError> {
        if SystemClock.now() >= deadline {
            return Err(OpenError::Blocked {
                directory: self.path.clone(),
                what: "another process has been setting it up for too long, and may be stopped",
            });
        }
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Unlocked first: a fork right now would carry the descriptor, but no lock.
        self.leave();
        let _ = &self.guard;
    }
}

/// One for each user, whatever the environment says: cron and a login shell must find the same.
fn default_path() -> PathBuf {
    let temporary = if cfg!(target_os = "linux") { "/tmp".into() } else { std::env::temp_dir() };
    temporary.join(format!("tenure-{}", rustix::process::geteuid().as_raw()))
}

fn make(path: &Path, is_shared: bool) -> Result<(), OpenError> {
    if let (Some(parent), false) = (path.parent(), is_shared) {
        if !parent.as_os_str().is_empty() && !parent.exists() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent)
                .map_err(OpenError::unusable("make the directory", parent))?;
        }
    }
    // The group is let in, and files made here belong to the group of the directory, whoever makes them.
    let mode = if is_shared { 0o2770 } else { 0o700 };
    match fs::DirBuilder::new().mode(0o700).create(path) {
        // Whatever the umask took away: under 0177, a usual one for private files, nobody could go in.
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(OpenError::unusable("set the mode of", path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(OpenError::unusable("make the directory", path)(error)),
    }
}

fn refuse_others(path: &Path, stat: &rustix::fs::Stat) -> Result<(), OpenError> {
    let me = rustix::process::geteuid().as_raw();
    let problem = if stat.st_uid != me {
        format!("belongs to user {}, not to user {me} who opens it", stat.st_uid)
    } else if stat.st_mode & 0o022 != 0 {
        format!("may be written by others (mode {:o})", stat.st_mode & 0o7777)
    } else {
        return Ok(());
    };
    Err(OpenError::Insecure { directory: path.into(), problem })
}

fn refuse_network(path: &Path, descriptor: &OwnedFd) -> Result<(), OpenError> {
    let stat = rustix::fs::fstatfs(descriptor)
        .map_err(|error| OpenError::unusable("examine the file system of", path)(error.into()))?;
    match network_kind(stat.f_type as u64) {
        Some(kind) => Err(OpenError::NetworkFileSystem { directory: path.into(), kind }),
        None => Ok(()),
    }
}

/// What `statfs` calls the file systems that other machines may write to behind this kernel's back.
fn network_kind(magic: u64) -> Option<&'static str> {
    Some(match magic & 0xffff_ffff {
        0x6969 => "NFS",
        0x517b | 0xfe53_4d42 | 0xff53_4d42 => "SMB",
        // Whether there is a network behind it cannot be told; that memory is shared cannot either.
        0x6573_5546 => "FUSE",
        0x0102_1997 => "9P",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x5346_414f => "AFS",
        0x7375_7245 => "Coda",
        0x564c => "NCP",
        0x786f_4256 => "VirtualBox shared",
        0xbacb_acbc => "VMware shared",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        assert_eq!(network_kind(0x6969), Some("NFS"));
        // As a 32-bit kernel hands it out: with the sign carried on.
        assert_eq!(network_kind(0xffff_ffff_ff53_4d42), Some("SMB"));
        for (local, magic) in [("ext4", 0xef53), ("tmpfs", 0x0102_1994), ("overlay", 0x794c_7630)] {
            assert_eq!(network_kind(magic), None, "{local}");
        }
    }

    #[test]
    fn a_directory_that_others_may_write_is_refused_unless_told() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("locks");
        Directory::prepare(&Config::at(&path)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o700);
        for mode in [0o770, 0o777, 0o1777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let refused = Directory::prepare(&Config::at(&path)).unwrap_err();
            assert!(matches!(refused, OpenError::Insecure { .. }), "{refused}");
            let shared = Config { shared: true, ..Config::at(&path) };
            Directory::prepare(&shared).unwrap();
        }
    }

    #[test]
    fn a_file_in_the_place_of_the_directory_is_refused() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("locks");
        fs::write(&path, "").unwrap();
        let refused = Directory::prepare(&Config::at(&path)).unwrap_err();
        assert!(refused.to_string().contains("locks"), "{refused}");
        assert_eq!(refused.kind(), tenure_core::RefusalKind::Configuration);
    }

    #[test]
    fn the_first_is_alone_until_it_settles() {
        let outer = tempfile::tempdir().unwrap();
        let config = Config::at(outer.path().join("locks"));
        let soon = SystemClock.now() + Duration::from_millis(20);
        let first = Directory::prepare(&config).unwrap();
        let second = Directory::prepare(&config).unwrap();
        assert_eq!(first.enter(soon).unwrap(), Company::None);
        assert!(matches!(second.enter(soon), Err(OpenError::Blocked { .. })));
        first.settle(soon).unwrap();
        assert_eq!(second.enter(soon).unwrap(), Company::Others);
    }
}
