//! The figures that tenure owes, and what was measured.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Crowd, median, of_crowd};
use crate::contender::Contender;
use crate::results::{Handover, Renewal, Results, Uncontended};

struct Owed {
    figure: &'static str,
    required: &'static str,
    measured: String,
    is_met: bool,
}

/// One row per figure; figures whose scenario was left out are left out.
pub(crate) fn table(results: &Results) -> String {
    let mut text = "| figure | required | measured | |\n|---|---|---|---|\n".to_owned();
    for owed in owed(results) {
        let verdict = if owed.is_met { "met" } else { "**missed**" };
        let _ = writeln!(text, "| {} | {} | {} | {verdict} |", owed.figure, owed.required, owed.measured);
    }
    text
}

fn owed(results: &Results) -> Vec<Owed> {
    let handed_over =
        |contender| rates(&results.handover, contender, |row: &Handover| row.handovers_per_second);
    let drained = rates(&results.drain, Contender::Tenure, |row| row.handovers_per_second);
    let (ours, stored) = (handed_over(Contender::Tenure), handed_over(Contender::TenureStored));
    let rows = [
        throughput_against(results, Contender::Rslock, 1.3, "≥ 1.3 × `rslock` (which has no token)"),
        throughput_against(results, Contender::Plain, 0.8, "goal: 0.8 × plain `SET NX`+`DEL`"),
        latency(results),
        faster_than_peers(
            &results.handover,
            "hand-overs per second, 128 waiters, each at once in line again",
            |row| row.handovers_per_second,
        ),
        as_more_wait(&ours),
        either_way(&ours, "the same from 2 to 1 000 waiters, faster or slower"),
        either_way(&stored, "the same where each is the server's (`?hand_on=no`)"),
        faster_than_peers(
            &results.drain,
            "hand-overs per second, a line of 128 that is served once",
            |row| row.handovers_per_second,
        ),
        as_more_wait(&drained),
        either_way(&drained, "the same from 2 to 1 000 waiters, faster or slower"),
        commands(results),
        renewal(results),
        stall(results),
        keys(results),
        overlaps(results),
    ];
    rows.into_iter().flatten().collect()
}

/// The median ratio of tenure to another, round by round: both were measured next to each other.
fn ratio(
    results: &Results,
    other: Contender,
    tasks: usize,
    value: impl Fn(&Uncontended) -> f64,
) -> Option<f64> {
    let of = |contender: Contender| {
        results.uncontended.iter().filter(move |row| row.contender == contender && row.tasks == tasks)
    };
    let pairs = of(Contender::Tenure)
        .filter_map(|ours| Some(value(ours) / value(of(other).find(|theirs| theirs.round == ours.round)?)));
    median(pairs)
}

fn throughput_against(
    results: &Results,
    other: Contender,
    at_least: f64,
    required: &'static str,
) -> Option<Owed> {
    let tasks = results.uncontended.iter().map(|row| row.tasks).max()?;
    let ratio = ratio(results, other, tasks, |row| row.pairs_per_second)?;
    Some(Owed {
        figure: "acquire+release per second, 512 tasks, with token",
        required,
        measured: format!("{ratio:.2} ×"),
        is_met: ratio >= at_least,
    })
}

/// Of the quietest round of each: with one task, a round is fast or slow as a whole, depending on whether the runtime
/// happens to keep the task and its connection on one core.
fn latency(results: &Results) -> Option<Owed> {
    let least = |contender: Contender| {
        let rows = results.uncontended.iter().filter(|row| row.contender == contender && row.tasks == 1);
        rows.map(|row| row.p50_us).min_by(f64::total_cmp)
    };
    let (ours, plain) = (least(Contender::Tenure)?, least(Contender::Plain)?);
    Some(Owed {
        figure: "acquire+release, 1 task, latency (p50, best round)",
        required: "≤ 1.15 × the two plain commands",
        measured: format!(
            "{:.2} × ({ours:.0} µs, {plain:.0} µs); the least with a token (counted): {:.2} ×, rslock: {:.2} ×",
            ours / plain,
            least(Contender::Counted)? / plain,
            least(Contender::Rslock)? / plain,
        ),
        is_met: ours / plain <= 1.15,
    })
}

