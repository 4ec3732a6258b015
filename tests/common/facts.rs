//! Everything that is compared, as maps of text, so that one function shows any difference.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::ensure;
use redis::Commands as _;
use tickwatch::config::{Config, Guarantee, LatePolicy, Numbers};
use tickwatch::store::keys::encode_symbol;

use super::kafka::{Isolation, Record, consume_all};
use super::oracle;

/// Outputs are stamped with the present, ticks of tests mostly with a time before this, ms.
const LONG_AGO: i64 = 1_750_000_000_000;

/// What is compared: a name for each thing → its content.
pub(crate) type Facts = BTreeMap<String, String>;

/// What came out of the output topics.
pub(crate) struct Received {
    /// `notification <id>`, `candle <symbol>:<interval>:<start>:<revision>`, `late <partition>/<offset>` and
    /// `dead letter <partition>/<offset>`, each with the record's value.
    pub(crate) outputs: Facts,
    /// Everything in the topic of candles; what is open there is judged by [`super::updates`].
    pub(crate) candles: Vec<Record>,
    /// What differs between two records of one name.
    pub(crate) conflicts: Vec<String>,
    /// Names of records that repeat another, word for word.
    pub(crate) repeated: Vec<String>,
}

/// What the oracle expects.
#[derive(Default)]
pub(crate) struct Expected {
    /// In the output topics; named as in [`Received`].
    pub(crate) outputs: Facts,
    /// In Redis: last prices, candles, running counts.
    pub(crate) state: Facts,
}

impl Expected {
    /// What a source partition adds: what its ticks make, and its dead letters as `<key> -> <value>`.
    pub(crate) fn add(
        &mut self,
        config: &Config,
        number: i32,
        found: &oracle::Expected,
        ticks: usize,
        dead: &BTreeMap<i64, String>,
    ) {
        for (offset, content) in dead {
            self.outputs.insert(format!("dead letter {number}/{offset}"), content.clone());
        }
        let plain_or_text = |plain: &str| match config.output.numbers {
            Numbers::Number => plain.to_owned(),
            Numbers::String => format!("\"{plain}\""),
        };
        for notification in &found.notifications {
            let content = format!("{} -> {}", notification.symbol, notification_value(notification, plain_or_text));
            self.outputs.insert(format!("notification {}", notification.id), content);
        }
        for candle in found.candles.iter().filter(|candle| !is_closing(&candle.symbol)) {
            let oracle::Candle { symbol, interval, start, revision, .. } = candle;
            let content = format!("{symbol} -> {}", candle_value(candle, plain_or_text));
            self.outputs.insert(format!("candle {symbol}:{interval}:{start}:{revision}"), content);
        }
        for late in &found.diverted {
            let content = format!("{} -> {}", late.symbol, late_value(late, plain_or_text));
            self.outputs.insert(format!("late {number}/{} for {}", late.offset, late.intervals), content);
        }

        let source = format!("{}/{number}", config.kafka.topic);
        for (symbol, (price, ts)) in &found.last {
            self.state.insert(format!("last:{}", encode_symbol(symbol)), format!("{price} {ts} {source}"));
        }
        for ((symbol, interval, start), c) in found.stored.iter().filter(|((symbol, ..), _)| !is_closing(symbol)) {
            let fields = [
                &c.open,
                &c.high,
                &c.low,
                &c.close,
                &c.volume,
                &c.count.to_string(),
                &c.status,
                &c.revision.to_string(),
            ];
            let name = format!("ohlc:{}:{interval}:{start}", encode_symbol(symbol));
            self.state.insert(name, fields.map(String::as_str).join(" "));
        }
        let counts =
            [ticks, found.late as usize, found.out_of_order as usize, found.notifications.len(), dead.len()];
        // A partition that nothing was read from has a position, and no counts yet.
        let any = counts.iter().any(|count| *count > 0);
        let counts = counts.map(|count| if any { count.to_string() } else { String::new() });
        self.state.insert(format!("source:{source}"), counts.join(" "));
    }
}

