//! When windows close: by later ticks, by the broker's word that there is nothing more, by the end of a bounded run;
//! and what becomes of ticks that come after that.

use std::ops::Range;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use redis::Commands as _;
use tickwatch::config::{Config, Guarantee, LatePolicy};
use tickwatch::worker::supervisor::Summary;

use crate::harness::{Case, Isolation, Message, Needs, Stage, cases, wait_until};
use crate::scene::{MINUTE, PATIENCE, Scene, intervals, now, tick, to};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both;
        quiet_partitions_close_their_last_windows_by_the_clock,
        a_partition_that_never_had_a_record_does_no_harm,
        a_slow_partition_beside_a_fast_one_is_not_closed_early,
        a_transactions_control_record_at_the_end_does_not_keep_windows_open,
        an_open_upstream_transaction_keeps_windows_open_until_it_commits,
        an_open_upstream_transaction_keeps_windows_open_until_it_aborts,
        a_feed_fifteen_minutes_behind_keeps_its_candles_whole_over_quiet_moments,
        a_file_of_last_years_ticks_sent_in_bursts_keeps_its_candles_whole,
        the_very_first_record_has_outputs_at_least_once,
        the_very_first_record_has_outputs_exactly_once,
        aborted_records_at_a_batchs_end_are_passed_over,
        records_that_compaction_took_away_are_passed_over,
        a_run_until_the_end_closes_everything_and_stores_that_watermark,
        a_run_until_the_end_waits_for_no_empty_partition,
        a_run_until_the_end_closes_what_a_worker_before_left_open,
        a_late_tick_is_dropped_from_its_candle_and_counted,
        a_late_tick_is_diverted_with_the_intervals_it_missed,
        a_late_tick_revises_its_candle,
        what_is_late_beyond_keep_revises_nothing,
    )
}

/// The lateness of workers that wait for the clock, below the idle grace of 500 ms: so the grace is the longer one.
const LATENESS: Duration = Duration::from_millis(300);
const IDLE_GRACE: i64 = 500;

fn by_the_clock(config: &mut Config) {
    config.candles.intervals = intervals("1s");
    config.candles.lateness = LATENESS;
}

/// The end of the second that holds `ts`.
fn second_end(ts: i64) -> i64 {
    ts - ts % 1000 + 1000
}

fn wait_for_the_clock(at: i64) -> anyhow::Result<()> {
    wait_until(PATIENCE, "the clock", || now() >= at)
}

// ---- silence

fn quiet_partitions_close_their_last_windows_by_the_clock(stage: &Stage) -> anyhow::Result<()> {
    /// On top of the grace: a question to the broker, a script, and a busy machine.
    const LITTLE: i64 = 2_000;
    let scene = Scene::with(stage, 2, by_the_clock)?;
    let worker = scene.start();
    scene.wait_for_source(0, "next_offset", "0")?;
    scene.wait_for_source(1, "next_offset", "0")?;
    let ts = now();
    scene.send([to(0, tick("BBCA", "100", ts)), to(1, tick("TLKM", "200", ts))])?;
    scene.wait_for_candles(2)?;
    worker.stop()?;

    for record in scene.output(&scene.config.output.candles)? {
        let after_the_end = record.timestamp - second_end(ts);
        assert!(
            (IDLE_GRACE..IDLE_GRACE + LITTLE).contains(&after_the_end),
            "sent {after_the_end} ms after its end"
        );
    }
    Ok(())
}

fn a_partition_that_never_had_a_record_does_no_harm(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 3, by_the_clock)?;
    let worker = scene.start();
    scene.send([to(1, tick("BBCA", "100", now()))])?;
    scene.wait_for_candles(1)?;
    assert_eq!(worker.reasons_against(), Vec::<String>::new());
    for empty in [0, 2] {
        scene.wait_for_source(empty, "next_offset", "0")?;
        assert_eq!(scene.source_field(empty, "watermark")?, "", "there is no time where nothing ever happened");
    }
    worker.stop()?;
    Ok(())
}

