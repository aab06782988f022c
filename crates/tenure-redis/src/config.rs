//! [`RedisConfig`]: which server, as whom, and how.
//!
//! Parsed once, from a URL; whatever is wrong with it is refused here, by name, before anything is sent.

mod hosts;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};
use tenure_core::queue::Rules;
use tenure_core::{RefusalKind, Seams, StoreError};
use url::Url;

use crate::error;
pub(crate) use hosts::{Host, Hosts, Sentinels};

/// Which Redis or Valkey server to use, as whom, and how. Made from a URL:
///
/// | URL | |
/// |---|---|
/// | `redis://[user[:password]@]host[:6379][/0]` | TCP; `valkey://` is the same |
/// | `rediss://…` | TLS, with the host's name checked; `valkeys://` is the same |
/// | `redis+unix:///path/to/socket?db=0&user=u&pass=p` | a Unix socket |
/// | `redis+cluster://[user[:password]@]host[:6379][,host…]` | a cluster that these hosts are of; `rediss+cluster://` with TLS to all of them |
/// | `redis+sentinel://[user[:password]@]host[:26379][,host…]/NAME[/0]` | the primary that the sentinels name; `rediss+sentinel://` with TLS to all of them |
///
/// Each option is a query parameter, named like its field here. A user needs a password, there or in
/// [`password`](Self::password): without one, the server would take us for its default user.
///
/// ```
/// # mod tenure { pub use tenure_redis as redis; }
/// use tenure::redis::RedisConfig;
///
/// let config = RedisConfig::from_url("redis://app:secret@db1/2?timeout=500ms")?;
/// assert_eq!(config.store(), "redis://app@db1:6379/2");
/// let error = RedisConfig::from_url("redis://db1?tiemout=1s").unwrap_err();
/// assert!(error.to_string().contains("tiemout"));
/// # Ok::<(), tenure_core::StoreError>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisConfig {
    /// Share locks with clients that do `SET name value NX PX ttl`: the main key is exactly the lock's name
    /// (`?plain`; no).
    pub plain: bool,
    /// What every key and channel starts with, a colon after it (`?prefix=`; `tenure`).
    pub prefix: String,
    /// How long one request may take before its outcome counts as unknown and its connection is replaced
    /// (`?timeout=`; 2 s).
    pub timeout: Duration,
    /// Speak RESP2 though the server could RESP3: takes a second connection for pushes (`?protocol=resp2`; no).
    pub resp2: bool,
    /// Watch for the answer to a request that travels alone, for at most 100 µs, instead of sleeping until it comes: half
    /// the latency where the server is near, for more of a processor (`?spin=`; yes). Has no effect with TLS, nor where
    /// there is only one processor.
    pub spin: bool,
    /// Hand a lock on to the next in line within this process before the server hears of it, which is told right after:
    /// several times as many hand-overs (`?hand_on=`; yes). Without it, every hand-over is the server's: what it shows is
    /// never a round trip old. Each client may say for itself.
    pub hand_on: bool,
    /// The certificates to trust instead of the system's, as PEM (`?ca=PATH`).
    pub ca: Option<PathBuf>,
    /// The certificate to show, as PEM (`?cert=PATH`, with `key`).
    pub cert: Option<PathBuf>,
    /// Its private key, as PEM (`?key=PATH`, with `cert`).
    pub key: Option<PathBuf>,
    /// The password, if it does not stand in the URL. Stronger than the one in the URL.
    pub password: Option<String>,
    /// As whom to ask the sentinels (`?sentinel_user=`).
    pub sentinel_user: Option<String>,
    /// The password for the sentinels (`?sentinel_password=`). That of the server is another.
    pub sentinel_password: Option<String>,
    /// The lengths and limits of lines. MUST be equal for all clients of a store; for tests.
    pub rules: Rules,
    /// Where time and randomness come from.
    pub seams: Seams,
    /// Where there are sentinels, or a cluster, they say which host it is.
    address: ConnectionInfo,
    hosts: Option<Hosts>,
    /// It is of a node of a cluster.
    is_node: bool,
    store: String,
}

