//! Newcomers to a line in which others of this process stand already: they are in no hurry.
//!
//! A request of its own for each of them would be in the way of the hand-overs that they wait for. So they travel
//! together, with the release of the last of this process that stands in that line: it is sent anyhow. If it is not for
//! a while, they go without. See `docs/decisions/0012-newcomers-travel-together.md`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::clock::sleep_until;
use tenure_core::{Answer, BootInstant, ClaimId};
use tokio::sync::oneshot;

use crate::backend::Inner;
use crate::batch::{self, Answered, Request, TOGETHER_MAX, Waiting};
use crate::keys::Keys;
use crate::pushes::HeldBack;
use crate::reply;

/// Behind so many others of this process a newcomer is in no hurry, wherever the lock goes.
const MANY: u64 = 8;
/// How long a newcomer waits for others or for a release, or for its answer, at the most.
const WAITS: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
pub(crate) struct Newcomers {
    /// Claims of this process that stand in a line, and those that wait to: where there is none, nothing need be locked.
    all_standing: AtomicU64,
    all_waiting: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The same, by lock.
    standing: HashMap<Keys, u64>,
    waiting: Vec<Waiting>,
    /// When the first of them has waited for too long.
    announced_at: Option<BootInstant>,
    /// Those whose answer is held back, and until when.
    answered: Vec<ClaimId>,
    given_at: Option<BootInstant>,
    /// Somebody comes back to look whether they wait for too long.
    is_looked_after: bool,
}

/// A newcomer's answer, and whether somebody has to look after the newcomers from now on.
struct Welcomed {
    answer: oneshot::Receiver<Answer<Answered>>,
    needs_care: bool,
}

/// Those that have waited for too long: to be announced, to be answered.
struct Overdue {
    waiting: Vec<Waiting>,
    answered: Vec<ClaimId>,
}

/// What there is to do for those that look after the newcomers.
enum Due {
    Now(Overdue),
    At(BootInstant),
    /// Nobody is looked after any more.
    Never,
}

/// A claim of this process that stands in line, until this is dropped.
#[derive(Debug)]
pub(crate) struct Standing {
    newcomers: Arc<Newcomers>,
    keys: Keys,
}

impl Standing {
    pub(crate) fn new(newcomers: &Arc<Newcomers>, keys: Keys) -> Self {
        newcomers.all_standing.fetch_add(1, Ordering::Relaxed);
        let mut state = newcomers.state();
        match state.standing.get_mut(&keys) {
            Some(count) => *count += 1,
            None => {
                state.standing.insert(keys.clone(), 1);
            }
        }
        drop(state);
        Self { newcomers: newcomers.clone(), keys }
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.newcomers.all_standing.fetch_sub(1, Ordering::Relaxed);
        let mut state = self.newcomers.state();
        if let Some(count) = state.standing.get_mut(&self.keys) {
            *count -= 1;
            if *count == 0 {
                state.standing.remove(&self.keys);
            }
        }
    }
}