fn a_slow_partition_beside_a_fast_one_is_not_closed_early(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 2, |_| {})?;
    let worker = scene.start();
    let at = |seconds: i64| MINUTE + seconds * 1000;
    scene.send([to(1, tick("SLOW", "1", at(0)))])?;
    scene.send((0..10).map(|minute| to(0, tick("FAST", "1", at(minute * 60)))))?;
    let fast = scene.wait_for_candles(9)?;
    assert!(fast.iter().all(|candle| candle.starts_with("FAST")), "{fast:?}");

    scene.send([to(1, tick("SLOW", "2", at(30))), to(1, tick("SLOW", "3", at(62)))])?;
    let all = scene.wait_for_candles(10)?;
    assert_eq!(all[9], "SLOW 1m 0 1 2 1 2 2 2 final");
    assert_eq!(worker.stop()?.late, 0);
    Ok(())
}

fn a_transactions_control_record_at_the_end_does_not_keep_windows_open(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 1, by_the_clock)?;
    let worker = scene.start();
    let ts = now();
    let ticks = [tick("BBCA", "100", ts), tick("BBCA", "101", ts)];
    stage.produce_transaction(&scene.config.kafka.topic, ticks, true)?;

    let start = second_end(ts) - 1000 - MINUTE;
    assert_eq!(scene.wait_for_candles(1)?, [format!("BBCA 1s {start} 100 101 100 101 2 2 final")]);
    worker.stop()?;
    Ok(())
}

/// A transactional producer of somebody upstream.
struct Upstream(BaseProducer);

impl Upstream {
    fn begin(scene: &Scene) -> anyhow::Result<Upstream> {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", scene.stage.brokers())
            .set("transactional.id", scene.stage.unique("upstream"))
            .create()?;
        producer.init_transactions(PATIENCE)?;
        producer.begin_transaction()?;
        Ok(Upstream(producer))
    }

    fn send(&self, topic: &str, message: &Message) -> anyhow::Result<()> {
        let record = BaseRecord::<String, String>::to(topic).payload(&message.value);
        self.0.send(record).map_err(|(error, _)| error)?;
        Ok(self.0.flush(PATIENCE)?)
    }

    fn commit(self) -> anyhow::Result<()> {
        Ok(self.0.commit_transaction(PATIENCE)?)
    }

    fn abort(self) -> anyhow::Result<()> {
        Ok(self.0.abort_transaction(PATIENCE)?)
    }
}

fn an_open_upstream_transaction_keeps_windows_open_until_it_commits(stage: &Stage) -> anyhow::Result<()> {
    let (candles, start) = candles_around_a_transaction(stage, Upstream::commit)?;
    assert_eq!(candles, [format!("BBCA 1s {start} 100 101 100 101 2 2 final")]);
    Ok(())
}

fn an_open_upstream_transaction_keeps_windows_open_until_it_aborts(stage: &Stage) -> anyhow::Result<()> {
    let (candles, start) = candles_around_a_transaction(stage, Upstream::abort)?;
    assert_eq!(candles, [format!("BBCA 1s {start} 100 100 100 100 1 1 final")]);
    Ok(())
}

/// A tick, then one of the same time in a transaction that stays open beyond the time at which the window would have
/// closed, then its end. Returns the candles, and when the one candle starts.
fn candles_around_a_transaction(
    stage: &Stage,
    end: fn(Upstream) -> anyhow::Result<()>,
) -> anyhow::Result<(Vec<String>, i64)> {
    const GRACE: i64 = 1_500; // the transaction's record has to be there before the window closes
    let scene = Scene::with(stage, 1, |config| {
        by_the_clock(config);
        config.candles.idle_grace = Duration::from_millis(GRACE as u64);
    })?;
    let worker = scene.start();
    scene.wait_for_source(0, "next_offset", "0")?;
    let upstream = Upstream::begin(&scene)?;
    let ts = now();
    scene.send([tick("BBCA", "100", ts)])?;
    upstream.send(&scene.config.kafka.topic, &tick("BBCA", "101", ts))?;

    wait_for_the_clock(second_end(ts) + GRACE + 1_000)?;
    scene.wait_for_source(0, "state", "asking")?;
    let reason = scene.source_field(0, "reason")?;
    assert!(reason.contains("an open transaction"), "{reason}");
    assert_eq!(scene.candles()?, Vec::<String>::new(), "nothing is closed while records may be hidden");
    end(upstream)?;
    let candles = scene.wait_for_candles(1)?;
    assert_eq!(worker.stop()?.late, 0);
    Ok((candles, second_end(ts) - 1000 - MINUTE))
}

