//! A primary with a replica, and sentinels that put the one in the place of the other.

mod common;

use std::time::Duration;

use common::{PATIENCE, ask, claim, connect, leftovers, taken, until};
use tenure_core::queue::Rules;
use tenure_core::{
    Attempt, Backend, Deployment, Examine, LeaseState, Line, Locks, Mode, RefusalKind, Severity, StoreError,
    Trail,
};
use tenure_redis::{Redis, RedisConfig};
use tenure_testkit::proxy::{Fault, Proxy, Way};
use tenure_testkit::servers::{Group, Kind, Server};

const TTL: Duration = Duration::from_secs(6);

async fn locks(group: &Group) -> Locks {
    Locks::new(connect(&group.url(), Rules::DEFAULT).await)
}

/// Until the replica has everything that the primary has.
async fn replicated(port: u16) {
    let replicas: u32 = ask(&Group::url_at(port), &["WAIT", "1", "20000"]).await;
    assert_eq!(replicas, 1, "the replica follows");
}

/// A failover that loses nothing is hardly noticed: the lock is renewed where it is now, and passes on from there.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_outlives_a_failover() {
    for kind in Kind::ALL {
        let group = Group::start(kind);
        let (here, there) = (locks(&group).await, locks(&group).await);
        assert_eq!(here.guarantee().deployment, Deployment::RedisReplicated);
        let guard = here.lock("outlives").ttl(TTL).acquire().await.unwrap();
        replicated(group.named_by(0)).await;
        let waiting = tokio::spawn({
            let there = there.clone();
            async move { taken(&there, "outlives", TTL).await }
        });
        let after = group.fail_over();
        let known = guard.valid_until();
        tokio::time::timeout(PATIENCE, guard.changed(known)).await.expect("not renewed");
        assert!(matches!(guard.state(), LeaseState::Held { .. }), "{kind:?}: {:?}", guard.state());
        let holder: String = ask(&Group::url_at(after), &["GET", "tenure:{outlives}"]).await;
        assert!(holder.contains('#'), "{holder}");
        assert!(!waiting.is_finished(), "somebody holds it");
        let token = guard.token();
        guard.release().await.unwrap();
        let next = waiting.await.unwrap();
        assert!(next.token() > token, "{kind:?}: {} after {token}", next.token());
        next.release().await.unwrap();
        assert_eq!(leftovers(&Group::url_at(after)).await, Vec::<String>::new());
    }
}

/// A primary that dies. When it comes back it takes itself for the primary until a sentinel tells it otherwise; nobody is
/// drawn to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_dies_is_replaced() {
    let mut group = Group::start(Kind::Redis7);
    let locks = locks(&group).await;
    let before = group.named_by(0);
    let guard = locks.lock("dies").ttl(TTL).acquire().await.unwrap();
    replicated(before).await;
    group.at(before).kill();
    let after = group.replaced(before);
    let next = taken(&locks, "dies/another", TTL).await;
    assert_eq!(leftovers(&Group::url_at(after)).await.len(), 2, "both are at the new primary");
    assert!(next.token() > guard.token() && guard.is_held());
    next.release().await.unwrap();
    group.at(before).restart();
    let late = self::locks(&group).await;
    for locks in [&locks, &late] {
        let next = taken(locks, "dies/another", TTL).await;
        assert_eq!(leftovers(&Group::url_at(after)).await.len(), 2, "both are at the new primary");
        next.release().await.unwrap();
    }
    guard.release().await.unwrap();
    assert_eq!(leftovers(&Group::url_at(after)).await, Vec::<String>::new());
}

