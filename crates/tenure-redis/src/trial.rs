//! A trial of everything that locks do, with locks of its own and two clients: what a user meets sooner or later.
//!
//! Leaves nothing behind: what it took it gives back, and what that leaves it deletes. If it is killed, its locks expire
//! within seconds, and the traces of ended claims within a minute.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use tenure_core::clock::sleep_until;
use tenure_core::{
    Answer, Attempt, Backend, Bytes, Claim, ClaimId, Eviction, Finding, Label, Line, LockName, Mode, Reason,
    Released, Renewal, Settled, StoreError, Tie, Trail, Ttl, Why,
};

use crate::backend::Redis;
use crate::error;

const SUBJECT: &str = "a lock";
/// Always the same, so that two trials do not meddle with each other: who holds it uses the others.
const MAIN: &str = "tenure-doctor";
const SHARED: &str = "tenure-doctor/shared";
const ONCE: &str = "tenure-doctor/once";
const EVICTED: &str = "tenure-doctor/evicted";
const TTL: Duration = Duration::from_secs(5);
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// Why a trial ended early.
enum Stop {
    /// Another trial is at it.
    Busy,
    Failed {
        what: &'static str,
        cause: StoreError,
    },
}

/// That something could not be done.
fn failed(what: &'static str) -> impl Fn(StoreError) -> Stop {
    move |cause| Stop::Failed { what, cause }
}

fn unexpected(what: &'static str, answer: &dyn std::fmt::Debug) -> Stop {
    failed(what)(StoreError::unknown(format!("the answer made no sense: {answer:?}")))
}

/// What a trial showed.
struct Tried {
    took: Duration,
    /// Whether the waiter was told of its turn.
    is_told: bool,
}

struct Trial<'a> {
    here: &'a Redis,
    there: Redis,
    is_subscribed: bool,
    may_list: bool,
    /// What the store may know of, and from which of the two.
    open: Vec<(Redis, Claim, Trail)>,
}

/// Tries everything that locks do; `may_list` says whether listing is part of it. With two clients, unless nothing is ever
/// pushed to them: then one does as well.
pub(crate) async fn trial(here: &Redis, is_subscribed: bool, may_list: bool) -> Vec<Finding> {
    let problem = |what: &str, cause: &StoreError| {
        vec![Finding::problem(SUBJECT, format!("could not be {what}: {cause}"), error::remedy(cause))]
    };
    let there = if is_subscribed { here.another().await } else { Ok(here.clone()) };
    let there = match there {
        Ok(there) => there,
        Err(cause) => return problem("tried, for a second client cannot connect", &cause),
    };
    let mut trial = Trial { here, there, is_subscribed, may_list, open: Vec::new() };
    let tried = trial.run().await;
    trial.tidy(!matches!(tried, Err(Stop::Busy))).await;
    match tried {
        Err(Stop::Busy) => vec![Finding::fine(SUBJECT, "is held by another examination at this moment")],
        Err(Stop::Failed { what, cause }) => problem(what, &cause),
        Ok(Tried { took, is_told }) => {
            let fine = format!("was taken in {took:.1?}, and all else that locks do here works too");
            let mut findings = vec![Finding::fine(SUBJECT, fine)];
            if !is_told {
                findings.push(Finding::problem(
                    "pushes",
                    format!("a waiter was not told of its turn within {TOLD_WITHIN:?}: waiters look again seconds later"),
                    "see what between here and the server keeps published messages back; try ?protocol=resp2",
                ));
            }
            findings
        }
    }
}

