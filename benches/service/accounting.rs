//! What a process has used, by the kernel's accounting, and how far a group has come.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rdkafka::ClientConfig;
use rdkafka::consumer::BaseConsumer;
use rustix::param::clock_ticks_per_second;

use crate::common::kafka::committed;

/// How long the broker may take to say what is committed. Without an answer there is no sample.
const ANSWER: Duration = Duration::from_secs(5);

/// CPU time of a process and of its children that have ended, such as a Redis' that writes a file anew; user and
/// system, all threads.
pub(crate) fn cpu(pid: u32) -> anyhow::Result<Duration> {
    const UTIME: usize = 11; // of the fields behind the program's name, see proc(5)
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} is gone"))?;
    let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat has a name in parentheses")?;
    let ticks: u64 = fields
        .split_ascii_whitespace()
        .skip(UTIME)
        .take(4)
        .map(|field| field.parse::<u64>().with_context(|| format!("/proc/{pid}/stat: {field}")))
        .sum::<anyhow::Result<u64>>()?;
    Ok(Duration::from_micros(ticks * 1_000_000 / clock_ticks_per_second()))
}

/// A line of `/proc/PID/status` such as `VmHWM`, in bytes.
pub(crate) fn memory(pid: u32, line: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    let kib = value
        .and_then(|value| value.trim().strip_suffix(" kB"))
        .with_context(|| format!("process {pid} has ended"))?;
    Ok(kib.trim().parse::<u64>()? * 1024)
}

/// Asks how far a group is, without being of it.
pub(crate) struct Progress<'a> {
    asking: BaseConsumer,
    topic: &'a str,
    partitions: i32,
}

impl<'a> Progress<'a> {
    /// Not `read_committed`: the broker would answer "not yet" while a transaction ends, and the client ask again.
    pub(crate) fn new(brokers: &str, group: &str, topic: &'a str, partitions: i32) -> anyhow::Result<Self> {
        let asking = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("group.id", group)
            .set("isolation.level", "read_uncommitted")
            .create()?;
        Ok(Progress { asking, topic, partitions })
    }

    /// Records that are committed in all partitions; `None` if the broker did not say.
    pub(crate) fn committed(&self) -> Option<u64> {
        let found: BTreeMap<i32, i64> = committed(&self.asking, self.topic, 0..self.partitions, ANSWER).ok()?;
        Some(found.values().map(|offset| u64::try_from(*offset).unwrap_or(0)).sum())
    }
}

/// What had been done and used at a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    /// Records committed.
    pub(crate) done: u64,
    pub(crate) worker: Duration,
    pub(crate) redis: Duration,
    pub(crate) broker: Duration,
    /// Resident memory of the worker, bytes.
    pub(crate) resident: u64,
}

/// The part of a run that is judged: from the first sample with [`Span::FROM`] of the records committed to the first
/// with [`Span::TO`]. Before it the contender starts, joins its group and (a JVM) compiles what is hot; behind it
/// partitions run empty. All commit often, so both ends are just behind a commit, and what is under way cancels out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) from: Sample,
    pub(crate) to: Sample,
}

impl Span {
    pub(crate) const FROM: f64 = 0.20;
    pub(crate) const TO: f64 = 0.95;

    /// `None` before the samples reach its end. A run so short that all of it lies between two samples is judged
    /// from the first.
    pub(crate) fn of(samples: &[Sample], records: u64) -> Option<Span> {
        let reached = |share: f64| samples.iter().position(|sample| sample.done as f64 >= share * records as f64);
        let (mut from, to) = (reached(Span::FROM)?, reached(Span::TO)?);
        while from > 0 && samples[from].done == samples[to].done {
            from -= 1;
        }
        Some(Span { from: samples[from], to: samples[to] })
    }

    pub(crate) fn ticks(&self) -> u64 {
        self.to.done - self.from.done
    }

    pub(crate) fn seconds(&self) -> f64 {
        (self.to.at - self.from.at).as_secs_f64()
    }

    pub(crate) fn used(&self, of: fn(&Sample) -> Duration) -> f64 {
        of(&self.to).as_secs_f64() - of(&self.from).as_secs_f64()
    }
}
