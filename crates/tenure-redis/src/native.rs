//! The boundary without scripts: by the server's own compare-and-set commands, where scripts are forbidden.
//!
//! Only exclusive locks, and no line: waiting means looking again and again. A lock is taken in one `MULTI`, which cannot
//! decide anything, but `MSETNX` can: it writes the main key together with those that must not be there, and so only if
//! none of them is. That is `:s`, in which the holders stand that run scripts, and the tombstone of the claim. They are
//! removed again in the same `MULTI`, which is told from what others wrote there by having no ttl. The token is drawn in
//! it too, so tokens rise in the order of grants; numbers are burnt by attempts that fail.
//!
//! `DELIFEQ` (Valkey 9) or `DELEX … IFEQ` (Redis 8.4) gives a lock back. It is renewed by `PEXPIRE`, which works in a full
//! server. A tombstone is a key of its own, and says why if its claim was evicted.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Cmd, Value};
use tenure_core::{
    Answer, Attempt, Busy, Claim, Eviction, FencingToken, Holder, Line, LockName, LockState, Reason,
    RefusalKind, Released, Renewal, StoreError, Trail, Wake, Why,
};

use crate::backend::{Inner, millis, value_of};
use crate::error;
use crate::keys::Keys;
use crate::reply::{EVICTED, alone, claim_in, garbled, lock_state, lossy, score, signed, text, unsigned};
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

/// Deletes `key` if it holds `value`.
fn delete(commands: Native, key: &str, value: &[u8]) -> Cmd {
    let mut command = match commands {
        Native::Valkey => words(&["DELIFEQ", key]),
        Native::Redis => words(&["DELEX", key, "IFEQ"]),
    };
    command.arg(value);
    command
}

/// Carries `steps` out together, and answers what came of each.
async fn together(inner: &Inner, steps: impl FnOnce(u64) -> Vec<Cmd>) -> Answer<Vec<Value>> {
    let transaction = |store_micros| {
        let mut all = vec![words(&["MULTI"])];
        all.extend(steps(store_micros));
        all.push(words(&["EXEC"]));
        all
    };
    match inner.place.ask_all(transaction).await?.pop() {
        Some(Value::Array(results)) => Ok(results),
        _ => Err(garbled("no transaction")),
    }
}

/// What a step towards a lock found.
struct Taken {
    token: FencingToken,
    is_new: bool,
    /// What the main key holds, and for how many ms.
    holder: Option<String>,
    left: Option<u64>,
    /// There is a tombstone.
    is_ended: bool,
}

/// Takes the lock if nobody has it. Those in `:s` that expired before the store's moment `dead_before`, in ms, do not.
async fn take(inner: &Inner, claim: &Claim, dead_before: u64) -> Answer<Taken> {
    let (keys, value) = (inner.layout.keys(&claim.name), value_of(claim));
    let (main, fence, shared) = (keys.main(), inner.layout.fence(), keys.shared());
    let (tombstone, marker) = (keys.tombstone(claim.id), keys.marker());
    let (ttl, fence_ms) = (millis(claim.ttl.get()).to_string(), millis(FENCE).to_string());
    // No holder's value ends so: what holds this was written by the step before.
    let fresh = format!("{value}\n");
    let floor = inner.seen.load(Ordering::Relaxed);
    let steps = |store_micros: u64| {
        let start = store_micros.max(floor).to_string();
        let mut steps = vec![
            words(&["ZADD", fence, "GT", &start, LAYOUT]),
            words(&["ZINCRBY", fence, "1", LAYOUT]),
            words(&["PEXPIRE", fence, &fence_ms]),
            words(&["ZREMRANGEBYSCORE", &shared, "-inf", &format!("({dead_before}")]),
            words(&["MSETNX", main, &fresh, &shared, &fresh, &tombstone, &fresh]),
            words(&["PEXPIRE", &shared, "0", "NX"]),
            words(&["PEXPIRE", &tombstone, "0", "NX"]),
            words(&["SET", main, &value, "IFEQ", &fresh, "PX", &ttl]),
            words(&["GET", main]),
            words(&["PTTL", main]),
            words(&["EXISTS", &tombstone]),
        ];
        if let Some(marker) = &marker {
            steps.push(words(&["SET", marker, "", "PX", &fence_ms]));
        }
        steps
    };
    let results = together(inner, steps).await?;
    let [_, token, _, _, is_new, _, _, _, holder, left, tombstones, ..] = results.as_slice() else {
        return Err(garbled("not eleven results"));
    };
    Ok(Taken {
        token: score(token).map(FencingToken::new).ok_or_else(|| garbled("no token"))?,
        is_new: unsigned(is_new) == Some(1),
        holder: lossy(holder).map(Into::into),
        left: unsigned(left),
        is_ended: unsigned(tombstones) != Some(0),
    })
}

