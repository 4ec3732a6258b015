//! What the words mean: pure types and rules, no I/O, no clock, no randomness.
//!
//! Everything else in the crate depends on this module and it depends on nothing else here, so each rule of
//! the product can be read, and tested, in one place.

pub mod batch;
pub mod decimal;
pub mod interval;
pub mod output;
pub mod position;
pub mod record;
pub mod reference;
pub mod rule;

pub use batch::{Batch, BatchTick, Counts, Extra, ExtraKind, Partial, SymbolBatch};
pub use decimal::{NumberError, Parsed, Price, Volume};
pub use interval::{Interval, IntervalError, Window};
pub use output::{Entry, OutboxId, Output};
pub use position::{Offset, Position, RecordMark, SourcePartition, Watermark};
pub use record::{BadRecord, Chunk, Record, Tick};
pub use rule::{Op, Trigger};
