//! The keys of a lock: how a name becomes what is written to the store, and back.
//!
//! All keys of one lock share one hash slot, by their braces. Braces, percent signs and all that is not plain ASCII
//! are encoded in a name, so that two names never share a key and no name can leave its prefix.

use tenure_core::{ClaimId, LockName};

/// How names become keys.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// What every key starts with, colon included.
    prefix: String,
    /// The key that numbers the grants of all locks.
    fence: String,
    /// The main key is the name itself: shared with clients that do `SET name value NX PX ttl`.
    plain: bool,
    /// Scripts are told of every key that they may touch: a cluster that moves the keys of a lock to another node, one by one,
    /// then refuses them until all have arrived.
    names_all: bool,
}

/// The keys of one lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Keys {
    /// The main key, if it is not the base.
    plain: Option<String>,
    base: String,
    names_all: bool,
}

/// What may stand after the base of a lock's keys; the main key is the base itself.
const SIDES: [&str; 5] = [":c", ":t", ":s", ":q", ":d"];

impl Layout {
    pub(crate) fn new(prefix: &str, plain: bool) -> Self {
        Self { prefix: format!("{prefix}:"), fence: format!("{prefix}:f"), plain, names_all: false }
    }

    /// The layout of locks whose keys are all in the slot of `tag`.
    pub(crate) fn in_slot_of(prefix: &str, tag: &str) -> Self {
        Self { names_all: true, ..Self::new(&format!("{prefix}:{{{tag}}}"), false) }
    }

    /// The tag in a key of such a layout, and that layout.
    pub(crate) fn tag_in<'a>(prefix: &str, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(prefix)?.strip_prefix(":{")?.split_once("}:").map(|(tag, _)| tag)
    }

    /// A `MATCH` pattern for the keys of all locks whose names start with `start`, whatever their tag.
    pub(crate) fn pattern_in_any_slot(prefix: &str, start: &str) -> String {
        let in_one = Self::new(&format!("{prefix}:{{TAG}}"), false).pattern(start);
        in_one.replacen("{TAG}", "{*}", 1)
    }

    /// The key that numbers the grants of all locks: no name makes it, for it has no braces.
    pub(crate) fn fence(&self) -> &str {
        &self.fence
    }

    pub(crate) fn keys(&self, name: &LockName) -> Keys {
        let text = name.as_str();
        let mut base = String::with_capacity(self.prefix.len() + text.len() + 2);
        base.push_str(&self.prefix);
        base.push('{');
        if text.bytes().all(is_kept) {
            base.push_str(text);
        } else {
            base.push_str(&name.encoded(is_kept));
        }
        base.push('}');
        Keys { plain: self.plain.then(|| text.to_owned()), base, names_all: self.names_all }
    }

    /// The keys of the lock with this main key: one that came in a push.
    pub(crate) fn keys_of_main(&self, main: &str) -> Option<Keys> {
        if self.plain {
            return LockName::new(main).ok().map(|name| self.keys(&name));
        }
        main.strip_prefix(&self.prefix)?;
        Some(Keys { plain: None, base: main.to_owned(), names_all: self.names_all })
    }

    /// The name of the lock that `key` belongs to, if it tells that somebody holds, waits for or has settled it.
    pub(crate) fn name_in_use(&self, key: &str) -> Option<LockName> {
        let rest = key.strip_prefix(&self.prefix)?.strip_prefix('{')?;
        let (encoded, side) = rest.split_once('}')?;
        let tells = match side {
            "" => !self.plain,
            ":s" | ":q" | ":d" => true,
            // In plain mode a lock that somebody of ours held is found by this; nobody lists foreign keys.
            ":f" => self.plain,
            _ => false,
        };
        tells.then(|| LockName::decoded(encoded)).flatten()
    }

    /// A `MATCH` pattern for the keys of all locks whose names start with `prefix`.
    pub(crate) fn pattern(&self, prefix: &str) -> String {
        let mut pattern = String::new();
        let encoded = LockName::new(prefix).map_or_else(|_| String::new(), |name| name.encoded(is_kept));
        for character in format!("{}{{{encoded}", self.prefix).chars() {
            if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^') {
                pattern.push('\\');
            }
            pattern.push(character);
        }
        pattern.push('*');
        pattern
    }
}

impl Keys {
    pub(crate) fn main(&self) -> &str {
        self.plain.as_deref().unwrap_or(&self.base)
    }

    /// What tells that somebody of ours held a lock whose main key tells nothing.
    pub(crate) fn marker(&self) -> Option<String> {
        self.plain.as_ref().map(|_| format!("{}:f", self.base))
    }

    pub(crate) fn record(&self) -> String {
        self.side(":d")
    }

