//! Outputs as Kafka records. Key: the symbol; value: JSON with plain decimals; dead letters keep key, value and headers.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use super::protocol::Outgoing;
use crate::config::{Config, Numbers};
use crate::domain::output::{Candle, LateTick, Notification};
use crate::domain::{Entry, Offset, Output, SourcePartition};
use crate::kafka::OutRecord;

/// Makes records of outputs, for one configuration.
#[derive(Debug, Clone)]
pub struct Encoder {
    notifications: Arc<str>,
    candles: Arc<str>,
    late: Arc<str>,
    dead_letters: Arc<str>,
    numbers: Numbers,
}

impl Encoder {
    /// Topics and form of numbers as configured.
    pub fn new(config: &Config) -> Encoder {
        Encoder {
            notifications: config.output.notifications.as_str().into(),
            candles: config.output.candles.as_str().into(),
            late: config.late_topic().into(),
            dead_letters: config.dead_letter_topic().into(),
            numbers: config.output.numbers,
        }
    }

    /// The record of an output of `partition`. A `generation` above 0 is part of notification ids.
    pub fn encode(&self, partition: &SourcePartition, generation: u64, outgoing: &Outgoing) -> OutRecord {
        match outgoing {
            Outgoing::Entry(Entry { id, output }) => match output {
                Output::Notification(notification) => {
                    self.notification(partition, generation, id.offset, notification)
                }
                Output::Candle(candle) => self.candle(candle, None),
                Output::Update(candle) => {
                    let source = StandRecord {
                        topic: &partition.topic,
                        partition: partition.partition,
                        next_offset: id.offset.0,
                        generation: (generation > 0).then_some(generation),
                    };
                    self.candle(candle, Some(source))
                }
                Output::Late(tick) => self.late_tick(partition, id.offset, tick),
                Output::DeadLetter { reason } => self.dead_letter(partition, id.offset, reason, None),
            },
            Outgoing::DeadLetter { offset, reason, record, .. } => {
                self.dead_letter(partition, *offset, reason, record.as_ref())
            }
        }
    }

    fn number(&self, plain: impl ToString) -> Number {
        let text = plain.to_string();
        match self.numbers {
            Numbers::String => Number::Text(text),
            Numbers::Number => Number::Plain(RawValue::from_string(text).expect("a plain decimal is JSON")),
        }
    }

    fn notification(
        &self,
        partition: &SourcePartition,
        generation: u64,
        offset: Offset,
        notification: &Notification,
    ) -> OutRecord {
        let Notification { symbol, rule, trigger, op, threshold, price, previous, ts, index, note } = notification;
        record(
            &self.notifications,
            symbol,
            &NotificationRecord {
                id: notification_id(partition, generation, offset, notification),
                rule,
                symbol,
                trigger: trigger.as_str(),
                op: op.as_str(),
                threshold: self.number(threshold),
                price: self.number(price),
                previous: previous.map(|price| self.number(price)),
                ts: *ts,
                source: SourceRecord {
                    topic: &partition.topic,
                    partition: partition.partition,
                    offset: offset.0,
                    index: (*index > 0).then_some(*index),
                },
                note: note.as_deref(),
            },
        )
    }

    /// `stands`: up to where an open candle is complete.
    fn candle(&self, candle: &Candle, stands: Option<StandRecord<'_>>) -> OutRecord {
        record(
            &self.candles,
            &candle.symbol,
            &CandleRecord {
                symbol: &candle.symbol,
                interval: candle.interval.to_string(),
                start: candle.start,
                end: candle.end,
                open: self.number(candle.open),
                high: self.number(candle.high),
                low: self.number(candle.low),
                close: self.number(candle.close),
                volume: self.number(candle.volume),
                count: candle.count,
                status: match (&stands, candle.revision) {
                    (Some(_), _) => "open",
                    (None, 0) => "final",
                    (None, _) => "revised",
                },
                revision: candle.revision,
                source: stands,
            },
        )
    }

