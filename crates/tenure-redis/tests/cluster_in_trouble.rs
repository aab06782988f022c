//! Nodes of a cluster that are gone, silent, of two minds, or do not say what they should.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use common::cluster::{cluster_leftovers, move_slot, replicated, slot_of};
use common::{QUICK, ask, calls, claim, connect, taken, until};
use tenure_core::clock::{Clock, SystemClock, sleep_until};
use tenure_core::queue::Rules;
use tenure_core::{Attempt, Backend, Line, Locks, Mode, RefusalKind, StoreError, Trail};
use tenure_testkit::servers::{Cluster, Kind, Server};

/// Longer than nodes take to notice that one is gone.
const TTL: Duration = Duration::from_secs(30);

/// It was asked again and again without a pause, and nobody asked the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_say_where_a_slot_is_now() {
    let cluster = Cluster::start(Kind::Redis7, false);
    let backend = connect(&cluster.url(), QUICK).await;
    let first = claim("job", Mode::Exclusive, TTL);
    assert!(matches!(backend.attempt(&first, Line::Join).await, Ok(Attempt::Granted(_))));
    for node in &cluster.nodes {
        // They have none: MOVED 1 ?:7000
        let words = ["CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname"];
        let _: redis::Value = ask(&node.url(), &words).await;
    }
    let (slot, from, keys) = slot_of(&cluster, "job").await;
    let to = (from + 1) % Cluster::PRIMARIES;
    cluster.begins_to_move(slot, to);
    keys.iter().for_each(|key| cluster.move_key(key, from, to));
    cluster.has_moved(slot, to);
    until("a renewal", async || {
        let renewed = backend.renew(&[Arc::new(first.clone())]).await;
        matches!(renewed[..], [Ok(tenure_core::Renewal::Renewed { .. })])
    })
    .await;
    let moved: String = ask(&cluster.nodes[from].url(), &["INFO", "errorstats"]).await;
    let count = moved.lines().find_map(|line| line.strip_prefix("errorstat_MOVED:count="));
    let count: u32 = count.expect("it was asked").trim().parse().unwrap();
    assert!(count < 200, "asked {count} times");
    backend.release(&first, Trail::Clean).await.unwrap();
}

/// Slots go from node to node while their locks are taken and given back, by two clients. Nobody holds beside another, nobody loses
/// what it holds, tokens rise, and nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_holds_beside_another_while_slots_move() {
    const LOCKS: usize = 6;
    let cluster = Cluster::start(Kind::Redis7, false);
    // What is left of requests whose outcome was unknown is gone soon.
    let rules = Rules { tombstone_ttl: Duration::from_secs(5), ..Rules::DEFAULT };
    let clients =
        [Locks::new(connect(&cluster.url(), rules).await), Locks::new(connect(&cluster.url(), rules).await)];
    let name = |which: usize| format!("moving/{which}");
    let mut slots = Vec::new();
    for which in 0..LOCKS {
        let guard = taken(&clients[0], &name(which), TTL).await;
        slots.push(slot_of(&cluster, &name(which)).await.0);
        guard.release().await.unwrap();
    }
    let (highest, held, stop) = (
        Arc::new([const { AtomicU64::new(0) }; LOCKS]),
        Arc::new([const { AtomicU32::new(0) }; LOCKS]),
        Arc::new(AtomicBool::new(false)),
    );
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..24 {
        let (locks, highest, held, stop) =
            (clients[i % 2].clone(), highest.clone(), held.clone(), stop.clone());
        tasks.spawn(async move {
            let mut count = 0;
            while !stop.load(Ordering::SeqCst) {
                let which = (i + count) % LOCKS;
                let guard = taken(&locks, &name(which), TTL).await;
                assert_eq!(held[which].fetch_add(1, Ordering::SeqCst), 0, "two hold {which}");
                let before = highest[which].swap(guard.token().get(), Ordering::SeqCst);
                assert!(before < guard.token().get(), "{before}, then {}", guard.token());
                tokio::task::yield_now().await;
                assert!(guard.is_held());
                held[which].fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
                count += 1;
            }
            count
        });
    }
    for round in 0..LOCKS + 2 {
        let slot = slots[round % LOCKS];
        move_slot(&cluster, slot, (cluster.owner(slot) + 1 + round % 2) % Cluster::PRIMARIES).await;
    }
    stop.store(true, Ordering::SeqCst);
    let mut count = 0;
    while let Some(done) = tasks.join_next().await {
        count += done.unwrap();
    }
    println!("held {count} times");
    assert!(count >= 2 * LOCKS, "{count}");
    until("nothing is left", async || cluster_leftovers(&cluster).await.is_empty()).await;
}

