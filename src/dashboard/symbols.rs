//! The busiest symbols: last price, an hour's line, ticks a second, rules, firings.
//!
//! An active symbol has an open window, so names come from the sorted sets of open windows, and once from the set of
//! all symbols where this user may read it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use redis::Pipeline;
use redis::aio::MultiplexedConnection;
use serde_json::{Map, Value, json};

use super::rates::Rate;
use crate::domain::{Interval, SourcePartition};
use crate::store::keys::{Keys, decode_symbol};
use crate::store::rules::RuleSet;

/// Most symbols looked at.
const MOST_KNOWN: usize = 1_000;
/// Most symbols sent to pages.
const MOST_SHOWN: usize = 40;
/// Names looked for in the open windows of one partition at a time.
const WINDOWS: isize = 500;
/// Between two looks for names, at rules, and for lines, ms.
const NAMES: i64 = 2_000;
const RULES: i64 = 5_000;
const LINES: i64 = 15_000;
const RANKS: i64 = 15_000;
/// What a line covers, and its points.
const HOUR: i64 = 3_600_000;
const POINTS: i64 = 60;

#[derive(Debug, Default)]
struct Symbol {
    price: Option<String>,
    ts: Option<i64>,
    partition: Option<i32>,
    /// Start and count of the candle that is being counted, and ticks counted in all.
    counting: Option<(i64, i64)>,
    counted: i64,
    ticks: Rate,
    rules: Option<u64>,
    line: Vec<f64>,
    line_from: Option<i64>,
}

/// Names for the search, shared with those who ask.
pub(super) type Names = Arc<Mutex<BTreeSet<String>>>;

#[derive(Debug)]
pub(super) struct Symbols {
    topic: String,
    /// Whose candles tell how many ticks there were: the longest up to an hour, which change their window least often.
    counted_by: Option<Interval>,
    /// Whose closing prices make the line.
    line_of: Option<Interval>,
    known: BTreeMap<String, Symbol>,
    shown: Vec<String>,
    total: Option<u64>,
    asked_all: bool,
    names_at: i64,
    rules_at: i64,
    lines_at: i64,
    ranks_at: i64,
    names: Names,
}

impl Symbols {
    pub(super) fn new(topic: &str, intervals: &[Interval], names: Names) -> Symbols {
        let within = |most: i64| intervals.iter().copied().filter(move |interval| interval.ms() <= most);
        let shortest = intervals.iter().copied().min_by_key(|interval| interval.ms());
        Symbols {
            topic: topic.to_owned(),
            counted_by: within(HOUR).max_by_key(|interval| interval.ms()).or(shortest),
            line_of: within(HOUR / POINTS).max_by_key(|interval| interval.ms()).or(shortest),
            known: BTreeMap::new(),
            shown: Vec::new(),
            total: None,
            asked_all: false,
            names_at: 0,
            rules_at: 0,
            lines_at: 0,
            ranks_at: 0,
            names,
        }
    }

    /// Reads what is due at `now`.
    pub(super) async fn refresh(
        &mut self,
        conn: &mut MultiplexedConnection,
        keys: &Keys,
        partitions: &[i32],
        now: i64,
    ) -> Result<()> {
        if now - self.names_at >= NAMES {
            self.find_names(conn, keys, partitions).await?;
            self.names_at = now;
        }
        self.read_prices(conn, keys).await?;
        self.read_counts(conn, keys, now).await?;
        let before = self.shown.len();
        self.rank(now);
        let more = self.shown.len() > before;
        if more || now - self.rules_at >= RULES {
            self.read_rules(conn, keys).await?;
            self.rules_at = now;
        }
        if more || now - self.lines_at >= LINES {
            self.read_lines(conn, keys).await?;
            self.lines_at = now;
        }
        Ok(())
    }

