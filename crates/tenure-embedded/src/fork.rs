//! What a `fork` of the process does to an open store: the child carries nothing of it.
//!
//! The liveness of a process is a file lock, and the kernel keeps such a lock while *any* copy of its file descriptor
//! is open. A forked child would keep its parent's claims alive after the parent died. So in the child, before `fork`
//! returns there, every such descriptor is replaced by one of `/dev/null`: replaced, not closed, because the copied
//! owners of the descriptor may still close its number. Programs started with `exec` never see them (`O_CLOEXEC`).
//!
//! The other half: a store that was opened before the fork has no threads in the child. [`generation`] tells.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// How many descriptors can be guarded: two for each open store.
const GUARDED_MAX: usize = 128;
const NONE: i32 = -1;

static GUARDED: [AtomicI32; GUARDED_MAX] = [const { AtomicI32::new(NONE) }; GUARDED_MAX];
static GENERATION: AtomicU32 = AtomicU32::new(0);
static NOTHING: OnceLock<File> = OnceLock::new();

/// How many forks lie between this process and the one that first opened a store.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Keeps a descriptor from forked children for as long as this lives. Drop it before the descriptor is closed.
#[derive(Debug)]
pub(crate) struct Guarded(usize);

impl Guarded {
    pub(crate) fn new(descriptor: BorrowedFd<'_>) -> io::Result<Self> {
        watch_forks()?;
        let number = descriptor.as_raw_fd();
        let free = GUARDED
            .iter()
            .position(|slot| slot.compare_exchange(NONE, number, Ordering::SeqCst, Ordering::SeqCst).is_ok());
        free.map(Self).ok_or_else(|| io::Error::other("this process has too many stores open"))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        GUARDED[self.0].store(NONE, Ordering::SeqCst);
    }
}

#[expect(unsafe_code, reason = "there is no safe way to be told of a fork")]
fn watch_forks() -> io::Result<()> {
    static WATCHING: OnceLock<i32> = OnceLock::new();
    if NOTHING.get().is_none() {
        let _ = NOTHING.set(File::open("/dev/null")?);
    }
    // SAFETY: the handler is `extern "C"`, lives as long as the program, and only does what is allowed between fork
    // and exec: atomics and one system call.
    let failed = *WATCHING.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    match failed {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[expect(unsafe_code, reason = "called by the C library in a forked child")]
unsafe extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
    let Some(nothing) = NOTHING.get() else { return };
    for slot in &GUARDED {
        let number = slot.swap(NONE, Ordering::SeqCst);
        if number != NONE {
            // SAFETY: dup3 is async-signal-safe and `nothing` is never closed. The number was open when it was
            // guarded and is unguarded before it is closed, so no stranger's descriptor is replaced.
            unsafe { libc::dup3(nothing.as_raw_fd(), number, libc::O_CLOEXEC) };
        }
    }
}
