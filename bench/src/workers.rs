//! The processes of a contender: started, told to go, and read from.
//!
//! Every worker, in whatever language, talks the same few lines. It prints `ready` when it is connected and waits for
//! a line. Then it does its job: `loop` ends by itself and prints one row for each grant; `hold` and `wait` print
//! `standing` and go on until told to `end`. The last line is `done`. All times are nanoseconds on one clock.
//!
//! `drain` serves lines until told to `end`. Told to `hold`, it takes the lock and says `held`. Told to `wait`, it lets
//! its parties come, and says `standing` when each of them was refused once. The one that holds the lock is then told
//! to `release`. Each prints its rows when its parties are through, or when its time is over, and `done` after them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::contender::Contender;
use crate::machine::{ahead_of_monotonic_nanos, cpu_time};
use crate::peers;

/// One grant, as its holder saw it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) party: usize,
    pub(crate) asked: u64,
    pub(crate) granted: u64,
    /// When release was called, and when it answered.
    pub(crate) released: u64,
    pub(crate) freed: u64,
}

pub(crate) struct Worker {
    contender: Contender,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts one; it is connected when this returns.
    pub(crate) fn start(contender: Contender, url: &str, job: &[&str]) -> Result<Self, String> {
        let mut command = match contender {
            Contender::RedisPy => peers::redis_py(),
            Contender::Redlock => peers::redlock(),
            Contender::Tenure
            | Contender::TenureStored
            | Contender::Rslock
            | Contender::Plain
            | Contender::Counted => {
                let this = std::env::current_exe().map_err(|error| error.to_string())?;
                let mut command = Command::new(this);
                command.args(["worker", contender.name()]);
                command
            }
        };
        let child = command.arg(url).args(job).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("{} cannot be started: {error}", contender.name()))?;
        let input = child.stdin.take().ok_or("no pipe")?;
        let output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut worker = Self { contender, child, input, output };
        worker.expect("ready")?;
        Ok(worker)
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) => Err(format!("{} ended early", self.contender.name())),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(crate) fn expect(&mut self, wanted: &str) -> Result<(), String> {
        match self.line()? {
            line if line == wanted => Ok(()),
            line => Err(format!("{} said {line:?} instead of {wanted:?}", self.contender.name())),
        }
    }

    pub(crate) fn tell(&mut self, word: &str) -> Result<(), String> {
        writeln!(self.input, "{word}").and_then(|()| self.input.flush()).map_err(|error| error.to_string())
    }

    /// Asks for numbers; only workers of tenure answer.
    pub(crate) fn ask(&mut self, word: &str) -> Result<Vec<u64>, String> {
        self.tell(word)?;
        Ok(self.line()?.split(' ').filter_map(|number| number.parse().ok()).collect())
    }

    /// The rows of a `loop` or of one line of a `drain`, when it is over.
    pub(crate) fn rows(&mut self) -> Result<Vec<Row>, String> {
        let ahead = if self.contender == Contender::Redlock { ahead_of_monotonic_nanos() } else { 0 };
        let mut rows = Vec::new();
        loop {
            let line = self.line()?;
            if line == "done" {
                return Ok(rows);
            }
            let numbers: Vec<u64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
            let [party, asked, granted, released, freed] = numbers[..] else {
                return Err(format!("{} said {line:?} instead of a row", self.contender.name()));
            };
            rows.push(Row {
                party: party as usize,
                asked: asked + ahead,
                granted: granted + ahead,
                released: released + ahead,
                freed: freed + ahead,
            });
        }
    }

    pub(crate) fn cpu_time(&self) -> Result<Duration, String> {
        cpu_time(self.child.id())
    }

    /// Lets it end what it holds, and waits for that.
    pub(crate) fn end(mut self) -> Result<(), String> {
        self.tell("end")?;
        self.expect("done")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
