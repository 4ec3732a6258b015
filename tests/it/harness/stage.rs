//! What one test gets: the shared servers' addresses and names that no other test uses.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tickwatch::config::Config;
use tickwatch::sandbox::Redis;
use tokio::runtime::Runtime;

use super::run::{Kafka, skip};
use crate::common::connect;

/// Numbers names within this run; the servers are new in each run.
static NAMES: AtomicU64 = AtomicU64::new(1);

/// The surroundings of one test.
pub(crate) struct Stage {
    redis_url: Option<String>,
    kafka: Option<Arc<Kafka>>,
    namespace: String,
    runtime: Runtime,
}

#[allow(dead_code)] // each helper is there for every module; not all are used yet
impl Stage {
    pub(super) fn new(redis_url: Option<String>, kafka: Option<Arc<Kafka>>) -> Stage {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime starts while threads can be had");
        Stage { redis_url, kafka, namespace: format!("{}:", unique("t")), runtime }
    }

    /// The shared Redis; only for cases that need it.
    pub(crate) fn redis_url(&self) -> &str {
        self.redis_url.as_deref().expect("the case says that it needs Redis")
    }

    /// The shared broker's address; only for cases that need it.
    pub(crate) fn brokers(&self) -> &str {
        &self.kafka().brokers
    }

    /// The shared broker; only for cases that need it.
    pub(crate) fn kafka(&self) -> &Kafka {
        self.kafka.as_deref().expect("the case says that it needs Kafka")
    }

    /// The prefix of this test's keys.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// `<what>-<n>`, used by nobody else; legal as a topic, a group and a key.
    #[allow(clippy::unused_self)] // reads as what it is at its callers: a name on this stage
    pub(crate) fn unique(&self, what: &str) -> String {
        unique(what)
    }

    /// Where async code of this test runs.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Runs a future to its end.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// A connection to the shared Redis.
    pub(crate) fn redis(&self) -> anyhow::Result<redis::Connection> {
        connect(self.redis_url())
    }

    /// Settings for a worker on the shared servers, with a namespace, a group and topics of its own. Make the
    /// topics with [`Stage::create_topic`].
    pub(crate) fn config(&self) -> Config {
        let mut config = Config { namespace: self.namespace.clone(), ..Config::default() };
        self.redis_url().clone_into(&mut config.redis.url);
        self.brokers().clone_into(&mut config.kafka.brokers);
        config.kafka.group = unique("group");
        config.kafka.topic = unique("ticks");
        config.output.notifications = unique("notifications");
        config.output.candles = unique("candles");
        config
    }
}

fn unique(what: &str) -> String {
    format!("{what}-{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// A Redis of a test's own, or a skip where this machine lacks it: for what would disturb other tests.
pub(crate) fn private_redis() -> anyhow::Result<Redis> {
    Redis::start(&[]).map_err(|error| if error.is_missing() { skip(error.to_string()) } else { error.into() })
}
