//! The header: which machine and boot the store belongs to, which layout it has, how high its tokens may have gone.
//!
//! A small text file of its own, not a record in LMDB: after a power loss the LMDB file, which is never synced, may
//! hold anything, and with the header apart it is thrown away unread. Knows nothing of locks.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The newest layout of the directory that this version knows.
pub(crate) const LAYOUT: u32 = 1;
const MAGIC: &str = "tenure-embedded layout";
const FILE: &str = "header";
const BYTES_MAX: u64 = 4096;
/// No token is higher: what says otherwise is damaged. The clock gets there in 292,000 years.
pub(crate) const TOKEN_MAX: u64 = u64::MAX / 2;

/// Where and when a process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// This boot of this machine, and the name space of its boot clock: lifetimes mean nothing anywhere else.
    pub(crate) boot: String,
    /// This machine.
    pub(crate) machine: String,
    /// The name space of process ids: LMDB's mutex cannot be shared across two.
    pub(crate) processes: String,
}

impl Place {
    pub(crate) fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).map(|text| word(&text)).ok();
        let link = |path: &str| fs::read_link(path).map(|to| word(&to.to_string_lossy())).ok();
        let unknown = || "unknown".to_string();
        let boot = read("/proc/sys/kernel/random/boot_id").unwrap_or_else(unknown);
        let clock = link("/proc/self/ns/time").unwrap_or_else(unknown);
        Self {
            boot: format!("{boot}+{clock}"),
            machine: read("/etc/machine-id").filter(|id| !id.is_empty()).unwrap_or_else(unknown),
            processes: link("/proc/self/ns/pid").unwrap_or_else(unknown),
        }
    }
}

/// One line without spaces: what a header can carry.
fn word(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().to_string()
}

/// What the header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) place: Place,
    /// No token above this was given out; synced to disk before any is.
    pub(crate) token_ceiling: u64,
}

/// What became of reading a header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Header(Header),
    Nothing,
    Damaged,
    Newer(u32),
}

impl Header {
    pub(crate) fn read(directory: &Path) -> io::Result<Found> {
        let mut text = Vec::new();
        match File::open(directory.join(FILE)) {
            Ok(file) => file.take(BYTES_MAX).read_to_end(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(error) => return Err(error),
        };
        Ok(Self::parse(&text))
    }

    /// Writes the header, all or nothing, and waits until the disk has it.
    pub(crate) fn write(&self, directory: &Path, mode: u32) -> io::Result<()> {
        let new = directory.join("header.new");
        // Not written over: a leftover of a crash may belong to another user.
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        rustix::fs::fchmod(&file, mode.into())?;
        file.write_all(self.to_text().as_bytes())?;
        file.sync_data()?;
        fs::rename(&new, directory.join(FILE))
    }

    fn to_text(&self) -> String {
        let Place { boot, machine, processes } = &self.place;
        let mut text = format!("{MAGIC} {LAYOUT}\nboot {boot}\nmachine {machine}\nprocesses {processes}\n");
        let _ = writeln!(text, "token_ceiling {}", self.token_ceiling);
        let check = checksum(text.as_bytes());
        let _ = writeln!(text, "check {check:016x}");
        text
    }

    fn parse(text: &[u8]) -> Found {
        Self::parse_checked(text).unwrap_or(Found::Damaged)
    }

    fn parse_checked(text: &[u8]) -> Option<Found> {
        let text = std::str::from_utf8(text).ok()?;
        let layout: u32 = text.lines().next()?.strip_prefix(MAGIC)?.trim().parse().ok()?;
        // A newer layout may check itself in another way: believe it.
        if layout > LAYOUT {
            return Some(Found::Newer(layout));
        }
        let (body, check) = text.rsplit_once("check ")?;
        if u64::from_str_radix(check.trim(), 16).ok()? != checksum(body.as_bytes()) {
            return None;
        }
        let field = |name: &str| {
            let mut lines = body.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_string))
        };
        let place =
            Place { boot: field("boot")?, machine: field("machine")?, processes: field("processes")? };
        let token_ceiling = field("token_ceiling")?.parse().ok().filter(|ceiling| *ceiling <= TOKEN_MAX)?;
        Some(Found::Header(Self { place, token_ceiling }))
    }
}

/// FNV-1a: against torn writes, not against people.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header { place: Place::here(), token_ceiling: 1 << 52 }
    }

    #[test]
    fn a_header_is_read_back_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Header::read(directory.path()).unwrap(), Found::Nothing);
        header().write(directory.path(), 0o600).unwrap();
        assert_eq!(Header::read(directory.path()).unwrap(), Found::Header(header()));
        let text = header().to_text();
        for end in 0..text.len() - 1 {
            assert_eq!(Header::parse(&text.as_bytes()[..end]), Found::Damaged, "cut at {end}");
        }
        for at in MAGIC.len() + 2..text.len() - 1 {
            let mut torn = text.clone().into_bytes();
            torn[at] ^= 4;
            assert_ne!(Header::parse(&torn), Found::Header(header()), "torn at {at}");
        }
    }

    #[test]
    fn a_newer_layout_is_recognised_whatever_follows() {
        assert_eq!(Header::parse(b"tenure-embedded layout 7\nall new\n"), Found::Newer(7));
    }
}
