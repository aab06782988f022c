//! The seam for randomness: claim ids and jitter. Simulation replaces it; nothing else touches the real one.

use std::cell::RefCell;
use std::fmt::Debug;

use crate::lineage;

/// A source of random bytes.
pub trait Entropy: Debug + Send + Sync + 'static {
    /// Fills `bytes`. Claim ids are secrets: what comes out must not be guessable.
    fn fill(&self, bytes: &mut [u8]);

    /// A fraction in `0.0..1.0`, for jitter.
    fn fraction(&self) -> f64 {
        let mut bytes = [0; 4];
        self.fill(&mut bytes);
        f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0)
    }
}

/// The operating system's random numbers, drawn in blocks: one system call serves 32 claims.
///
/// A block is never used on both sides of a `fork`, so two processes never draw the same claim id. Where the system
/// cannot tell of forks, it is asked each time. Not covered: a snapshot of a whole running machine that is started twice.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        match lineage::generation() {
            Some(generation) if bytes.len() <= BLOCK_BYTES => {
                BLOCK.with_borrow_mut(|block| block.draw(generation, bytes));
            }
            _ => ask_system(bytes),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the seam")]
fn ask_system(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives random numbers");
}

const BLOCK_BYTES: usize = 512;

thread_local! {
    static BLOCK: RefCell<Block> = const { RefCell::new(Block::EMPTY) };
}

/// Random bytes in stock, of one thread.
struct Block {
    bytes: [u8; BLOCK_BYTES],
    /// How many are left, at the front.
    left: usize,
    /// The process that they were drawn for.
    generation: u64,
}

impl Block {
    const EMPTY: Self = Self { bytes: [0; BLOCK_BYTES], left: 0, generation: 0 };

    /// Hands out bytes, and keeps nothing of them: who reads this memory later learns no claim id.
    fn draw(&mut self, generation: u64, bytes: &mut [u8]) {
        if self.generation != generation || self.left < bytes.len() {
            // Nothing is left if this panics.
            self.left = 0;
            ask_system(&mut self.bytes);
            (self.left, self.generation) = (BLOCK_BYTES, generation);
        }
        let rest = self.left - bytes.len();
        let drawn = &mut self.bytes[rest..self.left];
        bytes.copy_from_slice(drawn);
        drawn.fill(0);
        self.left = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_bytes_are_used_once_and_wiped() {
        let mut block = Block::EMPTY;
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            let mut id = [0; 16];
            block.draw(1, &mut id);
            assert!(seen.insert(id));
            assert!(!block.bytes.windows(id.len()).any(|window| window == id));
            assert!(block.bytes[block.left..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn any_number_of_bytes_can_be_had() {
        for length in [0, 1, 300, BLOCK_BYTES, BLOCK_BYTES + 1, 5000] {
            let (mut first, mut second) = (vec![0; length], vec![0; length]);
            SystemEntropy.fill(&mut first);
            SystemEntropy.fill(&mut second);
            assert!(length < 16 || (first != second && first[length - 16..] != [0; 16]));
        }
    }
}
