//! Everything that talks to Kafka: the source with its group membership, commits, end offsets, the sinks, topics.
//!
//! | file | what it is |
//! |---|---|
//! | [`source`] | what the worker holds: starting, positioning and closing the source; its events and errors |
//! | [`reader`] | the records of one partition from one position on, with their back-pressure |
//! | `poll` | the one thread that polls the consumer, decodes, and positions |
//! | `membership` | what is assigned; rebalances, on the poll thread |
//! | [`committer`] | the one thread that commits delivered positions, many partitions to a request |
//! | [`ends`] | the log's start and end, asked through another client |
//! | [`progress`] | how far the group is, for `tickwatch status` |
//! | [`onlooker`] | end offsets and members, asked again and again for the page |
//! | [`tail`] | the newest records of a topic, for the page |
//! | [`follow`] | a topic record by record, for `tickwatch tail` |
//! | [`sink`] | outputs, at least once |
//! | [`transaction`] | outputs and the source offset in one transaction |
//! | [`outputs`] | a whole topic, as its readers see it |
//! | [`topics`] | checks at start-up, and making topics |
//! | [`client`] | how every client is configured |
//!
//! Offsets are written next-to-read everywhere, as in [`crate::domain::Position`].

pub mod client;
pub mod committer;
pub mod ends;
pub mod follow;
mod membership;
pub mod onlooker;
pub mod outputs;
mod poll;
pub mod progress;
pub mod reader;
pub mod sink;
pub mod source;
pub mod tail;
pub mod topics;
pub mod transaction;

pub use client::KafkaSetupError;
pub use committer::Committed;
pub use ends::{Ends, EndsError, LogRange};
pub use rdkafka::consumer::ConsumerGroupMetadata;
pub use reader::{Feed, Reader};
pub use sink::{OutRecord, Sink, SinkError};
pub use source::{Done, Source, SourceError, SourceEvent, SourceHandle};
pub use topics::{TopicError, TopicRole};
pub use transaction::{TransactionError, TransactionalSink};
