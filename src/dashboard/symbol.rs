//! One symbol's page: its candles of one interval, its rules nearest to the price, its notifications.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use redis::aio::MultiplexedConnection;
use serde_json::{Map, Value, json};

use super::rates::Rate;
use crate::domain::Interval;
use crate::store::candles::{self, Range, StoredCandle};
use crate::store::keys::Keys;
use crate::store::rules::{self, Near, Rule};

/// Candles shown.
const CANDLES: usize = 240;
/// Newest candles read each time; older ones change only when a late tick revises them.
const NEWEST: i64 = 4;
/// Most rules shown.
const RULES: usize = 50;
/// Between two looks at all candles and at the rules, ms.
const ALL: i64 = 2_000;
const RULES_EVERY: i64 = 1_000;

#[derive(Debug)]
pub(super) struct Symbol {
    name: String,
    interval: Interval,
    price: Option<String>,
    ts: Option<i64>,
    partition: Option<i32>,
    candles: BTreeMap<i64, StoredCandle>,
    near: Near,
    /// Last firings among the notifications seen, by trigger, operator and id.
    fired: HashMap<(String, String, String), i64>,
    ticks: Rate,
    counted: i64,
    all_at: i64,
    rules_at: i64,
}

impl Symbol {
    pub(super) fn new(name: &str, interval: Interval) -> Symbol {
        Symbol {
            name: name.to_owned(),
            interval,
            price: None,
            ts: None,
            partition: None,
            candles: BTreeMap::new(),
            near: Near::default(),
            fired: HashMap::new(),
            ticks: Rate::default(),
            counted: 0,
            all_at: 0,
            rules_at: 0,
        }
    }

    /// A rule was written: it is looked for at once.
    pub(super) fn rules_changed(&mut self) {
        self.rules_at = 0;
    }

    /// Notifications of this symbol.
    pub(super) fn notes(&mut self, notes: &[Value]) {
        for note in notes {
            let text = |name: &str| note[name].as_str().unwrap_or_default().to_owned();
            let key = (text("trigger"), text("op"), text("rule"));
            self.fired.insert(key, note["at"].as_i64().unwrap_or_default());
        }
    }

    /// Reads what is due at `now`.
    pub(super) async fn refresh(&mut self, conn: &mut MultiplexedConnection, keys: &Keys, now: i64) -> Result<()> {
        let mut last = redis::cmd("HMGET");
        last.arg(keys.last(&self.name)).arg(&["price", "ts", "source"]);
        let [price, ts, source]: [Option<String>; 3] = last.query_async(conn).await?;
        self.price = price;
        self.ts = ts.and_then(|ts| ts.parse().ok());
        self.partition = source.and_then(|source| source.rsplit_once('/')?.1.parse().ok());
        self.read_candles(conn, keys, now).await?;
        if now - self.rules_at >= RULES_EVERY {
            let price = self.price.as_deref().and_then(|price| price.parse().ok());
            self.near = rules::near(conn, keys, &self.name, price, RULES).await?;
            self.rules_at = now;
        }
        Ok(())
    }

    async fn read_candles(&mut self, conn: &mut MultiplexedConnection, keys: &Keys, now: i64) -> Result<()> {
        let newest = self.candles.last_key_value().map(|(start, _)| *start);
        let all = now - self.all_at >= ALL;
        // Once from the newest back, over gaps too; then only what is shown already, and what came since.
        let from = match (newest, all) {
            (None, _) => None,
            (Some(_), true) => self.candles.first_key_value().map(|(start, _)| *start),
            (Some(newest), false) => Some(newest - NEWEST * self.interval.ms()),
        };
        let range = Range { from, to: None, last: CANDLES };
        let found = candles::read(conn, keys, &self.name, self.interval, range).await?;
        let counted_from = newest.map(|newest| newest - NEWEST * self.interval.ms());
        for candle in &found.candles {
            let start = candle.window.start;
            if counted_from.is_some_and(|from| start >= from) {
                let counted = self.candles.get(&start).map_or(0, |before| before.count);
                self.counted += candle.count.saturating_sub(counted) as i64;
            }
        }
        self.ticks.count(now, self.counted);
        if all {
            self.all_at = now;
            self.candles.clear(); // what expired is gone
        }
        self.candles.extend(found.candles.into_iter().map(|candle| (candle.window.start, candle)));
        while self.candles.len() > CANDLES {
            self.candles.pop_first();
        }
        Ok(())
    }

    /// For the page.
    pub(super) fn view(&self) -> Map<String, Value> {
        let mut view = Map::new();
        let mut known = |name: &str, value: Option<Value>| view.extend(value.map(|value| (name.to_owned(), value)));
        known("interval", Some(self.interval.to_string().into()));
        known("price", self.price.as_deref().map(Value::from));
        known("ts", self.ts.map(Value::from));
        known("partition", self.partition.map(Value::from));
        known("tps", self.ticks.per_second().map(|rate| json!((rate * 10.0).round() / 10.0)));
        let candles = self.candles.iter().map(|(start, candle)| (start.to_string(), candle_view(candle)));
        known("candles", Some(Value::Object(candles.collect())));
        let rules = self.near.rules.iter().enumerate().map(|(place, (rule, fired))| {
            let seen = self.fired.get(&(rule.trigger.to_string(), rule.op.to_string(), rule.id.clone())).copied();
            let key = format!("{} {} {}", rule.trigger, rule.op, rule.id);
            (key, rule_view(rule, place, (*fired).max(seen)))
        });
        known("rules", Some(Value::Object(rules.collect())));
        known("rules_total", Some(self.near.total.into()));
        view
    }
}

/// Numbers as text; the page draws with doubles and writes the text.
fn candle_view(candle: &StoredCandle) -> Value {
    let StoredCandle { window: _, open, high, low, close, volume, count, status, revision } = candle;
    let prices = [open, high, low, close].map(ToString::to_string);
    json!([prices[0], prices[1], prices[2], prices[3], volume.to_string(), count, status, revision])
}

fn rule_view(rule: &Rule, place: usize, fired: Option<i64>) -> Value {
    let mut view = json!({
        "place": place,
        "id": rule.id,
        "trigger": rule.trigger.as_str(),
        "op": rule.op.as_str(),
        "threshold": rule.threshold.to_string(),
        "once": rule.options.once,
    });
    let mut known = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            view[name] = value;
        }
    };
    known("cooldown", rule.options.cooldown.map(Value::from));
    known("expires", rule.options.expires.map(Value::from));
    known("note", rule.options.note.as_deref().map(Value::from));
    known("fired", fired.map(Value::from));
    view
}
