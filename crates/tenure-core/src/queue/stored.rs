//! A lock as bytes.

use super::Queue;
use crate::backend::{Refusal, RefusalKind};

/// The version of the stored layout. A newer one is refused, so that a rolling upgrade never makes two holders.
pub const LAYOUT: u8 = 1;
/// No token is higher: there is always a next one.
const TOKEN_MAX: u64 = u64::MAX / 2;

impl Queue {
    /// The state as bytes, layout version first.
    ///
    /// # Panics
    /// Never: every state can be written.
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![LAYOUT]).expect("a queue can always be written")
    }

    /// The state that [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// A [`Refusal`] of kind `Configuration` if a newer version wrote it, or nobody did.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Refusal> {
        let refusal = |message: String| Refusal { kind: RefusalKind::Configuration, message };
        match bytes {
            [LAYOUT, state @ ..] => match postcard::from_bytes::<Self>(state) {
                Ok(queue) if queue.last_token <= TOKEN_MAX => Ok(queue),
                Ok(_) => Err(refusal("the stored state of a lock is damaged: there is no such token".into())),
                Err(error) => Err(refusal(format!("the stored state of a lock is damaged: {error}"))),
            },
            [newer, ..] => Err(refusal(format!(
                "a lock here is stored in layout {newer}, this version knows layout {LAYOUT}: upgrade tenure"
            ))),
            [] => Err(refusal("the stored state of a lock is empty".into())),
        }
    }
}
