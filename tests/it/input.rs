//! From records to ticks through the whole service: bad records beside good ones, exchange formats, ticks from the
//! future.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use redis::Commands as _;
use serde_json::Value;
use tickwatch::config::BadRecords;

use crate::exchanges::{data_folder, read};
use crate::harness::{Case, Message, Needs, Stage, cases, wait_until};
use crate::scene::{MINUTE, PATIENCE, Scene, exact, intervals, now, tick, to};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both;
        bad_records_keep_key_value_and_headers_in_the_dead_letters_and_harm_no_neighbour,
        a_bad_record_near_the_brokers_limit_harms_no_neighbour,
        a_bad_record_stops_its_partition_where_it_is_to_block,
        binances_aggregate_trades_become_candles,
        coinbases_matches_become_candles,
        krakens_arrays_of_trades_become_candles,
        okxs_trades_become_candles,
        ticks_hours_and_decades_ahead_move_nothing_and_are_dead_letters,
        the_brokers_time_is_the_reference_where_it_stamps_records,
        the_clock_is_the_reference_where_producers_stamp_records,
    )
}

// ---- bad records

/// A record as bytes; `None` is null.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Raw {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

fn raw(key: Option<&[u8]>, value: Option<&[u8]>) -> Raw {
    Raw { key: key.map(<[u8]>::to_vec), value: value.map(<[u8]>::to_vec), headers: Vec::new() }
}

impl Raw {
    fn headed(mut self, name: &str, value: Option<&[u8]>) -> Raw {
        self.headers.push((name.into(), value.map(<[u8]>::to_vec)));
        self
    }

    /// Takes the headers with which a dead letter says where it comes from.
    fn take_origin(&mut self) -> BTreeMap<String, String> {
        const NAMES: [&str; 4] = ["error", "source.topic", "source.partition", "source.offset"];
        let (origin, own) = self.headers.drain(..).partition(|(name, _)| NAMES.contains(&name.as_str()));
        self.headers = own;
        let text = |value: Option<Vec<u8>>| String::from_utf8_lossy(&value.unwrap_or_default()).into_owned();
        Vec::into_iter(origin).map(|(name, value)| (name, text(value))).collect()
    }
}

fn send_raw(scene: &Scene, records: &[Raw]) -> anyhow::Result<()> {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", scene.stage.brokers())
        .set("enable.idempotence", "true")
        .set("message.max.bytes", "2000000")
        .create()?;
    for Raw { key, value, headers } in records {
        let headers = headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: value.as_ref() })
        });
        let mut record = BaseRecord::<[u8], [u8]>::to(&scene.config.kafka.topic).partition(0).headers(headers);
        record.key = key.as_deref();
        record.payload = value.as_deref();
        producer.send(record).map_err(|(error, _)| error)?;
    }
    Ok(producer.flush(PATIENCE)?)
}

fn raw_dead_letters(scene: &Scene) -> anyhow::Result<Vec<Raw>> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", scene.stage.brokers())
        .set("group.id", "reader-without-a-group")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .create()?;
    let mut start = TopicPartitionList::new();
    start.add_partition_offset(&scene.config.dead_letter_topic(), 0, Offset::Beginning)?;
    consumer.assign(&start)?;
    let (mut found, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    loop {
        ensure!(Instant::now() < deadline, "the dead letters were not read within {PATIENCE:?}");
        match consumer.poll(Duration::from_millis(100)) {
            None => {}
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(found),
            Some(Err(error)) => bail!("read dead letters: {error}"),
            Some(Ok(message)) => {
                let mut letter = raw(message.key(), message.payload());
                for header in message.headers().into_iter().flat_map(|headers| headers.iter()) {
                    letter = letter.headed(header.key, header.value);
                }
                found.push(letter);
            }
        }
    }
}

