//! A shop with 100 items and 200 buyers at once, without the lock and with it.
//!
//! Each buyer looks how many items are left and then writes one less, as two steps: that is how it goes wrong.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure::Locks;
use tokio::task::JoinSet;

const ITEMS: u32 = 100;
const BUYERS: u32 = 200;

/// The shop's two tables, as any database would keep them: what is left, and what was sold.
#[derive(Debug)]
struct Shop {
    stock: AtomicU32,
    purchases: AtomicU32,
}

impl Shop {
    /// Reads, thinks, writes. Not atomic, like any program that asks first and updates then.
    async fn buy(&self) -> bool {
        let left = self.stock.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        if left == 0 {
            return false;
        }
        self.stock.store(left - 1, Ordering::SeqCst);
        self.purchases.fetch_add(1, Ordering::SeqCst);
        true
    }
}

async fn sale(locks: Option<Locks>) -> Result<(u32, u32), tenure::Error> {
    let shop = Arc::new(Shop { stock: AtomicU32::new(ITEMS), purchases: AtomicU32::new(0) });
    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        let (shop, locks) = (shop.clone(), locks.clone());
        buyers.spawn(async move {
            match locks {
                None => Ok(shop.buy().await),
                Some(locks) => locks.lock("product/1").run(|_lease| async move { shop.buy().await }).await,
            }
        });
    }
    for bought in buyers.join_all().await {
        bought?;
    }
    Ok((shop.purchases.load(Ordering::SeqCst), shop.stock.load(Ordering::SeqCst)))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), tenure::Error> {
    println!("{ITEMS} items, {BUYERS} buyers");
    let (sold, left) = sale(None).await?;
    println!("without the lock: {sold} sold, {left} left");
    let (sold, left) = sale(Some(Locks::in_memory())).await?;
    println!("with the lock: {sold} sold, {left} left");
    Ok(())
}
