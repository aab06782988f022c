//! What the store's errors mean: refused (nothing changed) or unknown (anything may have happened).

use redis::{ErrorKind, RedisError};
use tenure_core::{Refusal, RefusalKind, StoreError};

/// What to say of a server that is part of a cluster.
pub(crate) const CLUSTER: &str = "this is a node of a cluster: write redis+cluster:// instead of redis://";

/// What to say of one that is not, and should be.
pub(crate) const NO_CLUSTER: &str =
    "this server is no node of a cluster: write redis:// instead of redis+cluster://";

/// An error that the server gave as its answer to a request, as text: code first.
///
/// Codes that say that the request was not carried out are refusals. Everything else is unknown.
pub(crate) fn from_text(text: &str) -> StoreError {
    use RefusalKind::{Configuration, Permission, Unavailable, Unsupported};
    let known: &[(&str, RefusalKind, &str)] = &[
        ("READONLY", Unavailable, "this server is a replica and takes no writes: is a failover under way?"),
        ("LOADING", Unavailable, "the server is still loading its data"),
        ("BUSY ", Unavailable, "the server is busy with a long script of somebody else's"),
        ("OOM ", Unavailable, "the server is out of memory: raise maxmemory, or let something expire"),
        (
            "MISCONF",
            Unavailable,
            "the server cannot save its data and therefore takes no writes: see its log",
        ),
        ("MASTERDOWN", Unavailable, "this server is a replica that has lost its master"),
        ("NOREPLICAS", Unavailable, "the server has fewer replicas than min-replicas-to-write asks for"),
        ("CLUSTERDOWN", Unavailable, "the cluster does not serve at the moment"),
        ("max number of clients", Unavailable, "the server has no room for another client: raise maxclients"),
        ("NOAUTH", Permission, "the server wants a password: give one in the URL or in TENURE_PASSWORD_FILE"),
        ("WRONGPASS", Permission, "the server did not accept this user and password"),
        ("invalid username-password", Permission, "the server did not accept this user and password"),
        (
            "NOPERM",
            Permission,
            "this user may not do that: see the ACL rule in the documentation of this backend",
        ),
        (
            "ACL failure",
            Permission,
            "this user may not do that: see the ACL rule in the documentation of this backend",
        ),
        (
            "executing the script",
            Permission,
            "this user may not do that: see the ACL rule in the documentation of this backend",
        ),
        (
            "can't run this command",
            Permission,
            "this user may not do that: see the ACL rule in the documentation of this backend",
        ),
        ("WRONGTYPE", Configuration, "a key of this lock holds something else: another program uses it"),
        (
            "NOTTL ",
            Configuration,
            "this key never expires and was not written by tenure: it is hardly a lock, and is left alone",
        ),
        (
            "LAYOUT",
            Configuration,
            "another version of tenure uses these locks: use the same everywhere, or another prefix",
        ),
        ("MOVED", Configuration, CLUSTER),
        ("CROSSSLOT", Configuration, CLUSTER),
        ("cluster mode", Configuration, CLUSTER),
        ("cluster support disabled", Configuration, NO_CLUSTER),
        (
            "DB index",
            Configuration,
            "the server has no database of this number: see `databases` in its configuration",
        ),
        (
            "unknown command",
            Unsupported,
            "the server lacks a command: Redis 6.2, Valkey 7.2 or newer is needed",
        ),
    ];
    let words = without_trace(text);
    match known.iter().find(|(code, _, _)| text.contains(code)) {
        Some((_, kind, meaning)) => StoreError::refused(*kind, format!("{meaning} ({words})")),
        None => StoreError::unknown(words),
    }
}

/// What to do about an error, for who may change the server.
pub(crate) fn remedy(error: &StoreError) -> String {
    let text = error.to_string();
    let known = [
        (
            "OOM ",
            "raise maxmemory, or give locks a server of their own; locks that are held are served all the same",
        ),
        ("No space left", "make room on the server's disk"),
        ("MISCONF", "see in the server's log why it cannot save, and mend that: mostly its disk is full"),
        ("READONLY", "connect to the primary"),
        ("MASTERDOWN", "connect to the primary"),
        ("NOREPLICAS", "bring the replicas back, or lower min-replicas-to-write"),
        ("LOADING", "wait until the server has loaded its data"),
        ("BUSY ", "wait for that script, or end it with SCRIPT KILL"),
        ("max number of clients", "raise maxclients, or find who leaks connections"),
        ("WRONGTYPE", "delete the keys tenure:{tenure-doctor*}, or use another ?prefix"),
        ("LAYOUT", "use the same version of tenure everywhere, or another ?prefix"),
    ];
    if let Some((_, remedy)) = known.iter().find(|(code, _)| text.contains(code)) {
        return (*remedy).into();
    }
    match error {
        StoreError::Refused(refusal) if refusal.kind == RefusalKind::Permission => {
            "give this user the rights in docs/backends/redis.md".into()
        }
        StoreError::Refused(_) => "see docs/backends/redis.md, under what can go wrong".into(),
        StoreError::Unknown(_) => {
            "see whether the server or the network is overloaded; a longer ?timeout= bears more".into()
        }
    }
}

/// Whether a key holds what is none of ours.
pub(crate) fn is_foreign(refusal: &Refusal) -> bool {
    refusal.kind == RefusalKind::Configuration && refusal.message.contains("WRONGTYPE")
}

