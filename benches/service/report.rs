//! What is told at the end: the table for people, the file for programs.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use comfy_table::Table;
use serde::Serialize;

use crate::statistics::Figure;
use crate::throughput::Run;

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) runs: Vec<Run>,
    /// Runs that failed, or whose outputs were not as they have to be.
    pub(crate) failures: Vec<String>,
}

impl Report {
    /// Tells how a run went, and keeps it.
    pub(crate) fn add(&mut self, outcome: anyhow::Result<Run>) {
        match outcome {
            Ok(run) => {
                eprintln!(
                    "{} {}, {}: {:.0} ticks/s, {:.0} ticks/CPU s (worker {:.2} + Redis {:.2} + broker {:.2} in {:.2} s), \
                     {} notifications and {} candles as they have to be",
                    run.repetition,
                    run.scenario,
                    run.contender,
                    run.ticks_per_second,
                    run.ticks_per_cpu_second,
                    run.worker_cpu,
                    run.redis_cpu,
                    run.broker_cpu,
                    run.span_seconds,
                    run.notifications,
                    run.candles,
                );
                self.runs.push(run);
            }
            Err(error) => {
                let failure = format!("{error:#}");
                eprintln!("FAILED: {failure}");
                self.failures.push(failure);
            }
        }
    }

    pub(crate) fn print(&self) {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(["scenario", "contender", "ticks/s", "ticks/CPU s", "broker CPU", "peak MiB"]);
        for runs in self.by_contender() {
            let figure = |of: fn(&Run) -> f64| Figure::of(runs.iter().map(|run| of(run)));
            table.add_row([
                runs[0].scenario.to_owned(),
                runs[0].contender.to_string(),
                thousands(figure(|run| run.ticks_per_second)),
                thousands(figure(|run| run.ticks_per_cpu_second)),
                format!("{:.2}", runs[0].broker_cpu),
                format!("{}", runs[0].worker_peak >> 20),
            ]);
        }
        println!("{table}");
        for failure in &self.failures {
            println!("FAILED: {failure}");
        }
    }

    /// The repetitions of each scenario and contender, in the order in which they came.
    fn by_contender(&self) -> Vec<Vec<&Run>> {
        let mut all: Vec<Vec<&Run>> = Vec::new();
        for run in &self.runs {
            let same = |runs: &&mut Vec<&Run>| {
                runs[0].scenario == run.scenario && runs[0].contender == run.contender
            };
            match all.iter_mut().find(same) {
                Some(runs) => runs.push(run),
                None => all.push(vec![run]),
            }
        }
        all
    }

    pub(crate) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(directory)?;
        let path = directory.join("service.json");
        fs::write(&path, serde_json::to_vec_pretty(self)?).with_context(|| path.display().to_string())?;
        println!("everything is in {}", path.display());
        Ok(())
    }
}

fn thousands(figure: Option<Figure>) -> String {
    figure.map_or_else(String::new, |Figure { median, min, max }| {
        format!("{:.0}k ({:.0}k to {:.0}k)", median / 1e3, min / 1e3, max / 1e3)
    })
}
