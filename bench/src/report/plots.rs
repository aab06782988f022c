//! Which plots there are, and what stands in them.

use std::collections::BTreeSet;

use super::svg::{Bars, Lines, Series};
use super::{Crowd, median, of_crowd};
use crate::contender::Contender;
use crate::results::{Drain, Results};

/// File names and contents.
pub(super) fn all(results: &Results) -> Vec<(&'static str, String)> {
    let mut plots = vec![
        ("uncontended.svg", uncontended(results)),
        (
            "handover.svg",
            by_waiters(
                &results.handover,
                &Contender::HANDED_OVER,
                "hand-overs per second, waiters in 4 processes",
                "/s",
                |row| row.handovers_per_second,
            ),
        ),
        (
            "gap.svg",
            by_waiters(
                &results.handover,
                &Contender::HANDED_OVER,
                "from release to the next grant, p99, waiters in 4 processes",
                "µs",
                |row| row.gap_p99_us,
            ),
        ),
    ];
    if !results.drain.is_empty() {
        let title = "hand-overs per second, a line served once, waiters in 4 processes";
        let rate = |row: &Drain| row.handovers_per_second;
        plots.push(("drain.svg", by_waiters(&results.drain, &Contender::WAITING, title, "/s", rate)));
    }
    plots
}

const fn colour(contender: Contender) -> &'static str {
    match contender {
        Contender::Tenure => "#0b6e4f",
        Contender::TenureStored => "#6fb98f",
        Contender::Rslock => "#c8553d",
        Contender::Plain => "#8a8f98",
        Contender::Counted => "#c9ccd1",
        Contender::RedisPy => "#3a6ea5",
        Contender::Redlock => "#b08900",
    }
}

fn uncontended(results: &Results) -> String {
    let tasks: BTreeSet<usize> = results.uncontended.iter().map(|row| row.tasks).collect();
    let series = Contender::UNCONTENDED.map(|contender| {
        let value = |tasks: &usize| {
            let rows =
                results.uncontended.iter().filter(|row| row.contender == contender && row.tasks == *tasks);
            median(rows.map(|row| row.pairs_per_second)).unwrap_or(0.0)
        };
        Series {
            name: contender.name(),
            colour: colour(contender),
            values: tasks.iter().map(value).collect(),
        }
    });
    let groups =
        tasks.iter().map(|tasks| if *tasks == 1 { "1 task".into() } else { format!("{tasks} tasks") });
    Bars {
        title: "acquire+release per second, each task its own lock",
        groups: groups.collect(),
        series: &series,
    }
    .draw()
}

fn by_waiters<R: Crowd>(
    rows: &[R],
    contenders: &[Contender],
    title: &str,
    unit: &str,
    value: fn(&R) -> f64,
) -> String {
    let waiters: BTreeSet<usize> = rows.iter().map(Crowd::waiters).collect();
    let processes = rows.iter().map(Crowd::processes).max().unwrap_or(1);
    let series = contenders.iter().map(|contender| {
        let values = waiters
            .iter()
            .map(|waiters| of_crowd(rows, *contender, *waiters, processes, value).unwrap_or(0.0));
        Series { name: contender.name(), colour: colour(*contender), values: values.collect() }
    });
    let points = waiters.iter().map(|waiters| format!("{waiters} waiters")).collect();
    Lines { title, unit, points, series: &series.collect::<Vec<_>>() }.draw()
}
