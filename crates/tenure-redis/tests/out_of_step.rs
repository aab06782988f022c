//! R6: a middlebox delivers a request twice, so that there is one answer too many: nobody is given the answer to another.

mod common;

use std::time::Duration;

use common::{claim, connect, leftovers};
use tenure_core::queue::Rules;
use tenure_core::{
    Answer, Attempt, Backend, Claim, Line, LockName, Mode, Released, Renewal, StoreError, Trail,
};
use tenure_redis::Redis;
use tenure_testkit::proxy::{Fault, Proxy, Way};
use tenure_testkit::servers::{Kind, Server};

const TTL: Duration = Duration::from_secs(30);
/// Long enough for the next request to be under way when the answers come.
const LATER: Duration = Duration::from_millis(150);

struct Scene {
    server: Server,
    proxy: Proxy,
    redis: Redis,
}

impl Scene {
    async fn new() -> Self {
        let server = Server::start(Kind::Redis7);
        let proxy = Proxy::start(server.address()).await;
        let redis = connect(&proxy.url(), Rules::DEFAULT).await;
        Self { server, proxy, redis }
    }

    async fn held(&self, name: &str) -> Claim {
        let claim = claim(name, Mode::Exclusive, TTL);
        assert!(matches!(self.redis.attempt(&claim, Line::Join).await, Ok(Attempt::Granted(_))));
        claim
    }

    /// The first request is delivered twice, and the second is under way when the answers come.
    async fn one_after_the_other<T>(&self, twice: impl Future, next: impl Future<Output = T>) -> T {
        let before = self.proxy.passed(Way::Out);
        self.proxy.set(Way::Out, Fault { duplicate: true, ..Fault::default() });
        self.proxy.set(Way::Back, Fault { delay: LATER, ..Fault::default() });
        let next = async {
            while self.proxy.passed(Way::Out) == before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            next.await
        };
        let (_, answer) = tokio::join!(twice, next);
        self.proxy.heal();
        answer
    }
}

/// Whoever is not answered is told that it does not know.
fn is_right_or_unknown<T: PartialEq>(answer: Answer<T>, right: &T) -> bool {
    match answer {
        Ok(answer) => answer == *right,
        Err(StoreError::Unknown(_)) => true,
        Err(_) => false,
    }
}

#[tokio::test]
async fn a_grant_is_not_given_to_the_next() {
    let scene = Scene::new().await;
    let taken = scene.held("taken").await;
    let (mine, theirs) = (claim("mine", Mode::Exclusive, TTL), claim("taken", Mode::Exclusive, TTL));
    let answer = scene.one_after_the_other(
        scene.redis.attempt(&mine, Line::Join),
        scene.redis.attempt(&theirs, Line::Pass),
    );
    let answer = answer.await;
    assert!(!matches!(answer, Ok(Attempt::Granted(_))), "{answer:?}");
    drop(taken);
}

#[tokio::test]
async fn the_end_of_a_claim_is_not_told_to_the_next() {
    let scene = Scene::new().await;
    for (first, second) in [("held", "held"), ("held", "never"), ("never", "held")] {
        let claim_of = async |name: &str, which: &str| {
            if name == "held" { scene.held(which).await } else { claim(which, Mode::Exclusive, TTL) }
        };
        let (one, two) = (claim_of(first, "one").await, claim_of(second, "two").await);
        let ended = scene.one_after_the_other(
            scene.redis.release(&one, Trail::Clean),
            scene.redis.release(&two, Trail::Clean),
        );
        let right = if second == "held" { Released::Held } else { Released::Absent };
        let ended = ended.await;
        assert!(is_right_or_unknown(ended.clone(), &right), "{first}, {second}: {ended:?}");
        // Once more, should it not be known: over another connection by now.
        scene.redis.release(&one, Trail::Clean).await.unwrap();
        scene.redis.release(&two, Trail::Clean).await.unwrap();
    }
    assert_eq!(leftovers(&scene.server.url()).await, Vec::<String>::new());
}

#[tokio::test]
async fn what_is_seen_of_a_lock_is_that_lock() {
    let scene = Scene::new().await;
    let held = scene.held("held").await;
    let free = LockName::new("free").unwrap();
    let seen = scene.one_after_the_other(scene.redis.inspect(&held.name), scene.redis.inspect(&free)).await;
    assert!(is_right_or_unknown(seen.map(|seen| seen.is_held()), &false));
    // Nor do plain commands get the answers of others.
    let forgotten =
        scene.one_after_the_other(scene.redis.list("", None, 10), scene.redis.forget(&free)).await;
    assert!(is_right_or_unknown(forgotten, &false));
    let renewed = scene.one_after_the_other(scene.redis.forget(&free), async {
        scene.redis.renew(&[std::sync::Arc::new(held.clone())]).await.remove(0)
    });
    let renewed = renewed.await;
    assert!(is_right_or_unknown(renewed.clone(), &Renewal::Renewed { ttl: TTL }), "{renewed:?}");
}
