//! What befalls the broker.

use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use tickwatch::config::Config;
use tickwatch::sandbox::Broker;

use crate::common::kafka::wait_for_leaders;
use crate::plan::{Fault, Plan, rng};
use crate::timeline::Timeline;

pub(crate) struct KafkaLane<'a> {
    config: &'a Config,
    timeline: &'a Timeline,
    rng: StdRng,
    broker: &'a mut Broker,
    partitions: &'a AtomicI32,
}

impl<'a> KafkaLane<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        config: &'a Config,
        timeline: &'a Timeline,
        broker: &'a mut Broker,
        partitions: &'a AtomicI32,
    ) -> KafkaLane<'a> {
        KafkaLane { config, timeline, rng: rng(plan.seed, 4), broker, partitions }
    }

    pub(crate) fn inject(&mut self, fault: Fault) -> anyhow::Result<()> {
        match fault {
            Fault::BrokerKilled => {
                self.timeline.injected(fault, "");
                self.broker.kill()?;
                self.start_after_a_while()
            }
            Fault::BrokerRestarted => {
                self.timeline.injected(fault, "");
                self.broker.stop()?;
                self.start_after_a_while()
            }
            Fault::PartitionsAdded => self.add_partition(fault),
            _ => Ok(()),
        }
    }

    fn start_after_a_while(&mut self) -> anyhow::Result<()> {
        thread::sleep(Duration::from_millis(self.rng.random_range(0..3_000)));
        self.broker.restart()?;
        self.timeline.say("broker is back");
        Ok(())
    }

    fn add_partition(&mut self, fault: Fault) -> anyhow::Result<()> {
        let wanted = self.partitions.load(Ordering::Relaxed) + 1;
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.config.kafka.brokers).create()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let partitions = NewPartitions::new(&self.config.kafka.topic, wanted as usize);
        let added = runtime.block_on(admin.create_partitions([&partitions], &AdminOptions::new()))?;
        for result in added {
            result.map_err(|(topic, code)| anyhow::anyhow!("add a partition to {topic}: {code}"))?;
        }
        wait_for_leaders(&admin, &self.config.kafka.topic, wanted)?;
        self.timeline.injected(fault, &format!("{wanted} now"));
        self.partitions.store(wanted, Ordering::Relaxed);
        Ok(())
    }
}
