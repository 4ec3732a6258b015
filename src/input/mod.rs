//! From a record's bytes to ticks: JSON pointers and presets for exchange payloads.
//!
//! The path of a record, on the thread that polls Kafka:
//!
//! | file | step |
//! |---|---|
//! | `chunk` | [`ChunkBuilder`] takes records and never fails: what cannot be decoded becomes a bad record |
//! | `parser` | [`Parser`]: the ticks of a record alone, which is what benchmarks compare with |
//! | `decoder` | [`Decoder`]: the captured fields of each trade become a tick, or one sentence about what is wrong |
//! | `walk` | one pass over the JSON, which captures the wanted fields as the text that was sent |
//! | `plan` | the wanted pointers as a tree, built once |
//! | `mapping` | the `[input]` section and a preset, checked and merged |
//! | `presets` | payloads of exchanges, as data |
//! | `pointer`, `time`, `symbols` | JSON pointers, time units, symbols held once a chunk |
//!
//! # What a record holds
//!
//! Without settings a value is one trade, `{"symbol":"BBCA","price":9505,"volume":100,"ts":1700000000000}`.
//! Numbers may be JSON numbers or their text. A symbol that is not in the value is taken from the record's key.
//! A missing or null volume is 0 unless `volume_required`. With `records` (or a preset) one record may hold many
//! trades: it stays one unit, so one bad trade makes the whole record bad.
//!
//! Under a preset, a message that carries no trade (a subscription's answer, a heartbeat, a quote) decodes to no
//! ticks and is not bad. Without one, a record without its trades is bad.

mod chunk;
mod decoder;
mod mapping;
mod parser;
mod plan;
mod pointer;
mod presets;
mod symbols;
mod time;
mod walk;

pub use chunk::{ChunkBuilder, RawRecord};
pub use decoder::Decoder;
pub(crate) use decoder::MAX_SYMBOL;
pub use parser::Parser;
pub use presets::{Preset, presets};

/// Why an `[input]` section cannot be used. Each message names the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// No preset has this name.
    #[error("[input] format: there is no preset {name:?}; did you mean {nearest:?}? Presets: {known}")]
    UnknownFormat {
        /// The name as given.
        name: String,
        /// The preset most like it.
        nearest: &'static str,
        /// All presets.
        known: String,
    },
    /// A pointer that does not start with a slash.
    #[error("[input] {key}: {pointer:?} is no JSON pointer; it starts with a slash, such as \"/{}\"", .pointer.trim_start_matches(['^', '.']))]
    NoSlash {
        /// The setting.
        key: &'static str,
        /// Its value.
        pointer: String,
    },
    /// A `~` that is neither `~0` nor `~1`.
    #[error("[input] {key}: in {pointer:?} a \"~\" must be written \"~0\", and a \"/\" within a name \"~1\"")]
    Tilde {
        /// The setting.
        key: &'static str,
        /// Its value.
        pointer: String,
    },
    /// A `*` in the pointer of a field.
    #[error(
        "[input] {key}: {pointer:?} holds a \"*\"; name the array in [input] records, such as \"/events/*/trades\", \
         and start {key} at one trade"
    )]
    Star {
        /// The setting.
        key: &'static str,
        /// Its value.
        pointer: String,
    },
}

#[cfg(test)]
mod tests;
