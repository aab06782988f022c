//! Renewing: many claims to a call, and the calls at a steady pace, so that a server is never busy with us alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use redis::{Cmd, Value};
use tenure_core::clock::sleep_until;
use tenure_core::{Answer, Claim, Reason, Renewal, Why};

use crate::attention::Watch;
use crate::backend::{Inner, header, millis, value_of};
use crate::reply::{garbled, text, unsigned};
use crate::scripts::Filled;
use crate::supervisor::Live;

/// How many claims one script call renews at most: more would hold up the server's other clients.
const RENEW_AT_ONCE: usize = 64;
/// How many such calls are under way at a time: enough for a server that is far away.
const RENEWALS_UNDER_WAY: usize = 4;
/// How long after one such call the next is sent. It takes the server about half of that; the rest is for others.
const RENEWAL_EVERY: Duration = Duration::from_micros(500);
/// What part of the shortest ttl may pass until the last of them is sent.
const RENEWALS_WITHIN: u32 = 32;

/// Renews all of them, in as many calls as it takes.
pub(crate) async fn renew(inner: &Inner, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
    let ttl = claims.iter().map(|claim| claim.ttl.get()).min().unwrap_or_default();
    let calls = u32::try_from(claims.len().div_ceil(RENEW_AT_ONCE)).unwrap_or(u32::MAX);
    let every = RENEWAL_EVERY.min(ttl / RENEWALS_WITHIN / calls.max(1));
    let start = inner.clock.now();
    let calls = (0..).zip(claims.chunks(RENEW_AT_ONCE)).map(|(number, batch)| async move {
        sleep_until(inner.clock.clone(), start + every * number).await;
        renew_together(inner, batch).await
    });
    // Collected first: it would not be `Send` otherwise.
    let calls: Vec<_> = calls.collect();
    let renewed: Vec<_> = stream::iter(calls).buffered(RENEWALS_UNDER_WAY).collect().await;
    renewed.concat()
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
        let script = &inner.supervisor.scripts.renew;
        let call = Filled { script, arguments: 4 * all.len(), size: size + 200, fill };
        let mut reply = inner.supervisor.run(&call, Watch::NO).await?;
        inner.supervisor.read(&mut reply, asked.load(Ordering::Relaxed))
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
