//! The source topic of a simulation: records of every kind, and offsets that hold none.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tickwatch::domain::{BadRecord, Chunk, Offset, Price, Record, Tick, Volume};

/// Event time and time of day at the start, ms.
pub(super) const BEGIN: i64 = 1_700_000_000_000;

/// A tick this far ahead of the clock is beyond every `max_future` here, whenever it is judged.
const FAR_AHEAD: i64 = 1_000 * 24 * 3_600_000;

pub(super) const SYMBOLS: [&str; 2] = ["A", "B"];

/// A tick in whole numbers, as the oracle reckons.
#[derive(Debug, Clone, Copy)]
pub(super) struct SimTick {
    pub(super) symbol: &'static str,
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

/// A log of about `length` offsets: a quarter of the ticks out of order, gaps, bad records.
pub(super) fn generate(rng: &mut StdRng, length: usize) -> Vec<Slot> {
    let mut ts = BEGIN;
    let mut slots = Vec::new();
    while slots.len() < length {
        let slot = match rng.random_range(0..100) {
            0..16 => Slot::Gap,
            16..20 => Slot::Bad,
            20..23 => {
                let mut ticks = ticks(rng, &mut ts);
                ticks.push(SimTick { ts: BEGIN + FAR_AHEAD, ..tick(rng, &mut ts) });
                Slot::Future(ticks)
            }
            _ => Slot::Ticks(ticks(rng, &mut ts)),
        };
        slots.push(slot);
    }
    slots
}

fn ticks(rng: &mut StdRng, ts: &mut i64) -> Vec<SimTick> {
    let count = match rng.random_range(0..20) {
        0 => 0,
        1 | 2 => rng.random_range(2..5),
        _ => 1,
    };
    (0..count).map(|_| tick(rng, ts)).collect()
}

fn tick(rng: &mut StdRng, ts: &mut i64) -> SimTick {
    *ts += if rng.random_bool(0.05) { rng.random_range(0..5_000) } else { rng.random_range(0..500) };
    let behind = if rng.random_bool(0.25) { rng.random_range(0..3_000) } else { 0 };
    SimTick {
        symbol: SYMBOLS[rng.random_range(0..SYMBOLS.len())],
        price: rng.random_range(0..10),
        volume: rng.random_range(0..100),
        ts: (*ts - behind).max(BEGIN),
    }
}

/// The records of the offsets from `from` on, `records` at most and all below `end`; and the offset after them.
pub(super) fn chunk(slots: &[Slot], from: i64, end: i64, records: usize) -> (Chunk, i64) {
    let mut chunk = Chunk { symbols: SYMBOLS.map(Into::into).to_vec(), ..Chunk::default() };
    let mut next = from;
    for offset in from..end {
        if chunk.records.len() == records {
            break;
        }
        add_record(&mut chunk, offset, &slots[offset as usize]);
        next = offset + 1;
    }
    (chunk, next)
}

fn add_record(chunk: &mut Chunk, offset: i64, slot: &Slot) {
    let (ticks, bad) = match slot {
        Slot::Gap => return,
        Slot::Bad => (&[][..], Some(Box::new(BadRecord { kind: "json", reason: "is no JSON".into() }))),
        Slot::Future(ticks) | Slot::Ticks(ticks) => (ticks.as_slice(), None),
    };
    let first = chunk.ticks.len() as u32;
    chunk.ticks.extend(ticks.iter().map(domain_tick));
    chunk.records.push(Record {
        offset: Offset(offset),
        timestamp: BEGIN + offset,
        broker_time: false,
        checksum: offset as u32,
        ticks: first..chunk.ticks.len() as u32,
        bad,
        key: None,
        value: None,
        headers: None,
    });
}

fn domain_tick(tick: &SimTick) -> Tick {
    let symbol = SYMBOLS.iter().position(|symbol| *symbol == tick.symbol).expect("one of SYMBOLS") as u32;
    Tick {
        symbol,
        price: Price::from_f64(tick.price as f64).expect("a small whole number is a price"),
        volume: Volume::parse(&tick.volume.to_string()).expect("a small whole number is a volume"),
        ts: tick.ts,
    }
}

/// A generator of its own for one purpose of one seed.
pub(super) fn rng(seed: u64, purpose: u64) -> StdRng {
    StdRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(purpose))
}
