//! One run: servers, workers, traffic and faults, and the wait for everything to be delivered.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::consumer::Consumer as _;
use redis::Commands as _;
use tickwatch::config::{Config, RedisConfig};
use tickwatch::sandbox::Broker;

use crate::common::{kafka, rules as common_rules};
use crate::fence::Watch;
use crate::fleet::Fleet;
use crate::kafka::Kafka;
use crate::kafka_lane::KafkaLane;
use crate::memory;
use crate::plan::{Fault, Lane, Plan, Time, rng};
use crate::redis_lane::{RedisLane, Servers};
use crate::rules::{self, BROKER_PATIENCE};
use crate::timeline::Timeline;
use crate::traffic;
use crate::verdict::{self, Difference, Tally};

/// How long nothing more may be delivered, once the faults are over, while something is left.
const STUCK: Duration = Duration::from_secs(90);

/// How long everything may take to be delivered: a busy machine is slow.
const SETTLED: Duration = Duration::from_mins(10);

/// How often a snapshot of Redis is taken.
const SNAPSHOT_EVERY: Duration = Duration::from_millis(700);

/// Numbers runs within this process: names of topics and groups are used once.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// Why a run did not hold.
pub(crate) struct Failure {
    pub(crate) error: anyhow::Error,
    /// When the broker had the first record about which something is wrong, ms.
    pub(crate) at: Option<i64>,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure { error, at: None }
    }
}

