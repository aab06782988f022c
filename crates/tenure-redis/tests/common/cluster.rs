//! A look at the nodes of a cluster from the side.

use tenure_testkit::servers::Cluster;

use super::{ask, leftovers};

/// The keys of a lock, and the place of the node that has them.
pub(crate) async fn keys_of(cluster: &Cluster, name: &str) -> (usize, Vec<String>) {
    for place in 0..Cluster::PRIMARIES {
        let pattern = format!("*{{{name}}}*");
        let keys: Vec<String> = ask(&cluster.nodes[place].url(), &["KEYS", &pattern]).await;
        if !keys.is_empty() {
            return (place, keys);
        }
    }
    panic!("{name} is at no node");
}

/// The slot of a lock that is held, where it is, and all keys in that slot: its fence, too.
pub(crate) async fn slot_of(cluster: &Cluster, name: &str) -> (usize, usize, Vec<String>) {
    let (place, keys) = keys_of(cluster, name).await;
    let url = cluster.nodes[place].url();
    let slot: usize = ask(&url, &["CLUSTER", "KEYSLOT", &keys[0]]).await;
    let all: Vec<String> = ask(&url, &["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"]).await;
    assert!(keys.iter().all(|key| all.contains(key)), "{keys:?} {all:?}");
    (slot, place, all)
}

/// Until the replicas have everything that the primaries have.
pub(crate) async fn replicated(cluster: &Cluster, place: usize) {
    let replicas: u32 = ask(&cluster.nodes[place].url(), &["WAIT", "1", "20000"]).await;
    assert_eq!(replicas, 1, "the replica follows");
}

/// All keys of all nodes, but fences.
pub(crate) async fn cluster_leftovers(cluster: &Cluster) -> Vec<String> {
    let mut keys = Vec::new();
    for node in cluster.nodes.iter().filter(|node| node.is_running()) {
        keys.extend(leftovers(&node.url()).await);
    }
    keys
}

/// Gives a slot to another node, with all its keys, while others use them.
pub(crate) async fn move_slot(cluster: &Cluster, slot: usize, to: usize) {
    let from = cluster.owner(slot);
    cluster.begins_to_move(slot, to);
    let url = cluster.nodes[from].url();
    loop {
        let keys: Vec<String> = ask(&url, &["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"]).await;
        if keys.is_empty() {
            break;
        }
        keys.iter().for_each(|key| cluster.move_key(key, from, to));
    }
    cluster.has_moved(slot, to);
}
