//! Requests that travel together: when many are under way, several go in one script call.
//!
//! The first few requests of a kind go at once, each alone. While those are under way, others gather, and a few
//! carriers take as many as are there, in one call each, and come back for more: as many calls at a time as a small pool
//! of connections would make, however many ask. So the busier it is, the more go together, and the less each costs.
//! Only requests that ask for the same travel together; what goes wrong with one does not touch the others.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use redis::{Cmd, Value};
use tenure_core::{Answer, BootInstant, BoxFuture, Line, Mode, Reason, StoreError, Trail};
use tokio::sync::oneshot;

use crate::attention::Watch;
use crate::backend::{Inner, mode_text};
use crate::dating::Anchor;
use crate::keys::Keys;
use crate::scripts::{Call, Script, Scripts};
use crate::supervisor::{Live, Reply};

/// How many requests go alone at a time, before others gather.
const ALONE_MAX: usize = 2;
/// How many carriers there are at the most.
const CARRIERS_MAX: usize = 8;
/// How many requests travel together at most: the server does nothing else meanwhile.
pub(crate) const TOGETHER_MAX: usize = 64;

/// One request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) keys: Keys,
    pub(crate) value: String,
    pub(crate) terms: Terms,
}

/// What a request asks for, besides its claim. Requests that ask for the same travel together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Terms {
    Attempt { mode: Mode, line: Line, ttl: u64, reason: Option<Reason> },
    Release { trail: Trail },
}

impl Terms {
    /// Adds what comes before the claims. Answers the name of the request, and whether it lets the fence live on. As few
    /// arguments as may be: each costs the server as much as half a command.
    fn write_to(&self, inner: &Inner, live: &Live, wants: usize, command: &mut Cmd) -> (u64, bool) {
        let (run_id, seen) = (&live.server.run_id, inner.seen.load(Ordering::Relaxed));
        match self {
            Self::Attempt { mode, line, ttl, reason } => {
                let asked = live.latest();
                let keeps_fence = inner.is_fence_due(live);
                if keeps_fence {
                    command.arg(format!("+{seen}"));
                } else {
                    command.arg(seen);
                }
                command.arg(asked);
                let is_likely_busy = inner.finds_busy.load(Ordering::Relaxed);
                match (mode, line) {
                    (Mode::Exclusive, Line::Join) if is_likely_busy => command.arg(joined("x?", run_id)),
                    (Mode::Exclusive, Line::Join) => command.arg(joined("x", run_id)),
                    _ => command.arg(joined(&mode_text(*mode, *line), run_id)),
                };
                let reason = reason.as_ref().map_or("", Reason::as_str);
                command.arg(*ttl).arg(joined(live.channel(), reason));
                (asked, keeps_fence)
            }
            Self::Release { trail } => {
                // What is needed only if somebody waits.
                let (channel, awaits) = (live.channel(), live.awaits_until());
                command.arg(format!("{run_id}\n{seen}\n{channel}\n{awaits}\n{wants}"));
                let asked = live.latest();
                command.arg(format!("{}{asked}", if *trail == Trail::Clean { 'c' } else { 'd' }));
                (asked, false)
            }
        }
    }
}

/// Two lines.
fn joined(first: &str, second: &str) -> String {
    let mut both = String::with_capacity(first.len() + 1 + second.len());
    both.push_str(first);
    both.push('\n');
    both.push_str(second);
    both
}

/// The answer to one request.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) item: Value,
    pub(crate) anchor: Anchor,
    pub(crate) is_subscribed: bool,
}

/// Collects requests of one kind.
pub(crate) struct Batch {
    script: fn(&Scripts) -> &Script,
    state: Mutex<State>,
}

/// A request, and where its answer goes.
pub(crate) type Waiting = (Request, oneshot::Sender<Answer<Answered>>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    alone: usize,
    carriers: usize,
}

impl State {
    /// Whether there is more to carry than carriers; counts one more then.
    fn needs_carrier(&mut self) -> bool {
        let needs = self.carriers < CARRIERS_MAX && self.waiting.len() > self.carriers;
        self.carriers += usize::from(needs);
        needs
    }
}

impl Request {
    const fn is_attempt(&self) -> bool {
        matches!(self.terms, Terms::Attempt { .. })
    }
}

