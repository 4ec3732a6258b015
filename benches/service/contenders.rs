//! Who is measured. Each is a process of its own, told the same topics, and killed by this one if it does not end.

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde::{Serialize, Serializer};
use tickwatch::config::{Config, Guarantee};
use tickwatch::sandbox::{Process, Redis};

use crate::common::kafka::Isolation;
use crate::common::worker::Worker;
use crate::lab::{Lab, Names};
use crate::market::{Rule, decimal, symbol_name};

/// Of every contender that makes candles.
pub(crate) const LATENESS: Duration = Duration::from_secs(1);
/// Between two commits of who commits by the clock, ms. It is Kafka Streams' default where it is exact; where it is
/// not, the default of 30 s is for changelogs that take half a minute to catch up with, and a second is kind enough.
pub(crate) const COMMIT_INTERVAL_MS: u32 = 100;
const STREAMS_AT_LEAST_ONCE_COMMIT_INTERVAL_MS: u32 = 1_000;
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// Threads of Kafka Streams: one for each core of the machine the goals are for.
const STREAMS_THREADS: u32 = 2;

/// Who runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Contender {
    Tickwatch(Once),
    /// Consumes, and with `parse` decodes the JSON: the limit of any program in this one's place.
    Raw {
        parse: bool,
    },
    /// One awaited script call a tick.
    Naive,
    Streams(Form, Once),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Once {
    AtLeast,
    Exactly,
}

/// How a Kafka Streams program is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    /// By hand on the Processor API, stores in memory.
    Processor,
    /// In the DSL, stores in RocksDB.
    Dsl,
}

/// What a contender is told.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) topic: &'a str,
    /// Its group and where its outputs go.
    pub(crate) names: &'a Names,
    pub(crate) symbols: u32,
    /// On every symbol.
    pub(crate) rules: &'a [Rule],
    pub(crate) intervals: &'a [&'a str],
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Contender::Tickwatch(Once::AtLeast) => "tickwatch at_least_once",
            Contender::Tickwatch(Once::Exactly) => "tickwatch exactly_once",
            Contender::Raw { parse: true } => "raw: consume and parse",
            Contender::Raw { parse: false } => "raw: consume",
            Contender::Naive => "naive: a call a tick",
            Contender::Streams(Form::Processor, Once::AtLeast) => "streams processor at_least_once",
            Contender::Streams(Form::Processor, Once::Exactly) => "streams processor exactly_once_v2",
            Contender::Streams(Form::Dsl, Once::AtLeast) => "streams dsl at_least_once",
            Contender::Streams(Form::Dsl, Once::Exactly) => "streams dsl exactly_once_v2",
        })
    }
}

impl Serialize for Contender {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Contender {
    pub(crate) fn uses_redis(self) -> bool {
        matches!(self, Contender::Tickwatch(_) | Contender::Naive)
    }

    pub(crate) fn has_outputs(self) -> bool {
        !matches!(self, Contender::Raw { .. })
    }

    /// Whether the end of a partition closes every symbol's candle, or only a symbol's own next tick.
    pub(crate) fn has_watermark(self) -> bool {
        self != Contender::Naive
    }

    /// What a reader of the outputs may see.
    pub(crate) fn isolation(self) -> Isolation {
        match self {
            Contender::Tickwatch(Once::Exactly) | Contender::Streams(_, Once::Exactly) => Isolation::ReadCommitted,
            _ => Isolation::ReadUncommitted,
        }
    }

