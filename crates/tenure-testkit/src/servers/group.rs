//! A primary with replicas, and the sentinels that watch over them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::{Kind, Server};

/// As whom sentinels and replicas come to the servers: so that they can be cut off from one that others still reach.
const WATCHER: &str = "watcher";
/// As whom clients come.
const CLIENT: &str = "client:trusted";
/// How long sentinels may take to find each other, or to put another in the place of a primary.
const SETTLES_WITHIN: Duration = Duration::from_secs(60);

/// A primary and its replicas, watched over by sentinels.
#[derive(Debug)]
pub struct Group {
    /// The first of them was the primary in the beginning.
    pub servers: Vec<Server>,
    /// Two of them must agree that a primary is gone.
    pub sentinels: Vec<Server>,
}

impl Group {
    /// What the sentinels call it.
    pub const NAME: &'static str = "tenure-tests";

    /// Starts a primary, a replica and three sentinels. Returns when these know each other.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn start(kind: Kind) -> Self {
        let rights = ["~*", "&*", "+@all"];
        let (name, password) = CLIENT.split_once(':').expect("a login");
        let password = format!(">{password}");
        let watcher = [&["--user", WATCHER, "on", ">watching"], &rights[..]].concat();
        let client = [&["--user", name, "on", &password], &rights[..]].concat();
        // Also the primary: it may be a replica one day.
        let login = ["--masteruser", WATCHER, "--masterauth", "watching"];
        let arguments = [&watcher[..], &client, &login].concat();
        let primary = Server::start_with(kind, &arguments);
        let port = primary.port();
        let follow = ["--replicaof", "127.0.0.1", &port.to_string()];
        let replica = Server::start_with(kind, &[&arguments[..], &follow].concat());
        let name = Self::NAME;
        let configuration = format!(
            "sentinel monitor {name} 127.0.0.1 {port} 2\n\
             sentinel auth-user {name} {WATCHER}\n\
             sentinel auth-pass {name} watching\n\
             sentinel down-after-milliseconds {name} 500\n\
             sentinel failover-timeout {name} 4000\n"
        );
        let sentinels = (0..3).map(|_| Server::start_sentinel(kind, &configuration)).collect();
        let group = Self { servers: vec![primary, replica], sentinels };
        group.settles(port);
        group
    }

    /// The URL for a client.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        format!("redis+sentinel://{CLIENT}@{}/{}", hosts.join(","), Self::NAME)
    }

    /// The URL of the server at a port.
    pub fn url_at(port: u16) -> String {
        format!("redis://{CLIENT}@127.0.0.1:{port}")
    }

    /// The server at a port.
    ///
    /// # Panics
    /// If there is none.
    pub fn at(&mut self, port: u16) -> &mut Server {
        self.servers.iter_mut().find(|server| server.port() == port).expect("a server of this group")
    }

    /// The port of the primary, as a sentinel says.
    ///
    /// # Panics
    /// If it does not.
    pub fn named_by(&self, sentinel: usize) -> u16 {
        self.seen_by(&self.sentinels[sentinel]).map(|seen| seen.port).expect("the sentinel says")
    }

    /// Waits until all sentinels that run name this port, know of the others, and it has replicas that keep up.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn settles(&self, port: u16) {
        let running = || self.sentinels.iter().filter(|sentinel| sentinel.is_running());
        let others = self.servers.iter().filter(|server| server.port() != port);
        let replicas: Vec<_> = others.filter(|server| server.is_running()).map(Server::address).collect();
        let is_settled = || {
            let all_know = running().all(|sentinel| {
                self.seen_by(sentinel).is_some_and(|seen| {
                    seen.port == port && seen.is_fine && seen.sentinels == self.sentinels.len()
                })
            });
            let follows = |replica: &SocketAddr| {
                let said = ask(*replica, "INFO replication").unwrap_or_default();
                said.contains("master_link_status:up") && said.contains(&format!("master_port:{port}\r"))
            };
            all_know && replicas.iter().all(follows)
        };
        wait_until("the sentinels to agree", is_settled);
    }

    /// Waits until a sentinel names another primary than the one at this port; answers where it is.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn replaced(&self, port: u16) -> u16 {
        let named = || {
            let running = self.sentinels.iter().filter(|sentinel| sentinel.is_running());
            running.filter_map(|sentinel| self.seen_by(sentinel)).map(|seen| seen.port).find(|it| *it != port)
        };
        wait_until("another primary", || named().is_some());
        named().expect("there was one")
    }

    /// Lets the sentinels put a replica in the place of the primary, and waits until everybody knows. Answers where it is.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn fail_over(&self) -> u16 {
        let before = self.named_by(0);
        let said = ask(self.sentinels[0].address(), &format!("SENTINEL FAILOVER {}", Self::NAME));
        assert_eq!(said.as_deref(), Some("OK"), "a failover");
        let port = self.replaced(before);
        self.settles(port);
        port
    }

    /// No sentinel and no replica reaches this server any more; its clients do.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn cut_off(&self, port: u16) {
        let server =
            self.servers.iter().find(|server| server.port() == port).expect("a server of this group");
        let words = format!(
            "ACL SETUSER {WATCHER} off\r\nCLIENT KILL USER {WATCHER} SKIPME no\r\nACL SETUSER default off"
        );
        assert!(ask(server.address(), &words).is_some(), "{words}");
    }

    fn seen_by(&self, sentinel: &Server) -> Option<Seen> {
        // master0:name=…,status=ok,address=127.0.0.1:1234,slaves=1,sentinels=3
        let said = ask(sentinel.address(), "INFO sentinel")?;
        let line = said.lines().find(|line| line.contains(&format!("name={},", Self::NAME)))?;
        let field = |name: &str| line.split(',').find_map(|part| part.strip_prefix(name));
        Some(Seen {
            port: field("address=")?.rsplit_once(':')?.1.parse().ok()?,
            is_fine: field("status=") == Some("ok"),
            sentinels: field("sentinels=")?.parse().ok()?,
        })
    }
}

/// What a sentinel sees.
struct Seen {
    port: u16,
    is_fine: bool,
    sentinels: usize,
}

pub(super) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..SETTLES_WITHIN.as_millis() / 20 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("waited in vain for {what}");
}

/// Asks for one line or one text. Nothing if that is an error.
pub(super) fn ask(address: SocketAddr, words: &str) -> Option<String> {
    said(address, words)?.ok()
}

/// The same, or the words of the error. Nothing if there is no answer.
pub(super) fn said(address: SocketAddr, words: &str) -> Option<Result<String, String>> {
    let within = Duration::from_millis(500);
    let mut stream = TcpStream::connect_timeout(&address, within).ok()?;
    stream.set_read_timeout(Some(within)).ok()?;
    stream.write_all(format!("{words}\r\n").as_bytes()).ok()?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).ok()?;
    let line = line.trim_end();
    match line.strip_prefix('$') {
        Some(length) => {
            let mut text = vec![0; length.parse().ok()?];
            stream.read_exact(&mut text).ok()?;
            String::from_utf8(text).ok().map(Ok)
        }
        None => match line.strip_prefix('-') {
            Some(error) => Some(Err(error.to_owned())),
            None => line.strip_prefix(['+', ':']).map(|said| Ok(said.to_owned())),
        },
    }
}