    async fn find_names(
        &mut self,
        conn: &mut MultiplexedConnection,
        keys: &Keys,
        partitions: &[i32],
    ) -> Result<()> {
        if !self.asked_all {
            self.asked_all = true;
            let mut scan = redis::cmd("SSCAN");
            scan.arg(keys.symbols()).arg(0).arg("COUNT").arg(MOST_KNOWN);
            // A worker's user need not have this right; open windows tell the active ones anyway.
            if let Ok((_, found)) = scan.query_async::<(u64, Vec<String>)>(conn).await {
                for symbol in &found {
                    self.learn(symbol);
                }
            }
        }
        let mut pipe = Pipeline::with_capacity(1 + 2 * partitions.len());
        pipe.cmd("SCARD").arg(keys.symbols());
        for partition in partitions {
            let due = keys.due(&SourcePartition { topic: self.topic.clone(), partition: *partition });
            pipe.cmd("ZRANGE").arg(&due).arg(0).arg(WINDOWS - 1);
            pipe.cmd("ZRANGE").arg(&due).arg(-WINDOWS).arg(-1);
        }
        let answers: Vec<redis::Value> = pipe.query_async(conn).await?;
        let mut answers = answers.into_iter();
        self.total = answers.next().and_then(|count| redis::from_redis_value(count).ok());
        for members in answers {
            for member in redis::from_redis_value::<Vec<String>>(members)? {
                // `<SYM>:<interval>:<start>`, read from the right: a symbol may hold colons.
                if let Some(symbol) = member.rsplitn(3, ':').nth(2) {
                    self.learn(symbol);
                }
            }
        }
        Ok(())
    }

    fn learn(&mut self, encoded: &str) {
        let symbol = decode_symbol(encoded).into_owned();
        if !self.known.contains_key(&symbol) && self.known.len() < MOST_KNOWN {
            self.names.lock().unwrap_or_else(PoisonError::into_inner).insert(symbol.clone());
            self.known.insert(symbol, Symbol::default());
        }
    }

    async fn read_prices(&mut self, conn: &mut MultiplexedConnection, keys: &Keys) -> Result<()> {
        if self.known.is_empty() {
            return Ok(());
        }
        let mut pipe = Pipeline::with_capacity(self.known.len());
        for symbol in self.known.keys() {
            pipe.cmd("HMGET").arg(keys.last(symbol)).arg(&["price", "ts", "source"]);
        }
        let answers: Vec<[Option<String>; 3]> = pipe.query_async(conn).await?;
        for (symbol, [price, ts, source]) in self.known.values_mut().zip(answers) {
            symbol.price = price;
            symbol.ts = ts.and_then(|ts| ts.parse().ok());
            symbol.partition = source.and_then(|source| source.rsplit_once('/')?.1.parse().ok());
        }
        Ok(())
    }

    async fn read_counts(&mut self, conn: &mut MultiplexedConnection, keys: &Keys, now: i64) -> Result<()> {
        let Some(interval) = self.counted_by else { return Ok(()) };
        let ticking =
            || self.known.iter().filter_map(|(name, symbol)| Some((name, interval.window_of(symbol.ts?).start)));
        if ticking().next().is_none() {
            return Ok(());
        }
        let mut pipe = redis::pipe();
        for (name, start) in ticking() {
            pipe.cmd("HGET").arg(keys.candle(name, interval, start)).arg("count");
        }
        let counts: Vec<Option<i64>> = pipe.query_async(conn).await?;
        let starts: Vec<(String, i64)> = ticking().map(|(name, start)| (name.clone(), start)).collect();
        for ((name, start), count) in starts.into_iter().zip(counts) {
            let (Some(symbol), Some(count)) = (self.known.get_mut(&name), count) else { continue };
            symbol.counted += match symbol.counting.replace((start, count)) {
                Some((before, counted)) if before == start => (count - counted).max(0),
                Some(_) => count,
                None => 0,
            };
            symbol.ticks.count(now, symbol.counted);
        }
        Ok(())
    }

    /// Who is shown, in which order: anew only now and then, since rows that jump cannot be read.
    fn rank(&mut self, now: i64) {
        let full = self.shown.len() >= MOST_SHOWN.min(self.known.values().filter(|s| s.price.is_some()).count());
        if full && now - self.ranks_at < RANKS {
            return;
        }
        self.ranks_at = now;
        let busy = |symbol: &Symbol| (symbol.ticks.per_second().unwrap_or(0.0).round() as i64, symbol.ts);
        let mut ranked: Vec<(&String, &Symbol)> = self.known.iter().filter(|(_, s)| s.price.is_some()).collect();
        ranked.sort_by_key(|(name, symbol)| (std::cmp::Reverse(busy(symbol)), *name));
        ranked.truncate(MOST_SHOWN);
        let ranked: Vec<String> = ranked.into_iter().map(|(name, _)| name.clone()).collect();
        let same: BTreeSet<&String> = ranked.iter().collect();
        if same != self.shown.iter().collect() {
            self.shown = ranked;
        }
    }

