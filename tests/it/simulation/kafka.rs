//! Kafka as a simulation needs it, but for the log: a committed position, transactions that fence, and everything that
//! was ever sent.

use tickwatch::domain::{Entry, Offset, Output, Position, Price, Trigger, Watermark};
use tickwatch::worker::protocol::{Committed, Outgoing};

use super::log::SYMBOLS;
use super::oracle::{Content, Key, RULES, Why, rule_number};

/// An output that reached Kafka.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    /// The incarnation of the topic that it came from.
    pub(super) topic: usize,
    pub(super) generation: u64,
    pub(super) key: Key,
    pub(super) content: Content,
    /// A dead letter without the bytes of its record.
    pub(super) without_bytes: bool,
    pub(super) step: usize,
}

/// What Kafka holds of one source partition.
#[derive(Debug)]
pub(super) struct Kafka {
    pub(super) committed: Committed,
    /// What was committed last, whatever became of it since.
    pub(super) truth: Position,
    pub(super) sent: Vec<Sent>,
    /// The newest transactional producer.
    pub(super) producer: u64,
}

impl Default for Kafka {
    fn default() -> Kafka {
        Kafka {
            committed: Committed::None,
            truth: Position::at(Offset(0), Watermark::NEVER),
            sent: Vec::new(),
            producer: 0,
        }
    }
}

impl Kafka {
    pub(super) fn commit(&mut self, position: Position) {
        self.committed = Committed::At(position);
        self.truth = position;
    }

    /// The committed position, or the one before all if that is lost.
    pub(super) fn at(&self) -> Position {
        self.committed.position().unwrap_or(Kafka::default().truth)
    }

    /// Whether the committed position was there once, and is not any more.
    pub(super) fn is_lost(&self) -> bool {
        !matches!(self.committed, Committed::At(_)) && self.truth > Kafka::default().truth
    }
}

impl Sent {
    pub(super) fn new(part: usize, output: &Outgoing, topic: usize, generation: u64, step: usize) -> Sent {
        let (key, content, without_bytes) = match output {
            Outgoing::Entry(entry) => {
                let (key, content) = named(part, entry);
                (key, content, false)
            }
            Outgoing::DeadLetter { offset, kind, record, .. } => {
                if let Some(record) = record {
                    assert_eq!(record.record().offset, *offset, "a dead letter's bytes are its record's");
                }
                let why = match *kind {
                    "json" => Why::Bad,
                    "future" => Why::Future,
                    "poisoned" => Why::Poisoned,
                    kind => unreachable!("no record here is {kind}"),
                };
                (Key::DeadLetter(offset.0), Content::DeadLetter(why), record.is_none())
            }
        };
        Sent { topic, generation, key, content, without_bytes, step }
    }
}

/// The name and the content of an entry that is no dead letter.
pub(super) fn named(part: usize, entry: &Entry) -> (Key, Content) {
    let number = |symbol: &str| SYMBOLS[part].iter().position(|it| *it == symbol).expect("one of the partition's");
    let offset = entry.id.offset.0;
    match &entry.output {
        Output::Notification(it) => {
            let rule = rule_number(&it.rule);
            assert_eq!(RULES[rule].edge, it.trigger == Trigger::Edge, "{it:?} is of another trigger");
            let content = Content::Notification(price_of(it.price), it.previous.map(price_of), it.ts);
            (Key::Notification(offset, it.index, rule), content)
        }
        Output::Candle(it) | Output::Update(it) => {
            let prices = [it.open, it.high, it.low, it.close].map(price_of);
            let content = [prices[0], prices[1], prices[2], prices[3], whole(&it.volume), it.count as i64];
            let (symbol, interval) = (number(&it.symbol), it.interval.ms());
            let key = match &entry.output {
                Output::Update(_) => Key::Update(symbol, interval, it.start, offset),
                _ => Key::Candle(symbol, interval, it.start, it.revision),
            };
            (key, Content::Candle(content))
        }
        Output::Late(it) => {
            let content = Content::Late(number(&it.symbol), price_of(it.price), whole(&it.volume), it.ts);
            (Key::Late(offset, it.index), content)
        }
        Output::DeadLetter { .. } => unreachable!("a dead letter is sent with its record"),
    }
}

pub(super) fn price_of(price: Price) -> i64 {
    price.to_f64() as i64
}

pub(super) fn whole(volume: &tickwatch::domain::Volume) -> i64 {
    volume.to_string().parse().expect("whole volumes have a whole sum")
}
