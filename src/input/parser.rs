//! A record's ticks and nothing else: the least that any reader of the same records has to do.

use super::Decoder;
use super::decoder::Sink;
use crate::domain::{BadRecord, Tick};

/// Decodes one record at a time and keeps nothing of it but the symbols' names.
#[derive(Debug)]
pub struct Parser {
    decoder: Decoder,
    sink: Sink,
}

impl Parser {
    /// Reads records as `decoder` says.
    pub fn new(decoder: Decoder) -> Parser {
        Parser { decoder, sink: Sink::default() }
    }

    /// The ticks of a record.
    pub fn parse(&mut self, key: Option<&[u8]>, value: Option<&[u8]>) -> Result<&[Tick], BadRecord> {
        self.sink.ticks.clear();
        self.decoder.decode(key, value, &mut self.sink)?;
        Ok(&self.sink.ticks)
    }
}
