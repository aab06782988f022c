//! What `tenure doctor` finds out about a server: what it is, what it will do to locks, what this user may not do.

mod nodes;

use std::time::Duration;

use redis::Cmd;
use tenure_core::{Answer, Backend, Deployment, Examine, Finding, Promise, StoreError, async_trait};

use crate::backend::Redis;
use crate::sentinel;
use crate::server::{Means, Syncs, field};
use crate::trial::trial;

/// What a store that loses locks breaks: two may hold one, and its tokens go by the clock.
const LOSS: &[Promise] = &[Promise::P1, Promise::P2, Promise::P3];

/// Clocks that differ by more than this make tokens and displayed times misleading.
const CLOCK_OFFSET_MAX: Duration = Duration::from_secs(1);

#[async_trait]
impl Examine for Redis {
    async fn examine(&self) -> Answer<Vec<Finding>> {
        match &self.buckets {
            Some(buckets) => nodes::examine(buckets).await,
            None => self.examine_server().await,
        }
    }
}

impl Redis {
    /// One server, or one node.
    async fn examine_server(&self) -> Answer<Vec<Finding>> {
        let info = self.text(&["INFO"]).await;
        let info_text = info.clone().unwrap_or_default();
        let (syncs, is_subscribed) = self.connection().await?;
        let mut findings = vec![self.server(&info_text)];
        if let Err(error) = info {
            findings.push(Finding::advice(
                "rights",
                format!("INFO is forbidden: {error}"),
                "grant +info: without it pushed grants cannot be dated, and most of this examination is blind",
            ));
        }
        findings.push(self.means());
        findings.extend(self.locks(is_subscribed).await?);
        findings.extend(self.eviction(&info_text).await);
        findings.push(self.persistence(&info_text, syncs));
        findings.push(replicas(&info_text));
        findings.extend(self.sentinels().await);
        findings.push(self.clock().await);
        findings.extend(self.room(&info_text).await);
        findings.push(self.encryption());
        Ok(findings)
    }

    /// When the server syncs, and whether pushes reach this process.
    async fn connection(&self) -> Answer<(Syncs, bool)> {
        let mut ping = Cmd::new();
        ping.arg("PING");
        let live = self.inner.place.ask(&ping).await?.live;
        Ok((live.server.syncs, live.is_subscribed()))
    }

    /// What this user may do with locks. Without a right that they need, a script may end half-way: then none is tried.
    async fn locks(&self, is_subscribed: bool) -> Answer<Vec<Finding>> {
        if self.inner.means != Means::Scripts {
            return Ok(trial(self, is_subscribed, true).await);
        }
        let rights = self.rights(is_subscribed).await?;
        let tried =
            if rights.suffice() { trial(self, is_subscribed, rights.may_list).await } else { Vec::new() };
        Ok(rights.findings.into_iter().chain(tried).collect())
    }

    async fn text(&self, words: &[&str]) -> Answer<String> {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        let reply = self.inner.place.ask(&command).await?;
        redis::from_redis_value(reply.value).map_err(|error| StoreError::unknown(error.to_string()))
    }

    /// One setting of the server; `None` if this user may not ask, or the server does not have it.
    async fn setting(&self, name: &str) -> Option<String> {
        let mut command = Cmd::new();
        command.arg("CONFIG").arg("GET").arg(name);
        let reply = self.inner.place.ask(&command).await.ok()?;
        let pairs: std::collections::HashMap<String, String> = redis::from_redis_value(reply.value).ok()?;
        pairs.get(name).cloned()
    }

    fn server(&self, info: &str) -> Finding {
        let name = match (field(info, "valkey_version"), field(info, "redis_version")) {
            (Some(version), _) => format!("Valkey {version}"),
            (None, Some(version)) => format!("Redis {version}"),
            (None, None) => "a server that does not say what it is".into(),
        };
        Finding::fine("server", format!("{name} at {}", self.inner.place.config().store()))
    }

