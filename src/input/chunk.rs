//! Records in, chunks out.

use std::ops::Range;
use std::sync::Arc;

use super::decoder::{Decoder, Sink};
use crate::domain::record::Headers;
use crate::domain::{Chunk, Offset, Record};

/// A chunk with this many bytes of keys and values is full: far below what its 32-bit ranges reach.
const FULL: usize = 64 << 20;

/// A record as the consumer got it.
#[derive(Debug)]
pub struct RawRecord<'a> {
    /// Its offset.
    pub offset: Offset,
    /// The broker's timestamp in ms; -1 if there is none.
    pub timestamp: i64,
    /// Whether `timestamp` was set by the broker (LogAppendTime).
    pub broker_time: bool,
    /// The key; null is fine where the value holds the symbol.
    pub key: Option<&'a [u8]>,
    /// The value; null (a tombstone) is a bad record.
    pub value: Option<&'a [u8]>,
    /// The headers.
    pub headers: Option<Headers>,
}

/// Decodes the records of one source partition into chunks.
///
/// Runs on the thread that polls Kafka, so it is quick and never fails: a record that cannot be decoded is in the
/// chunk with the reason.
#[derive(Debug)]
pub struct ChunkBuilder {
    decoder: Arc<Decoder>,
    sink: Sink,
    records: Vec<Record>,
    bytes: Vec<u8>,
}

impl ChunkBuilder {
    /// An empty chunk, to be filled.
    pub fn new(decoder: Arc<Decoder>) -> ChunkBuilder {
        ChunkBuilder { decoder, sink: Sink::default(), records: Vec::new(), bytes: Vec::new() }
    }

    /// Adds the next record. [`take`](Self::take) the chunk when it [is full](Self::is_full).
    pub fn push(&mut self, record: RawRecord<'_>) {
        let first = self.sink.ticks.len() as u32;
        let bad = self.decoder.decode(record.key, record.value, &mut self.sink).err();
        let ticks = first..self.sink.ticks.len() as u32;
        let checksum = checksum(record.key, record.value);
        let key = record.key.map(|key| self.keep(key));
        let value = record.value.map(|value| self.keep(value));
        self.records.push(Record {
            offset: record.offset,
            timestamp: record.timestamp,
            broker_time: record.broker_time,
            checksum,
            ticks,
            bad: bad.map(Box::new),
            key,
            value,
            headers: record.headers.map(Box::new),
        });
    }

    /// How many records are in the chunk.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is no record in the chunk.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether the chunk holds so many bytes (64 MiB) that it must be taken before the next record.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= FULL
    }

    /// The chunk; the builder starts the next one.
    pub fn take(&mut self) -> Chunk {
        // Chunks wait in buffers: what they grew by too much would be half of what a backlog costs.
        self.records.shrink_to_fit();
        self.sink.ticks.shrink_to_fit();
        self.bytes.shrink_to_fit();
        Chunk {
            records: std::mem::take(&mut self.records),
            ticks: std::mem::take(&mut self.sink.ticks),
            symbols: self.sink.symbols.take(),
            rounded: std::mem::take(&mut self.sink.rounded),
            bytes: std::mem::take(&mut self.bytes),
        }
    }

    fn keep(&mut self, bytes: &[u8]) -> Range<u32> {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len() as u32
    }
}

/// CRC-32 of key, then value.
fn checksum(key: Option<&[u8]>, value: Option<&[u8]>) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(key.unwrap_or_default());
    crc.update(value.unwrap_or_default());
    crc.finalize()
}
