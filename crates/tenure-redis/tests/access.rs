//! Ways in: rights, certificates, sockets, databases, and servers that forbid scripts.

mod common;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use common::{QUICK, RULE, ask, beside, claim, connect, leftovers, with_rule};
use futures_util::future::join_all;
use tenure_core::{
    Attempt, Backend, Eviction, Line, LockName, Locks, Mode, RefusalKind, Released, StoreError, Trail,
};
use tenure_redis::{Redis, RedisConfig};
use tenure_testkit::servers::{Kind, Server, free_port};

/// Every verb, in every mode.
async fn everything_works(url: &str) {
    let first = Locks::new(connect(url, QUICK).await);
    let second = Locks::new(connect(url, QUICK).await);
    let guard = first.lock("acl").acquire().await.unwrap();
    let waiting = tokio::spawn(second.lock("acl").acquire());
    while first.inspect("acl").await.unwrap().waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(first.list("", None, 100).await.unwrap().locks.len(), 1);
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(first.evict("acl", Eviction::because("tidy").unwrap().force()).await.unwrap(), 1);
    guard.lease().lost().await;
    let readers =
        [first.lock("shared").shared().acquire().await, second.lock("shared").shared().acquire().await];
    assert!(readers.iter().all(Result::is_ok));
    let permits = first.lock("permits").permits(2, 3).acquire().await.unwrap();
    assert!(second.lock("permits").permits(2, 3).try_acquire().await.unwrap().is_none());
    drop((readers, permits));
    // Many at once travel together, which takes other commands.
    let many: Vec<LockName> = (0..200).map(|i| LockName::new(format!("many/{i}")).unwrap()).collect();
    let guards =
        join_all(many.iter().map(|name| first.lock(name).ttl(Duration::from_secs(1)).acquire())).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(guards.iter().all(|guard| guard.lease().is_held()), "they are renewed");
    for released in join_all(guards.into_iter().map(tenure_core::Guard::release)).await {
        released.unwrap();
    }
    let backend = connect(url, QUICK).await;
    let once = claim("once", Mode::Once, Duration::from_secs(5));
    assert!(matches!(backend.attempt(&once, Line::Join).await, Ok(Attempt::Granted(_))));
    backend.settle(&once, "done".into(), Duration::from_secs(5)).await.unwrap();
    assert!(backend.forget(&once.name).await.unwrap());
    first.close(Duration::from_secs(5)).await.unwrap();
    second.close(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rule_allows_everything_we_do_and_nothing_outside_the_prefix() {
    for kind in Kind::ALL {
        let server = Server::start(kind);
        let url = with_rule(&server, "locker", RULE).await;
        let _: redis::Value = ask(&server.url(), &["SET", "foreign", "untouched"]).await;
        everything_works(&url).await;
        let denied: Vec<HashMap<String, redis::Value>> = ask(&server.url(), &["ACL", "LOG"]).await;
        for entry in denied {
            let object: String = redis::from_redis_value(entry["object"].clone()).unwrap();
            // Asked for and done without: what else the server could say or do.
            let expected = ["config", "config|get", "client", "client|setinfo", "delifeq", "delex"];
            assert!(expected.contains(&&*object.to_lowercase()), "{kind:?} {object} {entry:?}");
        }
        let mut connection = beside(&url).await;
        for command in [
            &["GET", "foreign"][..],
            &["SET", "foreign", "1"],
            &["DEL", "foreign"],
            &["EVAL", "return redis.call('GET', 'foreign')", "0"],
            &["EVAL", "return redis.call('SET', KEYS[1], 1)", "1", "foreign"],
            &["EVAL", "return redis.call('FLUSHALL')", "0"],
            &["EVAL", "return redis.call('PUBLISH', 'other', 1)", "0"],
            &["PUBLISH", "other", "1"],
            &["FLUSHALL"],
            &["KEYS", "*"],
            &["CONFIG", "GET", "*"],
            &["SCRIPT", "FLUSH"],
            &["ACL", "LIST"],
        ] {
            let mut asked = redis::cmd(command[0]);
            let answer: redis::RedisResult<redis::Value> =
                asked.arg(&command[1..]).query_async(&mut connection).await;
            assert!(answer.is_err(), "{kind:?} {command:?} {answer:?}");
        }
        let foreign: String = ask(&server.url(), &["GET", "foreign"]).await;
        assert_eq!(foreign, "untouched");
    }
}

/// Not only what a test happens to reach: a script may do without a command that is forbidden, more slowly.
#[test]
fn the_rule_names_every_command_of_the_scripts() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/scripts");
    let mut found = BTreeSet::new();
    for script in std::fs::read_dir(folder).unwrap() {
        let code = std::fs::read_to_string(script.unwrap().path()).unwrap();
        for called in ["call('", "call_('", "on_many('"] {
            found.extend(
                code.split(called).skip(1).map(|rest| rest[..rest.find('\'').unwrap()].to_lowercase()),
            );
        }
    }
    assert!(found.len() > 20, "{found:?}");
    let missing: Vec<_> =
        found.iter().filter(|command| !RULE.split(' ').any(|word| word == format!("+{command}"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let documented =
        include_str!("../../../docs/backends/redis.md").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        documented.contains(&RULE.split_whitespace().collect::<Vec<_>>().join(" ")),
        "the rule is another there"
    );
}

/// Not for ever "unknown, try again": whatever is missing, and wherever the server finds out.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_said_as_such() {
    for kind in Kind::ALL {
        let server = Server::start(kind);
        let keys = RULE.replace("~tenure:*", "~other:*");
        let command = RULE.replace("+zadd ", "");
        for (user, rule, mode) in [
            ("keyless", &keys, Mode::Exclusive),
            ("poor", &command, Mode::Exclusive),
            ("poor", &command, Mode::Shared),
        ] {
            let backend = connect(&with_rule(&server, user, rule).await, QUICK).await;
            let wanted = claim("x", mode, Duration::from_secs(1));
            let error = backend.attempt(&wanted, Line::Join).await.unwrap_err();
            let StoreError::Refused(refusal) = &error else { panic!("{kind:?} {user} {error:?}") };
            assert_eq!(refusal.kind, RefusalKind::Permission, "{kind:?} {user} {error:?}");
            assert!(!error.is_passing() && !refusal.message.contains("@user_script"), "{error}");
            // Older servers do not tell which.
            let names_it = refusal.message.contains("'zadd'");
            assert!(names_it || kind != Kind::Valkey9 || user != "poor", "{error}");
        }
    }
}

/// Without the right to subscribe, waiting means polling.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_subscription_waiters_poll() {
    let server = Server::start(Kind::Redis7);
    let url = with_rule(&server, "deaf", &RULE.replace("+subscribe", "")).await;
    let locks = [Locks::new(connect(&url, QUICK).await), Locks::new(connect(&url, QUICK).await)];
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..8 {
        let locks = locks[i % 2].clone();
        tasks.spawn(async move {
            for _ in 0..5 {
                locks.lock("polled").run(|_| async {}).await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

const NO_SCRIPTS: &str = "~* allchannels +@all -eval -evalsha -script -fcall";

/// Valkey 9 has commands that compare; there is no line then, and the capabilities say so.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_scripts_serves_by_its_own_commands() {
    let server = Server::start(Kind::Valkey9);
    let url = with_rule(&server, "native", NO_SCRIPTS).await;
    let backend = connect(&url, QUICK).await;
    let offers = backend.capabilities();
    assert!(!offers.fifo && !offers.shared && !offers.permits && !offers.once && !offers.detach);
    let first = claim("native", Mode::Exclusive, Duration::from_secs(5));
    let second = claim("native", Mode::Exclusive, Duration::from_secs(5));
    let Ok(Attempt::Granted(grant)) = backend.attempt(&first, Line::Join).await else { panic!() };
    let Ok(Attempt::Granted(again)) = backend.attempt(&first, Line::Join).await else { panic!() };
    assert_eq!(grant.token, again.token);
    assert!(matches!(backend.attempt(&second, Line::Join).await, Ok(Attempt::Busy(_))));
    assert_eq!(backend.release(&second, Trail::Clean).await.unwrap(), Released::Absent);
    assert_eq!(backend.inspect(&first.name).await.unwrap().holders.len(), 1);
    assert_eq!(backend.list("", None, 10).await.unwrap().locks.len(), 1);
    assert_eq!(backend.release(&first, Trail::Clean).await.unwrap(), Released::Held);
    let Ok(Attempt::Granted(next)) = backend.attempt(&second, Line::Join).await else { panic!() };
    assert!(next.token > grant.token);
    backend.release(&second, Trail::Clean).await.unwrap();
    // Renewed, contended, and lost, through the front.
    let locks = Locks::new(backend);
    let guard = locks.lock("native").ttl(Duration::from_millis(600)).acquire().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(guard.is_held());
    let waiting = tokio::spawn(locks.lock("native").acquire());
    tokio::time::sleep(Duration::from_millis(100)).await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let error = locks.lock("native").shared().acquire().await.unwrap_err();
    assert!(error.to_string().contains("does not offer"), "{error}");
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}

/// To load a script is not to be let call it.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_may_be_loaded_but_not_called_are_forbidden_too() {
    let only_calls = "~* allchannels +@all -eval -evalsha";
    let renamed = ["--rename-command", "EVAL", "", "--rename-command", "EVALSHA", ""];
    for (arguments, rule) in [(&[][..], only_calls), (&renamed[..], "~* allchannels +@all")] {
        let server = Server::start_with(Kind::Valkey9, arguments);
        let backend = connect(&with_rule(&server, "native", rule).await, QUICK).await;
        assert!(!backend.capabilities().fifo);
        let held = claim("held", Mode::Exclusive, Duration::from_secs(5));
        assert!(matches!(backend.attempt(&held, Line::Pass).await, Ok(Attempt::Granted(_))));
        assert_eq!(backend.release(&held, Trail::Clean).await.unwrap(), Released::Held);
        for kind in [Kind::Redis7, Kind::Redis62] {
            let server = Server::start_with(kind, arguments);
            is_unsupported(&with_rule(&server, "native", rule).await).await;
        }
    }
}

async fn is_unsupported(url: &str) {
    let error = Redis::connect(RedisConfig::from_url(url).unwrap()).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused(r) if r.kind == RefusalKind::Unsupported), "{error:?}");
    assert!(error.to_string().contains("scripts are forbidden"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_can_do_neither_is_refused_with_the_reason() {
    for kind in [Kind::Redis7, Kind::Redis62] {
        let server = Server::start(kind);
        is_unsupported(&with_rule(&server, "native", "~* allchannels +@all -eval -evalsha -script").await)
            .await;
    }
}

/// The server could do without scripts, if it were let: a new server would not help.
#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_missing_to_do_without_scripts_is_named() {
    let server = Server::start(Kind::Valkey9);
    let url = with_rule(&server, "native", &format!("{NO_SCRIPTS} -delifeq")).await;
    let error = Redis::connect(RedisConfig::from_url(&url).unwrap()).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused(r) if r.kind == RefusalKind::Permission), "{error:?}");
    assert!(error.to_string().contains("'delifeq'"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_and_sockets_are_reached() {
    let server = Server::start(Kind::Redis7);
    let in_two = connect(&format!("{}/2", server.url()), QUICK).await;
    let socket = format!("redis+unix://{}?db=2", server.socket().display());
    let by_socket = connect(&socket, QUICK).await;
    let in_zero = connect(&server.url(), QUICK).await;
    let held = claim("where", Mode::Exclusive, Duration::from_secs(5));
    assert!(matches!(in_two.attempt(&held, Line::Pass).await, Ok(Attempt::Granted(_))));
    assert!(by_socket.inspect(&held.name).await.unwrap().is_held());
    assert!(!in_zero.inspect(&held.name).await.unwrap().is_held());
    assert!(by_socket.store().starts_with("redis+unix:///"));
}

async fn refusal(url: &str) -> (RefusalKind, String) {
    let answer = match RedisConfig::from_url(url) {
        Ok(config) => Redis::connect(config).await.map(drop),
        Err(error) => Err(error),
    };
    match answer {
        Err(StoreError::Refused(refusal)) => (refusal.kind, refusal.message),
        other => panic!("{url}: {other:?}"),
    }
}

/// The client library logs in only where there is a password: without one we were the default user, who may do more.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_is_never_taken_for_the_default_user() {
    let server = Server::start(Kind::Redis7);
    with_rule(&server, "locker", RULE).await;
    let by_host = format!("redis://locker@127.0.0.1:{}", server.port());
    let by_socket = format!("redis+unix://{}?user=locker", server.socket().display());
    for url in [&by_host, &by_socket] {
        let (kind, message) = refusal(url).await;
        assert_eq!(kind, RefusalKind::Configuration, "{message}");
        assert!(message.contains("\"locker\"") && message.contains("TENURE_PASSWORD_FILE"), "{message}");
        let mut config = RedisConfig::from_url(url).unwrap();
        config.password = Some("secret".into());
        let _backend = Redis::connect(config.clone()).await.unwrap();
        let clients: String = ask(&server.url(), &["CLIENT", "LIST"]).await;
        assert!(clients.contains("user=locker"), "{url}: {clients}");
        config.password = Some("wrong".into());
        let error = Redis::connect(config).await.unwrap_err();
        assert!(matches!(&error, StoreError::Refused(r) if r.kind == RefusalKind::Permission), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_not_there_is_a_mistake_and_no_outage() {
    for kind in Kind::ALL {
        let server = Server::start(kind);
        for database in ["99", "-1", "4294967296"] {
            let (kind, message) = refusal(&format!("{}/{database}", server.url())).await;
            assert_eq!(kind, RefusalKind::Configuration, "{message}");
            assert!(message.contains("database"), "{message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_is_refused_as_that() {
    for kind in Kind::ALL {
        let server = Server::start_with(kind, &["--cluster-enabled", "yes"]);
        for options in ["", "?plain"] {
            let (kind, message) = refusal(&format!("{}{options}", server.url())).await;
            assert_eq!(kind, RefusalKind::Configuration, "{message}");
            assert!(message.contains("node of a cluster") && !message.contains("?plain"), "{message}");
        }
    }
}

/// Where it cannot be seen beforehand, the first request finds out.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_that_may_not_be_asked_is_refused_too() {
    let server = Server::start_with(Kind::Redis7, &["--cluster-enabled", "yes"]);
    let _: redis::Value = ask(&server.url(), &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    // It serves once it has seen for itself that nothing is missing.
    while !ask::<String>(&server.url(), &["CLUSTER", "INFO"]).await.contains("cluster_state:ok") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let url = with_rule(&server, "blind", "~* &* +@all -info").await;
    let backend = connect(&url, QUICK).await;
    let error =
        backend.attempt(&claim("a", Mode::Exclusive, Duration::from_secs(5)), Line::Pass).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused(r) if r.kind == RefusalKind::Configuration), "{error:?}");
    let message = error.to_string();
    assert!(message.contains("node of a cluster") && !message.contains("?plain"), "{message}");
}

/// A certificate authority, and what it signed, as PEM files in a folder.
fn certificates() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.distinguished_name.push(rcgen::DnType::CommonName, "the test's authority");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    write("ca.pem", &authority.self_signed(&authority_key).unwrap().pem());
    let issuer = rcgen::Issuer::new(authority, authority_key);
    for name in ["server", "client"] {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let signed = params.signed_by(&key, &issuer);
        write(&format!("{name}.pem"), &signed.unwrap().pem());
        write(&format!("{name}.key"), &key.serialize_pem());
    }
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_checks_names_and_shows_certificates() {
    for (clients, needs_certificate) in [("no", false), ("yes", true)] {
        let port = free_port();
        let server = Server::start_in(
            Kind::Redis7,
            certificates(),
            &[
                "--tls-port",
                &port.to_string(),
                "--tls-cert-file",
                "{dir}/server.pem",
                "--tls-key-file",
                "{dir}/server.key",
                "--tls-ca-cert-file",
                "{dir}/ca.pem",
                "--tls-auth-clients",
                clients,
            ],
        );
        let dir = server.folder().display().to_string();
        let ours = format!("ca={dir}/ca.pem");
        let shown = format!("{ours}&cert={dir}/client.pem&key={dir}/client.key");
        let good = if needs_certificate { &shown } else { &ours };
        let backend = connect(&format!("rediss://localhost:{port}?{good}"), QUICK).await;
        let held = claim("tls", Mode::Exclusive, Duration::from_secs(5));
        assert!(matches!(backend.attempt(&held, Line::Pass).await, Ok(Attempt::Granted(_))));
        let mut bad = vec![
            format!("rediss://127.0.0.1:{port}?{good}"),
            format!("rediss://localhost:{port}"),
            format!("rediss://localhost:{}?{good}&timeout=500ms", server.port()),
            format!("rediss://localhost:{port}?ca={dir}/nowhere.pem"),
        ];
        if needs_certificate {
            bad.push(format!("rediss://localhost:{port}?{ours}&timeout=500ms"));
        }
        for url in bad {
            let answer = Redis::connect(RedisConfig::from_url(&url).unwrap()).await;
            assert!(answer.is_err(), "{url}");
        }
    }
}

/// The settings of a server with TLS.
fn with_tls(port: u16, folder: &str) -> Vec<String> {
    let file = |name: &str| format!("{folder}/{name}");
    let (certificate, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let port = port.to_string();
    let settings = [
        ("--tls-port", &*port),
        ("--tls-cert-file", &certificate),
        ("--tls-key-file", &key),
        ("--tls-ca-cert-file", &ca),
        ("--tls-auth-clients", "no"),
    ];
    settings.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]).collect()
}

/// Takes a lock over TLS; and not by a name or with certificates that do not fit.
async fn locks_over_tls(scheme: &str, port: u16, rest: &str, ca: &str) {
    let url = format!("{scheme}://localhost:{port}{rest}");
    let backend = connect(&format!("{url}?ca={ca}"), QUICK).await;
    let held = claim("tls", Mode::Exclusive, Duration::from_secs(5));
    assert!(matches!(backend.attempt(&held, Line::Pass).await, Ok(Attempt::Granted(_))));
    backend.release(&held, Trail::Clean).await.unwrap();
    // Not by that name, and by nobody that we trust.
    for bad in [format!("{scheme}://127.0.0.1:{port}{rest}?ca={ca}"), url] {
        let (kind, message) = refusal(&bad).await;
        assert_eq!(kind, RefusalKind::Permission, "{bad}: {message}");
    }
}

/// The sentinel is asked over TLS, and so is the server that it names; both must be who they say.
#[tokio::test(flavor = "multi_thread")]
async fn tls_with_sentinels() {
    let (folder, port, sentinel_port) = (certificates(), free_port(), free_port());
    let dir = folder.path().display().to_string();
    let arguments = with_tls(port, &dir);
    let _server = Server::start_with(Kind::Redis7, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let mut configuration = String::from("sentinel resolve-hostnames yes\nsentinel announce-hostnames yes\n");
    configuration += &format!("sentinel monitor safe localhost {port} 1\ntls-replication yes\n");
    for pair in with_tls(sentinel_port, &dir).chunks(2) {
        configuration += &format!("{} {}\n", pair[0].trim_start_matches('-'), pair[1]);
    }
    let _sentinel = Server::start_sentinel(Kind::Redis7, &configuration);
    locks_over_tls("rediss+sentinel", sentinel_port, "/safe", &format!("{dir}/ca.pem")).await;
}

/// A node of a cluster says by which name and port it goes, and that is checked.
#[tokio::test(flavor = "multi_thread")]
async fn tls_in_a_cluster() {
    let (folder, port, bus) = (certificates(), free_port(), free_port().to_string());
    let dir = folder.path().display().to_string();
    let arguments = with_tls(port, &dir);
    let cluster = [
        ["--cluster-enabled", "yes"],
        ["--tls-cluster", "yes"],
        ["--cluster-port", &bus],
        ["--cluster-announce-hostname", "localhost"],
    ];
    let arguments: Vec<&str> =
        arguments.iter().map(String::as_str).chain(cluster.into_iter().flatten()).collect();
    let server = Server::start_with(Kind::Redis7, &arguments);
    let _: redis::Value = ask(&server.url(), &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    while !ask::<String>(&server.url(), &["CLUSTER", "INFO"]).await.contains("cluster_state:ok") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    locks_over_tls("rediss+cluster", port, "", &format!("{dir}/ca.pem")).await;
}

/// They were said to be a server that cannot be reached, with which trying again helps.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_hold_no_certificate_or_key_are_named() {
    let folder = certificates();
    let file = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(file("empty"), "").unwrap();
    std::fs::write(file("garbage"), "garbage").unwrap();
    let no_certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    std::fs::write(file("inside"), no_certificate).unwrap();
    let (good, key) = (file("client.pem"), file("client.key"));
    for (options, named) in [
        (format!("ca={}", file("nowhere")), "cannot be read: ca="),
        (format!("ca={}", file("empty")), "holds no certificate: ca="),
        (format!("ca={}", file("garbage")), "holds no certificate: ca="),
        (format!("ca={key}"), "holds no certificate: ca="),
        (format!("ca={}", file("inside")), "certificates cannot be used"),
        (format!("cert={}&key={key}", file("empty")), "holds no certificate: cert="),
        (format!("cert={good}&key={}", file("garbage")), "holds no private key: key="),
        (format!("cert={good}&key={good}"), "holds no private key: key="),
    ] {
        let (kind, message) = refusal(&format!("rediss://localhost:1?{options}")).await;
        assert_eq!(kind, RefusalKind::Configuration, "{options}: {message}");
        assert!(message.contains(named) && !message.contains("InvalidClientConfig"), "{options}: {message}");
    }
}
