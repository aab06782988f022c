//! What the scripts answer, as types.

use std::borrow::Cow;
use std::time::Duration;

use redis::Value;
use tenure_core::{
    Answer, Bytes, ClaimId, FencingToken, Holder, Label, LockName, LockState, Mode, Reason, RefusalKind,
    Released, Shape, StoreError, Waiter,
};

use crate::error;

/// What stands before the value of a holder that was evicted. No label contains a line break.
pub(crate) const EVICTED: &str = "evicted\n";

/// Said of a reply that belongs to another request.
const OUT_OF_STEP: &str = "it is not to this request";

/// What stands before the name of a release: how its claims may end.
const TRAILS: [char; 2] = ['c', 'd'];

/// Whether a reply repeats the name of the request.
pub(crate) fn is_name(text: &str, asked: u64) -> bool {
    text.strip_prefix(TRAILS).unwrap_or(text).parse() == Ok(asked)
}

/// A list, without the name of the request in it, which is its second item.
pub(crate) fn without_name(reply: Value, asked: u64) -> Answer<Value> {
    let Value::Array(mut items) = reply else { return Err(garbled("no list")) };
    if !items.get(1).and_then(text).is_some_and(|name| is_name(name, asked)) {
        return Err(out_of_step());
    }
    items.remove(1);
    Ok(Value::Array(items))
}

/// Said of a reply to something else.
pub(crate) fn out_of_step() -> StoreError {
    garbled(OUT_OF_STEP)
}

/// The answers of a script to each of its items, and the store's time in µs; zero if it did not look.
pub(crate) struct Answers {
    pub(crate) store_micros: u64,
    pub(crate) items: std::vec::IntoIter<Value>,
    /// They were all released, and nothing else is to be said.
    are_released: bool,
}

impl Answers {
    /// Reads the reply to a request that was named `asked`.
    ///
    /// # Errors
    /// Refused if the request came too late, unknown if the reply is none of ours, or not to this request.
    pub(crate) fn parse(reply: Value, asked: u64) -> Answer<Self> {
        if let Some(name) = text(&reply).filter(|text| text.starts_with(TRAILS)) {
            let is_ours = is_name(name, asked);
            let released = Self { store_micros: 0, items: Vec::new().into_iter(), are_released: true };
            return if is_ours { Ok(released) } else { Err(out_of_step()) };
        }
        // A single grant, numbered by the clock: its name, and the number.
        if let Some((answered, token)) = text(&reply).and_then(|text| text.split_once(' ')) {
            let Ok(store_micros) = token.parse() else { return Err(garbled("no token")) };
            if !is_name(answered, asked) {
                return Err(out_of_step());
            }
            let granted = vec![Value::Int(i64::try_from(store_micros).unwrap_or(i64::MAX))];
            return Ok(Self { store_micros, items: granted.into_iter(), are_released: false });
        }
        let Value::Array(items) = reply else { return Err(garbled("no list")) };
        let mut items = items.into_iter();
        let store_micros = items.next().as_ref().and_then(unsigned).ok_or_else(|| garbled("no time"))?;
        if !items.next().as_ref().and_then(text).is_some_and(|name| is_name(name, asked)) {
            return Err(out_of_step());
        }
        if items.as_slice().len() == 1 && text(&items.as_slice()[0]) == Some("L") {
            return Err(StoreError::refused(
                RefusalKind::Unavailable,
                "the request reached the store too late and was not carried out",
            ));
        }
        Ok(Self { store_micros, items, are_released: false })
    }

    /// Whether any of them failed because the server has become a replica.
    pub(crate) fn came_from_a_replica(&self) -> bool {
        self.items.as_slice().iter().any(|item| match item {
            Value::Array(fields) => {
                fields.first().and_then(text) == Some("E")
                    && fields.get(1).and_then(text).is_some_and(|problem| problem.contains("READONLY"))
            }
            _ => false,
        })
    }

