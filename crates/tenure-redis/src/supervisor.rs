//! The connection: opened when it is needed, replaced when it is in doubt.
//!
//! One multiplexed connection carries requests and pushes (RESP3); where the server cannot, a second one carries the
//! pushes. Every request has a deadline. A request that misses it, or fails on the way, retires its connection: the
//! next one goes over a new connection, so a half-open one is never used twice, and no late answer can reach the
//! wrong caller. While the server cannot be reached, requests are refused at once; the next try comes after a pause
//! that doubles, with jitter, so that a thousand clients do not come back at the same moment.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisResult, Value};
use tenure_core::clock::sleep_until;
use tenure_core::{BootInstant, Clock, RefusalKind, StoreError};
use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::attention::{Attention, Watch};
use crate::config::RedisConfig;
use crate::error;
use crate::pushes::{Orphan, Pushes};
use crate::reply::{self, Answers, is_name, out_of_step, text};
use crate::scripts::{Call, Scripts, by_hash, command};
use crate::server::{self, Server};
use crate::stream::Stream;

/// The first pause after a failed connect; doubled by every further failure.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause between two tries to connect.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long to listen to a server that has hung up before, and for how many bytes.
const FAREWELL: Duration = Duration::from_millis(100);
const FAREWELL_MAX: u64 = 256;
/// How much longer than its deadline a request may still be carried out by the store.
const LATE_BY: Duration = Duration::from_millis(500);

/// Keeps one connection to one server.
pub(crate) struct Supervisor {
    pub(crate) config: RedisConfig,
    pub(crate) scripts: Scripts,
    pub(crate) pushes: Arc<Pushes>,
    /// Where this process listens.
    pub(crate) channel: String,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Is told of every grant that nobody here awaits.
    orphanage: Box<dyn Fn(Orphan) + Send + Sync>,
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
}

type Connected = Result<Arc<Live>, StoreError>;

/// A connection that works as far as we know.
pub(crate) struct Live {
    connection: MultiplexedConnection,
    pub(crate) server: Server,
    pub(crate) is_retired: Arc<AtomicBool>,
    /// The store's clock minus ours in µs, as of the newest answer: never too little.
    store_ahead: AtomicI64,
    /// Whether pushes reach this process.
    pub(crate) is_subscribed: bool,
    /// The newest name of a request: see [`Supervisor::latest`].
    named: AtomicU64,
    /// When the fence was last told to live on, by our clock in ns.
    fence_kept: AtomicU64,
    attention: Arc<Attention>,
    /// Who reads the pushes, where they have a connection of their own.
    _listener: Option<EndsWithUs>,
    /// What moves the bytes, where that is not the client library's business.
    _driver: Option<EndsWithUs>,
}

/// A task that ends when this is dropped, whatever it still waits for.
struct EndsWithUs(AbortHandle);