fn a_feed_fifteen_minutes_behind_keeps_its_candles_whole_over_quiet_moments(stage: &Stage) -> anyhow::Result<()> {
    let behind = now() - 15 * 60_000;
    bursts_make_a_whole_candle(stage, behind - behind % 60_000)
}

fn a_file_of_last_years_ticks_sent_in_bursts_keeps_its_candles_whole(stage: &Stage) -> anyhow::Result<()> {
    bursts_make_a_whole_candle(stage, MINUTE)
}

/// A minute of one tick a second in three bursts, with a quiet moment longer than the grace between them.
fn bursts_make_a_whole_candle(stage: &Stage, minute: i64) -> anyhow::Result<()> {
    const QUIET: i64 = IDLE_GRACE + 700;
    let scene = Scene::with(stage, 1, |config| config.candles.lateness = LATENESS)?;
    let worker = scene.start();
    let send = |seconds: Range<i64>| {
        scene.send(seconds.map(|second| tick("BBCA", &(second + 1).to_string(), minute + second * 1000)))
    };
    for burst in [0..11, 11..31] {
        let sent = burst.end;
        send(burst)?;
        scene.wait_for_source(0, "next_offset", &sent.to_string())?;
        let applied_at: i64 = scene.source_field(0, "max_ts_at")?.parse()?;
        wait_for_the_clock(applied_at + QUIET)?;
        assert_eq!(scene.candles()?, Vec::<String>::new(), "closed by a quiet second");
    }
    send(31..60)?;
    scene.send([tick("BBCA", "1", minute + 61_000)])?;
    let found = scene.wait_for_candles(1)?;
    let start = minute - MINUTE;
    assert_eq!(found, [format!("BBCA 1m {start} 1 60 1 60 60 60 final")]);
    assert_eq!(worker.stop()?.late, 0);
    Ok(())
}

// ---- the log

fn the_very_first_record_has_outputs_at_least_once(stage: &Stage) -> anyhow::Result<()> {
    outputs_at_offset_zero(stage, Guarantee::AtLeastOnce)
}

fn the_very_first_record_has_outputs_exactly_once(stage: &Stage) -> anyhow::Result<()> {
    outputs_at_offset_zero(stage, Guarantee::ExactlyOnce)
}

