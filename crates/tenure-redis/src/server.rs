//! The server at the other end: how to reach it, which one it is, what it can do. Found out once per connection.

use std::collections::HashMap;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, ConnectionInfo, RedisResult, Value};
use tenure_core::{Deployment, RefusalKind, StoreError};

use crate::config::RedisConfig;
use crate::error;
use crate::keys::Layout;
use crate::scripts::{LAYOUT, Scripts};

/// What is known of a server.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    /// Tells this run of the server from every other; empty if it does not say.
    pub(crate) run_id: Arc<str>,
    /// How it carries locks out.
    pub(crate) means: Means,
    /// What it promises to remember.
    pub(crate) deployment: Deployment,
    pub(crate) syncs: Syncs,
}

/// When a server with an append-only file has a change on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Syncs {
    /// Before it answers.
    Always,
    /// Before it answers, but not while it rewrites the file.
    NotInRewrites,
    /// Some time later.
    Later,
    /// It may not be asked.
    Unknown,
}

impl Syncs {
    fn read(settings: &HashMap<String, String>) -> Self {
        let is = |name: &str, value: &str| settings.get(name).is_some_and(|set| set == value);
        match (settings.contains_key("appendfsync"), is("appendfsync", "always")) {
            (false, _) => Self::Unknown,
            (true, false) => Self::Later,
            (true, true) if is("no-appendfsync-on-rewrite", "yes") => Self::NotInRewrites,
            (true, true) => Self::Always,
        }
    }
}

/// How a server carries locks out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    /// By our scripts.
    Scripts,
    /// By its own compare-and-set commands, scripts being forbidden.
    Native(Native),
}

/// The commands of a server that can compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Native {
    /// `SET … IFEQ` and `DELIFEQ`: Valkey 9.
    Valkey,
    /// `SET … IFEQ` and `DELEX … IFEQ`: Redis 8.4.
    Redis,
}

/// A client of the library for a server or a sentinel of this configuration.
#[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "it names the certificates"))]
pub(crate) fn client(config: &RedisConfig, info: ConnectionInfo) -> RedisResult<Client> {
    #[cfg(feature = "tls")]
    if let redis::ConnectionAddr::TcpTls { .. } = info.addr() {
        // The library leaves the choice of cryptography to the program. If the program has made one, it stands.
        let _ = rustls::crypto::ring::default_provider().install_default();
        return Client::build_with_tls(info, certificates(config)?)
            .map_err(|problem| unusable("the certificates cannot be used", &problem));
    }
    Client::open(info)
}

/// What the files of `ca`, `cert` and `key` hold.
#[cfg(feature = "tls")]
fn certificates(config: &RedisConfig) -> RedisResult<redis::TlsCertificates> {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

    let is_certificate = |text: &[u8]| matches!(CertificateDer::pem_slice_iter(text).next(), Some(Ok(_)));
    let is_key = |text: &[u8]| PrivateKeyDer::from_pem_slice(text).is_ok();
    let root_cert = read("ca", config.ca.as_deref(), is_certificate, "a file holds no certificate")?;
    let client_cert = read("cert", config.cert.as_deref(), is_certificate, "a file holds no certificate")?;
    let client_key = read("key", config.key.as_deref(), is_key, "a file holds no private key")?;
    let client_tls = client_cert.zip(client_key);
    let client_tls =
        client_tls.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
    Ok(redis::TlsCertificates { client_tls, root_cert })
}

/// The file that an option names, if it is what it should be. A file without a certificate would leave nobody to trust,
/// which looks like a server that cannot be reached.
#[cfg(feature = "tls")]
fn read(
    option: &str,
    path: Option<&std::path::Path>,
    fits: impl Fn(&[u8]) -> bool,
    otherwise: &'static str,
) -> RedisResult<Option<Vec<u8>>> {
    let Some(path) = path else { return Ok(None) };
    let named = format!("{option}={}", path.display());
    let text = std::fs::read(path)
        .map_err(|problem| unusable("a file cannot be read", &format!("{named}: {problem}")))?;
    if fits(&text) { Ok(Some(text)) } else { Err(unusable(otherwise, &named)) }
}

#[cfg(feature = "tls")]
fn unusable(what: &'static str, detail: &impl ToString) -> redis::RedisError {
    (redis::ErrorKind::InvalidClientConfig, what, detail.to_string()).into()
}

/// The hash of no script: a server that lets us call scripts answers that it does not know this one.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";

