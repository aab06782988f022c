//! A PING every millisecond over a connection of its own: how long the server keeps a bystander waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::machine::now_nanos;

pub(crate) struct Probe {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<u64>, String>>,
}

impl Probe {
    pub(crate) fn start(url: &str) -> Result<Self, String> {
        let client = redis::Client::open(url).map_err(|error| error.to_string())?;
        let mut connection = client.get_connection().map_err(|error| error.to_string())?;
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = is_over.clone();
        let thread = std::thread::spawn(move || {
            let mut took = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let sent = now_nanos();
                redis::cmd("PING").exec(&mut connection).map_err(|error| error.to_string())?;
                took.push(now_nanos() - sent);
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(took)
        });
        Ok(Self { is_over, thread })
    }

    /// All round trips in nanoseconds, shortest first.
    pub(crate) fn end(self) -> Result<Vec<u64>, String> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut took = self.thread.join().map_err(|_| "the probe failed")??;
        took.sort_unstable();
        Ok(took)
    }
}
