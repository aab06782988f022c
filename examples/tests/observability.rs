//! The metrics example serves what tenure emits, and the guide, the dashboard and the alerts speak of nothing else.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::Server;
use serde_json::Value;

const GUIDE: &str = include_str!("../../docs/guides/metrics.md");
const DASHBOARD: &str = include_str!("../../docs/observability/grafana-dashboard.json");
const ALERTS: &str = include_str!("../../docs/observability/alerts.yml");

/// What the endpoint says of itself: each metric and its type.
fn emitted() -> BTreeMap<String, String> {
    let server = Server::start(env!("CARGO_BIN_EXE_metrics"));
    let (status, _, text) = server.send("GET /metrics HTTP/1.1", "");
    assert_eq!(status, 200);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types.map(|(name, kind)| (name.into(), kind.into())).collect()
}

/// The names of metrics that `text` speaks of.
fn mentioned(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let names = text.match_indices("tenure_").map(|(at, _)| {
        let rest = &text[at..];
        &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())]
    });
    names.collect()
}

#[test]
fn the_guide_the_dashboard_and_the_alerts_speak_of_what_is_emitted() {
    let emitted = emitted();
    let is_emitted = |name: &str| {
        let of_histogram = ["_bucket", "_sum", "_count"].iter().filter_map(|end| name.strip_suffix(end));
        emitted.contains_key(name)
            || of_histogram.into_iter().any(|base| emitted.get(base).is_some_and(|kind| kind == "histogram"))
    };
    for (document, text) in [("guide", GUIDE), ("dashboard", DASHBOARD), ("alerts", ALERTS)] {
        let unknown: Vec<_> = mentioned(text).into_iter().filter(|name| !is_emitted(name)).collect();
        assert!(unknown.is_empty(), "the {document} speaks of {unknown:?}, which nothing emits");
        assert!(mentioned(text).len() > 4, "the {document} speaks of too little");
    }
    let unexplained: Vec<_> =
        emitted.keys().filter(|name| !mentioned(GUIDE).contains(name.as_str())).collect();
    assert!(unexplained.is_empty(), "the guide does not explain {unexplained:?}");
    // The signals of contention, all of them, are on the dashboard.
    for name in emitted.keys() {
        assert!(
            mentioned(DASHBOARD).iter().any(|shown| shown.starts_with(name.as_str())),
            "{name} is not shown"
        );
    }
}

#[test]
fn the_endpoint_shows_every_outcome_that_the_example_brings_about() {
    let server = Server::start(env!("CARGO_BIN_EXE_metrics"));
    let (_, _, text) = server.send("GET /metrics HTTP/1.1", "");
    for sample in [
        r#"tenure_acquire_total{store="memory",outcome="granted"}"#,
        r#"tenure_acquire_total{store="memory",outcome="busy"}"#,
        r#"tenure_acquire_total{store="memory",outcome="timed_out"}"#,
        r#"tenure_acquire_total{store="memory",outcome="settled"}"#,
        r#"tenure_renew_total{store="memory",outcome="renewed"}"#,
        r#"tenure_lost_total{store="memory",reason="evicted"}"#,
        r#"tenure_hold_seconds_count{store="memory"}"#,
        r#"tenure_renew_slack_seconds_count{store="memory"}"#,
        r#"tenure_acquire_seconds_count{store="memory"}"#,
    ] {
        let value =
            text.lines().find_map(|line| line.strip_prefix(sample)).unwrap_or_else(|| panic!("{sample}"));
        assert!(value.trim().parse::<u64>().unwrap() > 0, "{sample}{value}");
    }
    // Never a lock's name: there may be millions of them.
    assert!(!text.contains("stock") && !text.contains("report"), "{text}");
}

#[test]
fn the_dashboard_can_be_imported() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is used twice");
        assert!(panel["gridPos"]["w"].as_u64().unwrap() <= 24, "{title}");
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        assert!(panel["description"].as_str().is_some_and(|text| !text.is_empty()), "{title}");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            assert_eq!(expression.matches('(').count(), expression.matches(')').count(), "{title}");
        }
    }
    assert!(panels.len() >= 10);
}

#[test]
fn every_alert_says_when_how_bad_and_what_to_do() {
    let alerts: Vec<&str> = ALERTS.split("- alert: ").skip(1).collect();
    assert!(alerts.len() >= 6);
    for alert in alerts {
        let name = alert.lines().next().unwrap();
        assert!(name.starts_with("Tenure"), "{name}");
        for part in ["expr:", "labels:", "severity:", "annotations:", "summary:", "description:"] {
            assert!(alert.contains(part), "{name} has no {part}");
        }
    }
}
