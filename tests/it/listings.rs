//! `tickwatch candles` and `tickwatch status`, on keys written here as a worker writes them.

use std::process::{Command, Output};

use anyhow::{Context as _, ensure};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use redis::Commands as _;
use serde_json::{Value, json};

use crate::harness::{Case, Message, Needs, PROGRAM, Stage, Terminal, cases, program};

/// 2026-12-31T00:00:00Z, ms.
const MIDNIGHT: i64 = 1_798_675_200_000;
const MINUTE: i64 = 60_000;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases!(Needs::Redis;
        candles_are_the_newest_ones_in_order_over_gaps,
        candles_of_a_range_are_those_that_start_in_it,
        candles_that_are_not_there_say_why,
        a_plot_is_as_wide_as_the_terminal_and_marks_what_is_open,
        status_without_kafka_tells_the_rest_and_never_the_token,
        without_redis_the_error_names_it,
    );
    cases.extend(cases!(Needs::Both; status_shows_the_lag_without_joining_the_group));
    cases
}

fn tickwatch(stage: &Stage, arguments: &[&str]) -> anyhow::Result<Output> {
    let directory = tempfile::tempdir()?;
    let mut command = Command::new(PROGRAM);
    command.current_dir(directory.path()).args(arguments);
    command.args(["--redis", stage.redis_url(), "--namespace", stage.namespace()]);
    Ok(command.output()?)
}

fn succeeded(output: &Output) -> anyhow::Result<String> {
    ensure!(output.status.success(), "failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout.clone())?)
}

fn json_of(output: &Output) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&succeeded(output)?)?)
}

/// Candles of three of five minutes, and a last tick in the fifth.
fn write_candles(stage: &Stage) -> anyhow::Result<()> {
    let mut redis = stage.redis()?;
    for (minute, status) in [(0, "final"), (1, "revised"), (4, "open")] {
        let name = format!("{}ohlc:BBCA:1m:{}", stage.namespace(), MIDNIGHT + minute * MINUTE);
        let fields = [
            ("open", "9500"),
            ("high", "9505.5"),
            ("low", "-1"),
            ("close", "9501"),
            ("volume", "5210.43"),
            ("count", "3"),
            ("open_ts", "1"),
            ("close_ts", "2"),
            ("status", status),
            ("revision", if status == "revised" { "43" } else { "0" }),
        ];
        let _: () = redis.hset_multiple(name, &fields)?;
    }
    let last = format!("{}last:BBCA", stage.namespace());
    let _: () =
        redis.hset_multiple(last, &[("price", "9501"), ("ts", &(MIDNIGHT + 4 * MINUTE + 5).to_string())])?;
    Ok(())
}

/// Minutes after midnight of the candles that were listed.
fn minutes(candles: &Value) -> Vec<i64> {
    let starts = candles.as_array().into_iter().flatten().filter_map(|candle| candle["start"].as_i64());
    starts.map(|start| (start - MIDNIGHT) / MINUTE).collect()
}

fn candles_are_the_newest_ones_in_order_over_gaps(stage: &Stage) -> anyhow::Result<()> {
    write_candles(stage)?;
    let all = json_of(&tickwatch(stage, &["candles", "BBCA", "60s", "--json"])?)?;
    assert_eq!(minutes(&all), [0, 1, 4]);
    let expected = json!({
        "symbol": "BBCA", "interval": "1m", "start": MIDNIGHT + MINUTE, "end": MIDNIGHT + 2 * MINUTE,
        "open": 9500, "high": 9505.5, "low": -1, "close": 9501, "volume": 5210.43, "count": 3,
        "status": "revised", "revision": 43,
    });
    assert_eq!(all[1], expected);
    let two = json_of(&tickwatch(stage, &["candles", "BBCA", "1m", "--last", "2", "--json"])?)?;
    assert_eq!(minutes(&two), [1, 4]);
    let table = succeeded(&tickwatch(stage, &["candles", "BBCA", "1m"])?)?;
    assert!(table.contains("2026-12-31T00:04:00Z") && table.contains("5210.43"), "{table}");
    Ok(())
}

fn candles_of_a_range_are_those_that_start_in_it(stage: &Stage) -> anyhow::Result<()> {
    write_candles(stage)?;
    let range = ["--from", "2026-12-31T00:00:00Z", "--to", "2026-12-31T00:04:00Z"];
    let found = json_of(&tickwatch(stage, &[&["candles", "BBCA", "1m", "--json"][..], &range].concat())?)?;
    assert_eq!(minutes(&found), [0, 1]);
    let backwards = ["candles", "BBCA", "1m", "--from", "2026-12-31", "--to", "2026-12-30"];
    assert!(!tickwatch(stage, &backwards)?.status.success());
    Ok(())
}

fn candles_that_are_not_there_say_why(stage: &Stage) -> anyhow::Result<()> {
    let text = succeeded(&tickwatch(stage, &["candles", "BBCA", "1m"])?)?;
    assert!(text.contains("has not ticked"), "{text}");
    write_candles(stage)?;
    let text = succeeded(&tickwatch(stage, &["candles", "BBCA", "5m"])?)?;
    assert!(text.contains("Add \"5m\" to [candles] intervals"), "{text}");
    Ok(())
}

