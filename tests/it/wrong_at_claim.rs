//! What is missing when a partition is claimed is a loss: by default that partition stops and says what to do, and
//! each policy does what it says.
//!
//! Every test brings a partition to rest (a bounded run), does the damage, and starts another worker.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use redis::Commands as _;
use tickwatch::config::{Config, LatePolicy, OnGap, OnOffsetsLost, OnStateLoss, OnTruncation, Scalar};

use crate::harness::{Case, Isolation, Message, Needs, Stage, Worker, cases, expect_status, wait_until};
use crate::market::{Market, put_rules, walk};

pub(crate) fn cases() -> Vec<Case> {
    cases![Needs::Both;
        flushed_state_stops_the_partition,
        flushed_state_is_rebuilt_as_it_was_and_nothing_is_sent_again,
        a_disorderly_log_is_rebuilt_as_it_was_and_nothing_is_sent_again,
        a_rebuild_without_rules_is_refused,
        a_rebuild_without_rules_goes_through_when_told,
        resumed_without_state_it_goes_on_at_the_committed_offset,
        state_flushed_under_a_running_worker_stops_the_partition,
        a_state_that_a_hand_has_spoilt_stops_the_partition_and_is_named,
        deleted_offsets_stop_the_partition,
        deleted_offsets_are_resumed_from_the_state,
        offsets_committed_by_another_program_stop_the_partition,
        offsets_committed_by_another_program_are_resumed_from_the_state,
        records_deleted_before_they_were_processed_stop_the_partition,
        records_deleted_before_they_were_processed_are_gone_on_without,
        a_topic_made_again_shorter_stops_the_partition,
        a_topic_made_again_shorter_starts_over_with_a_new_generation,
        a_topic_made_again_longer_stops_the_partition,
        a_topic_made_again_longer_starts_over_with_a_new_generation,
        the_namespace_of_another_group_is_refused,
        an_offset_moved_forward_by_a_tool_mutes_what_it_skips,
        an_offset_moved_back_by_a_tool_sends_nothing_again,
        an_offset_moved_forward_mutes_what_it_skips,
        an_offset_moved_back_sends_nothing_again,
    ]
}

const PATIENCE: Duration = Duration::from_secs(30);
const BEGIN: i64 = 1_700_000_000_000;

/// Ticks before the damage.
const BEFORE: i64 = 10;

/// A partition at rest: its configuration, with [`BEFORE`] ticks processed and delivered.
struct Scene<'a> {
    stage: &'a Stage,
    config: Config,
}

