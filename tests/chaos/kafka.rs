//! A broker that each worker reaches through a relay of its own.

use tickwatch::sandbox::Broker;
use tickwatch::sandbox::kafka::RELAYS;

use crate::proxy::Proxy;

/// The broker, and the ways to it. It lasts for many runs.
pub(crate) struct Kafka {
    pub(crate) broker: Broker,
    relays: [Proxy; RELAYS],
}

impl Kafka {
    pub(crate) fn start() -> anyhow::Result<Kafka> {
        let relays = [Proxy::start()?, Proxy::start()?, Proxy::start()?, Proxy::start()?, Proxy::start()?];
        let broker = Broker::start_behind(relays.each_ref().map(|relay| relay.address().port()))?;
        for (relay, port) in relays.iter().zip(broker.relayed_ports()) {
            relay.lead_to(port);
        }
        Ok(Kafka { broker, relays })
    }

    /// The broker, and apart from it the ways to it.
    pub(crate) fn split(&mut self) -> (&mut Broker, &[Proxy]) {
        (&mut self.broker, &self.relays)
    }
}