impl RedisConfig {
    /// Reads a URL.
    ///
    /// # Errors
    /// A refusal of kind `Configuration` that names what is wrong, without any password.
    pub fn from_url(url: &str) -> Result<Self, StoreError> {
        let (hosts, without) = hosts::in_url(url)?.unzip();
        let scheme = url.split(':').next().unwrap_or_default();
        let mut url = Url::parse(without.as_deref().unwrap_or(url))
            .map_err(|error| bad(format!("this is no URL: {error}")))?;
        let is_socket = match url.scheme() {
            "redis" | "rediss" | "valkey" | "valkeys" => false,
            "unix" | "redis+unix" | "valkey+unix" => true,
            other => return Err(bad(format!("{other:?} is no scheme of Redis or Valkey: try redis://"))),
        };
        if url.fragment().is_some() {
            return Err(bad("a URL of this store has no #fragment".into()));
        }
        let mut options = Options::default();
        let mut for_client = Vec::new();
        for (name, value) in url.query_pairs() {
            match &*name {
                // A name that is given and empty is no name.
                "user" if is_socket && value.is_empty() => {}
                "db" | "user" | "pass" if is_socket => {
                    for_client.push((name.into_owned(), value.into_owned()));
                }
                "sentinel_user" | "sentinel_password" if !matches!(hosts, Some(Hosts::Behind(_))) => {
                    return Err(bad(format!("{name} is for URLs that name sentinels: redis+sentinel://")));
                }
                _ => options.set(&name, &value)?,
            }
        }
        url.set_query(None);
        if !for_client.is_empty() {
            url.query_pairs_mut().extend_pairs(for_client);
        }
        let store = match &hosts {
            Some(hosts) => hosts_name(scheme, &url, hosts),
            None => store_name(&url, is_socket),
        };
        if options.plain && matches!(hosts, Some(Hosts::Cluster(_))) {
            return Err(bad("plain is for single servers: in a cluster, what a lock needs besides its name may be elsewhere".into()));
        }
        let address = address(url, is_socket)?;
        if options.cert.is_some() != options.key.is_some() {
            return Err(bad("cert and key go together: give both or neither".into()));
        }
        let is_tls = matches!(address.addr(), ConnectionAddr::TcpTls { .. });
        if !is_tls && (options.ca.is_some() || options.cert.is_some()) {
            return Err(bad("ca, cert and key are for rediss:// URLs".into()));
        }
        Ok(Self {
            plain: options.plain,
            prefix: options.prefix.unwrap_or_else(|| "tenure".into()),
            timeout: options.timeout.unwrap_or(Duration::from_secs(2)),
            resp2: options.resp2,
            spin: !options.no_spin,
            hand_on: !options.no_hand_on,
            ca: options.ca,
            cert: options.cert,
            key: options.key,
            password: None,
            sentinel_user: options.sentinel_user,
            sentinel_password: options.sentinel_password,
            rules: Rules::DEFAULT,
            seams: Seams::default(),
            address,
            hosts,
            is_node: false,
            store,
        })
    }

    /// The store as people may see it: no password.
    pub fn store(&self) -> &str {
        &self.store
    }

    /// Refuses a user without a password: the client library would not log in at all, and be the default user.
    pub(crate) fn check_login(&self) -> Result<(), StoreError> {
        let login = self.address.redis_settings();
        match (self.password.as_deref().or(login.password()), login.username()) {
            (Some(""), None) => Err(bad("the password is empty".into())),
            (Some("") | None, Some(user)) => Err(bad(format!(
                "there is no password for user {user:?}: give one in the URL or in TENURE_PASSWORD_FILE"
            ))),
            _ => Ok(()),
        }
    }

    /// As whom.
    pub(crate) fn user(&self) -> &str {
        self.address.redis_settings().username().unwrap_or("default")
    }

