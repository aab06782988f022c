//! The checker: given every grant that holders saw, did two of them ever hold what only one may?
//!
//! Owns the two rules that a history must keep. M1: validity windows of conflicting grants never overlap. M2: tokens of
//! a name are unique, and of two conflicting grants the later one has the higher token. Sorts, then makes one sweep.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use tenure_core::{BootInstant, FencingToken, Lease, LockName, Mode};

/// One grant, as its holder saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Of which lock.
    pub name: LockName,
    /// How it was held.
    pub mode: Mode,
    /// Its number.
    pub token: FencingToken,
    /// When its holder was told.
    pub granted_at: BootInstant,
    /// When its holder last was entitled to think that it holds: given back, or not valid any more.
    pub ended_at: BootInstant,
}

/// Grants as they happen, from many tasks.
#[derive(Debug, Default)]
pub struct History(Mutex<Vec<Held>>);

impl History {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a grant that its holder was told of at `granted_at` and is about to give back: to be called before the
    /// release is sent.
    pub fn note(&self, lease: &Lease, granted_at: BootInstant, now: BootInstant) {
        let held = Held {
            name: lease.name().clone(),
            mode: lease.mode(),
            token: lease.token(),
            granted_at,
            ended_at: lease.valid_until().min(now),
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(held);
    }

    /// Checks what was noted.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn check(&self) -> Result<usize, Violation> {
        check(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// What a history showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// M1: held at the same time. The second was granted while the first was valid.
    Overlap(Box<Held>, Box<Held>),
    /// M1: more permits at the same time than there are.
    TooMany(Box<Held>, u64),
    /// M2: two grants of one lock with the same token.
    SameToken(Box<Held>),
    /// M2: a grant with a lower token than one it conflicts with and came after.
    TokenFell(Box<Held>, FencingToken),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap(first, second) => write!(f, "held at the same time: {first:?} and {second:?}"),
            Self::TooMany(held, taken) => write!(f, "{taken} permits taken at the same time, with {held:?}"),
            Self::SameToken(held) => write!(f, "a token given out twice, the second time to {held:?}"),
            Self::TokenFell(held, seen) => write!(f, "a token lower than {seen} before it: {held:?}"),
        }
    }
}

/// Checks a history in any order; answers how many grants it has.
///
/// # Errors
/// The first [`Violation`], by the time of the later grant.
pub fn check(mut history: Vec<Held>) -> Result<usize, Violation> {
    history.sort_by_key(|held| held.granted_at);
    let mut locks = BTreeMap::<LockName, Sweep>::new();
    let count = history.len();
    for held in history {
        locks.entry(held.name.clone()).or_default().step(held)?;
    }
    Ok(count)
}

/// What is known of one lock, up to some moment.
#[derive(Default)]
struct Sweep {
    tokens: BTreeSet<FencingToken>,
    /// The highest token so far, and the highest of those that were held alone.
    highest: Option<FencingToken>,
    highest_alone: Option<FencingToken>,
    /// Who may still hold it.
    valid: Vec<Held>,
}

impl Sweep {
    fn step(&mut self, held: Held) -> Result<(), Violation> {
        self.valid.retain(|other| other.ended_at > held.granted_at);
        // A grant that was worth nothing when its holder was told conflicts with nobody.
        if held.ended_at > held.granted_at {
            if let Some(other) = self.valid.iter().find(|other| !can_be_held_together(other.mode, held.mode))
            {
                return Err(Violation::Overlap(Box::new(other.clone()), Box::new(held)));
            }
            if let Mode::Permits { of, .. } = held.mode {
                let taken = self.valid.iter().chain([&held]).map(|held| permits(held.mode)).sum();
                if taken > u64::from(of) {
                    return Err(Violation::TooMany(Box::new(held), taken));
                }
            }
        }
        if !self.tokens.insert(held.token) {
            return Err(Violation::SameToken(Box::new(held)));
        }
        let is_alone = matches!(held.mode, Mode::Exclusive | Mode::Once);
        // Of two that may hold together, nobody can say from outside which was granted first.
        let floor = if is_alone { self.highest } else { self.highest_alone };
        if let Some(floor) = floor.filter(|floor| held.token < *floor) {
            return Err(Violation::TokenFell(Box::new(held), floor));
        }
        self.highest = self.highest.max(Some(held.token));
        if is_alone {
            self.highest_alone = self.highest_alone.max(Some(held.token));
        }
        if held.ended_at > held.granted_at {
            self.valid.push(held);
        }
        Ok(())
    }
}