impl Newcomers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many claims of this process stand in any line.
    pub(crate) fn all_standing(&self) -> u64 {
        self.all_standing.load(Ordering::Relaxed)
    }

    /// How many claims of this process stand in the line of a lock.
    pub(crate) fn standing(&self, keys: &Keys) -> usize {
        if self.all_standing() == 0 {
            return 0;
        }
        let standing = self.state().standing.get(keys).copied().unwrap_or(0);
        usize::try_from(standing).unwrap_or(usize::MAX)
    }

    /// Whether nobody of this process stands in any line, or waits to.
    pub(crate) fn is_idle(&self) -> bool {
        self.all_standing() == 0 && self.all_waiting() == 0
    }

    fn all_waiting(&self) -> usize {
        self.all_waiting.load(Ordering::Relaxed)
    }

    /// Takes the request for a place in line, if it is in no hurry. It is not if it comes behind others of this process
    /// and the lock goes from hand to hand here, if they are many, or if others wait here for the same lock: nobody
    /// passes those that came before.
    fn welcome(
        &self,
        request: &mut Option<Request>,
        goes_around_here: bool,
        now: BootInstant,
    ) -> Option<Welcomed> {
        let mut state = self.state();
        let keys = &request.as_ref()?.keys;
        let behind = state.standing.get(keys).copied().unwrap_or(0);
        let is_patient = behind >= MANY
            || behind > 0 && goes_around_here
            || state.waiting.iter().any(|(other, _)| other.keys == *keys);
        if !is_patient {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        state.waiting.push((request.take()?, sender));
        self.all_waiting.store(state.waiting.len(), Ordering::Relaxed);
        state.announced_at.get_or_insert(now + WAITS);
        let needs_care = !state.is_looked_after;
        state.is_looked_after = true;
        Some(Welcomed { answer, needs_care })
    }

    /// Those that go along with a release of this lock: all, if nobody else of this process stands in line.
    pub(crate) fn company(&self, keys: &Keys) -> Vec<Waiting> {
        if self.all_waiting() == 0 {
            return Vec::new();
        }
        let mut state = self.state();
        if state.waiting.is_empty() || state.standing.contains_key(keys) {
            return Vec::new();
        }
        let (mut company, mut others) = (Vec::new(), Vec::new());
        for waiting in state.waiting.drain(..) {
            let (request, sender) = &waiting;
            let is_like = |(first, _): &Waiting| first.terms == request.terms;
            if request.keys != *keys || company.len() >= TOGETHER_MAX || !company.first().is_none_or(is_like)
            {
                others.push(waiting);
            } else if !sender.is_closed() {
                company.push(waiting);
            }
        }
        self.all_waiting.store(others.len(), Ordering::Relaxed);
        state.waiting = others;
        if state.waiting.is_empty() {
            state.announced_at = None;
        }
        company
    }

    /// Whether a newcomer's answer may be held back: somebody looks after it.
    fn holds_back(&self, id: ClaimId, now: BootInstant) -> bool {
        let mut state = self.state();
        if state.is_looked_after {
            state.answered.push(id);
            state.given_at.get_or_insert(now + WAITS);
        }
        state.is_looked_after
    }

    /// Those that have waited long enough, or when to look again.
    fn due(&self, now: BootInstant) -> Due {
        let mut state = self.state();
        let State { waiting, announced_at, answered, given_at, is_looked_after, .. } = &mut *state;
        match [*announced_at, *given_at].into_iter().flatten().min() {
            Some(due) if now < due => return Due::At(due),
            Some(_) => {}
            None => {
                *is_looked_after = false;
                return Due::Never;
            }
        }
        let announces = announced_at.take_if(|at| *at <= now).is_some();
        let gives = given_at.take_if(|at| *at <= now).is_some();
        if announces {
            self.all_waiting.store(0, Ordering::Relaxed);
        }
        Due::Now(Overdue {
            waiting: if announces { std::mem::take(waiting) } else { Vec::new() },
            answered: if gives { std::mem::take(answered) } else { Vec::new() },
        })
    }

    /// Whoever looked after them does so no more: nobody must be left waiting.
    fn abandoned(&self) -> Overdue {
        let mut state = self.state();
        self.all_waiting.store(0, Ordering::Relaxed);
        (state.announced_at, state.given_at, state.is_looked_after) = (None, None, false);
        Overdue { waiting: std::mem::take(&mut state.waiting), answered: std::mem::take(&mut state.answered) }
    }
}

impl Inner {
    /// Sends an attempt to join a line for the first time: at once, or when it is not in the way of others.
    pub(crate) async fn announce(self: &Arc<Self>, request: Request) -> Answer<Answered> {
        let goes_around_here = self.hands_to_own.load(Ordering::Relaxed);
        let mut request = Some(request);
        let welcomed = self.newcomers.welcome(&mut request, goes_around_here, self.clock.now());
        match (welcomed, request) {
            (Some(Welcomed { answer, needs_care }), _) => {
                if needs_care {
                    // Made here: a runtime that is ending drops the task before it begins.
                    tokio::spawn(Care { inner: self.clone(), is_over: false }.look_after());
                }
                answer.await.unwrap_or_else(|_| batch::dropped())
            }
            (None, Some(request)) => self.ask(request).await,
            (None, None) => batch::dropped(),
        }
    }

    /// Gives newcomers that came with a release their answers: those that wait now are in no hurry to hear that.
    pub(crate) fn answer_newcomers(
        &self,
        newcomers: Vec<Request>,
        senders: Vec<oneshot::Sender<Answer<Answered>>>,
        answers: Vec<Answer<Answered>>,
    ) {
        for ((Request { keys, value, .. }, to), answer) in newcomers.into_iter().zip(senders).zip(answers) {
            let id = value.get(value.len().saturating_sub(32)..).and_then(ClaimId::from_hex);
            let is_busy = answer.as_ref().is_ok_and(|answered| reply::is_busy(&answered.item));
            match id {
                Some(id) if is_busy && self.newcomers.holds_back(id, self.clock.now()) => {
                    let standing = Standing::new(&self.newcomers, keys);
                    let held_back = Box::new(HeldBack { to, answer, _standing: standing });
                    HeldBack::give(self.pushes.hold_back(id, held_back));
                }
                _ => {
                    let _ = to.send(answer);
                }
            }
        }
    }
}

/// Looks after the newcomers. If it is dropped before that is over, the runtime has ended.
struct Care {
    inner: Arc<Inner>,
    is_over: bool,
}

impl Care {
    async fn look_after(mut self) {
        loop {
            let inner = &self.inner;
            match inner.newcomers.due(inner.clock.now()) {
                Due::Now(Overdue { waiting, answered }) => {
                    inner.attempts.send_all(inner, |inner| &inner.attempts, waiting);
                    answered.into_iter().for_each(|id| inner.pushes.give(id));
                }
                Due::At(due) => sleep_until(inner.clock.clone(), due).await,
                Due::Never => {
                    self.is_over = true;
                    return;
                }
            }
        }
    }
}