/// Requests that travel in one call.
struct Parcel<'a> {
    inner: &'a Inner,
    script: &'a Script,
    requests: &'a [Request],
    terms: &'a Terms,
    /// How many of those that are next in line the store is to name.
    wants: usize,
    /// What the call is named, and whether it lets the fence live on.
    asked: AtomicU64,
    keeps_fence: AtomicBool,
}

impl<'a> Parcel<'a> {
    fn new(batch: &Batch, inner: &'a Inner, requests: &'a [Request]) -> Option<Self> {
        let terms = &requests.first()?.terms;
        let script = (batch.script)(inner.place.scripts());
        Some(Self {
            inner,
            script,
            requests,
            terms,
            wants: 0,
            asked: AtomicU64::new(0),
            keeps_fence: AtomicBool::new(false),
        })
    }

    /// With a release go the newcomers to its line: answers who. One of those in line gets the lock; the store is to name the
    /// others that are ours.
    fn with_company(mut self) -> (Self, Vec<Waiting>) {
        let [Request { keys, terms: Terms::Release { trail: Trail::Clean }, .. }] = self.requests else {
            return (self, Vec::new());
        };
        let newcomers = &self.inner.newcomers;
        let company = newcomers.company(keys);
        let next = (newcomers.standing(keys) + company.len()).saturating_sub(1);
        self.wants = if self.inner.place.config().hand_on { self.inner.succession.asks_for(next) } else { 0 };
        (self, company)
    }

    /// The call, and before it, in the same write, another and that of newcomers: so that there is somebody in line, and the
    /// line lives on.
    async fn call_after(
        &self,
        first: Option<&dyn Call>,
        company: Vec<Waiting>,
        watch: Watch,
    ) -> (Option<Result<Reply, StoreError>>, Answer<Opened>) {
        let inner = self.inner;
        let (newcomers, senders): (Vec<Request>, Vec<_>) = company.into_iter().unzip();
        let company = Parcel::new(&inner.attempts, inner, &newcomers);
        let mut calls: Vec<&dyn Call> = Vec::with_capacity(3);
        calls.extend(first);
        calls.extend(company.as_ref().map(|company| company as &dyn Call));
        calls.push(self);
        let strict = usize::from(first.is_some());
        let mut replies = inner.place.run_all(&calls, strict, watch).await.into_iter();
        let mut next = || replies.next().unwrap_or_else(|| Err(StoreError::unknown("an answer is missing")));
        let to_first = first.map(|_| next());
        if let Some(company) = &company {
            match company.open(next()) {
                Ok(Opened { answered, .. }) => inner.answer_newcomers(newcomers, senders, answered),
                Err(error) => hand_out(senders, Err(error)),
            }
        }
        (to_first, self.open(next()))
    }

    /// What everybody is answered. First of all, whoever got the lock is told.
    fn hand_out(&self, opened: Opened) -> Answer<Vec<Answer<Answered>>> {
        let Opened { answered, mut told, heard } = opened;
        // The lock went to a claim of ours. Answers are read by different tasks: it may have ended meanwhile.
        if let (Some(Value::BulkString(push)), [Request { keys, .. }]) = (told.next(), self.requests) {
            if self.inner.came_here(keys, &push, told, heard) {
                // Somebody awaited it a moment ago: whoever ends it sees to it that it is handed on.
                self.inner.pushes.receive(&push, self.inner.clock.now());
            } else {
                self.inner.place.message(&push);
            }
        }
        Ok(answered)
    }

    fn open(&self, reply: Result<Reply, StoreError>) -> Answer<Opened> {
        let is_release = matches!(self.terms, Terms::Release { .. });
        if is_release && matches!(reply, Err(StoreError::Unknown(_))) {
            // The lock may be with a claim of ours that only this answer would have told.
            self.inner.pushes.tell_all_to_look();
        }
        let mut reply = reply?;
        let mut answers = reply.read(self.asked.load(Ordering::Relaxed))?;
        if self.keeps_fence.load(Ordering::Relaxed) {
            self.inner.fence_is_kept(&reply.live);
        }
        let answered = self.requests.iter().map(|_| {
            let item = answers.next()?;
            let anchor = Anchor {
                sent: reply.sent,
                store_micros: answers.store_micros,
                run_id: reply.live.server.run_id.clone(),
            };
            Ok(Answered { item, anchor, is_subscribed: reply.live.is_subscribed() })
        });
        let answered = answered.collect();
        let told = answers.items;
        if is_release {
            self.inner.hands_to_own.store(told.len() > 0, Ordering::Relaxed);
        }
        Ok(Opened { answered, told, heard: (reply.sent, reply.live.is_retired.clone()) })
    }
}

