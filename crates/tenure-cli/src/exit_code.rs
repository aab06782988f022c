//! [`ExitCode`]: every way this program ends that is not the child's own.

/// How the program ends. The numbers are those of `sysexits.h` and of shells, and part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ExitCode {
    /// Done as asked.
    Done = 0,
    /// Answered, and the answer is no: `check` or `evict` on a free lock.
    No = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// The store is unavailable: trying again later is safe.
    Unavailable = 69,
    /// A fault of ours.
    Internal = 70,
    /// Another party holds the lock, or held it for all of the wait.
    Busy = 75,
    /// The lock was held, and was lost.
    Lost = 76,
    /// Not permitted: rights of a directory, authentication.
    NotPermitted = 77,
    /// Cannot work as it is set up.
    Configuration = 78,
    /// The command is there and cannot be executed, as shells say it.
    NotExecutable = 126,
    /// There is no such command, as shells say it.
    NotFound = 127,
}

impl ExitCode {
    pub(crate) const fn number(self) -> u8 {
        self as u8
    }
}

/// What a shell makes of a command that was ended by `signal`.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
