//! One contender works through one input: how fast, at what cost, and whether everything came out.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use serde::Serialize;
use tickwatch::sandbox::Redis;

use crate::accounting::{Progress, Sample, Span, cpu, memory};
use crate::bystander;
use crate::clients::Reader;
use crate::common::connect;
use crate::common::kafka::Isolation;
use crate::contenders::{Contender, Job, Running};
use crate::expected::{Found, count};
use crate::input::Input;
use crate::lab::{Lab, Names, patience, put_rules, start_redis};
use crate::market::Spec;

/// Between two samples.
const PACE: Duration = Duration::from_millis(50);
/// How long outputs may take to be readable once everything is committed.
const OUTPUTS: Duration = Duration::from_secs(15);

/// The kernel counts CPU time in hundredths of a second; less than one is taken for one.
const LEAST_CPU: f64 = 0.01;

/// What one run came to.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Run {
    pub(crate) scenario: &'static str,
    pub(crate) contender: Contender,
    pub(crate) repetition: u32,
    /// Of the whole input.
    pub(crate) records: u64,
    /// Of the span that is judged.
    pub(crate) span_ticks: u64,
    pub(crate) span_seconds: f64,
    /// CPU seconds within the span.
    pub(crate) worker_cpu: f64,
    pub(crate) redis_cpu: f64,
    pub(crate) broker_cpu: f64,
    pub(crate) ticks_per_second: f64,
    /// Of worker and Redis.
    pub(crate) ticks_per_cpu_second: f64,
    /// From its start to the last commit.
    pub(crate) total_seconds: f64,
    /// Most memory that the worker held, bytes.
    pub(crate) worker_peak: u64,
    /// The same of Redis, at the end.
    pub(crate) redis_peak: u64,
    /// Most memory that the worker held in the second half of the span, over most in the first.
    pub(crate) worker_growth: f64,
    pub(crate) notifications: usize,
    pub(crate) candles: usize,
    pub(crate) repeated: u64,
    /// Times of a bystander's calls to Redis, if there was one, in us.
    pub(crate) bystander: Option<bystander::Times>,
    /// Lines of `INFO commandstats` and `INFO latencystats`.
    pub(crate) redis_stats: BTreeMap<String, String>,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { scenario, contender, repetition, notifications, candles, .. } = self;
        write!(
            f,
            "{repetition} {scenario}, {contender}: {:.0} ticks/s, {:.0} ticks/CPU s (worker {:.2} + Redis {:.2}, broker \
             {:.2}, in {:.2} s)",
            self.ticks_per_second,
            self.ticks_per_cpu_second,
            self.worker_cpu,
            self.redis_cpu,
            self.broker_cpu,
            self.span_seconds,
        )?;
        if contender.has_outputs() {
            write!(f, "; {notifications} notifications and {candles} candles as they have to be")?;
        }
        Ok(())
    }
}

/// Who runs on what.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) scenario: &'static str,
    pub(crate) contender: Contender,
    pub(crate) input: &'a Input,
    /// Whether somebody else asks the same Redis meanwhile.
    pub(crate) bystander: bool,
}

/// Runs an entry on servers of its own but for the broker. Fails if any output is not as it has to be.
pub(crate) fn run(lab: &Lab, entry: Entry<'_>, peers: Option<&Path>, repetition: u32) -> anyhow::Result<Run> {
    let Entry { scenario, contender, input, .. } = entry;
    let names = lab.output_topics("run")?;
    let rules = input.spec.rules();
    let redis = contender.uses_redis().then(start_redis).transpose()?;
    if let Some(redis) = &redis {
        put_rules(&mut connect(&redis.url())?, input.spec.symbols, &rules)?;
    }
    let Spec { symbols, intervals, .. } = input.spec;
    let job = Job { topic: &input.topic, names: &names, symbols, rules: &rules, intervals };
    let mut running = contender.start(lab, &job, redis.as_ref(), peers)?;
    let outcome = follow(lab, entry, &names, redis.as_ref(), &mut running, repetition)
        .map_err(|error| anyhow!("{scenario}, {contender}: {error:#}\nits log ends with:\n{}", running.log_tail()));
    running.stop()?;
    lab.delete_topics(&names.group)?;
    outcome
}