impl Drop for EndsWithUs {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer, and the exchange it came from.
pub(crate) struct Reply {
    pub(crate) value: Value,
    pub(crate) sent: BootInstant,
    pub(crate) live: Arc<Live>,
}

impl Supervisor {
    pub(crate) fn new(
        config: RedisConfig,
        pushes: Arc<Pushes>,
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
            orphanage: Box::new(orphanage),
            this: this.clone(),
            pushes,
            config,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store's moment, in µs, after which a request that is sent now must not be carried out any more. Never the
    /// same twice on one connection: it names the request, and its answer repeats it.
    pub(crate) fn latest(&self, live: &Live) -> u64 {
        let late = u64::try_from((self.config.timeout + LATE_BY).as_micros()).unwrap_or(u64::MAX);
        let latest = self.store_time(live).saturating_add(late);
        let before = live.named.fetch_max(latest, Ordering::Relaxed);
        if before < latest { latest } else { live.named.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// The store's moment, in µs, until which the answer to a request that is sent now is surely read: then, or when its
    /// deadline comes, everybody here that waits is told.
    pub(crate) fn awaits_until(&self, live: &Live) -> u64 {
        let half = u64::try_from(self.config.timeout.as_micros() / 2).unwrap_or(0);
        self.store_time(live).saturating_add(half)
    }

    /// Where this process is told, if it can be.
    pub(crate) fn channel_of(&self, live: &Live) -> &str {
        if live.is_subscribed { &self.channel } else { "" }
    }

    /// Reads the answers of a script. Replies that do not go with the requests end the connection: a middlebox may have
    /// delivered something twice.
    pub(crate) fn read(&self, reply: &mut Reply, asked: u64) -> Result<Answers, StoreError> {
        let answers = Answers::parse(std::mem::replace(&mut reply.value, Value::Nil), asked);
        match &answers {
            Ok(answers) => {
                if answers.store_micros > 0 {
                    reply.live.note_time(reply.sent, answers.store_micros);
                }
                // As if it were the whole answer: where the name leads now, there may be another server.
                if answers.came_from_a_replica() {
                    self.retire(&reply.live.is_retired);
                }
            }
            Err(StoreError::Unknown(_)) => self.retire(&reply.live.is_retired),
            Err(_) => {}
        }
        answers
    }

    /// Reads a reply that is one list, and takes the name of the request out of it.
    pub(crate) fn read_list(&self, reply: Reply, asked: u64) -> Result<Value, StoreError> {
        let list = reply::without_name(reply.value, asked);
        if list.is_err() {
            self.retire(&reply.live.is_retired);
        }
        list
    }

    /// The store's time now in µs, or a little more.
    fn store_time(&self, live: &Live) -> u64 {
        let now = i64::try_from(self.clock.now().as_nanos() / 1000).unwrap_or(i64::MAX);
        u64::try_from(now.saturating_add(live.store_ahead.load(Ordering::Relaxed))).unwrap_or(0)
    }

    /// Asks the server one thing, within the deadline. `command` is made for the connection it goes over.
    pub(crate) async fn ask(&self, command: impl FnOnce(&Live) -> Cmd) -> Result<Reply, StoreError> {
        let deadline = self.clock.now() + self.config.timeout;
        let live = self.live(deadline).await?;
        let sent = self.clock.now();
        let value = self.exchange(&live, vec![command(&live)], deadline).await?.remove(0);
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
        let commands = commands(self.store_time(&live));
        self.exchange(&live, commands, deadline).await
    }

    /// Sends commands, and after them their name: what a server answers to a plain command tells nobody to which.
    async fn exchange(
        &self,
        live: &Live,
        commands: Vec<Cmd>,
        deadline: BootInstant,
    ) -> Result<Vec<Value>, StoreError> {
        let (count, name) = (commands.len() + 1, self.latest(live));
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
    pub(crate) async fn run(&self, call: &impl Call, watch: Watch) -> Result<Reply, StoreError> {
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
        error::after_sending(problem)
    }

    /// The connection in use, or a new one.
    async fn live(&self, deadline: BootInstant) -> Connected {
        let mut connecting = {
            let mut state = self.state();
            if let Some(live) = &state.live {
                if !live.is_retired.load(Ordering::Acquire) {
                    return Ok(live.clone());
                }
                state.live = None;
            }
            match (&state.connecting, &state.next_try) {
                // Otherwise the runtime that it was made on has ended, and whoever connected with it.
                (Some(connecting), _) if connecting.has_changed().is_ok() => connecting.clone(),
                (None, Some((at, error))) if self.clock.now() < *at => return Err(error.clone()),
                (_, _) => {
                    let (sender, receiver) = watch::channel(None);
                    state.connecting = Some(receiver.clone());
                    let this = self.this.upgrade().expect("called on it");
                    // A task of its own: the callers that wait for it may give up.
                    tokio::spawn(async move { this.connect(sender).await });
                    receiver
                }
            }
        };
        let too_late = || {
            let message = format!("not connected within {:?}", self.config.timeout);
            StoreError::refused(RefusalKind::Unavailable, message)
        };
        tokio::select! {
            biased;
            connected = connecting.wait_for(Option::is_some) => match connected {
                Ok(connected) => connected.clone().unwrap_or_else(|| Err(too_late())),
                Err(_) => Err(too_late()),
            },
            () = sleep_until(self.clock.clone(), deadline) => Err(too_late()),
        }
    }

    async fn connect(self: Arc<Self>, done: watch::Sender<Option<Connected>>) {
        let deadline = self.clock.now() + self.config.timeout;
        let connected = tokio::select! {
            connected = self.open() => connected,
            () = sleep_until(self.clock.clone(), deadline) => Err(StoreError::refused(
                RefusalKind::Unavailable,
                format!("cannot connect: no answer within {:?}", self.config.timeout),
            )),
        };
        let connected = match connected {
            Err(error) if error.is_passing() => Err(self.farewell().await.unwrap_or(error)),
            connected => connected,
        };
        match &connected {
            Ok(_) => tracing::debug!(store = self.config.store(), "connected"),
            Err(error) => {
                tracing::info!(store = self.config.store(), %error, "cannot connect, will be tried again");
            }
        }
        let mut state = self.state();
        state.connecting = None;
        match &connected {
            Ok(live) => {
                state.live = Some(live.clone());
                (state.failures, state.next_try) = (0, None);
            }
            Err(error) => {
                let pause = PAUSE_MIN * 2_u32.pow(state.failures.min(8));
                let jitter = (1.0 + self.config.seams.entropy.fraction()) / 2.0;
                let pause = pause.min(PAUSE_MAX).mul_f64(jitter);
                state.failures += 1;
                state.next_try = Some((self.clock.now() + pause, error.clone()));
            }
        }
        drop(state);
        // Nobody may be waiting any more.
        let _ = done.send(Some(connected));
    }

    /// What a server says that hangs up on whoever connects: it does not wait to be asked, and what we had sent by then fails
    /// before anybody reads it.
    async fn farewell(&self) -> Option<StoreError> {
        let client = server::client(&self.config, ProtocolVersion::RESP2).ok()?;
        let attention = Arc::new(Attention::new(self.clock.clone(), false));
        let said = async {
            let stream = Stream::connect(client.get_connection_info(), attention).await?.ok()?;
            let mut said = Vec::new();
            stream.take(FAREWELL_MAX).read_to_end(&mut said).await.ok()?;
            Some(error::from_text(std::str::from_utf8(&said).ok()?.strip_prefix('-')?.trim_end()))
        };
        tokio::select! {
            said = said => said.filter(|said| matches!(said, StoreError::Refused(_))),
            () = sleep_until(self.clock.clone(), self.clock.now() + FAREWELL) => None,
        }
    }

    async fn open(self: &Arc<Self>) -> Connected {
        let resp3 = if self.config.resp2 {
            None
        } else {
            match self.open_with(ProtocolVersion::RESP3).await {
                Err(error) if is_without_resp3(&error) => None,
                opened => Some(opened),
            }
        };
        let opened = match resp3 {
            Some(opened) => opened,
            None => self.open_with(ProtocolVersion::RESP2).await,
        };
        opened.map_err(|problem| error::while_connecting(&problem))?
    }

    async fn open_with(self: &Arc<Self>, protocol: ProtocolVersion) -> RedisResult<Connected> {
        let client = server::client(&self.config, protocol)?;
        let is_retired = Arc::new(AtomicBool::new(false));
        let mut settings = AsyncConnectionConfig::new()
            // Deadlines are ours, on the clock that counts suspend.
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024);
        if protocol == ProtocolVersion::RESP3 {
            let (this, is_retired) = (self.this.clone(), is_retired.clone());
            settings = settings.set_push_sender(move |push: PushInfo| {
                if let Some(this) = this.upgrade() {
                    this.pushed(&is_retired, &push);
                }
                Ok::<(), ()>(())
            });
        }
        let attention = Arc::new(Attention::new(self.clock.clone(), self.config.spin));
        let info = client.get_connection_info();
        let (connection, driver) = match Stream::connect(info, attention.clone()).await {
            Some(stream) => {
                let login = info.redis_settings();
                let opened = MultiplexedConnection::new_with_config(login, stream?, settings);
                let (connection, driver) = opened.await?;
                (connection, Some(EndsWithUs(tokio::spawn(driver).abort_handle())))
            }
            None => (client.get_multiplexed_async_connection_with_config(&settings).await?, None),
        };
        let sent = self.clock.now();
        let subscribed = async {
            if protocol == ProtocolVersion::RESP3 {
                return connection.clone().subscribe(&self.channel).await.map(|()| None);
            }
            let mut pushes = client.get_async_pubsub().await?;
            pushes.subscribe(&self.channel).await?;
            let (this, is_retired) = (self.this.clone(), is_retired.clone());
            let listener = tokio::spawn(async move {
                let mut messages = pushes.into_on_message();
                while let Some(message) = messages.next().await {
                    let Some(this) = this.upgrade() else { return };
                    this.message(message.get_payload_bytes(), true);
                }
                if let Some(this) = this.upgrade() {
                    this.retire(&is_retired);
                }
            });
            Ok(Some(EndsWithUs(listener.abort_handle())))
        };
        let (subscribed, described) =
            tokio::join!(subscribed, server::describe(connection.clone(), &self.scripts, &self.config));
        let (server, store_micros) = match described {
            Ok(described) => described,
            Err(refused) => return Ok(Err(refused)),
        };
        let listener = match subscribed {
            Ok(listener) => Some(listener),
            Err(problem) if problem.code().is_none() => return Err(problem),
            Err(problem) => {
                // Works without, by looking again and again.
                if !std::mem::replace(&mut self.state().has_warned, true) {
                    tracing::warn!(store = self.config.store(), error = %problem, "no subscription: waiting means polling");
                }
                None
            }
        };
        let live = Live {
            connection,
            server,
            is_retired,
            store_ahead: AtomicI64::new(0),
            is_subscribed: listener.is_some(),
            _listener: listener.flatten(),
            named: AtomicU64::new(0),
            fence_kept: AtomicU64::new(0),
            attention,
            _driver: driver,
        };
        live.note_time(sent, store_micros);
        Ok(Ok(Arc::new(live)))
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
    }
}

/// Whether the server does not know a script by its hash: nothing was done then.
pub(crate) fn is_without_script(error: &StoreError) -> bool {
    matches!(error, StoreError::Unknown(text) if text.starts_with("NOSCRIPT"))
}

/// Whether the server does not speak RESP3, or whether that may at least be why it declined.
fn is_without_resp3(error: &redis::RedisError) -> bool {
    let text = error::describe(error);
    error.kind() == ErrorKind::RESP3NotSupported
        || text.contains("NOPROTO")
        || text.contains("unknown command")
}

impl Live {
    /// Whether it is time to let the fence live on: with the first attempt of a connection, and every minute.
    pub(crate) fn is_fence_due(&self, now: BootInstant) -> bool {
        let last = self.fence_kept.load(Ordering::Relaxed);
        let since = now.saturating_since(BootInstant::from_nanos(last));
        let is_due = last == 0 || since > Duration::from_secs(60);
        if is_due {
            self.fence_kept.store(now.as_nanos(), Ordering::Relaxed);
        }
        is_due
    }

    fn note_time(&self, sent: BootInstant, store_micros: u64) {
        let ours = i64::try_from(sent.as_nanos() / 1000).unwrap_or(i64::MAX);
        let ahead = i64::try_from(store_micros).unwrap_or(i64::MAX) - ours;
        self.store_ahead.store(ahead, Ordering::Relaxed);
    }
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