impl Received {
    /// Everything in the output topics, read at `brokers`.
    pub(crate) fn read(config: &Config, brokers: &str) -> anyhow::Result<Received> {
        let read = |topic: &str| consume_all(brokers, topic, isolation(config));
        let mut received = Received {
            outputs: Facts::new(),
            candles: read(&config.output.candles)?,
            conflicts: Vec::new(),
            repeated: Vec::new(),
        };
        for record in read(&config.output.notifications)? {
            received
                .take(format!("notification {}", record.json()?["id"].as_str().unwrap_or_default()), &record)?;
        }
        for record in received.candles.clone() {
            let value = record.json()?;
            if value["status"] == "open" {
                continue;
            }
            let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
            let number = |field: &str| value[field].as_i64().unwrap_or(-1);
            let (symbol, interval) = (text("symbol"), text("interval"));
            received
                .take(format!("candle {symbol}:{interval}:{}:{}", number("start"), number("revision")), &record)?;
        }
        for (what, topic) in [("late", config.late_topic()), ("dead letter", config.dead_letter_topic())] {
            for record in read(&topic)? {
                ensure!(record.header("source.topic") == Some(&config.kafka.topic), "{record:?}");
                let header = |name| record.header(name).unwrap_or_default().to_owned();
                let mut name = format!("{what} {}/{}", header("source.partition"), header("source.offset"));
                if what == "late" {
                    write!(name, " for {}", header("late.intervals"))?;
                }
                received.take(name, &record)?;
            }
        }
        Ok(received)
    }

    pub(crate) fn take(&mut self, name: String, record: &Record) -> anyhow::Result<()> {
        ensure!(record.timestamp > LONG_AGO, "{name}: stamped with {}, not with now", record.timestamp);
        let content = format!("{} -> {}", record.key.as_deref().unwrap_or_default(), record.value);
        match self.outputs.get(&name) {
            Some(before) if *before == content => self.repeated.push(name),
            Some(before) => {
                self.conflicts.push(format!("{name} was sent twice, differently:\n{before}\n{content}"));
            }
            None => {
                self.outputs.insert(name, content);
            }
        }
        Ok(())
    }
}

/// What is in Redis: last prices, candles, running counts.
pub(crate) fn state(config: &Config, redis: &mut redis::Connection) -> anyhow::Result<Facts> {
    const CANDLE: &[&str] = &["open", "high", "low", "close", "volume", "count", "status", "revision"];
    let families: [(&str, &[&str]); 3] = [
        ("last", &["price", "ts", "source"]),
        ("ohlc", CANDLE),
        ("source", &["ticks", "late", "out_of_order", "notifications", "dead_letters"]),
    ];
    let mut state = Facts::new();
    for (family, fields) in families {
        let keys: Vec<String> = redis.keys(format!("{}{family}:*", config.namespace))?;
        for key in keys {
            let name = key.strip_prefix(&config.namespace).unwrap_or(&key);
            if family == "ohlc" && is_closing(name) {
                continue;
            }
            let values: Vec<Option<String>> = redis.hmget(&key, fields)?;
            if family == "ohlc" && values.iter().all(Option::is_none) {
                continue; // expired since it was listed
            }
            let values: Vec<String> = values.into_iter().map(Option::unwrap_or_default).collect();
            state.insert(name.to_owned(), values.join(" "));
        }
    }
    Ok(state)
}

/// How the oracle is to read a source partition.
pub(crate) fn oracle_settings(config: &Config, partition: i32) -> oracle::Settings {
    let candles = &config.candles;
    oracle::Settings {
        topic: config.kafka.topic.clone(),
        partition,
        intervals: candles.intervals.iter().map(ToString::to_string).collect(),
        lateness: candles.lateness.as_millis() as i64,
        late: match candles.late {
            LatePolicy::Drop => oracle::Late::Drop,
            LatePolicy::Divert => oracle::Late::Divert,
            LatePolicy::Revise => oracle::Late::Revise,
        },
        keep: candles.keep.as_millis() as i64,
    }
}

