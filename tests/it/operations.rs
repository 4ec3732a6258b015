//! What an operator meets: a start that cannot succeed says so at once and what to do, health and metrics tell the
//! truth, a Redis that goes away and comes back is waited for, a stop is in good order.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::Output;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use redis::Commands as _;
use tickwatch::config::{Config, Guarantee, Scalar};
use tickwatch::sandbox::{Broker, Redis};

use crate::harness::{
    self, Case, Isolation, Message, Needs, Stage, Worker, cases, expect_status, free_address, program, wait_until,
};
use crate::sandbox::or_skip;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases!(Needs::Nothing;
        an_unknown_key_is_refused_with_the_nearest_known_one,
    );
    cases.extend(cases!(Needs::Redis;
        a_broker_that_is_not_there_ends_the_start_with_its_address,
    ));
    cases.extend(cases!(Needs::Kafka;
        a_redis_that_is_not_there_ends_the_start_with_its_address,
        a_redis_that_evicts_keys_is_refused,
        a_redis_cluster_is_refused,
        a_right_that_redis_does_not_give_ends_the_start_with_its_name,
        a_right_taken_away_is_waited_for_and_nothing_is_done_by_halves,
        a_redis_that_is_killed_and_comes_back_is_waited_for,
    ));
    cases.extend(cases!(Needs::Both;
        missing_topics_come_with_the_commands_that_make_them,
        health_readiness_and_metrics_tell_of_a_worker_at_work,
        a_worker_told_to_end_ends_well,
        a_worker_told_to_end_ends_in_time_though_no_broker_answers,
        a_note_too_large_for_the_producer_stops_its_partition_only,
        a_note_too_large_for_the_transaction_stops_its_partition_only,
        partitions_added_while_running_are_read_from_their_start,
        ticks_mostly_in_the_future_are_said_to_be_this_machines_clock,
    ));
    cases
}

/// A start that fails does so within this time.
const FAILS_WITHIN: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(30);
const BEGIN: i64 = 1_700_000_000_000;

// ---- a start that cannot succeed

fn an_unknown_key_is_refused_with_the_nearest_known_one(_: &Stage) -> anyhow::Result<()> {
    let Output { status, stderr, .. } = program().arg("run").env("TICKWATCH_KAFKA__TOPIK", "ticks").output()?;
    let said = String::from_utf8_lossy(&stderr);
    ensure!(status.code() == Some(2), "{status}: {said}");
    ensure!(said.contains("did you mean TICKWATCH_KAFKA__TOPIC?"), "{said}");
    Ok(())
}

fn a_broker_that_is_not_there_ends_the_start_with_its_address(stage: &Stage) -> anyhow::Result<()> {
    let address = free_address()?.to_string();
    let mut config = Config { namespace: stage.namespace().to_owned(), ..Config::default() };
    stage.redis_url().clone_into(&mut config.redis.url);
    config.kafka.brokers.clone_from(&address);
    let said = failed_start(&config)?;
    ensure!(said.contains(&address) && said.contains("set kafka.brokers"), "{said}");
    Ok(())
}

fn a_redis_that_is_not_there_ends_the_start_with_its_address(stage: &Stage) -> anyhow::Result<()> {
    let address = free_address()?.to_string();
    let said = failed_start(&on_redis(stage, format!("redis://{address}"))?)?;
    ensure!(said.contains(&address), "{said}");
    Ok(())
}

fn a_redis_that_evicts_keys_is_refused(stage: &Stage) -> anyhow::Result<()> {
    let redis = or_skip(Redis::start(&[("maxmemory-policy", "allkeys-lru")]))?;
    let said = failed_start(&on_redis(stage, redis.url())?)?;
    ensure!(said.contains("allkeys-lru") && said.contains("CONFIG SET maxmemory-policy noeviction"), "{said}");
    Ok(())
}

