//! A cluster: primaries that share the slots, with or without replicas.

use std::net::SocketAddr;

use super::group::{ask, said, wait_until};
use super::{Kind, Server};

/// How many slots there are.
const SLOTS: usize = 16384;

/// Three primaries that share the slots evenly, and perhaps a replica of each.
#[derive(Debug)]
pub struct Cluster {
    /// The first three were primaries in the beginning; the next ones their replicas, in this order.
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// How many primaries there are.
    pub const PRIMARIES: usize = 3;

    /// Starts three primaries, and a replica of each if `has_replicas`. Returns when all know each other.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn start(kind: Kind, has_replicas: bool) -> Self {
        let count = Self::PRIMARIES * if has_replicas { 2 } else { 1 };
        // Where there is nobody to take its place, no node is given up because the machine is busy.
        let patience = if has_replicas { "3000" } else { "60000" };
        let arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", patience];
        let nodes: Vec<Server> = (0..count).map(|_| Server::start_node(kind, &arguments)).collect();
        let cluster = Self { nodes };
        for (i, node) in cluster.nodes.iter().enumerate() {
            cluster.tell(node, &format!("CLUSTER SET-CONFIG-EPOCH {}", i + 1));
            if i < Self::PRIMARIES {
                let slots = (0..SLOTS).filter(|slot| slot * Self::PRIMARIES / SLOTS == i);
                let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
                cluster.tell(node, &format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
            }
            if i > 0 {
                cluster.tell(&cluster.nodes[0], &format!("CLUSTER MEET 127.0.0.1 {}", node.port()));
            }
        }
        cluster.settles();
        for i in Self::PRIMARIES..count {
            let id = cluster.id(&cluster.nodes[i - Self::PRIMARIES]);
            cluster.tell(&cluster.nodes[i], &format!("CLUSTER REPLICATE {id}"));
        }
        let follows = |node: &Server| {
            ask(node.address(), "INFO replication").is_some_and(|said| said.contains("master_link_status:up"))
        };
        wait_until("the replicas to follow", || cluster.nodes[Self::PRIMARIES..].iter().all(follows));
        cluster
    }

    fn tell(&self, node: &Server, words: &str) {
        let said = said(node.address(), words);
        let start: String = words.chars().take(60).collect();
        assert_eq!(said, Some(Ok("OK".into())), "{start}");
    }

    fn id(&self, node: &Server) -> String {
        ask(node.address(), "CLUSTER MYID").expect("a node has an id")
    }

    /// The URL for a client.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| node.address().to_string()).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Waits until all nodes that run know each other, and everything has an owner.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn settles(&self) {
        let running: Vec<SocketAddr> =
            self.nodes.iter().filter(|node| node.is_running()).map(Server::address).collect();
        let is_fine = |node: &SocketAddr| {
            let said = ask(*node, "CLUSTER INFO").unwrap_or_default();
            said.contains("cluster_state:ok")
                && said.contains(&format!("cluster_slots_ok:{SLOTS}\r"))
                && said.contains(&format!("cluster_known_nodes:{}\r", self.nodes.len()))
        };
        wait_until("the nodes to agree", || running.iter().all(is_fine));
    }

    /// The place of the node that has a slot, as most of those that run say.
    ///
    /// # Panics
    /// If they do not.
    pub fn owner(&self, slot: usize) -> usize {
        let mut found = None;
        wait_until("an owner", || {
            found = self.owner_now(slot);
            found.is_some()
        });
        found.expect("there is one")
    }

    fn owner_now(&self, slot: usize) -> Option<usize> {
        let running = || self.nodes.iter().filter(|node| node.is_running());
        let said = running().filter_map(|node| self.owner_as_said_by(node, slot));
        let mut votes = vec![0; self.nodes.len()];
        said.for_each(|place| votes[place] += 1);
        votes.iter().position(|count| count * 2 > running().count())
    }

    fn owner_as_said_by(&self, node: &Server, slot: usize) -> Option<usize> {
        let nodes = ask(node.address(), "CLUSTER NODES")?;
        let line = nodes.lines().find(|line| {
            let ranges = line.split(' ').skip(8).filter(|range| !range.starts_with('['));
            let has = |range: &str| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                (first.parse().unwrap_or(SLOTS)..=last.parse().unwrap_or(0)).contains(&slot)
            };
            !line.contains("fail") && ranges.into_iter().any(has)
        })?;
        let port: u16 = line.split(' ').nth(1)?.split('@').next()?.rsplit_once(':')?.1.parse().ok()?;
        self.nodes.iter().position(|node| node.port() == port)
    }

    /// Lets a replica take the place of its primary, which goes on as its replica.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn fail_over(&self, slot: usize) -> usize {
        let primary = self.owner(slot);
        let replica = (primary + Self::PRIMARIES) % self.nodes.len();
        let mut looks = 0;
        wait_until("the replica to take over", || {
            // It gives up after 5 s, if the machine is busy.
            if looks % 300 == 0 {
                let _ = ask(self.nodes[replica].address(), "CLUSTER FAILOVER");
            }
            looks += 1;
            self.owner_now(slot) == Some(replica)
        });
        replica
    }

    /// Begins to give a slot to another node: its keys are still where they were.
    ///
    /// # Panics
    /// If the nodes refuse.
    pub fn begins_to_move(&self, slot: usize, to: usize) {
        let from = self.owner(slot);
        let (id_from, id_to) = (self.id(&self.nodes[from]), self.id(&self.nodes[to]));
        self.tell(&self.nodes[to], &format!("CLUSTER SETSLOT {slot} IMPORTING {id_from}"));
        self.tell(&self.nodes[from], &format!("CLUSTER SETSLOT {slot} MIGRATING {id_to}"));
    }

    /// Gives a slot that [begins to move](Self::begins_to_move) another node for good. Its keys must be there.
    ///
    /// # Panics
    /// If the nodes refuse.
    pub fn has_moved(&self, slot: usize, to: usize) {
        let id = self.id(&self.nodes[to]);
        // The new owner first: it must not be without one in between.
        let others = (0..Self::PRIMARIES).filter(|i| *i != to);
        for i in std::iter::once(to).chain(others) {
            self.tell(&self.nodes[i], &format!("CLUSTER SETSLOT {slot} NODE {id}"));
        }
        wait_until("the slot to be there", || self.owner_now(slot) == Some(to));
        // Otherwise the next move may be undone by a node that has not heard of this one.
        wait_until("all nodes to see the same", || {
            let mut views: Vec<_> = self.nodes.iter().map(view_of).collect();
            views.dedup();
            views.len() == 1 && views[0].is_some()
        });
    }

    /// Moves one key of a slot that [begins to move](Self::begins_to_move), if it is still there.
    ///
    /// # Panics
    /// If the nodes refuse.
    pub fn move_key(&self, key: &str, from: usize, to: usize) {
        let port = self.nodes[to].port();
        let said = ask(self.nodes[from].address(), &format!("MIGRATE 127.0.0.1 {port} \"{key}\" 0 5000"));
        assert!(matches!(said.as_deref(), Some("OK" | "NOKEY")), "{key}: {said:?}");
    }
}

/// Which nodes a node knows, of which epoch, with which slots.
fn view_of(node: &Server) -> Option<Vec<String>> {
    let nodes = ask(node.address(), "CLUSTER NODES")?;
    let mut view: Vec<String> = nodes
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let slots = fields.iter().skip(8).copied().collect::<Vec<_>>().join(" ");
            format!("{} {} {slots}", fields[0], fields.get(6).copied().unwrap_or_default())
        })
        .collect();
    view.sort();
    Some(view)
}
