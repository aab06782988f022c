//! URLs that name sentinels: taken apart here, so that the rest is the URL of one server.

use std::fmt;

use tenure_core::StoreError;
use url::Url;

use super::bad;

/// A machine, and a port of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

/// The sentinels that know where the server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sentinels {
    pub(crate) hosts: Vec<Host>,
    /// What they call the primary and its replicas together.
    pub(crate) group: String,
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(ToString::to_string).collect();
        write!(f, "{}/{}", hosts.join(","), self.group)
    }
}

/// The sentinels in a URL like `redis+sentinel://user:password@h1:26379,h2/group/0?…`, and what it would be without them:
/// the URL of one server, at the first of these hosts. Nothing if it is another URL.
pub(super) fn in_url(url: &str) -> Result<Option<(Sentinels, String)>, StoreError> {
    let Some((scheme, rest)) = url.split_once("://") else { return Ok(None) };
    let scheme = match scheme {
        "redis+sentinel" | "valkey+sentinel" => "redis",
        "rediss+sentinel" | "valkeys+sentinel" => "rediss",
        _ => return Ok(None),
    };
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (path, options) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    // The rest of a password, rather than a name.
    if path.contains('@') {
        return Err(bad("a password with a / in it is written with %2F".into()));
    }
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), authority),
    };
    let hosts = hosts.split(',').map(host).collect::<Result<Vec<_>, _>>()?;
    let mut path = path.trim_matches('/').splitn(2, '/');
    let (group, database) = (path.next().unwrap_or_default(), path.next().unwrap_or_default());
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if group.is_empty() || !group.chars().all(fits) {
        return Err(bad(
            "the URL must name what the sentinels watch: redis+sentinel://HOST,HOST/NAME, of letters, digits, . _ and -".into(),
        ));
    }
    let without = format!("{scheme}://{login}{}/{database}{options}", hosts[0]);
    Ok(Some((Sentinels { hosts, group: group.into() }, without)))
}

/// Not repeated in the message: it may be the rest of a password.
fn host(text: &str) -> Result<Host, StoreError> {
    let parsed = Url::parse(&format!("redis://{text}")).ok();
    let parts = parsed.as_ref().and_then(|url| Some((url.host_str()?, url.port().unwrap_or(26379))));
    match parts {
        Some((name, port)) if !name.is_empty() && !text.contains('@') => {
            Ok(Host { name: name.trim_matches(['[', ']']).into(), port })
        }
        _ => Err(bad("sentinels are written HOST:PORT,HOST:PORT".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentinels_of_a_url_and_the_rest() {
        let taken = |url| in_url(url).unwrap().map(|(sentinels, rest)| (sentinels.to_string(), rest));
        let of = |sentinels: &str, rest: &str| Some((sentinels.to_owned(), rest.to_owned()));
        assert_eq!(taken("redis://h/0"), None);
        assert_eq!(taken("nonsense"), None);
        assert_eq!(
            taken("redis+sentinel://h1,h2:7000/mymaster"),
            of("h1:26379,h2:7000/mymaster", "redis://h1:26379/")
        );
        assert_eq!(
            taken("valkeys+sentinel://u:p%40@h1,[::1]:5/my.master-1/3?prefix=a/b@c"),
            of("h1:26379,[::1]:5/my.master-1", "rediss://u:p%40@h1:26379/3?prefix=a/b@c")
        );
        // The last @ ends a password.
        assert_eq!(
            taken("redis+sentinel://:a,b@c@h1/m"),
            of("h1:26379/m", "redis://:a,b@c@h1:26379/m".trim_end_matches('m'))
        );
        for (url, named) in [
            ("redis+sentinel://h1", "must name"),
            ("redis+sentinel://h1/", "must name"),
            ("redis+sentinel://h1/a%20b", "must name"),
            ("redis+sentinel:///a", "HOST:PORT"),
            ("redis+sentinel://h1,/a", "HOST:PORT"),
            ("redis+sentinel://h1:x/a", "HOST:PORT"),
            ("redis+sentinel://u:hun/ter2@h1/a", "%2F"),
        ] {
            let error = in_url(url).unwrap_err().to_string();
            assert!(error.contains(named) && !error.contains("ter2"), "{url}: {error}");
        }
    }
}
