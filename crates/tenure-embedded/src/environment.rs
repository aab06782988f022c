//! LMDB: its files, and the one place where it is opened.
//!
//! Never synced: what survives a crash of a process is in the page cache, and what a crash of the machine leaves is
//! thrown away (see [`header`](crate::header)).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use heed::types::Bytes;
use heed::{CommitOrAbort, EnvFlags, EnvOpenOptions, MdbError, RwTxn};
use rustix::fs::FallocateFlags;
use rustix::io::FdFlags;
use rustix::process::{Resource, getrlimit};
use tenure_core::clock::{Clock as _, SystemClock};

use crate::directory::{Directory, Identity};

pub(crate) type Env = heed::Env;
pub(crate) type Database<'e> = heed::Database<'e, Bytes, Bytes>;

const DATA: &str = "data.mdb";
const LOCK: &str = "lock.mdb";
/// The table of readers. Verbs only write, so a few are enough; all of it must fit into [`LOCK_BYTES`].
const READERS_MAX: u32 = 126;
const LOCK_BYTES: usize = 16 << 10;

pub(crate) fn data_path(directory: &Directory) -> PathBuf {
    directory.path.join(DATA)
}

/// Makes the files that are not there, readable by whom they may be, before LMDB would in its own way. To be called
/// by who is alone.
pub(crate) fn make_files(directory: &Directory) -> io::Result<()> {
    let make = |name: &str, size: usize| {
        let path = directory.path.join(name);
        let options = OpenOptions::new().write(true).create_new(true).mode(directory.file_mode).open(path);
        let mut file = match options {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(error) => return Err(error),
        };
        rustix::fs::fchmod(&file, directory.file_mode.into())?;
        file.write_all(&vec![0; size])
    };
    make(DATA, 0)?;
    // LMDB maps this file and writes to the map: if the disk were full then, the process would die of it (SIGBUS). Now
    // it is an error.
    make(LOCK, LOCK_BYTES)
}

/// Which of the files is not there. LMDB would make it anew, and a new lock file has a new mutex: two processes could then
/// write at the same time.
pub(crate) fn missing_file(directory: &Directory) -> Option<&'static str> {
    [DATA, LOCK].into_iter().find(|name| !directory.path.join(name).exists())
}

/// Throws the data away. To be called by who is alone.
pub(crate) fn discard(directory: &Directory) -> io::Result<()> {
    for name in [DATA, LOCK] {
        match fs::remove_file(directory.path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Puts damaged data aside for whoever wants to look at it; only the last one is kept. To be called by who is alone.
pub(crate) fn set_aside(directory: &Directory) -> io::Result<()> {
    let aside = directory.path.join("damaged.mdb");
    tracing::warn!(
        store = %directory.path.display(), aside = %aside.display(), at = SystemClock.unix_micros(),
        "the store is damaged: starting afresh, every claim in it is void"
    );
    match fs::rename(directory.path.join(DATA), aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => discard(directory),
    }
}

/// Opens LMDB.
#[expect(unsafe_code, reason = "LMDB maps a file into memory")]
pub(crate) fn open(directory: &Directory, map_size: usize) -> heed::Result<Env> {
    let page = rustix::param::page_size();
    let mut options = EnvOpenOptions::new();
    options.map_size(map_size.next_multiple_of(page)).max_readers(READERS_MAX);
    // SAFETY: the map is sound as long as only LMDB, with its locks, changes the file, on one machine. The directory
    // is local and writable only by those who are trusted with it (checked in `directory`), in one name space of
    // process ids (checked in `header`), and this process opens it once (`registry`). Data that was not synced before
    // a power loss is thrown away unread, so NO_SYNC never shows us torn pages.
    let env = unsafe {
        options.flags(EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC);
        options.open(&directory.path)?
    };
    keep_from_children(&env)?;
    // Now, before anything is changed: LMDB believes it unseen.
    used(&env)?;
    Ok(env)
}

/// Keeps LMDB's descriptor of the data from the programs that this process starts. LMDB lets them inherit it, and whoever
/// has it can write to the store, as whatever user it runs.
///
/// A program that another thread starts between LMDB's opening and this still gets it: nobody but LMDB could prevent that.
#[expect(unsafe_code, reason = "nobody tells which descriptor is LMDB's")]
fn keep_from_children(env: &Env) -> heed::Result<()> {
    let data = Identity::of(env.try_clone_inner_file()?)?;
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| i32::try_from(limit).ok());
    // By number, not by /proc: a process that may not be dumped cannot read its own there. New descriptors get the lowest
    // number that is free, so this soon finds it.
    for number in 0..limit.unwrap_or(i32::MAX) {
        // SAFETY: any number may be asked about, and nothing changes.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } != 0 {
            continue;
        }
        // SAFETY: it was open just now. If it is LMDB's it stays open: nobody else knows of the environment yet.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if Identity::of(descriptor).is_ok_and(|found| found == data) {
            return Ok(rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC).map_err(io::Error::from)?);
        }
    }
    Err(heed::Error::Io(io::Error::other("the descriptor of the data was not found")))
}

