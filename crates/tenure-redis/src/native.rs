//! The boundary without scripts: by the server's own compare-and-set commands, where scripts are forbidden.
//!
//! `SET … NX PX` takes a lock and `SET … IFEQ` renews it; `DELIFEQ` (Valkey 9) or `DELEX … IFEQ` (Redis 8.4) gives it
//! back. The token is drawn in the same `MULTI` as the lock, so tokens rise in the order of grants; numbers are burnt
//! by attempts that fail. There is no line: waiting means looking again and again. There are no tombstones: an attempt
//! that arrives after its release may leave an orphan, never more than its ttl, never reported as held.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Cmd, Value};
use tenure_core::{
    Answer, Attempt, Busy, Claim, Eviction, FencingToken, Holder, Line, LockName, LockState, RefusalKind,
    Released, Renewal, StoreError, Wake, Why,
};

use crate::backend::{Inner, millis, value_of};
use crate::reply::{EVICTED, alone, garbled, score, text, unsigned};
use crate::scripts::{FENCE, LAYOUT};
use crate::server::{Native, micros};

/// How often a waiter looks, about.
const POLL: Duration = Duration::from_millis(50);

fn words(words: &[&str]) -> Cmd {
    let mut command = Cmd::with_capacity(words.len(), 200);
    words.iter().for_each(|word| {
        command.arg(*word);
    });
    command
}

pub(crate) async fn attempt(
    inner: &Arc<Inner>,
    _commands: Native,
    claim: &Claim,
    line: Line,
) -> Answer<Attempt> {
    if let Line::Succeed(_) = line {
        let message = "without scripts a claim cannot be taken over in one step";
        return Err(StoreError::refused(RefusalKind::Unsupported, message));
    }
    let (keys, value, ttl) =
        (inner.layout.keys(&claim.name), value_of(claim), millis(claim.ttl.get()).to_string());
    let (main, fence, marker) = (keys.main(), inner.layout.fence(), keys.marker());
    let fence_ms = FENCE.as_millis().to_string();
    // Taken before anything is sent: the grant counts from here.
    let since = inner.clock.now();
    let floor = inner.seen.load(Ordering::Relaxed);
    let transaction = |store_micros: u64| {
        let start = store_micros.max(floor).to_string();
        let mut steps = vec![
            words(&["MULTI"]),
            words(&["ZADD", fence, "GT", &start, LAYOUT]),
            words(&["ZINCRBY", fence, "1", LAYOUT]),
            words(&["PEXPIRE", fence, &fence_ms]),
            words(&["SET", main, &value, "NX", "PX", &ttl]),
            words(&["SET", main, &value, "IFEQ", &value, "PX", &ttl]),
            words(&["GET", main]),
            words(&["PTTL", main]),
        ];
        if let Some(marker) = &marker {
            steps.push(words(&["SET", marker, "", "PX", &fence_ms]));
        }
        steps.push(words(&["EXEC"]));
        steps
    };
    let mut steps = inner.supervisor.ask_all(transaction).await?;
    let Some(Value::Array(results)) = steps.pop() else { return Err(garbled("no transaction")) };
    let [_, token, _, taken, _, holder, left, ..] = results.as_slice() else {
        return Err(garbled("not seven results"));
    };
    let token = score(token).map(FencingToken::new).ok_or_else(|| garbled("no token"))?;
    let held_by = text(holder).unwrap_or_default();
    if held_by == value {
        // Taken now, or before: then with the number that we still know, or that nobody ever saw.
        let is_new = matches!(taken, Value::Okay);
        let known = if is_new { None } else { inner.pushes.token(claim.id) };
        let token = known.unwrap_or(token);
        inner.seen.fetch_max(token.get(), Ordering::Relaxed);
        let (news, _) = inner.listen(claim.id, None);
        return Ok(Attempt::Granted(inner.grant(claim, token, claim.ttl.get(), since, news)));
    }
    let jitter = 0.5 + inner.supervisor.config.seams.entropy.fraction();
    let expires_in = unsigned(left).map(Duration::from_millis);
    let at_latest = POLL.mul_f64(jitter).min(expires_in.unwrap_or(POLL) + Duration::from_millis(1));
    let holder = alone(held_by, unsigned(left), 0).map(|holder| Holder { held_for: None, ..holder });
    Ok(Attempt::Busy(Busy { holder, ahead: None, wake: Wake { at_latest, signal: None } }))
}