impl<'a> Scene<'a> {
    fn at_rest(stage: &'a Stage) -> anyhow::Result<Scene<'a>> {
        let mut config = stage.config();
        config.worker.heartbeat = Duration::from_millis(200);
        config.kafka.consumer.insert("session.timeout.ms".into(), Scalar("6000".into()));
        let scene = Scene { stage, config };
        scene.create_source()?;
        for topic in [&scene.config.output.notifications, &scene.config.output.candles] {
            stage.create_topic(topic, 1)?;
        }
        stage.create_topic(&scene.config.dead_letter_topic(), 1)?;
        scene.put_rule()?;
        scene.produce(0..BEFORE)?;
        scene.run_to_the_end()?;
        ensure!(scene.notified()? == scene.ids(0..BEFORE), "{:?}", scene.notified()?);
        Ok(scene)
    }

    fn create_source(&self) -> anyhow::Result<()> {
        self.stage.create_topic(&self.config.kafka.topic, 1)
    }

    fn put_rule(&self) -> anyhow::Result<()> {
        let key = format!("{}rules:BBCA:edge", self.config.namespace);
        Ok(self.stage.redis()?.zadd(key, ">= alice", 9_500)?)
    }

    /// Ticks a quarter of a second apart; every second one crosses the rule.
    fn produce(&self, numbers: std::ops::Range<i64>) -> anyhow::Result<()> {
        let tick = |n: i64| {
            Message {
            key: Some("BBCA".into()),
            value: serde_json::json!({
                "symbol": "BBCA", "price": if n % 2 == 0 { 9_400 } else { 9_600 }, "volume": 1, "ts": BEGIN + n * 250
            })
            .to_string(),
            ..Message::default()
        }
        };
        self.stage.produce(&self.config.kafka.topic, numbers.map(tick))?;
        Ok(())
    }

    /// Ids of the notifications of these ticks, in order.
    fn ids(&self, numbers: std::ops::Range<i64>) -> Vec<String> {
        numbers.filter(|n| n % 2 == 1).map(|n| format!("{}/0/{n}/edge/>=/alice", self.config.kafka.topic)).collect()
    }

    /// Ids of all notifications sent so far, in order.
    fn notified(&self) -> anyhow::Result<Vec<String>> {
        let records = self.stage.consume_all(&self.config.output.notifications, Isolation::ReadCommitted)?;
        records.iter().map(|record| Ok(record.json()?["id"].as_str().context("no id")?.to_owned())).collect()
    }

    /// A bounded run, to its good end; what it logged.
    fn run_to_the_end(&self) -> anyhow::Result<String> {
        let mut worker = Worker::start_with(&self.config, &["--until-end"], &[])?;
        let status = worker.wait(PATIENCE)?;
        ensure!(status.success(), "{status}: {}", worker.logs());
        Ok(worker.logs())
    }

    /// Starts a worker that has to stop the partition, and checks all the ways in which it says so.
    fn expect_stop(&self, kind: &str, words: &[&str]) -> anyhow::Result<()> {
        let worker = Worker::start(&self.config)?;
        expect_stopped(&worker, kind, words)
    }

    /// Price, candles and rules in Redis, by key; what a source partition's owner writes about itself left out.
    fn state(&self) -> anyhow::Result<BTreeMap<String, BTreeMap<String, String>>> {
        let mut redis = self.stage.redis()?;
        let mut state = BTreeMap::new();
        for key in self.keys()? {
            if ["last:", "ohlc:"].iter().any(|family| key[self.config.namespace.len()..].starts_with(family)) {
                state.insert(key.clone(), redis.hgetall(key)?);
            }
        }
        Ok(state)
    }

    fn keys(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.stage.redis()?.keys(format!("{}*", self.config.namespace))?)
    }

    /// As FLUSHALL would, but for the namespace only: others share this Redis.
    fn flush(&self) -> anyhow::Result<()> {
        Ok(self.stage.redis()?.del(self.keys()?)?)
    }

    fn source_key(&self) -> String {
        format!("{}source:{}/0", self.config.namespace, self.config.kafka.topic)
    }

    fn source_field(&self, field: &str) -> anyhow::Result<String> {
        Ok(self.stage.redis()?.hget(self.source_key(), field)?)
    }

    /// A stopped partition says so in Redis too, where listings read it.
    fn wait_stopped_in_redis(&self) -> anyhow::Result<()> {
        wait_until(PATIENCE, "Redis to hold that the partition stopped", || {
            self.source_field("state").is_ok_and(|state| state == "stopped")
        })
    }

    fn admin(&self) -> anyhow::Result<AdminClient<DefaultClientContext>> {
        Ok(ClientConfig::new().set("bootstrap.servers", self.stage.brokers()).create()?)
    }

    /// Deletes the group with its offsets; it has to be empty, which takes a moment after its last member left.
    fn delete_group(&self) -> anyhow::Result<()> {
        let admin = self.admin()?;
        let delete = || self.stage.block_on(admin.delete_groups(&[&self.config.kafka.group], &AdminOptions::new()));
        wait_until(PATIENCE, "the group to be deleted", || {
            delete().is_ok_and(|done| done.iter().all(Result::is_ok))
        })
    }

    fn delete_records_below(&self, offset: i64) -> anyhow::Result<()> {
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(&self.config.kafka.topic, 0, Offset::Offset(offset))?;
        self.stage.block_on(self.admin()?.delete_records(&offsets, &AdminOptions::new()))?;
        Ok(())
    }