/// Asks the server who it is, what time it has, and whether it takes our scripts: all in one round trip.
pub(crate) async fn describe(
    connection: MultiplexedConnection,
    scripts: &Scripts,
    config: &RedisConfig,
) -> Result<(Server, u64), StoreError> {
    let ask = |words: &[&str]| {
        let mut command = Cmd::new();
        words.iter().for_each(|word| {
            command.arg(*word);
        });
        let mut connection = connection.clone();
        async move {
            let answer = connection.send_packed_command(&command).await;
            answer.and_then(Value::extract_error)
        }
    };
    let load = async {
        let loads = scripts.all().map(|script| ask(&["SCRIPT", "LOAD", &script.code]));
        futures_util::future::join_all(loads).await
    };
    // To load is one right, to call is another.
    let call = async {
        match ask(&["EVALSHA", NO_SCRIPT, "0"]).await {
            Err(problem) if problem.code() == Some("NOSCRIPT") => Ok(Value::Nil),
            answer => answer,
        }
    };
    let nowhere = format!("{}:{{}}", config.prefix);
    let fence = Layout::new(&config.prefix, config.plain).fence().to_owned();
    let (time, layouts, info, fsync, loaded, called, delifeq, delex) = tokio::join!(
        ask(&["TIME"]),
        ask(&["ZRANGE", &fence, "0", "-1"]),
        ask(&["INFO"]),
        ask(&["CONFIG", "GET", "*appendfsync*"]),
        load,
        call,
        ask(&["DELIFEQ", &nowhere, "-"]),
        ask(&["DELEX", &nowhere, "IFEQ", "-"]),
    );
    let time = time.map_err(|problem| error::while_connecting(&problem))?;
    let store_micros = micros(&time).ok_or_else(|| StoreError::unknown("the server's TIME is no time"))?;
    // If it cannot be asked for, or is something else, the first attempt finds out.
    let layouts = layouts.ok().and_then(|layouts| redis::from_redis_value::<Vec<String>>(layouts).ok());
    if let Some(other) = layouts.unwrap_or_default().iter().find(|layout| *layout != LAYOUT) {
        return Err(error::from_text(&format!("LAYOUT {other}")));
    }
    // INFO may be forbidden: then pushes cannot be dated, and waiters ask once more. Nothing else is lost.
    let info = info.ok().and_then(|info| redis::from_redis_value::<String>(info).ok()).unwrap_or_default();
    check_version(&info)?;
    match (field(&info, "cluster_enabled"), config.is_node()) {
        (Some("1"), false) => return Err(StoreError::refused(RefusalKind::Configuration, error::CLUSTER)),
        (Some("0"), true) => {
            return Err(StoreError::refused(RefusalKind::Configuration, error::NO_CLUSTER));
        }
        _ => {}
    }
    // Whoever goes by sentinels or by a cluster wants the primary, and it may have been replaced since they were asked.
    let (role, is_replaceable) = (field(&info, "role"), config.sentinels().is_some() || config.is_node());
    if is_replaceable && role.is_some_and(|role| role != "master") {
        let message = "the server that was named as the primary is a replica: a failover is under way";
        return Err(StoreError::refused(RefusalKind::Unavailable, message));
    }
    let run_id = field(&info, "run_id").unwrap_or_default().into();
    let means = match loaded.into_iter().chain([called]).collect::<RedisResult<Vec<_>>>() {
        Ok(_) => Means::Scripts,
        Err(problem) => without_scripts(&problem, delifeq, delex)?,
    };
    if config.is_node() && means != Means::Scripts {
        let message = "scripts are forbidden here, and in a cluster there is no way without: allow EVAL, EVALSHA and SCRIPT LOAD";
        return Err(StoreError::refused(RefusalKind::Unsupported, message));
    }
    let settings = fsync.ok().and_then(|settings| redis::from_redis_value(settings).ok());
    let syncs = Syncs::read(&settings.unwrap_or_default());
    let deployment = match is_replaceable {
        // Its replicas may be away at the moment.
        true => Deployment::RedisReplicated,
        false => deployment(&info, syncs == Syncs::Always),
    };
    Ok((Server { run_id, means, deployment, syncs }, store_micros))
}

