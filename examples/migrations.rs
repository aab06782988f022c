//! Two services start together and both want to run the database migrations: one does, the other waits and finds them
//! done.
//!
//! Started without arguments, this program makes a store in a directory of its own and starts itself twice as a service.
//! `cargo run -p tenure-examples --bin migrations`

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use tokio::process::Command;

/// The newest version of the schema that this program knows.
const NEWEST: u32 = 3;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => start_two().await,
        [store, database, name] => service(store, Path::new(database), name).await,
        _ => Err("usage: migrations [STORE DATABASE NAME]".into()),
    }
}

/// What every service does when it starts.
async fn service(store: &str, database: &Path, name: &str) -> Result<(), Box<dyn Error>> {
    let locks = tenure::connect(store).await?;
    // The wait is longer than any migration should take: then it is better to fail than to start.
    locks.lock("migrate").wait(Duration::from_secs(300)).run(|_lease| migrate(database, name)).await??;
    println!("{name}: started on schema version {}", version(database));
    locks.close(Duration::from_secs(5)).await?;
    Ok(())
}

async fn migrate(database: &Path, name: &str) -> std::io::Result<()> {
    // Looked at under the lock: whoever waited finds the work done.
    if version(database) == NEWEST {
        println!("{name}: nothing to migrate");
    }
    for next in version(database) + 1..=NEWEST {
        // In place of ALTER TABLE, which takes its time.
        tokio::time::sleep(Duration::from_millis(100)).await;
        std::fs::write(database, next.to_string())?;
        println!("{name}: migrated to schema version {next}");
    }
    Ok(())
}

fn version(database: &Path) -> u32 {
    std::fs::read_to_string(database).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

async fn start_two() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let store = format!("file:{}", directory.path().join("locks").display());
    let database = directory.path().join("schema-version");
    let start = |name: &str| {
        let program = std::env::current_exe()?;
        Command::new(program).arg(&store).arg(&database).arg(name).kill_on_drop(true).spawn()
    };
    let (mut orders, mut billing) = (start("orders")?, start("billing")?);
    for status in [orders.wait().await?, billing.wait().await?] {
        if !status.success() {
            return Err(format!("a service failed: {status}").into());
        }
    }
    Ok(())
}