    /// Deletes the source topic, makes it again with these ticks, and puts the group's offset back, which a broker
    /// forgets together with the topic.
    fn make_topic_again(&self, numbers: std::ops::Range<i64>) -> anyhow::Result<()> {
        let (offset, metadata) = self.committed()?;
        self.delete_topic()?;
        wait_until(PATIENCE, "the topic to be made again", || self.create_source().is_ok())?;
        self.produce(numbers)?;
        self.commit(offset, &metadata)
    }

    fn delete_topic(&self) -> anyhow::Result<()> {
        let topic = self.config.kafka.topic.as_str();
        for result in self.stage.block_on(self.admin()?.delete_topics(&[topic], &AdminOptions::new()))? {
            result.map_err(|(topic, code)| anyhow::anyhow!("delete topic {topic}: {code}"))?;
        }
        Ok(())
    }

    fn consumer(&self) -> anyhow::Result<BaseConsumer> {
        Ok(ClientConfig::new()
            .set("bootstrap.servers", self.stage.brokers())
            .set("group.id", &self.config.kafka.group)
            .create()?)
    }

    fn committed(&self) -> anyhow::Result<(i64, String)> {
        let mut wanted = TopicPartitionList::new();
        wanted.add_partition(&self.config.kafka.topic, 0);
        let found = self.consumer()?.committed_offsets(wanted, PATIENCE)?;
        let elements = found.elements();
        let element = elements.first().context("no partition")?;
        Ok((element.offset().to_raw().context("no offset")?, element.metadata().to_owned()))
    }

    /// Commits for the group from outside, as a tool does.
    fn commit(&self, offset: i64, metadata: &str) -> anyhow::Result<()> {
        let mut offsets = TopicPartitionList::new();
        let mut element = offsets.add_partition(&self.config.kafka.topic, 0);
        element.set_offset(Offset::Offset(offset))?;
        element.set_metadata(metadata);
        let consumer = self.consumer()?;
        wait_until(PATIENCE, "the group to take an offset from outside", || {
            consumer.commit(&offsets, CommitMode::Sync).is_ok()
        })
    }
}

/// Waits until a worker says, in every place, that its partition stopped for a reason with these words.
fn expect_stopped(worker: &Worker, kind: &str, words: &[&str]) -> anyhow::Result<()> {
    let mut body = String::new();
    wait_until(PATIENCE, "partition 0 to stop", || match worker.page("/readyz") {
        Ok((503, found)) if found.contains("partition 0 stopped") => {
            body = found;
            true
        }
        _ => false,
    })
    .with_context(|| worker.logs())?;
    for word in words {
        ensure!(body.contains(word), "/readyz does not say {word:?}: {body}");
        ensure!(worker.logs().contains(word), "the log does not say {word:?}: {}", worker.logs());
    }
    let metrics = worker.get("/metrics")?;
    let counted = format!("tickwatch_partitions_stopped_total{{reason=\"{kind}\"}} 1");
    ensure!(metrics.contains(&counted), "{counted} is not in {metrics}");
    let known_from_outside: &[&str] = &["Redis holds no state", "on_state_loss"]; // nothing is left to say it in Redis
    expect_status(worker, if kind == "state_loss" { known_from_outside } else { words })
}

// ---- a committed offset, no state

fn flushed_state_stops_the_partition(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::at_rest(stage)?;
    scene.flush()?;
    scene.expect_stop("state_loss", &["offset 10", "Redis holds no state", "on_state_loss = \"rebuild\""])
}

fn flushed_state_is_rebuilt_as_it_was_and_nothing_is_sent_again(stage: &Stage) -> anyhow::Result<()> {
    let mut scene = Scene::at_rest(stage)?;
    let before = scene.state()?;
    scene.flush()?;
    scene.put_rule()?;
    scene.config.recovery.on_state_loss = OnStateLoss::Rebuild;
    let said = scene.run_to_the_end()?;
    ensure!(said.contains("reading the retained log again from offset 0"), "{said}");
    ensure!(scene.state()? == before, "{:?} is not {before:?}", scene.state()?);
    scene.produce(BEFORE..2 * BEFORE)?;
    scene.run_to_the_end()?;
    ensure!(scene.notified()? == scene.ids(0..2 * BEFORE), "{:?}", scene.notified()?);
    Ok(())
}

