//! Locks at the nodes of a cluster, which come, go and give slots to each other.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::cluster::{cluster_leftovers, keys_of, replicated, slot_of};
use common::{PATIENCE, QUICK, RULE, ask, claim, connect, taken, until};
use tenure_core::queue::Rules;
use tenure_core::{
    Attempt, Backend, Deployment, Examine, Guard, Line, Locks, Mode, RefusalKind, Severity, StoreError,
    Trail, Why,
};
use tenure_redis::{Redis, RedisConfig};
use tenure_testkit::servers::{Cluster, Kind, Server};

/// Longer than nodes take to notice that one is gone.
const TTL: Duration = Duration::from_secs(30);

async fn locks(cluster: &Cluster) -> Locks {
    Locks::new(connect(&cluster.url(), Rules::DEFAULT).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_spread_over_the_nodes_and_listed_from_all() {
    for kind in Kind::ALL {
        let cluster = Cluster::start(kind, false);
        let locks = locks(&cluster).await;
        assert_eq!(locks.guarantee().deployment, Deployment::RedisReplicated);
        let mut guards = Vec::new();
        for i in 0..60 {
            guards.push(locks.lock(format!("spread/{i}")).ttl(TTL).acquire().await.unwrap());
        }
        let other = locks.lock("another").acquire().await.unwrap();
        for node in &cluster.nodes {
            let count: usize = ask(&node.url(), &["DBSIZE"]).await;
            assert!(count > 10, "{kind:?}: {count} keys");
        }
        let (mut names, mut after) = (std::collections::BTreeSet::new(), None);
        loop {
            let page = locks.list("spread/", after.as_deref(), 7).await.unwrap();
            names.extend(page.locks.into_iter().map(|lock| lock.name.to_string()));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(names.len(), 60, "{kind:?}: {names:?}");
        guards.push(other);
        let released = futures_util::future::join_all(guards.into_iter().map(Guard::release)).await;
        assert!(released.iter().all(Result::is_ok), "{kind:?}: {released:?}");
        assert_eq!(cluster_leftovers(&cluster).await, Vec::<String>::new(), "{kind:?}");
        // Of each bucket that was in use, one fence, and it expires.
        let fences: Vec<String> = ask(&cluster.nodes[0].url(), &["KEYS", "*:f"]).await;
        assert!(!fences.is_empty() && fences.len() < 30, "{kind:?}: {fences:?}");
        let left: i64 = ask(&cluster.nodes[0].url(), &["PTTL", &fences[0]]).await;
        assert!(left > 0, "{kind:?}: {left}");
    }
}

/// A failover that loses nothing is hardly noticed: the lock is renewed where it is now, and passes on from there.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_and_its_line_outlive_a_failover() {
    for kind in Kind::ALL {
        let cluster = Cluster::start(kind, true);
        let (here, there) = (locks(&cluster).await, locks(&cluster).await);
        let guard = taken(&here, "job", TTL).await;
        let waiter = tokio::spawn(there.lock("job").ttl(TTL).acquire());
        until("the waiter", async || !here.inspect("job").await.unwrap().waiters.is_empty()).await;
        let (slot, before, _) = slot_of(&cluster, "job").await;
        replicated(&cluster, before).await;
        let after = cluster.fail_over(slot);
        assert_ne!(before, after);
        let renewed = here.stats().renewed;
        until("a renewal at the new primary", async || here.stats().renewed > renewed).await;
        let token = guard.token();
        assert!(guard.is_held());
        guard.release().await.unwrap();
        let next = tokio::time::timeout(PATIENCE, waiter).await.expect("its turn comes").unwrap().unwrap();
        assert!(next.token() > token, "{kind:?}");
        next.release().await.unwrap();
        until("nothing is left", async || cluster_leftovers(&cluster).await.is_empty()).await;
    }
}

/// Nobody gives a command: the other nodes notice that one is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_dies_is_replaced() {
    let mut cluster = Cluster::start(Kind::Redis7, true);
    let locks = locks(&cluster).await;
    let guard = taken(&locks, "job", TTL).await;
    let (slot, before, _) = slot_of(&cluster, "job").await;
    replicated(&cluster, before).await;
    cluster.nodes[before].kill();
    let renewed = locks.stats().renewed;
    until("a renewal at the new primary", async || locks.stats().renewed > renewed).await;
    assert!(guard.is_held() && cluster.owner(slot) != before);
    // Others that were at that node, too.
    for i in 0..20 {
        taken(&locks, &format!("other/{i}"), TTL).await.release().await.unwrap();
    }
    guard.release().await.unwrap();
    // And one who comes now, with a URL that names the dead one.
    let late = self::locks(&cluster).await;
    taken(&late, "job", TTL).await.release().await.unwrap();
}

/// A replica takes over that has not heard of the lock: another may have it. Its holder hears of it at once, not when it would
/// renew, and the other's token is higher.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_holds_a_lock_that_a_failover_lost_is_told() {
    let mut cluster = Cluster::start(Kind::Redis7, true);
    let locks = locks(&cluster).await;
    let warm = taken(&locks, "job", TTL).await;
    let (slot, before, _) = slot_of(&cluster, "job").await;
    warm.release().await.unwrap();
    replicated(&cluster, before).await;
    let replica = before + Cluster::PRIMARIES;
    // What is on its way to the replica is cut off with it.
    cluster.nodes[replica].pause();
    let _: u32 = ask(&cluster.nodes[before].url(), &["CLIENT", "KILL", "TYPE", "replica"]).await;
    let guard = locks.lock("job").ttl(Duration::from_secs(120)).acquire().await.unwrap();
    cluster.nodes[before].kill();
    cluster.nodes[replica].resume();
    until("the replica to take over", async || cluster.owner(slot) == replica).await;
    let why =
        tokio::time::timeout(Duration::from_secs(25), guard.lost()).await.expect("told long before 40 s");
    assert_eq!(why, Why::Gone);
    let next = taken(&locks, "job", TTL).await;
    assert!(next.token() > guard.token());
    next.release().await.unwrap();
}

