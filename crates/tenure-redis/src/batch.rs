//! Requests that travel together: when many are under way, several go in one script call.
//!
//! A request that finds the wire quiet goes at once, alone. Others are collected for the moment that the runtime takes
//! to run whatever else is ready, and then sent in one call: no request waits for an answer to another. Only requests
//! of one kind travel together, each for a lock of its own; what goes wrong with one does not touch the others.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{Cmd, Value};
use tenure_core::{Answer, Reason, StoreError};
use tokio::sync::oneshot;

use crate::backend::Inner;
use crate::dating::Anchor;
use crate::keys::Keys;
use crate::scripts::{Script, Scripts};
use crate::supervisor::Live;

/// How many requests may be under way before others are collected.
const ALONE_MAX: usize = 2;
/// How many requests travel together at most: the server does nothing else meanwhile.
const TOGETHER_MAX: usize = 64;

/// One request.
pub(crate) struct Request {
    pub(crate) keys: Keys,
    pub(crate) value: String,
    pub(crate) terms: Terms,
}

/// What a request asks for, besides its claim.
pub(crate) enum Terms {
    Attempt { mode: String, ttl: u64, reason: Option<Reason> },
    Release { trail: &'static str },
}

/// The answer to one request.
pub(crate) struct Answered {
    pub(crate) item: Value,
    pub(crate) anchor: Anchor,
    pub(crate) is_subscribed: bool,
}

/// Collects requests of one kind.
pub(crate) struct Batch {
    script: fn(&Scripts) -> &Script,
    /// Adds the arguments that come before those of the requests. Answers the name of the request, if it has one.
    header: fn(&Inner, &Live, &mut Cmd) -> Option<u64>,
    waiting: Mutex<Vec<(Request, oneshot::Sender<Answer<Answered>>)>>,
    under_way: AtomicUsize,
}

impl Request {
    fn size(&self) -> usize {
        let reason = match &self.terms {
            Terms::Attempt { reason: Some(reason), .. } => reason.as_str().len(),
            _ => 0,
        };
        self.keys.size() + self.value.len() + reason + 60
    }

    fn write_to(&self, command: &mut Cmd) {
        command.arg(&self.value);
        match &self.terms {
            Terms::Attempt { mode, ttl, reason } => {
                command.arg(mode).arg(*ttl).arg(reason.as_ref().map_or("", Reason::as_str));
            }
            Terms::Release { trail } => {
                command.arg(*trail);
            }
        }
    }
}

impl Batch {
    pub(crate) fn new(
        script: fn(&Scripts) -> &Script,
        header: fn(&Inner, &Live, &mut Cmd) -> Option<u64>,
    ) -> Self {
        Self { script, header, waiting: Mutex::default(), under_way: AtomicUsize::new(0) }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<(Request, oneshot::Sender<Answer<Answered>>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request, alone or together with others.
    pub(crate) async fn send(
        &self,
        inner: &Arc<Inner>,
        which: fn(&Inner) -> &Self,
        request: Request,
    ) -> Answer<Answered> {
        if self.under_way.load(Ordering::Relaxed) < ALONE_MAX {
            let _under_way = UnderWay::begin(self);
            let mut answers = self.call(inner, std::slice::from_ref(&request)).await?;
            return answers.pop().unwrap_or_else(|| Err(StoreError::unknown("no answer")));
        }
        let (sender, receiver) = oneshot::channel();
        let is_first = {
            let mut waiting = self.waiting();
            waiting.push((request, sender));
            waiting.len() == 1
        };
        if is_first {
            let inner = inner.clone();
            tokio::spawn(async move {
                // Whoever else is ready may come along.
                tokio::task::yield_now().await;
                let batch = which(&inner);
                let waiting = std::mem::take(&mut *batch.waiting());
                batch.send_together(&inner, waiting).await;
            });
        }
        receiver.await.unwrap_or_else(|_| Err(StoreError::unknown("the request was dropped on the way")))
    }

    async fn send_together(
        &self,
        inner: &Arc<Inner>,
        mut waiting: Vec<(Request, oneshot::Sender<Answer<Answered>>)>,
    ) {
        let mut calls = Vec::with_capacity(waiting.len().div_ceil(TOGETHER_MAX));
        while !waiting.is_empty() {
            let rest = waiting.split_off(waiting.len().min(TOGETHER_MAX));
            let (requests, senders): (Vec<_>, Vec<_>) =
                std::mem::replace(&mut waiting, rest).into_iter().unzip();
            calls.push(async move {
                let _under_way = UnderWay::begin(self);
                let answers = self.call(inner, &requests).await;
                // Whoever does not listen any more has let go of its claim, and sees to it.
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
            });
        }
        futures_util::future::join_all(calls).await;
    }

    /// One script call.
    async fn call(&self, inner: &Inner, requests: &[Request]) -> Answer<Vec<Answer<Answered>>> {
        let size = requests.iter().map(Request::size).sum::<usize>() + 200;
        let asked = AtomicU64::new(0);
        let fill = |live: &Live, command: &mut Cmd| {
            command.arg(1 + requests.iter().map(|request| request.keys.count()).sum::<usize>());
            command.arg(inner.layout.fence());
            requests.iter().for_each(|request| request.keys.write_to(command));
            asked.store((self.header)(inner, live, command).unwrap_or(0), Ordering::Relaxed);
            requests.iter().for_each(|request| request.write_to(command));
        };
        let script = (self.script)(&inner.supervisor.scripts);
        let arguments = requests.len() * 6 + 8;
        let mut reply = inner.supervisor.run(script, arguments, size, fill).await?;
        let asked = Some(asked.into_inner()).filter(|asked| *asked > 0);
        let mut answers = inner.supervisor.read(&mut reply, asked)?;
        let answered = requests.iter().map(|_| {
            let item = answers.next()?;
            let anchor = Anchor {
                sent: reply.sent,
                store_micros: answers.store_micros,
                run_id: reply.live.server.run_id.clone(),
            };
            Ok(Answered { item, anchor, is_subscribed: reply.live.is_subscribed })
        });
        Ok(answered.collect())
    }
}

/// Counts a call while it is under way, also if its caller lets go of it.
struct UnderWay<'a>(&'a AtomicUsize);

impl<'a> UnderWay<'a> {
    fn begin(batch: &'a Batch) -> Self {
        batch.under_way.fetch_add(1, Ordering::Relaxed);
        Self(&batch.under_way)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