fn a_rebuild_without_rules_is_refused(stage: &Stage) -> anyhow::Result<()> {
    let mut scene = Scene::at_rest(stage)?;
    scene.flush()?;
    scene.config.recovery.on_state_loss = OnStateLoss::Rebuild;
    scene.expect_stop(
        "state_loss",
        &["there are no rules in Redis", "tickwatch rule apply", "rebuild_without_rules = true"],
    )
}

fn a_rebuild_without_rules_goes_through_when_told(stage: &Stage) -> anyhow::Result<()> {
    let mut scene = Scene::at_rest(stage)?;
    let before = scene.state()?;
    scene.flush()?;
    scene.config.recovery.on_state_loss = OnStateLoss::Rebuild;
    scene.config.recovery.rebuild_without_rules = true;
    scene.run_to_the_end()?;
    ensure!(scene.state()? == before, "{:?} is not {before:?}", scene.state()?);
    ensure!(scene.notified()? == scene.ids(0..BEFORE), "{:?}", scene.notified()?);
    Ok(())
}

fn a_disorderly_log_is_rebuilt_as_it_was_and_nothing_is_sent_again(stage: &Stage) -> anyhow::Result<()> {
    for late in [LatePolicy::Drop, LatePolicy::Divert, LatePolicy::Revise] {
        let mut market = Market::open(stage, 2, |config| {
            config.namespace = format!("{}:", stage.unique("rebuilt"));
            config.candles.late = late;
            config.recovery.on_state_loss = OnStateLoss::Rebuild;
        })?;
        put_rules(&mut market)?;
        let mut ticks = walk(21);
        let mut first = Worker::start(&market.config)?;
        market.send(ticks.by_ref().take(1_500))?;
        market.send_bad("SYM-1", "no JSON")?;
        market.wait_delivered()?;
        ensure!(first.stop()?.success(), "{}", first.logs());

        let mut redis = market.redis()?;
        let keys: Vec<String> = redis.keys(market.key("*"))?;
        let lost: Vec<String> = keys.into_iter().filter(|key| !key.contains(":rules:")).collect();
        let () = redis.del(lost)?;
        let second = Worker::start(&market.config)?;
        market.send(ticks.by_ref().take(500))?;
        market.send_closing()?;
        market.wait_delivered().with_context(|| second.logs())?;
        ensure!(second.logs().contains("reading the retained log again from offset 0"), "{}", second.logs());
        market.check_each_once(&[&second])?;
    }
    Ok(())
}

fn resumed_without_state_it_goes_on_at_the_committed_offset(stage: &Stage) -> anyhow::Result<()> {
    let mut scene = Scene::at_rest(stage)?;
    scene.flush()?;
    scene.put_rule()?;
    scene.config.recovery.on_state_loss = OnStateLoss::Resume;
    scene.produce(BEFORE..2 * BEFORE)?;
    let said = scene.run_to_the_end()?;
    ensure!(said.contains("going on at offset 10 with empty state"), "{said}");
    ensure!(scene.notified()? == scene.ids(0..2 * BEFORE), "{:?}", scene.notified()?);
    let count: i64 = scene.state()?.values().filter_map(|hash| hash.get("count")?.parse::<i64>().ok()).sum();
    ensure!(count < 2 * 2 * BEFORE, "the candles of the first ticks are gone");
    Ok(())
}

fn state_flushed_under_a_running_worker_stops_the_partition(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::at_rest(stage)?;
    let mut worker = Worker::start(&scene.config)?;
    worker.wait_ready()?;
    wait_until(PATIENCE, "the partition to be taken over", || worker.logs().contains("partition taken over"))?;
    scene.flush()?;
    expect_stopped(&worker, "state_loss", &["offset 10", "Redis holds no state"])
}

