//! What is told at the end: tables for people, a file for programs, a chart, and the copies that are kept in docs/.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use comfy_table::{Table, presets};
use serde::Serialize;

use crate::bytes::Bytes;
use crate::chart;
use crate::goals::{Goal, Row, rows};
use crate::latency::Latency;
use crate::machine::Machine;
use crate::statistics::Figure;
use crate::takeover::Takeover;
use crate::throughput::Run;

/// The kept tables are between these lines of the page.
const KEPT_FROM: &str = "<!-- kept: written by make bench-keep -->";
const KEPT_TO: &str = "<!-- end of kept -->";

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) ticks: u64,
    pub(crate) repetitions: u32,
    pub(crate) seed: u64,
    /// What of it is to be reached; filled in at the end.
    pub(crate) rows: Vec<Row>,
    pub(crate) runs: Vec<Run>,
    pub(crate) latencies: Vec<Latency>,
    pub(crate) takeovers: Vec<Takeover>,
    pub(crate) bytes: Option<Bytes>,
    /// Runs that failed, or whose outputs were not as they have to be.
    pub(crate) failures: Vec<String>,
}

impl Report {
    /// What came of a measurement; `None` if it failed, which is told at once and at the end.
    pub(crate) fn note<T>(&mut self, outcome: anyhow::Result<T>) -> Option<T> {
        outcome
            .inspect_err(|error| {
                let failure = format!("{error:#}");
                eprintln!("FAILED: {failure}");
                self.failures.push(failure);
            })
            .ok()
    }

    /// Works out what was reached, and tells everything; what was not measured only if all was wanted.
    pub(crate) fn finish(&mut self, all: bool) {
        self.rows = rows(self);
        self.rows.retain(|row| all || row.figure.is_some());
        println!("{}", self.machine.summary());
        for (header, rows) in self.tables().into_iter().filter(|(_, rows)| !rows.is_empty()) {
            println!("{}", table(header, rows));
        }
        for failure in &self.failures {
            println!("FAILED: {failure}");
        }
    }