/// Runs a seed.
pub(crate) fn run(plan: &Plan, kafka: &mut Kafka, evidence: &Path, timeline: &Timeline) -> Result<Tally, Failure> {
    let (broker, relays) = kafka.split();
    let (servers, redis_config) = Servers::start(plan.sentinel)?;
    let config = config_of(plan, broker, redis_config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("a runtime")?;
    runtime.block_on(create_topics(plan, &config))?;
    keep_settings(&config, evidence).with_context(|| evidence.display().to_string())?;

    let lasting = rules::lasting(plan, &mut rng(plan.seed, 6));
    let partitions = AtomicI32::new(plan.partitions);
    let mut redis_lane = RedisLane::new(plan, &config, timeline, servers, &partitions)?;
    let mut connection = redis_lane.connect()?;
    for rule in &lasting {
        common_rules::put(&mut connection, &config, rule).context("put the lasting rules")?;
    }
    let watch = redis_lane.steady_port().map(Watch::start);
    let mut fleet = Fleet::start(plan, &config, timeline, relays, evidence)?;
    // What is lost before a partition's first claim is known everywhere is a loss that a worker stops at.
    redis_lane.wait_claimed()?;
    let outcome =
        under_faults(plan, &config, timeline, broker, &partitions, &mut redis_lane, &mut fleet).and_then(|()| {
            if let Time::Log(_) = plan.time {
                let closing = (0..partitions.load(Ordering::Relaxed)).map(traffic::closing_tick);
                runtime.block_on(kafka::produce(&config.kafka.brokers, &config.kafka.topic, closing))?;
            }
            redis_lane.notice_failover()?;
            timeline.say("faults and traffic are over");
            settle(&config, &redis_lane, &mut fleet, partitions.load(Ordering::Relaxed)).context("settle")
        });
    fleet.keep_logs()?;
    outcome?;
    timeline.say("everything is delivered");
    fleet.stop()?;
    let seen = watch.map(Watch::stop);
    if let Some(violation) = seen.iter().flat_map(|seen| &seen.violations).next() {
        timeline.complain(violation);
    }
    if let Some(complaint) = timeline.complaints().into_iter().next() {
        return Err(anyhow::anyhow!(complaint).into());
    }
    let mut connection = redis_lane.connect()?;
    let (partitions, live) = (partitions.load(Ordering::Relaxed), &redis_lane.rules.rules);
    let judged = verdict::judge(plan, &config, &mut connection, partitions, &lasting, live).context("judge")?;
    let tally = judged.map_err(|differences| failure_of(&differences))?;
    let (claims, fenced) = seen.map_or((0, 0), |seen| (seen.claims, seen.fenced));
    Ok(Tally { claims, fenced, ..tally })
}

fn keep_settings(config: &Config, evidence: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(evidence)?;
    fs::write(evidence.join("tickwatch.toml"), toml::to_string(config)?)?;
    Ok(())
}

fn failure_of(differences: &[Difference]) -> Failure {
    let first = &differences[0];
    let place = first
        .place
        .map_or(String::new(), |(partition, offset, _)| format!(", of partition {partition}, offset {offset}"));
    let others: Vec<&str> = differences.iter().skip(1).take(4).map(|difference| difference.text.as_str()).collect();
    let error = anyhow::anyhow!(
        "{} differences; the first{place}:\n{}\nothers:\n{}",
        differences.len(),
        first.text,
        others.join("\n")
    );
    Failure { error, at: first.place.map(|(_, _, time)| time) }
}

fn config_of(plan: &Plan, broker: &Broker, redis: RedisConfig) -> anyhow::Result<Config> {
    let name = format!("{}-{}", plan.seed, RUNS.fetch_add(1, Ordering::Relaxed));
    let mut config = Config::default();
    plan.configure(&mut config)?;
    let response_timeout = config.redis.response_timeout;
    config.redis = RedisConfig { response_timeout, ..redis };
    config.kafka.brokers = broker.brokers();
    config.kafka.group = format!("group-{name}");
    config.kafka.topic = format!("ticks-{name}");
    config.output.notifications = format!("notifications-{name}");
    config.output.candles = format!("candles-{name}");
    Ok(config)
}

async fn create_topics(plan: &Plan, config: &Config) -> anyhow::Result<()> {
    let one = || TopicReplication::Fixed(1);
    let (dead_letters, late) = (config.dead_letter_topic(), config.late_topic());
    let mut source = NewTopic::new(&config.kafka.topic, plan.partitions, one());
    if plan.append_time {
        source = source.set("message.timestamp.type", "LogAppendTime");
    }
    let topics = [
        source,
        NewTopic::new(&config.output.notifications, 2, one()),
        NewTopic::new(&config.output.candles, 2, one()),
        NewTopic::new(&dead_letters, 1, one()),
        NewTopic::new(&late, 1, one()),
    ];
    kafka::create_topics(&config.kafka.brokers, &topics).await
}

/// Traffic, and each lane's faults beside it.
fn under_faults(
    plan: &Plan,
    config: &Config,
    timeline: &Timeline,
    broker: &mut Broker,
    partitions: &AtomicI32,
    redis_lane: &mut RedisLane<'_>,
    fleet: &mut Fleet<'_>,
) -> anyhow::Result<()> {
    let of_lane = |lane: Lane| -> Vec<(Duration, Fault)> {
        plan.faults.iter().copied().filter(|(_, fault)| fault.lane() == lane).collect()
    };
    let (to_workers, to_redis, to_kafka) = (of_lane(Lane::Workers), of_lane(Lane::Redis), of_lane(Lane::Kafka));
    timeline.start();
    let stop = AtomicBool::new(false);
    let (brokers, topic) = (&config.kafka.brokers, &config.kafka.topic);
    let (first, port) = (fleet.first(), redis_lane.steady_port());
    let mut kafka_lane = KafkaLane::new(plan, config, timeline, broker, partitions);
    thread::scope(|scope| {
        let ticks = scope.spawn(|| traffic::run(plan, brokers, topic, partitions, &stop));
        let memory = first.zip(port).filter(|_| plan.soak).map(|(worker, redis)| {
            scope.spawn({
                let stop = &stop;
                move || memory::samples(worker, redis, stop)
            })
        });
        let workers = scope.spawn(|| -> anyhow::Result<()> {
            for (at, fault) in to_workers {
                tended_until(plan, timeline, fleet, at)?;
                fleet.inject(fault).with_context(|| fault.name())?;
            }
            tended_until(plan, timeline, fleet, plan.length)
        });
        let redis = scope.spawn(|| -> anyhow::Result<()> {
            for (at, fault) in to_redis {
                while !timeline.is_past(at) {
                    redis_lane.snapshot().context("take a snapshot")?;
                    thread::sleep(SNAPSHOT_EVERY);
                }
                redis_lane.inject(fault).with_context(|| fault.name())?;
            }
            Ok(())
        });
        let kafka = scope.spawn(|| -> anyhow::Result<()> {
            for (at, fault) in to_kafka {
                timeline.sleep_until(at);
                kafka_lane.inject(fault).with_context(|| fault.name())?;
            }
            Ok(())
        });
        let lanes = [workers, redis, kafka].map(|lane| lane.join().expect("a lane does not panic"));
        stop.store(true, Ordering::Relaxed);
        ticks.join().expect("the traffic does not panic").context("traffic")?;
        if let Some(memory) = memory {
            let samples = memory.join().expect("the sampling does not panic").context("sample memory")?;
            println!("{}", memory::report(&samples)?);
        }
        lanes.into_iter().collect()
    })
}

/// Looks after the workers until so long after the start.
fn tended_until(plan: &Plan, timeline: &Timeline, fleet: &mut Fleet<'_>, at: Duration) -> anyhow::Result<()> {
    while !timeline.is_past(at.min(plan.length)) {
        fleet.tend()?;
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Waits until everything in the source topic is delivered and committed, and nothing is left open.
fn settle(
    config: &Config,
    redis_lane: &RedisLane<'_>,
    fleet: &mut Fleet<'_>,
    partitions: i32,
) -> anyhow::Result<()> {
    let mut redis = redis_lane.connect()?;
    let reader = rules::consumer(config)?;
    let deadline = Instant::now() + SETTLED;
    let mut moved = (BTreeMap::new(), Instant::now());
    loop {
        fleet.tend()?;
        let mut left = Vec::new();
        let committed =
            kafka::committed(&reader, &config.kafka.topic, 0..partitions, BROKER_PATIENCE).unwrap_or_default();
        for number in 0..partitions {
            let source = format!("{}/{number}", config.kafka.topic);
            let key = |family: &str| format!("{}{family}:{source}", config.namespace);
            let outbox: usize = redis.xlen(key("outbox"))?;
            let due: Vec<String> = redis.zrange(key("due"), 0, -1)?;
            let changed: usize = redis.zcard(key("changed"))?;
            let open = due.iter().filter(|member| !member.starts_with("CLOSE-")).count();
            let end = reader
                .fetch_watermarks(&config.kafka.topic, number, Duration::from_secs(5))
                .map_or(-1, |(_, end)| end);
            let delivered = committed.get(&number).copied().unwrap_or(-1);
            if outbox > 0 || open > 0 || changed > 0 || delivered != end {
                let told: Vec<Option<String>> =
                    redis.hmget(key("source"), &["next_offset", "owner", "state", "reason", "seen"])?;
                left.push(format!(
                    "{source}: {outbox} in the outbox, {open} windows open, {changed} changed, committed {delivered} of {end}; {told:?}"
                ));
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        if committed > moved.0 {
            moved = (committed, Instant::now());
        }
        if moved.1.elapsed() > STUCK || Instant::now() > deadline {
            let unmoved = moved.1.elapsed().as_secs();
            bail!("not everything is delivered, and for {unmoved} s nothing more was:\n{}", left.join("\n"));
        }
        thread::sleep(Duration::from_millis(100));
    }
}
