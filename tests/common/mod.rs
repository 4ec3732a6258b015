//! What the test programs share: the oracle, topics, workers, comparing.

#![allow(dead_code)] // for every test program; none uses all of it

pub(crate) mod facts;
pub(crate) mod kafka;
pub(crate) mod monitor;
pub(crate) mod oracle;
pub(crate) mod rules;
pub(crate) mod updates;
pub(crate) mod worker;

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use tickwatch::config::RedisConfig;

/// How long a helper waits for a server before it fails the test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// This machine's clock, ms.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970").as_millis() as i64
}

/// A connection to any Redis.
pub(crate) fn connect(url: &str) -> anyhow::Result<redis::Connection> {
    let client = redis::Client::open(url).with_context(|| format!("{url} is no Redis URL"))?;
    client.get_connection_with_timeout(PATIENCE).with_context(|| format!("connect to {url}"))
}

/// A connection to the primary of a configuration, under Sentinel or alone.
pub(crate) fn connect_to_primary(config: &RedisConfig) -> anyhow::Result<redis::Connection> {
    let Some(sentinel) = config.sentinels.first() else { return connect(&config.url) };
    let mut sentinel = connect(&format!("redis://{sentinel}"))?;
    let (host, port): (String, u16) =
        redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(config.master.as_deref()).query(&mut sentinel)?;
    connect(&format!("redis://{host}:{port}"))
}

/// Asks until `condition` holds; after `patience` it fails and names `what` was waited for.
pub(crate) fn wait_until(
    patience: Duration,
    what: &str,
    mut condition: impl FnMut() -> bool,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + patience;
    while !condition() {
        if Instant::now() > deadline {
            bail!("waited {} in vain: {what}", humantime::format_duration(patience));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
