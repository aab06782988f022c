//! A PING every millisecond over a connection of its own: how long the server keeps a bystander waiting.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::machine::now_nanos;

pub(crate) struct Probe {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Pings, String>>,
}

/// Round trips in nanoseconds, shortest first.
pub(crate) struct Pings {
    pub(crate) took: Vec<u64>,
    /// The same without the time that server or bystander stood ready and had no processor; empty if the kernel does not
    /// tell.
    pub(crate) took_with_processor: Vec<u64>,
}

impl Pings {
    /// The longest in ms, without the time that there was no processor; nothing if the kernel does not tell.
    pub(crate) fn longest_with_processor_ms(&self) -> Option<f64> {
        self.took_with_processor.last().map(|took| *took as f64 / 1e6)
    }
}

impl Probe {
    /// Asks the server at `url`, which is the process `pid`.
    pub(crate) fn start(url: &str, pid: u32) -> Result<Self, String> {
        let client = redis::Client::open(url).map_err(|error| error.to_string())?;
        let mut connection = client.get_connection().map_err(|error| error.to_string())?;
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = is_over.clone();
        let thread = std::thread::spawn(move || {
            let readiness = [format!("/proc/{pid}/schedstat"), "/proc/thread-self/schedstat".to_owned()];
            let readiness = readiness.map(|path| File::open(path).ok());
            let mut pings = Pings { took: Vec::new(), took_with_processor: Vec::new() };
            while !stop.load(Ordering::Relaxed) {
                let stood_before = stood_ready(&readiness);
                let sent = now_nanos();
                redis::cmd("PING").exec(&mut connection).map_err(|error| error.to_string())?;
                let took = now_nanos() - sent;
                pings.took.push(took);
                if let (Some(before), Some(after)) = (stood_before, stood_ready(&readiness)) {
                    pings.took_with_processor.push(took.saturating_sub(after - before));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            pings.took.sort_unstable();
            pings.took_with_processor.sort_unstable();
            Ok(pings)
        });
        Ok(Self { is_over, thread })
    }

    pub(crate) fn end(self) -> Result<Pings, String> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the probe failed")?
    }
}

/// How long, in nanoseconds, all of them together have stood ready without a processor so far, as the kernel counts it.
fn stood_ready(all: &[Option<File>; 2]) -> Option<u64> {
    let mut sum = 0;
    for file in all {
        let mut text = [0; 100];
        let length = file.as_ref()?.read_at(&mut text, 0).ok()?;
        // Time on a processor, time waited for one, turns.
        sum += std::str::from_utf8(&text[..length]).ok()?.split(' ').nth(1)?.parse::<u64>().ok()?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_how_long_a_thread_stood_ready() {
        let own = || File::open("/proc/thread-self/schedstat").ok();
        if own().is_none() {
            return; // A kernel without such figures.
        }
        let all = [own(), own()];
        let before = stood_ready(&all).expect("two numbers");
        assert!(stood_ready(&all).expect("two numbers") >= before);
        assert_eq!(stood_ready(&[own(), None]), None);
    }
}
