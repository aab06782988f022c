//! Tables, plots and verdict, recomputed from the raw figures alone. Writes between two markers in
//! `docs/benchmarks.md`, and nothing else there.

mod plots;
mod svg;
mod tables;
pub(crate) mod verdict;

use std::path::Path;

use crate::results::Results;
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
    fn medians_of_odd_even_and_none() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0]), Some(2.5));
        assert_eq!(median([]), None);
    }
}
