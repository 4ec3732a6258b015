//! From records to a batch: ticks grouped by symbol, partial candles merged, late and future ticks told apart.
//!
//! All of it is known without the state: the caller holds the watermark, and the guard of `apply` refuses a batch
//! that was built on another. A record is one unit: all its ticks are judged against the watermark before it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::config::LatePolicy;
use crate::domain::{
    Batch, BatchTick, Chunk, Counts, Extra, ExtraKind, Interval, Offset, Partial, Position, Record, SymbolBatch,
    Tick, Watermark, Window,
};

/// What decides how ticks become a batch.
#[derive(Debug, Clone)]
pub struct BatchSettings {
    /// Candle intervals.
    pub intervals: Vec<Interval>,
    /// How far the watermark stays behind the greatest event time, ms.
    pub lateness: i64,
    /// What happens to ticks whose window has closed.
    pub late: LatePolicy,
    /// How far back `revise` reaches, ms of event time.
    pub keep: i64,
    /// How far ahead of its reference time a tick may be, ms.
    pub max_future: i64,
    /// Stop at a record that cannot be decoded.
    pub block_bad_records: bool,
}

/// Where a batch has to end.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Ticks at most, though always one record.
    pub ticks: usize,
    /// Symbols at most, though always one record.
    pub symbols: usize,
    /// Records at most.
    pub records: usize,
    /// Never beyond this offset: the delivered offset while behind it, the end of a bounded run.
    pub until: Option<Offset>,
    /// Machine clock, ms since the epoch: the reference time of records that the broker did not stamp.
    pub clock: i64,
}

/// Records read and not yet applied, in order.
#[derive(Debug, Default)]
pub struct Buffer {
    chunks: VecDeque<Arc<Chunk>>,
    /// Index of the first unapplied record in the first chunk.
    first: usize,
    records: usize,
}

/// A batch, with what is needed once it is applied.
#[derive(Debug, Clone)]
pub struct Built {
    /// What to apply.
    pub batch: Arc<Batch>,
    /// Number of records of the buffer in it.
    pub records: usize,
    /// Records that could not be decoded, in order.
    pub bad: Vec<RecordRef>,
    /// Ticks too far in the future, for the alarm about this machine's clock.
    pub future: u64,
    /// The chunks, for the bytes of dead letters.
    pub chunks: Vec<Arc<Chunk>>,
}

/// A record, with the chunk that owns its bytes.
#[derive(Debug, Clone)]
pub struct RecordRef {
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// Index into [`Chunk::records`].
    pub index: usize,
}

impl RecordRef {
    /// The record itself.
    pub fn record(&self) -> &Record {
        &self.chunk.records[self.index]
    }
}

impl Built {
    /// The record at `offset`, if it is in this batch.
    pub fn find(&self, offset: Offset) -> Option<RecordRef> {
        find(&self.chunks, offset)
    }
}

fn find(chunks: &[Arc<Chunk>], offset: Offset) -> Option<RecordRef> {
    chunks.iter().find_map(|chunk| {
        let index = chunk.records.binary_search_by_key(&offset, |record| record.offset).ok()?;
        Some(RecordRef { chunk: Arc::clone(chunk), index })
    })
}

impl Buffer {
    /// Adds a chunk that follows what is there.
    pub fn push(&mut self, chunk: Arc<Chunk>) {
        self.records += chunk.records.len();
        self.chunks.push_back(chunk);
    }

    /// Drops the first `count` records.
    pub fn consume(&mut self, count: usize) {
        self.records -= count;
        self.first += count;
        while let Some(chunk) = self.chunks.front()
            && self.first >= chunk.records.len()
        {
            self.first -= chunk.records.len();
            self.chunks.pop_front();
        }
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.records
    }

