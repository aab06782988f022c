//! The environment of the command: what it is told, and what is kept from it.
//!
//! Also knows which locks the ancestors of this process hold: a nested `run` of one of them would wait for itself.

use std::process::Command;

use tenure::{LockName, StoreUrl};

use crate::claim_source::CLAIM;
use crate::exit_code::ExitCode;
use crate::failure::{Failure, Outcome};
use crate::store::{PASSWORD_FILE, STORE, Store};

const LOCK: &str = "TENURE_LOCK";
const TOKEN: &str = "TENURE_TOKEN";
const STORE_KIND: &str = "TENURE_STORE_KIND";
/// The locks that the ancestors hold, outermost first, each as `NAME#TOKEN`, separated by spaces. Ours.
///
/// Without the store, which may have many names (`localhost`, `127.0.0.1`): that a lock of this name is held under this
/// token tells enough.
const HELD: &str = "TENURE_HELD";

/// Tells `command` its lock, and takes the secrets away.
pub(crate) fn prepare(command: &mut Command, store: &Store, name: &LockName) {
    command.env_remove(CLAIM).env_remove(PASSWORD_FILE).env_remove(TOKEN);
    // The rest of the URL stays: a `tenure` inside that found none would lock in another store, and not notice.
    let url = std::env::var_os(STORE).map(|url| StoreUrl::new(url.to_string_lossy()));
    if let Some(url) = url.filter(StoreUrl::has_password) {
        command.env(STORE, url.without_password().expose());
    }
    let name = store.full_name(name.as_str());
    let mut held = std::env::var(HELD).unwrap_or_default();
    if !held.is_empty() {
        held.push(' ');
    }
    held.push_str(&encoded(&name));
    command.env(LOCK, name).env(STORE_KIND, store.connected.kind).env(HELD, held);
}

/// Tells `command` its token, which is known only once the lock is granted. The rest came with our own environment.
pub(crate) fn number(command: &mut Command, token: u64) {
    let held = std::env::var(HELD).unwrap_or_default();
    command.env(TOKEN, token.to_string()).env(HELD, format!("{held}#{token}"));
}

/// Refuses a lock that an ancestor holds. What a long-gone ancestor left in the environment does not count.
pub(crate) async fn refuse_nested(store: &Store, name: &LockName) -> Outcome<()> {
    let held = std::env::var(HELD).unwrap_or_default();
    let full_name = encoded(&store.full_name(name.as_str()));
    let tokens = held.split(' ').filter_map(|entry| {
        let (lock, token) = entry.rsplit_once('#')?;
        (lock == full_name).then(|| token.parse::<u64>().ok())?
    });
    for token in tokens {
        let state = store.locks.inspect(name).await.map_err(|error| store.failure(&error))?;
        if state.holders.iter().any(|holder| holder.token.is_some_and(|held| held.get() == token)) {
            let what = format!(
                "lock {name:?} on store {} is held by the `tenure` that this one was started from, and would wait for \
                 itself",
                store.locks.store()
            );
            return Err(Failure::new(ExitCode::Configuration, what)
                .hint("use another name, or do without the inner run"));
        }
    }
    Ok(())
}

/// A name without the separators.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'#' && byte != b'%';
    let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(encode).collect()
}