/// How many script calls the nodes have had.
async fn all_calls(cluster: &Cluster) -> u32 {
    let mut count = 0;
    for node in &cluster.nodes {
        count += calls(&node.url()).await;
    }
    count
}

/// A move that stopped half-way: the one says that the other has the slot, and the other that the one has. Every time it was sent on,
/// a request woke everybody that waited anywhere.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_send_a_request_to_each_other() {
    let cluster = Cluster::start(Kind::Redis7, false);
    let backend = connect(&cluster.url(), Rules::DEFAULT).await;
    let locks = Locks::new(backend.clone());
    let first = claim("job", Mode::Exclusive, TTL);
    assert!(matches!(backend.attempt(&first, Line::Join).await, Ok(Attempt::Granted(_))));
    let (slot, from, keys) = slot_of(&cluster, "job").await;
    backend.release(&first, Trail::Clean).await.unwrap();
    let (mut guards, mut waiters) = (Vec::new(), tokio::task::JoinSet::new());
    for i in 0..20 {
        guards.push(locks.lock(format!("calm/{i}")).ttl(TTL).acquire().await.unwrap());
        waiters.spawn(locks.lock(format!("calm/{i}")).ttl(TTL).acquire());
    }
    until("all stand in line", async || locks.stats().waiting == 20).await;
    let to = (from + 1) % Cluster::PRIMARIES;
    cluster.begins_to_move(slot, to);
    keys.iter().filter(|key| key.ends_with(":f")).for_each(|key| cluster.move_key(key, from, to));
    let id: String = ask(&cluster.nodes[to].url(), &["CLUSTER", "MYID"]).await;
    let words = ["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id];
    let _: redis::Value = ask(&cluster.nodes[from].url(), &words).await;
    let before = all_calls(&cluster).await;
    // For two seconds.
    let answer = backend.attempt(&claim("job", Mode::Exclusive, TTL), Line::Pass).await;
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    let count = all_calls(&cluster).await - before;
    assert!(count < 1000, "{count} calls");
    cluster.has_moved(slot, to);
    taken(&locks, "job", TTL).await.release().await.unwrap();
    waiters.abort_all();
}

/// While no node answers, each is asked with pauses that grow, however many requests there are.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_are_gone_are_not_overrun() {
    let mut cluster = Cluster::start(Kind::Redis7, false);
    // One that hangs up on everybody, and counts.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let another = listener.local_addr().unwrap();
    let connects = Arc::new(AtomicU32::new(0));
    let counted = connects.clone();
    let counting = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            drop(stream);
        }
    });
    let locks = Locks::new(connect(&format!("{},{another}", cluster.url()), Rules::DEFAULT).await);
    let (mut guards, mut waiters) = (Vec::new(), tokio::task::JoinSet::new());
    for i in 0..100 {
        guards.push(locks.lock(format!("many/{i}")).ttl(TTL).acquire().await.unwrap());
        waiters.spawn(locks.lock(format!("many/{i}")).ttl(TTL).acquire());
    }
    until("all stand in line", async || locks.stats().waiting == 100).await;
    cluster.nodes.iter_mut().for_each(Server::kill);
    let failed = locks.stats().renewals_failed;
    until("many renewals that fail", async || locks.stats().renewals_failed > failed + 300).await;
    let clock = Arc::new(SystemClock);
    sleep_until(clock.clone(), clock.now() + Duration::from_secs(3)).await;
    let count = connects.load(Ordering::SeqCst);
    assert!(count < 100, "{count} connects");
    waiters.abort_all();
    counting.abort();
}

/// A bucket without a node, and then nobody answers who else might have it: each waited for all that came before it.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_waits_for_one_round_only() {
    let mut cluster = Cluster::start(Kind::Redis7, true);
    let backend = connect(&format!("{}?timeout=1s", cluster.url()), QUICK).await;
    let job = claim("job", Mode::Exclusive, TTL);
    assert!(matches!(backend.attempt(&job, Line::Join).await, Ok(Attempt::Granted(_))));
    let (_, from, _) = slot_of(&cluster, "job").await;
    cluster.nodes[from + Cluster::PRIMARIES].kill();
    cluster.nodes[from].kill();
    until("the others to notice", async || {
        backend.inspect(&job.name).await.is_err_and(|error| error.to_string().contains("has slot"))
    })
    .await;
    cluster.nodes.iter().filter(|node| node.is_running()).for_each(Server::pause);
    until("silence", async || {
        backend.inspect(&job.name).await.is_err_and(|error| !error.to_string().contains("has slot"))
    })
    .await;
    let clock = SystemClock;
    let start = clock.now();
    let all = futures_util::future::join_all((0..20).map(|_| backend.inspect(&job.name))).await;
    let took = clock.now().saturating_since(start);
    assert!(all.iter().all(Result::is_err));
    // One after the other, it would be 20 s.
    assert!(took < Duration::from_secs(10), "{took:?}");
    cluster.nodes.iter().filter(|node| node.is_running()).for_each(Server::resume);
}

