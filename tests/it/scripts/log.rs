//! Random source logs, and the batches they are cut into.
//!
//! The batches are built here in a few plain lines, so that what is tested is the scripts and not the worker's own
//! way of building them.

use rand::RngExt as _;
use rand::rngs::StdRng;
use tickwatch::config::LatePolicy;
use tickwatch::domain::{
    Batch, BatchTick, Counts, Extra, ExtraKind, Interval, Offset, Partial, Position, Price, RecordMark,
    SymbolBatch, Volume, Watermark, Window,
};

/// When the logs begin, ms since the epoch.
pub(crate) const BEGIN: i64 = 1_700_000_000_000;

/// Times are multiples of this, so that a tick often meets an end, an expiry or a cooldown to the millisecond.
pub(crate) const STEP: i64 = 100;

/// Names that would break a careless key: braces, colons, other scripts, spaces, percent signs, a long one.
pub(crate) const SYMBOLS: [&str; 8] =
    ["BBCA", "{BTC}", "A}B{C", "币安人生USDT", "BTC/USDT:USDT", "a b\tc", "100%25", "X:1s:1700000000000"];

/// Prices close enough together for many crossings, and some at the edges of what a price is.
const PRICES: [&str; 15] = [
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "2.5",
    "3.5",
    "4.5",
    "-2",
    "0",
    "3.00000000000001",
    "0.000123456789012345",
    "999999999999999",
    "999999999999999000",
];

const VOLUMES: [&str; 9] = [
    "0",
    "1",
    "0.1",
    "10.43",
    "5200",
    "99999999999999.9",
    "0.000000000000000001",
    "9999999999.999999999999999999",
    "123456789012345678",
];

/// What decides how ticks become a batch.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) intervals: Vec<Interval>,
    /// ms
    pub(crate) lateness: i64,
    pub(crate) late: LatePolicy,
    /// How far back `revise` reaches, ms.
    pub(crate) keep: i64,
}

/// A record of the source topic. Offsets may leave gaps.
#[derive(Debug, Clone)]
pub(crate) struct LogRecord {
    pub(crate) offset: i64,
    pub(crate) content: Content,
}

#[derive(Debug, Clone)]
pub(crate) enum Content {
    Ticks(Vec<LogTick>),
    /// Refused as too far in the future.
    Future,
    /// No ticks could be read from it.
    Undecodable,
}

#[derive(Debug, Clone)]
pub(crate) struct LogTick {
    pub(crate) symbol: &'static str,
    pub(crate) price: Price,
    pub(crate) volume: Volume,
    pub(crate) ts: i64,
}

impl LogRecord {
    fn ticks(&self) -> &[LogTick] {
        match &self.content {
            Content::Ticks(ticks) => ticks,
            Content::Future | Content::Undecodable => &[],
        }
    }
}

pub(crate) fn interval(name: &str) -> Interval {
    name.parse().expect("an interval")
}

pub(crate) fn price(text: &str) -> Price {
    Price::parse(text).expect("a price").value
}

pub(crate) fn volume(text: &str) -> Volume {
    Volume::parse(text).expect("a volume")
}

pub(crate) fn pick<'a, T>(rng: &mut StdRng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}

pub(crate) fn random_price(rng: &mut StdRng) -> Price {
    // Mostly the near ones: they cross each other's thresholds.
    let end = if rng.random_ratio(9, 10) { 9 } else { PRICES.len() };
    price(PRICES[rng.random_range(0..end)])
}

impl Settings {
    pub(crate) fn random(rng: &mut StdRng) -> Settings {
        let choices: [&[&str]; 4] = [&["1s"], &["1s", "1m"], &["500ms", "3s", "1m"], &[]];
        Settings {
            intervals: pick(rng, &choices).iter().map(|name| interval(name)).collect(),
            lateness: *pick(rng, &[0, 500, 2000]),
            late: *pick(rng, &[LatePolicy::Drop, LatePolicy::Divert, LatePolicy::Revise]),
            keep: *pick(rng, &[3000, 86_400_000]),
        }
    }

    /// The batch of the next records from `position`, at most `most` of them, and how many it took. It ends before a
    /// record that is late for a window which this very batch passes.
    pub(crate) fn batch(&self, records: &[LogRecord], position: Position, most: usize) -> (Batch, usize) {
        let mut batch = Batch {
            from: position.offset,
            to: position.offset,
            watermark_before: position.watermark,
            watermark_after: position.watermark,
            max_ts: None,
            last_record: None,
            symbols: Vec::new(),
            extras: Vec::new(),
            counts: Counts::default(),
        };
        let mut taken = 0;
        for record in records.iter().take(most) {
            if taken > 0 && self.is_cut_before(record, &batch) {
                break;
            }
            self.add(record, &mut batch);
            taken += 1;
        }
        (batch, taken)
    }

    fn is_cut_before(&self, record: &LogRecord, batch: &Batch) -> bool {
        record.ticks().iter().any(|tick| {
            self.intervals.iter().any(|interval| {
                let end = interval.window_of(tick.ts).end;
                batch.watermark_after.passes(end) && !batch.watermark_before.passes(end)
            })
        })
    }

