//! Tables, plots and verdict, recomputed from the raw figures alone. Writes between two markers in
//! `docs/benchmarks.md`, and nothing else there.

mod plots;
mod svg;
mod tables;
pub(crate) mod verdict;

use std::path::Path;

use crate::contender::Contender;
use crate::results::{Drain, Handover, Results};
use crate::root;

const BEGIN: &str = "<!-- bench:redis -->";
const END: &str = "<!-- /bench:redis -->";

pub(crate) fn run(from: &Path) -> Result<(), String> {
    let told = |file: &Path, error: std::io::Error| format!("{}: {error}", file.display());
    let json = std::fs::read_to_string(from).map_err(|error| told(from, error))?;
    let results: Results = serde_json::from_str(&json).map_err(|error| error.to_string())?;
    if results.smoke {
        return Err("these are the figures of a smoke run: they mean nothing".into());
    }
    let folder = root().join("docs/benchmarks");
    std::fs::create_dir_all(&folder).map_err(|error| told(&folder, error))?;
    for (name, plot) in plots::all(&results) {
        let file = folder.join(name);
        std::fs::write(&file, plot).map_err(|error| told(&file, error))?;
    }
    let page = root().join("docs/benchmarks.md");
    let text = std::fs::read_to_string(&page).map_err(|error| told(&page, error))?;
    let text = replace(&text, &section(&results)).ok_or("docs/benchmarks.md has lost its markers")?;
    std::fs::write(&page, text).map_err(|error| told(&page, error))?;
    print!("{}", verdict::table(&results));
    Ok(())
}

fn section(results: &Results) -> String {
    format!("\n{}\n{}", verdict::table(results), tables::all(results))
}

/// `text` with `section` between the markers.
fn replace(text: &str, section: &str) -> Option<String> {
    let (head, rest) = text.split_once(BEGIN)?;
    let (_, tail) = rest.split_once(END)?;
    Some(format!("{head}{BEGIN}\n{section}\n{END}{tail}"))
}

/// The middle of what the rounds gave.
fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let (middle, is_even) = (values.len() / 2, values.len().is_multiple_of(2));
    let upper = values.get(middle)?;
    Some(if is_even { (values[middle - 1] + upper) / 2.0 } else { *upper })
}

/// A figure of one contender with so many waiters in so many processes.
trait Crowd {
    fn contender(&self) -> Contender;
    fn waiters(&self) -> usize;
    fn processes(&self) -> usize;
}

impl Crowd for Handover {
    fn contender(&self) -> Contender {
        self.contender
    }

    fn waiters(&self) -> usize {
        self.waiters
    }

    fn processes(&self) -> usize {
        self.processes
    }
}

impl Crowd for Drain {
    fn contender(&self) -> Contender {
        self.contender
    }

    fn waiters(&self) -> usize {
        self.waiters
    }

    fn processes(&self) -> usize {
        self.processes
    }
}

/// The median over rounds of one crowd's figure.
fn of_crowd<R: Crowd>(
    rows: &[R],
    contender: Contender,
    waiters: usize,
    processes: usize,
    value: impl Fn(&R) -> f64,
) -> Option<f64> {
    let fits =
        |row: &&R| row.contender() == contender && row.waiters() == waiters && row.processes() == processes;
    median(rows.iter().filter(fits).map(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_markers_is_replaced() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        assert_eq!(replace(&page, "new").unwrap(), format!("before\n{BEGIN}\nnew\n{END}\nafter\n"));
        assert_eq!(replace("no markers", "new"), None);
    }

    #[test]
    fn figures_from_before_lines_were_drained_are_still_reported() {
        let figures = r#"{"smoke": false, "cores": 2, "versions": {}, "uncontended": [], "handover": [],
                          "standing": [], "memory": [], "renewal": []}"#;
        let results: Results = serde_json::from_str(figures).unwrap();
        assert!(!section(&results).contains("served once"));
        assert!(plots::all(&results).iter().all(|(name, _)| *name != "drain.svg"));
    }

    fn row(contender: Contender, handovers_per_second: f64) -> Drain {
        Drain {
            contender,
            waiters: 128,
            processes: 1,
            round: 0,
            drains: 1,
            handovers_per_second,
            drain_ms: 1.0,
            gap_p50_us: 1.0,
            gap_p99_us: 1.0,
            first_gap_us: 1.0,
            unserved: 0,
            overlaps: 0,
            keys_left: 0,
        }
    }

    #[test]
    fn a_drained_line_is_judged_against_every_peer() {
        let rates = [9000.0, 500.0, 700.0, 300.0];
        let drain = Contender::WAITING.into_iter().zip(rates).map(|(contender, rate)| row(contender, rate));
        let results = Results { drain: drain.collect(), ..Results::default() };
        let verdict = verdict::table(&results);
        assert!(verdict.contains(
            "served once | ≥ 15 × `rslock`, `redis-py`, `redlock` | at least 12.9 × in 1 (redis-py)"
        ));
        assert!(section(&results).contains("| 128 | 1 | rslock | 500 | 18.0 × |"));
        assert_eq!(plots::all(&results).last().unwrap().0, "drain.svg");
    }

    #[test]
    fn evenness_tells_faster_from_slower() {
        let said = |rates: [f64; 4]| {
            let of = |(waiters, rate)| Drain { waiters, processes: 4, ..row(Contender::Tenure, rate) };
            let drain = [2, 16, 128, 1000].into_iter().zip(rates).map(of);
            verdict::table(&Results { drain: drain.collect(), ..Results::default() })
        };
        let even = said([1000.0, 800.0, 900.0, 1000.0]);
        assert!(even.contains("| at most 30 % slower | 20 % in 4 (1000, 800, 900, 1000/s) | met |"));
        assert!(even.contains("| within 30 %, to the letter | 20 % in 4 (1000, 800, 900, 1000/s) | met |"));
        let faster = said([1000.0, 900.0, 4000.0, 5000.0]);
        assert!(faster.contains("| at most 30 % slower | 10 % in 4 (1000, 900, 4000, 5000/s) | met |"));
        assert!(
            faster.contains(
                "| within 30 %, to the letter | 82 % in 4 (1000, 900, 4000, 5000/s) | **missed** |"
            )
        );
        let slower = said([1000.0, 900.0, 650.0, 2000.0]);
        assert!(slower.contains("| at most 30 % slower | 35 % in 4 (1000, 900, 650, 2000/s) | **missed** |"));
    }

    #[test]
    fn medians_of_odd_even_and_none() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0]), Some(2.5));
        assert_eq!(median([]), None);
    }
}