fn a_plot_is_as_wide_as_the_terminal_and_marks_what_is_open(stage: &Stage) -> anyhow::Result<()> {
    write_candles(stage)?;
    let plot = ["candles", "BBCA", "1m", "--plot", "--redis", stage.redis_url(), "--namespace", stage.namespace()];
    let piped = succeeded(&program().args(plot).output()?)?;
    ensure!(!piped.contains('\x1b'), "{piped:?}");
    for told in ["newest: open 9500", "00:00", "2026-12-31", "○ still open", "◆ revised", "no tick, no candle"]
    {
        ensure!(piped.contains(told), "{told} is not in\n{piped}");
    }
    let terminal = Terminal::open(34, 20)?;
    let mut command = program();
    terminal.show(&mut command)?;
    let mut child = command.args(plot).env_remove("NO_COLOR").spawn()?;
    drop(command);
    let shown = terminal.read_to_end().join().map_err(|_| anyhow::anyhow!("the terminal could not be read"))?;
    ensure!(child.wait()?.success());
    ensure!(shown.contains("\x1b[32m"), "{shown:?}");
    let plain = anstream::adapter::strip_str(&shown).to_string();
    ensure!(plain.lines().all(|line| line.chars().count() <= 34), "{plain}");
    ensure!(plain.contains("○ still open"), "{plain}");
    Ok(())
}

fn write_source(stage: &Stage, topic: &str) -> anyhow::Result<()> {
    let name = format!("{}source:{topic}/0", stage.namespace());
    let fields = [
        ("epoch", "3"),
        ("token", "5ec7e7"),
        ("owner", "worker-1"),
        ("group", "tickwatch"),
        ("next_offset", "7"),
        ("watermark", "1798675200000"),
        ("state", "lagging"),
        ("reason", "2 records behind"),
        ("ticks", "7"),
    ];
    let mut redis = stage.redis()?;
    let _: () = redis.hset_multiple(name, &fields)?;
    let _: () = redis.zadd(format!("{}due:{topic}/0", stage.namespace()), "BBCA:1m:0", 60_000)?;
    Ok(())
}

fn status_without_kafka_tells_the_rest_and_never_the_token(stage: &Stage) -> anyhow::Result<()> {
    write_source(stage, "ticks")?;
    let away = ["--topic", "ticks", "--brokers", "127.0.0.1:1"];
    let output = tickwatch(stage, &[&["status", "--json"][..], &away].concat())?;
    let status = json_of(&output)?;
    assert!(status["kafka_error"].as_str().is_some_and(|error| error.contains("127.0.0.1:1")), "{status}");
    let partition = &status["partitions"][0];
    assert_eq!(partition["state"]["owner"], "worker-1");
    assert_eq!(partition["state"]["due"], 1);
    assert_eq!(partition["lag"], Value::Null);
    let text = succeeded(&tickwatch(stage, &[&["status"][..], &away].concat())?)?;
    assert!(text.contains("ticks/0: lagging: 2 records behind"), "{text}");
    assert!(text.contains("2026-12-31T00:00:00Z"), "{text}");
    assert!(!text.contains("5ec7e7") && !status.to_string().contains("5ec7e7"), "the token is the owner's");
    Ok(())
}

fn without_redis_the_error_names_it(stage: &Stage) -> anyhow::Result<()> {
    for arguments in [&["status"][..], &["rule", "list"], &["candles", "BBCA", "1m"]] {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).args([
            "--redis",
            "redis://user:secret@127.0.0.1:1",
            "--namespace",
            stage.namespace(),
        ]);
        let output = command.output()?;
        let message = String::from_utf8(output.stderr)?;
        assert!(!output.status.success());
        assert!(message.contains("127.0.0.1:1") && !message.contains("secret"), "{message}");
    }
    Ok(())
}

fn status_shows_the_lag_without_joining_the_group(stage: &Stage) -> anyhow::Result<()> {
    let config = stage.config();
    let (topic, group) = (config.kafka.topic.as_str(), config.kafka.group.as_str());
    stage.create_topic(topic, 2)?;
    let record = |value: &str| Message { partition: Some(0), ..Message::from(("BBCA", value)) };
    stage.produce(topic, ["1", "2", "3"].map(record))?;
    commit(stage, group, topic, 1)?;

    let flags = ["--topic", topic, "--group", group, "--brokers", stage.brokers()];
    let status = json_of(&tickwatch(stage, &[&["status", "--json"][..], &flags].concat())?)?;
    assert_eq!(status["kafka_error"], Value::Null, "{status}");
    let partitions = status["partitions"].as_array().context("partitions")?;
    let fields = ["committed", "end_offset", "lag", "state"];
    let told = partitions.iter().map(|partition| fields.map(|field| partition[field].clone()));
    let expected = [[json!(1), json!(3), json!(2), Value::Null], [Value::Null, json!(0), json!(0), Value::Null]];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    let text = succeeded(&tickwatch(stage, &[&["status"][..], &flags].concat())?)?;
    assert!(text.contains(&format!("{topic}/1: not claimed yet")), "{text}");
    Ok(())
}

/// Commits an offset of partition 0 as no member of the group.
fn commit(stage: &Stage, group: &str, topic: &str, offset: i64) -> anyhow::Result<()> {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", stage.brokers()).set("group.id", group);
    let consumer: BaseConsumer = client.create()?;
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(topic, 0, Offset::Offset(offset))?;
    Ok(consumer.commit(&offsets, CommitMode::Sync)?)
}
