//! What happens to the store itself: full, deleted, damaged, shared. A clear error or a clean fresh start, never a
//! second holder.

mod common;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use common::{Actor, listen, ms, open, role, run, say, scratch, secs};
use tenure_core::{
    Attempt, Backend as _, Claim, ClaimId, Error, Guard, Label, LeaseState, Line, LockName, Locks, Mode,
    RefusalKind, SystemEntropy, Tie, Ttl, Why,
};
use tenure_embedded::{Config, Embedded, OpenError};

/// Not a test by itself: what the other processes of these tests do.
#[test]
fn role_play() {
    let Some((role, directory)) = role() else { return };
    run(async {
        match role.as_str() {
            "holder" => {
                let guard = open(&directory).lock("x").ttl(secs(60)).acquire().await.unwrap();
                say(guard.token());
                listen();
            }
            "shared" => {
                let mut config = Config::at(&directory);
                config.shared = true;
                let locks = Locks::new(Embedded::open(config).unwrap());
                say("open");
                while listen() == "acquire" {
                    let guard = locks.lock("x").acquire().await.unwrap();
                    say(guard.token());
                    listen();
                    guard.release().await.unwrap();
                    say("released");
                }
            }
            "full" => on_a_full_disk(&directory).await,
            "tries" => {
                let error = Embedded::open(Config::at(&directory)).map(|_| ()).unwrap_err();
                say(format!("{:?}: {error}", error.kind()));
            }
            other => panic!("there is no role {other}"),
        }
    });
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_full_map_refuses_newcomers_and_lets_everybody_out() {
    let (_outer, directory) = scratch();
    run(async {
        let mut config = Config::at(&directory);
        config.map_size = Config::MAP_SIZE_MIN;
        let locks = Locks::new(Embedded::open(config).unwrap());
        for round in 0..3 {
            let (guards, refused) = take_until_refused(&locks).await;
            assert!(refused.to_string().contains("full"), "{refused}");
            assert!(refused.is_retry_safe());
            assert!(guards.len() > 10, "round {round}: only {} fit", guards.len());
            for guard in guards {
                guard.release().await.expect("release works when the store is full");
            }
        }
    });
}

/// Takes locks until the store is full.
async fn take_until_refused(locks: &Locks) -> (Vec<Guard>, Error) {
    let mut guards = Vec::new();
    loop {
        let name = format!("{}-{}", "long".repeat(40), guards.len());
        match locks.lock(name).try_acquire().await {
            Ok(guard) => guards.push(guard.expect("free")),
            Err(error) => return (guards, error),
        }
    }
}

#[test]
fn a_full_disk_refuses_newcomers_and_lets_everybody_out() {
    let (_outer, directory) = scratch();
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    let mount = "mount -t tmpfs -o size=512k,mode=700 tmpfs \"$TENURE_TEST_DIRECTORY\" && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", mount]).arg(std::env::current_exe().unwrap());
    if !is_root() {
        println!("skipped: only root may mount a small disk");
        return;
    }
    let mut actor = Actor::start_with(command, "full", &directory);
    assert_eq!(actor.hear(), "survived");
}

async fn on_a_full_disk(directory: &Path) {
    let locks = open(directory);
    for round in 0..3 {
        let first = locks.lock("first").ttl(ms(600)).acquire().await.unwrap();
        let ballast = directory.join("ballast");
        let mut file = fs::File::create(&ballast).unwrap();
        while file.write_all(&[1; 1024]).is_ok() {}
        let (guards, refused) = take_until_refused(&locks).await;
        assert!(matches!(refused, Error::Unavailable { .. }), "{refused}");
        // Renewed there, again and again.
        let lease = first.lease();
        for _ in 0..3 {
            lease.changed(lease.valid_until()).await;
            assert!(lease.is_held());
        }
        let token = first.token();
        first.release().await.expect("release works on a full disk");
        for guard in guards {
            guard.release().await.expect("release works on a full disk");
        }
        let again = locks.lock("first").acquire().await.expect("there is room for what was there before");
        assert!(again.token() > token, "round {round}");
        again.release().await.unwrap();
        fs::remove_file(ballast).unwrap();
    }
    // Not even room to open a store: an error, not a crash.
    let inner = directory.join("inner");
    fs::create_dir(&inner).unwrap();
    fs::set_permissions(&inner, fs::Permissions::from_mode(0o700)).unwrap();
    let mut file = fs::File::create(directory.join("ballast")).unwrap();
    while file.write_all(&[1; 1024]).is_ok() {}
    let refused = Embedded::open(Config::at(&inner)).map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), RefusalKind::Unavailable, "{refused}");
    drop(file);
    fs::remove_file(directory.join("ballast")).unwrap();
    Embedded::open(Config::at(&inner)).unwrap();
    say("survived");
}

