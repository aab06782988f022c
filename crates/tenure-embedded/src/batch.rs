//! What verbs do inside one write transaction: load a lock, end the claims of the dead, run the verb, save.
//!
//! Owns the records in LMDB and the floor under the tokens. When a batch begins and ends, and what is told to whom
//! after it, is the store thread's business.

use std::collections::HashMap;
use std::io;
use std::ops::Bound;

use heed::RwTxn;
use tenure_core::clock::{Clock as _, SystemClock};
use tenure_core::queue::{Notice, Now, Owner, Queue, Rules, Step};
use tenure_core::{
    Answer, BootInstant, Claim, ClaimId, LockName, LockPage, LockState, RefusalKind, StoreError,
};

use crate::environment::Database;
use crate::header::TOKEN_MAX;
use crate::liveness::Watch;
use crate::wake::{News, Pushed};

/// The highest token that was given out, to any lock: so a lock that nobody uses can be forgotten whole. No name can
/// be this key: names have no control characters.
const TOKEN_KEY: &[u8] = b"\0token";

/// One write transaction, and what is to be told once it is committed.
pub(crate) struct Batch<'t> {
    txn: RwTxn<'t>,
    database: Database<'t>,
    rules: Rules,
    watch: &'t mut Watch,
    checked: HashMap<Owner, bool>,
    pub(crate) at: BootInstant,
    wall_micros: u64,
    last_token: u64,
    stored_token: u64,
    is_changed: bool,
    /// Whether the directory was deleted or replaced: then nothing is done here.
    pub(crate) is_gone: bool,
    /// Whether there is room for more, with some left over for those who give locks back.
    pub(crate) may_grow: bool,
    pub(crate) news: Vec<(Option<Owner>, ClaimId, News)>,
    /// Claims of this process that the store knows from now on, or no more.
    pub(crate) ours: Vec<(ClaimId, Option<LockName>)>,
}

impl<'t> Batch<'t> {
    pub(crate) fn begin(
        txn: RwTxn<'t>,
        database: Database<'t>,
        rules: Rules,
        watch: &'t mut Watch,
        is_gone: bool,
    ) -> heed::Result<Self> {
        let last_token = match database.get(&txn, TOKEN_KEY)? {
            None => 0,
            Some(stored) => {
                let token =
                    stored.try_into().ok().map(u64::from_le_bytes).filter(|token| *token <= TOKEN_MAX);
                token.ok_or_else(|| heed::Error::Decoding("the highest token is none".into()))?
            }
        };
        Ok(Self {
            txn,
            database,
            rules,
            watch,
            checked: HashMap::new(),
            at: SystemClock.now(),
            wall_micros: SystemClock.unix_micros(),
            last_token,
            stored_token: last_token,
            is_changed: false,
            is_gone,
            may_grow: true,
            news: Vec::new(),
            ours: Vec::new(),
        })
    }

    fn now(&self) -> Now {
        Now { micros: self.at.as_nanos() / 1000, token_floor: self.wall_micros.max(self.last_token + 1) }
    }

    /// Tokens of this batch may be as high as this, and a little higher.
    pub(crate) fn token_floor(&self) -> u64 {
        self.now().token_floor
    }

    /// Whether no token was ever given out here.
    pub(crate) fn is_fresh(&self) -> bool {
        self.stored_token == 0
    }

    /// No token at or below this was given out before.
    pub(crate) fn raise_token(&mut self, to: u64) {
        self.last_token = self.last_token.max(to);
    }

    /// Runs one verb that may leave more behind than it found.
    pub(crate) fn grow<T>(
        &mut self,
        name: &LockName,
        verb: impl FnOnce(&mut Queue, Now) -> Step<T>,
    ) -> heed::Result<Answer<T>> {
        if !self.may_grow {
            return Err(heed::Error::Io(io::Error::from_raw_os_error(libc::ENOSPC)));
        }
        self.change(name, verb)
    }

