use super::*;

#[test]
fn urls_are_read_whole_or_refused_by_name() {
    let config =
        RedisConfig::from_url("rediss://u:p%40ss@db.example/3?plain&ca=/etc/ca.pem&prefix=locks").unwrap();
    assert!(config.plain);
    assert_eq!(config.prefix, "locks");
    assert_eq!(config.ca, Some(PathBuf::from("/etc/ca.pem")));
    let info = config.connection_info(ProtocolVersion::RESP3, None);
    assert_eq!(info.redis_settings().password(), Some("p@ss"));
    assert_eq!(info.redis_settings().db(), 3);
    for (url, named) in [
        ("redis://h?nonsense=1", "nonsense"),
        ("redis://h?timeout=5", "timeout"),
        ("redis://h?spin=often", "spin"),
        ("redis://h?hand_on=later", "hand_on"),
        ("redis+cluster://h,i?plain", "plain"),
        ("redis+cluster://h,i?sentinel_user=x", "sentinel_user"),
        ("redis://h?cert=/c", "key"),
        ("redis://h?ca=/c", "rediss"),
        ("redis://h?prefix={a}", "prefix"),
        ("redis://h/x", "database"),
        ("redis://h/-1", "database"),
        ("redis+unix:///s?db=x", "database"),
        ("redis://", "names no host"),
        ("redis:h", "names no host"),
        ("redis+unix:s", "names no socket"),
        ("rediss://h?ca=", "ca= names no file"),
        ("redis://h?pass=x", "USER:PASSWORD@HOST"),
        ("redis://h?password=x", "USER:PASSWORD@HOST"),
        ("redis+unix:///s?password=x", "?pass="),
        ("rediss://h#insecure", "fragment"),
        ("http://h", "http"),
        ("nonsense", "URL"),
    ] {
        let error = RedisConfig::from_url(url).unwrap_err().to_string();
        assert!(error.contains(named), "{url}: {error}");
        assert!(!error.contains("InvalidClientConfig"), "{url}: {error}");
    }
}

#[test]
fn a_user_needs_a_password() {
    for url in ["redis://u@h", "redis://u:@h", "redis+unix:///s?user=u", "redis+unix:///s?user=u&pass="] {
        let mut config = RedisConfig::from_url(url).unwrap();
        let error = config.check_login().unwrap_err().to_string();
        assert!(error.contains("password"), "{url}: {error}");
        config.password = Some("secret".into());
        config.check_login().unwrap();
        let info = config.connection_info(ProtocolVersion::RESP3, None);
        assert_eq!(info.redis_settings().username(), Some("u"));
        assert_eq!(info.redis_settings().password(), Some("secret"));
        config.password = Some(String::new());
        assert!(config.check_login().is_err(), "{url}");
    }
    for url in ["redis://h", "redis://:p@h", "redis://u:p@h", "redis+unix:///s?user=&pass=p"] {
        RedisConfig::from_url(url).unwrap().check_login().unwrap();
    }
}

#[test]
fn only_this_machine_is_local() {
    for (url, is_local) in [
        ("redis://127.0.0.1", true),
        ("redis://127.8.0.1:7000/1", true),
        ("redis://[::1]", true),
        ("redis://localhost", true),
        ("valkey+unix:///run/valkey.sock", true),
        ("redis+unix:///run/redis.sock", true),
        ("redis://10.0.127.5", false),
        ("redis://localhost@db1", false),
        ("redis://localhost.example", false),
        ("redis://db127.0.0.1.example", false),
        ("redis://[2001:db8::1]", false),
    ] {
        let config = RedisConfig::from_url(url).unwrap();
        assert_eq!((config.is_local(), config.is_encrypted()), (is_local, false), "{url}");
    }
    assert!(RedisConfig::from_url("valkeys://db1").unwrap().is_encrypted());
}

#[test]
fn nothing_that_is_shown_holds_a_password() {
    for url in [
        "redis://user:hunter2@h:1/0",
        "redis://:hunter2@h:1/0",
        "redis+unix:///run/redis.sock?db=1&user=u&pass=hunter2",
    ] {
        let mut config = RedisConfig::from_url(url).unwrap();
        assert_eq!(
            config.connection_info(ProtocolVersion::RESP3, None).redis_settings().password(),
            Some("hunter2")
        );
        config.password = Some("hunter2".into());
        assert!(!format!("{config:?} {}", config.store()).contains("hunter2"));
    }
    for url in [
        "redis://user:hunter2@h:1/0?bad=1",
        "redis://h?pass=hunter2",
        "redis://h?password=hunter2",
        // Unescaped, so that its end is a database, an option or a fragment.
        "redis://user:1/hunter2@h",
        "redis://user:1?hunter2@h",
        "redis://user:1#hunter2@h",
    ] {
        let error = RedisConfig::from_url(url).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