/// The first attempt in a slot is refused, for it is moving, and the move is called off: its fence must expire all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_expires_also_if_the_first_attempt_was_refused() {
    let cluster = Cluster::start(Kind::Redis7, false);
    let (backend, other) = (connect(&cluster.url(), QUICK).await, connect(&cluster.url(), QUICK).await);
    let job = claim("job", Mode::Exclusive, TTL);
    other.attempt(&job, Line::Pass).await.unwrap();
    let (slot, from, keys) = slot_of(&cluster, "job").await;
    other.release(&job, Trail::Clean).await.unwrap();
    let url = cluster.nodes[from].url();
    let fence = keys.iter().find(|key| key.ends_with(":f")).unwrap();
    let _: u32 = ask(&url, &["DEL", fence]).await;
    cluster.begins_to_move(slot, (from + 1) % Cluster::PRIMARIES);
    let bid = claim("job", Mode::Exclusive, TTL);
    let asked = bid.clone();
    let attempt = tokio::spawn({
        let backend = backend.clone();
        async move { backend.attempt(&asked, Line::Pass).await.is_ok() }
    });
    until("it is refused", async || {
        let said: String = ask(&url, &["INFO", "errorstats"]).await;
        said.contains("ASK") || said.contains("TRYAGAIN")
    })
    .await;
    let _: redis::Value = ask(&url, &["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"]).await;
    assert!(attempt.await.unwrap(), "granted when the move was called off");
    let left: i64 = ask(&url, &["PTTL", fence]).await;
    assert!(left > 0, "{left}");
    backend.release(&bid, Trail::Clean).await.unwrap();
}

/// A listing stands at a node that is replaced by one whose name comes before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_listing_leaves_out_nothing_when_a_node_is_replaced() {
    const SLOT: usize = 100;
    let cluster = Cluster::start(Kind::Redis7, true);
    let backend = connect(&cluster.url(), Rules::DEFAULT).await;
    let locks = Locks::new(backend.clone());
    let mut guards = Vec::new();
    for i in 0..40 {
        guards.push(locks.lock(format!("many/{i}")).ttl(Duration::from_secs(120)).acquire().await.unwrap());
    }
    let name = |place: usize| cluster.nodes[place].address().to_string();
    let listed_from = async |place: usize| {
        let (mut names, mut after) = (std::collections::BTreeSet::new(), Some(format!("0 {}", name(place))));
        while let Some(from) = after {
            let page = backend.list("many/", Some(&from), 7).await.unwrap();
            names.extend(page.locks.into_iter().map(|lock| lock.name.to_string()));
            after = page.next;
        }
        names
    };
    let knows = async |place: usize| {
        until("it knows the new primary", async || {
            let _ = backend.list("many/", None, 1).await;
            format!("{backend:?}").contains(&name(place))
        })
        .await;
    };
    let mut stands_at = cluster.owner(SLOT);
    if name(stands_at + Cluster::PRIMARIES) > name(stands_at) {
        replicated(&cluster, stands_at).await;
        stands_at = cluster.fail_over(SLOT);
        knows(stands_at).await;
    }
    let before = listed_from(stands_at).await;
    assert!(!before.is_empty());
    replicated(&cluster, stands_at).await;
    let now_at = cluster.fail_over(SLOT);
    assert!(name(now_at) < name(stands_at));
    knows(now_at).await;
    let after = listed_from(stands_at).await;
    assert!(before.is_subset(&after), "{before:?} {after:?}");
}

/// Another version of tenure, with another layout of keys, uses the same cluster.
#[tokio::test(flavor = "multi_thread")]
async fn another_layout_is_refused() {
    let cluster = Cluster::start(Kind::Redis7, false);
    let job = claim("job", Mode::Exclusive, TTL);
    let other = connect(&cluster.url(), QUICK).await;
    other.attempt(&job, Line::Pass).await.unwrap();
    let (_, place, keys) = slot_of(&cluster, "job").await;
    other.release(&job, Trail::Clean).await.unwrap();
    let fence = keys.iter().find(|key| key.ends_with(":f")).unwrap();
    let _: u32 = ask(&cluster.nodes[place].url(), &["ZADD", fence, "1", "99"]).await;
    let backend = connect(&cluster.url(), QUICK).await;
    match backend.attempt(&claim("job", Mode::Exclusive, TTL), Line::Pass).await {
        Err(StoreError::Refused(why)) => {
            assert!(why.kind == RefusalKind::Configuration && why.message.contains("LAYOUT 99"), "{why:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(cluster_leftovers(&cluster).await, Vec::<String>::new());
}
