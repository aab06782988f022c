//! When the command must go: a timer that counts suspend, armed from the lease's validity.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tenure::BootInstant;

use crate::cli::{self, OnLost};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Term,
    Kill,
}

/// The two moments: to ask, and to kill. Once asked, it is never taken back: a renewal that comes after that is late.
pub(super) struct Deadline {
    timer: OwnedFd,
    on_lost: OnLost,
    grace: Duration,
    lead: Duration,
    term_at: BootInstant,
    kill_at: BootInstant,
    is_asked: bool,
}

impl Deadline {
    pub(super) fn new(args: &cli::Guardian) -> io::Result<Self> {
        Ok(Self {
            timer: timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?,
            on_lost: args.on_lost,
            grace: Duration::from_millis(args.grace_ms),
            lead: Duration::from_millis(args.lead_ms),
            term_at: BootInstant::NEVER,
            kill_at: BootInstant::NEVER,
            is_asked: false,
        })
    }

    /// The lease is valid until then. A first grant may be a short one, to be renewed at once: then the command gets
    /// half of it before it is asked to go.
    pub(super) fn extend(&mut self, now: BootInstant, valid_until: u64) -> io::Result<()> {
        if !self.is_asked && self.on_lost != OnLost::Ignore {
            let valid_until = BootInstant::from_nanos(valid_until);
            let left = valid_until.saturating_since(now);
            let lead = self.lead.min(left / 4);
            self.kill_at = valid_until - lead;
            self.term_at = match self.on_lost {
                OnLost::Term => valid_until - self.grace.max(lead).min(left / 2),
                OnLost::Kill | OnLost::Ignore => self.kill_at,
            };
        }
        self.arm()
    }

    /// The lease is lost, whatever it was valid until: ask now, and do not wait longer than was due anyway.
    pub(super) fn lost(&mut self, now: BootInstant) -> io::Result<()> {
        match self.on_lost {
            OnLost::Term => {
                self.term_at = self.term_at.min(now);
                self.kill_at = self.kill_at.min(now + self.grace);
            }
            OnLost::Kill => self.kill_at = now,
            OnLost::Ignore => {}
        }
        self.arm()
    }

    /// What is to be done at `now`. `Term` is answered once.
    pub(super) fn due(&mut self, now: BootInstant) -> Due {
        if now >= self.kill_at {
            return Due::Kill;
        }
        if now >= self.term_at && !self.is_asked {
            self.is_asked = true;
            // If it cannot be armed, the wrapper still can: it has a clock of its own.
            let _ = self.arm();
            return Due::Term;
        }
        Due::Nothing
    }

    fn arm(&self) -> io::Result<()> {
        let next = if self.is_asked { self.kill_at } else { self.term_at };
        // Zero disarms, and no moment is that early.
        let nanos = if next == BootInstant::NEVER { 0 } else { next.as_nanos().max(1) };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or_default(),
        };
        let spec = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)?;
        Ok(())
    }
}

impl AsFd for Deadline {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadline(on_lost: OnLost) -> Deadline {
        Deadline::new(&cli::Guardian {
            group: None,
            on_lost,
            grace_ms: 500,
            lead_ms: 100,
            command: Vec::new(),
        })
        .unwrap()
    }

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn it_asks_then_kills_and_a_late_renewal_changes_nothing() {
        let mut deadline = deadline(OnLost::Term);
        assert_eq!(deadline.due(at(1_000_000)), Due::Nothing);
        deadline.extend(at(0), at(1000).as_nanos()).unwrap();
        deadline.extend(at(0), at(2000).as_nanos()).unwrap();
        assert_eq!(deadline.due(at(1499)), Due::Nothing);
        assert_eq!(deadline.due(at(1500)), Due::Term);
        deadline.extend(at(1500), at(3000).as_nanos()).unwrap();
        assert_eq!(deadline.due(at(1501)), Due::Nothing);
        assert_eq!(deadline.due(at(1900)), Due::Kill);
    }

    #[test]
    fn a_short_first_grant_is_not_eaten_by_the_grace() {
        let mut deadline = deadline(OnLost::Term);
        deadline.extend(at(1000), at(1400).as_nanos()).unwrap();
        assert_eq!(deadline.due(at(1199)), Due::Nothing);
        deadline.extend(at(1150), at(9000).as_nanos()).unwrap();
        assert_eq!(deadline.due(at(8499)), Due::Nothing);
    }

    #[test]
    fn a_lost_lease_never_gives_more_time_than_there_was() {
        let mut early = deadline(OnLost::Term);
        early.extend(at(0), at(10_000).as_nanos()).unwrap();
        early.lost(at(1000)).unwrap();
        assert_eq!(early.due(at(1000)), Due::Term);
        assert_eq!(early.due(at(1500)), Due::Kill);
        let mut late = deadline(OnLost::Term);
        late.extend(at(0), at(2000).as_nanos()).unwrap();
        late.lost(at(1800)).unwrap();
        assert_eq!(late.due(at(1900)), Due::Kill);
    }

    #[test]
    fn kill_kills_at_once_and_ignore_never() {
        let mut kill = deadline(OnLost::Kill);
        kill.extend(at(0), at(2000).as_nanos()).unwrap();
        assert_eq!(kill.due(at(1899)), Due::Nothing);
        kill.lost(at(1000)).unwrap();
        assert_eq!(kill.due(at(1000)), Due::Kill);
        let mut ignore = deadline(OnLost::Ignore);
        ignore.extend(at(0), at(2000).as_nanos()).unwrap();
        ignore.lost(at(1000)).unwrap();
        assert_eq!(ignore.due(at(9999)), Due::Nothing);
    }
}
