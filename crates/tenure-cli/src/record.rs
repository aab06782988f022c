//! What `once` records of a run: as much of its output as fits, and whether that is all.
//!
//! A record is `tnr`, the version, a byte of flags, how many bytes the command wrote (eight, big-endian), then those
//! that were kept. Other programs settle under names too; what is not ours is refused, not printed.

use tenure::{Bytes, OUTCOME_BYTES_MAX};

const MAGIC: &[u8; 3] = b"tnr";
const VERSION: u8 = 1;
const TRUNCATED: u8 = 1;
const HEADER_BYTES: usize = 13;

/// How much output is kept.
pub(crate) const KEPT_BYTES_MAX: usize = OUTCOME_BYTES_MAX - HEADER_BYTES;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    /// The output, from its beginning.
    pub(crate) kept: &'a [u8],
    /// How much there was.
    pub(crate) written: u64,
    pub(crate) is_truncated: bool,
}

impl<'a> Record<'a> {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.kept.len());
        bytes.extend(MAGIC);
        bytes.push(VERSION);
        bytes.push(if self.is_truncated { TRUNCATED } else { 0 });
        bytes.extend(self.written.to_be_bytes());
        bytes.extend(self.kept);
        bytes.into()
    }

    /// # Errors
    /// What is wrong with it.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, &'static str> {
        match bytes.strip_prefix(MAGIC).ok_or("what is recorded is not the output of a command")? {
            [VERSION, flags, rest @ ..] => {
                let (written, kept) = rest.split_first_chunk().ok_or("the record is incomplete")?;
                let is_truncated = flags & TRUNCATED != 0;
                Ok(Self { kept, written: u64::from_be_bytes(*written), is_truncated })
            }
            _ => Err("the record was written by a newer tenure"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read_again() {
        for (kept, written, is_truncated) in [(&b"ab\n\0\xff"[..], 5, false), (b"", 1 << 40, true)] {
            let record = Record { kept, written, is_truncated };
            assert_eq!(Record::decode(&record.encode()), Ok(record));
        }
        let largest = Record { kept: &[b'x'; KEPT_BYTES_MAX], written: 0, is_truncated: true };
        assert_eq!(largest.encode().len(), OUTCOME_BYTES_MAX);
    }

    #[test]
    fn what_others_recorded_is_refused() {
        for (bytes, what) in
            [(&b"\"receipt 7\""[..], "not the output"), (b"tnr\x02", "newer"), (b"tnr\x01\0", "incomplete")]
        {
            assert!(Record::decode(bytes).unwrap_err().contains(what));
        }
    }
}
