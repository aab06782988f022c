//! What the library tells while it works, as lines on stderr.
//!
//! Owns which of it is told, and how a line looks. The line that ends a command is `failure.rs`.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

use crate::cli::LogFormat;
use crate::output::clean;

/// Starts telling.
pub(crate) fn start(verbose: u8, format: LogFormat) {
    let told = Targets::new();
    let told = match verbose {
        // What goes wrong with a lock, core tries again, or the command says when it ends.
        0 => told.with_target("tenure", LevelFilter::WARN).with_target("tenure_core", LevelFilter::ERROR),
        1 => told.with_target("tenure", LevelFilter::INFO),
        _ => told.with_target("tenure", LevelFilter::DEBUG),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry();
    match format {
        LogFormat::Text => registry.with(lines.event_format(Line).with_filter(told)).init(),
        LogFormat::Json => registry.with(lines.with_target(false).json().with_filter(told)).init(),
    }
}

/// `tenure: what field=value …`, one line whatever others called themselves.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut words = Words::default();
        event.record(&mut words);
        let kind = match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        writeln!(writer, "{}", clean(&format!("tenure: {kind}{}{}", words.message, words.fields)))
    }
}

#[derive(Default)]
struct Words {
    message: String,
    fields: String,
}

impl Visit for Words {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
