//! The store thread: the only one in the process that touches LMDB.
//!
//! One for each open store. Has it opened, runs the requests, many in one transaction when many wait, tells those whom a
//! transaction concerns, and closes it. Blocking here blocks nobody else: every request has its own deadline.

use std::collections::{BTreeMap, HashMap};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use tenure_core::queue::{Owner, Rules};
use tenure_core::{Answer, ClaimId, LockName, StoreError, Trail};

use crate::batch::{Batch, CommitError, Told};
use crate::config::Config;
use crate::directory::{Directory, Identity};
use crate::environment::{self, Database, Env, Reserve};
use crate::error::{OpenError, refused};
use crate::header::Place;
use crate::listeners::Listeners;
use crate::liveness::{Liveness, Watch};
use crate::opening::{open, open_error, raise_ceiling};
use crate::store::Inbox;
use crate::wake::{News, Receiver, Sender};

/// How many requests share a transaction at most: it must stay short for the other processes.
const BATCH_MAX: usize = 256;

/// Every so many transactions one more lock is looked at, for what has expired in it.
const TIDY_EVERY: u32 = 4;

/// What the thread hands out once the store is open.
pub(crate) struct Ready {
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) listeners: Arc<Listeners>,
    pub(crate) inbox: Arc<Inbox>,
}

/// Opens the store, reports, serves it until its inbox is closed, and closes it.
pub(crate) fn run(config: &Config, directory: Directory, ready: &SyncSender<Result<Ready, OpenError>>) {
    // Should this thread panic, the process stays inside to its end: nobody may start the store afresh while it believes
    // in its locks.
    let directory = ManuallyDrop::new(directory);
    let opened = open(config, &directory);
    let served = opened.and_then(|(env, place)| {
        let lmdb = |error| open_error(&directory, error);
        let database = environment::database(&env).map_err(lmdb)?;
        let mut server = Server::start(config, &directory, &env, database, place)?;
        let ready_now = Ready {
            liveness: server.liveness.clone(),
            listeners: server.listeners.clone(),
            inbox: server.inbox.clone(),
        };
        // Nobody waits any more if opening took too long.
        if ready.send(Ok(ready_now)).is_ok() {
            server.serve();
        }
        server.end();
        Ok(())
    });
    // Out of the directory before anybody hears of it: who asks again must not meet us there.
    drop(ManuallyDrop::into_inner(directory));
    if let Err(error) = served {
        let _ = ready.send(Err(error));
    }
}

/// The open store.
struct Server<'e> {
    directory: &'e Directory,
    env: &'e Env,
    database: Database<'e>,
    rules: Rules,
    reserve: Reserve,
    data: Identity,
    data_path: std::path::PathBuf,
    url: String,
    place: Place,
    token_ceiling: u64,
    liveness: Arc<Liveness>,
    listeners: Arc<Listeners>,
    inbox: Arc<Inbox>,
    watch: Watch,
    sender: Sender,
    receiver: Receiver,
    /// The claims of this process that the store knows: they end with it.
    ours: HashMap<ClaimId, LockName>,
    batches: u32,
    /// The lock that was tidied last.
    tidied: Vec<u8>,
}

impl<'e> Server<'e> {
    fn start(
        config: &Config,
        directory: &'e Directory,
        env: &'e Env,
        database: Database<'e>,
        place: Place,
    ) -> Result<Self, OpenError> {
        let unusable = |what| OpenError::unusable(what, &directory.path);
        let data_path = environment::data_path(directory);
        let file = env.try_clone_inner_file().map_err(|error| open_error(directory, error))?;
        let data = Identity::of(&file).map_err(unusable("examine"))?;
        let liveness = Arc::new(Liveness::begin(directory).map_err(unusable("write to"))?);
        let listeners = Arc::new(Listeners::default());
        let receiver = Receiver::start(directory, liveness.owner, !config.shared, listeners.clone())
            .map_err(unusable("make a socket in"))?;
        let mut server = Self {
            directory,
            env,
            database,
            rules: config.rules,
            reserve: Reserve::new(env).map_err(|error| open_error(directory, error))?,
            data,
            data_path,
            url: format!("file:{}", directory.path.display()),
            place,
            token_ceiling: 0,
            watch: Watch::new(&directory.path, liveness.owner),
            liveness,
            listeners,
            inbox: Arc::default(),
            sender: Sender::new(directory).map_err(unusable("make a socket for"))?,
            receiver,
            ours: HashMap::new(),
            batches: 0,
            tidied: Vec::new(),
        };
        server.sweep();
        Ok(server)
    }

