//! That an alert waits for nothing that is yet to come. How long it takes is for the benchmark to say.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::harness::{Case, Needs, Stage, cases};
use crate::market::{Market, SETTLED, START_PRICE, start, tick};
use crate::takeover::Outputs;

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both; a_lone_alert_is_sent_at_once)
}

/// What librdkafka would have each output wait for others.
const LINGER_OF_LIBRDKAFKA: Duration = Duration::from_millis(5);
/// On a busy machine some alerts take longer for other reasons; a wait for others is in every one.
const ALERTS: usize = 200;

fn a_lone_alert_is_sent_at_once(stage: &Stage) -> anyhow::Result<()> {
    let mut market = Market::open(stage, 1, |_| {})?;
    market.put_rule("ALERT", "level", ">=", START_PRICE, "alice")?;
    let _workers = start(&market, 1)?;
    let brokers = &market.config.kafka.brokers;
    let producer: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", brokers).set("linger.ms", "0").create()?;
    let outputs = Outputs::from_now_on(&market)?;
    let mut fastest = Duration::MAX;
    for _ in 0..ALERTS {
        let alert = tick("ALERT", 200, 60_000).json();
        let record = FutureRecord::to(&market.config.kafka.topic).key("ALERT").payload(&alert);
        let sent = Instant::now();
        stage.block_on(producer.send(record, SETTLED)).map_err(|(error, _)| error)?;
        fastest = fastest.min(outputs.wait_for_one()?.duration_since(sent));
        if fastest < LINGER_OF_LIBRDKAFKA {
            break;
        }
    }
    println!("latency: {fastest:?}");
    ensure!(fastest < LINGER_OF_LIBRDKAFKA, "the fastest of {ALERTS} alerts took {fastest:?}");
    Ok(())
}