fn a_redis_cluster_is_refused(stage: &Stage) -> anyhow::Result<()> {
    let redis = or_skip(Redis::start(&[("cluster-enabled", "yes")]))?;
    let said = failed_start(&on_redis(stage, redis.url())?)?;
    ensure!(said.contains("cluster_enabled:1") && said.contains("[redis] url"), "{said}");
    Ok(())
}

fn a_right_that_redis_does_not_give_ends_the_start_with_its_name(stage: &Stage) -> anyhow::Result<()> {
    let redis = or_skip(Redis::start(&[]))?;
    for (right, named) in [("-xadd", "XADD"), ("-hset", "HSET"), ("-zrangebyscore", "ZRANGEBYSCORE")] {
        let said = failed_start(&on_redis(stage, limited_user(&redis, right)?)?)?;
        let words = [&format!("the scripts need {named}"), "give the ACL user this command"];
        ensure!(words.iter().all(|word| said.contains(*word)), "{said}");
    }
    Ok(())
}

/// A user with all rights but one; the URL with its name.
fn limited_user(redis: &Redis, right: &str) -> anyhow::Result<String> {
    let mut admin = harness::connect(&redis.url())?;
    let () = redis::cmd("ACL")
        .arg(&["SETUSER", "limited", "reset", "on", ">word", "~*", "+@all", right])
        .query(&mut admin)?;
    Ok(redis.url().replace("redis://", "redis://limited:word@"))
}

fn a_right_taken_away_is_waited_for_and_nothing_is_done_by_halves(stage: &Stage) -> anyhow::Result<()> {
    let redis = or_skip(Redis::start(&[]))?;
    let config = on_redis(stage, limited_user(&redis, "+xadd")?)?;
    let mut worker = at_work(stage, &redis.url(), &config)?;

    let source = format!("{}source:{}/0", config.namespace, config.kafka.topic);
    let mut admin = harness::connect(&redis.url())?;
    for (number, right) in ["xadd", "zadd", "pexpire"].into_iter().enumerate() {
        let before: i64 = admin.hget(&source, "next_offset")?;
        let () = redis::cmd("ACL").arg(&["SETUSER", "limited", &format!("-{right}")]).query(&mut admin)?;
        let first = 10 + 10 * number as i64;
        stage.produce(&config.kafka.topic, ticks("BBCA", 0, first..first + 10))?;
        wait_until(PATIENCE, "/readyz to name the right", || {
            let wanted = ["NOPERM", "give the ACL user this command"];
            worker
                .page("/readyz")
                .is_ok_and(|(status, body)| status == 503 && wanted.iter().all(|word| body.contains(word)))
        })
        .with_context(|| worker.logs())?;
        ensure!(worker.get("/metrics")?.contains("tickwatch_redis_errors_total{kind=\"refused\"}"));
        ensure!(
            admin.hget::<_, _, i64>(&source, "next_offset")? == before,
            "the position moved without its outputs"
        );
        let () = redis::cmd("ACL").arg(&["SETUSER", "limited", &format!("+{right}")]).query(&mut admin)?;
        worker.wait_ready()?;
        let found = wait_notified(stage, &config, &worker, first as usize / 2 + 5)?;
        let wanted: Vec<String> =
            (1..first + 10).step_by(2).map(|n| format!("{}/0/{n}/edge/>=/alice", config.kafka.topic)).collect();
        ensure!(found == wanted, "{found:?} is not {wanted:?}");
    }
    Ok(())
}

fn missing_topics_come_with_the_commands_that_make_them(stage: &Stage) -> anyhow::Result<()> {
    let config = stage.config();
    stage.create_topic(&config.kafka.topic, 1)?;
    let said = failed_start(&config)?;
    for topic in [&config.output.notifications, &config.output.candles, &config.dead_letter_topic()] {
        let command = format!("kafka-topics.sh --bootstrap-server {} --create --topic {topic}", stage.brokers());
        ensure!(said.contains(&command), "{command} is not in {said}");
    }
    ensure!(!said.contains(&format!("--topic {} ", config.kafka.topic)), "{said}");
    Ok(())
}

