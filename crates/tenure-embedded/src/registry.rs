//! The stores that this process has open: each directory once, however often it is asked for. LMDB requires it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use crate::config::Config;
use crate::directory::{Directory, Identity};
use crate::error::OpenError;
use crate::fork;
use crate::store::Store;
use crate::store_thread;

static OPEN: LazyLock<Mutex<HashMap<Identity, Slot>>> = LazyLock::new(Mutex::default);

struct Slot {
    store: Weak<Store>,
    path: PathBuf,
    /// Disconnected when the store thread has ended.
    ended: Receiver<()>,
}

/// The store that `config` names: the one that is open, or a new one.
pub(crate) fn open(config: &Config) -> Result<Arc<Store>, OpenError> {
    let directory = Directory::prepare(config)?;
    let path = directory.path.clone();
    let identity = directory.identity;
    let already_open = |how| OpenError::AlreadyOpen { directory: path.clone(), how };
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    match open.get(&identity).and_then(|slot| slot.store.upgrade()) {
        Some(store) if store.generation != fork::generation() => {
            return Err(already_open("since before it was forked: open it only after the fork"));
        }
        Some(store) if store.is_shared != config.shared => {
            return Err(already_open("with another value of the option shared"));
        }
        Some(store) => return Ok(store),
        None => {}
    }
    // By path too: LMDB knows no better, also when the directory was deleted and made again.
    for (other, slot) in open.iter().filter(|(other, slot)| **other == identity || slot.path == path) {
        let is_closing = slot.store.strong_count() == 0;
        if !is_closing || slot.ended.recv_timeout(config.timeout) == Err(RecvTimeoutError::Timeout) {
            debug_assert!(is_closing || *other != identity, "an open store was found above");
            return Err(already_open(
                "as it was before it was deleted, or could not be closed yet: close it first",
            ));
        }
    }
    // Those that are still closing stay: LMDB has them open until they are done.
    open.retain(|_, slot| slot.ended.try_recv() != Err(TryRecvError::Disconnected));
    let blocked = || OpenError::Blocked {
        directory: path.clone(),
        what: "a process may be stopped inside a transaction",
    };
    let (report, ready) = sync_channel(1);
    let (ends, ended) = sync_channel::<()>(0);
    let thread_config = config.clone();
    std::thread::Builder::new()
        .name("tenure-store".into())
        .spawn(move || {
            let _ends = ends;
            store_thread::run(&thread_config, directory, &report);
        })
        .map_err(OpenError::unusable("start a thread for", &path))?;
    // Twice: once for getting into the directory, once for getting into LMDB.
    let ready = ready.recv_timeout(config.timeout * 2).map_err(|_| blocked())??;
    let store = Arc::new(Store {
        url: format!("file:{}", path.display()),
        directory: path,
        is_shared: config.shared,
        timeout: config.timeout,
        rules: config.rules,
        liveness: ready.liveness,
        listeners: ready.listeners,
        inbox: ready.inbox,
        generation: fork::generation(),
        under_way: AtomicUsize::new(0),
    });
    open.insert(identity, Slot { store: Arc::downgrade(&store), path: store.directory.clone(), ended });
    Ok(store)
}

/// Whether the store thread of the directory has ended.
#[cfg(test)]
pub(crate) fn has_ended(identity: Identity) -> bool {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.get(&identity).is_none_or(|slot| slot.ended.try_recv() == Err(TryRecvError::Disconnected))
}
