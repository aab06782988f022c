//! [`StoreUrl`]: where a store is, and the one place that knows how to keep its password out of sight.

use std::fmt;
use std::ops::Range;

/// The URL of a store, and the password for it if that was given apart. `Display` and `Debug` leave passwords out.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    text: String,
    /// Never beside one in the text.
    password: Option<String>,
}

/// A password in the text.
struct Secret {
    /// The password alone.
    password: Range<usize>,
    /// With what makes no sense without it.
    whole: Range<usize>,
    /// It opens something else than the store: its sentinels.
    is_anothers: bool,
}

/// One `name=value` behind the question mark.
struct Parameter<'a> {
    name: &'a str,
    whole: Range<usize>,
    value: Range<usize>,
}

impl Parameter<'_> {
    fn is_password(&self) -> bool {
        self.name.to_ascii_lowercase().contains("pass")
    }

    /// Whether an `@` in its value is no surprise.
    fn may_have_an_at(&self) -> bool {
        self.is_password() || ["user", "sentinel_user", "ca", "cert", "key"].contains(&self.name)
    }
}

impl StoreUrl {
    /// Takes any text; what is no URL is refused when connecting. A scheme may be in capitals.
    pub fn new(url: impl Into<String>) -> Self {
        let mut text = url.into();
        let scheme = text.find(':').unwrap_or_default();
        if text[..scheme].bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)) {
            text[..scheme].make_ascii_lowercase();
        }
        Self { text, password: None }
    }

    /// The store that needs no naming: a directory of this user's.
    pub fn usual() -> Self {
        Self::new("file:")
    }

    /// The whole text, with the password if there is one in it.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// The password that was given apart from the text.
    pub fn expose_password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// What stands before the first colon.
    pub fn scheme(&self) -> Option<&str> {
        self.text.split_once(':').map(|(scheme, _)| scheme)
    }

    /// What stands behind the first colon.
    pub fn rest(&self) -> &str {
        self.text.split_once(':').map_or("", |(_, rest)| rest)
    }

    /// Whether there is a password in its text.
    pub fn has_password(&self) -> bool {
        !self.secrets().is_empty()
    }

    /// The same store with `password`, unless there is one for it in the text. Stores that ask for none have no use for it.
    #[must_use]
    pub fn with_password(&self, password: &str) -> Self {
        let password = self.secrets().iter().all(|secret| secret.is_anothers).then(|| password.to_owned());
        Self { text: self.text.clone(), password }
    }

    /// The same store, for those who are not to know the password.
    #[must_use]
    pub fn without_password(&self) -> Self {
        let text = self.replaced(self.secrets().into_iter().map(|secret| secret.whole), "");
        Self { text, password: None }
    }

    /// The text with `with` in the place of each of these parts, which are in order of their beginnings.
    fn replaced(&self, parts: impl Iterator<Item = Range<usize>>, with: &str) -> String {
        let (mut text, mut done) = (String::new(), 0);
        for part in parts {
            text.push_str(&self.text[done..part.start.max(done)]);
            text.push_str(with);
            done = part.end.max(done);
        }
        text + &self.text[done..]
    }

    fn parameters(&self) -> Vec<Parameter<'_>> {
        let Some(mark) = self.text.find('?') else { return Vec::new() };
        let mut start = mark + 1;
        let parameters = self.text[start..].split('&').map(|text| {
            let end = start + text.len();
            let name = text.split('=').next().unwrap_or_default();
            let value = (start + name.len() + 1).min(end)..end;
            let parameter = Parameter { name, whole: start..end, value };
            start = end + 1;
            parameter
        });
        parameters.collect()
    }

    fn secrets(&self) -> Vec<Secret> {
        let parameters = self.parameters();
        let before_host = self.before_host(&parameters);
        let among_parameters = parameters.into_iter().filter(Parameter::is_password).map(|parameter| {
            let Range { start, end } = parameter.whole;
            // The last one goes with the sign before it, any other with the sign after it.
            let whole = if end == self.text.len() { start - 1..end } else { start..end + 1 };
            Secret { password: parameter.value, whole, is_anothers: parameter.name.starts_with("sentinel") }
        });
        let secrets = before_host.into_iter().chain(among_parameters);
        secrets.filter(|secret| !secret.password.is_empty()).collect()
    }

    /// The password in `user:password@host`. Too much rather than too little: up to the last `@` that is not known to be
    /// something else's, so that a password with an unescaped slash or comma is not shown in part.
    fn before_host(&self, parameters: &[Parameter<'_>]) -> Option<Secret> {
        let start = self.text.find("://")? + 3;
        // The path of a socket: there is no host.
        if self.text[start..].starts_with('/') {
            return None;
        }
        let is_elsewhere = |at: &usize| {
            parameters.iter().any(|parameter| parameter.may_have_an_at() && parameter.value.contains(at))
        };
        let mut signs = self.text[start..].rmatch_indices('@').map(|(at, _)| start + at);
        let end = signs.find(|at| !is_elsewhere(at))?;
        let colon = start + self.text[start..end].find(':')?;
        let whole = if colon == start { start..end + 1 } else { colon..end };
        Some(Secret { password: colon + 1..end, whole, is_anothers: false })
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.replaced(self.secrets().into_iter().map(|secret| secret.password), "***"))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}
