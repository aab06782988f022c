//! What a user may not do that locks need: each command is tried by itself, in a way that changes nothing.
//!
//! Only where scripts are allowed; without them, the trial of a lock says what is missing.

use redis::Cmd;
use tenure_core::{Answer, Finding, LockName, Severity, StoreError};

use crate::backend::Redis;

const SUBJECT: &str = "rights";

/// The commands of the scripts, and what fails without them.
const NEEDED: [(&[&str], &str); 6] = [
    (
        &["SET", "GET", "MGET", "EXISTS", "PTTL", "PEXPIREAT", "ZADD", "ZINCRBY", "TIME"],
        "locks cannot be taken or renewed",
    ),
    (&["DEL"], "locks cannot be given back, and stay held until their ttl ends"),
    (
        &["LPUSH", "RPUSH", "LPOP", "RPOP", "LREM", "LLEN", "LINDEX", "LINSERT", "LRANGE", "LPOS"],
        "nobody can wait in line: whoever finds a lock held is refused",
    ),
    (
        &["HSET", "HSETNX", "HGET", "HEXISTS", "HDEL", "HLEN", "HKEYS"],
        "nobody can wait in line or share a lock, and nobody can be evicted",
    ),
    (&["ZREM", "ZCARD", "ZRANGE", "ZRANGEBYSCORE", "ZSCORE"], "locks cannot be shared, nor permits given"),
    (
        &["PUBLISH"],
        "waiters of other processes are not told of their turn: they are passed over, and look again seconds later",
    ),
];

const EVAL: (&[&str], &str) =
    (&["EVAL"], "locks cannot be taken once the server forgets its scripts; other rights were not tried");

/// What was found out.
pub(crate) struct Rights {
    pub(crate) findings: Vec<Finding>,
    /// Whether locks can be listed.
    pub(crate) may_list: bool,
}

impl Rights {
    /// Whether nothing is missing that a lock cannot do without. Otherwise a script may end half-way.
    pub(crate) fn suffice(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity != Severity::Problem)
    }
}

/// What a server said no to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Denied {
    Command,
    Keys,
    Channel,
    /// There is no such command: renamed, or disabled.
    Absent,
}

impl Denied {
    /// What these words of the server's deny, if they deny anything.
    fn in_words(text: &str) -> Option<Self> {
        let text = text.to_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if text.contains("unknown") && text.contains("command") {
            return Some(Self::Absent);
        }
        if !says(&["noperm", "user executing the script", "acl failure"]) {
            return None;
        }
        // First: only these words may have the name of a user in them.
        Some(if says(&["permissions to run", "can't run"]) {
            Self::Command
        } else if text.contains("channel") {
            Self::Channel
        } else {
            Self::Keys
        })
    }

    fn of<T>(answer: &Answer<T>) -> Option<Self> {
        answer.as_ref().err().and_then(|error| Self::in_words(&error.to_string()))
    }
}

impl Redis {
    /// What this user may not do, though locks need it.
    ///
    /// # Errors
    /// If the server does not answer.
    pub(crate) async fn rights(&self, is_subscribed: bool) -> Answer<Rights> {
        let missing = self.missing().await?;
        let by_hash = Denied::of(&self.command(&["EVALSHA", &"0".repeat(40), "0"]).await);
        let scan = Denied::of(&self.command(&["SCAN", "0", "COUNT", "1"]).await);
        let mut findings = Vec::new();
        let is = |denied: Denied| missing.iter().any(|(_, found)| *found == denied);
        let those = |among: &[&'static str], denied: Denied| -> Vec<&str> {
            let lacks =
                |command: &&str| missing.iter().any(|(name, found)| name == command && *found == denied);
            among.iter().copied().filter(lacks).collect()
        };
        if is(Denied::Keys) {
            findings.push(self.without_keys());
        }
        if by_hash.is_some() {
            findings.push(self.without(&["EVALSHA"], "locks cannot be taken", Finding::problem));
        }
        for (commands, consequence) in NEEDED.iter().chain([&EVAL]) {
            let lacking = those(commands, Denied::Command);
            if !lacking.is_empty() {
                findings.push(self.without(&lacking, consequence, Finding::problem));
            }
            let absent = those(commands, Denied::Absent);
            if !absent.is_empty() {
                let observed = format!("the server does not know {}: {consequence}", absent.join(", "));
                let remedy = "do not rename or disable commands of this server";
                findings.push(Finding::problem(SUBJECT, observed, remedy));
            }
        }
        if is(Denied::Channel) {
            findings.push(self.without_channel());
        } else if !is_subscribed {
            let consequence = "waiters are not told of their turn, and look again and again";
            findings.push(self.without(&["SUBSCRIBE"], consequence, Finding::advice));
        }
        if scan.is_some() {
            let consequence = "`tenure ls` and `tenure watch` cannot list locks";
            findings.push(self.without(&["SCAN"], consequence, Finding::advice));
        }
        if findings.is_empty() {
            findings.push(Finding::fine(SUBJECT, "all that locks need"));
        }
        Ok(Rights { findings, may_list: scan.is_none() })
    }

