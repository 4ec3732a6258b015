//! Ticks in, notifications and candles out, by the program as users run it, against what plain code expects.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use redis::Commands as _;
use serde_json::Value;
use tickwatch::cli::demo;
use tickwatch::config::{Config, LatePolicy, Numbers};

use crate::harness::{Case, Isolation, Needs, Stage, Worker, cases, program};
use crate::market::{Expected, Market, START_PRICE, Walk, tick};

/// How long a bounded run may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both;
        the_demo_scenario_comes_out_record_by_record,
        the_demo_command_counts_what_plain_code_counts,
        numbers_are_text_where_that_is_asked_for,
        a_record_that_is_no_tick_hurts_no_neighbour,
        a_random_stream_with_late_ticks_dropped,
        a_random_stream_with_late_ticks_diverted,
        a_random_stream_with_late_ticks_revising,
        a_configuration_file_and_the_environment_are_all_a_worker_needs,
        a_second_bounded_run_sends_nothing_again,
    )
}

fn the_demo_scenario_comes_out_record_by_record(stage: &Stage) -> anyhow::Result<()> {
    let market = demo_market(stage, |_| {})?;
    let summary = run_until_end(&market)?;

    let expected = market.expected();
    assert_eq!(market.check()?, 0, "nothing is sent twice");
    assert_eq!(summary["ticks"], demo::scenario().count());
    assert_eq!(summary["notifications"], count(&expected, "notification "));
    assert_eq!(summary["candles"], count(&expected, "candle "));
    assert_nothing_pending(&market)?;
    market.check_order()
}

