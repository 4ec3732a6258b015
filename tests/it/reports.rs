//! Faults that users of other alerting and candle services have reported in public, each as a test of the right value.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use redis::Commands as _;
use tickwatch::config::{PriceZero, Scalar, TsUnit};

use crate::harness::{Case, Message, Needs, Stage, cases, wait_until};
use crate::scene::{MINUTE, PATIENCE, Scene, intervals, now, tick, tick_of_volume, to};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both;
        a_price_of_zero_among_others_is_a_dead_letter,
        a_price_of_zero_counts_where_it_is_accepted,
        the_close_is_the_latest_by_event_time_though_an_older_tick_arrives_last,
        a_tick_just_before_the_end_counts_inside_the_lateness_and_not_after_the_close,
        one_tick_and_then_silence_still_makes_a_candle,
        a_week_starts_on_monday,
        microseconds_read_as_milliseconds_are_refused,
        a_volume_that_is_null_or_missing_is_zero_and_one_that_is_no_number_is_refused,
        a_volume_that_is_required_is_refused_where_it_is_null_or_missing,
        small_prices_are_printed_without_an_exponent,
        a_symbol_in_chinese_is_like_any_other,
        a_crossing_is_told_once_though_the_worker_restarts_below_the_threshold,
        hovering_at_a_threshold_fires_once,
        a_price_longer_than_a_double_touches_the_threshold_and_does_not_pass_it,
        a_jump_over_a_threshold_reports_the_price_it_jumped_to,
        every_crossing_fires_and_a_rule_set_to_fire_once_fires_once,
        an_empty_partition_beside_a_full_one_holds_no_candle_back,
        offsets_moved_back_by_hand_send_nothing_twice,
        a_partition_given_up_before_its_commit_sends_the_same_notification_id,
        flushed_scripts_are_loaded_again,
        a_candle_key_of_a_wrong_type_stops_its_symbol_only,
        braces_in_a_symbol_are_letters_like_others,
        a_small_price_with_nanoseconds_finds_its_window,
        volumes_are_added_without_loss,
    )
}

fn a_price_of_zero_among_others_is_a_dead_letter(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    scene.rule("BBCA", "level:below", "50", "< crash")?;
    scene.send_prices("BBCA", &["100", "0", "101"])?;
    scene.run_until_end()?;

    assert_eq!(scene.candles()?, ["BBCA 1m 0 100 101 100 101 2 2 final"]);
    assert!(scene.notifications()?.is_empty());
    let letters = scene.dead_letters()?;
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0].header("source.offset"), Some("1"));
    assert!(letters[0].header("error").is_some_and(|error| error.contains("is zero")), "{letters:?}");
    Ok(())
}

fn a_price_of_zero_counts_where_it_is_accepted(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 1, |config| config.input.price_zero = Some(PriceZero::Accept))?;
    scene.rule("BBCA", "edge", "50", "< crash")?;
    scene.send_prices("BBCA", &["100", "0", "101"])?;
    scene.run_until_end()?;

    assert_eq!(scene.candles()?, ["BBCA 1m 0 100 101 0 101 3 3 final"]);
    assert_eq!(scene.notifications()?, ["BBCA crash edge < 50: 100 -> 0"]);
    assert!(scene.dead_letters()?.is_empty());
    Ok(())
}

fn the_close_is_the_latest_by_event_time_though_an_older_tick_arrives_last(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    scene.send([("100", 10_000), ("110", 50_000), ("90", 30_000)].map(|(p, at)| tick("BBCA", p, MINUTE + at)))?;
    scene.run_until_end()?;

    assert_eq!(scene.candles()?, ["BBCA 1m 0 100 110 90 110 3 3 final"]);
    let price: String = stage.redis()?.hget(scene.keys().last("BBCA"), "price")?;
    assert_eq!(price, "110", "the last price is the latest by event time too");
    Ok(())
}