fn outputs_at_offset_zero(stage: &Stage, guarantee: Guarantee) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 2, |config| config.kafka.processing_guarantee = guarantee)?;
    scene.rule("BBCA", "level:above", "100", ">= high")?;
    scene.send([to(0, tick("BBCA", "101", MINUTE)), to(1, tick("BBCA", r#""no price""#, MINUTE))])?;
    scene.run_until_end()?;

    let ids: Vec<String> = scene.notification_list()?.into_iter().map(|n| n.id).collect();
    assert_eq!(ids, [format!("{}/0/0/level/>=/high", scene.config.kafka.topic)]);
    let letters = scene.dead_letters()?;
    let origins: Vec<_> =
        letters.iter().map(|l| (l.header("source.partition"), l.header("source.offset"))).collect();
    assert_eq!(origins, [(Some("1"), Some("0"))]);
    Ok(())
}

fn aborted_records_at_a_batchs_end_are_passed_over(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 1, |config| config.worker.max_batch = 2)?;
    scene.rule("BBCA", "level:above", "0", ">= each")?;
    let aborted = || (1..=3).map(|second| tick("BBCA", "666", MINUTE + second * 1000));
    scene.send_prices("BBCA", &["100", "101"])?;
    stage.produce_transaction(&scene.config.kafka.topic, aborted(), false)?;

    let worker = scene.start();
    scene.wait_for_source(0, "next_offset", "6")?; // two ticks, three aborted, their control record
    wait_until(PATIENCE, "the commit of what lies behind the aborted records", || {
        committed_offset(&scene).is_ok_and(|offset| offset == Some(6))
    })?;
    worker.stop()?;

    stage.produce_transaction(&scene.config.kafka.topic, aborted(), false)?;
    scene.send([tick("BBCA", "102", MINUTE + 5_000)])?;
    scene.run_until_end()?;
    assert_eq!(scene.candles()?, ["BBCA 1m 0 100 102 100 102 3 3 final"]);
    assert_eq!(scene.notifications()?.len(), 3);
    Ok(())
}

fn records_that_compaction_took_away_are_passed_over(stage: &Stage) -> anyhow::Result<()> {
    let compacted = [("cleanup.policy", "compact"), ("segment.ms", "100"), ("min.cleanable.dirty.ratio", "0.01")];
    let scene = Scene::with_topic(stage, 1, &compacted, |config| config.worker.max_batch = 1)?;
    scene.rule("BBCA", "level:above", "0", ">= each")?;
    scene.send_prices("BBCA", &["100", "101", "102"])?;
    scene.send([tick("TLKM", "5", MINUTE)])?;
    let left = || stage.consume_all(&scene.config.kafka.topic, Isolation::ReadCommitted);
    let mut sent = 4;
    wait_until(PATIENCE, "the cleaner", || {
        // A segment is rolled, and can be cleaned, when something follows it.
        sent += scene.send([tick("TLKM", "6", MINUTE + 1_000)]).map_or(0, |sent| sent.len());
        left().is_ok_and(|records| records.iter().all(|record| record.offset >= 2))
    })?;

    scene.run_until_end()?;
    assert_eq!(scene.notifications()?.len(), 1, "100 and 101 are gone from the log");
    let candles = scene.candles()?;
    assert_eq!(candles[0], "BBCA 1m 0 102 102 102 102 1 1 final");
    assert_eq!(scene.source_field(0, "next_offset")?, sent.to_string());
    assert_eq!(committed_offset(&scene)?, Some(sent as i64));
    Ok(())
}

fn committed_offset(scene: &Scene) -> anyhow::Result<Option<i64>> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", scene.stage.brokers())
        .set("group.id", &scene.config.kafka.group)
        .create()?;
    let mut asked = TopicPartitionList::new();
    asked.add_partition(&scene.config.kafka.topic, 0);
    let found = consumer.committed_offsets(asked, PATIENCE)?;
    Ok(found.elements()[0].offset().to_raw())
}

// ---- bounded runs

fn a_run_until_the_end_closes_everything_and_stores_that_watermark(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 1, |config| config.candles.intervals = intervals("1s 1m"))?;
    scene.send([tick("BBCA", "100", MINUTE), tick("BBCA", "101", MINUTE + 61_500)])?;
    scene.run_until_end()?;

    assert_eq!(
        scene.candles()?,
        [
            "BBCA 1m 0 100 100 100 100 1 1 final",
            "BBCA 1m 60000 101 101 101 101 1 1 final",
            "BBCA 1s 0 100 100 100 100 1 1 final",
            "BBCA 1s 61000 101 101 101 101 1 1 final",
        ]
    );
    assert_eq!(scene.source_field(0, "watermark")?, (MINUTE + 120_000).to_string());
    assert_eq!(committed_offset(&scene)?, Some(2));
    let due: u64 = stage.redis()?.zcard(scene.keys().due(&scene.partition(0)))?;
    assert_eq!(due, 0);

    scene.send([tick("BBCA", "102", MINUTE + 119_000)])?;
    assert_eq!(scene.run_until_end()?.late, 1, "a tick before the stored watermark is late");
    assert_eq!(scene.candles()?.len(), 4);
    Ok(())
}

fn a_run_until_the_end_waits_for_no_empty_partition(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 3, |_| {})?;
    scene.send([to(2, tick("BBCA", "100", MINUTE))])?;
    scene.run_until_end()?;
    assert_eq!(scene.candles()?, ["BBCA 1m 0 100 100 100 100 1 1 final"]);
    Ok(())
}

fn a_run_until_the_end_closes_what_a_worker_before_left_open(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    scene.send_prices("BBCA", &["100", "101"])?;
    let worker = scene.start();
    wait_until(PATIENCE, "the commit of the last offset", || {
        committed_offset(&scene).is_ok_and(|offset| offset == Some(2))
    })?;
    worker.stop()?;
    assert!(scene.candles()?.is_empty());

    scene.run_until_end()?;
    assert_eq!(scene.candles()?, ["BBCA 1m 0 100 101 100 101 2 2 final"]);
    Ok(())
}

// ---- late ticks