    fn serve(&mut self) {
        // However this ends, nobody must wait for it in vain.
        struct Closes(Arc<Inbox>);
        impl Drop for Closes {
            fn drop(&mut self) {
                self.0.close();
                self.0.take(usize::MAX);
            }
        }
        let _closes = Closes(self.inbox.clone());
        loop {
            let mut jobs = self.inbox.take(BATCH_MAX);
            if jobs.is_empty() {
                return;
            }
            match self.transact(|batch| {
                // Asked only now: until the transaction began, a request could still be given up.
                jobs.retain(|job| job.start());
                jobs.iter_mut().try_for_each(|job| job.run(batch))
            }) {
                Err(_) if jobs.len() > 1 => {
                    // One of them spoiled it for all.
                    for mut job in jobs {
                        let outcome = self.transact(|batch| job.run(batch));
                        job.finish(outcome);
                    }
                }
                outcome => {
                    for job in jobs {
                        job.finish(outcome.clone());
                    }
                }
            }
        }
    }

    /// Runs `work` in one transaction and tells whom it concerns.
    fn transact(&mut self, work: impl FnOnce(&mut Batch<'_>) -> heed::Result<()>) -> Answer<()> {
        let Told { news, ours } = self.committed(work)?;
        for (id, name) in ours {
            match name {
                Some(name) => self.ours.insert(id, name),
                None => self.ours.remove(&id),
            };
        }
        let mut elsewhere: BTreeMap<Owner, Vec<(ClaimId, News)>> = BTreeMap::new();
        for (owner, id, news) in news {
            match owner.filter(|owner| *owner != self.liveness.owner) {
                Some(owner) => elsewhere.entry(owner).or_default().push((id, news)),
                // A claim that is tied to no process may be this one's, too.
                None => self.listeners.tell(id, news),
            }
        }
        self.sender.send(elsewhere);
        Ok(())
    }

    fn committed(&mut self, work: impl FnOnce(&mut Batch<'_>) -> heed::Result<()>) -> Answer<Told> {
        let refuse = |error: heed::Error| refused(&self.url, &error);
        let txn = self.env.write_txn().map_err(refuse)?;
        // Inside the transaction, so that the answer holds for all of it, give or take the deletion of a directory.
        let found = rustix::fs::stat(&self.data_path).ok();
        let found = found.filter(|found| Identity::from(found) == self.data);
        // What is gone needs no reserve; that it is in order must be known all the same.
        let length = found.as_ref().map_or(u64::MAX, |found| u64::try_from(found.st_size).unwrap_or(0));
        let may_grow = self.reserve.is_there(self.env, self.database, &txn, length).map_err(refuse)?;
        let is_gone = found.is_none();
        let mut batch =
            Batch::begin(txn, self.database, self.rules, &mut self.watch, is_gone).map_err(refuse)?;
        batch.may_grow = may_grow;
        let floor = batch.token_floor();
        if floor >= self.token_ceiling && !is_gone {
            self.token_ceiling = raise_ceiling(self.directory, &self.place, floor);
        }
        work(&mut batch).map_err(refuse)?;
        self.batches = self.batches.wrapping_add(1);
        if batch.is_changed() && self.batches % TIDY_EVERY == 0 {
            batch.tidy_next(&mut self.tidied).map_err(refuse)?;
        }
        match batch.commit() {
            Ok(told) => Ok(told),
            Err(CommitError::Before(error)) => Err(refuse(error)),
            // The next transaction has the same number only if this one came to nothing.
            Err(CommitError::During { error, id }) => match self.env.write_txn() {
                Ok(next) if next.id() == id => Err(refuse(error)),
                _ => Err(StoreError::unknown(format!("store {}: {error}", self.url))),
            },
        }
    }

    /// Ends what dead processes left behind.
    fn sweep(&mut self) {
        let mut dead = Vec::new();
        let swept = self.transact(|batch| {
            dead = batch.sweep()?;
            Ok(())
        });
        match swept {
            // Only now that no claim of theirs is left may their files go.
            Ok(()) => {
                for owner in dead {
                    self.watch.bury(owner);
                    self.sender.bury(owner);
                }
            }
            Err(error) => tracing::debug!(%error, "the traces of dead processes stay for now"),
        }
    }

    /// Ends the claims of this process that are left, and takes its traces away.
    fn end(mut self) {
        let (ours, rules): (Vec<_>, _) = (self.ours.drain().collect(), self.rules);
        let released = ours.is_empty()
            || self
                .transact(|batch| {
                    ours.iter().try_for_each(|(id, name)| {
                        batch
                            .change(name, |queue, now| queue.release(now, &rules, *id, Trail::Clean))
                            .map(|_| ())
                    })
                })
                .is_ok();
        self.receiver.stop();
        if released {
            self.liveness.remove();
        }
    }
}
