//! The promise itself: one at a time, numbered in order. Under load, under faults, with readers and permits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::{Error, Lease, Lock, Locks};
use tokio::task::JoinSet;

use crate::dice::Dice;
use crate::history::History;
use crate::scene::{SLACK, locks, ms, nothing_is_left, nothing_stays, now};
use crate::subject::Subject;
use crate::wrappers::{Duplicating, Flaky, Laggy};

const TTL: Duration = Duration::from_secs(10);

/// What the lock protects: it notices what is written between another's read and write, and it knows the tokens it
/// has seen.
#[derive(Debug, Default)]
struct Stock {
    sold: AtomicU64,
    token_seen: AtomicU64,
    stale: Mutex<Vec<String>>,
}

impl Stock {
    /// Reads, lets others run, and writes one more.
    async fn sell_one(&self, lease: &Lease) {
        let token = lease.token().get();
        let seen = self.token_seen.fetch_max(token, Ordering::SeqCst);
        let before = self.sold.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        let written = self.sold.compare_exchange(before, before + 1, Ordering::SeqCst, Ordering::SeqCst);
        // Who lost the lock on the way, on a machine that stood still, has no promise: only who holds it to the end.
        if lease.is_held() && (seen > token || written.is_err()) {
            let stale = format!("{lease:?} sold {before} -> {written:?}, after token {seen}");
            self.stale.lock().unwrap_or_else(PoisonError::into_inner).push(stale);
        }
    }

    fn assert_sold_one_by_one(&self) {
        let stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(stale.is_empty(), "held at the same time: {stale:?}");
    }
}

/// 32 tasks of 4 clients take one lock in turn: nothing is sold twice, and every token is higher than the one before.
pub(super) async fn exclusion_holds_under_contention(subject: Arc<dyn Subject>) {
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(locks(subject.open().await));
    }
    contend(clients, 32, 25).await;
    nothing_is_left(&*subject).await;
}

/// The same with requests delayed, lost, sent twice and late, and answers lost: slower, but never two at a time, and
/// nothing stays behind.
pub(super) async fn exclusion_holds_under_faults(subject: Arc<dyn Subject>) {
    let mut clients = Vec::new();
    for seed in 0..4 {
        let duplicating = Arc::new(Duplicating::new(subject.open().await, seed, ms(5)));
        let flaky = Arc::new(Flaky::new(duplicating, seed, 0.05, 0.05));
        clients.push(locks(Arc::new(Laggy::new(flaky, seed, ms(2), ms(2)))));
    }
    contend(clients, 12, 8).await;
    nothing_stays(&*subject).await;
}

async fn contend(clients: Vec<Locks>, tasks: usize, times: usize) {
    let (stock, history) = (Arc::new(Stock::default()), Arc::new(History::new()));
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let (stock, history) = (stock.clone(), history.clone());
        let client = clients[task % clients.len()].clone();
        running.spawn(async move {
            for _ in 0..times {
                let guard = match client.lock("stock").ttl(TTL).acquire().await {
                    Ok(guard) => guard,
                    Err(Error::Unavailable { .. }) => continue,
                    Err(error) => panic!("{error}"),
                };
                let granted_at = now();
                stock.sell_one(&guard).await;
                history.note(&guard, granted_at, now());
                match guard.release().await {
                    Ok(()) | Err(Error::Unavailable { .. } | Error::Lost { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.expect("no panic");
    }
    for client in &clients {
        client.close(TTL + SLACK).await.expect("cleaned up");
    }
    let grants = history.check().unwrap_or_else(|violation| panic!("{violation}"));
    // A fault may cost an acquisition now and then, not most of them.
    assert!(grants > tasks * times / 2, "only {grants} of {} were granted", tasks * times);
    stock.assert_sold_one_by_one();
}

/// Readers hold it together, writers alone.
pub(super) async fn readers_share_and_writers_do_not(subject: Arc<dyn Subject>) {
    let (a, b) = (locks(subject.open().await), locks(subject.open().await));
    let first = a.lock("rw").shared().acquire().await.expect("free");
    let second = b.lock("rw").shared().try_acquire().await.expect("the store answers").expect("shared");
    assert_ne!(first.token(), second.token());
    assert!(
        b.lock("rw").try_acquire().await.expect("the store answers").is_none(),
        "a writer beside readers"
    );
    first.release().await.expect("held");
    assert!(
        b.lock("rw").try_acquire().await.expect("the store answers").is_none(),
        "a writer beside a reader"
    );
    second.release().await.expect("held");
    let writer = a.lock("rw").try_acquire().await.expect("the store answers").expect("free");
    let reader = b.lock("rw").shared().try_acquire().await.expect("the store answers");
    assert!(reader.is_none(), "a reader beside a writer");
    writer.release().await.expect("held");

    let dice = Dice::new(11);
    let lock = |client: &Locks| {
        let lock = client.lock("rw").ttl(TTL);
        if dice.is_below(0.7) { lock.shared() } else { lock }
    };
    mingle(&[a, b], 12, 12, lock).await;
    nothing_is_left(&*subject).await;
}

/// At most so many at a time, however many each takes.
pub(super) async fn permits_are_never_exceeded(subject: Arc<dyn Subject>) {
    let (a, b) = (locks(subject.open().await), locks(subject.open().await));
    let two = a.lock("permits").permits(2, 3).acquire().await.expect("free");
    let one =
        b.lock("permits").permits(1, 3).try_acquire().await.expect("the store answers").expect("one is left");
    for n in 1..=3 {
        let more = b.lock("permits").permits(n, 3).try_acquire().await.expect("the store answers");
        assert!(more.is_none(), "{} of 3 permits at a time", 3 + n);
    }
    one.release().await.expect("held");
    let more = b.lock("permits").permits(2, 3).try_acquire().await.expect("the store answers");
    assert!(more.is_none(), "4 of 3 permits at a time");
    two.release().await.expect("held");

    let dice = Dice::new(13);
    let lock = |client: &Locks| {
        let n = 1 + u32::from(dice.is_below(0.5)) + u32::from(dice.is_below(0.3));
        client.lock("permits").ttl(TTL).permits(n, 5)
    };
    mingle(&[a, b], 12, 12, lock).await;
    nothing_is_left(&*subject).await;
}

/// Many tasks take the locks that `lock` makes, and the history is checked.
async fn mingle(clients: &[Locks], tasks: usize, times: usize, lock: impl Fn(&Locks) -> Lock) {
    let history = Arc::new(History::new());
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let wanted: Vec<_> = (0..times).map(|_| lock(&clients[task % clients.len()])).collect();
        let history = history.clone();
        running.spawn(async move {
            for lock in wanted {
                let guard = lock.acquire().await.expect("a grant");
                let granted_at = now();
                tokio::task::yield_now().await;
                history.note(&guard, granted_at, now());
                match guard.release().await {
                    Ok(()) | Err(Error::Lost { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.expect("no panic");
    }
    for client in clients {
        client.close(SLACK).await.expect("cleaned up");
    }
    let grants = history.check().unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!(grants, tasks * times);
}
