//! The tables of `docs/benchmarks.md`: medians over rounds, and ratios to tenure.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{median, of_crowd};
use crate::contender::Contender;
use crate::results::{Drain, Handover, Results, Uncontended};

pub(super) fn all(results: &Results) -> String {
    let mut text = String::new();
    versions(&mut text, results);
    uncontended(&mut text, results);
    handover(&mut text, results);
    drain(&mut text, results);
    waiting(&mut text, results);
    memory(&mut text, results);
    renewal(&mut text, results);
    text.trim_end().to_owned() + "\n"
}

/// 12 345.6 as `12 346`, 1.234 as `1.2`.
fn shown(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

fn versions(text: &mut String, results: &Results) {
    let versions: Vec<String> =
        results.versions.iter().map(|(name, version)| format!("{name}: {version}")).collect();
    let _ = writeln!(text, "\n{} cores. {}.", results.cores, versions.join(" · "));
}

fn uncontended(text: &mut String, results: &Results) {
    if results.uncontended.is_empty() {
        return;
    }
    text.push_str(
        "\n### Without contention\n\n![acquire+release per second](benchmarks/uncontended.svg)\n\n",
    );
    text.push_str(
        "| tasks | | pairs/s | of plain | p50 µs | p99 µs | client CPU µs | server CPU µs | commands |\n",
    );
    text.push_str("|--:|---|--:|--:|--:|--:|--:|--:|--:|\n");
    for tasks in results.uncontended.iter().map(|row| row.tasks).collect::<BTreeSet<_>>() {
        let of = |contender: Contender, value: fn(&Uncontended) -> f64| {
            let rows =
                results.uncontended.iter().filter(|row| row.contender == contender && row.tasks == tasks);
            median(rows.map(value)).unwrap_or(0.0)
        };
        let plain = of(Contender::Plain, |row| row.pairs_per_second);
        for contender in Contender::UNCONTENDED {
            let rate = of(contender, |row| row.pairs_per_second);
            let _ = writeln!(
                text,
                "| {tasks} | {} | {} | {:.2} | {} | {} | {} | {} | {:.1} |",
                contender.name(),
                shown(rate),
                rate / plain,
                shown(of(contender, |row| row.p50_us)),
                shown(of(contender, |row| row.p99_us)),
                shown(of(contender, |row| row.client_cpu_us_per_pair)),
                shown(of(contender, |row| row.server_cpu_us_per_pair)),
                of(contender, |row| row.commands_per_pair),
            );
        }
    }
}

fn handover(text: &mut String, results: &Results) {
    if results.handover.is_empty() {
        return;
    }
    text.push_str("\n### Hand-overs, each at once in line again\n\n![hand-overs per second](benchmarks/handover.svg)\n\n");
    text.push_str("![how long one takes](benchmarks/gap.svg)\n\n");
    text.push_str(
        "| waiters | processes | | hand-overs/s | tenure is | of all grants | gap p50 µs | gap p99 µs | ",
    );
    text.push_str("wait p50 ms | wait p99 ms | parties served | commands |\n");
    text.push_str("|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    let cells: BTreeSet<_> = results.handover.iter().map(|row| (row.processes, row.waiters)).collect();
    for (processes, waiters) in cells {
        let of = |contender: Contender, value: fn(&Handover) -> f64| {
            of_crowd(&results.handover, contender, waiters, processes, value).unwrap_or(0.0)
        };
        let ours = of(Contender::Tenure, |row| row.handovers_per_second);
        for contender in Contender::HANDED_OVER {
            let rate = of(contender, |row| row.handovers_per_second);
            let _ = writeln!(
                text,
                "| {waiters} | {processes} | {} | {} | {} × | {:.0} % | {} | {} | {} | {} | {:.0} | {:.1} |",
                contender.name(),
                shown(rate),
                shown(ours / rate),
                100.0 * rate / of(contender, |row| row.grants_per_second),
                shown(of(contender, |row| row.gap_p50_us)),
                shown(of(contender, |row| row.gap_p99_us)),
                shown(of(contender, |row| row.wait_p50_ms)),
                shown(of(contender, |row| row.wait_p99_ms)),
                of(contender, |row| row.served as f64),
                of(contender, |row| row.commands_per_grant),
            );
        }
    }
}

fn drain(text: &mut String, results: &Results) {
    if results.drain.is_empty() {
        return;
    }
    text.push_str("\n### Hand-overs, a line that is served once\n\n");
    text.push_str("![hand-overs per second of a line served once](benchmarks/drain.svg)\n\n");
    text.push_str(
        "| waiters | processes | | hand-overs/s | tenure is | all served in ms | gap p50 µs | gap p99 µs | first gap µs | ",
    );
    text.push_str("not served | overlaps | keys left |\n");
    text.push_str("|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    let cells: BTreeSet<_> = results.drain.iter().map(|row| (row.processes, row.waiters)).collect();
    for (processes, waiters) in cells {
        let of = |contender: Contender, value: fn(&Drain) -> f64| {
            of_crowd(&results.drain, contender, waiters, processes, value).unwrap_or(0.0)
        };
        let ours = of(Contender::Tenure, |row| row.handovers_per_second);
        for contender in Contender::WAITING {
            let rate = of(contender, |row| row.handovers_per_second);
            let _ = writeln!(
                text,
                "| {waiters} | {processes} | {} | {} | {} × | {} | {} | {} | {} | {:.0} | {:.0} | {:.0} |",
                contender.name(),
                shown(rate),
                shown(ours / rate),
                shown(of(contender, |row| row.drain_ms)),
                shown(of(contender, |row| row.gap_p50_us)),
                shown(of(contender, |row| row.gap_p99_us)),
                shown(of(contender, |row| row.first_gap_us)),
                of(contender, |row| row.unserved as f64),
                of(contender, |row| row.overlaps as f64),
                of(contender, |row| row.keys_left as f64),
            );
        }
    }
}

fn waiting(text: &mut String, results: &Results) {
    if results.standing.is_empty() {
        return;
    }
    text.push_str("\n### Waiting\n\n");
    text.push_str(
        "| waiters | | server memory per waiter | connections | commands/s while nothing happens |\n",
    );
    text.push_str("|--:|---|--:|--:|--:|\n");
    for row in &results.standing {
        let _ = writeln!(
            text,
            "| {} | {} | {} B | {} | {} |",
            row.waiters,
            row.contender.name(),
            shown(row.bytes_per_waiter),
            row.connections,
            shown(row.commands_per_second),
        );
    }
}

fn memory(text: &mut String, results: &Results) {
    if results.memory.is_empty() {
        return;
    }
    text.push_str("\n### Memory\n\n");
    text.push_str(
        "| locks | | per held lock | per name after release | keys left |\n|--:|---|--:|--:|--:|\n",
    );
    for row in &results.memory {
        let _ = writeln!(
            text,
            "| {} | {} | {} B | {} B | {} |",
            row.locks,
            row.contender.name(),
            shown(row.bytes_per_held),
            shown(row.bytes_per_released),
            row.keys_left,
        );
    }
}

fn renewal(text: &mut String, results: &Results) {
    if results.renewal.is_empty() {
        return;
    }
    text.push_str("\n### Renewal\n\n");
    text.push_str(
        "| locks held | ttl | renewals/s | commands/s | client core | server core | longest PING | the same with a processor | ",
    );
    text.push_str("99.9 % | longest PING while idle | the same with a processor | longest call | lost |\n");
    text.push_str("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    let told = |ms: Option<f64>| ms.map_or_else(|| "not told".into(), |ms| format!("{ms:.2} ms"));
    let mut rows: Vec<_> = results.renewal.iter().collect();
    rows.sort_by_key(|row| (row.locks, row.round));
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {} s | {} | {} | {:.1} % | {:.1} % | {:.2} ms | {} | {:.2} ms | {:.2} ms | {} | {:.2} ms | {} |",
            row.locks,
            row.ttl_s,
            shown(row.renewals_per_second),
            shown(row.commands_per_second),
            row.client_cores * 100.0,
            row.server_cores * 100.0,
            row.ping_max_ms,
            told(row.ping_max_with_processor_ms),
            row.ping_p999_ms,
            row.ping_max_idle_ms,
            told(row.ping_max_idle_with_processor_ms),
            row.command_max_ms,
            row.lost,
        );
    }
}
