//! The one subscription of this process: who here waits for news of which claim.
//!
//! Grants made to waiters, evictions and calls to look again all arrive on one channel. A claim is registered before
//! its first request is sent and forgotten when it ends; in between, news for it may find nobody listening for a
//! moment, and then it is simply dropped: the claim's next attempt or its release finds out. News of a grant for a
//! claim that is not registered at all is handed back as an orphan, to be released at once.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::{Answer, BootInstant, ByClaim, ClaimId, FencingToken, Label, Reason};
use tokio::sync::oneshot;

use crate::batch::Answered;
use crate::newcomers::Standing;
use crate::succession::{Heard, Inheritance};

/// A claim that nobody listened for so long, and that nobody ended, is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// What may be told of a claim.
#[derive(Debug)]
pub(crate) enum News {
    /// It was granted.
    Granted(PushedGrant),
    /// Another claim of this process has handed it the lock.
    Inherited(Inheritance),
    /// It is worth attempting again.
    Look,
    /// It was evicted.
    Evicted(Option<Reason>),
    /// It holds no more, the store says.
    Lost,
}

/// A grant as it was pushed: not yet dated.
#[derive(Debug)]
pub(crate) struct PushedGrant {
    pub(crate) token: FencingToken,
    pub(crate) ttl: Duration,
    pub(crate) granted_micros: u64,
    pub(crate) run_id: String,
    pub(crate) read_at: BootInstant,
}

impl PushedGrant {
    /// Reads what comes after the claim.
    fn read<'a>(fields: &mut impl Iterator<Item = &'a str>, read_at: BootInstant) -> Option<Self> {
        let mut number = || fields.next()?.parse::<u64>().ok();
        let (token, ttl, granted_micros) = (number()?, number()?, number()?);
        Some(Self {
            token: FencingToken::new(token),
            ttl: Duration::from_millis(ttl),
            granted_micros,
            run_id: fields.next()?.to_owned(),
            read_at,
        })
    }
}

/// Whose grant a message tells of, if it does.
pub(crate) fn grant_in(message: &[u8], read_at: BootInstant) -> Option<(ClaimId, PushedGrant)> {
    let mut fields = std::str::from_utf8(message).ok()?.split('\n');
    let (kind, id) = (fields.next()?, ClaimId::from_hex(fields.next()?)?);
    if kind == "G" { Some((id, PushedGrant::read(&mut fields, read_at)?)) } else { None }
}

/// A grant to a claim that nobody here knows: its value, and the main key of its lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Orphan {
    pub(crate) id: ClaimId,
    pub(crate) value: String,
    pub(crate) main: String,
    /// It was not read in the order in which answers are: its claim may simply have been released before.
    pub(crate) may_be_late: bool,
}

#[derive(Debug)]
pub(crate) struct Pushes {
    by_claim: Mutex<Registry>,
}

#[derive(Debug)]
struct Registry {
    listeners: ByClaim<Listener>,
    sweep_at: usize,
}

#[derive(Debug)]
struct Listener {
    /// Gone once it was told something, until the claim listens again.
    sender: Option<oneshot::Sender<News>>,
    since: BootInstant,
    /// The number of its grant, if it holds.
    token: Option<FencingToken>,
    /// If another claim of this process may hand it the lock: who it is.
    may_inherit: Option<Waiting>,
    /// Somebody has begun to end it.
    is_ending: bool,
    /// In a box: hardly anybody has one.
    held_back: Option<Box<HeldBack>>,
}

/// Who waits, as far as those that may hand it the lock must know.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) label: Label,
    /// As long as that it wants to hold, should nobody hear of it any more, and no longer.
    pub(crate) ttl: Duration,
}

/// The answer to an attempt, which need not be given before there is news: whoever awaits both wakes up once.
#[derive(Debug)]
pub(crate) struct HeldBack {
    pub(crate) to: oneshot::Sender<Answer<Answered>>,
    pub(crate) answer: Answer<Answered>,
    /// It stands in line already.
    pub(crate) _standing: Standing,
}

impl HeldBack {
    /// Gives the answer, if there is one.
    pub(crate) fn give(held_back: Option<Box<Self>>) {
        if let Some(held_back) = held_back {
            // Whoever does not listen any more has let go of its claim, and sees to it.
            let _ = held_back.to.send(held_back.answer);
        }
    }
}

impl Listener {
    fn is_listening(&self) -> bool {
        self.sender.as_ref().is_some_and(|sender| !sender.is_closed())
    }
}