    /// Starts it.
    pub(crate) fn start(
        self,
        lab: &Lab,
        job: &Job<'_>,
        redis: Option<&Redis>,
        peers: Option<&Path>,
    ) -> anyhow::Result<Running> {
        let Job { topic, names, .. } = *job;
        match self {
            Contender::Tickwatch(once) => {
                let config = worker_config(lab, job, redis.context("a worker needs Redis")?, once)?;
                Ok(Running::Worker(Worker::start(&config)?))
            }
            Contender::Raw { parse } => {
                let mut command = myself("raw")?;
                command.args(["--brokers", lab.brokers(), "--group", &names.group, "--topic", topic]);
                if parse {
                    command.arg("--parse");
                }
                Running::child(lab, &command, names)
            }
            Contender::Naive => {
                let redis = redis.context("the naive service needs Redis")?.url();
                let mut command = myself("naive")?;
                command.args(["--brokers", lab.brokers(), "--group", &names.group, "--topic", topic]);
                command.args(["--notifications", &names.notifications, "--candles", &names.candles]);
                command.args(["--redis", &redis]);
                Running::child(lab, &command, names)
            }
            Contender::Streams(form, once) => {
                let peers = peers.context("Kafka Streams needs --peers")?;
                let command = streams(lab, job, peers, form, once)?;
                Running::child(lab, &command, names)
            }
        }
    }
}

/// The product with its defaults, on this lab.
pub(crate) fn worker_config(lab: &Lab, job: &Job<'_>, redis: &Redis, once: Once) -> anyhow::Result<Config> {
    let Job { topic, names, .. } = *job;
    let mut config = Config::default();
    config.redis.url = redis.url();
    lab.brokers().clone_into(&mut config.kafka.brokers);
    config.kafka.group.clone_from(&names.group);
    topic.clone_into(&mut config.kafka.topic);
    config.kafka.processing_guarantee = match once {
        Once::AtLeast => Guarantee::AtLeastOnce,
        Once::Exactly => Guarantee::ExactlyOnce,
    };
    config.candles.intervals = job.intervals.iter().map(|interval| interval.parse()).collect::<Result<_, _>>()?;
    config.candles.lateness = LATENESS;
    config.output.notifications.clone_from(&names.notifications);
    config.output.candles.clone_from(&names.candles);
    config.output.dead_letters = Some(names.dead_letters.clone());
    Ok(config)
}

/// This program, as another contender.
fn myself(role: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(role);
    Ok(command)
}

fn streams(lab: &Lab, job: &Job<'_>, peers: &Path, form: Form, once: Once) -> anyhow::Result<Command> {
    let Job { topic, names, .. } = *job;
    let target = peers.join("target");
    ensure!(
        target.join("peers.jar").exists(),
        "{} is not built; run mvn -q -f {} package",
        peers.display(),
        peers.display()
    );
    let classpath = format!("{0}/peers.jar:{0}/lib/*", target.display());
    let state = lab.directory().join(&names.group);
    fs::create_dir_all(&state)?;
    let intervals: Vec<String> = job
        .intervals
        .iter()
        .map(|interval| {
            let (start, end) = crate::common::oracle::window(interval, 0);
            (end - start).to_string()
        })
        .collect();
    let mut command = Command::new("java");
    command.args(["-Xmx1g", "-XX:+UseParallelGC", "-cp", &classpath, "tickwatch.peers.Main"]);
    command.args(["--variant", if form == Form::Processor { "processor" } else { "dsl" }]);
    command.args(["--guarantee", if once == Once::AtLeast { "at_least_once" } else { "exactly_once_v2" }]);
    command.args(["--bootstrap", lab.brokers(), "--application-id", &names.group, "--source", topic]);
    command.args(["--notifications", &names.notifications, "--candles", &names.candles]);
    command.arg("--rules").arg(rules_file(lab, job)?);
    command.args(["--intervals-ms", &intervals.join(",")]);
    command.args(["--lateness-ms", &LATENESS.as_millis().to_string()]);
    let commit_interval = match once {
        Once::AtLeast => STREAMS_AT_LEAST_ONCE_COMMIT_INTERVAL_MS,
        Once::Exactly => COMMIT_INTERVAL_MS,
    };
    command.args(["--commit-interval-ms", &commit_interval.to_string()]);
    command.args(["--threads", &STREAMS_THREADS.to_string()]);
    command.arg("--state-dir").arg(state);
    Ok(command)
}

/// The rules of every symbol, one a line.
fn rules_file(lab: &Lab, job: &Job<'_>) -> anyhow::Result<PathBuf> {
    let path = lab.directory().join(lab.unique("rules"));
    let mut file = std::io::BufWriter::new(fs::File::create(&path)?);
    for symbol in (0..job.symbols).map(symbol_name) {
        for rule in job.rules {
            let (id, op, kind, threshold) = (&rule.id, rule.op, rule.trigger.as_str(), decimal(rule.threshold));
            writeln!(
                file,
                r#"{{"symbol":"{symbol}","id":"{id}","op":"{op}","kind":"{kind}","threshold":"{threshold}"}}"#
            )?;
        }
    }
    file.flush()?;
    Ok(path)
}

/// A contender at work.
pub(crate) enum Running {
    Worker(Worker),
    Child { process: Process, log: PathBuf },
}

impl Running {
    fn child(lab: &Lab, command: &Command, names: &Names) -> anyhow::Result<Running> {
        let log = lab.directory().join(format!("{}.log", names.group));
        Ok(Running::Child { process: Process::start(command, &log)?, log })
    }

    pub(crate) fn pid(&self) -> u32 {
        match self {
            Running::Worker(worker) => worker.pid(),
            Running::Child { process, .. } => process.pid(),
        }
    }

    /// Fails if it has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let ended = match self {
            Running::Worker(worker) => worker.exit_status()?,
            Running::Child { process, .. } => process.exit_status()?,
        };
        ended.map_or(Ok(()), |status| bail!("it ended ({status})"))
    }

    /// The last lines of what it wrote.
    pub(crate) fn log_tail(&self) -> String {
        const LINES: usize = 15;
        let text = match self {
            Running::Worker(worker) => worker.logs(),
            Running::Child { log, .. } => fs::read_to_string(log).unwrap_or_default(),
        };
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    /// Asks it to end and waits.
    pub(crate) fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        match self {
            Running::Worker(worker) => worker.stop(),
            Running::Child { process, .. } => Ok(process.stop(STOP_PATIENCE)?),
        }
    }
}
