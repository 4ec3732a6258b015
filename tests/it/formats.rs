//! Recorded payloads of nine exchange formats, decoded by their presets and, independently, from
//! `serde_json::Value`: both must give the same trades.
//!
//! The payloads are not part of the repository: `TW_TEST_DATA`, else `../shared/data`. Where they are absent the
//! trials are skipped with that reason.

use std::path::PathBuf;
use std::sync::Arc;

use libtest_mimic::{Completion, Failed, Trial};
use serde_json::Value;
use tickwatch::config::InputConfig;
use tickwatch::domain::{Chunk, Offset};
use tickwatch::input::{ChunkBuilder, Decoder, RawRecord};

/// What a file holds, and what must be found in it.
struct Format {
    preset: &'static str,
    /// Lines and trades, as the README of the data says.
    messages: usize,
    trades: usize,
    /// The trades of one line, read another way.
    extract: fn(&Value) -> Vec<Trade>,
    /// A line (from 1), and its last tick, read by eye.
    spot: (usize, &'static str),
}

/// Symbol, price, volume and ms, in the order of the payload.
#[derive(Debug, Clone, PartialEq)]
struct Trade {
    symbol: String,
    price: String,
    volume: String,
    ts: i64,
}

const FORMATS: [Format; 9] = [
    Format {
        preset: "binance-aggtrade",
        messages: 50,
        trades: 50,
        extract: |v| vec![trade(&v["data"]["s"], &v["data"]["p"], &v["data"]["q"], ms(&v["data"]["T"]))],
        spot: (1, "NKNUSDT 0.3528 58 1633998523963"),
    },
    Format {
        preset: "binance-trade",
        messages: 14,
        trades: 14,
        extract: |v| {
            let v = v.get("data").unwrap_or(v);
            vec![trade(&v["s"], &v["p"], &v["q"], ms(&v["T"]))]
        },
        spot: (1, "ETHUSDT 4149.74 0.4387 1639351062243"),
    },
    Format {
        preset: "coinbase-match",
        messages: 50,
        trades: 50,
        extract: |v| vec![trade(&v["product_id"], &v["price"], &v["size"], rfc3339(&v["time"]))],
        spot: (1, "BAND-GBP 14.7775 0.04 1618677810244"),
    },
    Format {
        preset: "coinbase-market-trades",
        messages: 40,
        trades: 255,
        extract: |v| {
            let mut trades: Vec<&Value> = each(&v["events"]).flat_map(|event| each(&event["trades"])).collect();
            trades.sort_by_key(|t| t["trade_id"].as_str().and_then(|id| id.parse::<u64>().ok()));
            let read = |t: &&Value| trade(&t["product_id"], &t["price"], &t["size"], rfc3339(&t["time"]));
            trades.iter().map(read).collect()
        },
        spot: (1, "BTC-USD 65083.67 0.002186 1786309542514"),
    },
    Format {
        preset: "kraken-v1",
        messages: 13,
        trades: 17,
        extract: |v| each(&v[1]).map(|t| trade(&v[3], &t[0], &t[1], seconds(&t[2]))).collect(),
        spot: (4, "XMR/USD 353.81 1.71754604 1618678150827"),
    },
    Format {
        preset: "kraken-v2",
        messages: 7,
        trades: 12,
        extract: |v| {
            let read = |t: &Value| trade(&t["symbol"], &t["price"], &t["qty"], rfc3339(&t["timestamp"]));
            each(&v["data"]).map(read).collect()
        },
        spot: (2, "BTC/USD 68500 0.00483192 1716813791798"),
    },
    Format {
        preset: "okx",
        messages: 50,
        trades: 50,
        extract: |v| each(&v["data"]).map(|t| trade(&t["instId"], &t["px"], &t["sz"], ms(&t["ts"]))).collect(),
        spot: (4, "BTC-USDT 30243.5 0.001 1652459226050"),
    },
    Format {
        preset: "bitfinex",
        messages: 27,
        // 223 in the file; the 5 `tu` messages are passed over.
        trades: 218,
        extract: |v| {
            let mut trades: Vec<&Value> = match v[1].as_str() {
                Some("te") => vec![&v[2]],
                Some(_) => vec![],
                None => each(&v[1]).collect(),
            };
            trades.sort_by_key(|t| t[0].as_u64());
            let symbol = v[0].get("symbol").cloned().unwrap_or_else(|| KEY.into());
            let read = |t: &&Value| {
                let sold = Value::from(number(&t[2]).trim_start_matches('-'));
                trade(&symbol, &t[3], &sold, ms(&t[1]))
            };
            trades.iter().map(read).collect()
        },
        spot: (15, "tBTCUST 51350 0.11546588 1615232733897"),
    },
    Format {
        preset: "polygon",
        messages: 7,
        trades: 15,
        extract: |v| {
            each(v)
                .filter(|t| t["ev"] == "T" || t["ev"] == "XT")
                .map(|t| trade(t.get("sym").unwrap_or(&t["pair"]), &t["p"], &t["s"], ms(&t["t"])))
                .collect()
        },
        spot: (7, "BTC-USD 43575.6 0.00004522 1706649628023"),
    },
];

/// The key of every record: the symbol where the payload has none.
const KEY: &str = "tKEYUSD";

pub(crate) fn trials() -> Vec<Trial> {
    FORMATS
        .iter()
        .map(|format| {
            let name = format!("formats::every_recorded_trade_of_{}_is_decoded", format.preset.replace('-', "_"));
            Trial::ignorable_test(name, || every_trade_is_decoded(format))
        })
        .collect()
}

fn every_trade_is_decoded(format: &Format) -> Result<Completion, Failed> {
    let path = data_folder().join("exchange-formats").join(format!("{}.jsonl", format.preset));
    let Ok(payloads) = std::fs::read_to_string(&path) else {
        return Ok(Completion::ignored_with(format!("there is no {}; set TW_TEST_DATA", path.display())));
    };
    let lines: Vec<&str> = payloads.lines().collect();
    let chunk = decode(format.preset, &lines)?;
    expect_equal("messages", &chunk.records.len(), &format.messages)?;
    expect_equal("trades", &chunk.ticks.len(), &format.trades)?;
    for (nth, (line, record)) in lines.iter().zip(&chunk.records).enumerate() {
        let line_name = format!("line {}", nth + 1);
        expect_equal(&line_name, &record.bad, &None)?;
        let expected = (format.extract)(&serde_json::from_str(line)?);
        let is_trade = !(format.preset == "bitfinex" && line.contains("\"event\""));
        let expected: Vec<String> = expected.iter().filter(|_| is_trade).map(Trade::show).collect();
        expect_equal(&line_name, &shown(&chunk, nth), &expected)?;
    }
    let (line, tick) = format.spot;
    expect_equal("the tick read by eye", &shown(&chunk, line - 1).pop().as_deref(), &Some(tick))?;
    Ok(Completion::Completed)
}

fn decode(preset: &str, lines: &[&str]) -> Result<Chunk, Failed> {
    let config = InputConfig { format: Some(preset.into()), ..InputConfig::default() };
    let mut builder = ChunkBuilder::new(Arc::new(Decoder::new(&config)?));
    for (offset, line) in lines.iter().enumerate() {
        builder.push(RawRecord {
            offset: Offset(offset as i64),
            timestamp: -1,
            broker_time: false,
            key: Some(KEY.as_bytes()),
            value: Some(line.as_bytes()),
            headers: None,
        });
    }
    Ok(builder.take())
}

fn data_folder() -> PathBuf {
    std::env::var_os("TW_TEST_DATA")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/data"), PathBuf::from)
}

fn shown(chunk: &Chunk, record: usize) -> Vec<String> {
    let ticks = chunk.ticks_of(&chunk.records[record]);
    ticks.iter().map(|t| format!("{} {} {} {}", chunk.symbol_of(t), t.price, t.volume, t.ts)).collect()
}

fn expect_equal<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), Failed> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: found {found:?}, expected {expected:?}").into())
}