#[test]
fn a_deleted_directory_voids_its_locks_and_says_so() {
    for is_renamed in [false, true] {
        let (outer, directory) = scratch();
        run(async {
            let locks = open(&directory);
            let guard = locks.lock("x").ttl(ms(900)).acquire().await.unwrap();
            if is_renamed {
                fs::rename(&directory, outer.path().join("elsewhere")).unwrap();
            } else {
                fs::remove_dir_all(&directory).unwrap();
            }
            let refused = locks.lock("y").acquire().await.unwrap_err();
            assert!(refused.to_string().contains("deleted or replaced"), "{refused}");
            assert!(matches!(refused, Error::Refused { .. }), "{refused}");
            // A new directory is a new store: the old holder must know before long that it is none any more.
            let mut other = Actor::start("holder", &directory);
            let token: u64 = other.hear().parse().unwrap();
            assert!(token > guard.token().get());
            let why = tokio::time::timeout(ms(900), guard.lost()).await.expect("told by the next renewal");
            assert_eq!(why, Why::Gone);
            assert!(locks.lock("x").try_acquire().await.is_err());
            assert!(Embedded::open(Config::at(&directory)).is_err(), "the old one is still open");
            // What was lost is released when its guard goes; closing waits for that.
            drop(guard);
            locks.close(secs(5)).await.unwrap();
            drop(locks);
            assert!(
                open(&directory).lock("x").try_acquire().await.unwrap().is_none(),
                "the new store is in order"
            );
        });
    }
}

