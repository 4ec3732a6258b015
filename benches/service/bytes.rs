//! What state costs in Redis, by `MEMORY USAGE` of the keys that a worker wrote.

use anyhow::Context as _;
use redis::Connection;
use serde::Serialize;

use crate::common::connect;
use crate::lab::Lab;
use crate::market::symbol_name;
use crate::state::Group;

const SYMBOLS: u32 = 1_000;
/// Of each symbol; its candle has grown to the size of an ordinary one.
const TICKS: i64 = 50;
/// Rules on one symbol where there are many, and where there are few.
const MANY: u32 = 100_000;
const FEW: u32 = 10;

/// Bytes.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Bytes {
    /// An open candle's key.
    pub(crate) candle: f64,
    /// What its window takes in the list of those to close.
    pub(crate) due: f64,
    /// A symbol's last price, and its name in the list of symbols.
    pub(crate) idle_symbol: f64,
    /// A rule's share of its set, on a symbol with 100,000, and on one with 10.
    pub(crate) rule_of_many: f64,
    pub(crate) rule_of_few: f64,
    /// What options (`once`) add to a rule, on a symbol with 100,000.
    pub(crate) options: f64,
}

pub(crate) fn run(lab: &Lab) -> anyhow::Result<Bytes> {
    let mut group = Group::new(lab)?;
    let mut worker = group.worker()?;
    group.fill(SYMBOLS, TICKS)?;
    worker.stop()?;
    let mut redis = connect(&group.redis.url())?;
    let namespace = group.config.namespace.clone();
    let source = format!("{}/0", group.config.kafka.topic);

    let candles: Vec<String> = redis::cmd("KEYS").arg(format!("{namespace}ohlc:*")).query(&mut redis)?;
    let mut candle = 0;
    for key in &candles {
        candle += usage(&mut redis, key)?;
    }
    let mut last = 0;
    for symbol in 1..=SYMBOLS {
        last += usage(&mut redis, &format!("{namespace}last:{}", symbol_name(symbol)))?;
    }
    let symbols = usage(&mut redis, &format!("{namespace}symbols"))?;
    let due = usage(&mut redis, &format!("{namespace}due:{source}"))?;
    let all = f64::from(SYMBOLS);

    let put = |redis: &mut Connection, symbol: &str, count: u32| -> anyhow::Result<String> {
        let key = format!("{namespace}rules:{symbol}:edge");
        let mut pipe = redis::pipe();
        for number in 0..count {
            let member = format!(">= alice-{number:06}");
            pipe.cmd("ZADD").arg(&key).arg(f64::from(number) / 100.0).arg(member).ignore();
        }
        let () = pipe.query(redis)?;
        Ok(key)
    };
    let (many, few) = (put(&mut redis, "MANY", MANY)?, put(&mut redis, "FEW", FEW)?);
    let options = format!("{namespace}rules:MANY:opts");
    let mut pipe = redis::pipe();
    for number in 0..MANY {
        pipe.cmd("HSET").arg(&options).arg(format!("alice-{number:06}")).arg(r#"{"once":true}"#).ignore();
    }
    let () = pipe.query(&mut redis)?;

    let bytes = Bytes {
        candle: candle as f64 / candles.len() as f64,
        due: due as f64 / candles.len() as f64,
        idle_symbol: (last + symbols) as f64 / all,
        rule_of_many: usage(&mut redis, &many)? as f64 / f64::from(MANY),
        rule_of_few: usage(&mut redis, &few)? as f64 / f64::from(FEW),
        options: usage(&mut redis, &options)? as f64 / f64::from(MANY),
    };
    group.close()?;
    Ok(bytes)
}

/// Of every element, not of a sample.
fn usage(redis: &mut Connection, key: &str) -> anyhow::Result<u64> {
    let usage: Option<u64> = redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0).query(redis)?;
    usage.with_context(|| format!("{key} is not there"))
}
