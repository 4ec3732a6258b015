//! The service as one writes it first: for each tick one script call, awaited; one task a partition; all tasks on one
//! connection. Edge rules and candles of one second; a candle closes with its symbol's next tick. No owner, no
//! outbox, no watermark.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use rdkafka::Message as _;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::OwnedMessage;
use rdkafka::producer::{BaseRecord, ThreadedProducer};
use rdkafka::{ClientConfig, producer::DefaultProducerContext};
use redis::Script;
use redis::aio::MultiplexedConnection;
use tickwatch::config::InputConfig;
use tickwatch::domain::Tick;
use tickwatch::input::{Decoder, Parser};
use tokio::sync::mpsc;

use crate::raw::consumer_config;

const SCRIPT: &str = include_str!("naive.lua");
const INTERVAL: i64 = 1_000;
/// Records of a partition that wait for its task.
const WAITING: usize = 1_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    brokers: String,
    #[arg(long)]
    group: String,
    #[arg(long)]
    topic: String,
    #[arg(long)]
    notifications: String,
    #[arg(long)]
    candles: String,
    #[arg(long)]
    redis: String,
}

/// What every partition's task has.
struct Shared {
    args: Args,
    consumer: StreamConsumer,
    producer: ThreadedProducer<DefaultProducerContext>,
    redis: MultiplexedConnection,
    script: Script,
}

/// Runs until it is killed.
#[tokio::main]
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let consumer: StreamConsumer =
        consumer_config(&args.brokers, &args.group).set("enable.auto.offset.store", "false").create()?;
    consumer.subscribe(&[&args.topic])?;
    let producer = ClientConfig::new()
        .set("bootstrap.servers", &args.brokers)
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random")
        .create()?;
    let redis = redis::Client::open(args.redis.as_str())?.get_multiplexed_async_connection().await?;
    let shared = Arc::new(Shared { args, consumer, producer, redis, script: Script::new(SCRIPT) });
    let mut partitions = HashMap::new();
    loop {
        let message = shared.consumer.recv().await?.detach();
        let queue = partitions.entry(message.partition()).or_insert_with(|| {
            let (queue, records) = mpsc::channel(WAITING);
            tokio::spawn(partition(Arc::clone(&shared), records));
            queue
        });
        queue.send(message).await.context("a partition's task has ended; see above")?;
    }
}

/// One partition's records, one after the other.
async fn partition(shared: Arc<Shared>, mut records: mpsc::Receiver<OwnedMessage>) {
    let decoder = Decoder::new(&InputConfig::default()).expect("the default mapping is valid");
    let mut parser = Parser::new(decoder);
    let mut redis = shared.redis.clone();
    while let Some(record) = records.recv().await {
        if let Err(error) = shared.take(&record, &mut parser, &mut redis).await {
            eprintln!("{}/{}: {error:#}", record.partition(), record.offset());
            return;
        }
    }
}

/// What the script returns.
type Reply = (Vec<String>, Option<Vec<String>>);

impl Shared {
    async fn take(
        &self,
        record: &OwnedMessage,
        parser: &mut Parser,
        redis: &mut MultiplexedConnection,
    ) -> anyhow::Result<()> {
        let ticks = parser.parse(record.key(), record.payload()).map_err(|bad| anyhow!(bad.reason))?;
        let ticks: Vec<Tick> = ticks.to_vec();
        let symbol = std::str::from_utf8(record.key().context("no key")?)?;
        for tick in ticks {
            let mut call = self.script.key(format!("tw:last:{symbol}"));
            call.key(format!("tw:rules:{symbol}:edge")).key(format!("naive:candle:{symbol}"));
            call.arg(tick.price.to_string()).arg(tick.volume.to_string()).arg(tick.ts).arg(INTERVAL);
            let (fired, closed): Reply = call.invoke_async(redis).await?;
            for rule in fired {
                self.notify(record, symbol, &tick, &rule)?;
            }
            if let Some(candle) = closed {
                self.send_candle(symbol, &candle)?;
            }
        }
        Ok(self.consumer.store_offset(record.topic(), record.partition(), record.offset())?)
    }

    fn notify(&self, record: &OwnedMessage, symbol: &str, tick: &Tick, rule: &str) -> anyhow::Result<()> {
        let (price, ts, partition, offset) = (tick.price, tick.ts, record.partition(), record.offset());
        let value = format!(
            r#"{{"rule":"{rule}","symbol":"{symbol}","price":{price},"ts":{ts},"source":{{"partition":{partition},"offset":{offset}}}}}"#
        );
        self.send(&self.args.notifications, symbol, &value)
    }

    fn send_candle(&self, symbol: &str, candle: &[String]) -> anyhow::Result<()> {
        let [start, open, high, low, close, volume, count] = candle else {
            return Err(anyhow!("a candle of {} fields", candle.len()));
        };
        let value = format!(
            r#"{{"symbol":"{symbol}","interval":"1s","start":{start},"open":{open},"high":{high},"low":{low},"close":{close},"volume":{volume},"count":{count},"status":"final"}}"#
        );
        self.send(&self.args.candles, symbol, &value)
    }

    fn send(&self, topic: &str, symbol: &str, value: &str) -> anyhow::Result<()> {
        let sent = self.producer.send(BaseRecord::to(topic).key(symbol).payload(value));
        sent.map_err(|(error, _)| anyhow!("send to {topic}: {error}"))
    }
}
