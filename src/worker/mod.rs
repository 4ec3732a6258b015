//! From record to output, one source partition at a time:
//!
//! ```text
//! poll → decode → batch [from, to) → apply → close pages → produce all, await acks → commit (offset, watermark) → trim outbox
//! ```

pub mod batching;
mod delivery;
pub mod machine;
pub mod protocol;
mod takeover;