#[test]
fn a_damaged_store_starts_afresh_with_higher_tokens() {
    type Harm = (&'static str, fn(&Path));
    let harms: [Harm; 8] = [
        ("garbage", |d| fs::write(d.join("data.mdb"), vec![0xa5; 40_000]).unwrap()),
        ("a few bytes", |d| fs::write(d.join("data.mdb"), "hello").unwrap()),
        ("cut short", |d| {
            let file = fs::OpenOptions::new().write(true).open(d.join("data.mdb")).unwrap();
            file.set_len(8192 + 100).unwrap();
        }),
        ("pages of nothing", |d| {
            let mut bytes = fs::read(d.join("data.mdb")).unwrap();
            bytes[8192..].fill(0);
            fs::write(d.join("data.mdb"), bytes).unwrap();
        }),
        ("emptied", |d| fs::write(d.join("data.mdb"), "").unwrap()),
        ("no data", |d| fs::remove_file(d.join("data.mdb")).unwrap()),
        ("a bad header", |d| fs::write(d.join("header"), "tenure-embedded layout 1\nboot").unwrap()),
        ("a bad lock file", |d| fs::write(d.join("lock.mdb"), vec![0x5a; 20_000]).unwrap()),
    ];
    for (harm, inflict) in harms {
        let (_outer, directory) = scratch();
        run(async {
            let locks = open(&directory);
            // Left behind, so that there is something to damage.
            for i in 0..200 {
                locks.lock(format!("x{i}")).acquire().await.unwrap().detach().await.unwrap();
            }
            drop(locks);
            let mut holder = Actor::start("holder", &directory);
            let token: u64 = holder.hear().parse().unwrap();
            holder.kill();
            inflict(&directory);
            let locks = open(&directory);
            let guard = locks.lock("x").try_acquire().await;
            let guard = guard.unwrap_or_else(|error| panic!("{harm}: {error}")).expect("nobody holds it");
            assert!(guard.token().get() > token, "{harm}");
            assert!(matches!(guard.state(), LeaseState::Held { .. }));
            guard.release().await.unwrap();
        });
    }
}

/// Where LMDB keeps the number of the last page, in each of its first two pages.
const LAST_PAGE: usize = 136;

/// What the file said was added to and multiplied unseen, and the store thread panicked: its process then had no store, and
/// the directory stood open to whoever starts afresh.
#[test]
fn damage_under_an_open_store_is_refused_without_a_panic() {
    type Harm = (&'static str, fn(&mut [u8]));
    let harms: [Harm; 4] = [
        ("pages of ones", |pages| pages.fill(0xff)),
        ("pages of nothing", |pages| pages.fill(0)),
        ("the highest page there can be", |pages| {
            for page in pages.chunks_mut(4096) {
                page[LAST_PAGE..LAST_PAGE + 8].fill(0xff);
            }
        }),
        ("a page beyond the map", |pages| {
            for page in pages.chunks_mut(4096) {
                page[LAST_PAGE..LAST_PAGE + 8].copy_from_slice(&(1_u64 << 52).to_le_bytes());
            }
        }),
    ];
    for (harm, inflict) in harms {
        let (_outer, directory) = scratch();
        run(async {
            let locks = open(&directory);
            let guard = locks.lock("x").acquire().await.unwrap();
            let file =
                fs::OpenOptions::new().read(true).write(true).open(directory.join("data.mdb")).unwrap();
            let mut pages = vec![0; 8192];
            file.read_exact_at(&mut pages, 0).unwrap();
            inflict(&mut pages);
            file.write_all_at(&pages, 0).unwrap();
            let refused = locks.lock("y").try_acquire().await.unwrap_err();
            assert!(matches!(refused, Error::Refused { .. }), "{harm}: {refused}");
            // Asked twice: the store thread still serves.
            let refused = guard.release().await.unwrap_err();
            assert!(matches!(refused, Error::Refused { .. }), "{harm}: {refused}");
            // Nobody starts afresh while this process may believe in its locks.
            let mut other = Actor::start("tries", &directory);
            assert!(other.hear().starts_with("Configuration"), "{harm}");
            assert!(!directory.join("damaged.mdb").exists(), "{harm}");
        });
    }
}

/// LMDB made a lock file anew if somebody had removed it, with a mutex of its own: two processes wrote at the same time.
#[test]
fn a_file_removed_under_the_feet_of_others_is_not_made_anew() {
    for name in ["lock.mdb", "data.mdb"] {
        let (_outer, directory) = scratch();
        let mut holder = Actor::start("holder", &directory);
        holder.hear();
        fs::remove_file(directory.join(name)).unwrap();
        let refused = Embedded::open(Config::at(&directory)).map(|_| ()).unwrap_err();
        assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
        assert!(refused.to_string().contains(name), "{refused}");
        assert!(!directory.join(name).exists());
        holder.kill();
        Embedded::open(Config::at(&directory)).unwrap();
    }
}

#[test]
fn a_directory_is_made_for_its_owner_whatever_the_umask() {
    let (_outer, directory) = scratch();
    let umask = "umask 0177 && exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", umask]).arg(std::env::current_exe().unwrap());
    Actor::start_with(command, "holder", &directory).hear();
    assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o7777, 0o700);
}

#[test]
fn damage_is_not_repaired_under_the_feet_of_others() {
    let (_outer, directory) = scratch();
    run(async {
        let mut holder = Actor::start("holder", &directory);
        holder.hear();
        fs::write(directory.join("header"), "nonsense").unwrap();
        let mut config = Config::at(&directory);
        config.timeout = ms(200);
        let refused = Embedded::open(config.clone()).map(|_| ()).unwrap_err();
        assert!(matches!(refused, OpenError::Blocked { .. } | OpenError::Damaged { .. }), "{refused}");
        holder.kill();
        Embedded::open(config).unwrap();
    });
}

#[test]
fn a_newer_layout_is_refused_and_left_alone() {
    let (_outer, directory) = scratch();
    drop(Embedded::open(Config::at(&directory)).unwrap());
    let newer = "tenure-embedded layout 2\nsomething new\n";
    fs::write(directory.join("header"), newer).unwrap();
    let data = fs::read(directory.join("data.mdb")).unwrap();
    let refused = Embedded::open(Config::at(&directory)).map(|_| ()).unwrap_err();
    assert!(matches!(refused, OpenError::NewerLayout { found: 2, known: 1, .. }), "{refused}");
    assert_eq!(fs::read_to_string(directory.join("header")).unwrap(), newer);
    assert_eq!(fs::read(directory.join("data.mdb")).unwrap(), data);
}

#[test]
fn a_store_is_opened_once_however_often_it_is_asked_for() {
    let (outer, directory) = scratch();
    run(async {
        let first = Locks::new(Embedded::open(Config::at(&directory)).unwrap());
        let link = outer.path().join("link");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        let second = Locks::new(Embedded::open(Config::at(&link)).unwrap());
        let _guard = first.lock("x").acquire().await.unwrap();
        assert!(second.lock("x").try_acquire().await.unwrap().is_none());
        let mut shared = Config::at(&directory);
        shared.shared = true;
        assert!(matches!(Embedded::open(shared), Err(OpenError::AlreadyOpen { .. })));
    });
    for _ in 0..20 {
        drop(Embedded::open(Config::at(&directory)).unwrap());
    }
}