fn a_state_that_a_hand_has_spoilt_stops_the_partition_and_is_named(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::at_rest(stage)?;
    for (field, spoilt) in [("next_offset", "ten"), ("watermark", "1e3"), ("generation", "-")] {
        let before: Option<String> = stage.redis()?.hget(scene.source_key(), field)?;
        stage.redis()?.hset::<_, _, _, ()>(scene.source_key(), field, spoilt)?;
        scene.expect_stop("script", &[&format!("{field} {spoilt} is no number")])?;
        stage.redis()?.hset::<_, _, _, ()>(scene.source_key(), field, before.unwrap_or_default())?;
    }
    scene.run_to_the_end()?;
    Ok(())
}

// ---- state, no committed offset

fn deleted_offsets_stop_the_partition(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::at_rest(stage)?;
    scene.delete_group()?;
    scene.expect_stop(
        "offsets_lost",
        &["state up to offset 10", "no offset is committed", "on_offsets_lost = \"resume\""],
    )?;
    scene.wait_stopped_in_redis()
}

fn deleted_offsets_are_resumed_from_the_state(stage: &Stage) -> anyhow::Result<()> {
    let mut scene = Scene::at_rest(stage)?;
    scene.delete_group()?;
    scene.config.recovery.on_offsets_lost = OnOffsetsLost::Resume;
    scene.produce(BEFORE..2 * BEFORE)?;
    scene.run_to_the_end()?;
    ensure!(scene.notified()? == scene.ids(0..2 * BEFORE), "{:?}", scene.notified()?);
    Ok(())
}

fn offsets_committed_by_another_program_stop_the_partition(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::at_rest(stage)?;
    scene.commit(4, "a tool was here")?;
    scene.expect_stop("offsets_lost", &["offset 4 was committed by something else", "a tool was here"])
}

fn offsets_committed_by_another_program_are_resumed_from_the_state(stage: &Stage) -> anyhow::Result<()> {
    let mut scene = Scene::at_rest(stage)?;
    scene.commit(4, "a tool was here")?;
    scene.config.recovery.on_offsets_lost = OnOffsetsLost::Resume;
    scene.produce(BEFORE..2 * BEFORE)?;
    scene.run_to_the_end()?;
    ensure!(scene.notified()? == scene.ids(0..2 * BEFORE), "{:?}", scene.notified()?);
    Ok(())
}

// ---- the log starts after the position

fn records_deleted_before_they_were_processed_stop_the_partition(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::at_rest(stage)?;
    scene.produce(BEFORE..2 * BEFORE)?;
    scene.delete_records_below(14)?;
    scene.expect_stop("gap", &["the log starts at offset 14", "the position is 10", "on_gap = \"continue\""])?;
    scene.wait_stopped_in_redis()
}

fn records_deleted_before_they_were_processed_are_gone_on_without(stage: &Stage) -> anyhow::Result<()> {
    let mut scene = Scene::at_rest(stage)?;
    scene.produce(BEFORE..2 * BEFORE)?;
    scene.delete_records_below(14)?;
    scene.config.recovery.on_gap = OnGap::Continue;
    let said = scene.run_to_the_end()?;
    ensure!(said.contains("offsets 10 to 14 are gone"), "{said}");
    let wanted = [scene.ids(0..BEFORE), scene.ids(14..2 * BEFORE)].concat();
    ensure!(scene.notified()? == wanted, "{:?} is not {wanted:?}", scene.notified()?);
    Ok(())
}

// ---- the topic was deleted and made again

fn a_topic_made_again_shorter_stops_the_partition(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::at_rest(stage)?;
    scene.make_topic_again(100..104)?;
    scene.expect_stop("truncation", &["the position is 10", "the log ends at 4", "on_truncation = \"reset\""])
}

fn a_topic_made_again_shorter_starts_over_with_a_new_generation(stage: &Stage) -> anyhow::Result<()> {
    starts_over(stage, 4)
}

fn a_topic_made_again_longer_stops_the_partition(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::at_rest(stage)?;
    scene.make_topic_again(100..120)?;
    scene.expect_stop("truncation", &["the record at offset 9 is not the one", "on_truncation = \"reset\""])
}

