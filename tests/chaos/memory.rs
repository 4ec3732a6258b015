//! How much memory a worker and Redis take in the course of a long run.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::common;

const EVERY: Duration = Duration::from_secs(5);

/// Lines of the table.
const SPANS: usize = 12;

/// How much more either may take in the last third than in the second: noise, not growth.
const FLAT: f64 = 1.10;

/// Memory at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    at: Duration,
    /// Resident, bytes.
    worker: f64,
    /// What Redis has allocated, bytes.
    redis: f64,
}

/// Takes samples until `stop`.
pub(crate) fn samples(worker: u32, redis: u16, stop: &AtomicBool) -> anyhow::Result<Vec<Sample>> {
    let started = Instant::now();
    let mut samples = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(EVERY);
        let mut connection = common::connect(&format!("redis://127.0.0.1:{redis}"))?;
        let info: redis::InfoDict = redis::cmd("INFO").arg("memory").query(&mut connection)?;
        let used: f64 = info.get("used_memory").context("used_memory")?;
        samples.push(Sample { at: started.elapsed(), worker: resident(worker)?, redis: used });
    }
    Ok(samples)
}

/// Resident memory of a process, bytes.
fn resident(process: u32) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes * 1024.0)
}

/// A table of means, and whether both stayed flat.
pub(crate) fn report(samples: &[Sample]) -> anyhow::Result<String> {
    const MIB: f64 = 1024.0 * 1024.0;
    ensure!(samples.len() >= 2 * SPANS, "a run of {} samples is too short to tell", samples.len());
    let mean =
        |samples: &[Sample], of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / samples.len() as f64;
    let mut table = "memory, means in MiB:\n  until      worker   redis\n".to_owned();
    for span in samples.chunks(samples.len().div_ceil(SPANS)) {
        let until = span.last().map_or(0, |sample| sample.at.as_secs());
        let (worker, redis) = (mean(span, |s| s.worker) / MIB, mean(span, |s| s.redis) / MIB);
        table += &format!("  {until:>5} s  {worker:>7.1}  {redis:>6.1}\n");
    }
    let third = samples.len() / 3;
    let (second, last) = (&samples[third..2 * third], &samples[2 * third..]);
    for (name, of) in [("worker", (|s| s.worker) as fn(&Sample) -> f64), ("redis", |s| s.redis)] {
        let growth = mean(last, of) / mean(second, of);
        ensure!(growth <= FLAT, "the memory of {name} grew by a factor of {growth:.3}\n{table}");
        table += &format!("  {name}: last third / second third = {growth:.3}\n");
    }
    Ok(table)
}