    /// Runs one verb on the lock called `name`.
    pub(crate) fn change<T>(
        &mut self,
        name: &LockName,
        verb: impl FnOnce(&mut Queue, Now) -> Step<T>,
    ) -> heed::Result<Answer<T>> {
        if self.is_gone {
            return Ok(Err(gone()));
        }
        let stored = self.database.get(&self.txn, name.as_str().as_bytes())?;
        let (mut queue, is_stored) = match stored.map(Queue::from_bytes) {
            None => (Queue::default(), false),
            Some(Ok(queue)) => (queue, true),
            Some(Err(refusal)) => return Ok(Err(refusal.into())),
        };
        let now = self.now();
        if self.has_dead(&queue) {
            let checked = &self.checked;
            let notices = queue.reap(now, &self.rules, |owner| checked.get(&owner) == Some(&true));
            self.last_token = self.last_token.max(queue.last_token().get());
            self.note(notices);
        }
        let now = self.now();
        let Step { answer, notices } = verb(&mut queue, now);
        self.last_token = self.last_token.max(queue.last_token().get());
        self.note(notices);
        let key = name.as_str().as_bytes();
        if !queue.is_idle(now) {
            self.database.put(&mut self.txn, key, &queue.to_bytes())?;
            self.is_changed = true;
        } else if is_stored {
            self.database.delete(&mut self.txn, key)?;
            self.is_changed = true;
        }
        Ok(Ok(answer))
    }

    /// The lock called `name`, without the expired and the dead.
    pub(crate) fn inspect(&mut self, name: &LockName) -> heed::Result<Answer<LockState>> {
        if self.is_gone {
            return Ok(Err(gone()));
        }
        let Some(stored) = self.database.get(&self.txn, name.as_str().as_bytes())? else {
            return Ok(Ok(LockState::free(name.clone())));
        };
        let queue = match Queue::from_bytes(stored) {
            Ok(queue) => queue,
            Err(refusal) => return Ok(Err(refusal.into())),
        };
        let now = self.now();
        if self.has_dead(&queue) || queue.next_expiry().is_some_and(|at| at <= now.micros) {
            // Somebody must go, and somebody else may come: then it is a change like any other.
            let rules = self.rules;
            return self.change(name, |queue, now| Step {
                notices: queue.reap(now, &rules, |_| false),
                answer: queue.inspect(now, name.clone()),
            });
        }
        Ok(Ok(queue.inspect(now, name.clone())))
    }

