//! [`Config`]: where the store lies and how it is opened, also as a `file:` URL.
//!
//! Each default is written once, in [`Config::default`]. What the file system makes of it is not known here.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tenure_core::queue::Rules;

/// Where the embedded store lies, and how it is opened.
///
/// As a URL: `file:DIRECTORY?option=value&…`, each option named as its field. `file:` alone is the default directory.
///
/// ```
/// # mod tenure { pub use tenure_embedded as embedded; }
/// use tenure::embedded::Config;
///
/// let config: Config = "file:/var/lock/tenure?shared&timeout=500ms".parse()?;
/// assert!(config.shared);
/// assert!("file:/var/lock/tenure?colour=blue".parse::<Config>().is_err());
/// # Ok::<(), tenure_embedded::InvalidUrl>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The directory; made if it is not there. By default `/tmp/tenure-UID`, whatever the environment says; not on Linux,
    /// `tenure-UID` in the directory for temporary files. A relative path starts where each process stands: those that stand
    /// elsewhere have another store.
    pub directory: Option<PathBuf>,
    /// Whether other users may write to the directory: `shared`, or `shared=true`. By default a directory that others
    /// may write to is refused, because they could make themselves holders of any lock.
    pub shared: bool,
    /// The most bytes that all locks together may take: `map_size=64MiB`. By default 1 GiB, of which only what is used
    /// is ever taken. Equal for all processes.
    pub map_size: usize,
    /// How long one request waits for the store: `timeout=500ms`. By default 2 s, where microseconds are usual.
    pub timeout: Duration,
    /// The lengths and limits of a line: for tests that cannot wait. Equal for all processes.
    #[doc(hidden)]
    pub rules: Rules,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            directory: None,
            shared: false,
            map_size: 1 << 30,
            timeout: Duration::from_secs(2),
            rules: Rules::DEFAULT,
        }
    }
}

impl Config {
    /// The smallest [`map_size`](Self::map_size): below it, LMDB has no room to work in.
    pub const MAP_SIZE_MIN: usize = 64 << 10;
    /// The shortest and the longest [`timeout`](Self::timeout).
    pub const TIMEOUT_RANGE: std::ops::RangeInclusive<Duration> =
        Duration::from_millis(10)..=Duration::from_secs(60);

    /// The store in `directory`, everything else as usual.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: Some(directory.into()), ..Self::default() }
    }

    fn set(&mut self, option: &str, value: Option<&str>) -> Result<(), InvalidUrl> {
        let invalid = |expected| InvalidUrl::Value {
            option: option.into(),
            value: value.unwrap_or_default().into(),
            expected,
        };
        match option {
            "shared" => {
                self.shared = match value {
                    None | Some("" | "true" | "1") => true,
                    Some("false" | "0") => false,
                    Some(_) => return Err(invalid("true or false")),
                }
            }
            "map_size" => {
                let size = value.and_then(parse_bytes);
                self.map_size = size
                    .filter(|size| (Self::MAP_SIZE_MIN..=1 << 40).contains(size))
                    .ok_or_else(|| invalid("bytes between 64KiB and 1024GiB, like 64MiB"))?;
            }
            "timeout" => {
                let timeout = value.and_then(parse_duration);
                self.timeout = timeout
                    .filter(|timeout| Self::TIMEOUT_RANGE.contains(timeout))
                    .ok_or_else(|| invalid("a duration between 10ms and 60s, like 500ms"))?;
            }
            _ => return Err(InvalidUrl::Option(option.into())),
        }
        Ok(())
    }
}

impl FromStr for Config {
    type Err = InvalidUrl;

