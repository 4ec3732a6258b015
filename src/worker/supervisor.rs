//! One worker: joins the group, runs a task for each partition it is given, hands them over when they are revoked.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

use super::batching::BatchSettings;
use super::encode::Encoder;
use super::machine::{Phase, Snapshot};
use super::protocol::Settings;
use super::report::{self, Reporter};
use super::shell::{Order, Shared, Shell};
use crate::config::{BadRecords, Config};
use crate::domain::{Offset, SourcePartition};
use crate::http::Health;
use crate::input::Decoder;
use crate::kafka::{self, Done, Ends, Sink, Source, SourceEvent};
use crate::store::connection::connect;
use crate::store::keys::Keys;
use crate::store::pool::Pool;
use crate::store::scripts::{Limits, Scripts};
use crate::store::{check, sources};
use crate::telemetry::events;

/// Windows sealed by one call: some 20 ms of Redis.
const CLOSE_PAGE: u32 = 1_000;

/// How often a bounded run looks whether it is done.
const LOOK: Duration = Duration::from_millis(50);

/// How often the broker is asked for the ends of the partitions owned: for the lag, and to see whether it is back.
const PROBE: Duration = Duration::from_secs(5);

/// What a run has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    /// Ticks applied.
    pub ticks: u64,
    /// Notifications delivered.
    pub notifications: u64,
    /// Candles delivered, revisions included.
    pub candles: u64,
    /// Ticks late for a window.
    pub late: u64,
    /// Records sent to the dead-letter topic.
    pub dead_letters: u64,
}

/// Runs a worker until `shutdown` completes, or, if `until_end`, until everything that was in the source topic at
/// the start is processed, every window closed, and all of it delivered.
pub async fn run(
    config: &Config,
    health: Health,
    until_end: bool,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<Summary> {
    let decoder = Arc::new(Decoder::new(&config.input)?);
    let mut redis = connect(&config.redis).await?;
    for warning in check::check(&mut redis).await? {
        tracing::warn!("{warning}");
    }
    let scripts = scripts_of(config);
    scripts.probe(&mut redis).await?;
    drop(redis);
    let topics = kafka::topics::required(config);
    let topics: Vec<_> = topics.iter().map(|(name, role)| (name.as_str(), *role)).collect();
    kafka::topics::check(&config.kafka, &topics).await?;
    let ends = Ends::new(&config.kafka)?;
    let stop_at = if until_end { Some(ends_now(&ends).await?) } else { None };
    let sink = Sink::new(&config.kafka)?;
    let (source, source_events) =
        Source::start(&config.kafka, config.worker.max_buffered, config.worker.stop_deadline, decoder)?;
    let shared = Arc::new(Shared {
        settings: Arc::new(settings_of(config)),
        redis: config.redis.clone(),
        pool: Pool::new(&config.redis),
        kafka: config.kafka.clone(),
        scripts,
        source: source.handle(),
        ends,
        sink,
        encoder: Encoder::new(config),
        stop_deadline: config.worker.stop_deadline,
        applying: Semaphore::new(config.worker.max_batch as usize),
    });
    let report = Arc::new(report::Shared::new(health.clone(), config.candles.late));
    let mut worker = Worker {
        shared,
        report,
        topic: config.kafka.topic.clone(),
        stop_at,
        joined: false,
        tasks: BTreeMap::new(),
    };
    health.set_started();
    tracing::info!(
        owner = worker.shared.settings.owner,
        group = config.kafka.group,
        topic = config.kafka.topic,
        namespace = config.namespace,
        "worker started"
    );
    let outcome = worker.serve(source_events, shutdown).await;
    health.set_stopping();
    worker.stop_all().await;
    let summary = worker.summary();
    let clients = move || {
        source.close();
        drop(worker);
    };
    close(clients, config.worker.stop_deadline).await;
    outcome?;
    Ok(summary)
}

/// Closing the Kafka clients takes as long as librdkafka waits for a broker; a stop does not.
async fn close(clients: impl FnOnce() + Send + 'static, deadline: Duration) {
    match tokio::time::timeout(deadline, tokio::task::spawn_blocking(clients)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "closing the Kafka clients failed"),
        Err(_) => tracing::warn!(
            ?deadline,
            "the group could not be left in time; its coordinator gives the partitions away once session.timeout.ms has \
             passed"
        ),
    }
}

async fn ends_now(ends: &Ends) -> anyhow::Result<HashMap<i32, Offset>> {
    let mut found = HashMap::new();
    for partition in ends.partitions().await? {
        let range = ends.ends(partition).await.context("the end of this run is not known")?;
        found.insert(partition, range.end);
    }
    Ok(found)
}

