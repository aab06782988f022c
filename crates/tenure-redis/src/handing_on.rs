//! Handing locks on within this process: tells the claims that hold, and the store of them. See `succession.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use redis::{Cmd, Value};
use tenure_core::{
    Answer, BootInstant, Claim, ClaimId, Label, Mode, Released, Renewal, StoreError, Tie, Trail,
};

use crate::attention::Watch;
use crate::backend::{Inner, header, value, value_of};
use crate::batch::{CarriedThrough, Request, Terms};
use crate::keys::Keys;
use crate::pushes::{self, News, PushedGrant};
use crate::renewals;
use crate::reply::{self, garbled, text, unsigned};
use crate::scripts::{Call, Script};
use crate::succession::{Begun, Came, Confirmed, End, HEIRS_MAX, Heir, Inheritance, Link, Report, numbered};
use crate::supervisor::{Live, Reply, is_without_script};

impl Inner {
    /// The store has given a lock to a claim of this process, as `push` tells, and named those that are next in line. Answers
    /// whether the claim may hand it on.
    pub(crate) fn came_here(
        &self,
        keys: &Keys,
        push: &[u8],
        next: impl ExactSizeIterator<Item = Value>,
        (sent, is_cut): (BootInstant, Arc<AtomicBool>),
    ) -> bool {
        if next.len() == 0 && self.succession.is_idle() {
            return false;
        }
        let Some((id, PushedGrant { token, ttl, .. })) = pushes::grant_in(push, sent) else { return false };
        let next = next.map_while(|id| ClaimId::from_hex(text(&id)?));
        let (awaits, ours) = (|id| self.pushes.awaits(id), |id| self.pushes.may_inherit(id));
        let came = Came { first: id, grant: Inheritance { token, since: sent, ttl }, next, is_cut };
        let begun = self.succession.begin(keys, came, awaits, ours, self.clock.now());
        if let Begun { lost: Some(lost), .. } = begun {
            self.pushes.tell(lost, News::Lost);
        }
        begun.has_heirs
    }

    /// Ends a claim: at the store, or here.
    pub(crate) async fn end(self: &Arc<Self>, claim: &Claim, trail: Trail) -> Answer<Released> {
        let keys = self.layout.keys(&claim.name);
        // Before anything else: nothing that is told of it from now on counts.
        self.pushes.end(claim.id);
        if self.succession.is_idle() {
            return self.release(keys, value_of(claim), trail).await;
        }
        // In a box: every release would be as large.
        Box::pin(self.end_or_hand_on(claim, keys, trail)).await
    }

    async fn end_or_hand_on(self: &Arc<Self>, claim: &Claim, keys: Keys, trail: Trail) -> Answer<Released> {
        // A claim that outlives its process may be somebody else's by now.
        let may_hand_on = trail == Trail::Clean && claim.tie == Tie::Process && claim.mode == Mode::Exclusive;
        let tell = |id, inheritance| self.pushes.inherit(id, inheritance);
        match self.succession.end(&keys, claim.id, may_hand_on, self.clock.now(), tell) {
            End::AsStored => self.release(keys, value_of(claim), trail).await,
            End::HandedOn(link) => {
                // The next may be through in a moment, too.
                tokio::task::yield_now().await;
                let released = self.tell(&keys, claim.id, &link).await?;
                if trail == Trail::Doubtful {
                    self.release(keys, value_of(claim), trail).await?;
                }
                Ok(released)
            }
            End::Last(link) => {
                let (inner, id, value) = (self.clone(), claim.id, value_of(claim));
                CarriedThrough::new(async move {
                    let (here, shared) = (inner, link.clone());
                    let end = || {
                        Box::pin(async move { here.end_last(&keys, id, value, trail, &shared).await }) as _
                    };
                    link.in_turn(|| None, end).await
                })
                .await
            }
        }
    }

    /// Ends a claim that was handed the lock: the store hears of that first, in the same write.
    async fn end_last(
        self: &Arc<Self>,
        keys: &Keys,
        id: ClaimId,
        value: String,
        trail: Trail,
        link: &Arc<Link>,
    ) -> Answer<Released> {
        if let Some(report) = self.succession.report(keys, id) {
            let call = HandOn::new(self, keys, report, 0);
            let terms = Terms::Release { trail };
            let request = Request { keys: keys.clone(), value: value.clone(), terms };
            let mut heard = Err(StoreError::unknown("no answer"));
            let was_doubtful = link.is_asked();
            let answered = self.releases.call_after(self, &call, request, |reply| {
                heard = call.open(reply).map(|confirmed| match confirmed {
                    Some(_) => self.succession.known(keys, id),
                    None => drop(self.succession.lost(keys, link)),
                });
            });
            let answered = answered.await;
            let is_without_script = heard.as_ref().is_err_and(is_without_script);
            if !was_doubtful && (heard.is_ok() || is_without_script) {
                link.is_answered();
            }
            // One after the other then: the release has come too early, and only took the claim out of the line.
            if !is_without_script {
                heard?;
                return reply::released(&answered?.item);
            }
        }
        self.tell_in_turn(keys, id, link).await?;
        self.succession.known(keys, id);
        self.release(keys.clone(), value, trail).await
    }

