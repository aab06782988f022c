//! News between processes: a datagram to the socket of the process that a claim is tied to.
//!
//! Sent after the commit, never waited for. A lost one costs a little time, no more: every waiter looks by itself. In a
//! shared directory anybody may send, so there news is only a hint to look (`is_trusted`).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::queue::Owner;
use tenure_core::{BootInstant, ClaimId, FencingToken, Reason};

use crate::directory::Directory;
use crate::listeners::Listeners;

/// The version of the datagrams. Others are not understood, and looking helps there too.
const FORMAT: u8 = 1;
const BYTES_MAX: usize = 32 << 10;
/// How much news goes into one datagram: with the longest reasons it stays below [`BYTES_MAX`].
const NEWS_MAX: usize = 24;
/// The longest path that fits into a socket address, with a little to spare.
const PATH_BYTES_MAX: usize = 100;

/// What somebody must be told of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum News {
    /// It was granted.
    Granted(Pushed),
    /// Something changed: attempt again.
    Look,
    /// An operator took it away.
    Evicted(Option<Reason>),
}

/// A grant, dated by the boot clock that all processes here share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pushed {
    pub(crate) token: FencingToken,
    pub(crate) ttl: Duration,
    since: u64,
}

impl Pushed {
    pub(crate) const fn new(token: FencingToken, ttl: Duration, since: BootInstant) -> Self {
        Self { token, ttl, since: since.as_nanos() }
    }

    pub(crate) const fn since(&self) -> BootInstant {
        BootInstant::from_nanos(self.since)
    }
}

fn path_of(directory: &Path, owner: Owner) -> PathBuf {
    directory.join(format!("wake-{:016x}", owner.0))
}

/// Sends news to other processes.
#[derive(Debug)]
pub(crate) struct Sender {
    socket: UnixDatagram,
    directory: PathBuf,
}

impl Sender {
    pub(crate) fn new(directory: &Directory) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            directory: directory.socket_directory(PATH_BYTES_MAX - "wake-0123456789abcdef".len()),
        })
    }

    /// Sends what there is to send, one datagram for each process where that is enough. A process that is gone or
    /// does not read is skipped.
    pub(crate) fn send(&self, news: BTreeMap<Owner, Vec<(ClaimId, News)>>) {
        for (owner, news) in news {
            for part in news.chunks(NEWS_MAX) {
                let datagram = postcard::to_extend(&part, vec![FORMAT]);
                let sent =
                    datagram.map(|datagram| self.socket.send_to(&datagram, path_of(&self.directory, owner)));
                if !matches!(sent, Ok(Ok(_))) {
                    tracing::debug!(
                        owner = owner.0,
                        ?sent,
                        "news was not delivered; its receiver looks by itself"
                    );
                }
            }
        }
    }

    /// Removes the socket of a process that is no more.
    pub(crate) fn bury(&self, owner: Owner) {
        let _ = fs::remove_file(path_of(&self.directory, owner));
    }
}

/// The socket of this process, and the thread that reads it.
#[derive(Debug)]
pub(crate) struct Receiver {
    mailbox: Arc<Mailbox>,
    path: PathBuf,
}

#[derive(Debug)]
struct Mailbox {
    socket: UnixDatagram,
    is_closed: AtomicBool,
}

impl Receiver {
    pub(crate) fn start(
        directory: &Directory,
        owner: Owner,
        is_trusted: bool,
        listeners: Arc<Listeners>,
    ) -> io::Result<Self> {
        let short = directory.socket_directory(PATH_BYTES_MAX - "wake-0123456789abcdef".len());
        let mailbox = Arc::new(Mailbox {
            socket: UnixDatagram::bind(path_of(&short, owner))?,
            is_closed: AtomicBool::new(false),
        });
        let path = path_of(&directory.path, owner);
        // The mode must let those write who may write to the files here.
        fs::set_permissions(&path, fs::Permissions::from_mode(directory.file_mode))?;
        let reading = mailbox.clone();
        std::thread::Builder::new()
            .name("tenure-wake".into())
            .spawn(move || read(&reading, is_trusted, &listeners))?;
        Ok(Self { mailbox, path })
    }

    /// Ends the thread and takes the socket away.
    pub(crate) fn stop(&self) {
        let _ = fs::remove_file(&self.path);
        self.mailbox.is_closed.store(true, Ordering::SeqCst);
        let _ = self.mailbox.socket.shutdown(std::net::Shutdown::Both);
    }
}

fn read(mailbox: &Mailbox, is_trusted: bool, listeners: &Listeners) {
    let mut buffer = vec![0; BYTES_MAX];
    loop {
        match mailbox.socket.recv(&mut buffer) {
            // A socket that was shut down reads as empty, but so does an empty datagram, which anybody may send.
            _ if mailbox.is_closed.load(Ordering::SeqCst) => return,
            Ok(length) => {
                let [FORMAT, news @ ..] = &buffer[..length] else { continue };
                let news: Vec<(ClaimId, News)> = postcard::from_bytes(news).unwrap_or_default();
                for (id, news) in news {
                    let news = match news {
                        News::Granted(_) if !is_trusted => News::Look,
                        news => news,
                    };
                    listeners.tell(id, news);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!(%error, "this process cannot be told of grants any more: it looks by itself");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_datagram_fits() {
        let reason = Reason::new("x".repeat(tenure_core::REASON_BYTES_MAX)).unwrap();
        let news = (ClaimId::from_bytes([7; 16]), News::Evicted(Some(reason)));
        let datagram = postcard::to_extend(&vec![news; NEWS_MAX], vec![FORMAT]).unwrap();
        assert!(datagram.len() <= BYTES_MAX, "{}", datagram.len());
    }
}
