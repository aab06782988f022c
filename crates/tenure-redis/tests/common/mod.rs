//! What the tests of this crate share: a server as a subject of the suite, and a look at it from the side.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod cluster;
pub(crate) mod line;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tenure_core::clock::{Clock, SystemClock, sleep_until};
use tenure_core::queue::Rules;
use tenure_core::{
    Backend, Claim, ClaimId, Entropy, Guard, Label, LockName, Locks, Mode, SystemEntropy, Tie, Ttl,
    async_trait,
};
use tenure_redis::{Redis, RedisConfig};
use tenure_testkit::Subject;
use tenure_testkit::servers::{Cluster, Kind, Server};

/// Lines and tombstones that are forgotten quickly.
pub(crate) const QUICK: Rules = Rules {
    line_ttl: Duration::from_millis(2100),
    first_ttl: Duration::from_millis(700),
    tombstone_ttl: Duration::from_secs(3),
    ..Rules::DEFAULT
};

/// The rule of `docs/backends/redis.md` for servers without scripts, word for word.
pub(crate) const NATIVE_RULE: &str = "~tenure:* resetchannels &tenure:push:* -@all +hello +auth +select +ping +time +info \
    +subscribe +multi +exec +get +set +msetnx +exists +pttl +pexpire +delifeq +zadd +zincrby +zrange \
    +zremrangebyscore +lrange +hgetall +scan";

/// A server under test.
#[derive(Debug)]
pub(crate) struct ServerSubject {
    pub(crate) server: Server,
    /// As whom clients come; as the default user if it is empty.
    pub(crate) user: &'static str,
    pub(crate) rules: Rules,
    pub(crate) options: &'static str,
}

impl ServerSubject {
    pub(crate) fn start(kind: Kind) -> Self {
        Self { server: Server::start(kind), user: "", rules: QUICK, options: "" }
    }

    /// One that forbids scripts.
    pub(crate) async fn start_without_scripts() -> Self {
        let subject = Self { user: "native", ..Self::start(Kind::Valkey9) };
        with_rule(&subject.server, subject.user, NATIVE_RULE).await;
        subject
    }

    pub(crate) fn start_with(kind: Kind, options: &'static str) -> Self {
        Self { options, ..Self::start(kind) }
    }
}

#[async_trait]
impl Subject for ServerSubject {
    async fn open(&self) -> Arc<dyn Backend> {
        let url = if self.user.is_empty() { self.server.url() } else { url_of(&self.server, self.user) };
        Arc::new(connect(&format!("{url}{}", self.options), self.rules).await)
    }

    async fn leftovers(&self) -> Vec<String> {
        leftovers(&self.server.url()).await
    }

    fn forgets_within(&self) -> Duration {
        Duration::from_secs(10)
    }
}

/// A cluster under test. It takes seconds to start, so tests that run at the same time share one, each with a prefix of its own;
/// it ends with the last of them.
#[derive(Debug)]
pub(crate) struct ClusterSubject {
    cluster: Arc<Cluster>,
    prefix: String,
}

impl ClusterSubject {
    pub(crate) fn start(kind: Kind) -> Self {
        static SHARED: Mutex<(Weak<Cluster>, u32)> = Mutex::new((Weak::new(), 0));
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = shared.0.upgrade().unwrap_or_else(|| Arc::new(Cluster::start(kind, false)));
        assert_eq!(cluster.nodes[0].kind(), kind, "one kind at a time");
        *shared = (Arc::downgrade(&cluster), shared.1 + 1);
        Self { cluster, prefix: format!("test-{}", shared.1) }
    }
}

#[async_trait]
impl Subject for ClusterSubject {
    async fn open(&self) -> Arc<dyn Backend> {
        Arc::new(connect(&format!("{}?prefix={}", self.cluster.url(), self.prefix), QUICK).await)
    }

    async fn leftovers(&self) -> Vec<String> {
        let mut keys = cluster::cluster_leftovers(&self.cluster).await;
        keys.retain(|key| key.starts_with(&format!("{}:", self.prefix)));
        keys
    }