impl Call for Parcel<'_> {
    fn script(&self) -> &Script {
        self.script
    }

    fn size(&self) -> (usize, usize) {
        let size = |request: &Request| request.keys.size() + request.value.len() + 20;
        // The reason is at most 1 KiB long; usually there is none.
        (self.requests.len() * 3 + 10, self.requests.iter().map(size).sum::<usize>() + 250)
    }

    fn fill(&self, live: &Live, command: &mut Cmd) {
        command.arg(1 + self.requests.iter().map(|request| request.keys.count()).sum::<usize>());
        command.arg(self.inner.layout.fence());
        self.requests.iter().for_each(|request| request.keys.write_to(command));
        let (asked, keeps_fence) = self.terms.write_to(self.inner, live, self.wants, command);
        self.asked.store(asked, Ordering::Relaxed);
        self.keeps_fence.store(keeps_fence, Ordering::Relaxed);
        for request in self.requests {
            command.arg(&request.value);
        }
    }
}

/// What came back.
struct Opened {
    answered: Vec<Answer<Answered>>,
    /// A push for a claim of ours, and who is next in line.
    told: std::vec::IntoIter<Value>,
    /// When that was asked, and whether the connection has ended since.
    heard: (BootInstant, Arc<AtomicBool>),
}

impl Batch {
    pub(crate) fn new(script: fn(&Scripts) -> &Script) -> Self {
        Self { script, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request, alone or together with others.
    pub(crate) async fn send(
        &self,
        inner: &Arc<Inner>,
        which: fn(&Inner) -> &Self,
        request: Request,
    ) -> Answer<Answered> {
        let mut request = Some(request);
        let Some((receiver, needs_carrier)) = self.gather(&mut request) else {
            let is_release = !request.as_ref().is_some_and(Request::is_attempt);
            let inner = inner.clone();
            // In a box: it would make every request larger, also those that travel with others.
            let alone = Box::pin(async move {
                let batch = which(&inner);
                let _alone = Alone(batch);
                // Where others wait, the processor is theirs; but if it is the answer that they wait for.
                let watch = match inner.newcomers.all_standing() {
                    0 => Watch::ALONE,
                    _ if is_release && inner.hands_to_own.load(Ordering::Relaxed) => Watch::BESIDE_ONE,
                    _ => Watch::NO,
                };
                let mut answers = batch.call(&inner, request.as_slice(), watch).await?;
                answers.pop().unwrap_or_else(|| Err(StoreError::unknown("no answer")))
            });
            return if is_release { CarriedThrough(Some(alone)).await } else { alone.await };
        };
        if needs_carrier {
            Self::start_carrier(inner, which);
        }
        receiver.await.unwrap_or_else(|_| dropped())
    }

    /// Sends requests that others wait for.
    pub(crate) fn send_all(&self, inner: &Arc<Inner>, which: fn(&Inner) -> &Self, all: Vec<Waiting>) {
        let needs_carrier = {
            let mut state = self.state();
            state.waiting.extend(all);
            state.needs_carrier()
        };
        if needs_carrier {
            Self::start_carrier(inner, which);
        }
    }

    fn start_carrier(inner: &Arc<Inner>, which: fn(&Inner) -> &Self) {
        // Made here: a runtime that is ending drops the task before it begins.
        let carrier = Carrier { inner: inner.clone(), which, is_over: false };
        tokio::spawn(carrier.carry());
    }

    /// Takes the request to those that wait, unless it goes alone. Answers where its answer comes, and whether to start
    /// a carrier.
    fn gather(&self, request: &mut Option<Request>) -> Option<(oneshot::Receiver<Answer<Answered>>, bool)> {
        let mut state = self.state();
        if state.alone + state.carriers < ALONE_MAX && state.waiting.is_empty() {
            state.alone += 1;
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        state.waiting.push_back((request.take()?, sender));
        Some((receiver, state.needs_carrier()))
    }

    /// One script call. With a release go the newcomers to its line.
    async fn call(&self, inner: &Inner, requests: &[Request], watch: Watch) -> Answer<Vec<Answer<Answered>>> {
        let Some(parcel) = Parcel::new(self, inner, requests) else { return Ok(Vec::new()) };
        let (parcel, company) = parcel.with_company();
        let opened = if company.is_empty() {
            parcel.open(inner.place.run(&parcel, watch).await)
        } else {
            // In a box: it is rare, and would make every request larger.
            Box::pin(parcel.call_after(None, company, watch)).await.1
        };
        parcel.hand_out(opened?)
    }

    /// A release, and before it, in the same write, what the store must hear first. Nothing of it is done if the store does
    /// not know that script.
    pub(crate) async fn call_after(
        &self,
        inner: &Inner,
        first: &dyn Call,
        request: Request,
        heard: impl FnOnce(Result<Reply, StoreError>),
    ) -> Answer<Answered> {
        let requests = [request];
        let Some(parcel) = Parcel::new(self, inner, &requests) else { return dropped() };
        let (parcel, company) = parcel.with_company();
        let (reply, opened) = parcel.call_after(Some(first), company, Watch::BESIDE_ONE).await;
        if let Some(reply) = reply {
            heard(reply);
        }
        parcel.hand_out(opened?)?.pop().unwrap_or_else(dropped)
    }
}

/// Gives everybody their answer. Whoever does not listen any more has let go of its claim, and sees to it.
fn hand_out(senders: Vec<oneshot::Sender<Answer<Answered>>>, answers: Answer<Vec<Answer<Answered>>>) {
    match answers {
        Ok(answers) => {
            for (sender, answer) in senders.into_iter().zip(answers) {
                let _ = sender.send(answer);
            }
        }
        Err(error) => {
            for sender in senders {
                let _ = sender.send(Err(error.clone()));
            }
        }
    }
}

pub(crate) fn dropped() -> Answer<Answered> {
    Err(StoreError::unknown("the request was dropped on the way"))
}

/// Goes on in the background if its caller lets go of it: the answer to a release may hold a grant of somebody else.
pub(crate) struct CarriedThrough<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> CarriedThrough<T> {
    pub(crate) fn new(request: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(request)))
    }
}

impl<T: Send + 'static> Future for CarriedThrough<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(request) = &mut self.0 else { return Poll::Pending };
        let answer = ready!(request.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(answer)
    }
}