/// This worker's name, for people: host, process, and a random part for the one that comes after it.
fn owner_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "worker" } else { host.trim() };
    format!("{host}-{}-{:04x}", std::process::id(), rand::random::<u16>())
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The settings of the protocol in a configuration.
pub fn settings_of(config: &Config) -> Settings {
    let candles = &config.candles;
    let lateness = millis(candles.lateness);
    Settings {
        owner: owner_name(),
        group: config.kafka.group.clone(),
        fingerprint: fingerprint(config),
        guarantee: config.kafka.processing_guarantee,
        recovery: config.recovery.clone(),
        update_interval: config.update_interval().map(|interval| interval.as_millis() as u64),
        batch: BatchSettings {
            intervals: candles.intervals.clone(),
            lateness,
            late: candles.late,
            keep: millis(candles.keep),
            max_future: config.input.max_future.map_or(lateness, millis),
            block_bad_records: config.recovery.bad_records == BadRecords::Block,
        },
        idle_grace: millis(candles.idle_grace),
        max_batch: config.worker.max_batch as usize,
        max_symbols: config.worker.max_symbols as usize,
        max_undelivered: config.worker.max_undelivered as usize,
        heartbeat: config.worker.heartbeat.as_millis() as u64,
        stop_at: None,
    }
}

/// The scripts for a configuration.
pub fn scripts_of(config: &Config) -> Scripts {
    let limits = Limits {
        max_outputs: config.worker.max_outputs,
        max_matches: config.rules.max_matches,
        page: CLOSE_PAGE,
        expiry: millis(config.candles.keep).saturating_mul(2),
        updates: config.update_interval().map(millis),
    };
    Scripts::new(Keys::new(&config.namespace), config.candles.intervals.clone(), limits)
}

/// Of the settings that decide state: a change of one of them is told at claim.
fn fingerprint(config: &Config) -> String {
    let candles = &config.candles;
    let deciding = serde_json::json!([
        candles.intervals.iter().map(ToString::to_string).collect::<Vec<_>>(),
        millis(candles.lateness),
        candles.late,
        millis(candles.keep),
        config.input,
    ]);
    format!("{:08x}", crc32fast::hash(deciding.to_string().as_bytes()))
}

struct Worker {
    shared: Arc<Shared>,
    report: Arc<report::Shared>,
    topic: String,
    /// Of a bounded run: the end of each partition at the start.
    stop_at: Option<HashMap<i32, Offset>>,
    /// The group has given this worker its first share, which may be none.
    joined: bool,
    tasks: BTreeMap<i32, Task>,
}

struct Task {
    orders: mpsc::Sender<Order>,
    snapshots: watch::Receiver<Snapshot>,
    reporter: Reporter,
    handle: JoinHandle<()>,
}

impl Worker {
    async fn serve(
        &mut self,
        mut events: mpsc::UnboundedReceiver<SourceEvent>,
        shutdown: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        tokio::pin!(shutdown);
        let mut look = tokio::time::interval(LOOK);
        let mut probe = tokio::time::interval(PROBE);
        loop {
            tokio::select! {
                () = &mut shutdown => return Ok(()),
                event = events.recv() => match event {
                    Some(SourceEvent::Assigned(partitions)) => self.assigned(&partitions),
                    Some(SourceEvent::Revoked { partitions, lost, done }) => self.revoked(&partitions, lost, done),
                    Some(SourceEvent::Error { code, reason }) => self.kafka_error(code, &reason),
                    Some(SourceEvent::Fatal(reason)) => anyhow::bail!("the Kafka consumer cannot go on: {reason}"),
                    None => anyhow::bail!("the Kafka consumer has ended"),
                },
                _ = look.tick(), if self.stop_at.is_some() => {
                    if self.is_finished().await {
                        return self.none_stopped();
                    }
                }
                _ = probe.tick() => {
                    self.all_alive()?;
                    self.probe_kafka();
                }
            }
        }
    }

    fn assigned(&mut self, partitions: &[i32]) {
        self.joined = true;
        for &number in partitions {
            let partition = SourcePartition { topic: self.topic.clone(), partition: number };
            let mut settings = (*self.shared.settings).clone();
            settings.stop_at = self.stop_at.as_ref().map(|ends| ends.get(&number).copied().unwrap_or(Offset(0)));
            let reporter = Reporter::new(partition.clone(), Arc::clone(&self.report));
            let (shell, snapshots) =
                Shell::new(Arc::clone(&self.shared), partition, reporter.clone(), Arc::new(settings));
            let (orders, receiver) = mpsc::channel(4);
            let handle = tokio::spawn(shell.run(receiver));
            self.tasks.insert(number, Task { orders, snapshots, reporter, handle });
        }
        events::partitions_owned(self.tasks.len());
    }

