//! The seam for randomness: claim ids and jitter. Simulation replaces it; nothing else touches the real one.

use std::fmt::Debug;

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

/// The operating system's random numbers, asked each time: a buffer would be copied by `fork`, and two processes
/// would draw the same claim id.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the operating system gives random numbers");
    }
}