/// How many bytes of the file are in use.
///
/// # Errors
/// If what the file says of that cannot be.
fn used(env: &Env) -> heed::Result<u64> {
    let info = env.info();
    let page = rustix::param::page_size() as u64;
    let used = (info.last_page_number as u64).checked_add(1).and_then(|pages| pages.checked_mul(page));
    let used = used.filter(|used| (2 * page..=info.map_size as u64).contains(used));
    used.ok_or(heed::Error::Mdb(MdbError::Corrupted))
}

/// Room on the disk that is kept for those who give locks back: LMDB writes a page anew even to delete from it.
///
/// The file is longer than what is used of it by [`RESERVE_PAGES`], and the disk has promised that room. Whoever would
/// make the store grow is refused when the disk does not promise more.
#[derive(Debug)]
pub(crate) struct Reserve {
    file: File,
    page: u64,
    map_size: u64,
}

const RESERVE_PAGES: u64 = 16;

impl Reserve {
    pub(crate) fn new(env: &Env) -> heed::Result<Self> {
        let page = rustix::param::page_size() as u64;
        let map_size = env.info().map_size as u64;
        Ok(Self { file: env.try_clone_inner_file()?, page, map_size })
    }

    /// Sees to it that the reserve is there, in a file of `length` bytes; answers whether it is. To be asked before
    /// anything else is, inside the transaction.
    ///
    /// # Errors
    /// If the file is damaged, or cannot be used.
    pub(crate) fn is_there(
        &self,
        env: &Env,
        database: Database<'_>,
        txn: &RwTxn<'_>,
        length: u64,
    ) -> heed::Result<bool> {
        let used = used(env)?;
        if used > length {
            // Either it was cut short, and LMDB finds pages of nothing now, where reading beyond the end would have killed
            // the process. Or pages at the end were taken and given back in one transaction, and never written.
            rustix::fs::ftruncate(&self.file, used).map_err(io::Error::from)?;
        }
        let wanted = (used + RESERVE_PAGES * self.page).min(self.map_size);
        if wanted <= length {
            return Ok(true);
        }
        // More than is needed now, or else just that.
        let ample = (wanted + RESERVE_PAGES * self.page).min(self.map_size);
        for length in [ample, wanted] {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, length) {
                // A file system that makes no promises is used as it is.
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => return Ok(true),
                Err(_) => {}
            }
        }
        // Pages that were used before and are free now do as well.
        let stat = database.stat(txn)?;
        let live = [stat.branch_pages, stat.leaf_pages, stat.overflow_pages].into_iter();
        let live = live.fold(2 * RESERVE_PAGES, |sum, pages| sum.saturating_add(pages as u64));
        Ok(live <= length / self.page)
    }
}

/// The one database in it: the locks by name, and a few records whose keys no name can have.
pub(crate) fn database(env: &Env) -> heed::Result<Database<'_>> {
    let txn = env.write_txn()?;
    let database = env.create_databases_and_commit(txn, |opener, txn| {
        opener.create_database(txn, None).map(CommitOrAbort::<_, ()>::Commit)
    })?;
    Ok(database.unwrap_commit())
}

/// Whether `error` says that the file is not what LMDB wrote.
pub(crate) fn is_damage(error: &heed::Error) -> bool {
    match error {
        heed::Error::Mdb(error) => matches!(
            error,
            MdbError::Invalid
                | MdbError::VersionMismatch
                | MdbError::Corrupted
                | MdbError::PageNotFound
                | MdbError::Panic
                | MdbError::Incompatible
                | MdbError::BadValSize
                | MdbError::Problem
        ),
        heed::Error::Decoding(_) => true,
        _ => false,
    }
}