    /// Whether no record is left.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        *self = Buffer::default();
    }

    /// The first record.
    pub fn front(&self) -> Option<RecordRef> {
        self.iter().next()
    }

    fn iter(&self) -> impl Iterator<Item = RecordRef> + '_ {
        let first = self.first;
        self.chunks.iter().enumerate().flat_map(move |(number, chunk)| {
            let start = if number == 0 { first } else { 0 };
            (start..chunk.records.len()).map(move |index| RecordRef { chunk: Arc::clone(chunk), index })
        })
    }

    /// Builds the next batch from `position`, or `None` if there is nothing that moves it. `end`: the reader has
    /// seen that no record lies before this offset (control records count), known at the end of the partition.
    pub fn next_batch(
        &self,
        settings: &BatchSettings,
        position: Position,
        end: Option<Offset>,
        bounds: Bounds,
    ) -> Option<Built> {
        let mut grouping = Grouping::new(settings, position, bounds.clock);
        let mut to = position.offset;
        let mut complete = true;
        'chunks: for (number, chunk) in self.chunks.iter().enumerate() {
            grouping.enter_chunk(chunk);
            for index in if number == 0 { self.first } else { 0 }..chunk.records.len() {
                let record = &chunk.records[index];
                if bounds.until.is_some_and(|until| record.offset >= until) {
                    to = bounds.until.unwrap_or(to);
                    break 'chunks;
                }
                let ticks = grouping.ticks + (record.ticks.end - record.ticks.start) as usize;
                let full = grouping.records >= bounds.records
                    || ticks > bounds.ticks
                    || grouping.has_more_symbols(chunk, record, bounds.symbols);
                let blocked = settings.block_bad_records && record.bad.is_some();
                if (full && grouping.records > 0) || blocked || grouping.is_cut_before(chunk, record) {
                    complete = false;
                    break 'chunks;
                }
                grouping.add(chunk, index);
                to = Offset(record.offset.0 + 1);
            }
        }
        if complete && grouping.records == self.records {
            let end = end.map(|end| bounds.until.map_or(end, |until| end.min(until)));
            to = end.map_or(to, |end| end.max(to));
        }
        (to > position.offset).then(|| grouping.finish(position, to))
    }
}

/// A batch being built.
struct Grouping<'a> {
    settings: &'a BatchSettings,
    /// Watermark at the start of the batch.
    start: Watermark,
    /// Watermark by the ticks so far.
    running: Watermark,
    clock: i64,
    max_ts: Option<i64>,
    symbols: Vec<SymbolBatch>,
    by_name: HashMap<Box<str>, usize>,
    /// Partial candles beyond the few newest of each symbol: a backlog of sparse ticks fills many windows.
    partials: HashMap<PartialKey, usize>,
    /// Symbols of the chunk at hand → index into `symbols`.
    local: Vec<Option<usize>>,
    extras: Vec<Extra>,
    bad: Vec<RecordRef>,
    chunks: Vec<Arc<Chunk>>,
    last: Option<RecordRef>,
    counts: Counts,
    records: usize,
    ticks: usize,
    future: u64,
}

impl<'a> Grouping<'a> {
    fn new(settings: &'a BatchSettings, position: Position, clock: i64) -> Grouping<'a> {
        Grouping {
            settings,
            start: position.watermark,
            running: position.watermark,
            clock,
            max_ts: None,
            symbols: Vec::new(),
            by_name: HashMap::new(),
            partials: HashMap::new(),
            local: Vec::new(),
            extras: Vec::new(),
            bad: Vec::new(),
            chunks: Vec::new(),
            last: None,
            counts: Counts::default(),
            records: 0,
            ticks: 0,
            future: 0,
        }
    }

    /// Whether there would be more than so many symbols with this record.
    fn has_more_symbols(&self, chunk: &Chunk, record: &Record, most: usize) -> bool {
        let is_new = |symbol: u32| {
            let local = symbol as usize;
            self.local[local].is_none() && !self.by_name.contains_key(&chunk.symbols[local])
        };
        self.symbols.len() >= most && chunk.ticks_of(record).iter().any(|tick| is_new(tick.symbol))
    }

    fn enter_chunk(&mut self, chunk: &Arc<Chunk>) {
        self.local.clear();
        self.local.resize(chunk.symbols.len(), None);
        self.chunks.push(Arc::clone(chunk));
    }

    /// Whether the batch has to end before this record: it is late for a window that this very batch passes, and a
    /// final candle holds exactly the ticks up to the one that closed it.
    fn is_cut_before(&self, chunk: &Chunk, record: &Record) -> bool {
        self.running > self.start
            && chunk.ticks_of(record).iter().any(|tick| {
                self.settings.intervals.iter().any(|interval| {
                    let end = interval.window_of(tick.ts).end;
                    self.running.passes(end) && !self.start.passes(end)
                })
            })
            && self.future_tick(chunk, record).is_none()
    }

    /// The first tick of the record that is too far ahead of its reference time, with that time.
    fn future_tick<'c>(&self, chunk: &'c Chunk, record: &Record) -> Option<(&'c Tick, i64)> {
        let reference = if record.broker_time { record.timestamp } else { self.clock };
        let latest = reference.saturating_add(self.settings.max_future);
        chunk.ticks_of(record).iter().find(|tick| tick.ts > latest).map(|tick| (tick, reference))
    }