    /// The key with this after the base.
    pub(crate) fn side(&self, which: &str) -> String {
        format!("{}{which}", self.base)
    }

    /// Every key that the lock may have.
    pub(crate) fn all(&self) -> Vec<String> {
        let sides = ["", ":c", ":t", ":s", ":q", ":d", ":f"].iter().map(|which| self.side(which));
        sides.chain(self.plain.clone()).collect()
    }

    pub(crate) fn shared(&self) -> String {
        format!("{}:s", self.base)
    }

    pub(crate) fn line(&self) -> String {
        format!("{}:q", self.base)
    }

    pub(crate) fn claims(&self) -> String {
        format!("{}:c", self.base)
    }

    /// The tombstone of one claim, where there are no scripts to keep them all in one.
    pub(crate) fn tombstone(&self, id: ClaimId) -> String {
        format!("{}:t:{}", self.base, id.to_hex())
    }

    /// How many keys of a lock the scripts are given: they make the others from the last.
    pub(crate) const fn count(&self) -> usize {
        match (self.names_all, self.plain.is_some()) {
            (true, _) => 2 + SIDES.len(),
            (false, true) => 2,
            (false, false) => 1,
        }
    }

    /// Adds those keys to a command.
    pub(crate) fn write_to(&self, command: &mut redis::Cmd) {
        if let Some(plain) = &self.plain {
            command.arg(plain);
        }
        if self.names_all {
            command.arg(&self.base);
            for side in SIDES {
                command.arg(self.side(side));
            }
        }
        command.arg(&self.base);
    }

    /// How many bytes that is.
    pub(crate) fn size(&self) -> usize {
        let times = if self.names_all { 2 + SIDES.len() } else { 1 };
        (self.base.len() + 2) * times + self.plain.as_ref().map_or(0, String::len)
    }
}

fn is_kept(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}' | b'%') || byte == b' '
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_becomes_keys_of_one_slot_and_back() {
        let layout = Layout::new("tenure", false);
        for name in ["orders/1001", "a{b}c", "100%", "\u{1F512} lock", "x:f", "*?[]\\"] {
            let name = LockName::new(name).unwrap();
            let keys = layout.keys(&name);
            assert_eq!(keys.main().matches('{').count(), 1);
            assert_eq!(layout.name_in_use(keys.main()), Some(name.clone()));
            assert_eq!(layout.keys_of_main(keys.main()), Some(keys.clone()));
            assert_eq!(layout.name_in_use(&format!("{}:s", keys.base)), Some(name));
            assert_eq!(layout.name_in_use(&format!("{}:f", keys.base)), None);
            assert_eq!(keys.marker(), None);
        }
        assert_eq!(layout.name_in_use(layout.fence()), None);
        assert_eq!(layout.name_in_use("other:{a}"), None);
        assert_eq!(layout.keys_of_main("other:{a}"), None);
    }

    #[test]
    fn in_a_cluster_all_keys_of_a_lock_are_in_the_slot_of_its_tag() {
        let layout = Layout::in_slot_of("tenure", "17");
        let name = LockName::new("orders/{1}").unwrap();
        let keys = layout.keys(&name);
        assert_eq!((keys.main(), layout.fence()), ("tenure:{17}:{orders/%7B1%7D}", "tenure:{17}:f"));
        assert_eq!(layout.keys_of_main(keys.main()), Some(keys.clone()));
        assert_eq!(layout.name_in_use(&keys.line()), Some(name));
        assert_eq!(Layout::tag_in("tenure", &keys.line()), Some("17"));
        assert_eq!(Layout::tag_in("tenure", "tenure:{a}"), None);
        assert_eq!(Layout::tag_in("other", keys.main()), None);
        assert_eq!(Layout::pattern_in_any_slot("tenure", "or*"), "tenure:{*}:{or\\**");
        let mut command = redis::cmd("EVALSHA");
        keys.write_to(&mut command);
        assert_eq!(command.args_iter().count(), 1 + keys.count());
    }

    #[test]
    fn plain_keys_are_the_name_itself() {
        let layout = Layout::new("tenure", true);
        let keys = layout.keys(&LockName::new("{job} 1").unwrap());
        assert_eq!(keys.main(), "{job} 1");
        assert_eq!(keys.marker().as_deref(), Some("tenure:{%7Bjob%7D 1}:f"));
        assert_eq!(layout.keys_of_main("{job} 1"), Some(keys));
    }

    #[test]
    fn patterns_take_nothing_but_the_prefix() {
        let layout = Layout::new("tenure", false);
        assert_eq!(layout.pattern(""), "tenure:{*");
        assert_eq!(layout.pattern("a*b{"), "tenure:{a\\*b%7B*");
    }
}