    fn means(&self) -> Finding {
        match self.inner.means {
            Means::Scripts => Finding::fine("scripts", "allowed: hand-over in line, all modes"),
            Means::Native(_) => Finding::advice(
                "scripts",
                "forbidden: exclusive locks only, no line, waiters poll",
                "allow EVAL, EVALSHA and SCRIPT LOAD for this user",
            ),
        }
    }

    async fn eviction(&self, info: &str) -> Vec<Finding> {
        let policy = match field(info, "maxmemory_policy") {
            Some(policy) => policy.to_string(),
            None => match self.setting("maxmemory-policy").await {
                Some(policy) => policy,
                None => return Vec::new(),
            },
        };
        let has_limit = field(info, "maxmemory").is_none_or(|limit| limit != "0");
        vec![match (policy.as_str(), has_limit) {
            ("noeviction", _) => Finding::fine("eviction policy", "noeviction: held locks stay"),
            (_, false) => Finding::advice(
                "eviction policy",
                format!("{policy}, without a memory limit: nothing is evicted yet"),
                "set maxmemory-policy noeviction before somebody sets maxmemory",
            ),
            _ => Finding::problem(
                "eviction policy",
                format!("{policy}: a full server throws held locks away"),
                "set maxmemory-policy noeviction, or give locks a server of their own",
            )
            .at_stake(LOSS),
        }]
    }

    fn persistence(&self, info: &str, syncs: Syncs) -> Finding {
        const SUBJECT: &str = "persistence";
        let remedy = "appendonly yes and appendfsync always, if locks must survive a crash of the server; or let the \
                      resource check tokens";
        // With replicas, the promises do not depend on it.
        let at_stake: &[Promise] = match self.capabilities().deployment {
            Deployment::RedisReplicated => &[],
            _ => LOSS,
        };
        match (field(info, "aof_enabled"), syncs) {
            (Some("1"), Syncs::Always) => {
                Finding::fine(SUBJECT, "every change is on disk before it is answered")
            }
            (Some("1"), Syncs::NotInRewrites) => Finding::advice(
                SUBJECT,
                "no-appendfsync-on-rewrite: changes made while the file is rewritten are lost in a crash",
                "no-appendfsync-on-rewrite no, if locks must survive a crash of the server",
            ),
            (Some("1"), Syncs::Later) => Finding::advice(
                SUBJECT,
                "appendfsync is not always: the last second of locks is lost in a crash",
                remedy,
            ),
            (Some("1"), Syncs::Unknown) => Finding::unknown(
                SUBJECT,
                "an append-only file, but this user may not ask whether appendfsync is always",
                "grant +config|get to find out",
            )
            .at_stake(at_stake),
            (Some(_), _) => Finding::advice(
                SUBJECT,
                "no append-only file: locks are lost when the server is killed",
                remedy,
            ),
            (None, _) => Finding::unknown(
                SUBJECT,
                "the server does not say",
                "grant +info and +config|get to find out",
            )
            .at_stake(at_stake),
        }
    }