impl Drop for Care {
    fn drop(&mut self) {
        if !self.is_over {
            // Those that wait to be announced are told, too: their senders are dropped.
            let Overdue { answered, .. } = self.inner.newcomers.abandoned();
            answered.into_iter().for_each(|id| self.inner.pushes.give(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::{Line, LockName, Mode};

    use super::*;
    use crate::batch::Terms;
    use crate::keys::Layout;

    const NOW: BootInstant = BootInstant::from_nanos(1_000_000_000);

    fn keys(name: &str) -> Keys {
        Layout::new("tenure", false).keys(&LockName::new(name).unwrap())
    }

    fn request(name: &str, value: &str, ttl: u64) -> Option<Request> {
        let terms = Terms::Attempt { mode: Mode::Exclusive, line: Line::Join, ttl, reason: None };
        Some(Request { keys: keys(name), value: value.into(), terms })
    }

    fn values(waiting: &[Waiting]) -> Vec<&str> {
        waiting.iter().map(|(request, _)| request.value.as_str()).collect()
    }

    #[test]
    fn whoever_comes_first_or_to_a_lock_that_is_elsewhere_is_in_a_hurry() {
        let newcomers = Arc::new(Newcomers::default());
        assert!(newcomers.welcome(&mut request("a", "1", 1), true, NOW).is_none());
        let _other = Standing::new(&newcomers, keys("b"));
        assert!(newcomers.welcome(&mut request("a", "1", 1), true, NOW).is_none());
        let _standing: Vec<_> = (1..MANY).map(|_| Standing::new(&newcomers, keys("a"))).collect();
        let mut last = request("a", "1", 1);
        assert!(newcomers.welcome(&mut last, false, NOW).is_none());
        assert!(last.is_some(), "it is handed back");
        let _one_more = Standing::new(&newcomers, keys("a"));
        assert!(newcomers.welcome(&mut last, false, NOW).is_some());
        assert_eq!(newcomers.all_standing(), MANY + 1);
    }

    #[test]
    fn they_go_with_the_last_that_stands_in_their_line() {
        let newcomers = Arc::new(Newcomers::default());
        let standing = Standing::new(&newcomers, keys("a"));
        let mut answers = Vec::new();
        for value in ["1", "2", "3"] {
            answers.push(newcomers.welcome(&mut request("a", value, 1), true, NOW).unwrap());
        }
        assert_eq!(
            answers.iter().map(|welcomed| welcomed.needs_care).collect::<Vec<_>>(),
            [true, false, false]
        );
        answers.remove(1);
        assert!(newcomers.company(&keys("a")).is_empty(), "somebody still stands there");
        drop(standing);
        // Nobody of ours stands in line, but nobody passes those that came before either. This one wants something else.
        assert!(newcomers.welcome(&mut request("a", "4", 2), false, NOW).is_some());
        assert!(newcomers.company(&keys("b")).is_empty());
        assert_eq!(values(&newcomers.company(&keys("a"))), ["1", "3"], "the second has given up");
        assert!(newcomers.company(&keys("a")).is_empty(), "nobody awaits the fourth");
        assert_eq!(newcomers.all_standing(), 0);
    }

    #[test]
    fn nobody_waits_for_long() {
        let newcomers = Arc::new(Newcomers::default());
        assert!(!newcomers.holds_back(ClaimId::from_bytes([1; 16]), NOW), "nobody looks after it");
        let _standing = Standing::new(&newcomers, keys("a"));
        let _answer = newcomers.welcome(&mut request("a", "1", 1), true, NOW).unwrap();
        assert!(newcomers.holds_back(ClaimId::from_bytes([1; 16]), NOW));
        // With the one before: nobody is woken for each of them.
        assert!(newcomers.holds_back(ClaimId::from_bytes([2; 16]), NOW + WAITS / 2));
        let Due::At(due) = newcomers.due(NOW) else { panic!("it is not due yet") };
        assert_eq!(due, NOW + WAITS);
        let Due::Now(Overdue { waiting, answered }) = newcomers.due(due) else { panic!("it is due") };
        assert_eq!((values(&waiting), answered.len()), (vec!["1"], 2));
        assert!(matches!(newcomers.due(due), Due::Never));
        assert!(newcomers.welcome(&mut request("a", "2", 1), true, due).unwrap().needs_care);
    }

    /// The runtime that looked after them ended.
    #[test]
    fn those_that_are_abandoned_are_let_go() {
        let newcomers = Arc::new(Newcomers::default());
        let _standing = Standing::new(&newcomers, keys("a"));
        assert!(newcomers.welcome(&mut request("a", "1", 1), true, NOW).unwrap().needs_care);
        assert_eq!(values(&newcomers.abandoned().waiting), ["1"]);
        assert!(newcomers.welcome(&mut request("a", "2", 1), true, NOW).unwrap().needs_care);
    }
}
