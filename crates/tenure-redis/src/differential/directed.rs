//! Histories written by hand, on the clock of the test.

use super::*;

fn claims(name: &str, count: u8) -> Vec<Claim> {
    let claim = |i| Claim {
        name: LockName::new(name).expect("a good name"),
        id: ClaimId::from_bytes([i; 16]),
        mode: Mode::Exclusive,
        ttl: Ttl::new(Duration::from_secs(3600)).expect("a good ttl"),
        tie: Tie::Process,
        label: Label::new("a/1/x").expect("a good label"),
        reason: None,
    };
    (0..count).map(claim).collect()
}

/// Each of them joins before the one in front leaves, and leaves before it would come back to keep its place.
#[tokio::test]
async fn a_line_of_newcomers_does_not_expire() {
    let (_server, mut connection) = start(Kind::Redis7, str::to_owned).await;
    let claims = claims("newcomers", 40);
    let mut now = START_MICROS + 1;
    for i in 0..claims.len() {
        let (answer, ..) = real(&mut connection, now, &claims, &Verb::Attempt(i, Line::Join)).await;
        assert_eq!(answer.starts_with("busy"), i > 0, "{answer}");
        if i > 1 {
            let (answer, ..) = real(&mut connection, now, &claims, &Verb::Release(i - 1, Trail::Clean)).await;
            assert_eq!(answer, "Waited", "the line was gone after {} ms", (now - START_MICROS) / 1000);
        }
        now += u64::try_from(RULES.line_ttl.as_micros()).expect("short") / 5 + 1;
    }
}

/// A store that has forgotten its tokens goes by the clock. So none are set aside that the clock has not nearly come to.
#[tokio::test]
async fn no_tokens_are_set_aside_far_ahead_of_the_clock() {
    let (_server, mut connection) = start(Kind::Redis7, str::to_owned).await;
    // A moment at which a release asks for two.
    let now = START_MICROS + (3 + 6 - START_MICROS / 1000 % 6) % 6 * 1000;
    for (name, is_ahead) in [("near", false), ("far", true)] {
        let claims = claims(name, 5);
        for i in 0..claims.len() {
            real(&mut connection, now, &claims, &Verb::Attempt(i, Line::Join)).await;
        }
        let token = FencingToken::new(now + if is_ahead { 1_001 } else { 1_000 });
        let (answer, _, aside) = real(&mut connection, now, &claims, &Verb::HandOn(vec![0, 1], token)).await;
        assert_eq!(
            (answer.as_str(), aside.named.len()),
            ("handed on Some(5000)", if is_ahead { 0 } else { 2 })
        );
        if is_ahead {
            let keys = connection.layout.keys(&claims[0].name);
            let fence = format!("{}:f", keys.main());
            let mut raise = Cmd::new();
            raise.arg("ZADD").arg(&fence).arg(now + 1_000).arg(crate::scripts::LAYOUT);
            connection.connection.send_packed_command(&raise).await.expect("it is raised");
        }
        let (answer, told, aside) =
            real(&mut connection, now, &claims, &Verb::Release(1, Trail::Clean)).await;
        assert_eq!((answer.as_str(), told.len()), ("Held", 1));
        assert_eq!(aside.named.len(), if is_ahead { 0 } else { 2 });
    }
}
