//! The one live line while `run` or `acquire` waits on a terminal: who holds the lock, since when, which place in line
//! is ours, how long is left.
//!
//! Only for people: says nothing where stderr is not a terminal.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use anstyle::Style;
use tenure::clock::{Clock, SystemClock, sleep_until};
use tenure::{Label, LockState, Locks, in_words};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::output::clean;

/// Shorter waits pass without a line: it would only flicker.
const SILENT_FOR: Duration = Duration::from_millis(300);
const USUAL_COLUMNS: u16 = 80;
const REFRESH_EVERY: Duration = Duration::from_secs(1);

/// Shows the line for as long as it is polled; erases it when dropped. Never completes.
pub(crate) async fn show(locks: &Locks, name: &str, wait: Option<Duration>) {
    if !std::io::stderr().is_terminal() {
        return std::future::pending().await;
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let start = clock.now();
    let mut erase = None;
    let mut next = start + SILENT_FOR;
    loop {
        sleep_until(clock.clone(), next).await;
        if let Ok(state) = locks.inspect(name).await {
            let left = wait.map(|wait| wait.saturating_sub(clock.now().saturating_since(start)));
            erase.get_or_insert(Erase);
            write(&line(&state, &Label::of_this_process(), left));
        }
        next = clock.now() + REFRESH_EVERY;
    }
}

fn line(state: &LockState, me: &Label, left: Option<Duration>) -> String {
    let mut line = format!("waiting for {}", clean(state.name.as_str()));
    if let Some(holder) = state.holders.first() {
        let _ = write!(line, ", held by {}", clean(holder.label.as_str()));
        if state.holders.len() > 1 {
            let _ = write!(line, " and {} more", state.holders.len() - 1);
        }
        if let Some(held_for) = holder.held_for {
            let _ = write!(line, " for {}", in_words(held_for));
        }
        if let Some(reason) = &holder.reason {
            let _ = write!(line, " ({})", clean(reason.as_str()));
        }
    }
    if let Some(place) = state.waiters.iter().position(|waiter| waiter.label == *me) {
        let _ = write!(line, ", place {} of {} in line", place + 1, state.waiters.len());
    }
    if let Some(left) = left {
        let _ = write!(line, ", giving up in {}", in_words(left));
    }
    line
}

fn write(line: &str) {
    const DIM: Style = Style::new().dimmed();
    let width = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| size.ws_col);
    // Some terminals do not know their width and say 0.
    let width = if width == 0 { USUAL_COLUMNS } else { width.max(20) };
    let line = cut(line, usize::from(width) - 1);
    let stderr = std::io::stderr();
    let style = match anstream::AutoStream::choice(&stderr) {
        anstream::ColorChoice::Never => Style::new(),
        _ => DIM,
    };
    // One write, so that nothing comes in between; past anstream, which without colours would strip the erasing too. A
    // terminal that is gone is noticed elsewhere.
    let _ = stderr.lock().write_all(format!("\r{ERASE_LINE}{style}{line}{style:#}").as_bytes());
}

const ERASE_LINE: &str = "\u{1b}[K";

/// As much of `line` as fits into `width` columns.
fn cut(line: &str, width: usize) -> String {
    if line.width() <= width {
        return line.into();
    }
    let mut used = 0;
    let fits = line.chars().take_while(|c| {
        used += c.width().unwrap_or(0);
        used < width
    });
    fits.chain(['…']).collect()
}

struct Erase;

impl Drop for Erase {
    fn drop(&mut self) {
        let _ = std::io::stderr().write_all(format!("\r{ERASE_LINE}").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_never_wraps() {
        assert_eq!(cut("short", 10), "short");
        assert_eq!(cut("much too long", 8), "much to…");
        assert_eq!(cut("名前名前名前", 7).width(), 7);
    }
}
