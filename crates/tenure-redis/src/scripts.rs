//! The scripts: assembled from their files, with the lengths and limits of the line written in.

use std::time::Duration;

use redis::Cmd;
use tenure_core::queue::Rules;

use crate::supervisor::Live;

const LINE: &str = include_str!("scripts/line.lua");

/// How long a waiter that nobody listened for keeps its place, at the most.
const PASSED_OVER: Duration = Duration::from_secs(10);
/// How long the fence lives after a grant: longer than any ttl, and a day after it, with a day to spare.
pub(crate) const FENCE: Duration = Duration::from_secs(72 * 60 * 60);
/// Below this, a renewal lets the fence live longer: the longest ttl, and a day.
const FENCE_MIN: Duration = Duration::from_secs(48 * 60 * 60);
/// Tokens are set aside while they are ahead of the clock by no more than that: a store that has forgotten them goes by the
/// clock, and must not come below them.
const AHEAD: Duration = Duration::from_millis(1);

/// How the keys of a lock are laid out, by number. It is the name of the fence's one member: who finds another there must
/// not touch the locks.
pub(crate) const LAYOUT: &str = "4";

/// A script, and the hash it is called by.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) code: String,
    pub(crate) hash: String,
}

/// All scripts.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) attempt: Script,
    pub(crate) renew: Script,
    pub(crate) release: Script,
    pub(crate) settle: Script,
    pub(crate) evict: Script,
    pub(crate) inspect: Script,
    pub(crate) hand_on: Script,
}

impl Scripts {
    /// The scripts with these lengths and limits. Equal for all clients of a store.
    pub(crate) fn new(rules: &Rules) -> Self {
        let lengths = lengths(rules);
        let assemble = |code: &str| {
            let mut code = code.replace("-- @include line.lua\n", LINE);
            for (name, value) in &lengths {
                code = code.replace(&format!("@{name}@"), value);
            }
            let hash = redis::Script::new(&code).get_hash().to_owned();
            Script { code, hash }
        };
        Self {
            attempt: assemble(include_str!("scripts/attempt.lua")),
            renew: assemble(include_str!("scripts/renew.lua")),
            release: assemble(include_str!("scripts/release.lua")),
            settle: assemble(include_str!("scripts/settle.lua")),
            evict: assemble(include_str!("scripts/evict.lua")),
            inspect: assemble(include_str!("scripts/inspect.lua")),
            hand_on: assemble(include_str!("scripts/hand_on.lua")),
        }
    }

    pub(crate) fn all(&self) -> [&Script; 7] {
        let Self { attempt, renew, release, settle, evict, inspect, hand_on } = self;
        [attempt, renew, release, settle, evict, inspect, hand_on]
    }
}

/// What is written into the scripts, by the name it has in them.
fn lengths(rules: &Rules) -> [(&'static str, String); 10] {
    let ms = |duration: Duration| duration.as_millis().to_string();
    let us = |duration: Duration| duration.as_micros().to_string();
    [
        ("LAYOUT", LAYOUT.to_owned()),
        ("LINE_TTL_MS", ms(rules.line_ttl)),
        ("LATE_US", us(rules.line_ttl / 2)),
        ("FIRST_TTL_MS", ms(rules.first_ttl)),
        ("SKIP_MS", ms(PASSED_OVER.min(rules.line_ttl))),
        ("TOMBSTONE_MS", ms(rules.tombstone_ttl)),
        ("WAITERS_MAX", rules.waiters_max.to_string()),
        ("AHEAD_US", us(AHEAD)),
        ("FENCE_MS", ms(FENCE)),
        ("FENCE_MIN_MS", ms(FENCE_MIN)),
    ]
}

/// A call of a script: its keys and arguments are made for the connection it goes over.
pub(crate) trait Call: Send + Sync {
    fn script(&self) -> &Script;
    /// About how many arguments there are, and of how many bytes.
    fn size(&self) -> (usize, usize);
    /// Adds keys and arguments.
    fn fill(&self, live: &Live, command: &mut Cmd);
}

pub(crate) fn by_hash(call: &dyn Call, live: &Live) -> Cmd {
    command(call, live, "EVALSHA", &call.script().hash)
}

pub(crate) fn command(call: &dyn Call, live: &Live, verb: &str, script: &str) -> Cmd {
    let (arguments, size) = call.size();
    let mut command = Cmd::with_capacity(arguments + 3, size + script.len() + 40);
    command.arg(verb).arg(script);
    call.fill(live, &mut command);
    command
}

/// A call that a closure fills.
pub(crate) struct Filled<'a, F> {
    pub(crate) script: &'a Script,
    pub(crate) arguments: usize,
    pub(crate) size: usize,
    pub(crate) fill: F,
}

impl<F: Fn(&Live, &mut Cmd) + Send + Sync> Call for Filled<'_, F> {
    fn script(&self) -> &Script {
        self.script
    }

    fn size(&self) -> (usize, usize) {
        (self.arguments, self.size)
    }

    fn fill(&self, live: &Live, command: &mut Cmd) {
        (self.fill)(live, command);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_is_filled() {
        for script in Scripts::new(&Rules::DEFAULT).all() {
            assert!(!script.code.contains('@'), "{}", script.code);
            assert_eq!(script.hash.len(), 40);
        }
    }

    /// Whoever writes a client in another language goes by that page.
    #[test]
    fn what_is_filled_in_stands_in_the_documentation() {
        let page = include_str!("../../../docs/backends/redis.md");
        for (name, value) in lengths(&Rules::DEFAULT) {
            assert!(page.contains(&format!("| `@{name}@` | `{value}` |")), "{name} is {value}");
        }
    }
}
