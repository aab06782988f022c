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
        assert!(stock.set(&mut connection, token(1_794_724_050_198_179), "5").await.unwrap());
        assert!(
            stock.set(&mut connection, token(1_794_724_050_198_179), "4").await.unwrap(),
            "the same holder again"
        );
        assert!(stock.set(&mut connection, token(1_794_724_050_198_180), "3").await.unwrap());
        assert!(!stock.set(&mut connection, token(1_794_724_050_198_179), "99").await.unwrap(), "stale");
        assert!(!stock.delete(&mut connection, token(1_794_724_050_198_179)).await.unwrap(), "stale");
        let read = stock.get::<u32>(&mut connection).await.unwrap();
        assert_eq!(read, (Some(3), Some(token(1_794_724_050_198_180))));
        assert!(stock.delete(&mut connection, token(1_794_724_050_198_181)).await.unwrap());
        assert!(
            !stock.set(&mut connection, token(1_794_724_050_198_180), "1").await.unwrap(),
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

/// Too few arguments, or too many, or no token: neither the value nor its fence is touched.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_makes_no_sense_changes_nothing() {
    for kind in Kind::ALL {
        let server = Server::start(kind);
        let mut connection = beside(&server.url()).await;
        for (script, arguments) in [
            (SET, &["2", "a", "a:fence", "7"][..]),
            (SET, &["2", "a", "a:fence", "7", "x", "y"]),
            (SET, &["2", "a", "a:fence", "nan", "x"]),
            (SET, &["2", "a", "a:fence", "-1", "x"]),
            (SET, &["1", "a", "7", "x"]),
            (DELETE, &["2", "a", "a:fence"]),
            (DELETE, &["2", "a", "a:fence", "x"]),
        ] {
            let called = redis::cmd("EVAL").arg(script).arg(arguments).exec_async(&mut connection).await;
            let problem = called.expect_err("it makes no sense").to_string();
            assert!(problem.contains("give two keys"), "{arguments:?}: {problem}");
            let keys: Vec<String> = ask(&server.url(), &["KEYS", "*"]).await;
            assert_eq!(keys, Vec::<String>::new(), "{kind:?} {arguments:?}");
        }
    }
}

/// A value is one argument, whatever it is: bytes, not a list of which only the first would be written.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_is_written_whole() {
    let server = Server::start(Kind::Redis7);
    let mut connection = beside(&server.url()).await;
    let fenced = Fenced::new("a");
    for value in [&b""[..], b"a\r\nb", &[0, 255, 10]] {
        assert!(fenced.set(&mut connection, FencingToken::new(7), value).await.unwrap());
        assert_eq!(fenced.get::<Vec<u8>>(&mut connection).await.unwrap().0.as_deref(), Some(value));
    }
}
