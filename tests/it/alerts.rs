//! One alert at a time, and when it came: for tests that measure.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::market::{Market, SETTLED, START_PRICE, tick};

const SYMBOL: &str = "ALERT";

/// Ticks of which each fires a rule, from a producer of their own that waits for nothing.
pub(crate) struct Alerts(FutureProducer);

impl Alerts {
    /// Puts the rule.
    pub(crate) fn open(market: &mut Market) -> anyhow::Result<Alerts> {
        market.put_rule(SYMBOL, "level", ">=", START_PRICE, "alice")?;
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &market.config.kafka.brokers).set("linger.ms", "0");
        Ok(Alerts(config.create()?))
    }

    /// Returns when the broker has it. The first takes half a second: the producer connects.
    pub(crate) fn send(&self, market: &Market) -> anyhow::Result<()> {
        let alert = tick(SYMBOL, 200, 60_000).json();
        let record = FutureRecord::to(&market.config.kafka.topic).key(SYMBOL).payload(&alert);
        let sent = market.stage().block_on(self.0.send(record, SETTLED));
        sent.map(drop).map_err(|(error, _)| error.into())
    }
}

/// Reads what comes to the topic of notifications from now on.
pub(crate) struct Outputs(BaseConsumer);

impl Outputs {
    pub(crate) fn from_now_on(market: &Market) -> anyhow::Result<Outputs> {
        let topic = market.config.output.notifications.as_str();
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &market.config.kafka.brokers)
            .set("group.id", "reader-without-a-group")
            .create()?;
        let mut ends = TopicPartitionList::new();
        for partition in consumer.fetch_metadata(Some(topic), SETTLED)?.topics()[0].partitions() {
            let (_, end) = consumer.fetch_watermarks(topic, partition.id(), SETTLED)?;
            ends.add_partition_offset(topic, partition.id(), Offset::Offset(end))?;
        }
        consumer.assign(&ends)?;
        Ok(Outputs(consumer))
    }

    pub(crate) fn wait_for_one(&self) -> anyhow::Result<Instant> {
        let deadline = Instant::now() + SETTLED;
        while Instant::now() < deadline {
            if let Some(message) = self.0.poll(Duration::from_secs(1)) {
                return message.map(|_| Instant::now()).context("the topic of notifications");
            }
        }
        bail!("no output came within {SETTLED:?}")
    }
}
