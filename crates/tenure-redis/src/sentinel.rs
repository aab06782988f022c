//! Sentinels: which server is the primary, and the news that it is another one.
//!
//! They are all asked at once, and the newest of their answers counts, by its epoch: one that was cut off from the others
//! and still names the old primary does not lead anybody back to it, as long as most of them answer. While a connection is
//! in use, each of them is listened to: a primary that was replaced is left at once, also if it still answers.

use std::collections::HashMap;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, RedisResult};
use tenure_core::clock::sleep_until;
use tenure_core::{Refusal, RefusalKind, StoreError};

use crate::config::{Host, RedisConfig, Sentinels};
use crate::error;
use crate::server;

/// Where a sentinel tells that a primary was replaced.
const SWITCHED: &str = "+switch-master";
/// How long after a sentinel could not be listened to, at the most, it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The server that sentinels name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Primary {
    pub(crate) host: Host,
    /// What they call it and its replicas together.
    group: String,
    /// Rises with every failover.
    pub(crate) epoch: u64,
}

/// Which server is the primary. Waits for most of the sentinels, and for news as new as of `epoch`; but not for long, if
/// there is any answer.
pub(crate) async fn find(
    config: &RedisConfig,
    sentinels: &Sentinels,
    epoch: u64,
) -> Result<Primary, StoreError> {
    let clock = &config.seams.clock;
    let asked =
        sentinels.hosts.iter().map(|host| async move { (host, named_by(config, sentinels, host).await) });
    let mut asked: FuturesUnordered<_> = asked.collect();
    let mut long = pin!(sleep_until(clock.clone(), clock.now() + config.timeout / 4));
    let (mut newest, mut answered, mut is_long) = (None::<Primary>, 0, false);
    let mut problems = Vec::new();
    loop {
        tokio::select! {
            biased;
            next = asked.next() => match next {
                Some((_, Ok(primary))) => {
                    answered += 1;
                    newest = newest.filter(|other| other.epoch >= primary.epoch).or(Some(primary));
                }
                Some((host, Err(problem))) => problems.push((host, problem)),
                None => break,
            },
            () = &mut long, if !is_long => is_long = true,
        }
        let are_most = answered * 2 > sentinels.hosts.len();
        let is_enough = |primary: &Primary| is_long || are_most && primary.epoch >= epoch;
        if newest.as_ref().is_some_and(is_enough) {
            break;
        }
    }
    newest.ok_or_else(|| nobody_knows(&sentinels.group, &problems))
}

/// What each of the sentinels says, within the deadline of a request.
pub(crate) async fn each<'a>(
    config: &RedisConfig,
    sentinels: &'a Sentinels,
) -> Vec<(&'a Host, Result<Primary, Refusal>)> {
    let asked = sentinels.hosts.iter().map(|host| async move {
        let answer = in_time(config, named_by(config, sentinels, host)).await;
        (host, answer.map_err(|problem| refusal(&sentinels.group, &problem)))
    });
    futures_util::future::join_all(asked).await
}

async fn named_by(config: &RedisConfig, sentinels: &Sentinels, host: &Host) -> RedisResult<Primary> {
    ask(&server::client(config, config.sentinel_info(host))?, &sentinels.group).await
}

/// Completes when a sentinel says that the primary is another than `known`; answers the epoch of that.
pub(crate) async fn until_replaced(config: RedisConfig, host: Host, known: Primary) -> u64 {
    let clock = &config.seams.clock;
    loop {
        match listen(&config, &host, &known).await {
            Ok(epoch) => return epoch,
            Err(problem) => tracing::debug!(sentinel = %host, error = %problem, "cannot be listened to"),
        }
        let pause = AGAIN.mul_f64((1.0 + config.seams.entropy.fraction()) / 2.0);
        sleep_until(clock.clone(), clock.now() + pause).await;
    }
}

async fn listen(config: &RedisConfig, host: &Host, known: &Primary) -> RedisResult<u64> {
    let client = server::client(config, config.sentinel_info(host))?;
    let subscribed = async {
        let mut news = client.get_async_pubsub().await?;
        news.subscribe(SWITCHED).await?;
        RedisResult::Ok(news.into_on_message())
    };
    let mut news = in_time(config, subscribed).await?;
    loop {
        // Asked after it is listened to: so nothing is missed.
        let primary = in_time(config, ask(&client, &known.group)).await?;
        if primary.epoch > known.epoch && primary.host != known.host {
            return Ok(primary.epoch);
        }
        if news.next().await.is_none() {
            return Err((ErrorKind::Io, "the sentinel has hung up").into());
        }
    }
}

/// The answer, if it comes within the deadline of a request.
async fn in_time<T>(config: &RedisConfig, answer: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let clock = &config.seams.clock;
    tokio::select! {
        biased;
        answer = answer => answer,
        () = sleep_until(clock.clone(), clock.now() + config.timeout) => {
            Err((ErrorKind::Io, "the sentinel does not answer").into())
        }
    }
}

async fn ask(client: &Client, group: &str) -> RedisResult<Primary> {
    // Deadlines are ours, on the clock that counts suspend.
    let settings = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let mut connection = client.get_multiplexed_async_connection_with_config(&settings).await?;
    let mut question = redis::cmd("SENTINEL");
    question.arg("MASTER").arg(group);
    let said: HashMap<String, String> = question.query_async(&mut connection).await?;
    let primary = || {
        let host = Host { name: said.get("ip")?.clone(), port: said.get("port")?.parse().ok()? };
        Some(Primary { host, group: group.into(), epoch: said.get("config-epoch")?.parse().ok()? })
    };
    primary().ok_or_else(|| (ErrorKind::UnexpectedReturnType, "the sentinel does not say where it is").into())
}

/// Why none of them named a primary. Something that does not pass by itself first.
fn nobody_knows(group: &str, problems: &[(&Host, RedisError)]) -> StoreError {
    let refusals: Vec<(&Host, Refusal)> =
        problems.iter().map(|(host, problem)| (*host, refusal(group, problem))).collect();
    let is_lasting = |refusal: &&Refusal| refusal.kind != RefusalKind::Unavailable;
    let lasting = refusals.iter().map(|(_, refusal)| refusal).find(is_lasting);
    let kind = lasting.map_or(RefusalKind::Unavailable, |refusal| refusal.kind);
    let each: Vec<String> =
        refusals.iter().map(|(host, refusal)| format!("{host}: {}", refusal.message)).collect();
    StoreError::refused(kind, format!("no sentinel names a primary: {}", each.join("; ")))
}

fn refusal(group: &str, problem: &RedisError) -> Refusal {
    let words = error::describe(problem);
    let (kind, message) = if words.contains("No such master") {
        (RefusalKind::Configuration, format!("it knows none that is called {group:?}"))
    } else if words.contains("unknown command") {
        (RefusalKind::Configuration, format!("it is no sentinel ({words})"))
    } else {
        match error::while_connecting(problem) {
            StoreError::Refused(refusal) => return refusal,
            StoreError::Unknown(text) => (RefusalKind::Unavailable, text),
        }
    };
    Refusal { kind, message }
}
