//! Where the store is: `--store`, `$TENURE_STORE`, or the default. And its secrets: read here, printed nowhere.

use std::path::Path;
use std::time::Duration;

use tenure::{Connected, LockName, Locks, StoreUrl};

use crate::cli::Global;
use crate::exit_code::ExitCode;
use crate::failure::{Failure, Outcome};
use crate::output::note;

pub(crate) const STORE: &str = "TENURE_STORE";
pub(crate) const NAMESPACE: &str = "TENURE_NAMESPACE";
pub(crate) const PASSWORD_FILE: &str = "TENURE_PASSWORD_FILE";

/// The store, opened.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) connected: Connected,
    /// The client for names as the user gives them: inside the namespace, if there is one.
    pub(crate) locks: Locks,
    pub(crate) namespace: Option<String>,
    /// It is the directory that is used when none is named.
    pub(crate) is_default: bool,
}

impl Store {
    pub(crate) async fn open(global: &Global) -> Outcome<Self> {
        // Everything that can be wrong without the store is looked at before the store is touched.
        let namespace = match &global.namespace {
            Some(namespace) => Some(namespace.clone()),
            None => variable(NAMESPACE)?,
        };
        if let Some(Err(invalid)) = namespace.as_ref().map(LockName::new) {
            return Err(Failure::new(
                ExitCode::Usage,
                format!("the namespace is refused as a name: {invalid}"),
            ));
        }
        let url = url(global)?;
        refuse_memory(&url)?;
        let connected = Connected::to(&url).await;
        let connected = connected.map_err(|error| {
            Failure::from_error(&error, &url.to_string()).hint("--store or $TENURE_STORE names another store")
        })?;
        let locks = match &namespace {
            Some(namespace) => connected.locks.namespace(namespace),
            None => Ok(connected.locks.clone()),
        };
        let locks = locks.map_err(|error| Failure::from_error(&error, connected.locks.store()))?;
        let is_default = url.expose().split('?').next() == Some(StoreUrl::usual().expose());
        Ok(Self { connected, locks, namespace, is_default })
    }

    /// What the library answered, told about this store.
    pub(crate) fn failure(&self, error: &tenure::Error) -> Failure {
        Failure::from_error(error, self.locks.store())
    }

    /// The name as the store knows it.
    pub(crate) fn full_name(&self, name: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.into(),
        }
    }

    /// Waits for what must still be told to the store: a place in line given up, a release under way.
    pub(crate) async fn close(&self, within: Duration) {
        // What could not be told is left to expire; there is nobody to tell who could do more.
        let _ = self.connected.locks.close(within).await;
    }
}

fn url(global: &Global) -> Outcome<StoreUrl> {
    let url = match &global.store {
        Some(url) => {
            let url = StoreUrl::new(url);
            if url.has_password() {
                let _ = note(
                    "tenure: warning: a password in --store can be read by every user of this machine; \
                     $TENURE_STORE or $TENURE_PASSWORD_FILE keeps it to yourself",
                );
            }
            url
        }
        None => variable(STORE)?.map_or_else(StoreUrl::usual, StoreUrl::new),
    };
    match std::env::var_os(PASSWORD_FILE) {
        Some(file) => Ok(url.with_password(&password(file.as_ref())?)),
        None => Ok(url),
    }
}

/// The password in a file. None is not an empty one: without a password, a server may take us for somebody else.
fn password(file: &Path) -> Outcome<String> {
    let refused = |what: String| Failure::new(ExitCode::Configuration, what);
    if file.as_os_str().is_empty() {
        return Err(refused(format!("${PASSWORD_FILE} is set and names no file")));
    }
    let text = std::fs::read_to_string(file).map_err(|error| {
        refused(format!("cannot read the password from {} (${PASSWORD_FILE}): {error}", file.display()))
    })?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(refused(format!("the password file {} (${PASSWORD_FILE}) is empty", file.display()))),
        password => Ok(password.into()),
    }
}

/// A store inside a process is none between commands.
fn refuse_memory(url: &StoreUrl) -> Outcome<()> {
    if url.scheme() != Some("memory") {
        return Ok(());
    }
    let what = "memory: is a store inside one process, and each command is a process of its own: they would not exclude \
                each other";
    let hint = "file:DIR is for the processes of this machine, redis://HOST for those of many";
    Err(Failure::new(ExitCode::Configuration, what).hint(hint))
}

fn variable(name: &str) -> Outcome<Option<String>> {
    match std::env::var(name) {
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => Ok(Some(text)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Failure::new(ExitCode::Configuration, format!("${name} is not valid UTF-8")))
        }
    }
}