impl Trial<'_> {
    async fn run(&mut self) -> Result<Tried, Stop> {
        let (here, there) = (self.here.clone(), self.there.clone());
        let clock = here.inner.clock.clone();
        let first = self.claim(MAIN, Mode::Exclusive);
        let start = clock.now();
        match self.attempt(&here, &first, Line::Pass).await.map_err(failed("taken"))? {
            Attempt::Granted(_) => {}
            _ => return Err(Stop::Busy),
        }
        let took = clock.now().saturating_since(start);
        self.renew(&here, &first, "renewed", |renewal| matches!(renewal, Renewal::Renewed { .. })).await?;
        let second = self.claim(MAIN, Mode::Exclusive);
        let busy = match self.attempt(&there, &second, Line::Join).await.map_err(failed("waited for"))? {
            Attempt::Busy(busy) => busy,
            other => return Err(unexpected("waited for", &other)),
        };
        let state = here.inspect(&first.name).await.map_err(failed("shown"))?;
        if state.holders.len() != 1 {
            return Err(unexpected("shown", &state));
        }
        if self.may_list {
            here.list(MAIN, None, 100).await.map_err(failed("listed"))?;
        }
        self.release(&here, &first).await?;
        let is_told = match busy.wake.signal {
            Some(signal) if self.is_subscribed => tokio::select! {
                _ = signal => true,
                () = sleep_until(clock.clone(), clock.now() + TOLD_WITHIN) => false,
            },
            _ => true,
        };
        self.take(&there, &second, "handed over").await?;
        if here.capabilities().shared {
            self.share().await?;
        }
        if here.capabilities().once {
            self.settle().await?;
        }
        self.evict().await?;
        Ok(Tried { took, is_told })
    }

    async fn share(&mut self) -> Result<(), Stop> {
        for side in [self.here.clone(), self.there.clone()] {
            let claim = self.claim(SHARED, Mode::Shared);
            self.take(&side, &claim, "shared").await?;
        }
        Ok(())
    }

    async fn settle(&mut self) -> Result<(), Stop> {
        let (side, claim) = (self.here.clone(), self.claim(ONCE, Mode::Once));
        self.take(&side, &claim, "taken for a do-once").await?;
        match side.settle(&claim, Bytes::new(), TTL).await.map_err(failed("settled"))? {
            Settled::Recorded => {}
            other => return Err(unexpected("settled", &other)),
        }
        self.open.retain(|(_, open, _)| open.id != claim.id);
        side.forget(&claim.name).await.map_err(failed("forgotten"))?;
        Ok(())
    }

    async fn evict(&mut self) -> Result<(), Stop> {
        let (side, claim) = (self.there.clone(), self.claim(EVICTED, Mode::Exclusive));
        self.take(&side, &claim, "taken").await?;
        let reason = Reason::new("an examination").expect("a valid reason");
        let eviction = Eviction { token: None, force: false, reason };
        let evicted = self.here.evict(&claim.name, &eviction).await.map_err(failed("evicted"))?;
        if evicted != 1 {
            return Err(unexpected("evicted", &evicted));
        }
        self.renew(&side, &claim, "evicted", |renewal| {
            matches!(renewal, Renewal::Lost(Why::Evicted { .. } | Why::Gone))
        })
        .await
    }

    fn claim(&self, name: &str, mode: Mode) -> Claim {
        Claim {
            name: LockName::new(name).expect("a valid name"),
            id: ClaimId::draw(&*self.here.inner.place.config().seams.entropy),
            mode,
            ttl: Ttl::new(TTL).expect("a valid ttl"),
            tie: Tie::Process,
            label: Label::of_this_process(),
            reason: None,
        }
    }

    async fn attempt(&mut self, side: &Redis, claim: &Claim, line: Line) -> Answer<Attempt> {
        self.open.retain(|(_, open, _)| open.id != claim.id);
        self.open.push((side.clone(), claim.clone(), Trail::Doubtful));
        let answer = side.attempt(claim, line).await;
        if let (Ok(_), Some((_, _, trail))) = (&answer, self.open.last_mut()) {
            *trail = Trail::Clean;
        }
        answer
    }

    async fn take(&mut self, side: &Redis, claim: &Claim, what: &'static str) -> Result<(), Stop> {
        match self.attempt(side, claim, Line::Join).await.map_err(failed(what))? {
            Attempt::Granted(_) => Ok(()),
            other => Err(unexpected(what, &other)),
        }
    }

    async fn renew(
        &self,
        side: &Redis,
        claim: &Claim,
        what: &'static str,
        is_expected: impl Fn(&Renewal) -> bool,
    ) -> Result<(), Stop> {
        match side.renew(&[Arc::new(claim.clone())]).await.pop() {
            Some(Ok(renewal)) if is_expected(&renewal) => Ok(()),
            Some(Err(cause)) => Err(failed(what)(cause)),
            other => Err(unexpected(what, &other)),
        }
    }

    async fn release(&mut self, side: &Redis, claim: &Claim) -> Result<(), Stop> {
        match side.release(claim, Trail::Clean).await.map_err(failed("given back"))? {
            Released::Held => {
                self.open.retain(|(_, open, _)| open.id != claim.id);
                Ok(())
            }
            other => Err(unexpected("given back", &other)),
        }
    }

    /// Gives back what is still taken, and deletes what is left of it; the main lock last, which keeps other trials off the
    /// others.
    async fn tidy(&mut self, was_ours: bool) {
        let (main, sides): (Vec<_>, Vec<_>) =
            self.open.drain(..).partition(|(_, claim, _)| claim.name.as_str() == MAIN);
        // Where there are no scripts, each ended claim has its own.
        let traces =
            sides.iter().map(|(side, claim, _)| side.inner.layout.keys(&claim.name).tombstone(claim.id));
        let traces: Vec<_> = traces.collect();
        for (side, claim, trail) in sides {
            let _ = side.release(&claim, trail).await;
        }
        let keys = |name: &str| self.here.inner.layout.keys(&LockName::new(name).expect("a valid name"));
        if was_ours {
            let all = [SHARED, ONCE, EVICTED].into_iter().flat_map(|name| keys(name).all());
            self.delete(all.chain(traces).collect()).await;
        }
        for (side, claim, trail) in main {
            let _ = side.release(&claim, trail).await;
        }
        if was_ours {
            // Another trial may hold it by now: only what no holder needs.
            self.delete([":t", ":f"].iter().map(|side| keys(MAIN).side(side)).collect()).await;
        }
    }

    async fn delete(&self, keys: Vec<String>) {
        let mut delete = Cmd::new();
        delete.arg("DEL").arg(keys);
        // What stays expires.
        let _ = self.here.inner.place.ask(&delete).await;
    }
}
