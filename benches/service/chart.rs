//! The chart for the README: bars that can be read on white and on black.

use std::fmt::Write as _;

use crate::contenders::Contender;
use crate::latency::Way;
use crate::report::Report;
use crate::scenarios::{NAIVE, STANDARD};
use crate::statistics::Figure;

const WIDTH: f64 = 760.0;
const NAMES: f64 = 250.0;
const VALUES: f64 = 90.0;
const LINE: f64 = 26.0;
const BAR: f64 = 16.0;
const TITLE: f64 = 40.0;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.own{fill:#0969da}\
.other{fill:#8c959f}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.own{fill:#58a6ff}.other{fill:#6e7681}}";

struct Bar {
    name: String,
    own: bool,
    value: f64,
    text: String,
}

/// An SVG of what was measured; panels without a bar are left out.
pub(crate) fn draw(report: &Report) -> String {
    let panels = [
        ("Ticks per CPU-second of worker and Redis (more is better)", efficiency(report)),
        ("Tick to notification at 200 ticks a second, p50 / p99 in ms (less is better)", latency(report)),
    ];
    let mut body = String::new();
    let mut y = 0.0;
    for (title, bars) in panels.iter().filter(|(_, bars)| !bars.is_empty()) {
        y += TITLE;
        body += &format!("<text class=\"title\" x=\"8\" y=\"{:.0}\">{title}</text>\n", y - 14.0);
        let longest = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
        for bar in bars {
            draw_bar(&mut body, y, bar, longest);
            y += LINE;
        }
    }
    let height = y + 8.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" width=\"{WIDTH:.0}\" \
         height=\"{height:.0}\" role=\"img\">\n<style>{STYLE}</style>\n{body}</svg>\n"
    )
}

fn draw_bar(body: &mut String, y: f64, bar: &Bar, longest: f64) {
    let Bar { name, own, value, text } = bar;
    let class = if *own { "own" } else { "other" };
    let length = (WIDTH - NAMES - VALUES) * value / longest;
    let (middle, end) = (y + BAR - 3.0, NAMES + length + 8.0);
    writeln!(
        body,
        "<text x=\"{:.0}\" y=\"{middle:.0}\" text-anchor=\"end\">{name}</text>\
         <rect class=\"{class}\" x=\"{NAMES:.0}\" y=\"{y:.0}\" width=\"{length:.1}\" height=\"{BAR:.0}\" rx=\"3\"/>\
         <text x=\"{end:.0}\" y=\"{middle:.0}\">{text}</text>",
        NAMES - 8.0
    )
    .expect("a String takes every write");
}

fn efficiency(report: &Report) -> Vec<Bar> {
    let of_bar = |runs: Vec<&crate::throughput::Run>| {
        let figure = Figure::of(runs.iter().map(|run| run.ticks_per_cpu_second))?;
        let contender = runs[0].contender;
        Some(Bar {
            name: contender.to_string(),
            own: matches!(contender, Contender::Tickwatch(_)),
            value: figure.median,
            text: format!("{:.0}k", figure.median / 1e3),
        })
    };
    let wanted = |runs: &Vec<&crate::throughput::Run>| {
        [STANDARD, NAIVE].contains(&runs[0].scenario) && runs[0].contender != Contender::Raw { parse: false }
    };
    let mut bars: Vec<Bar> = report.by_contender().into_iter().filter(wanted).filter_map(of_bar).collect();
    bars.sort_by(|one, other| other.value.total_cmp(&one.value));
    bars
}

fn latency(report: &Report) -> Vec<Bar> {
    let mut bars: Vec<Bar> = report
        .by_way()
        .into_iter()
        .filter_map(|found| {
            let p50 = Figure::of(found.iter().map(|latency| latency.p50_ms))?;
            let p99 = Figure::of(found.iter().map(|latency| latency.p99_ms))?;
            let way = found[0].way;
            Some(Bar {
                name: way.to_string(),
                own: matches!(way, Way::Through(Contender::Tickwatch(_))),
                value: p50.median,
                text: format!("{:.1} / {:.1}", p50.median, p99.median),
            })
        })
        .collect();
    bars.sort_by(|one, other| one.value.total_cmp(&other.value));
    bars
}