    /// Whether what is sent cannot be read on the way.
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self.address.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// Whether the server is surely on this machine, and every sentinel.
    pub(crate) fn is_local(&self) -> bool {
        match &self.hosts {
            Some(Hosts::Behind(Sentinels { hosts, .. }) | Hosts::Cluster(hosts)) => {
                return hosts.iter().all(|host| is_loopback(&host.name));
            }
            None => {}
        }
        match self.address.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => is_loopback(host),
            _ => true,
        }
    }

    /// The sentinels that know where the server is, if it is theirs.
    pub(crate) const fn sentinels(&self) -> Option<&Sentinels> {
        match &self.hosts {
            Some(Hosts::Behind(sentinels)) => Some(sentinels),
            _ => None,
        }
    }

    /// Some nodes of the cluster, if it is one.
    pub(crate) fn cluster(&self) -> Option<&[Host]> {
        match &self.hosts {
            Some(Hosts::Cluster(hosts)) => Some(hosts),
            _ => None,
        }
    }

    /// The configuration of one node of the cluster.
    pub(crate) fn of_node(&self, host: &Host) -> Self {
        let store = format!("{}, at {host}", self.store);
        Self { address: self.at(host), hosts: None, is_node: true, store, ..self.clone() }
    }

    /// Whether it is of a node of a cluster.
    pub(crate) const fn is_node(&self) -> bool {
        self.is_node
    }

    /// The client library's view of a sentinel.
    pub(crate) fn sentinel_info(&self, host: &Host) -> ConnectionInfo {
        let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(user) = &self.sentinel_user {
            login = login.set_username(user);
        }
        if let Some(password) = &self.sentinel_password {
            login = login.set_password(password);
        }
        self.at(host).set_redis_settings(login).set_tcp_settings(self.tcp())
    }

    /// The same as our address, but at `host`.
    fn at(&self, host: &Host) -> ConnectionInfo {
        let Host { name, port } = host.clone();
        self.address.clone().set_addr(match self.address.addr() {
            ConnectionAddr::TcpTls { .. } => {
                ConnectionAddr::TcpTls { host: name, port, insecure: false, tls_params: None }
            }
            _ => ConnectionAddr::Tcp(name, port),
        })
    }

    fn tcp(&self) -> TcpSettings {
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(10))
            .with_interval(Duration::from_secs(5))
            .with_retries(3);
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        #[cfg(any(target_os = "android", target_os = "linux"))]
        let tcp = tcp.set_user_timeout(self.timeout.max(Duration::from_secs(1)) * 5);
        tcp
    }

    /// The client library's view of it: at `host`, if sentinels say where it is.
    pub(crate) fn connection_info(&self, protocol: ProtocolVersion, host: Option<&Host>) -> ConnectionInfo {
        let mut login = self
            .address
            .redis_settings()
            .clone()
            .set_protocol(protocol)
            .set_lib_name("tenure", env!("CARGO_PKG_VERSION"));
        if let Some(password) = &self.password {
            login = login.set_password(password);
        }
        let address = host.map_or_else(|| self.address.clone(), |host| self.at(host));
        address.set_redis_settings(login).set_tcp_settings(self.tcp())
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("store", &self.store)
            .field("plain", &self.plain)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Options {
    plain: bool,
    prefix: Option<String>,
    timeout: Option<Duration>,
    resp2: bool,
    no_spin: bool,
    no_hand_on: bool,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    sentinel_user: Option<String>,
    sentinel_password: Option<String>,
}

impl Options {
    fn set(&mut self, name: &str, value: &str) -> Result<(), StoreError> {
        match name {
            "plain" => self.plain = is_yes(name, value)?,
            "spin" => self.no_spin = !is_yes(name, value)?,
            "hand_on" => self.no_hand_on = !is_yes(name, value)?,
            "prefix" => {
                let fits = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
                if value.is_empty() || value.len() > 64 || !value.chars().all(fits) {
                    return Err(bad(format!("prefix={value}: give 1 to 64 letters, digits or any of ._-/:")));
                }
                self.prefix = Some(value.into());
            }
            "timeout" => self.timeout = Some(duration(value)?),
            "protocol" => {
                self.resp2 = match value {
                    "resp2" | "2" => true,
                    "resp3" | "3" => false,
                    _ => return Err(bad(format!("protocol={value}: say resp2 or resp3"))),
                }
            }
            "ca" | "cert" | "key" if value.is_empty() => {
                return Err(bad(format!("{name}= names no file")));
            }
            "ca" => self.ca = Some(value.into()),
            "cert" => self.cert = Some(value.into()),
            "key" => self.key = Some(value.into()),
            "sentinel_user" | "sentinel_password" if value.is_empty() => {
                return Err(bad(format!("{name}= is empty: leave it out")));
            }
            "sentinel_user" => self.sentinel_user = Some(value.into()),
            "sentinel_password" => self.sentinel_password = Some(value.into()),
            "pass" | "password" => {
                return Err(bad(format!(
                    "{name:?} is no option here: a password stands in redis://USER:PASSWORD@HOST, for a socket in \
                     ?pass=, or in TENURE_PASSWORD_FILE"
                )));
            }
            // The rest of a password, rather than an option.
            _ if name.contains('@') => {
                return Err(bad("a password with a ? or & in it is written with %3F or %26".into()));
            }
            _ => {
                return Err(bad(format!(
                    "{name:?} is no option of this store: plain, prefix, timeout, protocol, spin, hand_on, ca, \
                     cert and key are"
                )));
            }
        }
        Ok(())
    }
}

fn is_yes(name: &str, value: &str) -> Result<bool, StoreError> {
    match value {
        "" | "1" | "true" | "yes" => Ok(true),
        "0" | "false" | "no" => Ok(false),
        _ => Err(bad(format!("{name}={value}: say true or false"))),
    }
}

fn duration(text: &str) -> Result<Duration, StoreError> {
    let number_ends = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(number_ends);
    let millis = match (number.parse::<u64>(), unit) {
        (Ok(number), "ms") => Some(number),
        (Ok(number), "s") => number.checked_mul(1000),
        _ => None,
    };
    match millis {
        Some(millis @ 20..=60_000) => Ok(Duration::from_millis(millis)),
        _ => Err(bad(format!("timeout={text}: give a time like 500ms or 2s, from 20ms to 60s"))),
    }
}

/// Where the server is and as whom to log in, as the client library has it.
fn address(url: Url, is_socket: bool) -> Result<ConnectionInfo, StoreError> {
    if is_socket && !url.path().starts_with('/') {
        return Err(bad("the URL names no socket: write redis+unix:///PATH".into()));
    }
    if !is_socket && url.host_str().is_none_or(str::is_empty) {
        return Err(bad("the URL names no host: write redis://HOST or redis://HOST:PORT/DATABASE".into()));
    }
    let (_, database) = url.query_pairs().find(|(name, _)| name == "db").unwrap_or_default();
    let database = if is_socket { &*database } else { url.path().trim_matches('/') };
    // Not repeated in the message: it may be the rest of a password.
    if !database.is_empty() && database.parse::<u32>().is_err() {
        return Err(bad("a database is a number from 0".into()));
    }
    url.into_connection_info().map_err(|problem| bad(error::describe(&problem)))
}

fn store_name(url: &Url, is_socket: bool) -> String {
    if is_socket {
        return format!("{}://{}", url.scheme(), url.path());
    }
    let (user, db) = user_and_database(url);
    let host = url.host_str().unwrap_or_default();
    format!("{}://{user}{host}:{}/{db}", url.scheme(), url.port().unwrap_or(6379))
}

fn user_and_database(url: &Url) -> (String, &str) {
    let user = match url.username() {
        "" => String::new(),
        user => format!("{user}@"),
    };
    let db = match url.path().trim_matches('/') {
        "" => "0",
        db => db,
    };
    (user, db)
}

fn hosts_name(scheme: &str, url: &Url, hosts: &Hosts) -> String {
    let (user, db) = user_and_database(url);
    match hosts {
        Hosts::Behind(sentinels) => format!("{scheme}://{user}{sentinels}/{db}"),
        Hosts::Cluster(_) => format!("{scheme}://{user}{hosts}"),
    }
}

fn is_loopback(host: &str) -> bool {
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

fn bad(message: String) -> StoreError {
    StoreError::refused(RefusalKind::Configuration, message)
}

#[cfg(test)]
mod tests;
