//! Which node has which bucket: asked for, and of differing answers the newest.

use std::pin::pin;
use std::sync::OnceLock;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisResult};
use tenure_core::clock::sleep_until;
use tenure_core::{RefusalKind, StoreError};

use crate::config::{Host, RedisConfig};
use crate::error;
use crate::server;

/// How many buckets there are. MUST be equal for all clients: part of the layout of the keys.
pub(crate) const BUCKETS: usize = 256;
const SLOTS: usize = 16384;

/// The bucket of a lock: the CRC of its name, modulo their number.
pub(crate) fn bucket_of(name: &str) -> usize {
    usize::from(crc16(name.as_bytes())) % BUCKETS
}

/// The tag that the keys of a bucket have: the smallest number whose slot is in that part of all slots which the bucket is of all
/// buckets. So buckets are spread over slots as evenly as nodes mostly are.
pub(crate) fn tag_of(bucket: usize) -> &'static str {
    static TAGS: OnceLock<Vec<String>> = OnceLock::new();
    &TAGS.get_or_init(|| {
        let mut tags = vec![String::new(); BUCKETS];
        for number in 0_u32.. {
            let tag = number.to_string();
            let of = &mut tags[slot_of(&tag) * BUCKETS / SLOTS];
            if of.is_empty() {
                *of = tag;
                if tags.iter().all(|tag| !tag.is_empty()) {
                    break;
                }
            }
        }
        tags
    })[bucket]
}

/// The bucket with this tag.
pub(crate) fn bucket_with(tag: &str) -> Option<usize> {
    let bucket = slot_of(tag) * BUCKETS / SLOTS;
    (tag_of(bucket) == tag).then_some(bucket)
}

/// The slot of a tag.
pub(super) fn slot_of(tag: &str) -> usize {
    usize::from(crc16(tag.as_bytes())) % SLOTS
}

/// The CRC that clusters go by: XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

/// Who has a bucket, and since which epoch: it rises with every failover and every move. Nobody, if whoever had it is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    host: Option<Host>,
    epoch: u64,
    /// It is on its way to another.
    is_moving: bool,
}

/// Who has which bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owners(Vec<Option<Owner>>);

impl Default for Owners {
    fn default() -> Self {
        Self(vec![None; BUCKETS])
    }
}

