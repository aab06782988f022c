//! `tenure doctor`: what this deployment is, what it promises under which fault, and what to change.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use serde_json::json;
use tenure::{Fault, Fence, Finding, Guarantee, Promise, Severity, Verdict};

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
        let missing = args.require.iter().find(|level| level.is_met(&findings, guarantee) != Some(true));
        let problem = findings.iter().find(|finding| finding.severity == Severity::Problem);
        match (missing, problem) {
            (Some(level), _) => Err(unmet(*level, &store, &findings, guarantee)),
            (None, Some(problem)) => {
                let what = format!("{}: {}", problem.subject, problem.observed);
                Err(Failure::new(ExitCode::Configuration, what))
            }
            (None, None) => Ok(ExitCode::Done),
        }
    })
}

/// That the deployment does not give what was required, or that nobody knows.
fn unmet(level: Level, store: &Store, findings: &[Finding], guarantee: Guarantee) -> Failure {
    let (name, wanted) = (store.locks.store(), level.in_words());
    if level.is_met(findings, guarantee).is_some() {
        return Failure::new(ExitCode::Configuration, format!("{name} does not give {wanted}"));
    }
    let failure =
        Failure::new(ExitCode::Configuration, format!("it is not known whether {name} gives {wanted}"));
    let remedy = level.touched_by(findings, Severity::Unknown).and_then(|finding| finding.remedy.as_deref());
    match remedy {
        Some(remedy) => failure.hint(remedy),
        None => failure,
    }
}

impl Level {
    /// Whether the deployment gives at least this; nothing if that could not be found out.
    fn is_met(self, findings: &[Finding], guarantee: Guarantee) -> Option<bool> {
        let is_given = match self {
            Self::Exclusive => guarantee.is_exclusive(),
            Self::Fence => guarantee.fence == Fence::Durable,
        };
        let is_broken = self.touched_by(findings, Severity::Problem).is_some();
        let is_unknown = self.touched_by(findings, Severity::Unknown).is_some();
        if is_broken || (!is_given && !is_unknown) { Some(false) } else { is_given.then_some(true) }
    }

    /// The finding of this severity that puts it at stake.
    fn touched_by(self, findings: &[Finding], severity: Severity) -> Option<&Finding> {
        let promise = match self {
            Self::Exclusive => Promise::P1,
            Self::Fence => Promise::P2,
        };
        findings.iter().find(|finding| finding.severity == severity && finding.at_stake.contains(&promise))
    }

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
        Severity::Advice | Severity::Unknown => AnsiColor::Yellow.on_default(),
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
            clean(&with_promises(&finding.observed, finding.at_stake))
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
    for promise in Promise::ALL {
        let _ = writeln!(page, "  {promise}  {}", promise.in_words());
    }
    let _ = writeln!(page, "\n{BOLD}What is at stake under which fault{BOLD:#}\n");
    for fault in Fault::ALL {
        let verdict = guarantee.under(fault);
        if verdict != Verdict::NotApplicable {
            let style = match verdict {
                Verdict::Holds => style(Severity::Fine),
                _ => style(Severity::Advice),
            };
            let at_stake = match listed(verdict.at_stake(), " ") {
                none if none.is_empty() => "-".into(),
                some => some,
            };
            let _ = writeln!(page, "  {:36} {style}{at_stake:9} {verdict}{style:#}", fault.to_string());
        }
    }
    page
}

fn listed(promises: &[Promise], between: &str) -> String {
    names(promises).join(between)
}

fn with_promises(observed: &str, promises: &[Promise]) -> String {
    if promises.is_empty() { observed.into() } else { format!("{observed} ({})", listed(promises, ", ")) }
}

const fn fence(fence: Fence) -> &'static str {
    match fence {
        Fence::None => "are not to be relied on",
        Fence::ClockFloor => "rise, through a loss of data as long as the clock does not go back",
        Fence::Durable => "rise, always",
    }
}

fn names(promises: &[Promise]) -> Vec<String> {
    promises.iter().map(ToString::to_string).collect()
}

fn as_json(store: &Store, findings: &[Finding], guarantee: Guarantee) -> serde_json::Value {
    let [exclusive, fence] = [Level::Exclusive, Level::Fence].map(|level| level.is_met(findings, guarantee));
    let findings: Vec<_> = findings
        .iter()
        .map(|finding| {
            json!({
                "subject": finding.subject,
                "severity": finding.severity.to_string(),
                "observed": finding.observed,
                "remedy": finding.remedy,
                "at_stake": names(finding.at_stake),
            })
        })
        .collect();
    let under = |tell: fn(Verdict) -> serde_json::Value| -> serde_json::Map<_, _> {
        Fault::ALL.iter().map(|fault| (fault.to_string(), tell(guarantee.under(*fault)))).collect()
    };
    let promises: serde_json::Map<_, _> =
        Promise::ALL.iter().map(|promise| (promise.to_string(), json!(promise.in_words()))).collect();
    json!({
        "store": store.locks.store(),
        "deployment": guarantee.deployment.to_string().replace('`', ""),
        "findings": findings,
        "exclusive": exclusive,
        "fence": fence,
        "promises": promises,
        "under": under(|verdict| json!(verdict.to_string())),
        "at_stake": under(|verdict| json!(names(verdict.at_stake()))),
    })
}
