//! The connection: opened when it is needed, replaced when it is in doubt.
//!
//! One multiplexed connection carries requests and pushes (RESP3); where the server cannot, a second one carries the
//! pushes. Every request has a deadline. A request that misses it, or fails on the way, retires its connection: the
//! next one goes over a new connection, so a half-open one is never used twice, and no late answer can reach the
//! wrong caller. While the server cannot be reached, requests are refused at once; the next try comes after a pause
//! that doubles, with jitter, so that a thousand clients do not come back at the same moment.

mod connecting;
mod live;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use redis::{Cmd, PushInfo, PushKind, RedisResult, Value};
use tenure_core::clock::sleep_until;
use tenure_core::{BootInstant, Clock, StoreError};
use tokio::sync::watch;

use crate::attention::Watch;
use crate::config::RedisConfig;
use crate::error;
use crate::pushes::{Orphan, Pushes};
use crate::reply::{is_name, out_of_step, text};
use crate::scripts::{Call, Scripts, by_hash, command};
use crate::sentinel::Primary;
pub(crate) use live::{Live, Reply};

/// Keeps one connection to one server.
pub(crate) struct Supervisor {
    pub(crate) config: RedisConfig,
    pub(crate) scripts: Scripts,
    pub(crate) pushes: Arc<Pushes>,
    /// Where this process listens.
    pub(crate) channel: String,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// The newest that any sentinel has told of its primary.
    newest_epoch: AtomicU64,
    /// Is told of every grant that nobody here awaits.
    orphanage: Box<dyn Fn(Orphan) + Send + Sync>,
    /// How many connections were given up.
    given_up: Arc<watch::Sender<u64>>,
    this: Weak<Self>,
}

#[derive(Default)]
struct State {
    live: Option<Arc<Live>>,
    connecting: Option<watch::Receiver<Option<Connected>>>,
    failures: u32,
    /// Somebody was told that nothing can be pushed here.
    has_warned: bool,
    next_try: Option<(BootInstant, StoreError)>,
    /// Where the sentinels said that the server is, when they were last asked.
    primary: Option<Primary>,
}

type Connected = Result<Arc<Live>, StoreError>;

