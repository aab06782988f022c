//! [`Readable`]: tells the runtime's tasks when a descriptor has something to read. Does not read it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::unix::AsyncFd;

/// Watches a descriptor of which it has a copy of its own.
#[derive(Debug)]
pub(crate) struct Readable(AsyncFd<OwnedFd>);

impl Readable {
    #[expect(unsafe_code, reason = "the runtime has no safe way to watch a descriptor of unknown kind")]
    pub(crate) fn new(descriptor: impl AsFd) -> io::Result<Self> {
        let copy = descriptor.as_fd().try_clone_to_owned()?;
        // SAFETY: the copy is open, is owned by the `AsyncFd`, always answers the same number, and nobody else can
        // close or replace it.
        Ok(Self(unsafe { AsyncFd::register(copy) }?))
    }

    /// What `read` answers, as soon as it is not that it would block.
    ///
    /// # Cancel safety
    /// Nothing that was read is lost.
    pub(crate) async fn read<T>(&self, mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(answer) = ready.try_io(|_| read()) {
                return answer;
            }
        }
    }
}
