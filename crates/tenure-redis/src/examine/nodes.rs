//! What `tenure doctor` finds out about a cluster: what is true of all nodes once, what is not with the node.

use tenure_core::{Answer, Finding};

use crate::backend::Buckets;
use crate::cluster::BUCKETS;
use crate::config::Host;
use crate::error;

const SUBJECT: &str = "cluster";

/// All nodes that have locks.
pub(super) async fn examine(buckets: &Buckets) -> Answer<Vec<Finding>> {
    let nodes = buckets.nodes().await?;
    let mut each = Vec::new();
    // One after the other: their trials would stand in each other's way.
    for (host, node) in &nodes {
        each.push((host, node.examine_server().await));
    }
    let mut findings = coverage(nodes.len(), buckets.amiss());
    let mut known = Vec::new();
    for (host, found) in each {
        match found {
            Ok(found) => known.push((host, found)),
            Err(error) => {
                findings.push(Finding::problem("a node", format!("{host}: {error}"), error::remedy(&error)));
            }
        }
    }
    findings.extend(together(&known));
    Ok(findings)
}

fn coverage(nodes: usize, (unowned, moving): (usize, usize)) -> Vec<Finding> {
    let nodes = if nodes == 1 { "one primary has".into() } else { format!("{nodes} primaries have") };
    let mut findings = vec![match unowned {
        0 => Finding::fine(SUBJECT, format!("{nodes} all slots that locks are in")),
        _ => Finding::problem(
            SUBJECT,
            format!(
                "{nodes} slots, and {unowned} of {BUCKETS} parts of the locks have no node: they cannot be taken"
            ),
            "bring the nodes back, or give their slots to others (redis-cli --cluster fix)",
        ),
    }];
    if moving > 0 {
        findings.push(Finding::problem(
            SUBJECT,
            format!("{moving} of {BUCKETS} parts of the locks are on their way to another node: until they are there, nobody takes or renews them"),
            "let the move end, or end one that has stopped half-way (redis-cli --cluster fix)",
        ));
    }
    findings
}

/// What all nodes have in common, once; everything else with the node it is of.
fn together(known: &[(&Host, Vec<Finding>)]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    let subjects = known.iter().flat_map(|(_, found)| found.iter().map(|finding| finding.subject));
    let mut seen = Vec::new();
    for subject in subjects {
        if seen.contains(&subject) {
            continue;
        }
        seen.push(subject);
        let of = |found: &[Finding]| -> Vec<Finding> {
            found.iter().filter(|finding| finding.subject == subject).cloned().collect()
        };
        let all: Vec<_> = known.iter().map(|(host, found)| (host, of(found))).collect();
        if all.iter().all(|(_, found)| *found == all[0].1) {
            findings.extend(all[0].1.iter().cloned());
            continue;
        }
        for (host, found) in all {
            findings.extend(found.into_iter().map(|finding| {
                let observed = format!("{host}: {}", finding.observed);
                Finding { observed, ..finding }
            }));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_true_of_all_nodes_is_said_once() {
        let host = |port| Host { name: "h".into(), port };
        let (a, b) = (host(1), host(2));
        let fine = Finding::fine("clock", "right");
        let found = [
            (&a, vec![fine.clone(), Finding::fine("replicas", "1")]),
            (
                &b,
                vec![fine.clone(), Finding::advice("replicas", "none", "have some"), Finding::fine("x", "y")],
            ),
        ];
        let together: Vec<_> = together(&found).into_iter().map(|finding| finding.observed).collect();
        assert_eq!(together, ["right", "h:1: 1", "h:2: none", "h:2: y"]);
        assert!(matches!(&coverage(3, (0, 0))[..], [fine] if fine.remedy.is_none()));
        let amiss: Vec<_> = coverage(1, (7, 8)).into_iter().map(|finding| finding.observed).collect();
        assert!(amiss[0].contains("7 of 256") && amiss[1].contains("8 of 256"), "{amiss:?}");
    }
}