    fn forgets_within(&self) -> Duration {
        Duration::from_secs(10)
    }
}

/// A client with these lengths.
pub(crate) async fn connect(url: &str, rules: Rules) -> Redis {
    let mut config = RedisConfig::from_url(url).expect("a good URL");
    config.rules = rules;
    Redis::connect(config).await.expect("the server is there")
}

/// A connection beside ours.
pub(crate) async fn beside(url: &str) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(url).expect("a good URL");
    // The library gives up after half a second: too soon for a busy machine.
    let patient = redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&patient).await.expect("the server is there")
}

/// One command, beside our client.
pub(crate) async fn ask<T: redis::FromRedisValue>(url: &str, words: &[&str]) -> T {
    let mut connection = beside(url).await;
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(&mut connection).await.expect("the server answers")
}

/// How many calls of scripts the server has had.
pub(crate) async fn calls(url: &str) -> u32 {
    let stats: String = ask(url, &["INFO", "commandstats"]).await;
    let evalsha = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    evalsha.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

/// All keys but fences.
pub(crate) async fn leftovers(url: &str) -> Vec<String> {
    let mut keys: Vec<String> = ask(url, &["KEYS", "*"]).await;
    keys.retain(|key| !key.ends_with(":f"));
    keys
}

/// The rule of `docs/backends/redis.md`, word for word.
pub(crate) const RULE: &str = "~tenure:* resetchannels &tenure:push:* -@all +hello +auth +select +ping +time +info \
    +subscribe +publish +eval +evalsha +script|load +exists +get +mget +set +del +pttl +pexpireat \
    +zadd +zrem +zcard +zrange +zrangebyscore +zscore +zincrby +lpush +rpush +lpop +rpop +lrem \
    +llen +lindex +linsert +lrange +lpos +hset +hsetnx +hget +hexists +hdel +hlen +hkeys +scan";

/// Makes a user with this rule; answers the URL for it.
pub(crate) async fn with_rule(server: &Server, user: &str, rule: &str) -> String {
    let mut words = vec!["ACL", "SETUSER", user, "reset", "on", ">secret"];
    words.extend(rule.split_whitespace());
    let _: redis::Value = ask(&server.url(), &words).await;
    url_of(server, user)
}

fn url_of(server: &Server, user: &str) -> String {
    format!("redis://{user}:secret@127.0.0.1:{}", server.port())
}

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A claim on `name`.
pub(crate) fn claim(name: &str, mode: Mode, ttl: Duration) -> Claim {
    Claim {
        name: LockName::new(name).expect("a good name"),
        id: ClaimId::draw(&SystemEntropy),
        mode,
        ttl: Ttl::new(ttl).expect("a good ttl"),
        tie: Tie::Process,
        label: Label::new("test/1/tests").expect("a good label"),
        reason: None,
    }
}

/// A seed, from the environment or drawn, printed so that a failure can be played again.
pub(crate) fn seed() -> u64 {
    let seed = match std::env::var("TENURE_SEED") {
        Ok(seed) => seed.parse().expect("TENURE_SEED is a number"),
        Err(_) => {
            let mut bytes = [0; 8];
            SystemEntropy.fill(&mut bytes);
            u64::from_le_bytes(bytes) >> 16
        }
    };
    println!("TENURE_SEED={seed}");
    seed
}

/// Looks again and again until it is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let clock = Arc::new(SystemClock);
    let deadline = clock.now() + PATIENCE;
    while !is_so().await {
        assert!(clock.now() < deadline, "waited in vain: {what}");
        sleep_until(clock.clone(), clock.now() + Duration::from_millis(20)).await;
    }
}

/// Takes a lock however long the servers take to be ready for it.
pub(crate) async fn taken(locks: &Locks, name: &str, ttl: Duration) -> Guard {
    let taking = async {
        loop {
            match locks.lock(name).ttl(ttl).acquire().await {
                Ok(guard) => return guard,
                Err(tenure_core::Error::Unavailable { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, taking).await.expect("nobody can have the lock")
}