fn faster_than_peers<R: Crowd>(rows: &[R], figure: &'static str, rate: fn(&R) -> f64) -> Option<Owed> {
    let peers = [Contender::Rslock, Contender::RedisPy, Contender::Redlock];
    let mut least = Vec::new();
    for processes in rows.iter().map(Crowd::processes).collect::<BTreeSet<_>>() {
        let of = |contender| of_crowd(rows, contender, 128, processes, rate);
        let ours = of(Contender::Tenure)?;
        let ratios = peers.map(|peer| of(peer).map(|theirs| (ours / theirs, peer)));
        let ratios = ratios.into_iter().collect::<Option<Vec<_>>>()?;
        let (ratio, peer) = ratios.into_iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
        least.push((ratio, format!("{ratio:.1} × in {processes} ({})", peer.name())));
    }
    let said: Vec<_> = least.iter().map(|(_, said)| said.as_str()).collect();
    (!said.is_empty()).then(|| Owed {
        figure,
        required: "≥ 15 × `rslock`, `redis-py`, `redlock`",
        measured: format!("at least {}", said.join(", ")),
        is_met: least.iter().all(|(ratio, _)| *ratio >= 15.0),
    })
}

/// The rates of a contender as more and more wait, for each number of processes.
fn rates<R: Crowd>(rows: &[R], contender: Contender, rate: fn(&R) -> f64) -> Vec<(usize, Vec<f64>)> {
    let waiters: BTreeSet<usize> = rows.iter().map(Crowd::waiters).collect();
    let processes: BTreeSet<usize> = rows.iter().map(Crowd::processes).collect();
    let of = |processes| {
        let rates = waiters.iter().filter_map(|waiters| of_crowd(rows, contender, *waiters, processes, rate));
        (processes, rates.collect::<Vec<f64>>())
    };
    processes.into_iter().map(of).filter(|(_, rates)| !rates.is_empty()).collect()
}

/// By how much more waiters make it slower.
fn as_more_wait(rates: &[(usize, Vec<f64>)]) -> Option<Owed> {
    let fall = |rates: &[f64]| {
        let mut most = 0.0_f64;
        let falls = rates.iter().map(|rate| {
            most = most.max(*rate);
            1.0 - rate / most
        });
        falls.fold(0.0, f64::max)
    };
    even(rates, "the same as more wait, from 2 to 1 000", "at most 30 % slower", fall)
}

/// How far apart the rates are.
fn either_way(rates: &[(usize, Vec<f64>)], figure: &'static str) -> Option<Owed> {
    let spread = |rates: &[f64]| {
        let (least, most) = (rates.iter().copied().reduce(f64::min), rates.iter().copied().reduce(f64::max));
        least.zip(most).map_or(0.0, |(least, most)| 1.0 - least / most)
    };
    even(rates, figure, "within 30 %, to the letter", spread)
}

fn even(
    rates: &[(usize, Vec<f64>)],
    figure: &'static str,
    required: &'static str,
    by: impl Fn(&[f64]) -> f64,
) -> Option<Owed> {
    let shown = rates.iter().map(|(processes, rates)| {
        let each: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
        format!("{:.0} % in {processes} ({}/s)", by(rates) * 100.0, each.join(", "))
    });
    let measured = shown.collect::<Vec<_>>().join("; ");
    let is_met = rates.iter().all(|(_, rates)| by(rates) <= 0.3);
    (!rates.is_empty()).then_some(Owed { figure, required, measured, is_met })
}