    /// In the default input shape, so that it can be read like any tick.
    fn late_tick(&self, partition: &SourcePartition, offset: Offset, tick: &LateTick) -> OutRecord {
        let value = TickRecord {
            symbol: &tick.symbol,
            price: self.number(tick.price),
            volume: self.number(tick.volume),
            ts: tick.ts,
        };
        let intervals = tick.intervals.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let mut late = record(&self.late, &tick.symbol, &value);
        late.headers = origin(partition, offset);
        late.headers.push(("late.intervals".into(), Some(intervals.into_bytes())));
        late
    }

    fn dead_letter(
        &self,
        partition: &SourcePartition,
        offset: Offset,
        reason: &str,
        found: Option<&super::batching::RecordRef>,
    ) -> OutRecord {
        let mut letter =
            OutRecord { topic: Arc::clone(&self.dead_letters), key: None, value: None, headers: Vec::new() };
        let mut error = reason.to_owned();
        if let Some(found) = found {
            let original = found.record();
            letter.key = original.key.as_ref().map(|range| found.chunk.slice(range).to_vec());
            letter.value = original.value.as_ref().map(|range| found.chunk.slice(range).to_vec());
            letter.headers.extend(original.headers.iter().flat_map(|headers| headers.iter().cloned()));
        } else {
            error.push_str(" (the record itself is gone from the log)");
        }
        letter.headers.push(("error".into(), Some(error.into_bytes())));
        letter.headers.extend(origin(partition, offset));
        letter
    }
}

/// `<topic>/<partition>/<offset>[.<i>]/<trigger>/<op>/<rule id>`: the same on every retry, restart and replay.
pub fn notification_id(
    partition: &SourcePartition,
    generation: u64,
    offset: Offset,
    notification: &Notification,
) -> String {
    let generation = if generation == 0 { String::new() } else { format!("@{generation}") };
    let index = if notification.index == 0 { String::new() } else { format!(".{}", notification.index) };
    let Notification { trigger, op, rule, .. } = notification;
    format!("{partition}{generation}/{offset}{index}/{trigger}/{op}/{rule}")
}

fn origin(partition: &SourcePartition, offset: Offset) -> Vec<(String, Option<Vec<u8>>)> {
    [
        ("source.topic", partition.topic.clone()),
        ("source.partition", partition.partition.to_string()),
        ("source.offset", offset.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), Some(value.into_bytes())))
    .into()
}

fn record(topic: &Arc<str>, symbol: &str, value: &impl Serialize) -> OutRecord {
    OutRecord {
        topic: Arc::clone(topic),
        key: Some(symbol.as_bytes().to_vec()),
        value: Some(serde_json::to_vec(value).expect("records hold texts and plain decimals only")),
        headers: Vec::new(),
    }
}

/// A plain decimal, as a JSON number or as text.
#[derive(Serialize)]
#[serde(untagged)]
enum Number {
    Plain(Box<RawValue>),
    Text(String),
}

#[derive(Serialize)]
struct NotificationRecord<'a> {
    id: String,
    rule: &'a str,
    symbol: &'a str,
    trigger: &'static str,
    op: &'static str,
    threshold: Number,
    price: Number,
    previous: Option<Number>,
    ts: i64,
    source: SourceRecord<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
}

#[derive(Serialize)]
struct SourceRecord<'a> {
    topic: &'a str,
    partition: i32,
    offset: i64,
    /// Place in a record that holds several trades, from 1 for the second.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
}

#[derive(Serialize)]
struct CandleRecord<'a> {
    symbol: &'a str,
    interval: String,
    start: i64,
    end: i64,
    open: Number,
    high: Number,
    low: Number,
    close: Number,
    volume: Number,
    count: u64,
    status: &'static str,
    revision: i64,
    /// Of an open candle only.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<StandRecord<'a>>,
}

/// How far an open candle has come: it holds its window's ticks of all offsets below.
#[derive(Serialize)]
struct StandRecord<'a> {
    topic: &'a str,
    partition: i32,
    next_offset: i64,
    /// Of a topic that was made again.
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
}

#[derive(Serialize)]
struct TickRecord<'a> {
    symbol: &'a str,
    price: Number,
    volume: Number,
    ts: i64,
}