impl<T: Send + 'static> Drop for CarriedThrough<T> {
    fn drop(&mut self) {
        if let (Some(request), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(request);
        }
    }
}

/// A carrier. Counted until it is dropped, also on the way, with its runtime.
struct Carrier {
    inner: Arc<Inner>,
    which: fn(&Inner) -> &Batch,
    /// It is not counted any more.
    is_over: bool,
}

impl Carrier {
    /// Takes what waits until nothing does.
    async fn carry(mut self) {
        loop {
            // Whoever else is ready may come along.
            tokio::task::yield_now().await;
            let (inner, batch) = (&self.inner, (self.which)(&self.inner));
            let (requests, senders): (Vec<_>, Vec<_>) = {
                let mut state = batch.state();
                let Some((first, _)) = state.waiting.front() else {
                    // Before anybody else comes: the next one takes another carrier.
                    state.carriers -= 1;
                    drop(state);
                    self.is_over = true;
                    return;
                };
                let of_a_kind = state.waiting.iter().take_while(|(request, _)| request.terms == first.terms);
                let count = of_a_kind.take(TOGETHER_MAX).count();
                // Nobody waits for some of them any more: of an attempt, the store need not even hear.
                let taken = state.waiting.drain(..count);
                taken.filter(|(request, sender)| !(request.is_attempt() && sender.is_closed())).unzip()
            };
            if !requests.is_empty() {
                hand_out(senders, batch.call(inner, &requests, Watch::NO).await);
            }
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if !self.is_over {
            let mut state = (self.which)(&self.inner).state();
            state.carriers -= 1;
            // Nobody comes for them any more, unless somebody asks: they are told that nothing became of it.
            let left = if state.carriers == 0 { std::mem::take(&mut state.waiting) } else { VecDeque::new() };
            drop(state);
            drop(left);
        }
    }
}

/// Counts a request that goes alone, also if its caller lets go of it.
struct Alone<'a>(&'a Batch);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.state().alone -= 1;
    }
}