fn commands(results: &Results) -> Option<Owed> {
    let ours = results.handover.iter().filter(|row| row.contender.is_tenure());
    let most = ours.map(|row| row.commands_per_grant).max_by(f64::total_cmp)?;
    Some(Owed {
        figure: "store commands per contended acquisition",
        required: "≤ 2.2 at any number of waiters",
        measured: format!("at most {most:.2} in any round"),
        is_met: most <= 2.2,
    })
}

/// Every round with the most locks.
fn renewals(results: &Results) -> Vec<&Renewal> {
    let most = results.renewal.iter().map(|row| row.locks).max();
    results.renewal.iter().filter(|row| Some(row.locks) == most).collect()
}

fn renewal(results: &Results) -> Option<Owed> {
    let rounds = renewals(results);
    let cores = median(rounds.iter().map(|row| row.client_cores))?;
    let lost: u64 = rounds.iter().map(|row| row.lost).sum();
    Some(Owed {
        figure: "renewing 100 k locks at ttl 30 s, client",
        required: "< 10 % of one core",
        measured: format!("{:.1} %, {lost} lost", cores * 100.0),
        is_met: cores < 0.1 && lost == 0,
    })
}

/// The longest of a round, the median of the rounds: like every other figure. What the machine does by itself is shown
/// beside it, the worst round, and the worst of as many rounds without any lock.
fn stall(results: &Results) -> Option<Owed> {
    let rounds = renewals(results);
    let longest = |row: &Renewal| row.ping_max_with_processor_ms.unwrap_or(row.ping_max_ms);
    let idle = |row: &Renewal| row.ping_max_idle_with_processor_ms.unwrap_or(row.ping_max_idle_ms);
    let worst = |value: fn(&Renewal) -> f64| rounds.iter().map(|row| value(row)).reduce(f64::max);
    let median = median(rounds.iter().map(|row| longest(row)))?;
    let measured = format!(
        "{median:.1} ms for a bystander, {:.1} ms in the worst round, {:.1} ms in the worst without any lock; with the time \
         that there was no processor to be had {:.1} and {:.1} ms at worst. Longest call {:.1} ms",
        worst(longest)?,
        worst(idle)?,
        worst(|row| row.ping_max_ms)?,
        worst(|row| row.ping_max_idle_ms)?,
        worst(|row| row.command_max_ms)?,
    );
    Some(Owed {
        figure: "the same, longest server stall",
        required: "≤ 5 ms",
        measured,
        is_met: median <= 5.0,
    })
}

fn keys(results: &Results) -> Option<Owed> {
    let uncontended = results.uncontended.iter().map(|row| (row.contender, row.keys_left));
    let handover = results.handover.iter().map(|row| (row.contender, row.keys_left));
    let drain = results.drain.iter().map(|row| (row.contender, row.keys_left));
    let memory = results.memory.iter().map(|row| (row.contender, row.keys_left));
    let renewal = results.renewal.iter().map(|row| (Contender::Tenure, row.keys_left));
    let all = uncontended.chain(handover).chain(drain).chain(memory).chain(renewal);
    let most = all.filter(|(contender, _)| contender.is_tenure()).map(|(_, left)| left).max()?;
    Some(Owed {
        figure: "keys left after everything is released",
        required: "0 besides expiring fence keys",
        measured: format!("{most}, after every measurement"),
        is_met: most == 0,
    })
}

fn overlaps(results: &Results) -> Option<Owed> {
    let handover = results.handover.iter().map(|row| (row.contender, row.overlaps));
    let all = handover.chain(results.drain.iter().map(|row| (row.contender, row.overlaps)));
    let ours: Vec<u64> =
        all.filter(|(contender, _)| contender.is_tenure()).map(|(_, overlaps)| overlaps).collect();
    if ours.is_empty() {
        return None;
    }
    let sum: u64 = ours.iter().sum();
    Some(Owed {
        figure: "grants that overlapped",
        required: "0",
        measured: sum.to_string(),
        is_met: sum == 0,
    })
}
