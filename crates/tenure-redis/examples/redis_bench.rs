//! Takes and gives back locks as fast as it can, beside plain `SET NX PX` and `DEL` through the same client library.
//!
//! `cargo run --release -p tenure-redis --example redis_bench -- redis://127.0.0.1:PORT [SECONDS [TASKS]]`
//! One run, interleaved rounds; what counts is the ratio.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::clock::{Clock, SystemClock};
use tenure_core::{
    Backend, Claim, ClaimId, Label, Line, LockName, Locks, Mode, SystemEntropy, Tie, Trail, Ttl,
};
use tenure_redis::{Redis, RedisConfig};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Plain,
    Backend,
    Locks,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().expect("a URL");
    let seconds: f64 = arguments.next().map_or(1.0, |seconds| seconds.parse().expect("seconds"));
    let client = redis::Client::open(url.as_str())?;
    let config =
        redis::AsyncConnectionConfig::new().set_pipeline_buffer_size(1024).set_response_timeout(None);
    let plain = client.get_multiplexed_async_connection_with_config(&config).await?;
    let backend = Redis::connect(RedisConfig::from_url(&url)?).await?;
    let locks = Locks::new(backend.clone());
    println!(
        "{:>6} {:>8} {:>12} {:>10} {:>7} {:>10} {:>10}",
        "tasks", "way", "pairs/s", "us/pair", "ratio", "client cpu", "server cpu"
    );
    let only: Option<usize> = arguments.next().map(|tasks| tasks.parse().expect("tasks"));
    for tasks in [1_usize, 64, 512].into_iter().filter(|tasks| only.is_none_or(|only| only == *tasks)) {
        let mut totals = [0.0; 3];
        let mut cpu = [(0.0, 0.0); 3];
        let mut pairs = [0.0; 3];
        let rounds = 5;
        for _ in 0..rounds {
            for (i, way) in [Way::Plain, Way::Backend, Way::Locks].into_iter().enumerate() {
                let (ours, theirs) = (own_cpu(), server_cpu(&plain).await);
                let each = seconds / f64::from(rounds);
                let rate = round(way, tasks, each, &plain, &backend, &locks).await;
                totals[i] += rate;
                pairs[i] += rate * each;
                cpu[i].0 += own_cpu() - ours;
                cpu[i].1 += server_cpu(&plain).await - theirs;
            }
        }
        for (i, way) in ["plain", "backend", "locks"].into_iter().enumerate() {
            let rate = totals[i] / f64::from(rounds);
            let (us, ratio) = (tasks as f64 * 1e6 / rate, rate / (totals[0] / f64::from(rounds)));
            let (ours, theirs) = (cpu[i].0 * 1e6 / pairs[i], cpu[i].1 * 1e6 / pairs[i]);
            println!("{tasks:>6} {way:>8} {rate:>12.0} {us:>10.1} {ratio:>7.2} {ours:>10.1} {theirs:>10.1}");
        }
    }
    for waiters in [2_usize, 16, 128, 1000] {
        let (ours, theirs) = (own_cpu(), server_cpu(&plain).await);
        let rate = hand_overs(waiters, seconds, &locks).await;
        let (ours, theirs) = (own_cpu() - ours, server_cpu(&plain).await - theirs);
        let each = 1e6 / (rate * seconds);
        println!(
            "{waiters:>6} waiters {rate:>9.0} hand-overs/s {:>8.1} {:>8.1} us cpu",
            ours * each,
            theirs * each
        );
    }
    Ok(())
}

/// How often one lock changes hands per second.
async fn hand_overs(waiters: usize, seconds: f64, locks: &Locks) -> f64 {
    let done = Arc::new(AtomicU64::new(0));
    let start = SystemClock.now();
    let end = start + Duration::from_secs_f64(seconds);
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..waiters {
        let (done, locks) = (done.clone(), locks.clone());
        running.spawn(async move {
            while SystemClock.now() < end {
                let guard = locks.lock("handed over").acquire().await.expect("a lock");
                done.fetch_add(1, Ordering::Relaxed);
                guard.release().await.expect("a release");
            }
        });
    }
    while running.join_next().await.is_some() {}
    done.load(Ordering::Relaxed) as f64 / SystemClock.now().saturating_since(start).as_secs_f64()
}

/// Processor time of this process, in seconds: less noisy than the clock on a machine that others use.
fn own_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// Processor time of the server, in seconds.
async fn server_cpu(connection: &redis::aio::MultiplexedConnection) -> f64 {
    let info: String =
        redis::cmd("INFO").arg("cpu").query_async(&mut connection.clone()).await.expect("an answer");
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|number| number.trim().parse::<f64>().ok()).unwrap_or(0.0)
    };
    field("used_cpu_user") + field("used_cpu_sys")
}

/// Pairs of acquire and release per second.
async fn round(
    way: Way,
    tasks: usize,
    seconds: f64,
    plain: &redis::aio::MultiplexedConnection,
    backend: &Redis,
    locks: &Locks,
) -> f64 {
    let done = Arc::new(AtomicU64::new(0));
    let start = SystemClock.now();
    let end = start + Duration::from_secs_f64(seconds);
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let (done, mut plain, backend, locks) = (done.clone(), plain.clone(), backend.clone(), locks.clone());
        running.spawn(async move {
            let name = LockName::new(format!("bench/{task}")).expect("a good name");
            let label = Label::of_this_process();
            while SystemClock.now() < end {
                match way {
                    Way::Plain => {
                        let id = ClaimId::draw(&SystemEntropy).to_hex();
                        let mut set = redis::cmd("SET");
                        set.arg(name.as_str()).arg(&id).arg("NX").arg("PX").arg(30_000);
                        let _: Option<String> = set.query_async(&mut plain).await.expect("an answer");
                        let _: i64 = redis::cmd("DEL")
                            .arg(name.as_str())
                            .query_async(&mut plain)
                            .await
                            .expect("an answer");
                    }
                    Way::Backend => {
                        let claim = Claim {
                            name: name.clone(),
                            id: ClaimId::draw(&SystemEntropy),
                            mode: Mode::Exclusive,
                            ttl: Ttl::DEFAULT,
                            tie: Tie::Process,
                            label: label.clone(),
                            reason: None,
                        };
                        backend.attempt(&claim, Line::Join).await.expect("a grant");
                        backend.release(&claim, Trail::Clean).await.expect("a release");
                    }
                    Way::Locks => {
                        let guard = locks.lock(&name).acquire().await.expect("a lock");
                        guard.release().await.expect("a release");
                    }
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while running.join_next().await.is_some() {}
    done.load(Ordering::Relaxed) as f64 / SystemClock.now().saturating_since(start).as_secs_f64()
}
