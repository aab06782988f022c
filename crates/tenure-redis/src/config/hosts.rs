//! URLs that name several hosts, sentinels or nodes of a cluster: taken apart here, so that the rest is the URL of one
//! server.

use std::fmt;

use tenure_core::StoreError;
use url::Url;

use super::bad;

/// A machine, and a port of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
        write!(f, "{}/{}", joined(&self.hosts), self.group)
    }
}

/// Which servers a URL names, if it is not one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hosts {
    /// The one that these sentinels name.
    Behind(Sentinels),
    /// The nodes of the cluster that these are of.
    Cluster(Vec<Host>),
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Behind(sentinels) => sentinels.fmt(f),
            Self::Cluster(hosts) => f.write_str(&joined(hosts)),
        }
    }
}

fn joined(hosts: &[Host]) -> String {
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    hosts.join(",")
}

/// The hosts in a URL like `redis+sentinel://user:password@h1:26379,h2/group/0?…` or
/// `redis+cluster://user:password@h1,h2:7000?…`, and what it would be without them: the URL of one server, at the first of
/// these hosts. Nothing if it is another URL.
pub(super) fn in_url(url: &str) -> Result<Option<(Hosts, String)>, StoreError> {
    let Some((scheme, rest)) = url.split_once("://") else { return Ok(None) };
    let (scheme, is_cluster) = match scheme {
        "redis+sentinel" | "valkey+sentinel" => ("redis", false),
        "rediss+sentinel" | "valkeys+sentinel" => ("rediss", false),
        "redis+cluster" | "valkey+cluster" => ("redis", true),
        "rediss+cluster" | "valkeys+cluster" => ("rediss", true),
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
    let port = if is_cluster { 6379 } else { 26379 };
    let hosts = hosts.split(',').map(|text| host(text, port)).collect::<Result<Vec<_>, _>>()?;
    let path = path.trim_matches('/');
    if is_cluster {
        if !matches!(path, "" | "0") {
            return Err(bad("a cluster has no databases: write redis+cluster://HOST,HOST".into()));
        }
        let without = format!("{scheme}://{login}{}{options}", hosts[0]);
        return Ok(Some((Hosts::Cluster(hosts), without)));
    }
    let (group, database) = path.split_once('/').unwrap_or((path, ""));
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if group.is_empty() || !group.chars().all(fits) {
        return Err(bad(
            "the URL must name what the sentinels watch: redis+sentinel://HOST,HOST/NAME, of letters, digits, . _ and -".into(),
        ));
    }
    let without = format!("{scheme}://{login}{}/{database}{options}", hosts[0]);
    Ok(Some((Hosts::Behind(Sentinels { hosts, group: group.into() }), without)))
}

/// Not repeated in the message: it may be the rest of a password.
fn host(text: &str, port: u16) -> Result<Host, StoreError> {
    let parsed = Url::parse(&format!("redis://{text}")).ok();
    let parts = parsed.as_ref().and_then(|url| Some((url.host_str()?, url.port().unwrap_or(port))));
    match parts {
        Some((name, port)) if !name.is_empty() && !text.contains('@') => {
            Ok(Host { name: name.trim_matches(['[', ']']).into(), port })
        }
        _ => Err(bad("several hosts are written HOST:PORT,HOST:PORT".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_of_a_url_and_the_rest() {
        let taken = |url| in_url(url).unwrap().map(|(hosts, rest)| (hosts.to_string(), rest));
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
        assert_eq!(taken("redis+cluster://h1,h2:7000"), of("h1:6379,h2:7000", "redis://h1:6379"));
        assert_eq!(
            taken("valkeys+cluster://u:p@[::1]:1,h2/0?prefix=a"),
            of("[::1]:1,h2:6379", "rediss://u:p@[::1]:1?prefix=a")
        );
        for (url, named) in [
            ("redis+cluster://h1,h2/1", "no databases"),
            ("redis+cluster://h1,", "HOST:PORT"),
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