fn can_be_held_together(one: Mode, other: Mode) -> bool {
    matches!((one, other), (Mode::Shared, Mode::Shared) | (Mode::Permits { .. }, Mode::Permits { .. }))
}

fn permits(mode: Mode) -> u64 {
    match mode {
        Mode::Permits { n, .. } => u64::from(n),
        Mode::Exclusive | Mode::Shared | Mode::Once => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(mode: Mode, token: u64, granted_at: u64, ended_at: u64) -> Held {
        Held {
            name: LockName::new("x").unwrap(),
            mode,
            token: FencingToken::new(token),
            granted_at: BootInstant::from_nanos(granted_at),
            ended_at: BootInstant::from_nanos(ended_at),
        }
    }

    #[test]
    fn one_after_the_other_is_fine_in_any_order_of_notes() {
        let history = vec![
            held(Mode::Exclusive, 9, 30, 40),
            held(Mode::Exclusive, 1, 0, 10),
            held(Mode::Exclusive, 2, 10, 20),
        ];
        assert_eq!(check(history), Ok(3));
    }

    #[test]
    fn an_overlap_is_found_even_behind_a_short_grant() {
        let history = vec![
            held(Mode::Shared, 1, 0, 100),
            held(Mode::Shared, 2, 10, 20),
            held(Mode::Exclusive, 3, 50, 60),
        ];
        assert!(matches!(check(history), Err(Violation::Overlap(first, _)) if first.token.get() == 1));
    }

    #[test]
    fn other_names_and_worthless_grants_overlap_with_nobody() {
        let mut other = held(Mode::Exclusive, 1, 0, 100);
        other.name = LockName::new("y").unwrap();
        let history = vec![held(Mode::Exclusive, 1, 0, 100), other, held(Mode::Exclusive, 2, 50, 40)];
        assert_eq!(check(history), Ok(3));
    }

    #[test]
    fn permits_are_added_up() {
        let two = Mode::Permits { n: 2, of: 4 };
        let fits = vec![held(two, 1, 0, 10), held(two, 2, 5, 20), held(two, 3, 10, 20)];
        assert_eq!(check(fits), Ok(3));
        let too_many = vec![held(two, 1, 0, 11), held(two, 2, 5, 20), held(two, 3, 10, 20)];
        assert!(matches!(check(too_many), Err(Violation::TooMany(_, 6))));
    }

    #[test]
    fn tokens_are_unique_and_rise_where_order_can_be_told() {
        let twice = vec![held(Mode::Shared, 5, 0, 10), held(Mode::Shared, 5, 20, 30)];
        assert!(matches!(check(twice), Err(Violation::SameToken(_))));
        let fell = vec![held(Mode::Exclusive, 5, 0, 10), held(Mode::Exclusive, 4, 20, 30)];
        assert!(matches!(check(fell), Err(Violation::TokenFell(_, seen)) if seen.get() == 5));
        let reader_fell = vec![held(Mode::Exclusive, 5, 0, 10), held(Mode::Shared, 4, 20, 30)];
        assert!(matches!(check(reader_fell), Err(Violation::TokenFell(..))));
        let readers = vec![held(Mode::Shared, 5, 0, 10), held(Mode::Shared, 4, 20, 30)];
        assert_eq!(check(readers), Ok(2));
    }
}