pub(crate) async fn attempt(inner: &Arc<Inner>, claim: &Claim, line: Line) -> Answer<Attempt> {
    if let Line::Succeed(_) = line {
        let message = "without scripts a claim cannot be taken over in one step";
        return Err(StoreError::refused(RefusalKind::Unsupported, message));
    }
    // Taken before anything is sent: the grant counts from here.
    let since = inner.clock.now();
    let mut taken = take(inner, claim, 0).await?;
    if !taken.is_new && !taken.is_ended && taken.holder.is_none() {
        // Others hold it together, or did: the dead among them are left to whoever comes.
        let (state, now) = look(inner, &claim.name).await?;
        if let Some(holder) = state.holders.into_iter().next() {
            return Ok(busy(inner, Some(holder)));
        }
        taken = take(inner, claim, now).await?;
    }
    if taken.is_ended {
        let message = "this claim was ended before: released, or evicted";
        return Err(StoreError::refused(RefusalKind::Ended, message));
    }
    let is_ours = taken.holder.as_ref() == Some(&value_of(claim));
    let is_known = is_ours && !taken.is_new;
    if is_known {
        let renewal = renew_all(inner, &[Arc::new(claim.clone())]).await?;
        if !matches!(renewal[..], [Renewal::Renewed { .. }]) {
            return Ok(busy(inner, None));
        }
    }
    if !is_ours {
        let holder = taken.holder.map(|holder| alone(&holder, taken.left, 0));
        return Ok(busy(inner, holder.map(|holder| Holder { held_for: None, ..holder })));
    }
    // Taken before: then with the number that we still know, or that nobody ever saw.
    let known = if is_known { inner.pushes.token(claim.id) } else { None };
    let token = known.unwrap_or(taken.token);
    inner.seen.fetch_max(token.get(), Ordering::Relaxed);
    let (news, _) = inner.listen(claim.id, None);
    Ok(Attempt::Granted(inner.grant(claim, token, claim.ttl.get(), since, news)))
}

fn busy(inner: &Inner, holder: Option<Holder>) -> Attempt {
    let jitter = 0.5 + inner.place.config().seams.entropy.fraction();
    let expires_in = holder.as_ref().and_then(|holder| holder.expires_in);
    let at_latest = POLL.mul_f64(jitter).min(expires_in.unwrap_or(POLL) + Duration::from_millis(1));
    Attempt::Busy(Busy { holder, ahead: None, wake: Wake { at_latest, signal: None } })
}

pub(crate) async fn renew(inner: &Arc<Inner>, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
    match renew_all(inner, claims).await {
        Ok(renewals) => renewals.into_iter().map(Ok).collect(),
        Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
    }
}