fn a_tick_just_before_the_end_counts_inside_the_lateness_and_not_after_the_close(
    stage: &Stage,
) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    let just_before = MINUTE + 59_900;
    scene.send([
        tick("BBCA", "100", MINUTE + 1_000),
        tick("BBCA", "101", MINUTE + 60_500),
        tick("BBCA", "102", just_before),
        tick("BBCA", "103", MINUTE + 62_000),
        tick("BBCA", "999", just_before),
    ])?;
    let summary = scene.run_until_end()?;

    assert_eq!(
        scene.candles()?,
        ["BBCA 1m 0 100 102 100 102 2 2 final", "BBCA 1m 60000 101 103 101 103 2 2 final"]
    );
    assert_eq!(summary.late, 1);
    Ok(())
}

fn one_tick_and_then_silence_still_makes_a_candle(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 1, |config| {
        config.candles.intervals = intervals("1s");
        config.candles.lateness = Duration::from_millis(300);
    })?;
    let worker = scene.start();
    let ts = now();
    scene.send([tick("BBCA", "100", ts)])?;

    let start = ts - ts % 1000 - MINUTE;
    assert_eq!(scene.wait_for_candles(1)?, [format!("BBCA 1s {start} 100 100 100 100 1 1 final")]);
    worker.stop()?;
    Ok(())
}

fn a_week_starts_on_monday(stage: &Stage) -> anyhow::Result<()> {
    const MONDAY: i64 = 1_699_833_600_000; // 2023-11-13T00:00:00Z
    const WEEK: i64 = 7 * 86_400_000;
    let scene = Scene::with(stage, 1, |config| config.candles.intervals = intervals("1w"))?;
    scene.send([
        tick("BBCA", "99", MONDAY - WEEK),
        tick("BBCA", "100", MONDAY - 1),
        tick("BBCA", "101", MONDAY),
        tick("BBCA", "102", MONDAY + WEEK - 1),
    ])?;
    scene.run_until_end()?;

    let found = scene.candle_list()?;
    let weeks: Vec<(i64, i64, u64)> = found.iter().map(|c| (c.start, c.end, c.count)).collect();
    assert_eq!(weeks, [(MONDAY - WEEK, MONDAY, 2), (MONDAY, MONDAY + WEEK, 2)]);
    Ok(())
}

fn microseconds_read_as_milliseconds_are_refused(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    scene.send([
        tick("BBCA", "100", MINUTE),
        tick("BBCA", "200", (MINUTE + 1_000) * 1_000),
        tick("BBCA", "101", MINUTE + 2_000),
    ])?;
    scene.run_until_end()?;

    assert_eq!(scene.candles()?, ["BBCA 1m 0 100 101 100 101 2 2 final"]);
    let letters = scene.dead_letters()?;
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert!(letters[0].header("error").is_some_and(|e| e.contains("ts_unit = \"us\"")), "{letters:?}");
    Ok(())
}