/// What a reader of the outputs may see.
pub(crate) fn isolation(config: &Config) -> Isolation {
    match config.kafka.processing_guarantee {
        Guarantee::AtLeastOnce => Isolation::ReadUncommitted,
        Guarantee::ExactlyOnce => Isolation::ReadCommitted,
    }
}

/// Whether a candle is of a tick of [`Market::send_closing`]: its windows stay open, which no oracle knows.
pub(crate) fn is_closing(symbol: &str) -> bool {
    symbol.trim_start_matches("ohlc:").starts_with("CLOSE-")
}

/// The value of a notification, field by field as documented.
pub(crate) fn notification_value(notification: &oracle::Notification, number: impl Fn(&str) -> String) -> String {
    let oracle::Notification {
        id,
        rule,
        symbol,
        trigger,
        op,
        threshold,
        price,
        previous,
        ts,
        topic,
        partition,
        offset,
        note,
    } = notification;
    let previous = previous.as_deref().map_or_else(|| "null".into(), &number);
    let (threshold, price) = (number(threshold), number(price));
    let note =
        note.as_deref().map_or_else(String::new, |note| format!(r#","note":{}"#, serde_json::Value::from(note)));
    format!(
        r#"{{"id":"{id}","rule":"{rule}","symbol":"{symbol}","trigger":"{trigger}","op":"{op}","threshold":{threshold},"price":{price},"previous":{previous},"ts":{ts},"source":{{"topic":"{topic}","partition":{partition},"offset":{offset}}}{note}}}"#
    )
}

/// The value of a candle, field by field as documented.
pub(crate) fn candle_value(candle: &oracle::Candle, number: impl Fn(&str) -> String) -> String {
    let oracle::Candle { symbol, interval, start, end, open, high, low, close, volume, count, status, revision } =
        candle;
    let [open, high, low, close, volume] = [open, high, low, close, volume].map(|text| number(text));
    format!(
        r#"{{"symbol":"{symbol}","interval":"{interval}","start":{start},"end":{end},"open":{open},"high":{high},"low":{low},"close":{close},"volume":{volume},"count":{count},"status":"{status}","revision":{revision}}}"#
    )
}

/// The value of a late tick: the shape in which ticks come in.
pub(crate) fn late_value(late: &oracle::Diverted, number: impl Fn(&str) -> String) -> String {
    let oracle::Diverted { symbol, price, volume, ts, .. } = late;
    let (price, volume) = (number(price), number(volume));
    format!(r#"{{"symbol":"{symbol}","price":{price},"volume":{volume},"ts":{ts}}}"#)
}

/// Hundredths as a plain decimal without trailing zeros.
pub(crate) fn plain(hundredths: i64) -> String {
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Fails with the first differences.
pub(crate) fn assert_same(what: &str, expected: &Facts, found: &Facts) -> anyhow::Result<()> {
    let mut differences = Vec::new();
    for (name, content) in expected {
        match found.get(name) {
            None => differences.push(format!("missing: {name}: {content}")),
            Some(other) if other != content => {
                differences.push(format!("{name}:\n    expected {content}\n    found    {other}"));
            }
            Some(_) => {}
        }
    }
    let unexpected = found.iter().filter(|(name, _)| !expected.contains_key(*name));
    differences.extend(unexpected.map(|(name, content)| format!("unexpected: {name}: {content}")));
    let shown = differences.iter().take(6).map(String::as_str).collect::<Vec<_>>().join("\n");
    ensure!(
        differences.is_empty(),
        "{what}: {} differences ({} expected, {} found):\n{shown}",
        differences.len(),
        expected.len(),
        found.len()
    );
    Ok(())
}
