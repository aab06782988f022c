//! The buckets of a cluster: each has its own line of requests, as one server has.

use std::sync::{Arc, OnceLock, Weak};

use tenure_core::{Answer, Claim, LockName, RefusalKind, Renewal, StoreError};

use super::{Inner, Redis};
use crate::cluster::{BUCKETS, Bucket, Cluster, Ears, bucket_of, bucket_with, tag_of};
use crate::config::{Host, RedisConfig};
use crate::keys::Layout;
use crate::place::Place;
use crate::pushes::Pushes;
use crate::server::Server;

/// The buckets of a cluster.
pub(crate) struct Buckets {
    cluster: Arc<Cluster>,
    /// What a node said of itself when we connected.
    server: Server,
    /// Made when they are needed.
    inners: Vec<OnceLock<Arc<Inner>>>,
}

/// Connects to the nodes of a cluster.
pub(super) async fn connect(config: RedisConfig) -> Answer<Redis> {
    let cluster = Cluster::new(config, Arc::new(Pushes::new()));
    let primaries = cluster.primaries().await?;
    let asked = primaries.into_iter().map(|(_, number)| {
        let bucket = Bucket { cluster: cluster.clone(), number };
        async move { bucket.ask(&redis::cmd("PING")).await.map(|reply| reply.live.server.clone()) }
    });
    let mut server =
        Err(StoreError::refused(RefusalKind::Unavailable, "no node of the cluster has any slot"));
    for said in futures_util::future::join_all(asked).await {
        match said {
            // None may be unable to carry locks. One that cannot be reached may be back when it is needed.
            Err(error) if !error.is_passing() => return Err(error),
            said if server.is_err() => server = said,
            _ => {}
        }
    }
    let server = server?;
    let inners = (0..BUCKETS).map(|_| OnceLock::new()).collect();
    let buckets = Arc::new(Buckets { cluster: cluster.clone(), server, inners });
    let for_orphans: Weak<Buckets> = Arc::downgrade(&buckets);
    let for_moves = for_orphans.clone();
    cluster.set_ears(Ears {
        orphan: Box::new(move |orphan| {
            let Some(buckets) = for_orphans.upgrade() else { return };
            let tag = Layout::tag_in(&buckets.cluster.config.prefix, &orphan.main);
            if let Some(number) = tag.and_then(bucket_with) {
                let inner = buckets.number(number).clone();
                tokio::spawn(async move { inner.release_orphan(orphan).await });
            }
        }),
        // What the old owner said of those next in line is void.
        moved: Box::new(move || {
            let Some(buckets) = for_moves.upgrade() else { return };
            buckets.inners.iter().filter_map(OnceLock::get).for_each(|inner| inner.succession.cut());
        }),
    });
    Ok(Redis { inner: buckets.number(0).clone(), buckets: Some(buckets) })
}

impl Buckets {
    pub(super) fn of(&self, name: &LockName) -> &Arc<Inner> {
        self.number(bucket_of(name.as_str()))
    }

    fn number(&self, number: usize) -> &Arc<Inner> {
        self.inners[number].get_or_init(|| {
            let layout = Layout::in_slot_of(&self.cluster.config.prefix, tag_of(number));
            let place = Place::Bucket(Bucket { cluster: self.cluster.clone(), number });
            let (pushes, pace) = (self.cluster.pushes.clone(), self.cluster.pace.clone());
            Inner::new(place, layout, pushes, pace, &self.server)
        })
    }

    /// One of them, as if it were all: for whoever looks at a node.
    pub(super) fn only(&self, number: usize) -> Redis {
        Redis { inner: self.number(number).clone(), buckets: None }
    }

    /// The nodes that have buckets, and one bucket of each.
    pub(crate) async fn nodes(&self) -> Answer<Vec<(Host, Redis)>> {
        let primaries = self.cluster.primaries().await?;
        Ok(primaries.into_iter().map(|(host, number)| (host, self.only(number))).collect())
    }

    /// The nodes that have buckets, by their names.
    pub(super) async fn places(&self) -> Answer<Vec<(String, Place)>> {
        let primaries = self.cluster.primaries().await?;
        let place = |host: &Host| Place::One(self.cluster.node(host));
        let mut places: Vec<_> =
            primaries.into_iter().map(|(host, _)| (host.to_string(), place(&host))).collect();
        places.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(places)
    }

    /// How many buckets no node has, and how many are on their way.
    pub(crate) fn amiss(&self) -> (usize, usize) {
        (self.cluster.unowned(), self.cluster.moving())
    }

    /// Renews claims, those of each bucket together. Mostly all are of one.
    pub(super) async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Answer<Renewal>> {
        let number = |claim: &Claim| bucket_of(claim.name.as_str());
        let mut order: Vec<usize> = (0..claims.len()).collect();
        order.sort_by_key(|i| number(&claims[*i]));
        let together = order.chunk_by(|a, b| number(&claims[*a]) == number(&claims[*b]));
        let renewed = together.map(|places| async move {
            let those: Vec<_> = places.iter().map(|i| claims[*i].clone()).collect();
            let inner = self.of(&those[0].name);
            places.iter().copied().zip(inner.renew(&those).await).collect::<Vec<_>>()
        });
        let renewed: Vec<_> = renewed.collect();
        let mut answers = futures_util::future::join_all(renewed).await.concat();
        answers.sort_unstable_by_key(|(i, _)| *i);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }
}
