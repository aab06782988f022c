//! A line of claims, looked at from the boundary: who waits, and who was told what.

use futures_util::FutureExt;
use tenure_core::{Attempt, Backend, BoxFuture, Claim, Grant, Line, Mode, Released, Trail};
use tenure_redis::Redis;

use super::{Duration, claim};

pub(crate) const TTL: Duration = Duration::from_secs(30);

/// A claim that stands in line, and what it will be told.
pub(crate) struct Waiter {
    pub(crate) claim: Claim,
    pub(crate) signal: BoxFuture<'static, Option<Grant>>,
}

impl Waiter {
    pub(crate) async fn join(redis: &Redis, claim: Claim) -> Self {
        let mut signal = match redis.attempt(&claim, Line::Join).await.unwrap() {
            Attempt::Busy(busy) => busy.wake.signal.expect("it is in line"),
            other => panic!("{other:?}"),
        };
        // From its first look on it is counted.
        assert!((&mut signal).now_or_never().is_none());
        Self { claim, signal }
    }

    /// It holds already.
    pub(crate) fn holds(self) -> (Claim, Grant) {
        let told = self.signal.now_or_never().expect("it was told nothing");
        (self.claim, told.expect("it was told to look"))
    }

    pub(crate) async fn served(self) -> (Claim, Grant) {
        let told = tokio::time::timeout(Duration::from_secs(20), self.signal).await;
        (self.claim, told.expect("it was told nothing").expect("it was told to look"))
    }
}

/// A claim that holds, to which the store has just given the lock, and those of the same process that stand in line behind
/// it: it knows them.
pub(crate) async fn line_of(redis: &Redis, name: &str, behind: usize) -> ((Claim, Grant), Vec<Waiter>) {
    let first = claim(name, Mode::Exclusive, TTL);
    assert!(matches!(redis.attempt(&first, Line::Join).await.unwrap(), Attempt::Granted(_)));
    let mut line = Vec::new();
    for _ in 0..=behind {
        line.push(Waiter::join(redis, claim(name, Mode::Exclusive, TTL)).await);
    }
    assert_eq!(redis.release(&first, Trail::Clean).await.unwrap(), Released::Held);
    (line.remove(0).holds(), line)
}