    /// The commands of the scripts that are denied, and in which way.
    async fn missing(&self) -> Answer<Vec<(String, Denied)>> {
        let (config, layout) = (self.inner.place.config(), &self.inner.layout);
        let keys = layout.keys(&LockName::new("tenure-doctor").expect("a valid name"));
        let (probe, channel) = (keys.side(":p"), format!("{}:push:doctor", config.prefix));
        let code = include_str!("scripts/rights.lua");
        match self.command(&["EVAL", code, "3", &probe, layout.fence(), keys.main(), &channel]).await {
            Ok(value) => {
                let failed: Vec<String> =
                    redis::from_redis_value(value).map_err(|error| StoreError::unknown(error.to_string()))?;
                let pairs = failed.chunks_exact(2);
                Ok(pairs.filter_map(|pair| Some((pair[0].clone(), Denied::in_words(&pair[1])?))).collect())
            }
            Err(error) => match Denied::in_words(&error.to_string()) {
                Some(denied) => Ok(vec![("EVAL".into(), denied)]),
                None => Err(error),
            },
        }
    }

    async fn command(&self, words: &[&str]) -> Answer<redis::Value> {
        let mut command = Cmd::new();
        command.arg(words);
        Ok(self.inner.place.ask(&command).await?.value)
    }

    fn without(
        &self,
        commands: &[&str],
        consequence: &str,
        finding: fn(&'static str, String, String) -> Finding,
    ) -> Finding {
        let allow: Vec<String> =
            commands.iter().map(|command| format!("+{}", command.to_lowercase())).collect();
        let mut remedy = self.allowing(&allow.join(" "));
        if commands.contains(&"SET") {
            remedy += "; then examine again, for LPUSH, RPUSH, HSET and HSETNX could not be tried without";
        }
        finding(SUBJECT, format!("{} not allowed: {consequence}", commands.join(", ")), remedy)
    }

    fn without_keys(&self) -> Finding {
        let config = self.inner.place.config();
        let observed = format!("the keys {}:* are not allowed: locks cannot be taken", config.prefix);
        let mut remedy = self.allowing(&format!("~{}:*", config.prefix));
        if config.plain {
            remedy += ", and with ?plain a pattern for the names, this examination's tenure-doctor* included";
        }
        Finding::problem(SUBJECT, observed, remedy)
    }

    fn without_channel(&self) -> Finding {
        let prefix = &self.inner.place.config().prefix;
        let observed = format!(
            "the channels {prefix}:push:* are not allowed: waiters are not told of their turn, and look again and again"
        );
        Finding::problem(SUBJECT, observed, self.allowing(&format!("'&{prefix}:push:*'")))
    }

    fn allowing(&self, rule: &str) -> String {
        format!("ACL SETUSER {} {rule}", self.inner.place.config().user())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_is_understood() {
        for (text, expected) in [
            ("NOPERM this user has no permissions to run the 'lpush' command", Some(Denied::Command)),
            ("NOPERM User channel has no permissions to run the 'lpush' command", Some(Denied::Command)),
            (
                "@user_script: 1: The user executing the script can't run this command or subcommand",
                Some(Denied::Command),
            ),
            (
                "ERR ACL failure in script: User key has no permissions to run the 'x' command",
                Some(Denied::Command),
            ),
            ("ERR ACL failure in script: No permissions to access a key", Some(Denied::Keys)),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                Some(Denied::Keys),
            ),
            (
                "ERR The user executing the script can't publish to the channel mentioned",
                Some(Denied::Channel),
            ),
            ("ERR ACL failure in script: No permissions to access a channel", Some(Denied::Channel)),
            ("ERR Unknown Redis command called from script", Some(Denied::Absent)),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", None),
            ("OOM command not allowed when used memory > 'maxmemory'.", None),
            ("ERR value is not an integer or out of range", None),
            ("NOSCRIPT No matching script", None),
        ] {
            assert_eq!(Denied::in_words(text), expected, "{text}");
        }
    }

    /// A command that a script calls and nobody tries is a right that is found missing too late.
    #[test]
    fn every_command_of_the_scripts_is_tried() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/scripts");
        let tried = std::fs::read_to_string(folder.join("rights.lua")).unwrap();
        for script in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            let code = std::fs::read_to_string(&script).unwrap();
            for called in ["call('", "call_('", "on_many('"] {
                for command in code.split(called).skip(1).map(|rest| &rest[..rest.find('\'').unwrap()]) {
                    assert!(NEEDED.iter().any(|(commands, _)| commands.contains(&command)), "{command}");
                }
            }
        }
        for command in NEEDED.iter().flat_map(|(commands, _)| *commands) {
            assert!(tried.contains(&format!("'{command}'")), "{command}");
        }
    }
}
