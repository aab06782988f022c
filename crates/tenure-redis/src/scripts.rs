//! The scripts: assembled from their files, with the lengths and limits of the line written in.

use std::time::Duration;

use tenure_core::queue::Rules;

const LINE: &str = include_str!("scripts/line.lua");

/// How long a waiter that nobody listened for keeps its place, at the most.
const PASSED_OVER: Duration = Duration::from_secs(10);
/// How long the fence lives after a grant: longer than any ttl, and a day after it, with a day to spare.
pub(crate) const FENCE: Duration = Duration::from_secs(72 * 60 * 60);
/// Below this, a renewal lets the fence live longer: the longest ttl, and a day.
const FENCE_MIN: Duration = Duration::from_secs(48 * 60 * 60);

/// How the keys of a lock are laid out, by number. It is the name of the fence's one member: who finds another there must
/// not touch the locks.
pub(crate) const LAYOUT: &str = "3";

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
}

impl Scripts {
    /// The scripts with these lengths and limits. Equal for all clients of a store.
    pub(crate) fn new(rules: &Rules) -> Self {
        let assemble = |code: &str| {
            let ms = |duration: Duration| duration.as_millis().to_string();
            let code = code
                .replace("-- @include line.lua\n", LINE)
                .replace("@LINE_TTL_MS@", &ms(rules.line_ttl))
                .replace("@LATE_US@", &(rules.line_ttl / 2).as_micros().to_string())
                .replace("@FIRST_TTL_MS@", &ms(rules.first_ttl))
                .replace("@TOMBSTONE_MS@", &ms(rules.tombstone_ttl))
                .replace("@WAITERS_MAX@", &rules.waiters_max.to_string())
                .replace("@SKIP_MS@", &ms(PASSED_OVER.min(rules.line_ttl)))
                .replace("@LAYOUT@", LAYOUT)
                .replace("@FENCE_MS@", &ms(FENCE))
                .replace("@FENCE_MIN_MS@", &ms(FENCE_MIN));
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
        }
    }

    pub(crate) fn all(&self) -> [&Script; 6] {
        [&self.attempt, &self.renew, &self.release, &self.settle, &self.evict, &self.inspect]
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
}
