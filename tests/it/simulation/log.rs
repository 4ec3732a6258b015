//! The source topic of a simulation: records of every kind, and offsets that hold none.

use std::sync::LazyLock;

use tickwatch::domain::{BadRecord, Chunk, Offset, Price, Record, RecordMark, Tick, Volume};

use super::dice::Dice;
use super::oracle::Key;

/// Event time and time of day at the start, ms.
pub(super) const BEGIN: i64 = 1_700_000_000_000;

/// A topic that was made again holds the ticks of another day.
const DAY: i64 = 24 * 3_600_000;

/// A tick this far ahead of the clock is beyond every `max_future` here, whenever it is judged.
const FAR_AHEAD: i64 = 1_000 * DAY;

/// The symbols of each source partition: none is in two.
pub(super) const SYMBOLS: [[&str; 2]; 2] = [["A", "B"], ["C", "D"]];

/// Volumes run from 0 to below this.
const VOLUMES: usize = 100;

static DOMAIN_VOLUMES: LazyLock<Vec<Volume>> = LazyLock::new(|| {
    (0..VOLUMES).map(|n| Volume::parse(&n.to_string()).expect("a small whole number is a volume")).collect()
});

/// Prices run from 0 to below this.
const PRICES: usize = 10;

static DOMAIN_PRICES: LazyLock<Vec<Price>> = LazyLock::new(|| {
    (0..PRICES).map(|n| Price::from_f64(n as f64).expect("a small whole number is a price")).collect()
});

/// A tick in whole numbers, as the oracle reckons.
#[derive(Debug, Clone, Copy)]
pub(super) struct SimTick {
    /// Index into the partition's [`SYMBOLS`].
    pub(super) symbol: usize,
    pub(super) price: i64,
    pub(super) volume: i64,
    pub(super) ts: i64,
}

/// What an offset holds.
#[derive(Debug, Clone)]
pub(super) enum Slot {
    /// No record: a control record, or one that was compacted away.
    Gap,
    /// A record that cannot be decoded.
    Bad,
    /// A record with a tick too far in the future.
    Future(Vec<SimTick>),
    /// A record of one or more ticks, or of none.
    Ticks(Vec<SimTick>),
}

/// A partition of the source topic.
#[derive(Debug)]
pub(super) struct Topic {
    /// Counts how often it was made again: records of another incarnation are others.
    pub(super) number: usize,
    pub(super) slots: Vec<Slot>,
    /// First offset that still exists.
    pub(super) start: i64,
    /// Next offset to be written, and the end for readers that do not see open transactions.
    pub(super) written: i64,
    pub(super) stable: i64,
}

impl Topic {
    /// About `length` offsets to be written. The share of each kind of record, and how far ticks are out of order, is
    /// drawn for each topic.
    pub(super) fn generate(dice: &mut Dice, number: usize, length: usize) -> Topic {
        let shape = Shape {
            gaps: dice.pick(&[5, 15, 30]),
            bad: dice.pick(&[0, 5, 10]),
            future: dice.pick(&[0, 3, 10]),
            behind: dice.pick(&[10, 25, 50]),
            leap: dice.pick(&[2, 5, 15]),
        };
        let begin = Topic::begin_of(number);
        let mut ts = begin;
        let slots = (0..length)
            .map(|_| match dice.below(100) {
                roll if roll < shape.gaps => Slot::Gap,
                roll if roll < shape.gaps + shape.bad => Slot::Bad,
                roll if roll < shape.gaps + shape.bad + shape.future => {
                    let mut ticks = shape.ticks(dice, begin, &mut ts);
                    ticks.push(SimTick { ts: BEGIN + FAR_AHEAD, ..shape.tick(dice, begin, &mut ts) });
                    Slot::Future(ticks)
                }
                _ => Slot::Ticks(shape.ticks(dice, begin, &mut ts)),
            })
            .collect();
        Topic { number, slots, start: 0, written: 0, stable: 0 }
    }

    /// Event time from which on the ticks of this incarnation lie, ms.
    pub(super) fn begin_of(number: usize) -> i64 {
        BEGIN + number as i64 * DAY
    }

    pub(super) fn length(&self) -> i64 {
        self.slots.len() as i64
    }

    pub(super) fn is_gap(&self, offset: i64) -> bool {
        matches!(self.slots[offset as usize], Slot::Gap)
    }

    pub(super) fn is_bad(&self, key: Key) -> bool {
        matches!(key, Key::DeadLetter(offset) if matches!(self.slots[offset as usize], Slot::Bad))
    }

    /// The records of the offsets from `from` on, `records` at most and all below `end`; and the offset after them.
    pub(super) fn chunk(&self, symbols: [&str; 2], from: i64, end: i64, records: usize) -> (Chunk, i64) {
        let mut chunk = Chunk { symbols: symbols.map(Into::into).to_vec(), ..Chunk::default() };
        let mut next = from;
        for offset in from..end {
            if chunk.records.len() == records {
                break;
            }
            self.add_record(&mut chunk, offset);
            next = offset + 1;
        }
        (chunk, next)
    }

    fn add_record(&self, chunk: &mut Chunk, offset: i64) {
        let (ticks, bad) = match &self.slots[offset as usize] {
            Slot::Gap => return,
            Slot::Bad => (&[][..], Some(Box::new(BadRecord { kind: "json", reason: "is no JSON".into() }))),
            Slot::Future(ticks) | Slot::Ticks(ticks) => (ticks.as_slice(), None),
        };
        let first = chunk.ticks.len() as u32;
        chunk.ticks.extend(ticks.iter().map(domain_tick));
        let mark = self.mark(offset);
        chunk.records.push(Record {
            offset: mark.offset,
            timestamp: mark.timestamp,
            broker_time: false,
            checksum: mark.checksum,
            ticks: first..chunk.ticks.len() as u32,
            bad,
            key: None,
            value: None,
            headers: None,
        });
    }

    /// What identifies the record at an offset.
    pub(super) fn mark(&self, offset: i64) -> RecordMark {
        let checksum = (self.number as u32) << 16 | offset as u32;
        RecordMark { offset: Offset(offset), timestamp: Topic::begin_of(self.number) + offset, checksum }
    }
}

/// Shares in a hundred.
struct Shape {
    gaps: usize,
    bad: usize,
    future: usize,
    /// Ticks out of order.
    behind: usize,
    /// Ticks that are far ahead of the one before.
    leap: usize,
}

impl Shape {
    fn ticks(&self, dice: &mut Dice, begin: i64, ts: &mut i64) -> Vec<SimTick> {
        let count = match dice.below(20) {
            0 => 0,
            1 | 2 => 2 + dice.below(3),
            _ => 1,
        };
        (0..count).map(|_| self.tick(dice, begin, ts)).collect()
    }

    fn tick(&self, dice: &mut Dice, begin: i64, ts: &mut i64) -> SimTick {
        *ts += if dice.percent(self.leap) { dice.between(0, 5_000) } else { dice.between(0, 500) };
        let behind = if dice.percent(self.behind) { dice.between(0, 3_000) } else { 0 };
        SimTick {
            symbol: dice.below(2),
            price: dice.between(0, PRICES as i64),
            volume: dice.between(0, VOLUMES as i64),
            ts: (*ts - behind).max(begin),
        }
    }
}

fn domain_tick(tick: &SimTick) -> Tick {
    Tick {
        symbol: tick.symbol as u32,
        price: DOMAIN_PRICES[tick.price as usize],
        volume: DOMAIN_VOLUMES[tick.volume as usize],
        ts: tick.ts,
    }
}
