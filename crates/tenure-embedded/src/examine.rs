//! What `tenure doctor` finds out about a directory: where it lies, who may use it, how much room it has.

use std::os::unix::fs::PermissionsExt as _;

use async_trait::async_trait;
use tenure_core::{Answer, Examine, Finding, Seams, StoreError, try_a_lock};

use crate::backend::Embedded;
use crate::error::remedy;

/// Below this much free space, locks will soon be refused.
const FREE_BYTES_MIN: u64 = 16 << 20;

#[async_trait]
impl Examine for Embedded {
    async fn examine(&self) -> Answer<Vec<Finding>> {
        let directory = self.directory();
        let unreadable =
            |error: std::io::Error| StoreError::unknown(format!("{}: {error}", directory.display()));
        let data = directory.metadata().map_err(unreadable)?;
        let space = rustix::fs::statvfs(directory).map_err(|error| unreadable(error.into()))?;
        let mode = data.permissions().mode() & 0o7777;
        let who = if mode & 0o022 == 0 { "this user only" } else { "shared with others, as asked for" };
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let room = format!("{} MiB free", free >> 20);
        Ok(vec![
            Finding::fine("directory", format!("{}, on a local file system", directory.display())),
            Finding::fine("users", format!("{who} (mode {mode:04o})")),
            try_a_lock(self, &Seams::default(), remedy).await,
            if free < FREE_BYTES_MIN {
                Finding::problem("room", room, "make room: a full file system refuses new locks")
            } else {
                Finding::fine("room", room)
            },
            Finding::fine("reach", "the processes of this machine, in one container or outside of any"),
        ])
    }
}
