//! Renewing: many claims to a call, and the calls at a steady pace, so that a server is never busy with us alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use redis::{Cmd, Value};
use tenure_core::clock::sleep_until;
use tenure_core::{Answer, BootInstant, Claim, Clock, Reason, Renewal, Why};

use crate::attention::Watch;
use crate::backend::{Inner, header, millis, value_of};
use crate::reply::{garbled, text, unsigned};
use crate::scripts::Filled;
use crate::supervisor::Live;

/// How many claims one script call renews at most: more would hold up the server's other clients.
const RENEW_AT_ONCE: usize = 64;
/// How many such calls one request has under way at a time.
const RENEWALS_UNDER_WAY: usize = 4;
/// How long after such a call, if it was full, the next is sent, at the most. It takes the server about an eighth of that; the
/// rest is for others.
const RENEWAL_EVERY: Duration = Duration::from_millis(2);
/// What part of their ttl it may take to renew everything that this process holds.
const RENEWALS_WITHIN: u32 = 10;

/// When the next call may be sent, for each magnitude of ttl: the short ones do not wait for the long ones.
#[derive(Debug, Default)]
pub(crate) struct Pace([tokio::sync::Mutex<Option<BootInstant>>; 32]);

impl Pace {
    /// Waits for the turn of a call that renews claims with such a ttl; the next is `pause` later. One turn after the other,
    /// however late they come: never several at once to make up for lost time.
    async fn turn(&self, clock: &Arc<dyn Clock>, ttl: Duration, pause: Duration) {
        let magnitude = millis(ttl).max(1).ilog2() as usize;
        let mut next = self.0[magnitude.min(self.0.len() - 1)].lock().await;
        if let Some(at) = *next {
            sleep_until(clock.clone(), at).await;
        }
        *next = Some(clock.now() + pause);
    }
}

/// Renews all of them, in as many calls as it takes.
pub(crate) async fn renew(inner: &Inner, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
    let ttl = claims.iter().map(|claim| claim.ttl.get()).min().unwrap_or_default();
    let held = claims.len().max(inner.pushes.len());
    let calls = claims.chunks(RENEW_AT_ONCE).map(|batch| async move {
        inner.pace.turn(&inner.clock, ttl, pause_after(batch.len(), ttl, held)).await;
        renew_together(inner, batch).await
    });
    // Collected first: it would not be `Send` otherwise.
    let calls: Vec<_> = calls.collect();
    let renewed: Vec<_> = stream::iter(calls).buffered(RENEWALS_UNDER_WAY).collect().await;
    renewed.concat()
}

/// How long after a call that renews some claims the next is sent, if so many more with such a ttl may be due.
fn pause_after(renewed: usize, ttl: Duration, held: usize) -> Duration {
    let held = u32::try_from(held.max(1)).unwrap_or(u32::MAX);
    let each = (RENEWAL_EVERY / RENEW_AT_ONCE as u32).min(ttl / RENEWALS_WITHIN / held);
    each * renewed as u32
}

/// Renews them in one call.
async fn renew_together(inner: &Inner, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
    let all: Vec<_> = claims
        .iter()
        .map(|claim| (inner.layout.keys(&claim.name), value_of(claim), millis(claim.ttl.get())))
        .collect();
    let size = all.iter().map(|(keys, value, _)| keys.size() + value.len() + 10).sum::<usize>();
    let asked = AtomicU64::new(0);
    let fill = |live: &Live, command: &mut Cmd| {
        command.arg(1 + all.iter().map(|(keys, _, _)| keys.count()).sum::<usize>());
        command.arg(inner.layout.fence());
        all.iter().for_each(|(keys, _, _)| keys.write_to(command));
        asked.store(header(inner, live, command), Ordering::Relaxed);
        for (_, value, ttl) in &all {
            command.arg(value).arg(ttl);
        }
    };
    let answers = async {
        let script = &inner.place.scripts().renew;
        let call = Filled { script, arguments: 4 * all.len(), size: size + 200, fill };
        let mut reply = inner.place.run(&call, Watch::NO).await?;
        reply.read(asked.load(Ordering::Relaxed))
    };
    match answers.await {
        Ok(mut answers) => claims
            .iter()
            .map(|claim| {
                let item = answers.next()?;
                match (unsigned(&item), &item) {
                    (Some(1), _) => Ok(Renewal::Renewed { ttl: claim.ttl.get() }),
                    (Some(0), _) => Ok(Renewal::Lost(Why::Gone)),
                    (_, Value::Array(fields)) => {
                        let reason = fields.get(1).and_then(text).and_then(|reason| Reason::new(reason).ok());
                        Ok(Renewal::Lost(Why::Evicted { reason }))
                    }
                    _ => Err(garbled("no renewal")),
                }
            })
            .collect(),
        Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::clock::SystemClock;

    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    /// However many of them go in a call.
    #[test]
    fn everything_that_is_held_is_renewed_within_a_tenth_of_its_ttl() {
        for held in [1_u32, 64, 65, 1000, 100_000, 1_000_000] {
            for ttl in [Duration::from_millis(50), TTL, Duration::from_secs(86_400)] {
                for renewed in [1, RENEW_AT_ONCE] {
                    let pause = pause_after(renewed, ttl, held as usize);
                    let calls = held.div_ceil(renewed as u32);
                    assert!(pause <= RENEWAL_EVERY, "{pause:?}");
                    assert!(
                        pause * (calls - 1) <= ttl / 10,
                        "{held} with {ttl:?}, {renewed} a call: {pause:?}"
                    );
                }
            }
        }
        assert_eq!(pause_after(RENEW_AT_ONCE, TTL, 10_000), RENEWAL_EVERY);
    }

    /// Four calls that come at once are sent at some distance; one with a short ttl does not wait for them.
    #[tokio::test]
    async fn turns_are_taken_one_after_the_other_by_magnitude() {
        let (clock, every): (Arc<dyn Clock>, _) = (Arc::new(SystemClock), Duration::from_millis(20));
        let (pace, start) = (Pace::default(), clock.now());
        futures_util::future::join_all((0..4).map(|_| pace.turn(&clock, TTL, every))).await;
        assert!(clock.now() >= start + every * 3);
        pace.turn(&clock, TTL, TTL * 1000).await;
        let short = pace.turn(&clock, TTL / 100, every);
        tokio::time::timeout(TTL, short).await.expect("it need not wait");
    }
}