fn a_topic_made_again_longer_starts_over_with_a_new_generation(stage: &Stage) -> anyhow::Result<()> {
    starts_over(stage, 20)
}

fn starts_over(stage: &Stage, length: i64) -> anyhow::Result<()> {
    let mut scene = Scene::at_rest(stage)?;
    scene.make_topic_again(100..100 + length)?;
    scene.config.recovery.on_truncation = OnTruncation::Reset;
    let said = scene.run_to_the_end()?;
    ensure!(said.contains("starting over at the log's start"), "{said}");
    ensure!(scene.source_field("generation")? == "1", "the generation is counted");
    let again = scene.notified()?.split_off(scene.ids(0..BEFORE).len());
    let offsets: Vec<i64> = (0..length).filter(|n| n % 2 == 1).collect();
    ensure!(again.len() == offsets.len(), "{again:?}");
    for id in &again {
        ensure!(!scene.ids(0..2 * BEFORE).contains(id), "{id} names a notification of the first topic");
    }
    Ok(())
}

// ---- whose namespace, whose offset

fn the_namespace_of_another_group_is_refused(stage: &Stage) -> anyhow::Result<()> {
    let mut scene = Scene::at_rest(stage)?;
    let first = std::mem::replace(&mut scene.config.kafka.group, stage.unique("group"));
    scene.expect_stop("other_group", &[&format!("belongs to consumer group \"{first}\""), "a namespace of its own"])
}

/// As `kafka-consumer-groups.sh --reset-offsets` does: no metadata.
fn an_offset_moved_forward_by_a_tool_mutes_what_it_skips(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::at_rest(stage)?;
    scene.produce(BEFORE..2 * BEFORE)?;
    scene.commit(16, "")?;
    let said = scene.run_to_the_end()?;
    let wanted = [scene.ids(0..BEFORE), scene.ids(16..2 * BEFORE)].concat();
    ensure!(scene.notified()? == wanted, "{:?} is not {wanted:?}", scene.notified()?);
    ensure!(scene.source_field("next_offset")? == "20", "what was skipped is processed all the same");
    ensure!(said.contains("moved by hand from 10 to 16"), "{said}");
    Ok(())
}

fn an_offset_moved_back_by_a_tool_sends_nothing_again(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::at_rest(stage)?;
    scene.commit(4, "")?;
    let worker = Worker::start(&scene.config)?;
    scene.produce(BEFORE..2 * BEFORE)?;
    wait_until(PATIENCE, "the new ticks' notifications", || {
        scene.notified().is_ok_and(|found| found.len() >= scene.ids(0..2 * BEFORE).len())
    })?;
    ensure!(scene.notified()? == scene.ids(0..2 * BEFORE), "{:?}", scene.notified()?);
    let said = worker.logs();
    ensure!(
        said.contains("moved by hand to 4, the state is at 10") && said.contains("run another group"),
        "{said}"
    );
    ensure!(worker.get("/metrics")?.contains("tickwatch_recoveries_total 1"), "it is counted");
    Ok(())
}

fn an_offset_moved_forward_mutes_what_it_skips(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::at_rest(stage)?;
    let (_, metadata) = scene.committed()?;
    scene.produce(BEFORE..2 * BEFORE)?;
    scene.commit(16, &metadata)?;
    let said = scene.run_to_the_end()?;
    let wanted = [scene.ids(0..BEFORE), scene.ids(16..2 * BEFORE)].concat();
    ensure!(scene.notified()? == wanted, "{:?} is not {wanted:?}", scene.notified()?);
    ensure!(scene.source_field("next_offset")? == "20", "what was skipped is processed all the same");
    ensure!(said.contains("state=10 delivered=16"), "{said}");
    Ok(())
}

fn an_offset_moved_back_sends_nothing_again(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::at_rest(stage)?;
    let (_, metadata) = scene.committed()?;
    scene.commit(4, &metadata)?;
    scene.produce(BEFORE..2 * BEFORE)?;
    scene.run_to_the_end()?;
    ensure!(scene.notified()? == scene.ids(0..2 * BEFORE), "{:?}", scene.notified()?);
    Ok(())
}
