//! The family of a process, from `/proc`: a subreaper's descendants stay its own, whatever they do.
//!
//! Reads `stat` of every process, not `children` of one: not every kernel has the latter.

use std::collections::HashMap;
use std::{fs, io};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process that was alive when it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pid: Pid,
    parent: i32,
    /// In ticks since boot: with the pid, tells it from every other process.
    started: u64,
    is_zombie: bool,
}

impl Process {
    /// Sends `signal`, unless the process is gone and its number belongs to another.
    pub(crate) fn signal(&self, signal: Signal) {
        // Opened first, looked at then: what the descriptor means cannot change any more.
        let Ok(descriptor) = pidfd_open(self.pid, PidfdFlags::empty()) else { return };
        if stat(self.pid.as_raw_pid()).is_some_and(|now| now.started == self.started) {
            // Gone meanwhile, or not ours to signal: the next look at the family tells.
            let _ = pidfd_send_signal(descriptor, signal);
        }
    }
}

/// All living descendants of `root`, without itself, parents first.
pub(crate) fn descendants(root: Pid) -> io::Result<Vec<Process>> {
    let mut by_parent: HashMap<i32, Vec<Process>> = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        // Gone between being listed and being read.
        if let Some(process) = pid.and_then(stat) {
            by_parent.entry(process.parent).or_default().push(process);
        }
    }
    let mut family = by_parent.remove(&root.as_raw_pid()).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = family.get(next) {
        let children = by_parent.remove(&process.pid.as_raw_pid());
        family.extend(children.unwrap_or_default());
        next += 1;
    }
    family.retain(|process| !process.is_zombie);
    Ok(family)
}

fn stat(pid: i32) -> Option<Process> {
    parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// `PID (NAME) STATE PPID …`, where the name may hold anything, parentheses included.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    const STARTED: usize = 19;
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Process {
        pid: Pid::from_raw(pid)?,
        parent,
        started: fields.nth(STARTED - 2)?.parse().ok()?,
        is_zombie: matches!(state, "Z" | "X"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_confuse_the_family() {
        let stat = "7 (a) S 1 (b) R) S 3 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4242 99 99";
        let process = parse(7, stat).unwrap();
        assert_eq!((process.parent, process.started, process.is_zombie), (3, 4242, false));
        assert_eq!(parse(7, "7 (x"), None);
    }

    #[test]
    fn a_child_is_found_and_ended_with_its_own() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let grandchild = loop {
            if let [grandchild] = descendants(pid).unwrap()[..] {
                break grandchild;
            }
        };
        assert!(descendants(rustix::process::getpid()).unwrap().contains(&grandchild));
        grandchild.signal(Signal::KILL);
        assert!(child.wait().unwrap().code().is_some());
    }
}