    async fn read_rules(&mut self, conn: &mut MultiplexedConnection, keys: &Keys) -> Result<()> {
        if self.shown.is_empty() {
            return Ok(());
        }
        let mut pipe = redis::pipe();
        for name in &self.shown {
            for key in RuleSet::keys_of(keys, name) {
                pipe.cmd("ZCARD").arg(key);
            }
        }
        let counts: Vec<u64> = pipe.query_async(conn).await?;
        for (name, counts) in self.shown.iter().zip(counts.chunks(RuleSet::ALL.len())) {
            if let Some(symbol) = self.known.get_mut(name) {
                symbol.rules = Some(counts.iter().sum());
            }
        }
        Ok(())
    }

    /// Closing prices of an hour, as many as are there.
    async fn read_lines(&mut self, conn: &mut MultiplexedConnection, keys: &Keys) -> Result<()> {
        let Some(interval) = self.line_of else { return Ok(()) };
        let step = (HOUR / POINTS).max(interval.ms());
        let mut pipe = redis::pipe();
        let mut asked: Vec<(&String, Vec<i64>)> = Vec::new();
        for name in &self.shown {
            let Some(ts) = self.known.get(name).and_then(|symbol| symbol.ts) else { continue };
            let starts: Vec<i64> =
                (1..POINTS).rev().map(|back| interval.window_of(ts - back * step).start).collect();
            for start in &starts {
                pipe.cmd("HGET").arg(keys.candle(name, interval, *start)).arg("close");
            }
            asked.push((name, starts));
        }
        if asked.is_empty() {
            return Ok(());
        }
        let closes: Vec<Option<f64>> = pipe.query_async(conn).await?;
        for ((name, starts), closes) in asked.into_iter().zip(closes.chunks(POINTS as usize - 1)) {
            if let Some(symbol) = self.known.get_mut(name) {
                symbol.line_from =
                    starts.iter().zip(closes).find(|(_, close)| close.is_some()).map(|(start, _)| *start);
                symbol.line = closes.iter().flatten().copied().collect();
            }
        }
        Ok(())
    }

    /// For the page. `fired` says how many notifications of each symbol were seen.
    pub(super) fn view(&self, fired: impl Fn(&[&str]) -> Vec<u64>) -> Value {
        let names: Vec<&str> = self.shown.iter().map(String::as_str).collect();
        let fired = fired(&names);
        let rows = self.shown.iter().zip(fired).enumerate().filter_map(|(place, (name, fired))| {
            let symbol = self.known.get(name)?;
            let mut row = Map::new();
            row.insert("place".into(), place.into());
            row.insert("fired".into(), fired.into());
            let mut known =
                |field: &str, value: Option<Value>| row.extend(value.map(|value| (field.to_owned(), value)));
            known("price", symbol.price.as_deref().map(Value::from));
            known("ts", symbol.ts.map(Value::from));
            known("partition", symbol.partition.map(Value::from));
            known("tps", symbol.ticks.per_second().map(|rate| json!((rate * 10.0).round() / 10.0)));
            known("rules", symbol.rules.map(Value::from));
            let price = symbol.price.as_deref().and_then(|price| price.parse::<f64>().ok());
            let line: Vec<f64> = symbol.line.iter().copied().chain(price).collect();
            if let ([first, _, ..], Some(from)) = (line.as_slice(), symbol.line_from) {
                let change = price.filter(|_| *first != 0.0).map(|price| (price / first - 1.0) * 100.0);
                known("change", change.map(|change| json!((change * 100.0).round() / 100.0)));
                known("from", Some(from.into()));
                known("line", Some(json!(symbol.line)));
            }
            Some((name.clone(), Value::Object(row)))
        });
        let mut view = json!({ "rows": rows.collect::<Map<_, _>>() });
        if let Some(total) = self.total {
            view["total"] = total.into();
        }
        view
    }
}
