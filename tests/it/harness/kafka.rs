//! Topics and records on the shared broker, or on any.

use super::Stage;
pub(crate) use crate::common::kafka::{Isolation, Message, Record, consume_all};

#[allow(dead_code)] // for every module; not all use each
impl Stage {
    /// Makes a topic and waits until each partition has a leader.
    pub(crate) fn create_topic(&self, name: &str, partitions: i32) -> anyhow::Result<()> {
        create_topic(self, self.brokers(), name, partitions)
    }

    /// Produces records in order and waits until all are acknowledged. Returns their partitions and offsets.
    pub(crate) fn produce<M: Into<Message>>(
        &self,
        topic: &str,
        messages: impl IntoIterator<Item = M>,
    ) -> anyhow::Result<Vec<(i32, i64)>> {
        produce(self, self.brokers(), topic, messages)
    }

    /// Produces records within one transaction and commits or aborts it.
    pub(crate) fn produce_transaction<M: Into<Message>>(
        &self,
        topic: &str,
        messages: impl IntoIterator<Item = M>,
        commit: bool,
    ) -> anyhow::Result<()> {
        let id = self.unique("transaction");
        self.block_on(crate::common::kafka::produce_transaction(self.brokers(), &id, topic, messages, commit))
    }

    /// Every record of a topic, each partition in offset order; none if there is no such topic.
    pub(crate) fn consume_all(&self, topic: &str, isolation: Isolation) -> anyhow::Result<Vec<Record>> {
        consume_all(self.brokers(), topic, isolation)
    }
}

/// [`Stage::create_topic`] on any broker.
pub(crate) fn create_topic(stage: &Stage, brokers: &str, name: &str, partitions: i32) -> anyhow::Result<()> {
    stage.block_on(crate::common::kafka::create_topic(brokers, name, partitions))
}

/// [`Stage::produce`] on any broker.
pub(crate) fn produce<M: Into<Message>>(
    stage: &Stage,
    brokers: &str,
    topic: &str,
    messages: impl IntoIterator<Item = M>,
) -> anyhow::Result<Vec<(i32, i64)>> {
    stage.block_on(crate::common::kafka::produce(brokers, topic, messages))
}