/// A lock that the replica has not heard of is lost with the primary. Its holder is told, and the next has a higher token: a
/// resource that checks tokens comes to no harm.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_not_replicated_is_lost_and_its_holder_is_told() {
    let mut group = Group::start(Kind::Redis7);
    let (here, there) = (locks(&group).await, locks(&group).await);
    let before = group.named_by(0);
    // What is on its way to the replica is cut off with it.
    group.servers[1].pause();
    let _: u32 = ask(&Group::url_at(before), &["CLIENT", "KILL", "TYPE", "replica"]).await;
    let guard = here.lock("lost").ttl(TTL).acquire().await.unwrap();
    group.at(before).kill();
    group.servers[1].resume();
    let after = group.replaced(before);
    assert_eq!(after, group.servers[1].port());
    let next = taken(&there, "lost", TTL).await;
    assert!(next.token() > guard.token(), "{} after {}", next.token(), guard.token());
    let told = tokio::time::timeout(TTL, guard.lost()).await;
    assert!(told.is_ok(), "its holder was not told: {:?}", guard.state());
    assert!(next.is_held());
    assert!(guard.release().await.is_err(), "it had been lost");
    next.release().await.unwrap();
    assert_eq!(leftovers(&Group::url_at(after)).await, Vec::<String>::new());
}

/// A primary that the others cannot reach any more still answers us, and would grant whatever we ask it for: it is left as
/// soon as a sentinel says that there is another.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_replaced_is_left_though_it_answers() {
    let group = Group::start(Kind::Redis7);
    let redis = connect(&group.url(), Rules::DEFAULT).await;
    let locks = Locks::new(redis.clone());
    let before = group.named_by(0);
    let guard = locks.lock("split").ttl(TTL).acquire().await.unwrap();
    replicated(before).await;
    group.cut_off(before);
    let after = group.replaced(before);
    // No request of ours fails that would tell.
    let answer: String = ask(&Group::url_at(before), &["PING"]).await;
    assert_eq!(answer, "PONG");
    until("asked the new primary", async || {
        let claim = claim("split/probe", Mode::Exclusive, TTL);
        let granted = matches!(redis.attempt(&claim, Line::Join).await, Ok(Attempt::Granted(_)));
        let is_there: u32 = ask(&Group::url_at(after), &["EXISTS", "tenure:{split/probe}"]).await;
        let _ = redis.release(&claim, Trail::Clean).await;
        granted && is_there == 1
    })
    .await;
    let known = guard.valid_until();
    tokio::time::timeout(PATIENCE, guard.changed(known)).await.expect("neither renewed nor lost");
    assert!(guard.is_held(), "the new primary knew of it: {:?}", guard.state());
    guard.release().await.unwrap();
    assert_eq!(leftovers(&Group::url_at(after)).await, Vec::<String>::new());
}

/// One sentinel of three still names what it knew, and answers first: the others are newer.
#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_that_is_behind_is_not_believed() {
    let group = Group::start(Kind::Redis7);
    let after = group.fail_over();
    let user = ["--user", "client", "on", ">trusted", "~*", "&*", "+@all"];
    let stranger = Server::start_with(Kind::Redis7, &user);
    let monitor = format!("sentinel monitor {} 127.0.0.1 {} 2\n", Group::NAME, stranger.port());
    let behind = Server::start_sentinel(Kind::Redis7, &monitor);
    let mut hosts = vec![behind.address().to_string()];
    let mut slow = Vec::new();
    for sentinel in &group.sentinels[..2] {
        let proxy = Proxy::start(sentinel.address()).await;
        proxy.set(Way::Back, Fault { delay: Duration::from_millis(50), ..Fault::default() });
        hosts.push(proxy.address().to_string());
        slow.push(proxy);
    }
    let url = format!("redis+sentinel://client:trusted@{}/{}", hosts.join(","), Group::NAME);
    let redis = connect(&url, Rules::DEFAULT).await;
    let claim = claim("behind", Mode::Exclusive, TTL);
    assert!(matches!(redis.attempt(&claim, Line::Join).await, Ok(Attempt::Granted(_))));
    assert_eq!(leftovers(&stranger.url()).await, Vec::<String>::new());
    assert_eq!(leftovers(&Group::url_at(after)).await.len(), 1);
    redis.release(&claim, Trail::Clean).await.unwrap();
}

