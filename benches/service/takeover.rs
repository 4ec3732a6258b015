//! How long a partition stands still when its owner is killed: from SIGKILL to the next owner's first output.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use serde::Serialize;
use tickwatch::config::Scalar;

use crate::clients::Reader;
use crate::common::connect;
use crate::common::kafka::Isolation;
use crate::common::worker::{Worker, process_of};
use crate::lab::Lab;
use crate::state::Group;

/// How long an output may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// What one death came to.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Takeover {
    pub(crate) symbols: u32,
    pub(crate) next: Next,
    pub(crate) repetition: u32,
    pub(crate) seconds: f64,
}

impl fmt::Display for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let next = match self.next {
            Next::StandBy => "another worker",
            Next::Restarted => "the same, restarted",
        };
        let Takeover { symbols, repetition, seconds, .. } = self;
        write!(f, "{repetition} takeover by {next}, {symbols} symbols: {seconds:.2} s")
    }
}

/// Who goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Next {
    /// Another worker, that was there already.
    StandBy,
    /// The same one, started again at once; a static member of its group.
    Restarted,
}

/// Kills an owner once a repetition.
pub(crate) fn run(lab: &Lab, symbols: u32, next: Next, repetitions: u32) -> anyhow::Result<Vec<Takeover>> {
    let mut group = Group::new(lab)?;
    if next == Next::Restarted {
        group.config.kafka.consumer.insert("group.instance.id".into(), Scalar("the-one".into()));
    }
    let mut workers = vec![group.worker()?];
    if next == Next::StandBy {
        workers.push(group.worker()?);
    }
    group.fill(symbols, 1)?;
    let mut all = Vec::new();
    for repetition in 1..=repetitions {
        let took = kill_owner(lab, &mut group, &mut workers).map_err(|error| {
            let logs: Vec<String> = workers.iter().map(Worker::logs).collect();
            anyhow!("takeover, {symbols} symbols: {error:#}; the workers' logs:\n{}", logs.join("\n"))
        })?;
        all.push(Takeover { symbols, next, repetition, seconds: took.as_secs_f64() });
    }
    for worker in &mut workers {
        worker.stop()?;
    }
    group.close()?;
    Ok(all)
}

fn kill_owner(lab: &Lab, group: &mut Group<'_>, workers: &mut [Worker]) -> anyhow::Result<Duration> {
    let outputs =
        Reader::from_now_on(lab.brokers(), &group.config.output.notifications, Isolation::ReadUncommitted)?;
    group.send_alert()?;
    wait_for_one(&outputs).context("of the owner before")?;
    let owner = owner_of(group)?;
    let at = workers.iter().position(|worker| worker.pid() == owner).context("one of the workers owns it")?;
    let since = Instant::now();
    workers[at].kill()?;
    if workers.len() == 1 {
        workers[at] = Worker::start(&group.config)?;
    }
    group.send_alert()?; // nobody but the next owner can have it
    let took = wait_for_one(&outputs)?.duration_since(since);
    if workers.len() > 1 {
        workers[at] = group.worker()?;
    }
    Ok(took)
}

fn wait_for_one(outputs: &Reader) -> anyhow::Result<Instant> {
    let deadline = Instant::now() + PATIENCE;
    let mut arrived = None;
    outputs.read(|value, _| {
        if value.is_some() {
            arrived = Some(Instant::now());
        }
        Ok(arrived.is_some() || Instant::now() > deadline)
    })?;
    arrived.with_context(|| format!("no output came within {PATIENCE:?}"))
}

/// The process that owns the partition.
fn owner_of(group: &Group<'_>) -> anyhow::Result<u32> {
    let mut redis = connect(&group.redis.url())?;
    let key = format!("{}source:{}/0", group.config.namespace, group.config.kafka.topic);
    let owner: String = redis::cmd("HGET").arg(key).arg("owner").query(&mut redis)?;
    process_of(&owner).with_context(|| format!("{owner} names no process"))
}