impl Trade {
    fn show(&self) -> String {
        format!("{} {} {} {}", self.symbol, self.price, self.volume, self.ts)
    }
}

fn trade(symbol: &Value, price: &Value, volume: &Value, ts: i64) -> Trade {
    Trade { symbol: text(symbol), price: number(price), volume: number(volume), ts }
}

fn each(array: &Value) -> impl Iterator<Item = &Value> {
    array.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("no text").to_owned()
}

/// Plain and without trailing zeros. Every number in the files is short enough for a double.
fn number(value: &Value) -> String {
    let double = value.as_str().map_or_else(|| value.as_f64(), |text| text.parse().ok());
    double.unwrap_or(f64::NAN).to_string()
}

fn ms(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(-1)
}

/// `1618678142.557535`: the digits up to the third after the point.
fn seconds(value: &Value) -> i64 {
    text(value).chars().filter(|c| *c != '.').take(13).collect::<String>().parse().unwrap_or(-1)
}

/// `2021-04-17T16:43:30.244075Z`, by the calendar: days of whole years, months and days.
fn rfc3339(value: &Value) -> i64 {
    let text = text(value);
    let part = |from: usize, to: usize| text.get(from..to).and_then(|part| part.parse::<i64>().ok()).unwrap_or(-1);
    let (year, month, day) = (part(0, 4), part(5, 7), part(8, 10));
    let leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let february = if leap(year) { 29 } else { 28 };
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let years: i64 = (1970..year).map(|year| if leap(year) { 366 } else { 365 }).sum();
    let days = years + months.iter().take(month as usize - 1).sum::<i64>() + day - 1;
    let thousandths: String = text[20..].trim_end_matches('Z').chars().chain("000".chars()).take(3).collect();
    let seconds = days * 86_400 + part(11, 13) * 3600 + part(14, 16) * 60 + part(17, 19);
    seconds * 1000 + thousandths.parse::<i64>().unwrap_or(-1)
}