impl Supervisor {
    pub(crate) fn new(
        config: RedisConfig,
        pushes: Arc<Pushes>,
        given_up: Arc<watch::Sender<u64>>,
        orphanage: impl Fn(Orphan) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let mut id = [0; 12];
        config.seams.entropy.fill(&mut id);
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        Arc::new_cyclic(|this| Self {
            scripts: Scripts::new(&config.rules),
            channel: format!("{}:push:{id}", config.prefix),
            clock: config.seams.clock.clone(),
            state: Mutex::default(),
            newest_epoch: AtomicU64::new(0),
            orphanage: Box::new(orphanage),
            given_up,
            this: this.clone(),
            pushes,
            config,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the server one thing, within the deadline.
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Reply, StoreError> {
        let deadline = self.clock.now() + self.config.timeout;
        let live = self.live(deadline).await?;
        let sent = self.clock.now();
        let value = self.exchange(&live, vec![command.clone()], deadline).await?.remove(0);
        Ok(Reply { value, sent, live })
    }

    /// Asks the server several things at once, in one round trip. `commands` are made for the store's time in µs, as far
    /// as we know it: surely not too low.
    ///
    /// # Errors
    /// The first error among the answers, whatever else was done.
    pub(crate) async fn ask_all(
        &self,
        commands: impl FnOnce(u64) -> Vec<Cmd>,
    ) -> Result<Vec<Value>, StoreError> {
        let deadline = self.clock.now() + self.config.timeout;
        let live = self.live(deadline).await?;
        let commands = commands(live.store_time());
        self.exchange(&live, commands, deadline).await
    }

    /// Sends commands, and after them their name: what a server answers to a plain command tells nobody to which.
    async fn exchange(
        &self,
        live: &Live,
        commands: Vec<Cmd>,
        deadline: BootInstant,
    ) -> Result<Vec<Value>, StoreError> {
        let (count, name) = (commands.len() + 1, live.latest());
        // Handed to the connection in one go, so that nothing of ours comes in between.
        let mut pipeline = redis::pipe();
        for command in commands {
            pipeline.add_command(command);
        }
        pipeline.cmd("PING").arg(name);
        let mut connection = live.connection.clone();
        let answers = tokio::select! {
            biased;
            answers = connection.send_packed_commands(&pipeline, 0, count) => answers,
            () = sleep_until(self.clock.clone(), deadline) => return Err(self.silence(live)),
        };
        let mut answers = answers.map_err(|problem| self.problem(live, &problem))?;
        let last = answers.pop().map(Value::extract_error);
        if last.is_none_or(|last| !last.is_ok_and(|last| text(&last).is_some_and(|text| is_name(text, name))))
        {
            self.retire(&live.is_retired);
            return Err(out_of_step());
        }
        let answers = answers.into_iter().map(Value::extract_error).collect::<RedisResult<Vec<_>>>();
        answers.map_err(|problem| self.problem(live, &problem))
    }

    /// Runs a script by its hash; by its text if the server does not know it. The answer is watched for as `watch` says.
    pub(crate) async fn run(&self, call: &dyn Call, watch: Watch) -> Result<Reply, StoreError> {
        let deadline = self.clock.now() + self.config.timeout;
        let live = self.live(deadline).await?;
        let answer = self.send(live.clone(), &by_hash(call, &live), deadline, watch).await;
        self.or_by_text(call, live, deadline, answer).await
    }

    /// Runs scripts, one after the other, in one round trip. By their text, where the server does not know one, they run after
    /// the others; the `strict` first ones do not then, but fail.
    pub(crate) async fn run_all(
        &self,
        calls: &[&dyn Call],
        strict: usize,
        watch: Watch,
    ) -> Vec<Result<Reply, StoreError>> {
        let deadline = self.clock.now() + self.config.timeout;
        let all = |error: StoreError| calls.iter().map(|_| Err(error.clone())).collect();
        let live = match self.live(deadline).await {
            Ok(live) => live,
            Err(error) => return all(error),
        };
        let mut pipeline = redis::Pipeline::with_capacity(calls.len());
        for call in calls {
            pipeline.add_command(by_hash(*call, &live));
        }
        let mut connection = live.connection.clone();
        let sent = self.clock.now();
        let under_way = live.attention.sent(watch);
        let answers = tokio::select! {
            biased;
            answers = connection.send_packed_commands(&pipeline, 0, calls.len()) => {
                answers.map_err(|problem| self.problem(&live, &problem))
            }
            () = sleep_until(self.clock.clone(), deadline) => Err(self.silence(&live)),
        };
        drop(under_way);
        let mut answers = match answers {
            Ok(answers) => answers.into_iter(),
            Err(error) => return all(error),
        };
        let mut replies = Vec::with_capacity(calls.len());
        for (place, call) in calls.iter().enumerate() {
            let reply = match answers.next().map(Value::extract_error) {
                Some(Ok(value)) => Ok(Reply { value, sent, live: live.clone() }),
                Some(Err(problem)) => Err(self.problem(&live, &problem)),
                None => Err(StoreError::unknown("an answer is missing")),
            };
            let is_strict = place < strict;
            replies.push(if is_strict {
                reply
            } else {
                self.or_by_text(*call, live.clone(), deadline, reply).await
            });
        }
        replies
    }

    /// The answer, or that to the script's text if the server has forgotten it, by a restart or `SCRIPT FLUSH`: nothing
    /// was done then.
    async fn or_by_text(
        &self,
        call: &dyn Call,
        live: Arc<Live>,
        deadline: BootInstant,
        answer: Result<Reply, StoreError>,
    ) -> Result<Reply, StoreError> {
        match answer {
            Err(error) if is_without_script(&error) => {
                let command = command(call, &live, "EVAL", &call.script().code);
                self.send(live, &command, deadline, Watch::NO).await
            }
            answer => answer,
        }
    }

    async fn send(
        &self,
        live: Arc<Live>,
        command: &Cmd,
        deadline: BootInstant,
        watch: Watch,
    ) -> Result<Reply, StoreError> {
        let mut connection = live.connection.clone();
        let sent = self.clock.now();
        let under_way = live.attention.sent(watch);
        let answer = tokio::select! {
            biased;
            answer = connection.send_packed_command(command) => answer,
            () = sleep_until(self.clock.clone(), deadline) => return Err(self.silence(&live)),
        };
        drop(under_way);
        match answer.and_then(Value::extract_error) {
            Ok(value) => Ok(Reply { value, sent, live }),
            Err(problem) => Err(self.problem(&live, &problem)),
        }
    }

    /// No answer in time: the connection may be half-open, and is not used again.
    fn silence(&self, live: &Live) -> StoreError {
        self.retire(&live.is_retired);
        StoreError::unknown(format!("nothing within {:?}", self.config.timeout))
    }

    /// A failed request: one that failed on the way ends its connection, and so does a server that became a replica.
    fn problem(&self, live: &Live, problem: &redis::RedisError) -> StoreError {
        if matches!(problem.code(), None | Some("READONLY")) {
            self.retire(&live.is_retired);
        }
        match (problem.code(), self.config.is_node()) {
            // It was not carried out, and whoever asked knows what to do.
            (Some("MOVED"), true) => StoreError::unknown(error::describe(problem)),
            _ => error::after_sending(problem),
        }
    }

    /// Something came in on a RESP3 connection that nobody asked for. Called by the connection: never blocks.
    fn pushed(&self, is_retired: &AtomicBool, push: &PushInfo) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::Disconnection, _) => self.retire(is_retired),
            (PushKind::Message, [_, Value::BulkString(message)]) => self.message(message, false),
            _ => {}
        }
    }

    /// Takes in what this process is told, by a push or in an answer.
    pub(crate) fn message(&self, message: &[u8], may_be_late: bool) {
        if let Some(orphan) = self.pushes.receive(message, self.clock.now()) {
            (self.orphanage)(Orphan { may_be_late, ..orphan });
        }
    }

    /// No further request goes over this connection. Those under way on it are left to their deadlines.
    fn retire(&self, is_retired: &AtomicBool) {
        if is_retired.swap(true, Ordering::AcqRel) {
            return;
        }
        let live = {
            let mut state = self.state();
            state.live.take_if(|live| live.is_retired.load(Ordering::Acquire))
        };
        tracing::debug!(
            store = self.config.store(),
            "the connection is in doubt, the next request takes a new one"
        );
        drop(live);
        // Pushes may be lost from here on, until somebody asks and so connects again: everybody that waits does.
        self.pushes.tell_all_to_look();
        // And whoever answers next may have forgotten what was granted: everybody that holds asks.
        self.given_up.send_modify(|count| *count += 1);
    }

    /// Completes when a connection is given up, or with the last client.
    pub(crate) fn in_doubt(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut given_up = self.given_up.subscribe();
        async move { drop(given_up.changed().await) }
    }
}

/// Whether the server does not know a script by its hash: nothing was done then.
pub(crate) fn is_without_script(error: &StoreError) -> bool {
    matches!(error, StoreError::Unknown(text) if text.starts_with("NOSCRIPT"))
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor")
            .field("config", &self.config)
            .field("is_connected", &self.state().live.is_some())
            .field("registered_claims", &self.pushes.len())
            .finish_non_exhaustive()
    }
}