/// What a worker that cannot start says; it has to end with 1 by itself.
fn failed_start(config: &Config) -> anyhow::Result<String> {
    let mut worker = Worker::start(config)?;
    let status = worker.wait(FAILS_WITHIN)?;
    ensure!(status.code() == Some(1), "{status}: {}", worker.logs());
    Ok(worker.logs())
}

/// A configuration on a Redis of its own and the shared broker.
fn on_redis(stage: &Stage, url: String) -> anyhow::Result<Config> {
    let mut config = Config { namespace: stage.namespace().to_owned(), ..Config::default() };
    config.redis.url = url;
    stage.brokers().clone_into(&mut config.kafka.brokers);
    config.kafka.group = stage.unique("group");
    config.kafka.topic = stage.unique("ticks");
    config.output.notifications = stage.unique("notifications");
    config.output.candles = stage.unique("candles");
    quick(&mut config);
    Ok(config)
}

fn quick(config: &mut Config) {
    config.worker.heartbeat = Duration::from_millis(200);
    config.kafka.consumer.insert("session.timeout.ms".into(), Scalar("6000".into()));
}

fn create_topics(stage: &Stage, config: &Config, partitions: i32) -> anyhow::Result<()> {
    let create = |name: &str, partitions| harness::create_topic(stage, &config.kafka.brokers, name, partitions);
    create(&config.kafka.topic, partitions)?;
    create(&config.output.notifications, 1)?;
    create(&config.output.candles, 1)?;
    create(&config.dead_letter_topic(), 1)
}

/// Ticks that cross 9500 upwards at every second one, `from..to` a quarter of a second apart.
fn ticks(symbol: &str, partition: i32, numbers: std::ops::Range<i64>) -> Vec<Message> {
    let tick = |n: i64| Message {
        key: Some(symbol.to_owned()),
        value: serde_json::json!({
            "symbol": symbol, "price": if n % 2 == 0 { 9_400 } else { 9_600 }, "volume": 1, "ts": BEGIN + n * 250
        })
        .to_string(),
        partition: Some(partition),
        ..Message::default()
    };
    numbers.map(tick).collect()
}

fn watch(redis_url: &str, config: &Config, symbol: &str) -> anyhow::Result<()> {
    let key = format!("{}rules:{symbol}:edge", config.namespace);
    Ok(harness::connect(redis_url)?.zadd(key, ">= alice", 9_500)?)
}

/// A worker on one partition, which has notified of the first ticks of BBCA.
fn at_work(stage: &Stage, redis_url: &str, config: &Config) -> anyhow::Result<Worker> {
    create_topics(stage, config, 1)?;
    watch(redis_url, config, "BBCA")?;
    let mut worker = Worker::start(config)?;
    worker.wait_ready()?;
    stage.produce(&config.kafka.topic, ticks("BBCA", 0, 0..10))?;
    wait_notified(stage, config, &worker, 5)?;
    Ok(worker)
}

fn notifications(stage: &Stage, config: &Config) -> anyhow::Result<Vec<String>> {
    let records = stage.consume_all(&config.output.notifications, Isolation::ReadCommitted)?;
    records.iter().map(|record| Ok(record.json()?["id"].as_str().context("no id")?.to_owned())).collect()
}

fn wait_notified(stage: &Stage, config: &Config, worker: &Worker, count: usize) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    wait_until(PATIENCE, &format!("{count} notifications"), || {
        found = notifications(stage, config).unwrap_or_default();
        found.len() >= count
    })
    .with_context(|| worker.logs())?;
    Ok(found)
}

// ---- a worker at work

