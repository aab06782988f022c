//! Two kinds of plot as plain SVG, light and dark: bars in groups, and lines over a logarithmic scale.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;

pub(super) struct Series {
    pub(super) name: &'static str,
    pub(super) colour: &'static str,
    /// One per group or point; zero if it was not measured.
    pub(super) values: Vec<f64>,
}

pub(super) struct Bars<'a> {
    pub(super) title: &'a str,
    pub(super) groups: Vec<String>,
    pub(super) series: &'a [Series],
}

pub(super) struct Lines<'a> {
    pub(super) title: &'a str,
    pub(super) unit: &'a str,
    pub(super) points: Vec<String>,
    pub(super) series: &'a [Series],
}

fn frame(title: &str, body: &str, series: &[Series]) -> String {
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n\
         <style>text{{font:12px system-ui,sans-serif;fill:#24292f}}.grid{{stroke:#8884;stroke-width:1}}\
         .title{{font-weight:600;font-size:14px}}.value{{font-size:10px}}\
         @media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}}}</style>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"22\">{title}</text>\n{body}"
    );
    for (i, series) in series.iter().enumerate() {
        let y = TOP + 14.0 + 20.0 * i as f64;
        let x = WIDTH - RIGHT + 16.0;
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"{:.1}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            y - 10.0,
            series.colour,
            x + 18.0,
            y,
            series.name
        );
    }
    text + "</svg>\n"
}

/// 12 345 as `12k`, 0.5 as `0.5`.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 10_000.0 => format!("{:.0}k", v / 1e3),
        v if v >= 1000.0 => format!("{:.1}k", v / 1e3),
        v if v >= 10.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

fn grid(text: &mut String, y: f64, label: &str) {
    let _ = writeln!(
        text,
        "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
        WIDTH - RIGHT,
        LEFT - 8.0,
        y + 4.0
    );
}

fn under(text: &mut String, x: f64, label: &str) {
    let _ = writeln!(
        text,
        "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
        HEIGHT - BOTTOM + 20.0
    );
}

impl Bars<'_> {
    pub(super) fn draw(&self) -> String {
        let most = self.series.iter().flat_map(|series| &series.values).copied().fold(1.0, f64::max);
        let step = 10_f64.powf(most.log10().floor());
        let step = if most / step < 3.0 { step / 2.0 } else { step };
        let top = (most / step).ceil() * step;
        let height = HEIGHT - TOP - BOTTOM;
        let y = |value: f64| TOP + height * (1.0 - value / top);
        let mut text = String::new();
        for i in 0..=(top / step).round() as usize {
            grid(&mut text, y(i as f64 * step), &short(i as f64 * step));
        }
        let group_width = (WIDTH - LEFT - RIGHT) / self.groups.len().max(1) as f64;
        let bar = group_width * 0.8 / self.series.len().max(1) as f64;
        for (g, group) in self.groups.iter().enumerate() {
            let start = LEFT + group_width * (g as f64 + 0.1);
            under(&mut text, start + group_width * 0.4, group);
            for (s, series) in self.series.iter().enumerate() {
                let value = series.values[g];
                let x = start + bar * s as f64;
                let _ = writeln!(
                    text,
                    "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>\
                     <text class=\"value\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                    x + 1.0,
                    y(value),
                    bar - 2.0,
                    HEIGHT - BOTTOM - y(value),
                    series.colour,
                    x + bar / 2.0,
                    y(value) - 4.0,
                    short(value)
                );
            }
        }
        frame(self.title, &text, self.series)
    }
}

impl Lines<'_> {
    pub(super) fn draw(&self) -> String {
        let values =
            || self.series.iter().flat_map(|series| &series.values).copied().filter(|value| *value > 0.0);
        let floor = values().fold(f64::MAX, f64::min).min(1e9).log10().floor();
        let ceiling = values().fold(1.0, f64::max).log10().ceil().max(floor + 1.0);
        let height = HEIGHT - TOP - BOTTOM;
        let y = |value: f64| TOP + height * (ceiling - value.max(1e-9).log10()) / (ceiling - floor);
        let mut text = String::new();
        for power in floor as i32..=ceiling as i32 {
            let value = 10_f64.powi(power);
            grid(&mut text, y(value), &format!("{} {}", short(value), self.unit));
        }
        let step = (WIDTH - LEFT - RIGHT) / self.points.len().max(1) as f64;
        let x = |i: usize| LEFT + step * (i as f64 + 0.5);
        for (i, point) in self.points.iter().enumerate() {
            under(&mut text, x(i), point);
        }
        for series in self.series {
            let points: Vec<(f64, f64, f64)> = (series.values.iter().enumerate())
                .filter(|(_, value)| **value > 0.0)
                .map(|(i, value)| (x(i), y(*value), *value))
                .collect();
            let path: Vec<String> = points.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                text,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\"/>",
                path.join(" "),
                series.colour
            );
            for (x, y, value) in points {
                let _ = writeln!(
                    text,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{}\"/>\
                     <text class=\"value\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                    series.colour,
                    y - 8.0,
                    short(value)
                );
            }
        }
        frame(self.title, &text, self.series)
    }
}