/// A store that was still closing was forgotten as soon as any other was opened, and LMDB then refused to open it again.
#[test]
fn a_store_can_be_opened_again_while_others_come_and_go() {
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let (_outer, directory) = scratch();
                for _ in 0..10 {
                    let store = Embedded::open(Config::at(&directory)).unwrap();
                    // Claims that closing must end: it takes its time.
                    run(async {
                        for i in 0..500 {
                            let claim = Claim {
                                name: LockName::new(format!("x{i}")).unwrap(),
                                id: ClaimId::draw(&SystemEntropy),
                                mode: Mode::Exclusive,
                                ttl: Ttl::DEFAULT,
                                tie: Tie::Process,
                                label: Label::of_this_process(),
                                reason: None,
                            };
                            assert!(matches!(
                                store.attempt(&claim, Line::Pass).await,
                                Ok(Attempt::Granted(_))
                            ));
                        }
                    });
                }
            });
        }
    });
}

#[test]
fn a_long_path_is_no_hindrance() {
    let outer = tempfile::tempdir().unwrap();
    let directory = outer.path().join("deep/".repeat(40)).join("locks");
    run(async {
        let locks = open(&directory);
        let guard = locks.lock("x").acquire().await.unwrap();
        let mut holder = Actor::start("holder", &directory);
        while locks.inspect("x").await.unwrap().waiters.is_empty() {
            tokio::time::sleep(ms(1)).await;
        }
        guard.release().await.unwrap();
        holder.hear();
    });
}

/// A copy of this program where `user` can start it.
fn as_user(user: u32, group: u32, groups: &str, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).arg(format!("--groups={groups}"));
    command.arg(program);
    command
}

/// What the documentation tells to do: a directory of a common group, with the bit that makes files inherit it.
#[test]
fn users_of_one_group_share_a_directory_on_purpose() {
    if !is_root() {
        println!("skipped: only root may act as two users");
        return;
    }
    let (outer, directory) = scratch();
    fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = outer.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    const GROUP: u32 = 4242;
    fs::create_dir(&directory).unwrap();
    chown(&directory, None, Some(GROUP)).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o2770)).unwrap();
    let member = |user| as_user(user, user, &GROUP.to_string(), &program);

    let mut anna = Actor::start_with(member(1001), "shared", &directory);
    let mut boris = Actor::start_with(member(1002), "shared", &directory);
    assert_eq!((anna.hear().as_str(), boris.hear().as_str()), ("open", "open"));
    let mut last = 0;
    for _ in 0..3 {
        anna.tell("acquire");
        let token: u64 = anna.hear().parse().unwrap();
        assert!(token > last);
        boris.tell("acquire");
        std::thread::sleep(ms(50));
        anna.tell("release");
        assert_eq!(anna.hear(), "released");
        last = boris.hear().parse().unwrap();
        assert!(last > token);
        boris.tell("release");
        assert_eq!(boris.hear(), "released");
    }
    // One user's death frees the lock for the other, and the other may sweep up.
    anna.tell("acquire");
    anna.hear();
    anna.kill();
    boris.tell("acquire");
    let token: u64 = boris.hear().parse().unwrap();
    assert!(token > last);

    // Neither who is not told that it is shared, nor who is not of the group.
    let mut untold = Actor::start_with(member(1001), "tries", &directory);
    assert!(untold.hear().starts_with("Permission"));
    let mut stranger = Actor::start_with(as_user(1003, 1003, "1003", &program), "tries", &directory);
    assert!(stranger.hear().starts_with("Permission"));
}

#[test]
fn an_unwritable_place_is_refused_naming_it() {
    if !is_root() {
        println!("skipped: only root may act as another user");
        return;
    }
    let (outer, _) = scratch();
    fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = outer.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let directory = outer.path().join("not-yours/locks");
    let mut stranger = Actor::start_with(as_user(1003, 1003, "1003", &program), "tries", &directory);
    let refused = stranger.hear();
    assert!(refused.starts_with("Permission") && refused.contains("not-yours"), "{refused}");
    let refused = Embedded::open(Config::at("/proc/locks")).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("/proc/locks"), "{refused}");
}
