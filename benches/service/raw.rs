//! The limit: consumes a topic as one member of a group, decodes each record if asked to, and does nothing with it.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tickwatch::config::InputConfig;
use tickwatch::input::{Decoder, Parser};

use crate::contenders::COMMIT_INTERVAL_MS;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    brokers: String,
    #[arg(long)]
    group: String,
    #[arg(long)]
    topic: String,
    #[arg(long)]
    parse: bool,
}

/// Runs until it is killed.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let consumer: BaseConsumer = consumer_config(&args.brokers, &args.group).create()?;
    consumer.subscribe(&[&args.topic])?;
    let mut parser = Parser::new(Decoder::new(&InputConfig::default())?);
    loop {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        let message = message?;
        if args.parse {
            let ticks = parser.parse(message.key(), message.payload());
            let ticks = ticks.map_err(|bad| anyhow::anyhow!("offset {}: {}", message.offset(), bad.reason))?;
            std::hint::black_box(ticks);
        }
    }
}

/// librdkafka's defaults, which read ahead as far as they can, but for one: the usual pause of a second after the
/// local queue was full stalls a consumer that is as fast as this.
pub(crate) fn consumer_config(brokers: &str, group: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        .set("auto.commit.interval.ms", COMMIT_INTERVAL_MS.to_string())
        .set("fetch.queue.backoff.ms", "10");
    config
}