fn json(price: &str, seconds: i64) -> Vec<u8> {
    format!(r#"{{"symbol":"BBCA","price":{price},"volume":1,"ts":{}}}"#, MINUTE + seconds * 1000).into_bytes()
}

fn bad_records_keep_key_value_and_headers_in_the_dead_letters_and_harm_no_neighbour(
    stage: &Stage,
) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    let huge = vec![b'{'; 900_000];
    let no_symbol = br#"{"price":1,"ts":1700000000000}"#;
    let good = |price: &str, seconds| raw(None, Some(&json(price, seconds)));
    let bad = [
        (2, raw(Some(b"BBCA"), None).headed("trace", Some(b"\x00\xff")).headed("null", None), "null"),
        (3, raw(None, Some(no_symbol)), "symbol"),
        (
            5,
            raw(Some(b"\xff\xfe"), Some(b"not json")).headed("trace", Some(b"7")).headed("trace", Some(b"8")),
            "JSON",
        ),
        (6, raw(Some(b""), Some(b"")), "JSON"),
        (8, raw(Some(b"BBCA"), Some(&huge)), "JSON"),
    ];
    let mut records: BTreeMap<i32, Raw> = bad.iter().map(|(at, record, _)| (*at, record.clone())).collect();
    records.extend([
        (0, good("100", 0)),
        (1, good("101", 1)),
        (4, good("99", 4)),
        (7, good("105", 7)),
        (9, good("102", 9)),
    ]);
    send_raw(&scene, &records.into_values().collect::<Vec<_>>())?;
    let summary = scene.run_until_end()?;

    assert_eq!(scene.candles()?, ["BBCA 1m 0 100 105 99 102 5 5 final"]);
    assert_eq!((summary.ticks, summary.dead_letters), (5, 5));
    let mut letters = raw_dead_letters(&scene)?;
    assert_eq!(letters.len(), bad.len());
    for (letter, (offset, record, error)) in letters.iter_mut().zip(&bad) {
        let origin = letter.take_origin();
        assert_eq!(origin["source.topic"], scene.config.kafka.topic);
        assert_eq!((origin["source.partition"].as_str(), &origin["source.offset"]), ("0", &offset.to_string()));
        assert!(origin["error"].contains(error), "{}", origin["error"]);
        assert!(letter == record, "the record at {offset} is not as it was");
    }
    Ok(())
}

fn a_bad_record_near_the_brokers_limit_harms_no_neighbour(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    // The default limit of a topic is 1,048,588 bytes with what Kafka adds; a Java producer's is about the same.
    let large = raw(None, Some(&vec![b'['; 1_040_000]));
    send_raw(&scene, &[raw(None, Some(&json("100", 0))), large.clone(), raw(None, Some(&json("101", 1)))])?;
    scene.run_until_end()?;

    assert_eq!(scene.candles()?, ["BBCA 1m 0 100 101 100 101 2 2 final"]);
    let mut letters = raw_dead_letters(&scene)?;
    assert_eq!(letters.len(), 1);
    letters[0].take_origin();
    assert!(letters[0] == large, "the record is not as it was");
    Ok(())
}