impl Owners {
    pub(super) fn of(&self, bucket: usize) -> Option<&Host> {
        self.0.get(bucket)?.as_ref()?.host.as_ref()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (usize, &Host)> {
        (0..BUCKETS).filter_map(|bucket| Some((bucket, self.of(bucket)?)))
    }

    pub(super) fn hosts(&self) -> Vec<Host> {
        self.all().map(|(_, host)| host.clone()).collect()
    }

    pub(super) fn has(&self, host: &Host) -> bool {
        self.all().any(|(_, owner)| owner == host)
    }

    pub(super) fn moving(&self) -> usize {
        self.0.iter().flatten().filter(|owner| owner.is_moving).count()
    }

    /// A node says that another has the bucket. Answers whether that is news.
    pub(super) fn set(&mut self, bucket: usize, host: Host) -> bool {
        let is_news = self.of(bucket) != Some(&host);
        let epoch = self.0[bucket].as_ref().map_or(0, |owner| owner.epoch);
        if is_news {
            self.0[bucket] = Some(Owner { host: Some(host), epoch, is_moving: false });
        }
        is_news
    }

    /// Whether a bucket that had an owner has another, or none.
    pub(super) fn differ_from(&self, others: &Self) -> bool {
        self.all().any(|(bucket, host)| others.of(bucket) != Some(host))
    }

    /// Takes over what is newer.
    fn learn(&mut self, others: Self) {
        for (known, said) in self.0.iter_mut().zip(others.0) {
            let Some(said) = said else { continue };
            let is_newer = known.as_ref().is_none_or(|known| {
                known.epoch < said.epoch || known.epoch == said.epoch && known.host.is_none()
            });
            if is_newer {
                *known = Some(said);
            }
        }
    }

    /// Reads what `CLUSTER NODES` answers, when it was asked at `asked`.
    fn read(nodes: &str, asked: &Host, is_encrypted: bool) -> Self {
        let mut owners = Self::default();
        for line in nodes.lines() {
            let mut fields = line.split(' ').skip(1);
            let (Some(address), Some(flags)) = (fields.next(), fields.next()) else { continue };
            let (Some(epoch), slots) = (fields.nth(3).and_then(|epoch| epoch.parse().ok()), fields.skip(1))
            else {
                continue;
            };
            let has = |flag: &str| flags.split(',').any(|it| it == flag);
            if has("handshake") {
                continue;
            }
            let host = host_in(address, asked, is_encrypted).filter(|_| !has("fail") && !has("noaddr"));
            let slots: Vec<&str> = slots.collect();
            for range in &slots {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
                for (bucket, owner) in owners.0.iter_mut().enumerate() {
                    if (first..=last).contains(&slot_of(tag_of(bucket))) {
                        *owner = Some(Owner { host: host.clone(), epoch, is_moving: false });
                    }
                }
            }
            // Those that are on their way stand in brackets, too: [93->-67ed] from here, [77-<-e7d1] to here.
            for moving in slots.iter().filter_map(|slots| slots.strip_prefix('[')?.split_once("->-")) {
                let slot = moving.0.parse::<usize>().ok();
                for (bucket, owner) in owners.0.iter_mut().enumerate() {
                    if slot == Some(slot_of(tag_of(bucket)))
                        && let Some(owner) = owner
                    {
                        owner.is_moving = true;
                    }
                }
            }
        }
        owners
    }
}

/// The address of a node, as `ip:port@bus-port,name,…`. By its name, if certificates are checked.
fn host_in(address: &str, asked: &Host, is_encrypted: bool) -> Option<Host> {
    let mut parts = address.split(',');
    let (ip, port) = parts.next()?.split('@').next()?.rsplit_once(':')?;
    let named = parts.next().filter(|name| is_encrypted && !name.is_empty() && !name.contains('='));
    let name = match (named, ip) {
        (Some(name), _) => name,
        // It does not know its own address before another has met it.
        (None, "") => &asked.name,
        (None, ip) => ip.trim_matches(['[', ']']),
    };
    Some(Host { name: name.to_owned(), port: port.parse().ok()? })
}

/// Who has which bucket, as most of these say, or those that have answered within a quarter of the deadline.
pub(super) async fn find(config: &RedisConfig, hosts: Vec<Host>) -> Result<Owners, StoreError> {
    let clock = &config.seams.clock;
    let count = hosts.len();
    let asked = hosts.into_iter().map(|host| async move {
        let said = said_by(config, &host).await;
        (host, said)
    });
    let mut asked: FuturesUnordered<_> = asked.collect();
    let mut long = pin!(sleep_until(clock.clone(), clock.now() + config.timeout / 4));
    let mut end = pin!(sleep_until(clock.clone(), clock.now() + config.timeout));
    let (mut owners, mut answered, mut is_long, mut problems) = (Owners::default(), 0, false, Vec::new());
    loop {
        tokio::select! {
            biased;
            next = asked.next() => match next {
                Some((host, Ok(nodes))) => {
                    answered += 1;
                    owners.learn(Owners::read(&nodes, &host, config.is_encrypted()));
                }
                Some((host, Err(problem))) => problems.push((host, error::while_connecting(&problem))),
                None => break,
            },
            () = &mut long, if !is_long => is_long = true,
            () = &mut end => break,
        }
        if answered * 2 > count || is_long && answered > 0 {
            break;
        }
    }
    if answered > 0 {
        return Ok(owners);
    }
    let is_lasting = |error: &&StoreError| !error.is_passing();
    let lasting = problems.iter().map(|(_, error)| error).find(is_lasting);
    let kind = match lasting {
        Some(StoreError::Refused(refusal)) => refusal.kind,
        _ => RefusalKind::Unavailable,
    };
    let each: Vec<String> = problems.iter().map(|(host, error)| format!("{host}: {error}")).collect();
    let each = if each.is_empty() { "none answers".into() } else { each.join("; ") };
    Err(StoreError::refused(kind, format!("no node says who has which slot: {each}")))
}

async fn said_by(config: &RedisConfig, host: &Host) -> RedisResult<String> {
    let client = server::client(config, config.connection_info(ProtocolVersion::RESP2, Some(host)))?;
    // Deadlines are ours, on the clock that counts suspend.
    let settings = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let mut connection = client.get_multiplexed_async_connection_with_config(&settings).await?;
    redis::cmd("CLUSTER").arg("NODES").query_async(&mut connection).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, port: u16) -> Host {
        Host { name: name.into(), port }
    }

    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!((slot_of("foo"), slot_of("somekey")), (12182, 11058));
    }

    #[test]
    fn buckets_are_spread_evenly_and_found_by_their_tags() {
        for bucket in 0..BUCKETS {
            let slot = slot_of(tag_of(bucket));
            assert!((bucket * 64..bucket * 64 + 64).contains(&slot), "{bucket}: {slot}");
            assert_eq!(bucket_with(tag_of(bucket)), Some(bucket));
        }
        assert_eq!(bucket_with("no tag"), None);
        // Part of the layout: these never change.
        assert_eq!((tag_of(0), tag_of(1), tag_of(255)), ("460", "14", "430"));
        assert_eq!((bucket_of("orders/1001"), bucket_of("\u{1F512}")), (247, 145));
        let mut filled = [0; BUCKETS];
        (0..100_000).for_each(|i| filled[bucket_of(&format!("orders/{i}"))] += 1);
        assert!(filled.iter().all(|count| (300..500).contains(count)), "{filled:?}");
    }

    #[test]
    fn nodes_are_read_and_the_newest_owner_counts() {
        let nodes = "\
            07c3 127.0.0.1:30004@31004,db4 slave e7d1 0 1426238317239 4 connected\n\
            67ed 127.0.0.1:30002@31002,db2,shard-id=1 master - 0 1426238316232 2 connected 5461-10922 [93-<-e7d1]\n\
            292f 127.0.0.1:30003@31003 master,fail - 0 1426238318243 3 disconnected 10923-16383\n\
            e7d1 :30001@31001 myself,master - 0 0 1 connected 0-5459 5460 [5000->-67ed]\n";
        let asked = host("h1", 30001);
        let owners = Owners::read(nodes, &asked, false);
        assert_eq!(owners.of(0), Some(&asked));
        assert_eq!(owners.of(100), Some(&host("127.0.0.1", 30002)));
        assert_eq!(owners.of(255), None, "that one has failed");
        assert_eq!(Owners::read(nodes, &asked, true).of(100), Some(&host("db2", 30002)));
        assert_eq!(owners.moving(), 0, "5000 is in no bucket");
        let moving = format!("1 h:1@2 master - 0 0 1 connected 0-16383 [{}->-67ed]", slot_of(tag_of(3)));
        assert_eq!(Owners::read(&moving, &asked, false).moving(), 1);
        assert!(owners.has(&asked) && !owners.has(&host("127.0.0.1", 30003)));
        let newer = Owners::read("1 h9:1@2 master - 0 0 7 connected 0-16383", &asked, false);
        let mut learned = owners.clone();
        learned.learn(newer.clone());
        assert_eq!(learned, newer);
        learned.learn(owners.clone());
        assert_eq!(learned, newer, "what is older is not believed");
        // Nobody has it since epoch 3, which is newer than that somebody had it.
        let older = Owners::read("1 h8:1@2 master - 0 0 2 connected 0-16383", &asked, false);
        let mut learned = owners.clone();
        learned.learn(older);
        assert_eq!((learned.of(255), learned.of(100)), (None, Some(&host("127.0.0.1", 30002))));
        let again = Owners::read("1 h8:1@2 master - 0 0 3 connected 0-16383", &asked, false);
        learned.learn(again);
        assert_eq!(
            learned.of(255),
            Some(&host("h8", 1)),
            "of the same epoch, one that says that it is there"
        );
        assert!(owners.differ_from(&newer) && !newer.differ_from(&newer));
        assert!(!Owners::default().differ_from(&newer), "nobody had any before");
        assert_eq!(Owners::read("nonsense\n\na b c", &asked, false), Owners::default());
    }
}