    /// The next item, or what went wrong with it.
    pub(crate) fn next(&mut self) -> Answer<Value> {
        if self.are_released {
            return Ok(Value::Boolean(true));
        }
        let item = self.items.next().ok_or_else(|| garbled("too few answers"))?;
        match &item {
            Value::Array(fields) if fields.first().and_then(text) == Some("E") => {
                Err(error::from_text(fields.get(1).and_then(text).unwrap_or("an error without a word")))
            }
            _ => Ok(item),
        }
    }
}

/// Reads the answer to a release.
pub(crate) fn released(item: &Value) -> Answer<Released> {
    match (item, text(item)) {
        (Value::Boolean(true), _) | (_, Some("H")) => Ok(Released::Held),
        (_, Some("W")) => Ok(Released::Waited),
        (_, Some("A")) => Ok(Released::Absent),
        _ => Err(garbled("no release")),
    }
}

/// Whether an attempt came to nothing yet.
pub(crate) fn is_busy(item: &Value) -> bool {
    matches!(item, Value::Array(fields) if fields.first().and_then(text) == Some("B"))
}

/// What an attempt came to.
pub(crate) enum Attempted {
    Granted(FencingToken),
    Settled(Bytes),
    Busy { ahead: Option<u32>, at_latest: Duration, holder: Option<Holder> },
}

/// Reads the answer to an attempt on `name`.
pub(crate) fn attempted(name: &LockName, wanted: Shape, item: Value) -> Answer<Attempted> {
    if let Some(token) = unsigned(&item) {
        return Ok(Attempted::Granted(FencingToken::new(token)));
    }
    let Value::Array(fields) = item else { return Err(garbled("no attempt")) };
    let field = |i: usize| fields.get(i).ok_or_else(|| garbled("a field is missing"));
    match text(field(0)?) {
        Some("S") => match field(1)? {
            Value::BulkString(outcome) => Ok(Attempted::Settled(outcome.clone().into())),
            _ => Err(garbled("no outcome")),
        },
        Some("R") => Err(refusal(name, wanted, text(field(1)?).unwrap_or(""), text(field(2)?).unwrap_or(""))),
        Some("B") => {
            let ahead = signed(field(1)?).ok_or_else(|| garbled("no place"))?;
            let at_latest = unsigned(field(2)?).ok_or_else(|| garbled("no time to look"))?;
            Ok(Attempted::Busy {
                ahead: u32::try_from(ahead).ok(),
                at_latest: Duration::from_millis(at_latest),
                holder: holder(fields.get(3..).unwrap_or_default()),
            })
        }
        _ => Err(garbled("an unknown kind of answer")),
    }
}

fn refusal(name: &LockName, wanted: Shape, kind: &str, detail: &str) -> StoreError {
    let name = name.as_str();
    match kind {
        "ended" => {
            StoreError::refused(RefusalKind::Ended, "this claim was ended before: released, or evicted")
        }
        "shape" => {
            let shape = match detail.strip_prefix('p').and_then(|of| of.parse().ok()) {
                Some(of) => Shape::Permits { of },
                None if detail == "o" => Shape::Once,
                None => Shape::Lock,
            };
            let message = format!(
                "{name:?} is in use as {shape} and cannot be used as {wanted} until nobody holds or awaits it"
            );
            StoreError::refused(RefusalKind::Shape, message)
        }
        "permits" => StoreError::refused(
            RefusalKind::Limit,
            format!("{detail} permits can never be had: ask for 1 to what there is"),
        ),
        "full" => StoreError::refused(
            RefusalKind::Limit,
            format!("{detail} already wait for this lock, the most there may be"),
        ),
        _ => garbled("an unknown kind of refusal"),
    }
}

