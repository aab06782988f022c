//! What is printed: tables, and text of other parties made harmless.
//!
//! The JSON shapes are in `json.rs`. A reader that went away ends the program as SIGPIPE would, without
//! a word.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, UNIX_EPOCH};

use anstyle::{AnsiColor, Style};
use comfy_table::{ContentArrangement, Table, presets};
use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;
use tenure::clock::SystemClock;
use tenure::{Clock, Holder, LockState, in_words};
use unicode_width::UnicodeWidthStr;

use crate::exit_code::{ExitCode, of_signal};

/// Prints to stdout, colours only where they are wanted. Where the reader is gone, ends the program.
pub(crate) fn print(text: &str) {
    if let Err(error) = try_print(text) {
        end_quietly(&error);
    }
}

/// As [`print`], for those that have something to put right first if it cannot be printed.
pub(crate) fn try_print(text: &str) -> io::Result<()> {
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
}

pub(crate) fn print_json(value: &impl Serialize) {
    print(&json_line(value));
}

pub(crate) fn json_line(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("text and numbers always make JSON");
    format!("{json}\n")
}

/// Writes to stdout as it is, past every buffer, also where stdout would rather not block.
pub(crate) fn write_through(mut bytes: &[u8]) -> io::Result<()> {
    let stdout = rustix::stdio::stdout();
    while !bytes.is_empty() {
        match rustix::io::write(stdout, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&stdout, PollFlags::OUT)], None);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// One line on stderr, in one write: lines of several processes must not run into each other.
pub(crate) fn note(line: &str) -> io::Result<()> {
    io::stderr().lock().write_all(format!("{line}\n").as_bytes())
}

/// Ends the program because stdout could not be written to: as SIGPIPE would, if its reader is gone.
pub(crate) fn end_quietly(error: &io::Error) -> ! {
    const SIGPIPE: i32 = 13;
    if error.kind() != io::ErrorKind::BrokenPipe {
        let _ = note(&format!("tenure: cannot write to standard output: {error}"));
        std::process::exit(ExitCode::Internal.number().into());
    }
    std::process::exit(of_signal(SIGPIPE).into());
}

/// Ends the program if the reader of stdout is gone, for those that have nothing to print and would never notice.
pub(crate) fn end_without_reader() {
    let stdout = rustix::stdio::stdout();
    let mut ready = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    let is_answered = poll(&mut ready, Some(&at_once)).is_ok();
    if is_answered && ready[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
        end_quietly(&io::ErrorKind::BrokenPipe.into());
    }
}

/// `text` with everything escaped that could move the cursor, colour the screen, or make text read other than it is:
/// names, labels and reasons are chosen by other parties.
pub(crate) fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => clean.push_str("\\n"),
            '\t' => clean.push_str("\\t"),
            c if c.is_control() || is_deceptive(c) => {
                let _ = write!(clean, "\\u{{{:x}}}", u32::from(c));
            }
            c => clean.push(c),
        }
    }
    clean
}

