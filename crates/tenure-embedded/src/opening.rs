//! Opening: going into the directory, setting the store up or in order if nobody else is inside, opening LMDB.
//!
//! Owns what is kept and what is thrown away of what is found there, and the ceiling over the tokens. What is done with
//! an open store is the store thread's business.

use std::time::Duration;

use tenure_core::clock::{Clock as _, SystemClock};
use tenure_core::queue::Owner;

use crate::batch::{Batch, CommitError};
use crate::config::Config;
use crate::directory::{Company, Directory};
use crate::environment::{self, Env, Reserve};
use crate::error::OpenError;
use crate::header::{Found, Header, LAYOUT, Place};
use crate::liveness::{self, Watch};

/// How far ahead the ceiling over the tokens is written to disk: once in so many microseconds of use, and so far do
/// tokens jump at most when the machine comes back from a crash.
const CEILING_STEP: u64 = 10 * 60 * 1_000_000;
/// How long somebody who is about to leave is waited for.
const ON_THE_WAY_OUT: Duration = Duration::from_millis(250);

/// Goes into the directory, sets the store up or in order if nobody else is inside, and opens LMDB.
pub(crate) fn open(config: &Config, directory: &Directory) -> Result<(Env, Place), OpenError> {
    let deadline = SystemClock.now() + config.timeout;
    let doubtful_until = SystemClock.now() + config.timeout.min(ON_THE_WAY_OUT);
    let unusable = |what| OpenError::unusable(what, &directory.path);
    let here = Place::here();
    loop {
        let company = directory.enter(deadline)?;
        let found = Header::read(&directory.path).map_err(unusable("read the header in"))?;
        match (company, found) {
            (_, Found::Newer(found)) => {
                return Err(OpenError::NewerLayout {
                    directory: directory.path.clone(),
                    found,
                    known: LAYOUT,
                });
            }
            (Company::Others, Found::Header(header)) if header.place == here => {
                if let Some(name) = environment::missing_file(directory) {
                    directory.leave();
                    directory.pause(doubtful_until).map_err(|_| OpenError::Damaged {
                        directory: directory.path.clone(),
                        problem: format!("{name} is missing"),
                    })?;
                    continue;
                }
                let env = environment::open(directory, config.map_size);
                return Ok((env.map_err(|error| open_error(directory, error))?, here));
            }
            // Whoever was setting it up died, and the next to be alone will do it.
            (Company::Others, Found::Nothing) => {
                directory.leave();
                directory.pause(deadline)?;
            }
            // Whoever is inside may be on the way out.
            (Company::Others, Found::Header(header)) => {
                directory.leave();
                directory.pause(doubtful_until).map_err(|_| OpenError::Foreign {
                    directory: directory.path.clone(),
                    what: what_differs(&header.place, &here),
                })?;
            }
            (Company::Others, Found::Damaged) => {
                directory.leave();
                directory.pause(doubtful_until).map_err(|_| OpenError::Damaged {
                    directory: directory.path.clone(),
                    problem: "its header cannot be read".into(),
                })?;
            }
            (Company::None, found) => {
                let env = set_up(config, directory, found, &here)?;
                directory.settle(deadline)?;
                return Ok((env, here));
            }
        }
    }
}

