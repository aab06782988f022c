//! Values that refuse the stale.

mod common;

use common::{ask, beside};
use tenure_core::FencingToken;
use tenure_redis::fence::{DELETE, Fenced, SET};
use tenure_testkit::servers::{Kind, Server};

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_write_does_nothing() {
    for kind in Kind::ALL {
        let server = Server::start(kind);
        let mut connection = beside(&server.url()).await;
        let stock = Fenced::new("{stock}/1");
        let token = FencingToken::new;
        assert_eq!(stock.get::<u32>(&mut connection).await.unwrap(), (None, None));
        assert!(stock.set(&mut connection, token(1_794_724_050_198_179), 5).await.unwrap());
        assert!(
            stock.set(&mut connection, token(1_794_724_050_198_179), 4).await.unwrap(),
            "the same holder again"
        );
        assert!(stock.set(&mut connection, token(1_794_724_050_198_180), 3).await.unwrap());
        assert!(!stock.set(&mut connection, token(1_794_724_050_198_179), 99).await.unwrap(), "stale");
        assert!(!stock.delete(&mut connection, token(1_794_724_050_198_179)).await.unwrap(), "stale");
        let read = stock.get::<u32>(&mut connection).await.unwrap();
        assert_eq!(read, (Some(3), Some(token(1_794_724_050_198_180))));
        assert!(stock.delete(&mut connection, token(1_794_724_050_198_181)).await.unwrap());
        assert!(
            !stock.set(&mut connection, token(1_794_724_050_198_180), 1).await.unwrap(),
            "not back to life"
        );
        let left: i64 = ask(&server.url(), &["TTL", "{stock}/1:fence"]).await;
        assert!(left > 2_000_000, "{left}");
    }
}

/// Any language can do it: the script, two keys, the token.
#[tokio::test(flavor = "multi_thread")]
async fn the_scripts_work_by_themselves() {
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let written: i64 = ask(&url, &["EVAL", SET, "2", "a", "a:fence", "7", "x"]).await;
    let stale: i64 = ask(&url, &["EVAL", SET, "2", "a", "a:fence", "6", "y"]).await;
    let gone: i64 = ask(&url, &["EVAL", DELETE, "2", "a", "a:fence", "8"]).await;
    assert_eq!((written, stale, gone), (1, 0, 1));
}