/// A tick that is late for its minute and not for its hour, under `policy`.
fn one_late_tick(stage: &Stage, policy: LatePolicy) -> anyhow::Result<(Scene<'_>, Summary)> {
    let scene = Scene::with(stage, 1, |config| {
        config.candles.intervals = intervals("1m 1h");
        config.candles.late = policy;
    })?;
    scene.rule("BBCA", "level:below", "95", "< low")?;
    scene.send([
        tick("BBCA", "100", MINUTE + 1_000),
        tick("BBCA", "101", MINUTE + 62_000),
        tick("BBCA", "90", MINUTE + 5_000),
    ])?;
    let summary = scene.run_until_end()?;
    assert_eq!(summary.late, 1);
    assert!(scene.notifications()?.is_empty(), "older than its symbol's last tick, it fires nothing");
    Ok((scene, summary))
}

/// The hour that holds [`MINUTE`] starts so much before it.
const HOUR: i64 = -(MINUTE % 3_600_000);

fn a_late_tick_is_dropped_from_its_candle_and_counted(stage: &Stage) -> anyhow::Result<()> {
    let (scene, _) = one_late_tick(stage, LatePolicy::Drop)?;
    assert_eq!(
        scene.candles()?,
        [
            format!("BBCA 1h {HOUR} 100 101 90 101 3 3 final"),
            "BBCA 1m 0 100 100 100 100 1 1 final".into(),
            "BBCA 1m 60000 101 101 101 101 1 1 final".into(),
        ]
    );
    assert!(scene.output(&scene.config.late_topic())?.is_empty());
    assert_eq!(scene.source_field(0, "late")?, "1");
    Ok(())
}

fn a_late_tick_is_diverted_with_the_intervals_it_missed(stage: &Stage) -> anyhow::Result<()> {
    let (scene, _) = one_late_tick(stage, LatePolicy::Divert)?;
    let late = scene.output(&scene.config.late_topic())?;
    assert_eq!(late.len(), 1, "{late:?}");
    assert_eq!(late[0].key.as_deref(), Some("BBCA"));
    assert_eq!(late[0].value, format!(r#"{{"symbol":"BBCA","price":90,"volume":1,"ts":{}}}"#, MINUTE + 5_000));
    assert_eq!(late[0].header("late.intervals"), Some("1m"));
    assert_eq!(late[0].header("source.topic"), Some(scene.config.kafka.topic.as_str()));
    assert_eq!(late[0].header("source.partition"), Some("0"));
    assert_eq!(late[0].header("source.offset"), Some("2"));
    assert_eq!(scene.candles()?.len(), 3);
    Ok(())
}

fn a_late_tick_revises_its_candle(stage: &Stage) -> anyhow::Result<()> {
    let (scene, _) = one_late_tick(stage, LatePolicy::Revise)?;
    let minute: Vec<_> =
        scene.candle_list()?.into_iter().filter(|c| c.interval == "1m" && c.start == MINUTE).collect();
    let told: Vec<String> = minute.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["BBCA 1m 0 100 100 100 100 1 1 final", "BBCA 1m 0 100 100 90 90 2 2 revised"]);
    let revisions: Vec<i64> = minute.iter().map(|candle| candle.revision).collect();
    assert_eq!(revisions, [0, 3], "a revision is the offset of the tick that caused it, and one");

    let key = scene.keys().candle("BBCA", intervals("1m")[0], MINUTE);
    let stored: (String, String, String) = stage.redis()?.hmget(&key, &["status", "low", "revision"])?;
    assert_eq!(stored, ("revised".into(), "90".into(), "3".into()));
    Ok(())
}

fn what_is_late_beyond_keep_revises_nothing(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 1, |config| {
        config.candles.late = LatePolicy::Revise;
        config.candles.keep = Duration::from_secs(590);
    })?;
    scene.send([
        tick("BBCA", "100", MINUTE),
        tick("BBCA", "101", MINUTE + 660_000),
        tick("BBCA", "90", MINUTE),
        tick("BBCA", "91", MINUTE + 60_000),
    ])?;
    assert_eq!(scene.run_until_end()?.late, 2);
    assert_eq!(
        scene.candles()?,
        [
            "BBCA 1m 0 100 100 100 100 1 1 final",
            "BBCA 1m 60000 91 91 91 91 1 1 revised",
            "BBCA 1m 660000 101 101 101 101 1 1 final",
        ]
    );
    Ok(())
}