    fn add(&self, record: &LogRecord, batch: &mut Batch) {
        let offset = Offset(record.offset);
        batch.to = Offset(record.offset + 1);
        batch.last_record = Some(RecordMark { offset, timestamp: BEGIN, checksum: record.offset as u32 });
        match &record.content {
            Content::Undecodable => batch.counts.dead_letters += 1,
            Content::Future => {
                batch.counts.dead_letters += 1;
                let kind = ExtraKind::DeadLetter { reason: format!("record {offset} is too early") };
                batch.extras.push(Extra { offset, index: 0, kind });
            }
            Content::Ticks(ticks) => {
                let watermark = batch.watermark_after;
                for (index, tick) in ticks.iter().enumerate() {
                    self.add_tick(offset, index as u32, tick, watermark, batch);
                }
            }
        }
    }

    fn add_tick(&self, offset: Offset, index: u32, tick: &LogTick, watermark: Watermark, batch: &mut Batch) {
        let group = batch.symbols.iter().position(|group| &*group.symbol == tick.symbol).unwrap_or_else(|| {
            let symbol = tick.symbol.into();
            batch.symbols.push(SymbolBatch { symbol, ticks: Vec::new(), windows: Vec::new() });
            batch.symbols.len() - 1
        });
        let group = &mut batch.symbols[group];
        group.ticks.push(BatchTick { offset, index, ts: tick.ts, price: tick.price });

        let mut late_for = Vec::new();
        for &interval in &self.intervals {
            let window = interval.window_of(tick.ts);
            if !watermark.passes(window.end) {
                merge(&mut group.windows, interval, window, None, tick);
                continue;
            }
            late_for.push(interval);
            let in_reach = watermark.ms().is_some_and(|ms| window.end > ms - self.keep);
            if self.late == LatePolicy::Revise && in_reach {
                merge(&mut group.windows, interval, window, Some(offset), tick);
            }
        }
        batch.counts.ticks += 1;
        batch.counts.late += u64::from(!late_for.is_empty());
        if self.late == LatePolicy::Divert && !late_for.is_empty() {
            let (symbol, price, volume, ts) = (tick.symbol.into(), tick.price, tick.volume, tick.ts);
            let kind = ExtraKind::Late { symbol, price, volume, ts, intervals: late_for };
            batch.extras.push(Extra { offset, index, kind });
        }
        batch.max_ts = batch.max_ts.max(Some(tick.ts));
        batch.watermark_after = batch.watermark_after.max(Watermark::at(tick.ts - self.lateness));
    }
}

fn merge(windows: &mut Vec<Partial>, interval: Interval, window: Window, revises: Option<Offset>, tick: &LogTick) {
    let same = |p: &&mut Partial| p.interval == interval && p.window == window && p.revises == revises;
    let Some(partial) = windows.iter_mut().find(same) else {
        windows.push(Partial {
            interval,
            window,
            open: tick.price,
            high: tick.price,
            low: tick.price,
            close: tick.price,
            volume: tick.volume,
            count: 1,
            open_ts: tick.ts,
            close_ts: tick.ts,
            revises,
        });
        return;
    };
    if tick.ts < partial.open_ts {
        (partial.open, partial.open_ts) = (tick.price, tick.ts);
    }
    if tick.ts >= partial.close_ts {
        (partial.close, partial.close_ts) = (tick.price, tick.ts);
    }
    if tick.price > partial.high {
        partial.high = tick.price;
    }
    if tick.price < partial.low {
        partial.low = tick.price;
    }
    partial.volume = partial.volume.plus(tick.volume);
    partial.count += 1;
}

/// A log of `records` records: time goes on in steps, with ticks out of order, equal times, jumps, gaps between
/// offsets, several ticks in a record, and records without ticks.
pub(crate) fn random_log(rng: &mut StdRng, symbols: &[&'static str], records: usize) -> Vec<LogRecord> {
    let (mut offset, mut now) = (rng.random_range(0..3), BEGIN);
    let mut log = Vec::with_capacity(records);
    for _ in 0..records {
        now += match rng.random_range(0..20) {
            0..8 => 0,
            8..19 => STEP * rng.random_range(0..5),
            _ => rng.random_range(0..10_000) / STEP * STEP,
        };
        let content = match rng.random_range(0..30) {
            0 => Content::Future,
            1 => Content::Undecodable,
            2 => Content::Ticks(Vec::new()),
            n => {
                let count = if n < 22 { 1 } else { rng.random_range(2..5) };
                Content::Ticks((0..count).map(|_| random_tick(rng, symbols, now)).collect())
            }
        };
        log.push(LogRecord { offset, content });
        offset += if rng.random_ratio(1, 10) { rng.random_range(2..5) } else { 1 };
    }
    log
}

fn random_tick(rng: &mut StdRng, symbols: &[&'static str], now: i64) -> LogTick {
    let back = match rng.random_range(0..10) {
        0 => STEP * rng.random_range(0..60),
        1..4 => STEP * rng.random_range(0..4),
        _ => 0,
    };
    LogTick {
        symbol: pick::<&'static str>(rng, symbols),
        price: random_price(rng),
        volume: volume(pick::<&str>(rng, &VOLUMES)),
        ts: now - back,
    }
}