    /// Whether the sentinels are there and of one mind, and what becomes of a primary that is cut off from them.
    async fn sentinels(&self) -> Vec<Finding> {
        const SUBJECT: &str = "sentinels";
        let config = self.inner.place.config();
        let Some(sentinels) = config.sentinels() else { return Vec::new() };
        let said = sentinel::each(config, sentinels).await;
        let newest =
            said.iter().filter_map(|(_, said)| said.as_ref().ok()).max_by_key(|primary| primary.epoch);
        let amiss: Vec<String> = said
            .iter()
            .filter_map(|(host, said)| match said {
                Ok(primary) if newest.is_some_and(|newest| newest.host != primary.host) => {
                    Some(format!("{host} names {}", primary.host))
                }
                Ok(_) => None,
                Err(refusal) => Some(format!("{host}: {}", refusal.message)),
            })
            .collect();
        let place = newest.map_or_else(|| "none".into(), |primary| primary.host.to_string());
        let count = said.len();
        let mut findings = vec![if !amiss.is_empty() {
            Finding::advice(
                SUBJECT,
                format!("{} of {count} name {place}; {}", count - amiss.len(), amiss.join("; ")),
                "bring them back: most of them are needed to replace a primary",
            )
        } else if count < 3 {
            Finding::advice(
                SUBJECT,
                format!("all {count} in the URL name {place}"),
                "run three, on three machines, and name them all: fewer cannot agree when one is gone",
            )
        } else {
            Finding::fine(SUBJECT, format!("all {count} name {place}"))
        }];
        if self.setting("min-replicas-to-write").await.is_some_and(|least| least == "0") {
            findings.push(Finding::advice(
                "a primary cut off",
                "min-replicas-to-write is 0: it goes on granting locks to clients that still reach it",
                "min-replicas-to-write 1 and min-replicas-max-lag 10, on every server",
            ));
        }
        findings
    }

    async fn clock(&self) -> Finding {
        let clock = &self.inner.clock;
        let (before, wall) = (clock.now(), clock.unix_micros());
        let mut time = Cmd::new();
        time.arg("TIME");
        let theirs = match self.inner.place.ask(&time).await {
            Ok(reply) => {
                redis::from_redis_value::<(u64, u64)>(reply.value).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        let round_trip = clock.now().saturating_since(before);
        let (seconds, micros) = match theirs {
            Ok(time) => time,
            Err(error) => return Finding::problem("clock", format!("TIME failed: {error}"), "grant +time"),
        };
        let theirs = seconds.saturating_mul(1_000_000).saturating_add(micros);
        let offset = Duration::from_micros(theirs.abs_diff(wall)).saturating_sub(round_trip);
        let direction = if theirs > wall { "ahead of" } else { "behind" };
        if offset > CLOCK_OFFSET_MAX {
            return Finding::advice(
                "clock",
                format!("{offset:.1?} {direction} this machine's"),
                "run NTP on both: locks do not depend on it, but tokens after a loss of data do",
            );
        }
        Finding::fine("clock", format!("within {CLOCK_OFFSET_MAX:?} of this machine's"))
    }

    async fn room(&self, info: &str) -> Vec<Finding> {
        let clients = field(info, "connected_clients").and_then(|n| n.parse::<u64>().ok());
        let max = match field(info, "maxclients") {
            Some(max) => Some(max.to_string()),
            None => self.setting("maxclients").await,
        };
        let (Some(clients), Some(max)) = (clients, max.and_then(|max| max.parse::<u64>().ok())) else {
            return Vec::new();
        };
        let observed = format!("{clients} of {max} clients connected");
        vec![if clients * 10 > max * 8 {
            Finding::problem("room for clients", observed, "raise maxclients, or find who leaks connections")
        } else {
            Finding::fine("room for clients", observed)
        }]
    }

    fn encryption(&self) -> Finding {
        let config = self.inner.place.config();
        if config.is_encrypted() {
            Finding::fine("encryption", "TLS, with the server's name checked")
        } else if config.is_local() {
            Finding::fine("encryption", "none, and the server is on this machine")
        } else {
            Finding::advice(
                "encryption",
                "none: passwords and claim ids travel readable",
                "use rediss://, or a network that nobody else is on",
            )
        }
    }
}

fn replicas(info: &str) -> Finding {
    match (field(info, "role"), field(info, "connected_slaves")) {
        (Some("master"), Some("0")) => Finding::fine("replicas", "none"),
        (Some("master"), Some(count)) => Finding::advice(
            "replicas",
            format!("{count}: one that takes over may not know the newest locks"),
            "let the resource check tokens: they rise through a failover",
        ),
        (Some(_), _) => {
            Finding::problem("replicas", "this server is itself a replica", "connect to its primary")
        }
        (None, _) => Finding::unknown("replicas", "the server does not say", "grant +info to find out"),
    }
}