fn health_readiness_and_metrics_tell_of_a_worker_at_work(stage: &Stage) -> anyhow::Result<()> {
    let mut config = stage.config();
    quick(&mut config);
    create_topics(stage, &config, 1)?;
    watch(stage.redis_url(), &config, "BBCA")?;
    let mut worker = Worker::start(&config)?;
    worker.wait_ready()?;
    ensure!(worker.page("/healthz")?.0 == 200);
    stage.produce(&config.kafka.topic, ticks("BBCA", 0, 0..10))?;
    stage.produce(&config.kafka.topic, [("BBCA", "this is no JSON")])?;
    wait_notified(stage, &config, &worker, 5)?;

    let partition = format!("topic=\"{}\",partition=\"0\"", config.kafka.topic);
    let samples = [
        ("tickwatch_ready", "1"),
        ("tickwatch_ticks_total", "10"),
        ("tickwatch_notifications_total", "5"),
        ("tickwatch_dead_letters_total", "1"),
    ];
    let mut missing = Vec::new();
    wait_until(PATIENCE, "the metrics of ten ticks, five notifications and a dead letter", || {
        let metrics = worker.get("/metrics").unwrap_or_default();
        let has = |(name, value): &&(&str, &str)| {
            metrics.lines().any(|line| line.starts_with(name) && line.ends_with(&format!(" {value}")))
        };
        missing = samples.iter().filter(|sample| !has(sample)).collect();
        missing.is_empty()
    })
    .with_context(|| format!("{missing:?} of {partition} are not in {:?}", worker.get("/metrics")))?;
    ensure!(worker.get("/metrics")?.contains("# HELP tickwatch_ticks_total"), "metrics are described");
    Ok(())
}

fn a_worker_told_to_end_ends_well(stage: &Stage) -> anyhow::Result<()> {
    let mut config = stage.config();
    quick(&mut config);
    create_topics(stage, &config, 1)?;
    let mut worker = Worker::start(&config)?;
    worker.wait_ready()?;
    let status = worker.stop()?;
    ensure!(status.code() == Some(0), "{status}: {}", worker.logs());
    Ok(())
}

/// Neither what is in flight, nor leaving the group, nor a client of the HTTP port that says nothing may hold the process
/// up: its supervisor would kill it.
fn a_worker_told_to_end_ends_in_time_though_no_broker_answers(stage: &Stage) -> anyhow::Result<()> {
    let mut broker = or_skip(Broker::start())?;
    let session = Duration::from_secs(6);
    let cases = [
        (Guarantee::AtLeastOnce, Gone::Killed, Duration::ZERO),
        (Guarantee::AtLeastOnce, Gone::Frozen, session * 2),
        (Guarantee::ExactlyOnce, Gone::Killed, session * 2),
        (Guarantee::ExactlyOnce, Gone::Frozen, Duration::ZERO),
    ];
    let config_of = |guarantee| {
        let mut config = stage.config();
        quick(&mut config);
        config.kafka.brokers = broker.brokers();
        config.kafka.processing_guarantee = guarantee;
        config.worker.stop_deadline = Duration::from_secs(2);
        create_topics(stage, &config, 2).map(|()| config) // now: a broker that has just come back is slow to answer
    };
    let configs: Vec<Config> =
        cases.iter().map(|(guarantee, ..)| config_of(*guarantee)).collect::<Result<_, _>>()?;
    for ((guarantee, gone, since), config) in cases.into_iter().zip(configs) {
        watch(stage.redis_url(), &config, "BBCA")?;
        let mut worker = Worker::start(&config)?;
        worker.wait_ready()?;
        harness::produce(stage, &broker.brokers(), &config.kafka.topic, ticks("BBCA", 0, 0..10))?;
        wait_until(PATIENCE, "a first notification", || {
            worker.get("/metrics").is_ok_and(|metrics| metrics.contains("tickwatch_notifications_total"))
        })?;
        match gone {
            Gone::Killed => broker.kill()?,
            Gone::Frozen => broker.pause()?,
        }
        std::thread::sleep(since);
        let mut silent = TcpStream::connect(worker.http())?;
        silent.write_all(b"GET /healthz HT")?;

        worker.terminate()?;
        // To finish what is in flight, to abort, to leave the group; a second for the HTTP server; the rest is for a busy
        // machine.
        let allowed = config.worker.stop_deadline * 3 + Duration::from_secs(10);
        let ended = worker.wait(allowed).with_context(|| format!("{guarantee:?}, {gone:?} for {since:?}"));
        match gone {
            Gone::Killed => broker.restart()?,
            Gone::Frozen => broker.cont()?,
        }
        let status = ended?;
        ensure!(status.code() == Some(0), "{guarantee:?}, {gone:?} for {since:?}: {status}: {}", worker.logs());
    }
    Ok(())
}

