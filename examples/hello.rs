//! The smallest use of a lock: take it, do a thing under it, give it back.
//!
//! `cargo run -p tenure-examples --bin hello`; with another store, `TENURE_STORE=file:/tmp/locks cargo run …`

#![forbid(unsafe_code)]

use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = std::env::var("TENURE_STORE").unwrap_or_else(|_| "memory:".into());
    let locks = tenure::connect(&store).await?;

    let greeting = locks
        .lock("hello")
        .ttl(Duration::from_secs(30)) // how long others wait if this process dies; renewed while it lives
        .wait(Duration::from_secs(10)) // how long to stand in line
        .run(|lease| async move {
            // One party at a time is here, among all that use this store.
            format!("hello from {}, under token {}", lease.name(), lease.token())
        })
        .await?;
    println!("{greeting}");

    // Waits until everything is given back.
    locks.close(Duration::from_secs(5)).await?;
    Ok(())
}