    fn add(&mut self, chunk: &Arc<Chunk>, index: usize) {
        let record = &chunk.records[index];
        let reference = RecordRef { chunk: Arc::clone(chunk), index };
        self.records += 1;
        if record.bad.is_some() {
            self.bad.push(reference.clone());
            self.counts.dead_letters += 1;
        } else if let Some((tick, latest)) = self.future_tick(chunk, record) {
            let reason = format!(
                "ts {} of {} is {} ms ahead of its reference time {latest}, more than [input] max_future allows",
                tick.ts,
                chunk.symbol_of(tick),
                tick.ts - latest
            );
            self.extras.push(Extra { offset: record.offset, index: 0, kind: ExtraKind::DeadLetter { reason } });
            self.counts.dead_letters += 1;
            self.future += u64::from(record.ticks.end - record.ticks.start);
        } else {
            self.add_ticks(chunk, record);
        }
        self.last = Some(reference);
    }

    fn add_ticks(&mut self, chunk: &Chunk, record: &Record) {
        let before = self.running;
        for (index, tick) in chunk.ticks_of(record).iter().enumerate() {
            let group = self.group_of(chunk, tick);
            self.add_tick(group, record.offset, index as u32, tick, before);
            self.max_ts = self.max_ts.max(Some(tick.ts));
            self.running = self.running.max(Watermark::at(tick.ts - self.settings.lateness));
        }
    }

    fn group_of(&mut self, chunk: &Chunk, tick: &Tick) -> usize {
        let local = tick.symbol as usize;
        if let Some(group) = self.local[local] {
            return group;
        }
        let name = &chunk.symbols[local];
        let group = *self.by_name.entry(name.clone()).or_insert_with(|| {
            self.symbols.push(SymbolBatch { symbol: name.clone(), ticks: Vec::new(), windows: Vec::new() });
            self.symbols.len() - 1
        });
        self.local[local] = Some(group);
        group
    }

    fn add_tick(&mut self, group: usize, offset: Offset, index: u32, tick: &Tick, before: Watermark) {
        self.counts.ticks += 1;
        self.ticks += 1;
        self.symbols[group].ticks.push(BatchTick { offset, index, ts: tick.ts, price: tick.price });
        let mut late = Vec::new();
        for number in 0..self.settings.intervals.len() {
            let interval = self.settings.intervals[number];
            let window = interval.window_of(tick.ts);
            if !before.passes(window.end) {
                self.merge(group, interval, window, tick, None);
                continue;
            }
            late.push(interval);
            let within_reach = before.ms().is_some_and(|ms| window.end > ms - self.settings.keep);
            if self.settings.late == LatePolicy::Revise && within_reach {
                self.merge(group, interval, window, tick, Some(offset));
            }
        }
        if late.is_empty() {
            return;
        }
        self.counts.late += 1;
        if self.settings.late == LatePolicy::Divert {
            let kind = ExtraKind::Late {
                symbol: self.symbols[group].symbol.clone(),
                price: tick.price,
                volume: tick.volume,
                ts: tick.ts,
                intervals: late,
            };
            self.extras.push(Extra { offset, index, kind });
        }
    }