/// A slot is given to another node, key by key: all the while nobody else gets the lock, and then everything goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_slot_moves_is_held_all_the_while() {
    for kind in Kind::ALL {
        let cluster = Cluster::start(kind, false);
        let (here, there) = (locks(&cluster).await, locks(&cluster).await);
        let guard = here.lock("job").ttl(Duration::from_secs(30)).acquire().await.unwrap();
        let waiter = tokio::spawn(there.lock("job").ttl(TTL).acquire());
        until("the waiter", async || !here.inspect("job").await.unwrap().waiters.is_empty()).await;
        let (slot, from, mut keys) = slot_of(&cluster, "job").await;
        // Those first that are not in every request.
        keys.sort_by_key(|key| key.ends_with('}') || key.ends_with(":f"));
        assert!(keys[0].ends_with(":c") || keys[0].ends_with(":q"), "{keys:?}");
        let to = (from + 1) % Cluster::PRIMARIES;
        cluster.begins_to_move(slot, to);
        let stranger = connect(&format!("{}?timeout=500ms", cluster.url()), Rules::DEFAULT).await;
        let attempt = async || stranger.attempt(&claim("job", Mode::Exclusive, TTL), Line::Pass).await;
        let mut refused = 0;
        for key in &keys {
            cluster.move_key(key, from, to);
            // Not granted, and not busy either: that would be known only at one node. And the node says so before it has
            // begun: a script that noticed half-way would leave half of it done.
            match attempt().await {
                Err(StoreError::Unknown(why)) if why.starts_with("TRYAGAIN") || why.starts_with("ASK") => {
                    refused += 1;
                }
                Err(StoreError::Unknown(why)) if why.starts_with("nothing within") => {}
                answer => panic!("{kind:?}, {key} has moved: {answer:?}"),
            }
        }
        assert!(refused > 0, "{kind:?}: nobody was refused");
        cluster.has_moved(slot, to);
        until("an answer", async || match attempt().await {
            Ok(answer) => {
                assert!(matches!(answer, Attempt::Busy(_)), "{kind:?}: {answer:?}");
                true
            }
            Err(_) => false,
        })
        .await;
        assert!(guard.is_held());
        let token = guard.token();
        guard.release().await.unwrap();
        let next = tokio::time::timeout(PATIENCE, waiter).await.expect("its turn comes").unwrap().unwrap();
        assert!(next.token() > token, "{kind:?}");
        assert_eq!(keys_of(&cluster, "job").await.0, to, "{kind:?}");
        next.release().await.unwrap();
        until("nothing is left", async || cluster_leftovers(&cluster).await.is_empty()).await;
    }
}