/// Ticks of one symbol with these fields after symbol, price and time.
fn with_volumes(fields: &[&str]) -> Vec<Message> {
    let record = |field: &&str| Message::from(("BBCA", format!(r#"{{"price":100,"ts":{MINUTE}{field}}}"#)));
    fields.iter().map(record).collect()
}

fn a_volume_that_is_null_or_missing_is_zero_and_one_that_is_no_number_is_refused(
    stage: &Stage,
) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    scene.send(with_volumes(&[
        r#","volume":5"#,
        r#","volume":null"#,
        "",
        r#","volume":NaN"#,
        r#","volume":"NaN""#,
        r#","volume":2.5"#,
    ]))?;
    scene.run_until_end()?;

    assert_eq!(scene.candles()?, ["BBCA 1m 0 100 100 100 100 7.5 4 final"]);
    assert_eq!(offsets_of_dead_letters(&scene)?, ["3", "4"]);
    Ok(())
}

fn a_volume_that_is_required_is_refused_where_it_is_null_or_missing(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 1, |config| config.input.volume_required = Some(true))?;
    scene.send(with_volumes(&[r#","volume":5"#, r#","volume":null"#, "", r#","volume":0"#]))?;
    scene.run_until_end()?;

    assert_eq!(scene.candles()?, ["BBCA 1m 0 100 100 100 100 5 2 final"]);
    assert_eq!(offsets_of_dead_letters(&scene)?, ["1", "2"]);
    Ok(())
}

fn offsets_of_dead_letters(scene: &Scene) -> anyhow::Result<Vec<String>> {
    let letters = scene.dead_letters()?;
    Ok(letters.iter().map(|letter| letter.header("source.offset").unwrap_or("none").to_owned()).collect())
}

fn small_prices_are_printed_without_an_exponent(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    scene.rule("SHIB", "edge", "0.00000011", "<= low")?;
    scene.rule("SHIB", "level:equal", "1.2e-7", "= same")?;
    scene.send_prices("SHIB", &[r#""0.00000012""#, r#""1.2e-7""#, "1.2e-7", "0.0000001"])?;
    scene.run_until_end()?;

    assert_eq!(scene.candles()?, ["SHIB 1m 0 0.00000012 0.00000012 0.0000001 0.0000001 4 4 final"]);
    assert_eq!(
        scene.notifications()?,
        [
            "SHIB low edge <= 0.00000011: 0.00000012 -> 0.0000001",
            "SHIB same level = 0.00000012: 0.00000012 -> 0.00000012",
            "SHIB same level = 0.00000012: 0.00000012 -> 0.00000012",
            "SHIB same level = 0.00000012: none -> 0.00000012",
        ]
    );
    let mut redis = stage.redis()?;
    let last: String = redis.hget(scene.keys().last("SHIB"), "price")?;
    let open: String = redis.hget(scene.keys().candle("SHIB", intervals("1m")[0], MINUTE), "open")?;
    assert_eq!((last.as_str(), open.as_str()), ("0.0000001", "0.00000012"));
    Ok(())
}

fn a_symbol_in_chinese_is_like_any_other(stage: &Stage) -> anyhow::Result<()> {
    const SYMBOL: &str = "币安人生USDT";
    let scene = Scene::new(stage)?;
    scene.rule(SYMBOL, "edge", "0.2", ">= 涨")?;
    scene.send_prices(SYMBOL, &["0.1", "0.25"])?;
    scene.run_until_end()?;

    assert_eq!(scene.candles()?, [format!("{SYMBOL} 1m 0 0.1 0.25 0.1 0.25 2 2 final")]);
    assert_eq!(scene.notifications()?, [format!("{SYMBOL} 涨 edge >= 0.2: 0.1 -> 0.25")]);
    let price: String = stage.redis()?.hget(format!("{}last:{SYMBOL}", scene.config.namespace), "price")?;
    assert_eq!(price, "0.25");
    Ok(())
}

fn a_crossing_is_told_once_though_the_worker_restarts_below_the_threshold(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    scene.rule("BBCA", "edge", "10", "< low")?;
    scene.send_prices("BBCA", &["12", "5"])?;
    let first = scene.start();
    assert_eq!(scene.wait_for_notifications(1)?, ["BBCA low edge < 10: 12 -> 5"]);
    first.stop()?;

    let second = scene.start();
    scene.send([tick("BBCA", "4", MINUTE + 5_000)])?;
    scene.wait_for_source(0, "next_offset", "3")?;
    second.stop()?;
    assert_eq!(scene.notifications()?.len(), 1);
    Ok(())
}

fn hovering_at_a_threshold_fires_once(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    scene.rule("BBCA", "edge", "100", ">= high")?;
    scene.send_prices("BBCA", &["99", "100.5", "99.5", "99.6"])?;
    scene.run_until_end()?;
    assert_eq!(scene.notifications()?, ["BBCA high edge >= 100: 99 -> 100.5"]);
    Ok(())
}

fn a_price_longer_than_a_double_touches_the_threshold_and_does_not_pass_it(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    scene.rule("BBCA", "edge", "10", ">= touched")?;
    scene.rule("BBCA", "edge", "10", "> passed")?;
    scene.send_prices("BBCA", &["9", "10.000000000000001", "9"])?;
    scene.run_until_end()?;
    assert_eq!(scene.notifications()?, ["BBCA touched edge >= 10: 9 -> 10"]);
    Ok(())
}

fn a_jump_over_a_threshold_reports_the_price_it_jumped_to(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    scene.rule("BBCA", "edge", "100", ">= high")?;
    scene.send_prices("BBCA", &["95", "140"])?;
    scene.run_until_end()?;
    assert_eq!(scene.notifications()?, ["BBCA high edge >= 100: 95 -> 140"]);
    Ok(())
}

fn every_crossing_fires_and_a_rule_set_to_fire_once_fires_once(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    scene.rule("BBCA", "edge", "100", ">= each")?;
    scene.rule("BBCA", "edge", "100", ">= first")?;
    scene.rule_options("BBCA", "first", r#"{"once":true}"#)?;
    scene.send_prices("BBCA", &["99", "101", "99", "101"])?;
    scene.run_until_end()?;

    assert_eq!(
        scene.notifications()?,
        [
            "BBCA each edge >= 100: 99 -> 101",
            "BBCA each edge >= 100: 99 -> 101",
            "BBCA first edge >= 100: 99 -> 101",
        ]
    );
    let left: Vec<String> = stage.redis()?.zrange(scene.keys().edge_rules("BBCA"), 0, -1)?;
    assert_eq!(left, [">= each"], "the rule that fires once is gone");
    Ok(())
}

fn an_empty_partition_beside_a_full_one_holds_no_candle_back(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 2, |_| {})?;
    let worker = scene.start();
    scene.send([to(0, tick("BBCA", "100", MINUTE)), to(0, tick("BBCA", "101", MINUTE + 62_000))])?;
    assert_eq!(scene.wait_for_candles(1)?, ["BBCA 1m 0 100 100 100 100 1 1 final"]);
    worker.stop()?;
    Ok(())
}

/// A rule that fires at every second tick, six hundred ticks, all of it delivered, then the group's offset set back to
/// 100 as a tool would: without our metadata.
fn read_and_set_back(scene: &Scene) -> anyhow::Result<()> {
    scene.rule("BBCA", "edge", "100", ">= high")?;
    let prices = ["99", "101"].into_iter().cycle();
    let ticks = (MINUTE..).step_by(10).zip(prices).map(|(ts, price)| tick("BBCA", price, ts));
    scene.send(ticks.take(600))?;
    scene.run_until_end()?;
    assert_eq!(scene.notifications()?.len(), 300);

    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", scene.stage.brokers())
        .set("group.id", &scene.config.kafka.group)
        .create()?;
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(&scene.config.kafka.topic, 0, Offset::Offset(100))?;
    consumer.commit(&offsets, CommitMode::Sync)?;
    Ok(())
}

fn offsets_moved_back_by_hand_send_nothing_twice(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    read_and_set_back(&scene)?;
    let candles = scene.candles()?;

    let worker = scene.start();
    scene.send([tick("BBCA", "99", MINUTE + 600_000), tick("BBCA", "102", MINUTE + 600_001)])?;
    scene.wait_for_notifications(301)?;
    worker.stop()?;

    let mut ids: Vec<String> = scene.notification_list()?.into_iter().map(|n| n.id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 301, "every id is there once");
    assert_eq!(scene.candles()?, candles, "no candle is sent again or changed");
    Ok(())
}

fn a_partition_given_up_before_its_commit_sends_the_same_notification_id(stage: &Stage) -> anyhow::Result<()> {
    let mut scene = Scene::with(stage, 1, |config| {
        config.worker.stop_deadline = Duration::from_millis(100);
        config.kafka.producer.insert("linger.ms".into(), Scalar("60000".into()));
    })?;
    scene.rule("BBCA", "edge", "100", ">= high")?;
    scene.send_prices("BBCA", &["99", "101"])?;
    let first = scene.start();
    scene.wait_for_source(0, "next_offset", "2")?;
    first.stop()?; // applied, and on its way to Kafka for a minute

    scene.config.kafka.producer.clear();
    let second = scene.start();
    wait_until(PATIENCE, "the notification", || scene.notifications().is_ok_and(|found| !found.is_empty()))?;
    second.stop()?;
    let ids: Vec<String> = scene.notification_list()?.into_iter().map(|n| n.id).collect();
    let expected = format!("{}/0/1/edge/>=/high", scene.config.kafka.topic);
    assert!(ids.iter().all(|id| *id == expected), "{ids:?}");
    Ok(())
}

fn flushed_scripts_are_loaded_again(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    scene.rule("BBCA", "level:above", "100", ">= high")?;
    let worker = scene.start();
    scene.send([tick("BBCA", "101", MINUTE)])?;
    scene.wait_for_notifications(1)?;

    let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut stage.redis()?)?;
    scene.send([tick("BBCA", "102", MINUTE + 1_000), tick("BBCA", "103", MINUTE + 62_000)])?;
    assert_eq!(scene.wait_for_candles(1)?, ["BBCA 1m 0 101 102 101 102 2 2 final"]);
    scene.wait_for_notifications(3)?;
    worker.stop()?;
    Ok(())
}

fn a_candle_key_of_a_wrong_type_stops_its_symbol_only(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    let key = scene.keys().candle("BAD", intervals("1m")[0], MINUTE);
    let () = stage.redis()?.set(&key, "somebody's")?;
    scene.send([tick("GOOD", "1", MINUTE), tick("BAD", "2", MINUTE), tick("GOOD", "3", MINUTE + 1_000)])?;
    scene.run_until_end()?;

    assert_eq!(scene.candles()?, ["GOOD 1m 0 1 3 1 3 2 2 final"]);
    let letters = scene.dead_letters()?;
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0].key.as_deref(), Some("BAD"));
    assert!(letters[0].header("error").is_some_and(|error| error.contains(&key)), "{letters:?}");
    let kept: String = stage.redis()?.get(&key)?;
    assert_eq!(kept, "somebody's");
    Ok(())
}

fn braces_in_a_symbol_are_letters_like_others(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    for symbol in ["{BTC}", "A}B{C"] {
        scene.rule(symbol, "edge", "100", ">= high")?;
        scene.send_prices(symbol, &["99", "101"])?;
    }
    scene.run_until_end()?;

    assert_eq!(scene.candles()?, ["A}B{C 1m 0 99 101 99 101 2 2 final", "{BTC} 1m 0 99 101 99 101 2 2 final"]);
    assert_eq!(scene.notifications()?, ["A}B{C high edge >= 100: 99 -> 101", "{BTC} high edge >= 100: 99 -> 101"]);
    Ok(())
}

fn a_small_price_with_nanoseconds_finds_its_window(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 1, |config| config.input.ts_unit = Some(TsUnit::Ns))?;
    let nanoseconds = |ms: i64| ms * 1_000_000 + 999_999;
    scene.send([
        tick("BBCA", "0.005", nanoseconds(MINUTE)),
        tick("BBCA", "0.006", nanoseconds(MINUTE + 59_999)),
        tick("BBCA", "0.007", nanoseconds(MINUTE + 60_000)),
    ])?;
    scene.run_until_end()?;
    assert_eq!(
        scene.candles()?,
        ["BBCA 1m 0 0.005 0.006 0.005 0.006 2 2 final", "BBCA 1m 60000 0.007 0.007 0.007 0.007 1 1 final"]
    );
    Ok(())
}

fn volumes_are_added_without_loss(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 1, |config| config.worker.max_batch = 1)?;
    scene.send(["5200", "10.43"].map(|volume| tick_of_volume("BBCA", "100", volume, MINUTE)))?;
    scene.send(["0.1", r#""0.2""#].map(|volume| tick_of_volume("TLKM", "100", volume, MINUTE)))?;
    scene.run_until_end()?;
    assert_eq!(
        scene.candles()?,
        ["BBCA 1m 0 100 100 100 100 5210.43 2 final", "TLKM 1m 0 100 100 100 100 0.3 2 final"]
    );
    Ok(())
}
