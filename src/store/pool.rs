//! Connections to Redis: a partition holds one of its own, calls on the side share a pool.
//!
//! Nothing here reconnects. Behind a reconnect another worker may have claimed the partition, so a connection that
//! broke must lead to a new claim, not to a retry. Each new connection asks anew where the primary is.

use deadpool::managed::{self, Metrics, RecycleResult};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisError, Role, cmd,
};

use super::sentinel;
use crate::config::{RedisConfig, Secret, mask_url};

/// Most connections of the pool. Who uses it needs one at a time.
const POOL_SIZE: usize = 4;

/// Redis cannot be reached, or cannot be used as configured.
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
    /// No sentinel led to a primary.
    #[error(
        "no sentinel leads to the primary of {master:?}: {}; if no failover is under way, check [redis] sentinels and master",
        .problems.join("; ")
    )]
    Sentinel {
        /// The name the sentinels were asked for.
        master: String,
        /// What each sentinel or primary said, with its address.
        problems: Vec<String>,
    },
    /// The pool cannot be built.
    #[error("cannot build the pool of Redis connections")]
    Pool(#[from] managed::BuildError),
}

/// A pool for calls on the side. It connects at the first use.
pub type Pool = managed::Pool<Manager>;

/// A pool for the Redis of `config`.
pub fn pool(config: &RedisConfig) -> Result<Pool, ConnectError> {
    Ok(Pool::builder(Manager(config.clone())).max_size(POOL_SIZE).build()?)
}

/// Makes and looks after a pool's connections.
#[derive(Debug)]
pub struct Manager(RedisConfig);

impl managed::Manager for Manager {
    type Type = MultiplexedConnection;
    type Error = ConnectError;

    async fn create(&self) -> Result<MultiplexedConnection, ConnectError> {
        connect(&self.0).await
    }

    /// A connection that broke, or whose server is no primary any more, is replaced by a new one.
    async fn recycle(&self, connection: &mut MultiplexedConnection, _: &Metrics) -> RecycleResult<ConnectError> {
        match is_primary(connection).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(managed::RecycleError::message("the server is a replica now")),
            Err(error) => Err(managed::RecycleError::message(error.to_string())),
        }
    }
}

/// A connection of a partition's own: calls on it are answered in the order they were made.
pub async fn connect(config: &RedisConfig) -> Result<MultiplexedConnection, ConnectError> {
    if !config.sentinels.is_empty() {
        return sentinel::connect(config).await;
    }
    let url = || mask_url(&config.url);
    let info =
        config.url.as_str().into_connection_info().map_err(|source| ConnectError::Url { url: url(), source })?;
    let settings = login(info.redis_settings().clone(), config);
    let info = info.set_redis_settings(settings);
    open(info, config).await.map_err(|source| ConnectError::Connect { url: url(), source })
}

/// `settings` with what the configuration says of user, password and database.
pub(super) fn login(settings: RedisConnectionInfo, config: &RedisConfig) -> RedisConnectionInfo {
    let settings = with_user(settings, config.username.as_deref(), config.password.as_ref());
    match config.db {
        Some(db) => settings.set_db(db.into()),
        None => settings,
    }
}

pub(super) fn with_user(
    mut settings: RedisConnectionInfo,
    username: Option<&str>,
    password: Option<&Secret>,
) -> RedisConnectionInfo {
    if let Some(username) = username {
        settings = settings.set_username(username);
    }
    if let Some(password) = password {
        settings = settings.set_password(password.expose());
    }
    settings
}

/// TCP_NODELAY is off by default in this client; with it off, a small call waits for the last one's ACK.
pub(super) async fn open(info: ConnectionInfo, config: &RedisConfig) -> Result<MultiplexedConnection, RedisError> {
    let timeouts = AsyncConnectionConfig::new()
        .set_response_timeout(Some(config.response_timeout))
        .set_connection_timeout(Some(config.response_timeout));
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    Client::open(info)?.get_multiplexed_async_connection_with_config(&timeouts).await
}

/// Whether the server takes writes.
pub(super) async fn is_primary(connection: &mut MultiplexedConnection) -> Result<bool, RedisError> {
    let role: Role = cmd("ROLE").query_async(connection).await?;
    Ok(matches!(role, Role::Primary { .. }))
}