/// Value, expires in ms, token, mode, held for ms, reason.
fn holder(fields: &[Value]) -> Option<Holder> {
    let [value, expires_in, token, mode, held_for, reason, ..] = fields else { return None };
    let (label, fingerprint, evicted) = who(&lossy(value)?);
    Some(Holder {
        label,
        fingerprint,
        token: unsigned(token).filter(|token| *token > 0).map(FencingToken::new),
        mode: text(mode).and_then(mode_of),
        held_for: unsigned(held_for).map(Duration::from_millis),
        expires_in: unsigned(expires_in).map(Duration::from_millis),
        reason: text(reason).filter(|reason| !reason.is_empty()).and_then(|reason| Reason::new(reason).ok()),
        evicted,
    })
}

/// Whose value this is: label, fingerprint, whether it was evicted. A value that is not ours is somebody's secret:
/// nothing of it is shown.
pub(crate) fn who(value: &str) -> (Label, String, bool) {
    let (own, evicted) = match value.strip_prefix(EVICTED) {
        Some(own) if parts(own).is_some() => (own, true),
        _ => (value, false),
    };
    match parts(own) {
        Some((label, id)) => (label, id.fingerprint(), evicted),
        None => {
            let mut bytes = [0; 16];
            for (i, byte) in value.bytes().enumerate() {
                bytes[i % 16] ^= byte.rotate_left((i / 16 % 8) as u32);
            }
            let label = Label::new("a client that is not tenure").expect("it is short");
            (label, ClaimId::from_bytes(bytes).fingerprint(), false)
        }
    }
}

/// Whose claim the main key holds, marked as evicted or not; `None` if it is not ours.
pub(crate) fn claim_in(text: &str) -> Option<ClaimId> {
    let own = text.strip_prefix(EVICTED).unwrap_or(text);
    parts(own.split('\n').next()?).map(|(_, id)| id)
}

fn parts(value: &str) -> Option<(Label, ClaimId)> {
    let (label, hex) = value.rsplit_once('#')?;
    Some((Label::new(label).ok()?, ClaimId::from_hex(hex)?))
}

/// Reads the answer of the inspect script.
pub(crate) fn lock_state(name: LockName, reply: Value) -> Answer<LockState> {
    let Value::Array(fields) = reply else { return Err(garbled("no state")) };
    let [time, value, expires_in, record, held, waiting] = fields.as_slice() else {
        return Err(garbled("not six fields"));
    };
    let now_micros = unsigned(time).ok_or_else(|| garbled("no time"))?;
    let now = now_micros / 1000;
    let mut state = LockState::free(name);
    state.holders.extend(lossy(value).map(|value| alone(&value, unsigned(expires_in), now)));
    for entry in strings(held).chunks_exact(3) {
        let [id, expires, claim] = entry else { continue };
        let expires = expires.parse::<u64>().unwrap_or(0);
        let claim: Vec<&str> = claim.splitn(10, '\n').collect();
        if let ([_, _, token, since, mode, n, of, _, label, reason], true) =
            (claim.as_slice(), expires >= now)
        {
            state.holders.push(Holder {
                label: Label::new(label).map_err(|_| garbled("a label"))?,
                fingerprint: ClaimId::from_hex(id).map(|id| id.fingerprint()).unwrap_or_default(),
                token: token.parse().ok().map(FencingToken::new),
                mode: mode_of(&format!("{mode}:{n}:{of}")),
                held_for: since.parse().ok().map(|since| Duration::from_millis(now.saturating_sub(since))),
                expires_in: Some(Duration::from_millis(expires - now)),
                reason: reason_of(reason).0,
                evicted: reason_of(reason).1,
            });
        }
    }
    state.holders.sort_by_key(|holder| holder.token);
    state.token = state.holders.iter().filter_map(|holder| holder.token).max();
    for entry in strings(waiting).chunks_exact(2) {
        let [id, claim] = entry else { continue };
        let claim: Vec<&str> = claim.splitn(10, '\n').collect();
        let [_, expires, joined, _, mode, n, of, _, label, reason] = claim.as_slice() else { continue };
        if expires.parse::<u64>().unwrap_or(0) < now {
            continue;
        }
        let joined = joined.parse().unwrap_or(now_micros);
        state.waiters.push(Waiter {
            label: Label::new(label).map_err(|_| garbled("a label"))?,
            fingerprint: ClaimId::from_hex(id).map(|id| id.fingerprint()).unwrap_or_default(),
            mode: mode_of(&format!("{mode}:{n}:{of}")),
            waiting_for: Some(Duration::from_micros(now_micros.saturating_sub(joined))),
            reason: reason_of(reason).0,
        });
    }
    state.settled_for = unsigned(record).map(Duration::from_millis);
    Ok(state)
}

