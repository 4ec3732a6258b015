//! A symbol's batch as the `apply` script reads it: packed binary, little-endian; text arguments take three times
//! as long.
//!
//! ```text
//! header  3 doubles: number of ticks, number of windows, ts of the first tick
//!         1 byte: 1 if ts never falls
//!         4 texts (length byte, bytes): greatest ts, lowest price, highest price, price of the last tick
//! window  1 byte: interval, from 1
//!         11 texts: start, end, offset it revises or none, open, high, low, close, volume, count, open_ts, close_ts
//! ticks   4 columns: price (double), ts (double), offset - from (u32), index in its record (u32)
//! ranges  of each stretch of 16 ticks, lowest and highest price (doubles)
//! ```
//!
//! A text is what the script stores or sends as it is. Doubles are for what it compares: whole numbers below 2^53, and
//! prices. Columns, because mostly only the prices are read, and of most stretches only the range. The price of the last
//! tick is used only if ts never falls.

use std::fmt::{Display, Write as _};

use crate::domain::{BatchTick, Interval, Offset, Partial, Price, SymbolBatch};

/// Ticks of a stretch; `STEP` of `apply.lua`.
const STRETCH: usize = 16;

/// Writes into one buffer, which is taken over and over.
#[derive(Debug, Default)]
pub struct Packer {
    buffer: Vec<u8>,
    text: String,
}

impl Packer {
    /// Packs a symbol's batch. `intervals` are the configured ones, in the order given to the script.
    ///
    /// # Panics
    ///
    /// Never on a batch that was built for these intervals and whose first offset is `from`.
    pub fn pack(&mut self, batch: &SymbolBatch, from: Offset, intervals: &[Interval]) -> &[u8] {
        self.buffer.clear();
        let ticks = &batch.ticks;
        self.number(ticks.len() as f64);
        self.number(batch.windows.len() as f64);
        self.number(ticks.first().map_or(0.0, |tick| tick.ts as f64));
        self.buffer.push(u8::from(ticks.is_sorted_by_key(|tick| tick.ts)));
        self.text(ticks.iter().map(|tick| tick.ts).max().unwrap_or(0));
        let (low, high) = range(ticks).unwrap_or((Price::ZERO, Price::ZERO));
        self.text(low);
        self.text(high);
        self.text(ticks.last().map_or(low, |tick| tick.price));
        for partial in &batch.windows {
            let interval = intervals.iter().position(|i| *i == partial.interval);
            self.window(interval.expect("a batch is built for the configured intervals"), partial);
        }
        for tick in ticks {
            self.number(tick.price.to_f64());
        }
        for tick in ticks {
            self.number(tick.ts as f64);
        }
        for tick in ticks {
            self.small((tick.offset.0 - from.0) as u32);
        }
        for tick in ticks {
            self.small(tick.index);
        }
        for stretch in ticks.chunks(STRETCH) {
            let (low, high) = range(stretch).expect("a chunk is not empty");
            self.number(low.to_f64());
            self.number(high.to_f64());
        }
        &self.buffer
    }

    fn window(&mut self, interval: usize, partial: &Partial) {
        self.buffer.push(u8::try_from(interval + 1).expect("the configuration bounds the number of intervals"));
        self.text(partial.window.start);
        self.text(partial.window.end);
        match partial.revises {
            Some(offset) => self.text(offset.0),
            None => self.text(""),
        }
        for price in [partial.open, partial.high, partial.low, partial.close] {
            self.text(price);
        }
        self.text(partial.volume);
        self.text(partial.count);
        self.text(partial.open_ts);
        self.text(partial.close_ts);
    }

    fn number(&mut self, value: f64) {
        self.buffer.extend_from_slice(&value.to_le_bytes());
    }

    fn small(&mut self, value: u32) {
        self.buffer.extend_from_slice(&value.to_le_bytes());
    }

    fn text(&mut self, value: impl Display) {
        self.text.clear();
        write!(self.text, "{value}").expect("a String takes every write");
        self.buffer.push(u8::try_from(self.text.len()).expect("a decimal has at most 60 characters"));
        self.buffer.extend_from_slice(self.text.as_bytes());
    }
}

/// Lowest and highest price; `None` of no ticks.
fn range(ticks: &[BatchTick]) -> Option<(Price, Price)> {
    let first = ticks.first()?.price;
    Some(ticks.iter().fold((first, first), |(low, high), tick| {
        (if tick.price < low { tick.price } else { low }, if tick.price > high { tick.price } else { high })
    }))
}