/// What the server said, without where in which script it came to say it.
fn without_trace(text: &str) -> &str {
    // Since Redis 7 after the words, before that in front of them. The words may speak of a script themselves.
    let words = match text.rsplit_once(" script: ") {
        Some((words, place)) if place.contains("@user_script") => words,
        _ => text,
    };
    let words = match words.rsplit_once("@user_script: ").and_then(|(_, rest)| rest.split_once(": ")) {
        Some((line, rest)) if line.bytes().all(|byte| byte.is_ascii_digit()) => rest.trim_start_matches('-'),
        _ => words,
    };
    words.trim().trim_end_matches(['.', ','])
}

/// An error from the client library, after the request may have been sent.
pub(crate) fn after_sending(error: &RedisError) -> StoreError {
    match error.code() {
        Some(code) => from_text(&format!("{code} {}", error.detail().unwrap_or_default())),
        None => StoreError::unknown(describe(error)),
    }
}

/// An error from the client library while connecting: nothing was asked for yet, so nothing changed.
pub(crate) fn while_connecting(error: &RedisError) -> StoreError {
    let refused = match error.code() {
        Some(code) => from_text(&format!("{code} {}", error.detail().unwrap_or_default())),
        None => StoreError::unknown(""),
    };
    match (refused, error.kind()) {
        (refused @ StoreError::Refused(_), _) => refused,
        (_, ErrorKind::AuthenticationFailed) => StoreError::refused(
            RefusalKind::Permission,
            format!("the server did not accept this user and password ({})", describe(error)),
        ),
        (_, ErrorKind::InvalidClientConfig) => {
            StoreError::refused(RefusalKind::Configuration, format!("cannot connect: {}", describe(error)))
        }
        (_, _) if is_bad_certificate(error) => StoreError::refused(
            RefusalKind::Permission,
            format!("the TLS certificates do not fit: {}", describe(error)),
        ),
        _ => StoreError::refused(RefusalKind::Unavailable, format!("cannot connect: {}", describe(error))),
    }
}

/// A server that cannot show who it is will not be able to a moment later.
fn is_bad_certificate(error: &RedisError) -> bool {
    let text = describe(error).to_lowercase();
    text.contains("certificate") || text.contains("fatal alert")
}

/// The error as text, without the noise that the library wraps around a server's own words.
pub(crate) fn describe(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        // The name of a kind of error means nothing to the reader.
        _ => error.to_string().replace(" - InvalidClientConfig", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> Option<RefusalKind> {
        match from_text(text) {
            StoreError::Refused(refusal) => Some(refusal.kind),
            StoreError::Unknown(_) => None,
        }
    }

    #[test]
    fn each_answer_has_its_meaning() {
        use RefusalKind::{Configuration, Permission, Unavailable};
        for (text, expected) in [
            ("READONLY You can't write against a read only replica.", Some(Unavailable)),
            ("@user_script: 3: -READONLY You can't write against a read only replica.", Some(Unavailable)),
            ("LOADING Redis is loading the dataset in memory", Some(Unavailable)),
            ("BUSY Redis is busy running a script.", Some(Unavailable)),
            ("OOM command not allowed when used memory > 'maxmemory'.", Some(Unavailable)),
            ("MISCONF Redis is configured to save RDB snapshots", Some(Unavailable)),
            ("MASTERDOWN Link with MASTER is down", Some(Unavailable)),
            ("NOREPLICAS Not enough good replicas to write.", Some(Unavailable)),
            ("ERR max number of clients reached", Some(Unavailable)),
            ("NOAUTH Authentication required.", Some(Permission)),
            ("WRONGPASS invalid username-password pair", Some(Permission)),
            ("NOPERM this user has no permissions", Some(Permission)),
            ("ERR The user executing the script can't run this command or subcommand", Some(Permission)),
            (
                "ERR ACL failure in script: User a has no permissions to run the 'lpush' command",
                Some(Permission),
            ),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Some(Configuration)),
            ("LAYOUT 2", Some(Configuration)),
            ("CROSSSLOT Keys in request don't hash to the same slot", Some(Configuration)),
            ("MOVED 3999 127.0.0.1:6381", Some(Configuration)),
            ("ERR SELECT is not allowed in cluster mode", Some(Configuration)),
            ("ERR DB index is out of range", Some(Configuration)),
            ("TRYAGAIN Multiple keys request during rehashing of slot", None),
            ("ASK 1 127.0.0.1:7000", None),
            ("ERR something new", None),
        ] {
            assert_eq!(kind(text), expected, "{text}");
        }
    }

    #[test]
    fn nobody_is_shown_where_in_a_script_it_happened() {
        let hash = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        for text in [
            "READONLY You can't write against a read only replica.".to_owned(),
            format!(
                "READONLY You can't write against a read only replica. script: {hash}, on @user_script:138."
            ),
            "@user_script: 3: -READONLY You can't write against a read only replica.".into(),
            format!(
                "ERR Error running script (call to f_{hash}): @user_script:9: @user_script: 9: -READONLY You can't write \
                 against a read only replica."
            ),
        ] {
            let message = from_text(&text).to_string();
            assert!(message.ends_with("(READONLY You can't write against a read only replica)"), "{message}");
        }
        let valkey = "ERR ACL failure in script: User x has no permissions to run the 'zadd' command";
        let message = from_text(&format!("{valkey} script: {hash}, on @user_script:138.")).to_string();
        assert!(message.ends_with(&format!("({valkey})")), "{message}");
    }
}
