//! What the parser of the command line refused, told as every other failure is: one line, or one object.

use std::ffi::OsString;

use crate::cli::LogFormat;
use crate::exit_code::ExitCode;
use crate::failure::Failure;

pub(crate) fn failure(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let parts = text.split("\n\n").map(|part| part.lines().map(str::trim).collect::<Vec<_>>().join(" "));
    let parts = parts.filter(|part| !part.starts_with("For more information"));
    let what =
        parts.collect::<Vec<_>>().join("; ").replacen("error: ", "", 1).replace("; Usage: ", "; usage: ");
    Failure::new(ExitCode::Usage, what).hint("--help tells more")
}

/// The format that was asked for on a command line that makes no sense otherwise.
pub(crate) fn format(arguments: impl IntoIterator<Item = OsString>) -> LogFormat {
    let mut arguments = arguments.into_iter().take_while(|argument| argument != "--");
    while let Some(argument) = arguments.next() {
        let is_json = argument == "--log-format=json"
            || argument == "--log-format" && arguments.next().is_some_and(|format| format == "json");
        if is_json {
            return LogFormat::Json;
        }
    }
    LogFormat::Text
}