/// What is left where scripts fail: the commands that compare, if the server has them and we may use them.
fn without_scripts(
    problem: &redis::RedisError,
    delifeq: RedisResult<Value>,
    delex: RedisResult<Value>,
) -> Result<Means, StoreError> {
    // Not now is not never.
    let is_passing = || error::from_text(&error::describe(problem)).is_passing() && !is_unknown(problem);
    if problem.code().is_none() || is_passing() {
        return Err(error::while_connecting(problem));
    }
    let words = error::describe(problem);
    let (valkey, redis) = match (delifeq, delex) {
        (Ok(_), _) => return Ok(Means::Native(Native::Valkey)),
        (_, Ok(_)) => return Ok(Means::Native(Native::Redis)),
        (Err(valkey), Err(redis)) => (valkey, redis),
    };
    let forbidden = [valkey, redis].into_iter().find(|problem| !is_unknown(problem));
    Err(match forbidden {
        Some(other) => StoreError::refused(
            RefusalKind::Permission,
            format!(
                "scripts are forbidden here ({words}), and so is what does without them ({}): allow EVAL, EVALSHA and \
                 SCRIPT LOAD, or the rule for servers without scripts in the documentation of this backend",
                error::describe(&other)
            ),
        ),
        None => StoreError::refused(
            RefusalKind::Unsupported,
            format!(
                "scripts are forbidden here ({words}), and this server has no commands that do without: allow EVAL, \
                 EVALSHA and SCRIPT LOAD, or use Valkey 9 or Redis 8.4"
            ),
        ),
    })
}

/// Whether the server does not know the command: renamed away, or not there.
fn is_unknown(problem: &redis::RedisError) -> bool {
    error::describe(problem).contains("unknown")
}

/// What `TIME` answers, in µs.
pub(crate) fn micros(time: &Value) -> Option<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value_ref(time).ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}

pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(str::trim)
}

/// What the server says of its replicas and its disk. If it says nothing, the least is assumed.
fn deployment(info: &str, syncs_always: bool) -> Deployment {
    let is_replicated = field(info, "role").is_some_and(|role| role != "master")
        || field(info, "connected_slaves").is_some_and(|replicas| replicas != "0");
    match (is_replicated, field(info, "aof_enabled")) {
        (true, _) => Deployment::RedisReplicated,
        (false, Some("1")) if syncs_always => Deployment::RedisDurable,
        _ => Deployment::RedisForgetful,
    }
}

/// Redis before 6.2 lacks what the scripts need; Valkey was never that old.
fn check_version(info: &str) -> Result<(), StoreError> {
    if field(info, "valkey_version").is_some() {
        return Ok(());
    }
    let Some(version) = field(info, "redis_version") else { return Ok(()) };
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) < (6, 2) => Err(StoreError::refused(
            RefusalKind::Unsupported,
            format!("this is Redis {version}: 6.2 or newer is needed"),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_cannot_be_is_none() {
        let time = |seconds: i64| Value::Array(vec![Value::Int(seconds), Value::Int(7)]);
        assert_eq!(micros(&time(1)), Some(1_000_007));
        assert_eq!(micros(&time(i64::MAX)), None);
        assert_eq!(micros(&time(-1)), None);
    }

    #[test]
    fn what_is_not_said_about_the_disk_is_not_known() {
        let syncs = |settings: &[(&str, &str)]| {
            Syncs::read(&settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
        };
        assert_eq!(syncs(&[]), Syncs::Unknown);
        assert_eq!(syncs(&[("appendfsync", "everysec")]), Syncs::Later);
        assert_eq!(syncs(&[("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no")]), Syncs::Always);
        let in_part = [("appendfsync", "always"), ("no-appendfsync-on-rewrite", "yes")];
        assert_eq!(syncs(&in_part), Syncs::NotInRewrites);
    }

    #[test]
    fn old_servers_are_refused_and_new_ones_are_not() {
        for (info, fits) in [
            ("redis_version:6.0.16\r\nrun_id:abc\r\n", false),
            ("redis_version:6.2.14\r\n", true),
            ("redis_version:7.0.15\r\n", true),
            ("redis_version:7.2.4\r\nvalkey_version:9.1.2\r\n", true),
            ("", true),
        ] {
            assert_eq!(check_version(info).is_ok(), fits, "{info}");
        }
        assert_eq!(
            deployment("role:master\r\nconnected_slaves:0\r\naof_enabled:1\r\n", true),
            Deployment::RedisDurable
        );
        assert_eq!(deployment("role:master\r\naof_enabled:1\r\n", false), Deployment::RedisForgetful);
        assert_eq!(deployment("connected_slaves:1\r\naof_enabled:1\r\n", true), Deployment::RedisReplicated);
        assert_eq!(deployment("", true), Deployment::RedisForgetful);
        assert_eq!(field("a:1\r\nrun_id:abc\r\n", "run_id"), Some("abc"));
    }
}