fn follow(
    lab: &Lab,
    entry: Entry<'_>,
    names: &Names,
    redis: Option<&Redis>,
    running: &mut Running,
    repetition: u32,
) -> anyhow::Result<Run> {
    let Entry { scenario, contender, input, .. } = entry;
    let started = Instant::now();
    let done = AtomicBool::new(false);
    let (samples, bystander) = thread::scope(|scope| {
        let asked = redis.filter(|_| entry.bystander).map(|redis| {
            let url = redis.url();
            scope.spawn(|| bystander::ask_until(url, &done))
        });
        let samples = sample_to_the_end(lab, input, names, redis, running);
        done.store(true, Ordering::Relaxed);
        let times = asked.map(|asked| asked.join().expect("a bystander does not panic")).transpose();
        (samples, times)
    });
    let (samples, bystander) = (samples?, bystander?);
    let total_seconds = started.elapsed().as_secs_f64();
    let worker_peak = memory(running.pid(), "VmHWM")?;

    let found = read_back(lab, contender, input, names)?;
    if contender.has_outputs() {
        found.compare(&input.expected, contender.has_watermark())?;
    }
    if contender.isolation() == Isolation::ReadCommitted {
        ensure!(found.repeated == 0, "{} outputs came twice, exactly once was promised", found.repeated);
    }

    let span = Span::of(&samples, input.records).context("the run reached its end")?;
    let (worker, of_redis) = (span.used(|sample| sample.worker), span.used(|sample| sample.redis));
    let ticks = span.ticks() as f64;
    Ok(Run {
        scenario,
        contender,
        repetition,
        records: input.records,
        span_ticks: span.ticks(),
        span_seconds: span.seconds(),
        worker_cpu: worker,
        redis_cpu: of_redis,
        broker_cpu: span.used(|sample| sample.broker),
        ticks_per_second: ticks / span.seconds(),
        ticks_per_cpu_second: ticks / (worker + of_redis).max(LEAST_CPU),
        total_seconds,
        worker_peak,
        redis_peak: redis.map_or(Ok(0), |redis| memory(redis.pid(), "VmHWM"))?,
        worker_growth: growth(&samples, &span),
        notifications: found.alerts(),
        candles: found.candles(),
        repeated: found.repeated,
        bystander,
        redis_stats: redis.map_or(Ok(BTreeMap::new()), redis_stats)?,
    })
}

/// Watches until everything is committed.
fn sample_to_the_end(
    lab: &Lab,
    input: &Input,
    names: &Names,
    redis: Option<&Redis>,
    running: &mut Running,
) -> anyhow::Result<Vec<Sample>> {
    let progress = Progress::new(lab.brokers(), &names.group, &input.topic, input.spec.partitions)?;
    let deadline = Instant::now() + patience(input.records);
    let mut samples = Vec::new();
    loop {
        running.check()?;
        let done = progress.committed();
        if let Some(done) = done {
            samples.push(Sample {
                at: Instant::now(),
                done,
                worker: cpu(running.pid())?,
                redis: redis.map_or(Ok(Duration::ZERO), |redis| cpu(redis.pid()))?,
                broker: cpu(lab.broker_pid())?,
                resident: memory(running.pid(), "VmRSS")?,
            });
        }
        if done.is_some_and(|done| done >= input.records) {
            return Ok(samples);
        }
        if Instant::now() > deadline {
            let done = samples.last().map_or(0, |sample| sample.done);
            bail!("{done} of {} records were committed in time", input.records);
        }
        thread::sleep(PACE);
    }
}

/// Most memory in the second half of the span over most in the first.
fn growth(samples: &[Sample], span: &Span) -> f64 {
    let middle = span.from.at + (span.to.at - span.from.at) / 2;
    let most = |from: Instant, to: Instant| {
        let within = samples.iter().filter(|sample| sample.at >= from && sample.at <= to);
        within.map(|sample| sample.resident).max().unwrap_or(0) as f64
    };
    most(middle, span.to.at) / most(span.from.at, middle)
}

/// Reads both output topics until everything expected is there, and on to their ends.
fn read_back(lab: &Lab, contender: Contender, input: &Input, names: &Names) -> anyhow::Result<Found> {
    let mut found = Found::default();
    if !contender.has_outputs() {
        return Ok(found);
    }
    let deadline = Instant::now() + OUTPUTS;
    let over = || Instant::now() > deadline; // what is missing then is found by comparing
    let (alerts, candles) = count(&input.expected, contender.has_watermark());
    let reader = |topic| Reader::from_beginning(lab.brokers(), topic, contender.isolation());
    reader(&names.notifications)?.read(|value, all_read| {
        value.map_or(Ok(()), |value| found.take_alert(value))?;
        Ok((all_read && found.alerts() >= alerts) || over())
    })?;
    reader(&names.candles)?.read(|value, all_read| {
        value.map_or(Ok(()), |value| found.take_candle(value))?;
        Ok((all_read && found.candles() >= candles) || over())
    })?;
    Ok(found)
}

fn redis_stats(redis: &Redis) -> anyhow::Result<BTreeMap<String, String>> {
    let mut connection = connect(&redis.url())?;
    let mut stats = BTreeMap::new();
    for section in ["commandstats", "latencystats"] {
        let text: String = redis::cmd("INFO").arg(section).query(&mut connection)?;
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        stats.extend(lines.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    Ok(stats)
}