/// Looks which of them hold, and lets those live longer. Should one end between the two, and another take its lock, that
/// one's lock is let live longer: no harm but a wait, should it die.
async fn renew_all(inner: &Inner, claims: &[Arc<Claim>]) -> Answer<Vec<Renewal>> {
    let all: Vec<(Keys, String, &Claim)> =
        claims.iter().map(|claim| (inner.layout.keys(&claim.name), value_of(claim), &**claim)).collect();
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let looks = |_| {
        let of_one = |(keys, _, claim): &(Keys, String, &Claim)| {
            [words(&["GET", keys.main()]), words(&["GET", &keys.tombstone(claim.id)])]
        };
        all.iter().flat_map(of_one).collect()
    };
    let known = inner.place.ask_all(looks).await?;
    let lost: Vec<_> =
        all.iter().zip(known.chunks(2)).map(|((_, value, _), known)| lost(value, known)).collect();
    let fence_ms = millis(FENCE).to_string();
    let extensions = |_| {
        let held = all.iter().zip(&lost).filter(|(_, lost)| lost.is_none());
        let of_one = |((keys, _, claim), _): (&(Keys, String, &Claim), _)| {
            let ttl = millis(claim.ttl.get()).to_string();
            [words(&["GET", keys.main()]), words(&["PEXPIRE", keys.main(), &ttl, "GT"])]
        };
        let mut steps: Vec<_> = held.flat_map(of_one).collect();
        steps.push(words(&["PEXPIRE", inner.layout.fence(), &fence_ms]));
        steps
    };
    let extended = together(inner, extensions).await?;
    let mut extended = extended.chunks(2);
    let renewals = all.iter().zip(lost).map(|((_, value, claim), lost)| match lost {
        Some(why) => Renewal::Lost(why),
        None if extended.next().is_some_and(|now| text(&now[0]) == Some(value)) => {
            Renewal::Renewed { ttl: claim.ttl.get() }
        }
        None => Renewal::Lost(Why::Gone),
    });
    Ok(renewals.collect())
}

/// Why the claim with this value does not hold, by what its main key and its tombstone hold.
fn lost(value: &str, known: &[Value]) -> Option<Why> {
    let [holder, tombstone] = known else { return Some(Why::Gone) };
    let holder = text(holder);
    if let Some(reason) = text(tombstone).and_then(|said| said.strip_prefix('!')) {
        return Some(Why::Evicted { reason: Reason::new(reason).ok() });
    }
    match holder {
        Some(holder) if holder == value => None,
        Some(holder) if holder.strip_prefix(EVICTED) == Some(value) => Some(Why::Evicted { reason: None }),
        _ => Some(Why::Gone),
    }
}

pub(crate) async fn release(
    inner: &Arc<Inner>,
    commands: Native,
    claim: &Claim,
    trail: Trail,
) -> Answer<Released> {
    let (keys, value) = (inner.layout.keys(&claim.name), value_of(claim));
    let tombstone_ms = millis(inner.place.config().rules.tombstone_ttl).to_string();
    let steps = |_| {
        // First: an attempt that comes in between must find it.
        let bury = words(&["SET", &keys.tombstone(claim.id), "", "NX", "PX", &tombstone_ms]);
        let delete = |value: &str| delete(commands, keys.main(), value.as_bytes());
        let mut steps = vec![bury, delete(&value), delete(&format!("{EVICTED}{value}"))];
        steps.drain(..usize::from(trail == Trail::Clean));
        steps
    };
    let answers = inner.place.ask_all(steps).await?;
    match answers.iter().rev().take(2).map(unsigned).sum::<Option<u64>>() {
        Some(0) => Ok(Released::Absent),
        Some(_) => Ok(Released::Held),
        None => Err(garbled("no release")),
    }
}

pub(crate) async fn inspect(inner: &Arc<Inner>, name: &LockName) -> Answer<LockState> {
    look(inner, name).await.map(|(state, _)| state)
}

