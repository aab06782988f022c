//! What an examination says of a user who lacks a right, and that it leaves nothing behind.

mod common;

use std::time::Duration;

use common::{QUICK, RULE, ask, connect, leftovers, with_rule};
use futures_util::future::join_all;
use tenure_core::{Examine, Finding, Severity};
use tenure_testkit::servers::{Kind, Server};

/// What the examination says of this user, once nothing is left of it in the store.
async fn examined(server: &Server, url: &str) -> Vec<Finding> {
    let findings = connect(url, QUICK).await.examine().await.unwrap();
    while !leftovers(&server.url()).await.is_empty() {
        // Without the right to delete, what was tried expires.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    findings
}

fn about<'a>(findings: &'a [Finding], subject: &str) -> Vec<&'a Finding> {
    findings.iter().filter(|finding| finding.subject == subject).collect()
}

/// Every key but the one fence.
async fn keys(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> = ask(&server.url(), &["KEYS", "*"]).await;
    keys.retain(|key| key != "tenure:f");
    keys
}

fn is_fine(findings: &[Finding], subject: &str) -> bool {
    matches!(about(findings, subject).as_slice(), [found] if found.severity == Severity::Fine)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_all_rights_is_told_so_and_nothing_is_left_behind() {
    for kind in Kind::ALL {
        let server = Server::start(kind);
        let url = with_rule(&server, "locker", &format!("{RULE} ~tenure-doctor*")).await;
        for options in ["", "?plain", "?protocol=resp2"] {
            let findings = connect(&format!("{url}{options}"), QUICK).await.examine().await.unwrap();
            assert_eq!(keys(&server).await, Vec::<String>::new(), "{kind:?} {options}");
            let is_all_fine = is_fine(&findings, "rights") && is_fine(&findings, "a lock");
            assert!(is_all_fine && about(&findings, "pushes").is_empty(), "{kind:?} {options} {findings:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn examinations_at_the_same_time_do_not_disturb_each_other() {
    let server = Server::start(Kind::Redis7);
    let url = server.url();
    let clients = join_all((0..4).map(|_| connect(&url, QUICK))).await;
    for findings in join_all(clients.iter().map(Examine::examine)).await {
        assert!(is_fine(&findings.unwrap(), "a lock"));
    }
    assert_eq!(keys(&server).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_scripts_is_examined_by_what_it_can() {
    let server = Server::start(Kind::Valkey9);
    let url = with_rule(&server, "native", "~* allchannels +@all -eval -evalsha -script -fcall").await;
    let findings = connect(&url, QUICK).await.examine().await.unwrap();
    assert!(is_fine(&findings, "a lock"), "{findings:?}");
    assert_eq!(keys(&server).await, Vec::<String>::new());
}

/// Users who lacked any of these were told that all was fine, and failed when they met somebody in line.
#[tokio::test(flavor = "multi_thread")]
async fn each_right_that_is_missing_is_named_with_what_fails_and_what_to_add() {
    let lacks: [(&[&str], Severity, &str); 13] = [
        (&["+lpush", "+rpush", "+lpop", "+rpop"], Severity::Problem, "wait in line"),
        (&["+lpos"], Severity::Problem, "wait in line"),
        (&["+hset"], Severity::Problem, "wait in line"),
        (&["+publish"], Severity::Problem, "not told of their turn"),
        (&["&tenure:push:*"], Severity::Problem, "not told of their turn"),
        (&["+subscribe"], Severity::Advice, "not told of their turn"),
        (&["+scan"], Severity::Advice, "tenure ls"),
        (&["+del"], Severity::Problem, "given back"),
        (&["+set"], Severity::Problem, "taken"),
        (&["+zadd", "+zincrby"], Severity::Problem, "taken"),
        (&["+zrangebyscore"], Severity::Problem, "shared"),
        (&["~tenure:*"], Severity::Problem, "taken"),
        (&["+eval"], Severity::Problem, "taken"),
    ];
    for kind in Kind::ALL {
        let server = Server::start(kind);
        for (lack, severity, fails) in lacks {
            let rule: Vec<&str> = RULE.split_whitespace().filter(|word| !lack.contains(word)).collect();
            let url = with_rule(&server, "poor", &rule.join(" ")).await;
            let findings = examined(&server, &url).await;
            let rights = about(&findings, "rights");
            let [found] = rights.as_slice() else { panic!("{kind:?} {lack:?} {rights:?}") };
            assert_eq!(found.severity, severity, "{kind:?} {lack:?} {found:?}");
            assert!(found.observed.contains(fails), "{kind:?} {lack:?} {found:?}");
            let remedy = found.remedy.as_ref().unwrap();
            assert!(remedy.starts_with("ACL SETUSER poor "), "{kind:?} {lack:?} {found:?}");
            assert!(lack.iter().all(|right| remedy.contains(right)), "{kind:?} {lack:?} {found:?}");
            // What is no more than advised does not keep a lock from being tried.
            let is_tried = about(&findings, "a lock").iter().any(|tried| tried.severity == Severity::Fine);
            assert_eq!(is_tried, severity == Severity::Advice, "{kind:?} {lack:?} {findings:?}");
        }
    }
}

/// The remedy was always to see the documentation.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_memory_is_told_what_it_needs() {
    let server = Server::start_with(Kind::Redis7, &["--maxmemory", "100kb"]);
    let findings = connect(&server.url(), QUICK).await.examine().await.unwrap();
    let found = about(&findings, "a lock");
    assert_eq!((found.len(), found[0].severity), (1, Severity::Problem), "{found:?}");
    assert!(found[0].remedy.as_ref().unwrap().contains("raise maxmemory"), "{found:?}");
    assert_eq!(leftovers(&server.url()).await, Vec::<String>::new());
}