    /// Adds a tick to the partial candle of its window.
    fn merge(&mut self, group: usize, interval: Interval, window: Window, tick: &Tick, revises: Option<Offset>) {
        let windows = &mut self.symbols[group].windows;
        let is_it = |p: &&mut Partial| p.interval == interval && p.window == window && p.revises == revises;
        if let Some(partial) = windows.iter_mut().rev().take(NEWEST).find(is_it) {
            return partial.add(tick);
        }
        let key = (group, interval, window.start, revises);
        if let Some(&number) = self.partials.get(&key) {
            windows[number].add(tick);
        } else {
            self.partials.insert(key, windows.len());
            windows.push(Partial::of(interval, window, tick, revises));
        }
    }

    fn finish(self, position: Position, to: Offset) -> Built {
        let batch = Batch {
            from: position.offset,
            to,
            watermark_before: position.watermark,
            watermark_after: self.running,
            max_ts: self.max_ts,
            last_record: self.last.map(|last| last.record().mark()),
            symbols: self.symbols,
            extras: self.extras,
            counts: self.counts,
        };
        Built {
            batch: Arc::new(batch),
            records: self.records,
            bad: self.bad,
            future: self.future,
            chunks: self.chunks,
        }
    }
}

/// Symbol's group, interval, start, offset it revises.
type PartialKey = (usize, Interval, i64, Option<Offset>);

/// Windows of a symbol looked at before the map is asked.
const NEWEST: usize = 4;

impl Partial {
    fn of(interval: Interval, window: Window, tick: &Tick, revises: Option<Offset>) -> Partial {
        Partial {
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
        }
    }

    /// Merges a tick that comes later in the log.
    fn add(&mut self, tick: &Tick) {
        if tick.ts < self.open_ts {
            (self.open, self.open_ts) = (tick.price, tick.ts);
        }
        if tick.ts >= self.close_ts {
            (self.close, self.close_ts) = (tick.price, tick.ts);
        }
        if tick.price > self.high {
            self.high = tick.price;
        }
        if tick.price < self.low {
            self.low = tick.price;
        }
        self.volume = self.volume.plus(tick.volume);
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::InputConfig;
    use crate::input::{ChunkBuilder, Decoder, RawRecord};

    const SETTINGS: BatchSettings = BatchSettings {
        intervals: Vec::new(),
        lateness: 0,
        late: LatePolicy::Drop,
        keep: 0,
        max_future: 0,
        block_bad_records: false,
    };

    /// One record a value, each an array of trades of the symbols that its letters name.
    fn buffer(values: &[&str]) -> Buffer {
        let config = InputConfig { records: Some(String::new()), ..InputConfig::default() };
        let mut builder = ChunkBuilder::new(Arc::new(Decoder::new(&config).unwrap()));
        for (offset, symbols) in (0..).zip(values) {
            let trade = |symbol| format!(r#"{{"symbol":"{symbol}","price":1,"volume":1,"ts":1700000000000}}"#);
            let value = format!("[{}]", symbols.chars().map(trade).collect::<Vec<_>>().join(","));
            builder.push(RawRecord {
                offset: Offset(offset),
                timestamp: 0,
                broker_time: false,
                key: None,
                value: Some(value.as_bytes()),
                headers: None,
            });
        }
        let mut buffer = Buffer::default();
        buffer.push(Arc::new(builder.take()));
        buffer
    }

    #[test]
    fn a_batch_ends_before_one_symbol_too_many_but_has_a_record() {
        let records = |values: &[&str], symbols| {
            let bounds = Bounds { ticks: 100, symbols, records: 100, until: None, clock: i64::MAX / 2 };
            let built =
                buffer(values).next_batch(&SETTINGS, Position::at(Offset(0), Watermark::NEVER), None, bounds);
            built.unwrap().records
        };
        assert_eq!(records(&["A", "B", "A", "B", "C"], 2), 4, "more ticks of the same symbols go on");
        assert_eq!(records(&["A", "AB", "B", "AC", "A"], 2), 3);
        assert_eq!(records(&["ABC", "A"], 2), 2, "a record is never cut, and more of it is no new symbol");
        assert_eq!(records(&["ABC", "D"], 2), 1);
        assert_eq!(records(&["A", "B", "C"], 3), 3);
    }
}