fn the_demo_command_counts_what_plain_code_counts(stage: &Stage) -> anyhow::Result<()> {
    let expected = demo_market(stage, |_| {})?.expected();
    let output = program().args(["demo", "--json"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));

    let counted: Value = serde_json::from_str(&text).with_context(|| text.clone().into_owned())?;
    let of_trigger = |trigger| expected.outputs.values().filter(|value| value.contains(trigger)).count();
    assert_eq!(counted["ticks"], demo::scenario().count());
    assert_eq!(counted["edge"], of_trigger(r#""trigger":"edge""#));
    assert_eq!(counted["level"], of_trigger(r#""trigger":"level""#));
    assert_eq!(counted["candles"], count(&expected, "candle "));
    Ok(())
}

fn numbers_are_text_where_that_is_asked_for(stage: &Stage) -> anyhow::Result<()> {
    let market = demo_market(stage, |config| config.output.numbers = Numbers::String)?;
    run_until_end(&market)?;
    market.check()?;

    let candles = stage.consume_all(&market.config.output.candles, Isolation::ReadCommitted)?;
    let candle = candles.first().context("there are candles")?.json()?;
    for field in ["open", "high", "low", "close", "volume"] {
        assert!(candle[field].is_string(), "{field} of {candle}");
    }
    for field in ["start", "end", "count", "revision"] {
        assert!(candle[field].is_i64(), "{field} of {candle}");
    }
    Ok(())
}

fn a_record_that_is_no_tick_hurts_no_neighbour(stage: &Stage) -> anyhow::Result<()> {
    let mut market = Market::open(stage, 1, |_| {})?;
    market.put_rule("BBCA", "edge", ">=", 950_000, "alice")?;
    market.send([tick("BBCA", 9490, 0)])?;
    for value in ["", "no JSON", r#"{"symbol":"BBCA","ts":1700000000001}"#, r#"{"symbol":"BBCA","price":1}"#] {
        market.send_bad("BBCA", value)?;
    }
    market.send([tick("BBCA", 9500, 10)])?;
    let summary = run_until_end(&market)?;

    market.check()?;
    assert_eq!(summary["dead_letters"], 4);
    for letter in stage.consume_all(&market.config.dead_letter_topic(), Isolation::ReadCommitted)? {
        assert!(!letter.header("error").unwrap_or_default().is_empty(), "{letter:?} says why");
    }
    Ok(())
}

fn a_random_stream_with_late_ticks_dropped(stage: &Stage) -> anyhow::Result<()> {
    random_stream(stage, LatePolicy::Drop)
}

fn a_random_stream_with_late_ticks_diverted(stage: &Stage) -> anyhow::Result<()> {
    random_stream(stage, LatePolicy::Divert)
}

fn a_random_stream_with_late_ticks_revising(stage: &Stage) -> anyhow::Result<()> {
    random_stream(stage, LatePolicy::Revise)
}

fn a_configuration_file_and_the_environment_are_all_a_worker_needs(stage: &Stage) -> anyhow::Result<()> {
    let mut market = Market::open(stage, 2, |config| {
        config.candles.intervals = vec!["250ms".parse().expect("a valid interval")];
        config.candles.lateness = Duration::from_secs(1);
    })?;
    market.put_rule("BBCA", "level", ">", START_PRICE, "alice")?;
    market.send(Walk::new(7, ["BBCA", "TLKM"], 0).take(200))?;

    let directory = tempfile::tempdir()?;
    let Config { namespace, kafka, output, .. } = &market.config;
    let file = format!(
        r#"
        namespace = "{namespace}"
        [kafka]
        brokers = "{}"
        group = "{}"
        topic = "{}"
        [candles]
        intervals = ["250ms"]
        lateness = "1s"
        [output]
        notifications = "{}"
        candles = "{}"
        [http]
        listen = "127.0.0.1:0"
        "#,
        kafka.brokers, kafka.group, kafka.topic, output.notifications, output.candles
    );
    fs::write(directory.path().join("tickwatch.toml"), file)?;
    let output = program()
        .current_dir(directory.path())
        .env("TICKWATCH_REDIS__URL", stage.redis_url())
        .args(["run", "--until-end"])
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let summary: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(summary["ticks"], 200);
    market.check()?;
    Ok(())
}

fn a_second_bounded_run_sends_nothing_again(stage: &Stage) -> anyhow::Result<()> {
    let market = demo_market(stage, |_| {})?;
    run_until_end(&market)?;
    let summary = run_until_end(&market)?;
    for count in ["ticks", "notifications", "candles", "late", "dead_letters"] {
        assert_eq!(summary[count], 0, "{count}");
    }
    assert_eq!(market.check()?, 0, "nothing is sent twice");
    Ok(())
}

/// Several symbols on three partitions, out of order, with equal times, three intervals, every operator.
fn random_stream(stage: &Stage, late: LatePolicy) -> anyhow::Result<()> {
    const TICKS: usize = 4_000;
    let mut market = Market::open(stage, 3, |config| {
        config.candles.intervals = ["50ms", "1s", "1m"].map(|text| text.parse().expect("a valid interval")).into();
        config.candles.late = late;
        // Some late ticks lie beyond it. Closed candles stay for twice as long by the wall clock.
        config.candles.keep = Duration::from_mins(1);
        // Small batches: windows close, and late ticks come, across batches as well as within one.
        config.worker.max_batch = 100;
    })?;
    let symbols = ["BBCA", "BRK.B", "BTC/USDT:USDT", "A B", "100%", "{BTC}", "币安人生USDT"];
    for symbol in symbols {
        for (number, op) in ["<", "<=", "=", ">=", ">"].into_iter().enumerate() {
            for trigger in ["edge", "level"] {
                let threshold = START_PRICE + 100 * number as i64 - 200;
                market.put_rule(symbol, trigger, op, threshold, &format!("rule {number}"))?;
            }
        }
    }
    market.send(Walk::new(late as u64, symbols, 100_000).take(TICKS))?;
    let summary = run_until_end(&market)?;

    let expected = market.expected();
    assert_eq!(market.check()?, 0, "nothing is sent twice");
    assert_eq!(summary["ticks"], TICKS);
    assert_eq!(summary["notifications"], count(&expected, "notification "));
    assert_eq!(summary["candles"], count(&expected, "candle "));
    let late_ticks = summary["late"].as_u64().unwrap_or_default();
    assert!(late_ticks > 100, "the stream is out of order enough: {late_ticks} late ticks");
    if late == LatePolicy::Divert {
        assert_eq!(late_ticks as usize, count(&expected, "late "));
    }
    assert_nothing_pending(&market)
}

/// The scenario and the rules of the demo on a market of its own.
fn demo_market(stage: &Stage, change: impl FnOnce(&mut Config)) -> anyhow::Result<Market<'_>> {
    let mut market = Market::open(stage, 2, |config| {
        config.candles.intervals = vec!["50ms".parse().expect("a valid interval")];
        config.candles.lateness = Duration::from_secs(2);
        change(config);
    })?;
    for (symbol, op, threshold, id) in demo::rules() {
        for trigger in ["edge", "level"] {
            market.put_rule(symbol, trigger, op, threshold * 100, id)?;
        }
    }
    market.send(demo::scenario().map(|(symbol, price, after)| tick(symbol, price, after)))?;
    Ok(market)
}

/// `run --until-end`; the summary it prints.
fn run_until_end(market: &Market) -> anyhow::Result<Value> {
    let mut worker = Worker::start_with(&market.config, &["--until-end"], &[])?;
    let status = worker.wait(PATIENCE)?;
    ensure!(status.success(), "{}", worker.logs());
    let logs = worker.logs();
    let summary = logs.lines().find(|line| line.starts_with(r#"{"ticks""#));
    serde_json::from_str(summary.with_context(|| logs.clone())?).context("the summary is JSON")
}

fn count(expected: &Expected, what: &str) -> usize {
    expected.outputs.keys().filter(|name| name.starts_with(what)).count()
}

fn assert_nothing_pending(market: &Market) -> anyhow::Result<()> {
    let mut redis = market.redis()?;
    for family in ["outbox", "due"] {
        let keys: Vec<String> = redis.keys(market.key(&format!("{family}:*")))?;
        for key in keys {
            let kind: String = redis::cmd("TYPE").arg(&key).query(&mut redis)?;
            let length: usize = if kind == "stream" { redis.xlen(&key)? } else { redis.zcard(&key)? };
            assert_eq!(length, 0, "{key}");
        }
    }
    Ok(())
}
