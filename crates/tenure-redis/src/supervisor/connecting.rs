//! Opening the connection: one at a time, with pauses in between while that fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, ProtocolVersion, PushInfo, RedisResult};
use tenure_core::clock::sleep_until;
use tenure_core::{BootInstant, RefusalKind, StoreError};
use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::{Connected, Live, Supervisor};
use crate::attention::Attention;
use crate::config::Host;
use crate::error;
use crate::sentinel;
use crate::server;
use crate::stream::Stream;

/// The first pause after a failed connect; doubled by every further failure.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause between two tries to connect.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long to listen to a server that has hung up before, and for how many bytes.
const FAREWELL: Duration = Duration::from_millis(100);
const FAREWELL_MAX: u64 = 256;

/// How many connections there were.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// A task that ends when this is dropped, whatever it still waits for.
pub(super) struct EndsWithUs(AbortHandle);

impl Drop for EndsWithUs {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Supervisor {
    /// The connection in use, or a new one.
    pub(super) async fn live(&self, deadline: BootInstant) -> Connected {
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

    /// Leaves the primary as soon as a sentinel names another.
    fn listen_to_sentinels(&self, is_retired: &Arc<AtomicBool>) -> Vec<EndsWithUs> {
        let (Some(sentinels), Some(known)) = (self.config.sentinels(), self.state().primary.clone()) else {
            return Vec::new();
        };
        let listen = |host: &Host| {
            let (this, is_retired) = (self.this.clone(), is_retired.clone());
            let replaced = sentinel::until_replaced(self.config.clone(), host.clone(), known.clone());
            let task = tokio::spawn(async move {
                let epoch = replaced.await;
                if let Some(this) = this.upgrade() {
                    this.newest_epoch.fetch_max(epoch, Ordering::AcqRel);
                    this.retire(&is_retired);
                }
            });
            EndsWithUs(task.abort_handle())
        };
        sentinels.hosts.iter().map(listen).collect()
    }

    /// What a server says that hangs up on whoever connects: it does not wait to be asked, and what we had sent by then fails
    /// before anybody reads it.
    async fn farewell(&self) -> Option<StoreError> {
        let client = self.client(ProtocolVersion::RESP2).ok()?;
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

    /// A client for the server, where it was last.
    fn client(&self, protocol: ProtocolVersion) -> RedisResult<Client> {
        let primary = self.state().primary.clone();
        if self.config.sentinels().is_some() && primary.is_none() {
            return Err((ErrorKind::InvalidClientConfig, "no sentinel has named a primary yet").into());
        }
        let host = primary.as_ref().map(|primary| &primary.host);
        server::client(&self.config, self.config.connection_info(protocol, host))
    }

    async fn open(self: &Arc<Self>) -> Connected {
        if let Some(sentinels) = self.config.sentinels() {
            let known = self.newest_epoch.load(Ordering::Acquire);
            let primary = sentinel::find(&self.config, sentinels, known).await?;
            self.newest_epoch.fetch_max(primary.epoch, Ordering::AcqRel);
            self.state().primary = Some(primary);
        }
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
        let client = self.client(protocol)?;
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
            keeper: self.this.clone(),
            clock: self.clock.clone(),
            timeout: self.config.timeout,
            connection,
            server,
            _sentinels: self.listen_to_sentinels(&is_retired),
            is_retired,
            store_ahead: AtomicI64::new(0),
            channel: listener.is_some().then(|| self.channel.clone()),
            _listener: listener.flatten(),
            named: AtomicU64::new(0),
            number: OPENED.fetch_add(1, Ordering::Relaxed) + 1,
            attention,
            _driver: driver,
        };
        live.note_time(sent, store_micros);
        Ok(Ok(Arc::new(live)))
    }
}

/// Whether the server does not speak RESP3, or whether that may at least be why it declined.
fn is_without_resp3(error: &redis::RedisError) -> bool {
    let text = error::describe(error);
    error.kind() == ErrorKind::RESP3NotSupported
        || text.contains("NOPROTO")
        || text.contains("unknown command")
}
