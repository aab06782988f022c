//! [`Tee`]: the command's standard output on its way to ours, of which a part is kept.
//!
//! A thread of its own: whoever reads our output may be slow, and the lease must be renewed all the same. The command is
//! then as slow as its reader, as it would be without us.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use tenure::clock::{Clock, SystemClock};
use tokio::sync::oneshot;

use crate::output::write_through;

/// How long the last words of a command are waited for that nobody may read any more.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Tee {
    /// Closed when the command has ended.
    running: Option<OwnedFd>,
    output: oneshot::Receiver<Output>,
}

/// What a command wrote.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// The beginning of it.
    pub(crate) kept: Vec<u8>,
    pub(crate) written: u64,
    /// Why not all of it could be passed on.
    pub(crate) error: Option<io::Error>,
    /// Whether there may have been more that we know nothing of.
    pub(crate) is_cut: bool,
}

impl Tee {
    /// Starts it; answers what the command is to write to. At most `limit` bytes are kept.
    pub(crate) fn start(limit: usize) -> io::Result<(Self, OwnedFd)> {
        let (output, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (is_over, running) = pipe_with(PipeFlags::CLOEXEC)?;
        let (sender, receiver) = oneshot::channel();
        let copy = move || {
            // Nobody waits for it any more: then nobody needs it.
            let _ = sender.send(copy(&output, &is_over, limit));
        };
        std::thread::Builder::new().name("tee".into()).spawn(copy)?;
        Ok((Self { running: Some(running), output: receiver }, stdout))
    }

    /// Everything that the command wrote, once all of it was passed on. To be called when it has ended. What it left
    /// running may still hold its output open, and is not waited for.
    pub(crate) async fn finish(mut self) -> Output {
        self.running = None;
        (&mut self.output).await.unwrap_or_default()
    }
}

impl Drop for Tee {
    /// Has what was written passed on, if that goes quickly.
    fn drop(&mut self) {
        self.running = None;
        let start = SystemClock.now();
        while matches!(self.output.try_recv(), Err(oneshot::error::TryRecvError::Empty))
            && SystemClock.now() < start + LAST_WORDS_WITHIN
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn copy(from: &OwnedFd, is_over: &OwnedFd, limit: usize) -> Output {
    let mut output = Output::default();
    let mut buffer = vec![0; 64 * 1024];
    // Once the command has ended: how much of what it wrote is still to be read. Others may go on writing for ever.
    let mut left: Option<u64> = None;
    while left != Some(0) {
        if left.is_none() {
            let mut ready = [PollFd::new(from, PollFlags::IN), PollFd::new(is_over, PollFlags::IN)];
            if poll(&mut ready, None).is_ok() && !ready[1].revents().is_empty() {
                left = Some(rustix::io::ioctl_fionread(from).unwrap_or_default());
                continue;
            }
        }
        let room =
            left.map_or(buffer.len(), |left| buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        let read = match rustix::io::read(from, &mut buffer[..room]) {
            Ok(0) => break,
            Ok(read) => read,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => break,
        };
        left = left.map(|left| left - read as u64);
        output.written += read as u64;
        let fits = read.min(limit - output.kept.len());
        output.kept.extend(&buffer[..fits]);
        if output.error.is_none() {
            output.error = write_through(&buffer[..read]).err();
        }
        // To the command it is as if it had written there itself: its pipe breaks, too.
        if output.error.is_some() && left.is_none() {
            output.is_cut = true;
            break;
        }
    }
    output
}
