//! What wrapper and guardian say to each other, one packet each.
//!
//! Both ends are the same program, so there is no version. A packet is a few dozen bytes and never split.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The first packet, with the command's standard input and, if there is one, the liveness of the claim.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) has_liveness: bool,
}

/// From the wrapper. Moments are nanoseconds since boot.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The lock is granted: start the command.
    Start { token: u64, valid_until: u64 },
    /// The lease was renewed.
    Extend { valid_until: u64 },
    /// The lease was lost.
    Lost,
    /// Pass this on to the command.
    Signal { number: i32 },
}

/// From the guardian.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    Started,
    CannotStart {
        errno: i32,
    },
    /// The answer to `Extend`: the guardian is awake.
    Heard,
    /// The command was stopped.
    Stopped {
        number: i32,
    },
    /// The command ended, and was reaped. The last packet.
    Ended {
        how: How,
        at: u64,
        /// Whether it was asked or made to, because its lease was about to end.
        is_enforced: bool,
        /// How many of its descendants live on.
        left: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum How {
    Exit(i32),
    Signal(i32),
}

const PACKET_BYTES_MAX: usize = 512;
const DESCRIPTORS_MAX: usize = 2;

/// A connection. No child inherits either end by accident.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

pub(crate) fn send(to: impl AsFd, packet: &impl Serialize) -> io::Result<()> {
    send_with_descriptors(to, packet, &[])
}

/// Never waits: a peer that reads nothing for so long is stopped, and what it must know is in the packets before.
pub(crate) fn send_with_descriptors(
    to: impl AsFd,
    packet: &impl Serialize,
    with: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(packet)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !with.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(with));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| sendmsg(&to, &[IoSlice::new(&bytes)], &mut ancillary, flags))?;
    Ok(())
}

/// `None`: the peer is gone, and everything it said was read. Never waits.
pub(crate) fn receive<T: DeserializeOwned>(from: impl AsFd) -> io::Result<Option<T>> {
    let mut buffer = [0; PACKET_BYTES_MAX];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let read = loop {
        let mut none = RecvAncillaryBuffer::default();
        match recvmsg(&from, &mut [IoSliceMut::new(&mut buffer)], &mut none, flags) {
            // A reset tells, once, that the peer went without reading our last packets. Its own come after that.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
            read => break read?,
        }
    };
    match read.bytes {
        0 => Ok(None),
        bytes => Ok(Some(serde_json::from_slice(&buffer[..bytes])?)),
    }
}

/// The first packet, waited for.
pub(crate) fn receive_with_descriptors<T: DeserializeOwned>(
    from: impl AsFd,
) -> io::Result<(T, std::vec::IntoIter<OwnedFd>)> {
    let mut buffer = [0; PACKET_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let read = loop {
        match recvmsg(&from, &mut [IoSliceMut::new(&mut buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            read => break read?,
        }
    };
    let descriptors: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    Ok((serde_json::from_slice(&buffer[..read.bytes])?, descriptors.into_iter()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wrapper that was stopped while its guardian ended the command took the reset for the guardian's death, and
    /// exited 70 where 76 was right: the report was in the queue behind it.
    #[test]
    fn the_last_report_is_read_although_its_sender_left_orders_unread() {
        let (wrapper, guardian) = pair().unwrap();
        send(&wrapper, &Order::Lost).unwrap();
        send(&guardian, &Report::Heard).unwrap();
        send(&guardian, &Report::Started).unwrap();
        drop(guardian);
        assert!(matches!(receive(&wrapper).unwrap(), Some(Report::Heard)));
        assert!(matches!(receive(&wrapper).unwrap(), Some(Report::Started)));
        assert!(receive::<Report>(&wrapper).unwrap().is_none());
    }

    #[test]
    fn descriptors_arrive_in_order() {
        let (wrapper, guardian) = pair().unwrap();
        let (first, second) = (tempfile::tempfile().unwrap(), std::fs::File::open("/dev/null").unwrap());
        send_with_descriptors(&wrapper, &Setup { has_liveness: true }, &[first.as_fd(), second.as_fd()])
            .unwrap();
        let (setup, descriptors) = receive_with_descriptors::<Setup>(&guardian).unwrap();
        assert!(setup.has_liveness);
        let inodes: Vec<u64> = descriptors.map(|file| rustix::fs::fstat(file).unwrap().st_ino).collect();
        assert_eq!(inodes, [first, second].map(|file| rustix::fs::fstat(file).unwrap().st_ino));
    }
}