/// Leaves a store in order behind, keeping what is worth keeping. To be called by who is alone.
fn set_up(config: &Config, directory: &Directory, found: Found, here: &Place) -> Result<Env, OpenError> {
    let unusable = |what| OpenError::unusable(what, &directory.path);
    let (header, is_current) = match found {
        Found::Header(header) => {
            let is_current = header.place.boot == here.boot && header.place.machine == here.machine;
            (Some(header), is_current)
        }
        _ => (None, false),
    };
    if !is_current {
        // Of an earlier boot, or of nobody: every claim is void, and the data may be torn.
        environment::discard(directory).map_err(unusable("clear"))?;
    }
    environment::make_files(directory).map_err(unusable("write to"))?;
    liveness::clear(&directory.path);
    let floor = header.as_ref().map_or(0, |header| header.token_ceiling);
    let mut is_aside = false;
    let env = loop {
        match open_and_read(config, directory, floor) {
            Ok(env) => break env,
            Err(error) if environment::is_damage(&error) && !is_aside => {
                environment::set_aside(directory).map_err(unusable("put damaged data aside in"))?;
                environment::make_files(directory).map_err(unusable("write to"))?;
                is_aside = true;
            }
            Err(error) => return Err(open_error(directory, error)),
        }
    };
    let now = SystemClock.unix_micros();
    if header.is_none_or(|header| header.place != *here || header.token_ceiling <= now) {
        let header = Header { place: here.clone(), token_ceiling: floor.max(now + CEILING_STEP) };
        header.write(&directory.path, directory.file_mode).map_err(unusable("write the header in"))?;
    }
    Ok(env)
}

/// Opens LMDB and reads all of it: what cannot be read must be found now, while we are alone.
fn open_and_read(config: &Config, directory: &Directory, token_floor: u64) -> heed::Result<Env> {
    let env = environment::open(directory, config.map_size)?;
    {
        let database = environment::database(&env)?;
        let mut watch = Watch::new(&directory.path, Owner(0));
        let txn = env.write_txn()?;
        Reserve::new(&env)?.is_there(&env, database, &txn, env.real_disk_size()?)?;
        let mut batch = Batch::begin(txn, database, config.rules, &mut watch, false)?;
        if batch.is_fresh() {
            batch.raise_token(token_floor);
        }
        batch.tidy_all()?;
        match batch.commit() {
            Ok(_) => {}
            Err(CommitError::Before(error) | CommitError::During { error, .. }) => return Err(error),
        }
    }
    Ok(env)
}

fn what_differs(there: &Place, here: &Place) -> &'static str {
    if there.machine != here.machine {
        "machine"
    } else if there.boot != here.boot {
        "boot of this machine"
    } else {
        "container (name space of process ids)"
    }
}

pub(crate) fn open_error(directory: &Directory, error: heed::Error) -> OpenError {
    match error {
        heed::Error::EnvAlreadyOpened => OpenError::AlreadyOpen {
            directory: directory.path.clone(),
            how: "and could not be closed yet, or was deleted while it was open",
        },
        error if environment::is_damage(&error) => {
            OpenError::Damaged { directory: directory.path.clone(), problem: error.to_string() }
        }
        heed::Error::Io(error) => OpenError::unusable("open the store in", &directory.path)(error),
        error => OpenError::unusable("open the store in", &directory.path)(std::io::Error::other(
            error.to_string(),
        )),
    }
}