    /// Rebalance: what is in flight is finished first, unless the partitions are another's already.
    fn revoked(&mut self, partitions: &[i32], lost: bool, done: Done) {
        let order = if lost { Order::Abandon } else { Order::Stop };
        let stopping: Vec<Task> = partitions.iter().filter_map(|number| self.tasks.remove(number)).collect();
        events::partitions_owned(self.tasks.len());
        tokio::spawn(async move {
            stop(stopping, order).await;
            drop(done);
        });
    }

    async fn stop_all(&mut self) {
        let tasks = std::mem::take(&mut self.tasks).into_values().collect();
        stop(tasks, Order::Stop).await;
        events::partitions_owned(0);
    }

    fn kafka_error(&self, code: rdkafka::error::RDKafkaErrorCode, reason: &str) {
        events::kafka_error(code, reason);
        if code == rdkafka::error::RDKafkaErrorCode::AllBrokersDown {
            self.report.health.set_kafka(Err(format!(
                "no broker can be reached ({reason}); check [kafka] brokers and the network"
            )));
        }
    }

    /// A task that ended without having given its partition up has panicked. The partition would stand still while the
    /// group believes it served: leave, so that another worker takes all of them.
    fn all_alive(&self) -> anyhow::Result<()> {
        for (number, task) in &self.tasks {
            let released = task.snapshots.borrow().phase == Phase::Released;
            anyhow::ensure!(
                !task.handle.is_finished() || released,
                "the task of partition {number} ended unexpectedly (its panic is above); this worker leaves the group"
            );
        }
        Ok(())
    }

    /// Publishes the lag. Readiness comes back when a broker answers, not only when the next record arrives.
    fn probe_kafka(&self) {
        for (&number, task) in &self.tasks {
            let Some(position) = task.snapshots.borrow().position else { continue };
            let (ends, reporter) = (self.shared.ends.clone(), task.reporter.clone());
            tokio::spawn(async move {
                if let Ok(range) = ends.ends(number).await {
                    reporter.kafka_answers();
                    reporter.lag(range.end.0 - position.offset.0);
                }
            });
        }
        if self.tasks.is_empty() && self.report.health.kafka_is_away() {
            let (ends, health) = (self.shared.ends.clone(), self.report.health.clone());
            tokio::spawn(async move {
                if ends.partitions().await.is_ok() {
                    health.set_kafka(Ok::<(), String>(()));
                }
            });
        }
    }

    /// Of a bounded run: every partition is finished here, or by another worker. Before the group has given out its
    /// partitions nobody is known to be another: each has to be claimed, to see whether something is wrong with it.
    async fn is_finished(&self) -> bool {
        if !self.joined {
            return false;
        }
        let Some(ends) = &self.stop_at else { return false };
        let own = |number| self.tasks.get(number).map(|task| task.snapshots.borrow().clone());
        let mut others = Vec::new();
        for number in ends.keys() {
            match own(number) {
                Some(snapshot) if snapshot.finished || matches!(snapshot.phase, Phase::Stopped(_)) => {}
                Some(_) => return false,
                None => others.push(*number),
            }
        }
        for number in others {
            if !self.is_finished_elsewhere(number, ends[&number]).await {
                return false;
            }
        }
        true
    }

    /// Committed up to its end, with nothing open and all of it delivered. The commit alone does not say that: a
    /// partition that was read to its end before may have open windows, and be assigned to this worker in a moment.
    async fn is_finished_elsewhere(&self, number: i32, end: Offset) -> bool {
        match self.shared.source.committed(number).await {
            Ok(Some(committed)) if committed.offset >= end => {}
            _ => return false,
        }
        let Ok(mut redis) = self.shared.pool.get().await else { return false };
        let partition = SourcePartition { topic: self.topic.clone(), partition: number };
        sources::is_settled(&mut redis, self.shared.scripts.keys(), &partition).await.unwrap_or(false)
    }

    /// A bounded run that left a partition stopped has failed.
    fn none_stopped(&self) -> anyhow::Result<()> {
        for (number, task) in &self.tasks {
            if let Phase::Stopped(reason) = &task.snapshots.borrow().phase {
                anyhow::bail!("partition {number} stopped: {reason}");
            }
        }
        Ok(())
    }

    fn summary(&self) -> Summary {
        let totals = &self.report.totals;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Summary {
            ticks: read(&totals.ticks),
            notifications: read(&totals.notifications),
            candles: read(&totals.candles),
            late: read(&totals.late),
            dead_letters: read(&totals.dead_letters),
        }
    }
}

async fn stop(tasks: Vec<Task>, order: Order) {
    for task in &tasks {
        // A task that has ended needs no order.
        let _ = task.orders.send(order).await;
    }
    for task in tasks {
        if let Err(error) = task.handle.await {
            tracing::error!(%error, "a partition's task ended badly");
        }
    }
}
