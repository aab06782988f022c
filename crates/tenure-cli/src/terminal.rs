//! [`Terminal`]: how the terminal was set up before a command could change that. Only puts it back.

use std::io;

use nix::unistd::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

/// How the terminal was set up before the command could change that.
#[derive(Debug)]
pub(crate) struct Terminal(Termios);

impl Terminal {
    pub(crate) fn note() -> Option<Self> {
        tcgetattr(io::stdin()).ok().map(Self)
    }

    pub(crate) fn restore(&self) {
        // From the background, it would stop us, and is none of our business.
        if tcgetpgrp(io::stdin()).is_ok_and(|group| group.as_raw_pid() == getpgrp().as_raw()) {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
        }
    }
}