fn a_bad_record_stops_its_partition_where_it_is_to_block(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::with(stage, 2, |config| config.recovery.bad_records = BadRecords::Block)?;
    scene.rule("BBCA", "level:above", "0", ">= each")?;
    let worker = scene.start();
    scene.send([
        to(0, tick("BBCA", "100", MINUTE)),
        to(0, tick("BBCA", r#""no price""#, MINUTE)),
        to(0, tick("BBCA", "101", MINUTE)),
        to(1, tick("TLKM", "100", MINUTE)),
        to(1, tick("TLKM", "101", MINUTE + 62_000)),
    ])?;
    assert_eq!(scene.wait_for_candles(1)?, ["TLKM 1m 0 100 100 100 100 1 1 final"]);
    scene.wait_for_source(0, "state", "stopped")?;
    wait_until(PATIENCE, "a reason against being ready", || !worker.reasons_against().is_empty())?;

    let reasons = worker.reasons_against();
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    assert!(reasons[0].starts_with("partition 0 stopped: offset 1: the price"), "{reasons:?}");
    assert!(reasons[0].contains("bad_records"), "the next step is named: {reasons:?}");
    assert_eq!(scene.source_field(0, "next_offset")?, "1");
    assert!(scene.source_field(0, "reason")?.starts_with("offset 1: the price"));
    assert_eq!(scene.wait_for_notifications(1)?, ["BBCA each level >= 0: none -> 100"]);
    assert!(scene.dead_letters()?.is_empty());
    worker.stop()?;
    Ok(())
}

// ---- exchange formats

/// Symbol, price, volume, time in ms of each trade of a payload.
type Extract = fn(&Value) -> Vec<(String, String, String, i64)>;

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn binances_aggregate_trades_become_candles(stage: &Stage) -> anyhow::Result<()> {
    a_format_becomes_candles(stage, "binance-aggtrade", |v| {
        let trade = &v["data"];
        vec![(text(&trade["s"]), text(&trade["p"]), text(&trade["q"]), trade["T"].as_i64().unwrap_or_default())]
    })
}

fn coinbases_matches_become_candles(stage: &Stage) -> anyhow::Result<()> {
    a_format_becomes_candles(stage, "coinbase-match", |v| {
        let time: jiff::Timestamp = text(&v["time"]).parse().expect("the files hold RFC 3339 times");
        vec![(text(&v["product_id"]), text(&v["price"]), text(&v["size"]), time.as_millisecond())]
    })
}

fn krakens_arrays_of_trades_become_candles(stage: &Stage) -> anyhow::Result<()> {
    a_format_becomes_candles(stage, "kraken-v1", |v| {
        let trades = v[1].as_array().map(Vec::as_slice).unwrap_or_default();
        let ms = |seconds: &str| seconds.replace('.', "")[..13].parse().unwrap_or_default();
        trades.iter().map(|t| (text(&v[3]), text(&t[0]), text(&t[1]), ms(&text(&t[2])))).collect()
    })
}

fn okxs_trades_become_candles(stage: &Stage) -> anyhow::Result<()> {
    a_format_becomes_candles(stage, "okx", |v| {
        let trades = v["data"].as_array().map(Vec::as_slice).unwrap_or_default();
        let read = |t: &Value| {
            (text(&t["instId"]), text(&t["px"]), text(&t["sz"]), text(&t["ts"]).parse().unwrap_or_default())
        };
        trades.iter().map(read).collect()
    })
}

/// A candle by exact numbers, and the times of its open and close while it grows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bar {
    open: (i64, i128),
    close: (i64, i128),
    high: i128,
    low: i128,
    volume: i128,
    count: u64,
}

fn a_format_becomes_candles(stage: &Stage, format: &str, extract: Extract) -> anyhow::Result<()> {
    const DAY: i64 = 86_400_000;
    let payloads = read(&data_folder().join("exchange-formats").join(format!("{format}.jsonl")))?;
    let scene = Scene::with(stage, 1, |config| {
        config.input.format = Some(format.into());
        config.candles.intervals = intervals("1d");
        config.candles.lateness = Duration::from_hours(10 * 365 * 24); // the recordings are of several years, in no order
        config.input.max_future = Some(Duration::ZERO);
    })?;
    scene.send(payloads.lines().map(|line| Message { value: line.into(), ..Message::default() }))?;
    let summary = scene.run_until_end()?;

    let mut expected: BTreeMap<(String, i64), Bar> = BTreeMap::new();
    let mut trades = 0;
    for line in payloads.lines() {
        for (symbol, price, volume, ts) in extract(&serde_json::from_str(line)?) {
            let (price, volume) = (exact(&price), exact(&volume));
            let new = Bar { open: (ts, price), close: (ts, price), high: price, low: price, volume: 0, count: 0 };
            let bar = expected.entry((symbol, ts - ts % DAY)).or_insert(new);
            bar.open = if ts < bar.open.0 { (ts, price) } else { bar.open };
            bar.close = if ts >= bar.close.0 { (ts, price) } else { bar.close };
            bar.high = bar.high.max(price);
            bar.low = bar.low.min(price);
            bar.volume += volume;
            bar.count += 1;
            trades += 1;
        }
    }
    ensure!(trades > 10, "the extraction found no trades");
    assert_eq!((summary.ticks, summary.dead_letters, summary.late), (trades, 0, 0));
    let found = scene.candle_list()?;
    assert_eq!(found.len(), expected.len());
    for candle in found {
        let bar = &expected[&(candle.symbol.clone(), candle.start)];
        let numbers =
            [&candle.open, &candle.high, &candle.low, &candle.close, &candle.volume].map(|n| exact(n.get()));
        assert_eq!(numbers, [bar.open.1, bar.high, bar.low, bar.close.1, bar.volume], "{candle}");
        assert_eq!(candle.count, bar.count, "{candle}");
    }
    Ok(())
}

// ---- the future

fn ticks_hours_and_decades_ahead_move_nothing_and_are_dead_letters(stage: &Stage) -> anyhow::Result<()> {
    const YEAR_2100: i64 = 4_102_444_800_000;
    let scene = Scene::new(stage)?;
    scene.rule("BBCA", "level:above", "500", ">= high")?;
    let ts = now();
    scene.send([
        tick("BBCA", "100", ts),
        tick("BBCA", "666", ts + 2 * 3_600_000),
        tick("BBCA", "777", YEAR_2100),
        tick("BBCA", "101", ts),
    ])?;
    let worker = scene.start();
    let letters = scene.wait_for_dead_letters(2)?;
    scene.wait_for_source(0, "next_offset", "4")?;
    assert_eq!(scene.source_field(0, "max_ts")?, ts.to_string());
    let watermark: i64 = scene.source_field(0, "watermark")?.parse()?;
    assert!(watermark <= now() - 2_000, "{watermark}");
    worker.stop()?;

    for (letter, offset) in letters.iter().zip(["1", "2"]) {
        assert_eq!(letter.header("source.offset"), Some(offset));
        assert!(letter.header("error").is_some_and(|e| e.contains("ahead of its reference time")), "{letter:?}");
    }
    scene.run_until_end()?;
    let start = ts - ts % 60_000 - MINUTE;
    assert_eq!(scene.candles()?, [format!("BBCA 1m {start} 100 101 100 101 2 2 final")]);
    let last: String = stage.redis()?.hget(scene.keys().last("BBCA"), "price")?;
    assert_eq!(last, "101");
    assert!(scene.notifications()?.is_empty());
    Ok(())
}

fn the_brokers_time_is_the_reference_where_it_stamps_records(stage: &Stage) -> anyhow::Result<()> {
    let scene = a_tick_ahead_of_its_record(stage, &[("message.timestamp.type", "LogAppendTime")])?;
    assert!(scene.candles()?.is_empty());
    assert_eq!(scene.dead_letters()?.len(), 1, "ahead when it was appended, though not when it was read");
    Ok(())
}

fn the_clock_is_the_reference_where_producers_stamp_records(stage: &Stage) -> anyhow::Result<()> {
    let scene = a_tick_ahead_of_its_record(stage, &[])?;
    assert_eq!(scene.candles()?.len(), 1, "the clock has passed the tick when it is read");
    assert!(scene.dead_letters()?.is_empty());
    Ok(())
}

/// A tick 1.5 s ahead of the time at which its record is written, read once the clock has passed it.
fn a_tick_ahead_of_its_record<'a>(stage: &'a Stage, topic: &[(&str, &str)]) -> anyhow::Result<Scene<'a>> {
    let scene = Scene::with_topic(stage, 1, topic, |config| {
        config.input.max_future = Some(Duration::from_millis(200));
    })?;
    let ts = now() + 1_500;
    scene.send([tick("BBCA", "100", ts)])?;
    ensure!(now() + 200 < ts, "this machine was too busy to write a record within a second");
    wait_until(PATIENCE, "the clock", || now() >= ts)?;
    scene.run_until_end()?;
    Ok(scene)
}