/// Puts it on record that tokens go up to a little beyond `floor`; answers up to where. Only after that may they.
pub(crate) fn raise_ceiling(directory: &Directory, place: &Place, floor: u64) -> u64 {
    let known = match Header::read(&directory.path) {
        Ok(Found::Header(header)) => header.token_ceiling,
        _ => 0,
    };
    if known > floor {
        return known;
    }
    let header = Header { place: place.clone(), token_ceiling: floor + CEILING_STEP };
    if let Err(error) = header.write(&directory.path, directory.file_mode) {
        // Not worth refusing a lock for: the wall clock is a floor of its own.
        tracing::warn!(
            store = %directory.path.display(), %error,
            "cannot record how high tokens go: should the machine crash and its clock go back, they may too"
        );
    }
    header.token_ceiling
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Embedded;
    use tenure_core::{Locks, RefusalKind};

    fn header(directory: &std::path::Path) -> Header {
        match Header::read(directory).unwrap() {
            Found::Header(header) => header,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn leases_of_an_earlier_boot_are_void_and_tokens_go_on() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("locks");
        let locks = Locks::new(Embedded::open(Config::at(&directory)).unwrap());
        let detached = locks.lock("x").acquire().await.unwrap().detach().await.unwrap();
        drop(locks);
        let locks = Locks::new(Embedded::open(Config::at(&directory)).unwrap());
        assert!(locks.lock("x").try_acquire().await.unwrap().is_none(), "the same boot keeps it");
        drop(locks);
        // The machine comes back with a clock that is wrong by an hour.
        let mut earlier = header(&directory);
        assert!(earlier.token_ceiling > detached.token().get());
        earlier.place.boot = "another".into();
        earlier.token_ceiling += 3_600_000_000;
        earlier.write(&directory, 0o600).unwrap();
        let locks = Locks::new(Embedded::open(Config::at(&directory)).unwrap());
        let guard = locks.lock("x").try_acquire().await.unwrap().expect("void");
        assert!(guard.token().get() > earlier.token_ceiling);
        assert!(header(&directory).token_ceiling > guard.token().get(), "on record before it was given out");
    }

    /// The tokens lie in the data, and the data may be lost while the header is not.
    #[tokio::test]
    async fn tokens_go_on_when_the_data_is_lost() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("locks");
        drop(Embedded::open(Config::at(&directory)).unwrap());
        let mut ahead = header(&directory);
        ahead.token_ceiling += 3_600_000_000;
        ahead.write(&directory, 0o600).unwrap();
        for harm in ["nothing", "garbage"] {
            match harm {
                "nothing" => std::fs::remove_file(directory.join("data.mdb")).unwrap(),
                _ => std::fs::write(directory.join("data.mdb"), vec![0xa5; 40_000]).unwrap(),
            }
            let locks = Locks::new(Embedded::open(Config::at(&directory)).unwrap());
            let guard = locks.lock("x").acquire().await.unwrap();
            assert!(guard.token().get() > ahead.token_ceiling, "{harm}");
            guard.release().await.unwrap();
        }
    }

    /// A token that nothing can follow: adding to it panicked. One that is no number counted as none.
    #[tokio::test]
    async fn a_token_that_cannot_be_is_damage() {
        for bytes in [&[0xff; 8][..], &[1; 3]] {
            let outer = tempfile::tempdir().unwrap();
            let config = Config::at(outer.path().join("locks"));
            let directory = Directory::prepare(&config).unwrap();
            let (env, _) = open(&config, &directory).unwrap();
            let database = environment::database(&env).unwrap();
            let mut txn = env.write_txn().unwrap();
            database.put(&mut txn, b"\0token", bytes).unwrap();
            txn.commit().unwrap();
            drop((env, directory));
            let store = Embedded::open(config).unwrap();
            assert!(store.directory().join("damaged.mdb").exists(), "{bytes:?}");
            Locks::new(store).lock("x").acquire().await.unwrap().release().await.unwrap();
        }
    }

    #[test]
    fn strangers_are_refused_while_anyone_is_inside_and_taken_over_from_after() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("locks");
        drop(Embedded::open(Config::at(&path)).unwrap());
        let config = Config::at(&path);
        let soon = SystemClock.now() + Duration::from_secs(60);
        for (field, what) in [("machine", "machine"), ("boot", "boot"), ("processes", "container")] {
            // Somebody inside, from elsewhere.
            let inside = Directory::prepare(&config).unwrap();
            while inside.enter(soon).unwrap() == Company::Others {
                inside.leave();
            }
            let mut header = header(&path);
            match field {
                "machine" => header.place.machine = "elsewhere".into(),
                "boot" => header.place.boot = "elsewhere".into(),
                _ => header.place.processes = "elsewhere".into(),
            }
            header.write(&path, 0o600).unwrap();
            inside.settle(soon).unwrap();
            let refused = Embedded::open(config.clone()).map(|_| ()).unwrap_err();
            assert!(matches!(refused, OpenError::Foreign { .. }), "{refused}");
            assert!(refused.to_string().contains(what), "{refused}");
            assert_eq!(refused.kind(), RefusalKind::Configuration);
            drop(inside);
            drop(Embedded::open(config.clone()).unwrap());
        }
    }
}
