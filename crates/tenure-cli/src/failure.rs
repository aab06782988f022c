//! [`Failure`]: an end that is ours, not the child's, as one line on stderr.
//!
//! The line says what happened, to which lock, on which store, whether trying again is safe, and which flag helps. The
//! mapping from the library's errors to exit codes is here and nowhere else.

use serde_json::json;
use tenure::{Error, RefusalKind, Why};

use crate::cli::LogFormat;
use crate::exit_code::ExitCode;
use crate::output::clean;

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    what: String,
    is_retry_safe: Option<bool>,
    hint: Option<String>,
}

pub(crate) type Outcome<T = ExitCode> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: ExitCode, what: impl Into<String>) -> Self {
        Self { code: code.number(), what: what.into(), is_retry_safe: None, hint: None }
    }

    /// What the user can do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What would have helped against the loss of a lock: if it ran out because of a silence, a longer ttl.
    pub(crate) fn hint_at_silence(self, why: &Why) -> Self {
        if *why == Why::Expired { self.hint("a longer --ttl bears a longer silence") } else { self }
    }

    /// Whether the same command may be run again without harm.
    pub(crate) const fn retry_safe(mut self, is_safe: bool) -> Self {
        self.is_retry_safe = Some(is_safe);
        self
    }

    /// What happened, without advice.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// What the library answered, about the store called `store`.
    pub(crate) fn from_error(error: &Error, store: &str) -> Self {
        let code = match error {
            Error::Busy { .. } | Error::TimedOut { .. } => ExitCode::Busy,
            Error::Lost { .. } => ExitCode::Lost,
            Error::Unavailable { .. } => ExitCode::Unavailable,
            Error::Refused { refusal, .. } => match refusal.kind {
                RefusalKind::Permission => ExitCode::NotPermitted,
                RefusalKind::Limit => ExitCode::Usage,
                RefusalKind::Ended => ExitCode::Lost,
                RefusalKind::Unavailable => ExitCode::Unavailable,
                _ => ExitCode::Configuration,
            },
            _ => ExitCode::Internal,
        };
        let mut what = error.to_string();
        if !what.contains(store) {
            what = format!("{what} (store {store})");
        }
        let failure = Self::new(code, what);
        match error {
            Error::Busy { .. } => failure.retry_safe(true).hint("--wait DUR waits for it"),
            Error::TimedOut { .. } => failure.retry_safe(true).hint("a longer --wait waits longer"),
            Error::Unavailable { .. } => {
                failure.retry_safe(true).hint("--store names another store, -v tells more")
            }
            Error::Lost { why, .. } => failure.retry_safe(false).hint_at_silence(why),
            _ => failure,
        }
    }

    /// Tells the user.
    pub(crate) fn report(&self, format: LogFormat) {
        let line = match format {
            LogFormat::Text => self.line(),
            LogFormat::Json => json!({
                "level": "ERROR",
                "message": self.what,
                "exit_code": self.code,
                "retry_safe": self.is_retry_safe,
                "hint": self.hint,
            })
            .to_string(),
        };
        // Where stderr is gone there is nobody left to tell.
        let _ = crate::output::note(&line);
    }

    fn line(&self) -> String {
        let mut line = format!("tenure: {}", self.what);
        match self.is_retry_safe {
            Some(true) => line.push_str("; trying again is safe"),
            Some(false) => line.push_str("; whether running it again is safe, only its owner knows"),
            None => {}
        }
        if let Some(hint) = &self.hint {
            line.push_str("; ");
            line.push_str(hint);
        }
        clean(&line)
    }
}

/// A fault of ours, or of the machine's: something that should have worked did not.
pub(crate) fn internal(what: &str) -> impl Fn(std::io::Error) -> Failure {
    move |error| Failure::new(ExitCode::Internal, format!("cannot {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_whatever_others_called_themselves() {
        let failure = Failure::new(ExitCode::Busy, "held by a\nb\u{1b}[2J\u{202e}c").retry_safe(true);
        assert_eq!(failure.line(), "tenure: held by a\\nb\\u{1b}[2J\\u{202e}c; trying again is safe");
    }
}