/// Some of them, even most, may be gone.
#[tokio::test(flavor = "multi_thread")]
async fn one_sentinel_is_enough() {
    let mut group = Group::start(Kind::Redis7);
    group.sentinels[0].kill();
    group.sentinels[1].pause();
    let locks = locks(&group).await;
    taken(&locks, "enough", TTL).await.release().await.unwrap();
    group.sentinels[1].resume();
}

async fn refusal(url: &str) -> (RefusalKind, String) {
    match Redis::connect(RedisConfig::from_url(url).expect("a good URL")).await {
        Err(StoreError::Refused(refusal)) => (refusal.kind, refusal.message),
        Err(other) => panic!("{url}: {other}"),
        Ok(_) => panic!("{url} was accepted"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_said() {
    let group = Group::start(Kind::Redis7);
    for sentinel in &group.sentinels {
        let _: String =
            ask(&sentinel.url(), &["ACL", "SETUSER", "default", "resetpass", ">open-sesame"]).await;
    }
    let sentinel = group.sentinels[0].address();
    let (kind, message) = refusal(&group.url()).await;
    assert!(kind == RefusalKind::Permission && message.contains(&sentinel.to_string()), "{message}");
    let (kind, message) = refusal(&format!("{}?sentinel_password=wrong", group.url())).await;
    assert!(kind == RefusalKind::Permission && !message.contains("wrong"), "{message}");
    let (kind, message) =
        refusal(&format!("redis+sentinel://{sentinel}/other?sentinel_password=open-sesame")).await;
    assert!(kind == RefusalKind::Configuration && message.contains("\"other\""), "{message}");
    let server = group.servers[0].address();
    let (kind, message) = refusal(&format!("redis+sentinel://{server}/{}", Group::NAME)).await;
    assert!(kind == RefusalKind::Configuration && message.contains("no sentinel"), "{message}");
    let (kind, message) = refusal("redis+sentinel://127.0.0.1:1,127.0.0.1:2/a").await;
    assert!(kind == RefusalKind::Unavailable && message.contains("127.0.0.1:2"), "{message}");
    // The rule of `docs/backends/redis-sentinel.md`, word for word.
    let rule = "resetchannels &+switch-master -@all +sentinel|master +subscribe";
    let open = |sentinel: &Server| format!("redis://:open-sesame@{}", sentinel.address());
    for sentinel in &group.sentinels {
        let words: Vec<&str> = "ACL SETUSER asker on >asking".split(' ').chain(rule.split(' ')).collect();
        let _: String = ask(&open(sentinel), &words).await;
    }
    let login = "sentinel_user=asker&sentinel_password=asking";
    let redis = connect(&format!("{}?{login}", group.url()), Rules::DEFAULT).await;
    for sentinel in &group.sentinels {
        until("listens to every sentinel", async || {
            let clients: String = ask(&open(sentinel), &["CLIENT", "LIST"]).await;
            clients.lines().any(|client| client.contains(" sub=1 ") && client.contains("user=asker"))
        })
        .await;
    }
    let claim = claim("said", Mode::Exclusive, TTL);
    assert!(matches!(redis.attempt(&claim, Line::Join).await, Ok(Attempt::Granted(_))));
    redis.release(&claim, Trail::Clean).await.unwrap();
}

/// What `tenure doctor` says.
#[tokio::test(flavor = "multi_thread")]
async fn the_sentinels_are_examined() {
    let mut group = Group::start(Kind::Redis7);
    let redis = connect(&group.url(), Rules::DEFAULT).await;
    let found = async |subject: &str| {
        let findings = redis.examine().await.unwrap();
        findings.into_iter().find(|finding| finding.subject == subject).expect("it was looked at")
    };
    let all = found("sentinels").await;
    assert!(all.severity == Severity::Fine && all.observed.contains("all 3 name"), "{all:?}");
    assert_eq!(found("a primary cut off").await.severity, Severity::Advice);
    group.sentinels[2].kill();
    let gone = found("sentinels").await;
    let named = group.sentinels[2].address().to_string();
    assert!(gone.severity == Severity::Advice && gone.observed.contains(&named), "{gone:?}");
}
