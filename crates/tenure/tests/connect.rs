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

#[tokio::test]
async fn a_path_is_told_how_it_is_written_as_a_store() {
    for path in ["/tmp/locks", "./locks", "../locks:a"] {
        let error = connect(path).await.unwrap_err().to_string();
        assert!(error.contains(&format!("written file:{path}")), "{error}");
    }
}

#[tokio::test]
async fn a_scheme_may_be_in_capitals() {
    assert_eq!(connect("MEMORY:").await.unwrap().store(), "memory:");
    assert_eq!(StoreUrl::new("Redis://H/0").expose(), "redis://H/0");
    assert_eq!(StoreUrl::new("/Tmp/A:b").expose(), "/Tmp/A:b");
}

#[test]
fn a_password_is_never_shown() {
    for (url, shown) in [
        ("redis://u:sesame@h/0", "redis://u:***@h/0"),
        ("redis://:sesame@h", "redis://:***@h"),
        ("redis://u:ses/a,me@h/0", "redis://u:***@h/0"),
        ("redis://u:ses?a@h/0", "redis://u:***@h/0"),
        ("redlock://:sesame@a,:sesame@b", "redlock://:***@b"),
        ("rediss://u:sesame@h?ca=/a@b", "rediss://u:***@h?ca=/a@b"),
        ("redis+unix:///s?user=u&pass=sesame", "redis+unix:///s?user=u&pass=***"),
        ("redis+unix:///s?pass=sesame@x&user=u@h", "redis+unix:///s?pass=***&user=u@h"),
        ("redis://h:6379?pass=ses@me", "redis://h:6379?pass=***"),
        ("redis+sentinel://u:sesame@h1,h2/m", "redis+sentinel://u:***@h1,h2/m"),
        (
            "redis+sentinel://h1,h2/m?sentinel_password=sesame",
            "redis+sentinel://h1,h2/m?sentinel_password=***",
        ),
        ("redis://u:sesame@h?PassWord=sesame", "redis://u:***@h?PassWord=***"),
        ("file:/tmp/x?password=sesame", "file:/tmp/x?password=***"),
    ] {
        let url = StoreUrl::new(url);
        assert!(url.has_password(), "{url}");
        assert_eq!(url.to_string(), shown);
        assert_eq!(format!("{url:?}"), format!("StoreUrl({shown})"));
    }
    assert!(!format!("{:?}", StoreUrl::new("redis://h").with_password("sesame")).contains("sesame"));
}

#[test]
fn what_is_no_password_is_shown() {
    for url in [
        "redis://h:6379/0",
        "redis://u@h",
        "redis://u:@h",
        "file:/tmp/a:b@c",
        "rediss://h:6379?ca=/a@b",
        "redis+unix:///a:b@c?user=u@v",
        "redis+unix:///s?pass=&pass",
    ] {
        assert!(!StoreUrl::new(url).has_password(), "{url}");
        assert_eq!(StoreUrl::new(url).to_string(), url);
    }
}

#[test]
fn a_password_given_apart_stays_apart_and_yields_to_one_in_the_url() {
    let given = |url: &str| StoreUrl::new(url).with_password("a/b@c").expose_password().map(str::to_owned);
    let sentinels = "redis+sentinel://u@h1,h2/m?sentinel_password=theirs";
    for url in ["redis://h/0", "redis://u@h/0", "redis+unix:///s?user=u", "rediss://h:1?ca=/a@b", sentinels] {
        assert_eq!(given(url).as_deref(), Some("a/b@c"), "{url}");
    }
    for url in ["redis://u:own@h/0", "redis+unix:///s?user=u&pass=own"] {
        assert_eq!(given(url), None, "{url}");
    }
}

#[test]
fn without_its_password_a_url_still_names_the_store_and_the_user() {
    for (url, without) in [
        ("redis://u:sesame@h/0", "redis://u@h/0"),
        ("redis://:sesame@h:1/0?plain", "redis://h:1/0?plain"),
        ("redis+unix:///s?user=u&pass=sesame", "redis+unix:///s?user=u"),
        ("redis+unix:///s?pass=sesame&user=u", "redis+unix:///s?user=u"),
        ("redis+unix:///s?db=1&pass=sesame&user=u", "redis+unix:///s?db=1&user=u"),
        ("redis+unix:///s?pass=sesame", "redis+unix:///s"),
        ("file:/tmp/x", "file:/tmp/x"),
    ] {
        assert_eq!(StoreUrl::new(url).without_password().expose(), without);
        assert!(!StoreUrl::new(url).without_password().has_password());
    }
    assert_eq!(StoreUrl::new("redis://h").with_password("x").without_password().expose_password(), None);
}
