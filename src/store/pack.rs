//! A symbol's batch as the `apply` script reads it: packed binary, little-endian; text arguments take three times
//! as long.
//!
//! ```text
//! header  5 doubles: number of ticks, number of windows, ts of the first tick, greatest ts, 1 if ts never falls
//!         3 texts (length byte, bytes): lowest price, highest price, price of the last tick
//! window  7 doubles: interval (from 1), start, end, count, open_ts, close_ts, offset it revises or -1
//!         5 texts: open, high, low, close, volume
//! tick    u32 offset - from, u32 index in its record, 2 doubles: ts, price
//! ```
//!
//! Numbers are doubles because Lua's are; all of them are whole numbers below 2^53, or prices. The price of the last
//! tick is used only if ts never falls.

use std::fmt::{Display, Write as _};

use crate::domain::{Interval, Offset, Partial, Price, SymbolBatch};

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
        self.number(ticks.iter().map(|tick| tick.ts).max().unwrap_or(0) as f64);
        self.number(if ticks.is_sorted_by_key(|tick| tick.ts) { 1.0 } else { 0.0 });
        let (low, high) = range(batch);
        self.text(low);
        self.text(high);
        self.text(ticks.last().map_or(low, |tick| tick.price));
        for partial in &batch.windows {
            let interval = intervals.iter().position(|i| *i == partial.interval);
            self.window(interval.expect("a batch is built for the configured intervals"), partial);
        }
        for tick in ticks {
            self.buffer.extend_from_slice(&((tick.offset.0 - from.0) as u32).to_le_bytes());
            self.buffer.extend_from_slice(&tick.index.to_le_bytes());
            self.number(tick.ts as f64);
            self.number(tick.price.to_f64());
        }
        &self.buffer
    }

    fn window(&mut self, interval: usize, partial: &Partial) {
        for number in [
            interval as i64 + 1,
            partial.window.start,
            partial.window.end,
            partial.count as i64,
            partial.open_ts,
            partial.close_ts,
            partial.revises.map_or(-1, |offset| offset.0),
        ] {
            self.number(number as f64);
        }
        for price in [partial.open, partial.high, partial.low, partial.close] {
            self.text(price);
        }
        self.text(partial.volume);
    }

    fn number(&mut self, value: f64) {
        self.buffer.extend_from_slice(&value.to_le_bytes());
    }

    fn text(&mut self, value: impl Display) {
        self.text.clear();
        write!(self.text, "{value}").expect("a String takes every write");
        self.buffer.push(u8::try_from(self.text.len()).expect("a decimal has at most 60 characters"));
        self.buffer.extend_from_slice(self.text.as_bytes());
    }
}

/// Lowest and highest price of the ticks.
fn range(batch: &SymbolBatch) -> (Price, Price) {
    let first = batch.ticks.first().map_or(Price::ZERO, |tick| tick.price);
    batch.ticks.iter().fold((first, first), |(low, high), tick| {
        (if tick.price < low { tick.price } else { low }, if tick.price > high { tick.price } else { high })
    })
}