    /// A page of locks.
    pub(crate) fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> heed::Result<Answer<LockPage>> {
        if self.is_gone {
            return Ok(Err(gone()));
        }
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after.as_bytes()),
            // An empty prefix starts after the records that are no locks.
            _ => Bound::Included(if prefix.is_empty() { b"\x01" } else { prefix.as_bytes() }),
        };
        let limit = limit.clamp(1, 1000);
        let names: Vec<LockName> = self
            .database
            .range(&self.txn, &(start, Bound::Unbounded))?
            .map(|entry| entry.map(|(key, _)| key))
            .take_while(|key| key.as_ref().map_or(true, |key| key.starts_with(prefix.as_bytes())))
            .take(limit)
            .map(|key| Ok(std::str::from_utf8(key?).ok().and_then(|name| LockName::new(name).ok())))
            .filter_map(Result::transpose)
            .collect::<heed::Result<_>>()?;
        let next = names.last().filter(|_| names.len() == limit).map(|name| name.as_str().to_string());
        let mut locks = Vec::with_capacity(names.len());
        for name in names {
            match self.inspect(&name)? {
                Ok(state) => {
                    let is_idle = state.holders.is_empty() && state.waiters.is_empty();
                    if !is_idle || state.settled_for.is_some() {
                        locks.push(state);
                    }
                }
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        Ok(Ok(LockPage { locks, next, ..LockPage::default() }))
    }

    /// Ends every claim of dead processes, everywhere, and answers whose.
    pub(crate) fn sweep(&mut self) -> heed::Result<Vec<Owner>> {
        let dead = self.watch.dead();
        if dead.is_empty() || self.is_gone {
            return Ok(Vec::new());
        }
        self.checked.extend(dead.iter().map(|owner| (*owner, true)));
        for name in self.names_with(|queue| queue.owners().any(|owner| dead.contains(&owner)))? {
            self.tidy(&name)?;
        }
        Ok(dead)
    }

    /// Reads every record and forgets what has expired.
    ///
    /// # Errors
    /// If there is a record that this version cannot have written.
    pub(crate) fn tidy_all(&mut self) -> heed::Result<()> {
        let micros = self.now().micros;
        for name in self.names_with(|queue| queue.next_expiry().is_some_and(|at| at <= micros))? {
            self.tidy(&name)?;
        }
        Ok(())
    }

    /// Looks at the next lock after `*after`, whatever it is, and forgets what has expired there: so nothing stays
    /// for ever of a lock that nobody asks for again.
    pub(crate) fn tidy_next(&mut self, after: &mut Vec<u8>) -> heed::Result<()> {
        let from = if after.is_empty() { b"\x01" } else { after.as_slice() };
        let Some((key, stored)) = self.database.get_greater_than(&self.txn, from)? else {
            after.clear();
            return Ok(());
        };
        let micros = self.now().micros;
        let is_due =
            Queue::from_bytes(stored).is_ok_and(|queue| queue.next_expiry().is_some_and(|at| at <= micros));
        let name = std::str::from_utf8(key).ok().and_then(|name| LockName::new(name).ok());
        after.clear();
        after.extend_from_slice(key);
        match name {
            Some(name) if is_due && !self.is_gone => self.tidy(&name),
            _ => Ok(()),
        }
    }

    fn tidy(&mut self, name: &LockName) -> heed::Result<()> {
        let rules = self.rules;
        let tidied =
            self.change(name, |queue, now| Step { notices: queue.reap(now, &rules, |_| false), answer: () })?;
        debug_assert!(tidied.is_ok(), "the record was read just now");
        Ok(())
    }

    /// The names of the locks that something is stored about.
    pub(crate) fn stored_names(&self) -> heed::Result<Vec<LockName>> {
        let now = self.now();
        self.names_with(|queue| !queue.is_idle(now))
    }

    /// Whether anything is to be written.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed
    }

    fn names_with(&self, is_wanted: impl Fn(&Queue) -> bool) -> heed::Result<Vec<LockName>> {
        let damaged = |what: &str| heed::Error::Decoding(what.to_string().into());
        let mut names = Vec::new();
        for entry in self.database.iter(&self.txn)? {
            let (key, stored) = entry?;
            if !key.starts_with(b"\0") {
                let queue = Queue::from_bytes(stored).map_err(|refusal| damaged(&refusal.message))?;
                let name = std::str::from_utf8(key).ok().and_then(|name| LockName::new(name).ok());
                let name = name.ok_or_else(|| damaged("a key is not the name of a lock"))?;
                if is_wanted(&queue) {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    /// This process has a claim from now on, and must end it if it closes the store.
    pub(crate) fn keep(&mut self, claim: &Claim) {
        self.ours.push((claim.id, Some(claim.name.clone())));
    }

    /// This process has the claim no more.
    pub(crate) fn forget(&mut self, id: ClaimId) {
        self.ours.push((id, None));
    }

    /// Commits, if there is anything to; answers what is to be told.
    pub(crate) fn commit(mut self) -> Result<Told, CommitError> {
        if self.last_token != self.stored_token {
            let stored = self.database.put(&mut self.txn, TOKEN_KEY, &self.last_token.to_le_bytes());
            stored.map_err(CommitError::Before)?;
            self.is_changed = true;
        }
        if self.is_changed {
            let id = self.txn.id();
            self.txn.commit().map_err(|error| CommitError::During { error, id })?;
        }
        Ok(Told { news: self.news, ours: self.ours })
    }

    fn has_dead(&mut self, queue: &Queue) -> bool {
        let mut found = false;
        for owner in queue.owners() {
            let watch = &mut *self.watch;
            found |= *self.checked.entry(owner).or_insert_with(|| watch.is_dead(owner));
        }
        found
    }

    fn note(&mut self, notices: Vec<Notice>) {
        let at = self.at;
        self.news.extend(notices.into_iter().map(|Notice { id, owner, grant }| {
            let news = match grant {
                Some((token, ttl)) => News::Granted(Pushed::new(token, ttl, at)),
                None => News::Look,
            };
            (owner, id, news)
        }));
    }
}

/// What follows from a batch that was committed.
pub(crate) struct Told {
    pub(crate) news: Vec<(Option<Owner>, ClaimId, News)>,
    pub(crate) ours: Vec<(ClaimId, Option<LockName>)>,
}

pub(crate) enum CommitError {
    /// Nothing changed.
    Before(heed::Error),
    /// Transaction `id` may have been committed.
    During { error: heed::Error, id: usize },
}

fn gone() -> StoreError {
    StoreError::refused(
        RefusalKind::Configuration,
        "the directory of the store was deleted or replaced while it was open: its locks are void, nothing was done; \
         open the store again",
    )
}
