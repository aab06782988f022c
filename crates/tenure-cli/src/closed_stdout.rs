//! Whether this program was started without a standard output.
//!
//! Before `main`, the standard library opens `/dev/null` in its place, and whatever is printed is gone without a word.
//! So it is looked at before that.

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// What the loader runs before the standard library sets itself up, which does its own beginnings here, too.
#[cfg(target_os = "linux")]
#[used]
#[expect(unsafe_code, reason = "there is no safe way to do something before the standard library")]
// SAFETY: a function of this signature is what belongs into this section. It makes one system call and stores to a
// static: it needs nothing that is not set up yet.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        let is_closed = rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_err();
        WAS_CLOSED.store(is_closed, Ordering::Relaxed);
    }
    look
};

/// Whether there was no standard output. Elsewhere than on Linux nobody knows.
pub(crate) fn was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}
