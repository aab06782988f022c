//! Which store a URL means, and that its password stays out of sight.

use tenure::{Error, StoreUrl, connect};

#[tokio::test]
async fn memory_is_always_there_and_takes_no_options() {
    assert_eq!(connect("memory:").await.unwrap().store(), "memory:");
    let error = connect("memory:x?y=1").await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
}

#[tokio::test]
async fn an_unknown_store_is_refused_by_name_and_without_its_password() {
    for url in ["carrier-pigeon://me:sesame@loft", "nonsense", ""] {
        let error = connect(url).await.unwrap_err().to_string();
        assert!(error.contains("this build has"), "{error}");
        assert!(!error.contains("sesame"), "{error}");
    }
}

#[test]
fn a_password_is_never_shown() {
    for (url, shown) in [
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://u:sesame@h/0", "redis://u:***@h/0"),
        ("redis://:sesame@h", "redis://:***@h"),
        ("redis://u:ses/a,me@h/0", "redis://u:***@h/0"),
        ("redlock://:sesame@a,:sesame@b", "redlock://:***@b"),
        ("redis://u@h", "redis://u@h"),
        ("file:/tmp/a:b@c", "file:/tmp/a:b@c"),
    ] {
        assert_eq!(StoreUrl::new(url).to_string(), shown);
        assert!(!format!("{:?}", StoreUrl::new(url)).contains("sesame"));
    }
}

#[test]
fn a_password_is_put_where_it_belongs() {
    let with = |url: &str| StoreUrl::new(url).with_password("a/b@c").expose().to_owned();
    assert_eq!(with("redis://h/0"), "redis://:a%2Fb%40c@h/0");
    assert_eq!(with("redis://u@h/0"), "redis://u:a%2Fb%40c@h/0");
    assert_eq!(with("redis://u:own@h/0"), "redis://u:own@h/0");
    assert_eq!(with("file:/tmp/x"), "file:/tmp/x");
}