/// Characters that cannot be seen and change how others look: directions, joiners, separators, tags.
const fn is_deceptive(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The present moment, `ago` earlier, as a timestamp.
pub(crate) fn timestamp(ago: Duration) -> String {
    let now = UNIX_EPOCH + Duration::from_micros(SystemClock.unix_micros());
    humantime::format_rfc3339_millis(now.checked_sub(ago).unwrap_or(UNIX_EPOCH)).to_string()
}

const BOLD: Style = Style::new().bold();
const FREE: Style = AnsiColor::Green.on_default();
const HELD: Style = AnsiColor::Yellow.on_default();

/// Columns that a name may take in a table before the other rows are not padded for it any more.
const NAME_COLUMNS_MAX: usize = 48;

/// Many locks as a table, one row for each holder.
pub(crate) fn locks_table(locks: &[LockState]) -> String {
    let mut table = table();
    table.set_header(["LOCK", "HELD BY", "MODE", "FOR", "EXPIRES IN", "TOKEN", "WAITING"]);
    // On a terminal, long ones are wrapped instead.
    let is_wrapped = terminal_width().is_some();
    let mut long_names = vec![None];
    for lock in locks {
        let waiting = match lock.waiters.len() {
            0 => "-".to_string(),
            n => n.to_string(),
        };
        let name = clean(lock.name.as_str());
        let is_long = !is_wrapped && name.width() > NAME_COLUMNS_MAX;
        let cell = if is_long { String::new() } else { name.clone() };
        let rows = if lock.holders.is_empty() {
            // A thing that was done once is held by nobody, and still worth a line.
            let done = lock.settled_for.map(|kept| format!("(done, kept for {})", in_words(kept)));
            let nothing = || "-".to_string();
            vec![[done.unwrap_or_else(nothing), nothing(), nothing(), nothing(), nothing()]]
        } else {
            lock.holders.iter().map(holder_cells).collect()
        };
        for [label, mode, since, expires, token] in rows {
            table.add_row([cell.clone(), label, mode, since, expires, token, waiting.clone()]);
            long_names.push(is_long.then(|| name.clone()));
        }
    }
    if is_wrapped {
        return trimmed(&table);
    }
    let lines = trimmed(&table);
    lines.lines().zip(long_names).fold(String::new(), |mut text, (line, long_name)| {
        let _ = match long_name {
            None => writeln!(text, "{line}"),
            Some(name) => writeln!(text, "{name}  {}", line.trim_start()),
        };
        text
    })
}

/// One lock: a heading, who holds it, who waits.
pub(crate) fn lock_page(state: &LockState) -> String {
    let (style, word) = if state.is_held() { (HELD, "held") } else { (FREE, "free") };
    let mut page = format!("{BOLD}{}{BOLD:#} is {style}{word}{style:#}\n", clean(state.name.as_str()));
    if let Some(kept) = state.settled_for {
        let _ = writeln!(page, "done; the record is kept for {}", in_words(kept));
    }
    if state.is_held() {
        let mut table = table();
        table.set_header(["HELD BY", "MODE", "FOR", "EXPIRES IN", "TOKEN", "REASON"]);
        for holder in &state.holders {
            let [label, mode, since, expires, token] = holder_cells(holder);
            let reason = holder.reason.as_ref().map_or_else(|| "-".into(), |reason| clean(reason.as_str()));
            table.add_row([label, mode, since, expires, token, reason]);
        }
        let _ = write!(page, "\n{}", trimmed(&table));
    }
    if !state.waiters.is_empty() {
        let mut table = table();
        table.set_header(["POSITION", "WAITING", "MODE", "FOR", "REASON"]);
        for (i, waiter) in state.waiters.iter().enumerate() {
            table.add_row([
                (i + 1).to_string(),
                clean(waiter.label.as_str()),
                waiter.mode.map_or_else(|| "-".into(), |mode| mode.to_string()),
                waiter.waiting_for.map_or_else(|| "-".into(), in_words),
                waiter.reason.as_ref().map_or_else(|| "-".into(), |reason| clean(reason.as_str())),
            ]);
        }
        let _ = write!(page, "\n{}", trimmed(&table));
    }
    page
}

fn holder_cells(holder: &Holder) -> [String; 5] {
    let unknown = || "-".to_string();
    let mut label = clean(holder.label.as_str());
    if holder.evicted {
        label.push_str(" (evicted)");
    }
    [
        label,
        holder.mode.map_or_else(unknown, |mode| mode.to_string()),
        holder.held_for.map_or_else(unknown, in_words),
        holder.expires_in.map_or_else(unknown, in_words),
        holder.token.map_or_else(unknown, |token| token.to_string()),
    ]
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if let Some(width) = terminal_width() {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    table
}

/// The width of the terminal that stdout is, if it is one.
pub(crate) fn terminal_width() -> Option<u16> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    rustix::termios::tcgetwinsize(&stdout).ok().map(|size| size.ws_col).filter(|width| *width > 0)
}

/// Without the padding at both ends of each line, which only makes lines wrap.
fn trimmed(table: &Table) -> String {
    table.lines().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{}", line.trim_end().strip_prefix(' ').unwrap_or(line.trim_end()));
        text
    })
}

/// Warns that a lock stays as it is. Nobody else is to blame for it.
pub(crate) fn not_given_back(cause: &dyn std::fmt::Display) {
    let _ = note(&clean(&format!(
        "tenure: warning: the lock could not be given back and is left to expire: {cause}"
    )));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_cannot_deceive() {
        assert_eq!(clean("a\u{1b}[31mb\r\u{9b}0m"), "a\\u{1b}[31mb\\u{d}\\u{9b}0m");
        assert_eq!(clean("invoice\u{202e}gpj\u{200b}"), "invoice\\u{202e}gpj\\u{200b}");
        assert_eq!(clean("größe 🔒 名前"), "größe 🔒 名前");
    }
}
