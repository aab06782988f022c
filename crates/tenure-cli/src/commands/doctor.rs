//! `tenure doctor`: what this deployment is, what it promises under which fault, and what to change.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use serde_json::json;
use tenure::{Fault, Fence, Finding, Guarantee, Severity, Verdict};

use super::{GIVE_BACK_WITHIN, block_on, told};
use crate::cli::{Doctor, Global, Level};
use crate::exit_code::ExitCode;
use crate::failure::{Failure, Outcome};
use crate::output::{clean, print, print_json};
use crate::store::Store;

pub(crate) fn run(global: &Global, args: &Doctor) -> Outcome {
    block_on(async {
        let store = Store::open(global).await?;
        let mut findings = match &store.connected.examiner {
            Some(examiner) => {
                let found = examiner.examine().await;
                found.map_err(|cause| {
                    let store_name = store.locks.store().into();
                    told(&store)(tenure::Error::Unavailable { lock: None, store: store_name, cause })
                })?
            }
            None => Vec::new(),
        };
        if store.is_default {
            findings.push(Finding::advice(
                "default store",
                "none was named: this one is for one user of one machine",
                "--store or $TENURE_STORE names another: file:DIR?shared for several users, redis://HOST for machines",
            ));
        }
        let guarantee = store.locks.guarantee();
        if global.json {
            print_json(&as_json(&store, &findings, guarantee));
        } else {
            print(&page(&store, &findings, guarantee));
        }
        store.close(GIVE_BACK_WITHIN).await;
        let missing = args.require.iter().copied().find(|level| !is_met(*level, guarantee));
        let problem = findings.iter().find(|finding| finding.severity == Severity::Problem);
        match (missing, problem) {
            (Some(level), _) => {
                let what = format!("{} does not give {}", store.locks.store(), level.in_words());
                Err(Failure::new(ExitCode::Configuration, what))
            }
            (None, Some(problem)) => {
                let what = format!("{}: {}", problem.subject, problem.observed);
                Err(Failure::new(ExitCode::Configuration, what))
            }
            (None, None) => Ok(ExitCode::Done),
        }
    })
}

/// Whether the deployment gives at least this.
fn is_met(level: Level, guarantee: Guarantee) -> bool {
    match level {
        Level::Exclusive => guarantee.is_exclusive(),
        Level::Fence => guarantee.fence == Fence::Durable,
    }
}

impl Level {
    const fn in_words(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusion through crashes of the store (--require exclusive)",
            Self::Fence => "tokens that rise whatever the clocks do (--require fence)",
        }
    }
}

const fn style(severity: Severity) -> Style {
    match severity {
        Severity::Fine => AnsiColor::Green.on_default(),
        Severity::Advice => AnsiColor::Yellow.on_default(),
        Severity::Problem => AnsiColor::Red.on_default().bold(),
    }
}

fn page(store: &Store, findings: &[Finding], guarantee: Guarantee) -> String {
    const BOLD: Style = Style::new().bold();
    let mut page = format!("{BOLD}{}{BOLD:#}\n\n", clean(store.locks.store()));
    for finding in findings {
        let style = style(finding.severity);
        let _ = writeln!(
            page,
            "  {style}{:8}{style:#} {:18} {}",
            finding.severity,
            finding.subject,
            clean(&finding.observed)
        );
        if let Some(remedy) = &finding.remedy {
            let _ = writeln!(page, "  {:8} {:18} → {}", "", "", clean(remedy));
        }
    }
    let deployment = guarantee.deployment.to_string().replace('`', "");
    let _ = writeln!(
        page,
        "\n{BOLD}What is promised{BOLD:#} ({deployment}; tokens {})\n",
        fence(guarantee.fence)
    );
    for fault in Fault::ALL {
        let verdict = guarantee.under(fault);
        if verdict != Verdict::NotApplicable {
            let style = match verdict {
                Verdict::Holds => style(Severity::Fine),
                _ => style(Severity::Advice),
            };
            let _ = writeln!(page, "  {:36} {style}{verdict}{style:#}", fault.to_string());
        }
    }
    page
}

const fn fence(fence: Fence) -> &'static str {
    match fence {
        Fence::None => "are not to be relied on",
        Fence::ClockFloor => "rise, through a loss of data as long as the clock does not go back",
        Fence::Durable => "rise, always",
    }
}

fn as_json(store: &Store, findings: &[Finding], guarantee: Guarantee) -> serde_json::Value {
    let findings: Vec<_> = findings
        .iter()
        .map(|finding| {
            json!({
                "subject": finding.subject,
                "severity": finding.severity.to_string(),
                "observed": finding.observed,
                "remedy": finding.remedy,
            })
        })
        .collect();
    let faults: serde_json::Map<_, _> = Fault::ALL
        .iter()
        .map(|fault| (fault.to_string(), json!(guarantee.under(*fault).to_string())))
        .collect();
    json!({
        "store": store.locks.store(),
        "deployment": guarantee.deployment.to_string().replace('`', ""),
        "findings": findings,
        "exclusive": is_met(Level::Exclusive, guarantee),
        "fence": is_met(Level::Fence, guarantee),
        "under": faults,
    })
}
