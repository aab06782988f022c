//! [`ByClaim`]: a map from claim ids.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::claim::ClaimId;

/// A map from claim ids. They are random already, so they are barely hashed: nobody else chooses them, and every
/// acquire looks them up a few times.
pub type ByClaim<T> = HashMap<ClaimId, T, BuildHasherDefault<IdHasher>>;

/// The bytes of an id, folded.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks_exact(8) {
            self.0 ^= u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        }
    }

    /// How many bytes there are: always the same.
    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        // The map looks at the highest bits and the lowest: ids that a simulation counts up differ in some only.
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
