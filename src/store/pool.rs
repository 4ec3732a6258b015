//! Connections to Redis: a partition holds one of its own, listings and checks share a pool.
//!
//! Nothing here reconnects. Behind a reconnect another worker may have claimed the partition, so a connection that
//! broke must lead to a new claim, not to a retry.

use deadpool_redis::{Manager, Pool};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, RedisError};

use crate::config::{RedisConfig, mask_url};

/// Most connections of the pool. A listing or a page uses one at a time.
const POOL_SIZE: usize = 4;

/// Redis cannot be reached, or its URL cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Not a URL of Redis.
    #[error("[redis] url {url:?} cannot be used; write redis://[user:password@]host:port[/db]")]
    Url {
        /// The URL, masked.
        url: String,
        /// What is wrong with it.
        source: RedisError,
    },
    /// No connection, or refused credentials.
    #[error("cannot connect to Redis at {url}; check that it runs, and [redis] url or TICKWATCH_REDIS__URL")]
    Connect {
        /// The URL, masked.
        url: String,
        /// What happened.
        source: RedisError,
    },
    /// The pool cannot be built.
    #[error("cannot build the pool of Redis connections")]
    Pool(#[from] deadpool_redis::BuildError),
}

/// A pool for listings, checks and the page. It connects at the first use.
pub fn pool(config: &RedisConfig) -> Result<Pool, ConnectError> {
    let manager = Manager::new_with_config(connection_info(config)?, connection_config(config))
        .map_err(|source| ConnectError::Url { url: mask_url(&config.url), source })?;
    Ok(Pool::builder(manager).max_size(POOL_SIZE).build()?)
}

/// A connection of a partition's own: calls on it are answered in the order they were made.
pub async fn connect(config: &RedisConfig) -> Result<MultiplexedConnection, ConnectError> {
    let client = Client::open(connection_info(config)?)
        .map_err(|source| ConnectError::Url { url: mask_url(&config.url), source })?;
    client
        .get_multiplexed_async_connection_with_config(&connection_config(config))
        .await
        .map_err(|source| ConnectError::Connect { url: mask_url(&config.url), source })
}

/// TCP_NODELAY is off by default in this client; with it off, a small call waits for the last one's ACK.
fn connection_info(config: &RedisConfig) -> Result<ConnectionInfo, ConnectError> {
    config
        .url
        .as_str()
        .into_connection_info()
        .map(|info| info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
        .map_err(|source| ConnectError::Url { url: mask_url(&config.url), source })
}

fn connection_config(config: &RedisConfig) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_response_timeout(Some(config.response_timeout))
        .set_connection_timeout(Some(config.response_timeout))
}