/// What became of a broker.
#[derive(Debug, Clone, Copy)]
enum Gone {
    Killed,
    Frozen,
}

fn a_redis_that_is_killed_and_comes_back_is_waited_for(stage: &Stage) -> anyhow::Result<()> {
    let mut redis = or_skip(Redis::start(&[]))?;
    let config = on_redis(stage, redis.url())?;
    let mut worker = at_work(stage, &redis.url(), &config)?;

    redis.kill()?;
    wait_until(PATIENCE, "/readyz to say that Redis is away", || {
        worker.page("/readyz").is_ok_and(|(status, body)| status == 503 && body.contains("Redis"))
    })?;
    ensure!(worker.page("/healthz")?.0 == 200, "it is alive all the same");
    redis.restart()?;
    worker.wait_ready()?;

    stage.produce(&config.kafka.topic, ticks("BBCA", 0, 10..20))?;
    let found = wait_notified(stage, &config, &worker, 10)?;
    let wanted = (1..20).step_by(2).map(|n| format!("{}/0/{n}/edge/>=/alice", config.kafka.topic));
    let mut distinct = found.clone();
    distinct.sort();
    distinct.dedup();
    let mut wanted: Vec<String> = wanted.collect();
    wanted.sort();
    ensure!(distinct == wanted, "{distinct:?} is not {wanted:?}");
    Ok(())
}

fn partitions_added_while_running_are_read_from_their_start(stage: &Stage) -> anyhow::Result<()> {
    let mut config = stage.config();
    quick(&mut config);
    config.kafka.consumer.insert("topic.metadata.refresh.interval.ms".into(), Scalar("500".into()));
    create_topics(stage, &config, 1)?;
    let symbols = ["BBCA", "TLKM", "GOTO"];
    for symbol in symbols {
        watch(stage.redis_url(), &config, symbol)?;
    }
    let mut workers = [Worker::start(&config)?, Worker::start(&config)?];
    for worker in &mut workers {
        worker.wait_ready()?;
    }
    stage.produce(&config.kafka.topic, ticks("BBCA", 0, 0..10))?;
    wait_notified(stage, &config, &workers[0], 5)?;

    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", stage.brokers()).create()?;
    for added in stage.block_on(
        admin.create_partitions(&[NewPartitions::new(&config.kafka.topic, symbols.len())], &AdminOptions::new()),
    )? {
        added.map_err(|(topic, code)| anyhow::anyhow!("add partitions to {topic}: {code}"))?;
    }
    // Their first records are there before any worker knows of them.
    for (number, symbol) in symbols.into_iter().enumerate().skip(1) {
        wait_until(PATIENCE, "the broker to take records of a new partition", || {
            stage.produce(&config.kafka.topic, ticks(symbol, number as i32, 0..10)).is_ok()
        })?;
    }
    let logs = || workers.iter().map(Worker::logs).collect::<Vec<_>>().join("\n");
    let mut found = wait_notified(stage, &config, &workers[0], 15)
        .with_context(|| format!("{:?}\n{}", notifications(stage, &config), logs()))?;
    let fired = |number: usize| (1..10).step_by(2).map(move |n| (number, n));
    let mut wanted: Vec<String> = (0..symbols.len())
        .flat_map(fired)
        .map(|(number, n)| format!("{}/{number}/{n}/edge/>=/alice", config.kafka.topic))
        .collect();
    found.sort();
    wanted.sort();
    ensure!(found == wanted, "{found:?} is not {wanted:?}");
    Ok(())
}

