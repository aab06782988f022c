//! Which process this is in a line of forks: for whatever must not be used by a parent and by its child alike.
//!
//! Asks the kernel, not the C library: a page that is wiped in every copy of the process also notices a raw `clone`,
//! which runs no `atfork` handlers. Does not notice a copy of the whole machine, as when one snapshot is started twice.

/// A number that no two processes of a line of forks share. Costs two loads. `None` where the kernel cannot tell: take
/// every moment for the one after a fork.
pub(crate) fn generation() -> Option<u64> {
    platform::generation()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod platform {
    use std::ptr;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// What the page holds after a fork, and at first.
    const WIPED: u64 = 0;

    pub(super) fn generation() -> Option<u64> {
        static MARK: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
        /// Not on the page: a child goes on counting where its parent was.
        static NEXT: AtomicU64 = AtomicU64::new(WIPED + 1);
        let mark = (*MARK.get_or_init(wiped_on_fork))?;
        let known = mark.load(Ordering::Relaxed);
        if known != WIPED {
            return Some(known);
        }
        let new = NEXT.fetch_add(1, Ordering::Relaxed);
        let first = mark.compare_exchange(WIPED, new, Ordering::Relaxed, Ordering::Relaxed);
        // Where another thread was first, its number is this process's.
        Some(first.map_or_else(|theirs| theirs, |_| new))
    }

    /// A number on a page of its own that is zero again in every forked child.
    #[expect(unsafe_code, reason = "there is no safe way to have memory that is wiped by a fork")]
    fn wiped_on_fork() -> Option<&'static AtomicU64> {
        // Of any length up to a page, the kernel takes a whole one.
        let length = size_of::<AtomicU64>();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, wherever the kernel likes: no memory in use is touched.
        let page = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return None;
        }
        // Old versions of QEMU answer yes to any advice, also to one that does not exist.
        const NO_ADVICE: libc::c_int = -1;
        // SAFETY: the advice is about the page just mapped, which nobody else knows.
        let is_wiped = unsafe {
            libc::madvise(page, length, NO_ADVICE) != 0
                && libc::madvise(page, length, libc::MADV_WIPEONFORK) == 0
        };
        if !is_wiped {
            // SAFETY: mapped above, and referred to by nothing.
            unsafe { libc::munmap(page, length) };
            return None;
        }
        // SAFETY: the page is aligned, zeroed, readable and writable, and is never unmapped. It is only ever used as
        // this one atomic; the wiping happens to a child's copy before the child runs.
        Some(unsafe { AtomicU64::from_ptr(page.cast()) })
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod platform {
    pub(super) const fn generation() -> Option<u64> {
        None
    }
}