pub(crate) async fn renew(inner: &Arc<Inner>, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
    let commands = |_| {
        claims
            .iter()
            .map(|claim| {
                let (keys, value) = (inner.layout.keys(&claim.name), value_of(claim));
                words(&[
                    "SET",
                    keys.main(),
                    &value,
                    "IFEQ",
                    &value,
                    "PX",
                    &millis(claim.ttl.get()).to_string(),
                ])
            })
            .collect()
    };
    match inner.supervisor.ask_all(commands).await {
        Ok(answers) => claims
            .iter()
            .zip(answers)
            .map(|(claim, answer)| match answer {
                Value::Okay => Ok(Renewal::Renewed { ttl: claim.ttl.get() }),
                Value::Nil => Ok(Renewal::Lost(Why::Gone)),
                _ => Err(garbled("no renewal")),
            })
            .collect(),
        Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
    }
}

pub(crate) async fn release(inner: &Arc<Inner>, commands: Native, claim: &Claim) -> Answer<Released> {
    let (keys, value) = (inner.layout.keys(&claim.name), value_of(claim));
    let reply = inner.supervisor.ask(|_| match commands {
        Native::Valkey => words(&["DELIFEQ", keys.main(), &value]),
        Native::Redis => words(&["DELEX", keys.main(), "IFEQ", &value]),
    });
    match unsigned(&reply.await?.value) {
        Some(1) => Ok(Released::Held),
        Some(0) => Ok(Released::Absent),
        _ => Err(garbled("no release")),
    }
}

pub(crate) async fn inspect(inner: &Arc<Inner>, name: &LockName) -> Answer<LockState> {
    let keys = inner.layout.keys(name);
    let commands = |_| vec![words(&["TIME"]), words(&["GET", keys.main()]), words(&["PTTL", keys.main()])];
    let answers = inner.supervisor.ask_all(commands).await?;
    let [time, value, left] = answers.as_slice() else { return Err(garbled("not three answers")) };
    let now = micros(time).ok_or_else(|| garbled("no time"))? / 1000;
    let mut state = LockState::free(name.clone());
    state.holders.extend(text(value).and_then(|value| alone(value, unsigned(left), now)));
    state.token = state.holders.iter().filter_map(|holder| holder.token).max();
    Ok(state)
}

/// Takes the lock away: marks its value, or removes it.
pub(crate) async fn evict(
    inner: &Arc<Inner>,
    commands: Native,
    name: &LockName,
    eviction: &Eviction,
) -> Answer<u32> {
    if eviction.token.is_some() {
        let message = "without scripts this store cannot tell which token a holder has: evict without one";
        return Err(StoreError::refused(RefusalKind::Unsupported, message));
    }
    let keys = inner.layout.keys(name);
    let reply = inner.supervisor.ask(|_| words(&["GET", keys.main()])).await?;
    let Some(value) = text(&reply.value).map(str::to_owned) else { return Ok(0) };
    let reply = inner
        .supervisor
        .ask(|_| match (eviction.force, commands) {
            (true, Native::Valkey) => words(&["DELIFEQ", keys.main(), &value]),
            (true, Native::Redis) => words(&["DELEX", keys.main(), "IFEQ", &value]),
            (false, _) => {
                words(&["SET", keys.main(), &format!("{EVICTED}{value}"), "IFEQ", &value, "KEEPTTL"])
            }
        })
        .await?;
    Ok(u32::from(matches!(reply.value, Value::Okay | Value::Int(1))))
}
