//! The figures that tenure owes, and what was measured.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Crowd, median, of_crowd};
use crate::contender::Contender;
use crate::results::{Renewal, Results, Uncontended};

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
    let [as_more_wait, either_way] = evenness(&results.handover, |row| row.handovers_per_second);
    let [drained_as_more_wait, drained_either_way] = evenness(&results.drain, |row| row.handovers_per_second);
    let rows = [
        throughput_against(results, Contender::Rslock, 1.3, "≥ 1.3 × `rslock` (which has no token)"),
        throughput_against(results, Contender::Plain, 0.8, "goal: 0.8 × plain `SET NX`+`DEL`"),
        latency(results),
        faster_than_peers(
            &results.handover,
            "hand-overs per second, 128 waiters, each at once in line again",
            |row| row.handovers_per_second,
        ),
        as_more_wait,
        either_way,
        faster_than_peers(
            &results.drain,
            "hand-overs per second, a line of 128 that is served once",
            |row| row.handovers_per_second,
        ),
        drained_as_more_wait,
        drained_either_way,
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

/// By how much more waiters make it slower, and how far apart the rates are either way.
fn evenness<R: Crowd>(rows: &[R], rate: fn(&R) -> f64) -> [Option<Owed>; 2] {
    let waiters: BTreeSet<usize> = rows.iter().map(Crowd::waiters).collect();
    let (mut falls, mut spreads) = (Vec::new(), Vec::new());
    for processes in rows.iter().map(Crowd::processes).collect::<BTreeSet<_>>() {
        let of = |waiters: &usize| of_crowd(rows, Contender::Tenure, *waiters, processes, rate);
        let rates: Vec<f64> = waiters.iter().filter_map(of).collect();
        let (mut most, mut least, mut fall) = (0.0_f64, f64::INFINITY, 0.0_f64);
        for rate in &rates {
            (most, least) = (most.max(*rate), least.min(*rate));
            fall = fall.max(1.0 - rate / most);
        }
        if rates.is_empty() {
            continue;
        }
        let rates: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
        falls.push((fall, format!("{:.0} % in {processes} ({}/s)", fall * 100.0, rates.join(", "))));
        let spread = 1.0 - least / most;
        spreads.push((spread, format!("{:.0} % in {processes}", spread * 100.0)));
    }
    [
        ("the same as more wait, from 2 to 1 000", "at most 30 % slower", falls),
        ("the same from 2 to 1 000 waiters, faster or slower", "within 30 %, to the letter", spreads),
    ]
    .map(|(figure, required, shown)| {
        let is_met = shown.iter().all(|(by, _)| *by <= 0.3);
        let measured: Vec<String> = shown.into_iter().map(|(_, text)| text).collect();
        (!measured.is_empty()).then(|| Owed { figure, required, measured: measured.join("; "), is_met })
    })
}

fn commands(results: &Results) -> Option<Owed> {
    let ours = results.handover.iter().filter(|row| row.contender == Contender::Tenure);
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

/// In any round. What the machine keeps from the server is shown, but it is no stall of the server.
fn stall(results: &Results) -> Option<Owed> {
    let rounds = renewals(results);
    let most = |value: fn(&Renewal) -> f64| rounds.iter().map(|row| value(row)).reduce(f64::max);
    let longest = most(|row| row.ping_max_with_processor_ms.unwrap_or(row.ping_max_ms))?;
    let (with_machine, idle) = (most(|row| row.ping_max_ms)?, most(|row| row.ping_max_idle_ms)?);
    let call = most(|row| row.command_max_ms)?;
    let measured = format!(
        "{longest:.1} ms for a bystander; {with_machine:.1} ms with the time that there was no processor to be had \
         ({idle:.1} ms while idle; longest call {call:.1} ms)"
    );
    Some(Owed {
        figure: "the same, longest server stall in any round",
        required: "≤ 5 ms",
        measured,
        is_met: longest <= 5.0,
    })
}

fn keys(results: &Results) -> Option<Owed> {
    let uncontended = results.uncontended.iter().map(|row| (row.contender, row.keys_left));
    let handover = results.handover.iter().map(|row| (row.contender, row.keys_left));
    let drain = results.drain.iter().map(|row| (row.contender, row.keys_left));
    let memory = results.memory.iter().map(|row| (row.contender, row.keys_left));
    let renewal = results.renewal.iter().map(|row| (Contender::Tenure, row.keys_left));
    let all = uncontended.chain(handover).chain(drain).chain(memory).chain(renewal);
    let most = all.filter(|(contender, _)| *contender == Contender::Tenure).map(|(_, left)| left).max()?;
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
        all.filter(|(contender, _)| *contender == Contender::Tenure).map(|(_, overlaps)| overlaps).collect();
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