    fn from_str(url: &str) -> Result<Self, InvalidUrl> {
        let rest = url.strip_prefix("file:").ok_or(InvalidUrl::Scheme)?;
        let (path, query) = rest.split_once('?').map_or((rest, None), |(p, q)| (p, Some(q)));
        // `file:///dir` and `file:/dir` are the same; a host in between is none of ours.
        let path = match path.strip_prefix("//") {
            Some(path) if path.starts_with('/') => path,
            Some(_) => return Err(InvalidUrl::Host),
            None => path,
        };
        let mut config = Self::default();
        if !path.is_empty() {
            config.directory = Some(percent_decoded(path)?.into());
        }
        for option in query.into_iter().flat_map(|query| query.split('&')) {
            if !option.is_empty() {
                let (option, value) = option.split_once('=').map_or((option, None), |(o, v)| (o, Some(v)));
                config.set(option, value)?;
            }
        }
        Ok(config)
    }
}

/// Why a `file:` URL was refused. Nothing was touched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidUrl {
    /// It is not a `file:` URL.
    #[error("the URL of an embedded store starts with file:")]
    Scheme,
    /// It names a host.
    #[error("a file: URL names a directory of this machine, like file:/var/lock/tenure; it has no host")]
    Host,
    /// A percent sign without two hexadecimal digits, or bytes that are no UTF-8.
    #[error("a percent sign in a file: URL is followed by two hexadecimal digits; a lone one is written %25")]
    Encoding,
    /// There is no such option.
    #[error("unknown option {0:?}: an embedded store has shared, map_size and timeout")]
    Option(String),
    /// The option does not take this value.
    #[error("option {option}={value:?} is not {expected}")]
    Value {
        /// Which option.
        option: String,
        /// What it was set to.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
}

fn percent_decoded(text: &str) -> Result<String, InvalidUrl> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let hex = tail.get(..2).filter(|hex| hex.iter().all(u8::is_ascii_hexdigit));
        let hex = std::str::from_utf8(hex.ok_or(InvalidUrl::Encoding)?).map_err(|_| InvalidUrl::Encoding)?;
        bytes.push(u8::from_str_radix(hex, 16).map_err(|_| InvalidUrl::Encoding)?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| InvalidUrl::Encoding)
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..digits].parse().ok()?, &text[digits..]))
}

fn parse_bytes(text: &str) -> Option<usize> {
    let (number, unit) = split_unit(text)?;
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    usize::try_from(number.checked_mul(1 << shift)?).ok()
}

fn parse_duration(text: &str) -> Option<Duration> {
    match split_unit(text)? {
        (number, "ms") => Some(Duration::from_millis(number)),
        (number, "s") => Some(Duration::from_secs(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn urls_are_parsed_whole_or_refused_by_name() {
        assert_eq!("file:".parse(), Ok(Config::default()));
        assert_eq!("file:/a/b".parse(), Ok(Config::at("/a/b")));
        assert_eq!("file:///a/b".parse(), Ok(Config::at("/a/b")));
        assert_eq!("file:a%3Fb".parse(), Ok(Config::at("a?b")));
        let config: Config = "file:?shared=true&map_size=2MiB&timeout=3s".parse().unwrap();
        assert_eq!((config.directory, config.shared), (None, true));
        assert_eq!((config.map_size, config.timeout), (2 << 20, Duration::from_secs(3)));
        for (url, culprit) in [
            ("redis://h", "file:"),
            ("file://host/a", "host"),
            ("file:/a?color=red", "color"),
            ("file:/a?timeout=soon", "soon"),
            ("file:/a?timeout=61s", "61s"),
            ("file:/a?map_size=1KiB", "1KiB"),
            ("file:/a?map_size=99999999999999999999", "map_size"),
            ("file:/a?map_size=18446744073709551615GiB", "map_size"),
            ("file:/a?shared=maybe", "maybe"),
            ("file:/a%2", "%25"),
            ("file:/a%+1", "%25"),
        ] {
            let refused = url.parse::<Config>().unwrap_err().to_string();
            assert!(refused.contains(culprit), "{url}: {refused}");
        }
        assert_eq!(Config::at("x").directory.as_deref(), Some(Path::new("x")));
    }
}