    /// Headers and rows.
    fn tables(&self) -> [(&'static [&'static str], Vec<Vec<String>>); 3] {
        [(&RESULTS, self.results()), (&FIGURES, self.figures()), (&WAYS, self.ways())]
    }

    /// What is to be reached, line by line.
    fn results(&self) -> Vec<Vec<String>> {
        let row = |row: &Row| {
            let figure = row.figure.map_or_else(
                || "not measured".to_owned(),
                |figure| with_spread(figure, |value| format!("{} {}", plain(value), row.unit).trim().to_owned()),
            );
            let goal = row.goal.map_or_else(String::new, |goal| match goal {
                Goal::AtLeast(bound) => format!("at least {} {}", plain(bound), row.unit),
                Goal::AtMost(bound) => format!("at most {} {}", plain(bound), row.unit),
            });
            let met = row.met.map_or("", |met| if met { "met" } else { "not met" });
            vec![row.what.clone(), figure, goal.trim().to_owned(), met.to_owned()]
        };
        self.rows.iter().map(row).collect()
    }

    /// The figures behind it.
    fn figures(&self) -> Vec<Vec<String>> {
        let runs = self.by_contender().into_iter().map(|runs| {
            let figure = |of: fn(&Run) -> f64| Figure::of(runs.iter().map(|run| of(run)));
            let told = |of, unit: f64| figure(of).map_or_else(String::new, |f| with_spread(f, |v| plain(v / unit)));
            vec![
                runs[0].scenario.to_owned(),
                runs[0].contender.to_string(),
                told(|run| run.ticks_per_second, 1e3),
                told(|run| run.ticks_per_cpu_second, 1e3),
                told(|run| run.worker_cpu / run.span_ticks as f64, 1e-6),
                told(|run| run.redis_cpu / run.span_ticks as f64, 1e-6),
                told(|run| run.broker_cpu / run.span_ticks as f64, 1e-6),
                told(|run| run.worker_peak as f64, f64::from(1 << 20)),
            ]
        });
        runs.collect()
    }

    /// From tick to notification, way by way.
    fn ways(&self) -> Vec<Vec<String>> {
        let ways = self.by_way().into_iter().map(|found| {
            let told = |of: fn(&Latency) -> f64| {
                Figure::of(found.iter().map(|latency| of(latency)))
                    .map_or_else(String::new, |f| with_spread(f, |value| format!("{value:.2}")))
            };
            let (p50, p99, max) =
                (told(|found| found.p50_ms), told(|found| found.p99_ms), told(|found| found.max_ms));
            vec![found[0].way.to_string(), p50, p99, max]
        });
        ways.collect()
    }

    /// The repetitions of each scenario and contender, in the order in which they came.
    pub(crate) fn by_contender(&self) -> Vec<Vec<&Run>> {
        grouped(&self.runs, |one, other| one.scenario == other.scenario && one.contender == other.contender)
    }

    /// The repetitions of each way.
    pub(crate) fn by_way(&self) -> Vec<Vec<&Latency>> {
        grouped(&self.latencies, |one, other| one.way == other.way)
    }

    /// Writes the JSON file and the chart.
    pub(crate) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(directory)?;
        let json = directory.join("service.json");
        fs::write(&json, serde_json::to_vec_pretty(self)?).with_context(|| json.display().to_string())?;
        let svg = directory.join("service.svg");
        fs::write(&svg, chart::draw(self)).with_context(|| svg.display().to_string())?;
        println!("everything is in {} and {}", json.display(), svg.display());
        Ok(())
    }

    /// Copies it all to docs/: what the README and docs/performance.md show.
    pub(crate) fn keep(&self) -> anyhow::Result<()> {
        ensure!(self.failures.is_empty(), "a measurement failed; nothing is kept");
        let docs = Path::new("docs");
        self.write(&docs.join("performance"))?;
        let page = docs.join("performance.md");
        let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        let (before, rest) = text.split_once(KEPT_FROM).context("docs/performance.md has no place for tables")?;
        let (_, after) =
            rest.split_once(KEPT_TO).context("the place for tables in docs/performance.md has no end")?;
        let tables = self.tables().map(|(header, rows)| markdown(header, &rows));
        let (machine, ticks, repetitions) = (self.machine.summary(), self.ticks, self.repetitions);
        let kept = format!(
            "{machine}\n\n{ticks} ticks, {repetitions} repetitions.\n\n\
             ![The figures as bars](performance/service.svg)\n\n{}",
            tables.join("\n")
        );
        fs::write(&page, format!("{before}{KEPT_FROM}\n{kept}{KEPT_TO}{after}"))?;
        Ok(())
    }
}

const RESULTS: [&str; 4] = ["what", "median (spread)", "goal", ""];
const FIGURES: [&str; 8] = [
    "scenario",
    "contender",
    "1,000 ticks/s",
    "1,000 ticks/CPU s",
    "worker, CPU us/tick",
    "Redis, CPU us/tick",
    "broker, CPU us/tick",
    "worker, peak MiB",
];

const WAYS: [&str; 4] = ["tick to notification at 200 ticks/s", "p50, ms", "p99, ms", "max, ms"];

fn grouped<T>(all: &[T], same: impl Fn(&T, &T) -> bool) -> Vec<Vec<&T>> {
    let mut groups: Vec<Vec<&T>> = Vec::new();
    for one in all {
        match groups.iter_mut().find(|group| same(group[0], one)) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

fn table(header: &[&str], rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(header.to_vec()).add_rows(rows);
    table.style_mut().row_separator = comfy_table::LineStyle::none();
    table
}

fn markdown(header: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(header.to_vec()) + &line(vec!["---"; header.len()]);
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

/// The median, and behind it the least and the most if there were several.
fn with_spread(figure: Figure, text: impl Fn(f64) -> String) -> String {
    let Figure { median, min, max } = figure;
    if text(min) == text(max) {
        return text(median);
    }
    format!("{} ({} to {})", text(median), text(min), text(max))
}

/// Three digits or so.
fn plain(value: f64) -> String {
    let decimals = if value.abs() >= 100.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{value:.decimals$}");
    if decimals == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}
