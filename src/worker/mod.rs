//! From record to output, one source partition at a time:
//!
//! ```text
//! poll → decode → batch [from, to) → apply → close pages → produce all, await acks → commit (offset, watermark) → trim outbox
//! ```
//!
//! | file | what it is |
//! |---|---|
//! | [`supervisor`] | one worker: joins the group, a task for each partition it is given |
//! | [`shell`] | that task: carries out what the state machine asks for |
//! | [`protocol`] | what the state machine says and hears |
//! | [`machine`] | the state machine: applies and closes, one call at a time |
//! | `takeover` | how it gets there, in the one order that is safe |
//! | [`batching`] | records to a batch: grouped, merged, late and future ticks told apart |
//! | `silence` | time on a quiet partition, and what holds it back |
//! | `updating` | open candles, sent as they change |
//! | `delivery`, `committing` | outputs in order, the position that they are delivered up to, trimming |
//! | `trouble` | try again, stop loudly, give the partition up |
//! | [`encode`] | outputs as Kafka records |
//! | [`report`] | what goes to logs, metrics and readiness |

pub mod batching;
mod committing;
mod delivery;
pub mod encode;
pub mod machine;
pub mod protocol;
pub mod report;
pub mod shell;
mod silence;
pub mod supervisor;
mod takeover;
mod trouble;
mod updating;