/// A client that has not heard of a move is sent on, within the same request.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_the_wrong_node_is_sent_on() {
    let cluster = Cluster::start(Kind::Redis7, false);
    let backend = connect(&cluster.url(), QUICK).await;
    let first = claim("job", Mode::Exclusive, TTL);
    assert!(matches!(backend.attempt(&first, Line::Join).await, Ok(Attempt::Granted(_))));
    let (slot, from, keys) = slot_of(&cluster, "job").await;
    let to = (from + 1) % Cluster::PRIMARIES;
    cluster.begins_to_move(slot, to);
    keys.iter().for_each(|key| cluster.move_key(key, from, to));
    cluster.has_moved(slot, to);
    // Nobody asked anything meanwhile.
    let mut in_doubt = backend.in_doubt().expect("it can tell");
    let renewed = backend.renew(&[Arc::new(first.clone())]).await;
    assert!(matches!(renewed[..], [Ok(tenure_core::Renewal::Renewed { .. })]), "{renewed:?}");
    tokio::time::timeout(PATIENCE, &mut in_doubt).await.expect("whoever else holds should ask");
    backend.release(&first, Trail::Clean).await.unwrap();
    assert_eq!(cluster_leftovers(&cluster).await, Vec::<String>::new());
}

/// Many at once, on all nodes, and several that want the same.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_holds_beside_another_and_nothing_is_left() {
    let cluster = Cluster::start(Kind::Valkey9, false);
    let clients = [locks(&cluster).await, locks(&cluster).await];
    let held: Arc<Vec<std::sync::atomic::AtomicU32>> = Arc::new((0..16).map(|_| 0.into()).collect());
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..128_usize {
        let (locks, held) = (clients[i % 2].clone(), held.clone());
        tasks.spawn(async move {
            for round in 0..8 {
                let which = (i * 7 + round * 3) % held.len();
                let guard = locks.lock(format!("busy/{which}")).ttl(TTL).acquire().await.unwrap();
                assert_eq!(
                    held[which].fetch_add(1, std::sync::atomic::Ordering::SeqCst),
                    0,
                    "two hold {which}"
                );
                tokio::task::yield_now().await;
                held[which].fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(cluster_leftovers(&cluster).await, Vec::<String>::new());
}

/// The rule of `docs/backends/redis-cluster.md`, word for word.
#[tokio::test(flavor = "multi_thread")]
async fn the_least_of_rights() {
    for kind in Kind::ALL {
        let cluster = Cluster::start(kind, false);
        let user = |rule: &str| -> Vec<String> {
            let words = format!("ACL SETUSER locker reset on >secret {rule}");
            words.split_whitespace().map(Into::into).collect()
        };
        let url = cluster.url().replace("://", "://locker:secret@");
        for rule in [format!("{RULE} +cluster|nodes"), RULE.to_owned()] {
            for node in &cluster.nodes {
                let words = user(&rule);
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let _: redis::Value = ask(&node.url(), &words).await;
            }
            let config = RedisConfig::from_url(&url).unwrap();
            if !rule.ends_with("nodes") {
                let error = Redis::connect(config).await.unwrap_err();
                let is_refused =
                    matches!(&error, StoreError::Refused(why) if why.kind == RefusalKind::Permission);
                assert!(is_refused, "{kind:?}: {error}");
                continue;
            }
            let backend = Redis::connect(config).await.unwrap();
            let findings = backend.examine().await.unwrap();
            let amiss: Vec<_> = findings.iter().filter(|found| found.severity == Severity::Problem).collect();
            assert!(amiss.is_empty(), "{kind:?}: {amiss:?}");
            let locks = Locks::new(backend);
            let guard = locks.lock("job").ttl(TTL).acquire().await.unwrap();
            let waiter = tokio::spawn(locks.lock("job").ttl(TTL).acquire());
            until("the waiter", async || !locks.inspect("job").await.unwrap().waiters.is_empty()).await;
            guard.release().await.unwrap();
            waiter.await.unwrap().unwrap().release().await.unwrap();
            assert_eq!(cluster_leftovers(&cluster).await, Vec::<String>::new(), "{kind:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_examination_is_of_every_node_and_says_which() {
    let mut cluster = Cluster::start(Kind::Redis7, false);
    let backend = connect(&cluster.url(), QUICK).await;
    let found = |findings: &[tenure_core::Finding], subject: &str| -> Vec<String> {
        let about = findings.iter().filter(|found| found.subject == subject);
        about.map(|found| format!("{} {}", found.severity, found.observed)).collect()
    };
    let findings = backend.examine().await.unwrap();
    assert_eq!(found(&findings, "cluster"), ["fine 3 primaries have all slots that locks are in"]);
    assert_eq!(found(&findings, "scripts").len(), 1, "the same everywhere");
    assert_eq!(found(&findings, "server").len(), 1, "{findings:?}");
    assert!(cluster_leftovers(&cluster).await.is_empty());
    let second = cluster.nodes[1].address().to_string();
    let _: redis::Value = ask(
        &cluster.nodes[1].url(),
        &["CONFIG", "SET", "maxmemory", "1gb", "maxmemory-policy", "allkeys-lru"],
    )
    .await;
    let findings = backend.examine().await.unwrap();
    let eviction = found(&findings, "eviction policy");
    assert!(
        eviction.len() == 3 && eviction.iter().any(|it| it.starts_with(&format!("problem {second}: "))),
        "{eviction:?}"
    );
    cluster.nodes[1].kill();
    let findings = backend.examine().await.unwrap();
    let gone =
        findings.iter().any(|found| found.severity == Severity::Problem && found.observed.contains(&second));
    assert!(gone, "{findings:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_mistakes_one_for_the_other_is_told() {
    let refused = async |url: &str, kind: RefusalKind, words: &str| {
        let mut config = RedisConfig::from_url(url).unwrap();
        config.timeout = Duration::from_secs(1);
        match Redis::connect(config).await {
            Err(StoreError::Refused(why)) => {
                assert!(why.kind == kind && why.message.contains(words), "{url}: {why:?}");
            }
            other => panic!("{url}: {other:?}"),
        }
    };
    let cluster = Cluster::start(Kind::Redis7, false);
    refused(&cluster.nodes[0].url(), RefusalKind::Configuration, "redis+cluster://").await;
    let server = Server::start(Kind::Redis7);
    let wrong = server.url().replace("redis:", "redis+cluster:");
    refused(&wrong, RefusalKind::Configuration, "redis://").await;
    refused("redis+cluster://127.0.0.1:1", RefusalKind::Unavailable, "127.0.0.1:1: ").await;
    // One that answers is enough.
    let dead_first = cluster.url().replace("://", "://127.0.0.1:1,");
    let locks = Locks::new(Redis::connect(RedisConfig::from_url(&dead_first).unwrap()).await.unwrap());
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}