fn ticks_mostly_in_the_future_are_said_to_be_this_machines_clock(stage: &Stage) -> anyhow::Result<()> {
    const AHEAD: i64 = 12;
    let mut config = stage.config();
    quick(&mut config);
    create_topics(stage, &config, 1)?;
    let mut worker = Worker::start(&config)?;
    worker.wait_ready()?;
    let hour = Duration::from_hours(1).as_millis() as i64;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as i64;
    let send = |count: i64, ts: i64| {
        let value = serde_json::json!({ "symbol": "BBCA", "price": 9_400, "volume": 1, "ts": ts }).to_string();
        stage.produce(&config.kafka.topic, (0..count).map(|_| ("BBCA", value.clone())))
    };
    send(AHEAD, now + hour)?;
    wait_until(PATIENCE, "/readyz to doubt the clock", || {
        worker
            .page("/readyz")
            .is_ok_and(|(status, body)| status == 503 && body.contains("check this machine's clock"))
    })
    .with_context(|| worker.logs())?;
    let metrics = worker.get("/metrics")?;
    ensure!(metrics.contains(&format!("tickwatch_future_ticks_total {AHEAD}")), "{metrics}");
    ensure!(worker.logs().contains("tick from the future; check the sender's clock, this machine's clock"));

    send(AHEAD + 1, now)?;
    worker.wait_ready()
}

fn a_note_too_large_for_the_producer_stops_its_partition_only(stage: &Stage) -> anyhow::Result<()> {
    a_note_too_large_stops_its_partition_only(stage, Guarantee::AtLeastOnce)
}

fn a_note_too_large_for_the_transaction_stops_its_partition_only(stage: &Stage) -> anyhow::Result<()> {
    a_note_too_large_stops_its_partition_only(stage, Guarantee::ExactlyOnce)
}

fn a_note_too_large_stops_its_partition_only(stage: &Stage, guarantee: Guarantee) -> anyhow::Result<()> {
    let mut config = stage.config();
    quick(&mut config);
    config.kafka.processing_guarantee = guarantee;
    config.kafka.producer.insert("message.max.bytes".into(), Scalar("1000".into()));
    create_topics(stage, &config, 2)?;
    for symbol in ["BBCA", "TLKM"] {
        watch(stage.redis_url(), &config, symbol)?;
    }
    let note = serde_json::json!({ "note": "n".repeat(1_000) }).to_string();
    let _: () = stage.redis()?.hset(format!("{}rules:BBCA:opts", config.namespace), "alice", note)?;
    let mut worker = Worker::start(&config)?;
    worker.wait_ready()?;

    stage.produce(&config.kafka.topic, ticks("BBCA", 0, 0..2))?;
    wait_until(PATIENCE, "partition 0 to stop", || {
        worker.page("/readyz").is_ok_and(|(status, body)| status == 503 && body.contains("partition 0 stopped"))
    })
    .with_context(|| worker.logs())?;
    stage.produce(&config.kafka.topic, ticks("TLKM", 1, 0..6))?;
    let found = wait_notified(stage, &config, &worker, 3)?;
    ensure!(found.iter().all(|id| id.starts_with(&format!("{}/1/", config.kafka.topic))), "{found:?}");
    let (_, reasons) = worker.page("/readyz")?;
    ensure!(!reasons.contains("partition 1"), "{reasons}");
    ensure!(reasons.contains("shorten the rule's note, or raise max.message.bytes"), "{reasons}");
    let metrics = worker.get("/metrics")?;
    ensure!(metrics.contains("tickwatch_partitions_stopped_total{reason=\"produce\"} 1"), "{metrics}");
    expect_status(&worker, &["stopped", "shorten the rule's note, or raise max.message.bytes"])
}
