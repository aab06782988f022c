//! What is measured, in which order, and the arithmetic on single rounds.

mod drain;
mod handover;
mod memory;
mod parties;
mod renewal;
mod standing;
mod uncontended;

use crate::plan::Plan;
use crate::results::Results;
use crate::server::Watched;
use crate::{machine, peers};

/// Runs the scenarios named in `only`, or all of them.
pub(crate) fn run(plan: &Plan, only: &[String]) -> Result<Results, String> {
    peers::install()?;
    let mut server = Watched::start()?;
    let mut results = Results {
        smoke: plan.smoke,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        ..Results::default()
    };
    results.versions.insert("redis-server".into(), server.version()?);
    results.versions.insert("tenure".into(), env!("CARGO_PKG_VERSION").into());
    results.versions.extend(peers::versions());
    let began = machine::now_nanos();
    let scenarios: [(&str, Scenario); 6] = [
        ("uncontended", uncontended::run),
        ("handover", handover::run),
        ("drain", drain::run),
        ("standing", standing::run),
        ("memory", memory::run),
        ("renewal", renewal::run),
    ];
    for (name, scenario) in scenarios {
        if only.is_empty() || only.iter().any(|wanted| wanted == name) {
            scenario(plan, &mut server, &mut results)?;
        }
    }
    eprintln!("took {:.0} s", (machine::now_nanos() - began) as f64 / 1e9);
    Ok(results)
}

type Scenario = fn(&Plan, &mut Watched, &mut Results) -> Result<(), String>;

/// The value that the share `q` of `sorted` does not exceed; zero if there are none.
fn quantile(sorted: &[u64], q: f64) -> f64 {
    let rank = (sorted.len() as f64 * q).ceil().max(1.0) as usize - 1;
    sorted.get(rank.min(sorted.len().saturating_sub(1))).map_or(0.0, |value| *value as f64)
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_of_few_and_none() {
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[7], 0.99), 7.0);
        assert_eq!(quantile(&[1, 2, 3, 4], 0.5), 2.0);
        assert_eq!(quantile(&[1, 2, 3, 4], 1.0), 4.0);
    }
}