    /// Lets the store hear that a claim holds, if it has not. Answers an error if it could not.
    pub(crate) async fn make_known(self: &Arc<Self>, claim: &Claim) -> Answer<()> {
        let keys = self.layout.keys(&claim.name);
        match self.succession.unheard(&keys, claim.id) {
            Some(link) => self.tell(&keys, claim.id, &link).await.map(drop),
            None => Ok(()),
        }
    }

    /// Renews claims. Of some, the store must hear first that they hold; the others do not wait for that.
    pub(crate) async fn renew(self: &Arc<Self>, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
        if self.succession.is_idle() {
            return renewals::renew(self, claims).await;
        }
        let is_unheard =
            |claim: &Claim| self.succession.unheard(&self.layout.keys(&claim.name), claim.id).is_some();
        let (unheard, known): (Vec<usize>, Vec<usize>) =
            (0..claims.len()).partition(|i| is_unheard(&claims[*i]));
        let told_and_renewed = unheard.iter().map(|i| async move {
            self.make_known(&claims[*i]).await?;
            renewals::renew(self, &claims[*i..=*i]).await.remove(0)
        });
        let at_once: Vec<_> = known.iter().map(|i| claims[*i].clone()).collect();
        let (at_once, then) =
            join(renewals::renew(self, &at_once), Box::pin(join_all(told_and_renewed))).await;
        let mut answers: Vec<_> =
            known.into_iter().zip(at_once).chain(unheard.iter().copied().zip(then)).collect();
        answers.sort_unstable_by_key(|(i, _)| *i);
        for (i, answer) in &answers {
            if matches!(answer, Ok(Renewal::Lost(_))) {
                self.succession.stop(&self.layout.keys(&claims[*i].name), claims[*i].id);
            }
        }
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Lets the store hear of all that have held a lock, if it has not heard of the claim. One request at a time: whoever
    /// comes meanwhile is told of in the next.
    async fn tell(self: &Arc<Self>, keys: &Keys, id: ClaimId, link: &Arc<Link>) -> Answer<Released> {
        let settled = || self.succession.settled(keys, id, link);
        let request = || {
            let (inner, keys, link) = (self.clone(), keys.clone(), link.clone());
            Box::pin(async move { inner.tell_in_turn(&keys, id, &link).await }) as _
        };
        link.in_turn(settled, request).await
    }

    async fn tell_in_turn(self: &Arc<Self>, keys: &Keys, id: ClaimId, link: &Arc<Link>) -> Answer<Released> {
        let Some(report) = self.succession.report(keys, id) else { return link.verdict() };
        let last = report.last.id;
        let call = HandOn::new(self, keys, report, self.newcomers.standing(keys).min(HEIRS_MAX));
        let ours = |id| self.pushes.may_inherit(id);
        match call.open(self.place.run(&call, Watch::BESIDE_ONE).await)? {
            Some(confirmed) => {
                self.succession.heard(keys, last, confirmed, ours, self.clock.now());
                // Should it not have noticed: its next attempt finds that it holds.
                self.pushes.remind(last);
                Ok(Released::Held)
            }
            None => {
                if let Some(last) = self.succession.lost(keys, link) {
                    self.pushes.tell(last, News::Lost);
                }
                link.verdict()
            }
        }
    }
}

/// The call by which the store hears who has held a lock.
struct HandOn<'a> {
    inner: &'a Inner,
    keys: &'a Keys,
    held: Vec<ClaimId>,
    last: Heir,
    label: Label,
    /// How many of those that are next in line the store is to name.
    wants: usize,
    asked: AtomicU64,
}

impl<'a> HandOn<'a> {
    fn new(inner: &'a Inner, keys: &'a Keys, report: Report, wants: usize) -> Self {
        let Report { held, last, label } = report;
        Self { inner, keys, held, last, label, wants, asked: AtomicU64::new(0) }
    }

    /// Reads the answer. Nothing if none of them holds as far as the store knows.
    fn open(&self, reply: Result<Reply, StoreError>) -> Answer<Option<Confirmed>> {
        let mut reply = reply?;
        let asked = self.asked.load(Ordering::Relaxed);
        let item = reply.read(asked)?.next()?;
        if unsigned(&item) == Some(0) {
            return Ok(None);
        }
        let Value::Array(fields) = item else { return Err(garbled("nothing handed on")) };
        let [ttl, first, next @ ..] = fields.as_slice() else { return Err(garbled("no ttl")) };
        let (Some(ttl), Some(first)) = (unsigned(ttl), unsigned(first)) else {
            return Err(garbled("no ttl"));
        };
        let next = numbered(first, next.iter().map_while(|id| ClaimId::from_hex(text(id)?)));
        let is_cut = reply.live.is_retired.clone();
        Ok(Some(Confirmed { since: self.inner.clock.now(), ttl: Duration::from_millis(ttl), next, is_cut }))
    }
}

impl Call for HandOn<'_> {
    fn script(&self) -> &Script {
        &self.inner.place.scripts().hand_on
    }

    fn size(&self) -> (usize, usize) {
        (self.held.len() + 13, self.keys.size() + 40 * self.held.len() + 400)
    }

    fn fill(&self, live: &Live, command: &mut Cmd) {
        command.arg(1 + self.keys.count()).arg(self.inner.layout.fence());
        self.keys.write_to(command);
        self.asked.store(header(self.inner, live, command), Ordering::Relaxed);
        command.arg(self.wants).arg(self.last.token.get());
        command.arg(value(&self.label, self.last.id));
        for id in &self.held {
            command.arg(id.to_hex());
        }
    }
}