/// Who holds alone, by what the main key holds, whatever that is; it expires in `left` ms.
pub(crate) fn alone(value: &str, left: Option<u64>, now: u64) -> Holder {
    let (own, evicted) = match value.strip_prefix(EVICTED) {
        Some(own) => (own, true),
        None => (value, false),
    };
    let fields: Vec<&str> = own.splitn(6, '\n').collect();
    let number = |i: usize| fields.get(i).and_then(|number| number.parse::<u64>().ok());
    let (label, fingerprint, _) = who(if fields.len() == 6 { fields[0] } else { own });
    Holder {
        label,
        fingerprint,
        token: number(3).filter(|token| *token > 0).map(FencingToken::new),
        mode: fields.get(1).and_then(|mode| mode_of(mode.get(..1)?)).or(Some(Mode::Exclusive)),
        held_for: number(2).map(|since| Duration::from_millis(now.saturating_sub(since))),
        expires_in: left.map(Duration::from_millis),
        reason: fields.get(5).and_then(|reason| reason_of(reason).0),
        evicted,
    }
}

/// The last field of an entry: the reason, and whether an operator took the claim away.
fn reason_of(field: &str) -> (Option<Reason>, bool) {
    let (reason, evicted) = match field.split_once("\n!") {
        Some((reason, _)) => (reason, true),
        None => (field, false),
    };
    (Some(reason).filter(|reason| !reason.is_empty()).and_then(|reason| Reason::new(reason).ok()), evicted)
}

fn strings(list: &Value) -> Vec<&str> {
    match list {
        Value::Array(items) => items.iter().map(|item| text(item).unwrap_or_default()).collect(),
        _ => Vec::new(),
    }
}

/// A mode as the scripts write it: a letter, and for permits how many of how many.
fn mode_of(text: &str) -> Option<Mode> {
    let mut parts = text.split(':');
    match parts.next()? {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        "o" => Some(Mode::Once),
        "p" => Some(Mode::Permits { n: parts.next()?.parse().ok()?, of: parts.next()?.parse().ok()? }),
        _ => None,
    }
}

/// What a key holds, as far as it can be read; `None` if there is no such key. Clients that are not tenure may write
/// anything, or nothing.
pub(crate) fn lossy(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes)),
        Value::SimpleString(text) => Some(text.into()),
        _ => None,
    }
}

pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

pub(crate) fn signed(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

pub(crate) fn unsigned(value: &Value) -> Option<u64> {
    signed(value).and_then(|number| u64::try_from(number).ok())
}

/// A whole number that is the score of a sorted set.
pub(crate) fn score(value: &Value) -> Option<u64> {
    match value {
        // Below 2^53, so exact.
        Value::Double(number) if *number >= 0.0 => Some(*number as u64),
        _ => unsigned(value).or_else(|| text(value)?.parse().ok()),
    }
}

pub(crate) fn garbled(what: &str) -> StoreError {
    StoreError::unknown(format!("the answer makes no sense ({what}): is this Redis or Valkey?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_values_are_not_shown() {
        let (label, fingerprint, evicted) = who("5f2c1e7d-secret");
        assert!(!label.as_str().contains("secret") && !fingerprint.contains("secret") && !evicted);
        let id = ClaimId::from_bytes([9; 16]);
        let (label, fingerprint, evicted) = who(&format!("{EVICTED}!host#1/2/app#{}", id.to_hex()));
        assert_eq!((label.as_str(), evicted), ("!host#1/2/app", true));
        assert_eq!(fingerprint, id.fingerprint());
    }
}
