//! A Prometheus endpoint with the metrics of tenure, and some contention to look at.
//!
//! ```sh
//! cargo run -p tenure-examples --bin metrics            # or with an address: … -- 127.0.0.1:0
//! curl 127.0.0.1:9100/metrics
//! ```
//! What each of them means: docs/guides/metrics.md. A dashboard and alerts over them: docs/observability/.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tenure::{Eviction, Locks};
use tokio::net::TcpListener;

/// Without buckets the exporter would write summaries, whose quantiles cannot be added up over several processes.
const BUCKETS_SECS: [f64; 15] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0,
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Before the client is made: it takes its meters from whatever is installed then.
    let prometheus = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &BUCKETS_SECS)?
        .install_recorder()?;
    let locks = tenure::connect("memory:").await?;
    a_bit_of_everything(&locks).await?;

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9100".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}/metrics", listener.local_addr()?);
    let endpoint = prometheus.clone();
    let app = Router::new().route("/metrics", get(move || async move { endpoint.render() }));
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            // Or else what was measured piles up in memory while nobody scrapes.
            prometheus.run_upkeep();
            if let Err(error) = a_bit_of_everything(&locks).await {
                eprintln!("{error}");
            }
        }
    });
    axum::serve(listener, app).with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) }).await?;
    Ok(())
}

/// Every signal once: a grant, a renewal, a busy answer, a wait in vain, a result that was there already, a loss.
async fn a_bit_of_everything(locks: &Locks) -> Result<(), tenure::Error> {
    let guard = locks.lock("stock").ttl(Duration::from_millis(300)).acquire().await?;
    guard.lease().changed(guard.valid_until()).await;
    drop(locks.lock("stock").try_acquire().await?);
    drop(locks.lock("stock").wait(Duration::from_millis(20)).acquire().await);
    guard.release().await?;
    for _ in 0..2 {
        let report = locks.once("report").keep(Duration::from_secs(60));
        drop(report.run(|_lease| async { Ok::<_, ()>(String::from("done")) }).await?);
    }
    let evicted = locks.lock("stuck").acquire().await?;
    locks.evict("stuck", Eviction::because("to show what it looks like")?.force()).await?;
    evicted.lost().await;
    Ok(())
}
