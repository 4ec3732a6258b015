//! From record to output, one source partition at a time:
//!
//! ```text
//! poll → decode → batch [from, to) → apply → close pages → produce all, await acks → commit (offset, watermark) → trim outbox
//! ```

pub mod batching;
mod delivery;
pub mod encode;
pub mod machine;
pub mod protocol;
pub mod report;
pub mod shell;
pub mod supervisor;
mod takeover;
