//! Three nodes want to lead; one does at a time, the others stand in line, and everybody can see who.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use tenure::{Election, Locks};
use tokio::sync::watch;
use tokio::task::JoinSet;

fn scheduler(locks: &Locks) -> Election {
    locks.election("scheduler").ttl(Duration::from_secs(5)).look_every(Duration::from_millis(10))
}

/// Waits to lead, leads until everybody has seen it, and steps down.
async fn node(locks: Locks, name: String, mut seen: watch::Receiver<String>) -> Result<(), tenure::Error> {
    let leadership = scheduler(&locks).label(&name).campaign().await?;
    println!("{name}: I lead, under token {}", leadership.token());
    tokio::select! {
        // Never go on as if nothing had happened: another may lead already.
        why = leadership.lost() => {
            println!("{name}: lost leadership: {why}");
            return Ok(());
        }
        () = async { drop(seen.wait_for(|leader| *leader == name).await) } => {}
    }
    println!("{name}: I step down");
    leadership.resign().await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = std::env::var("TENURE_STORE").unwrap_or_else(|_| "memory:".into());
    let locks = tenure::connect(&store).await?;
    let (tell, seen) = watch::channel(String::new());
    let mut nodes = JoinSet::new();
    for n in 1..=3 {
        nodes.spawn(node(locks.clone(), format!("node-{n}"), seen.clone()));
    }
    let mut observation = scheduler(&locks).observe()?;
    let observer = tokio::spawn(async move {
        loop {
            // A look that failed is followed by the next.
            if let Ok(Some(leader)) = observation.next().await {
                println!("observer: {} leads", leader.label);
                tell.send_replace(leader.label.to_string());
            }
        }
    });
    for result in nodes.join_all().await {
        result?;
    }
    observer.abort();
    locks.close(Duration::from_secs(5)).await?;
    Ok(())
}