impl Pushes {
    pub(crate) fn new() -> Self {
        Self { by_claim: Mutex::new(Registry { listeners: ByClaim::default(), sweep_at: 1024 }) }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Registry) -> T) -> T {
        f(&mut self.by_claim.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Listens for news of a claim, which may be that another here hands it the lock; answers also whether it was
    /// registered before.
    pub(crate) fn listen(
        &self,
        id: ClaimId,
        may_inherit: Option<Waiting>,
        now: BootInstant,
    ) -> (oneshot::Receiver<News>, bool) {
        let (sender, receiver) = oneshot::channel();
        let listener = Listener {
            sender: Some(sender),
            since: now,
            token: None,
            may_inherit,
            is_ending: false,
            held_back: None,
        };
        let before = self.with(|registry| {
            if registry.listeners.len() >= registry.sweep_at {
                registry
                    .listeners
                    .retain(|_, l| l.is_listening() || now.saturating_since(l.since) < FORGET_AFTER);
                registry.sweep_at = 1024 + 2 * registry.listeners.len();
            }
            registry.listeners.insert(id, listener)
        });
        let was_known = before.is_some();
        // Dropped outside the lock: a dropped sender wakes whoever listened to it.
        drop(before);
        (receiver, was_known)
    }

    /// The claim has ended.
    pub(crate) fn forget(&self, id: ClaimId) {
        let forgotten = self.with(|registry| registry.listeners.remove(&id));
        drop(forgotten);
    }

    /// The claim holds: it listens for its eviction only.
    pub(crate) fn hold(&self, id: ClaimId, token: FencingToken) {
        self.with(|registry| {
            if let Some(listener) = registry.listeners.get_mut(&id) {
                (listener.token, listener.may_inherit) = (Some(token), None);
            }
        });
    }

    /// The number of a claim's grant, if it holds and we know.
    pub(crate) fn token(&self, id: ClaimId) -> Option<FencingToken> {
        self.with(|registry| registry.listeners.get(&id)?.token)
    }

    /// Tells everybody that waits to look: the connection broke, and news may have been lost.
    pub(crate) fn tell_all_to_look(&self) {
        let waiting: Vec<_> = self.with(|registry| {
            let listeners = registry.listeners.values_mut();
            let waiting = listeners.filter(|listener| listener.token.is_none());
            waiting.map(|listener| (listener.sender.take(), listener.held_back.take())).collect()
        });
        for (sender, held_back) in waiting {
            // Whoever does not listen looks by itself.
            sender.map(|sender| sender.send(News::Look));
            HeldBack::give(held_back);
        }
    }

    /// Takes in one message. Answers with what nobody here awaits.
    pub(crate) fn receive(&self, message: &[u8], read_at: BootInstant) -> Option<Orphan> {
        let message = std::str::from_utf8(message).ok()?;
        let mut fields = message.split('\n');
        let kind = fields.next()?;
        let hex = fields.next()?;
        let id = ClaimId::from_hex(hex)?;
        match kind {
            "G" => {
                let grant = PushedGrant::read(&mut fields, read_at)?;
                let is_known = self.tell(id, News::Granted(grant));
                let (label, main) = (fields.next()?, fields.next()?);
                (!is_known).then(|| Orphan {
                    id,
                    value: format!("{label}#{hex}"),
                    main: main.to_owned(),
                    may_be_late: false,
                })
            }
            "L" => {
                self.tell(id, News::Look);
                None
            }
            "E" => {
                let reason = fields.next().and_then(|reason| Reason::new(reason).ok());
                self.tell(id, News::Evicted(reason));
                None
            }
            _ => None,
        }
    }

    /// Tells a claim that it is handed the lock. Not one that wants it for a shorter time than is left: should it die, the lock
    /// would be kept from others for longer than it said.
    pub(crate) fn inherit(&self, id: ClaimId, inheritance: Inheritance) -> Heard {
        let (label, sender, held_back) = {
            let taken = self.with(|registry| {
                let listener = registry.listeners.get_mut(&id)?;
                let waiting = listener.may_inherit.as_ref().filter(|waiting| waiting.ttl >= inheritance.ttl);
                let label = waiting.filter(|_| listener.is_listening()).map(|waiting| waiting.label.clone());
                Some(
                    label.and_then(|label| Some((label, listener.sender.take()?, listener.held_back.take()))),
                )
            });
            match taken {
                None => return Heard::Gone,
                Some(None) => return Heard::No,
                Some(Some(taken)) => taken,
            }
        };
        let is_told = sender.send(News::Inherited(inheritance)).is_ok();
        let heard = if is_told { Heard::Yes(label) } else { Heard::No };
        HeldBack::give(held_back);
        heard
    }

    /// The claim is about to be ended.
    pub(crate) fn end(&self, id: ClaimId) {
        self.with(|registry| {
            if let Some(listener) = registry.listeners.get_mut(&id) {
                (listener.may_inherit, listener.is_ending) = (None, true);
            }
        });
    }

    /// Whether a claim is known here and is not about to be ended.
    pub(crate) fn awaits(&self, id: ClaimId) -> bool {
        self.with(|registry| registry.listeners.get(&id).is_some_and(|listener| !listener.is_ending))
    }

    /// Whether a claim waits here and may be handed the lock.
    pub(crate) fn may_inherit(&self, id: ClaimId) -> bool {
        self.with(|registry| {
            registry.listeners.get(&id).is_some_and(|listener| listener.may_inherit.is_some())
        })
    }

    /// Tells a claim to look, if it does not know that it holds.
    pub(crate) fn remind(&self, id: ClaimId) {
        let waiting = self.with(|registry| {
            let listener = registry.listeners.get_mut(&id)?;
            if listener.token.is_none() { listener.sender.take() } else { None }
        });
        waiting.map(|sender| sender.send(News::Look));
    }

    /// Tells whoever listens; answers whether the claim is registered.
    pub(crate) fn tell(&self, id: ClaimId, news: News) -> bool {
        let listener = self
            .with(|registry| registry.listeners.get_mut(&id).map(|l| (l.sender.take(), l.held_back.take())));
        let is_known = listener.is_some();
        let (sender, held_back) = listener.unwrap_or_default();
        sender.map(|sender| sender.send(news));
        HeldBack::give(held_back);
        is_known
    }

    /// Keeps the answer to a claim's attempt until there is news of it, or until it [is given](Self::give). Hands it back
    /// if there is news already, or nobody listens.
    pub(crate) fn hold_back(&self, id: ClaimId, held_back: Box<HeldBack>) -> Option<Box<HeldBack>> {
        self.with(|registry| match registry.listeners.get_mut(&id) {
            Some(listener) if listener.is_listening() => listener.held_back.replace(held_back),
            _ => Some(held_back),
        })
    }

    /// Gives a claim the answer that was held back, if it still is.
    pub(crate) fn give(&self, id: ClaimId) {
        let held_back =
            self.with(|registry| registry.listeners.get_mut(&id).and_then(|l| l.held_back.take()));
        HeldBack::give(held_back);
    }

    /// How many claims are registered.
    pub(crate) fn len(&self) -> usize {
        self.with(|registry| registry.listeners.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: BootInstant = BootInstant::from_nanos(1);

    fn grant_of(id: ClaimId) -> Vec<u8> {
        format!("G\n{}\n17\n5000\n1790000000000000\nrun\nhost/1/app\ntenure:{{a}}", id.to_hex()).into_bytes()
    }

    #[tokio::test]
    async fn a_grant_finds_its_claim() {
        let (pushes, id) = (Pushes::new(), ClaimId::from_bytes([7; 16]));
        let (news, was_known) = pushes.listen(id, None, NOW);
        assert!(!was_known);
        assert_eq!(pushes.receive(&grant_of(id), NOW), None);
        let News::Granted(grant) = news.await.unwrap() else { panic!() };
        assert_eq!(grant.token.get(), 17);
        assert_eq!(grant.ttl, Duration::from_secs(5));
        assert_eq!(grant.run_id, "run");
        assert!(pushes.listen(id, None, NOW).1);
        pushes.forget(id);
        assert_eq!(pushes.len(), 0);
    }

    #[test]
    fn a_grant_to_nobody_is_an_orphan_but_one_to_a_claim_that_blinks_is_not() {
        let (pushes, id) = (Pushes::new(), ClaimId::from_bytes([7; 16]));
        let orphan = pushes.receive(&grant_of(id), NOW).unwrap();
        assert_eq!(orphan.main, "tenure:{a}");
        assert_eq!(orphan.value, format!("host/1/app#{}", id.to_hex()));
        drop(pushes.listen(id, None, NOW));
        assert_eq!(pushes.receive(&grant_of(id), NOW), None);
        assert_eq!(pushes.receive(&grant_of(id), NOW), None);
    }

    #[test]
    fn garbage_is_ignored() {
        let pushes = Pushes::new();
        for garbage in ["", "G", "G\nxyz", "G\n00000000000000000000000000000000\n-1", "\u{0}"] {
            assert_eq!(pushes.receive(garbage.as_bytes(), NOW), None);
        }
        assert_eq!(pushes.receive(&[0xff, b'\n'], NOW), None);
    }

    #[test]
    fn claims_that_nobody_listens_for_are_forgotten_in_the_end() {
        let pushes = Pushes::new();
        let id = |i: u32| {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&i.to_le_bytes());
            ClaimId::from_bytes(bytes)
        };
        for i in 0..10_000 {
            drop(pushes.listen(id(i), None, NOW + Duration::from_secs(i.into())));
        }
        assert!(pushes.len() < 3000, "{}", pushes.len());
    }
}