/// The state of a lock, and the store's time in ms.
async fn look(inner: &Inner, name: &LockName) -> Answer<(LockState, u64)> {
    let keys = inner.layout.keys(name);
    let steps = |_| {
        vec![
            words(&["TIME"]),
            words(&["GET", keys.main()]),
            words(&["PTTL", keys.main()]),
            words(&["PTTL", &keys.record()]),
            words(&["ZRANGE", &keys.shared(), "0", "-1", "WITHSCORES"]),
            words(&["LRANGE", &keys.line(), "0", "-1"]),
            words(&["HGETALL", &keys.claims()]),
        ]
    };
    let mut results = together(inner, steps).await?;
    let [time, main, left, record, shared, line, claims] = results.as_mut_slice() else {
        return Err(garbled("not seven results"));
    };
    let now_micros = micros(time).ok_or_else(|| garbled("no time"))?;
    let unread = |_| garbled("no claims");
    let shared: Vec<(String, f64)> = redis::from_redis_value_ref(shared).map_err(unread)?;
    let line: Vec<String> = redis::from_redis_value_ref(line).map_err(unread)?;
    let claims: HashMap<String, String> = redis::from_redis_value_ref(claims).map_err(unread)?;
    // As the script puts it.
    let entry = |id: &str| claims.get(id).cloned().unwrap_or_default();
    let holders =
        shared.into_iter().flat_map(|(id, expires)| [entry(&id), format!("{expires}"), id].into_iter().rev());
    let waiters = line.into_iter().flat_map(|id| [entry(&id), id].into_iter().rev());
    let list = |texts: Vec<String>| {
        Value::Array(texts.into_iter().map(|text| Value::BulkString(text.into_bytes())).collect())
    };
    let fields = vec![
        Value::Int(i64::try_from(now_micros).unwrap_or(i64::MAX)),
        std::mem::replace(main, Value::Nil),
        std::mem::replace(left, Value::Nil),
        std::mem::replace(record, Value::Nil),
        list(holders.collect()),
        list(waiters.collect()),
    ];
    Ok((lock_state(name.clone(), Value::Array(fields))?, now_micros / 1000))
}

/// Takes the lock away: marks its value, or removes it.
pub(crate) async fn evict(
    inner: &Arc<Inner>,
    commands: Native,
    name: &LockName,
    eviction: &Eviction,
) -> Answer<u32> {
    let unsupported = |message: &str| Err(StoreError::refused(RefusalKind::Unsupported, message));
    if eviction.token.is_some() {
        return unsupported(
            "without scripts this store cannot tell which token a holder has: evict without one",
        );
    }
    let keys = inner.layout.keys(name);
    let looks = |_| vec![words(&["GET", keys.main()]), words(&["PTTL", keys.main()])];
    let known = together(inner, looks).await?;
    let [Value::BulkString(value), left] = known.as_slice() else {
        if look(inner, name).await?.0.is_held() {
            return unsupported("without scripts those who share a lock cannot be evicted");
        }
        return Ok(0);
    };
    let held = String::from_utf8_lossy(value);
    let id = claim_in(&held);
    if id.is_none() && signed(left) == Some(-1) {
        return Err(error::from_text(&format!("NOTTL {}", keys.main())));
    }
    if held.starts_with(EVICTED) && !eviction.force {
        return Ok(1);
    }
    let reason = eviction.reason.as_str();
    let tombstone_ms = millis(inner.place.config().rules.tombstone_ttl).to_string();
    let steps = |_| {
        let mut steps = Vec::new();
        if let Some(id) = id {
            let said = format!("!{reason}");
            steps.push(words(&["SET", &keys.tombstone(id), &said, "NX", "PX", &tombstone_ms]));
        }
        steps.push(if eviction.force {
            delete(commands, keys.main(), value)
        } else {
            // Who runs scripts reads there why.
            let runs_scripts = id.is_some() && held.contains('\n');
            let said = if runs_scripts { format!("\n!{reason}") } else { String::new() };
            let mut mark = words(&["SET", keys.main()]);
            mark.arg([EVICTED.as_bytes(), value, said.as_bytes()].concat());
            mark.arg("IFEQ").arg(value).arg("KEEPTTL");
            mark
        });
        steps
    };
    let evicted = together(inner, steps).await?.pop();
    Ok(u32::from(matches!(evicted, Some(Value::Okay | Value::Int(1)))))
}
