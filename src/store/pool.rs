//! A few connections for calls on the side, by `deadpool-redis`.
//!
//! Its own connections under Sentinel do not take our timeouts, so a pool leads to one server, the primary that was found
//! last, and is left for another once that server is none any more.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use deadpool_redis::{Connection, Hook, HookError, Manager};
use redis::Client;
use redis::aio::MultiplexedConnection;

use super::connection::{ConnectError, is_primary, primary, timeouts};
use crate::config::RedisConfig;

/// Most connections of the pool. Who uses it needs one at a time.
const POOL_SIZE: usize = 4;

/// Connections for calls on the side, to the Redis of a configuration. It connects at the first use.
pub struct Pool {
    config: RedisConfig,
    /// The pool of the server that was the primary when it was last asked for.
    current: Mutex<Option<deadpool_redis::Pool>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive() // addresses may hold passwords
    }
}

impl Pool {
    /// A pool that has no connection yet.
    pub fn new(config: &RedisConfig) -> Pool {
        Pool { config: config.clone(), current: Mutex::default() }
    }

    /// A connection to the primary; where the one known so far is none any more, its successor is looked for.
    pub async fn get(&self) -> Result<Connection, ConnectError> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(pool) = current
            && let Ok(connection) = pool.get().await
        {
            return Ok(connection);
        }
        let (client, _) = primary(&self.config).await?;
        let pool = pool_of(&client, &self.config)?;
        let connection = pool.get().await.map_err(ConnectError::Pool)?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(pool);
        Ok(connection)
    }
}

/// A pool of connections to one server, as long as it is a primary.
fn pool_of(client: &Client, config: &RedisConfig) -> Result<deadpool_redis::Pool, ConnectError> {
    let check = || {
        Hook::async_fn(|connection: &mut MultiplexedConnection, _| {
            Box::pin(async {
                match is_primary(connection).await {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(HookError::message("the server is a replica now")),
                    Err(error) => Err(HookError::Backend(error)),
                }
            })
        })
    };
    let manager = Manager::new_with_config(client.get_connection_info().clone(), timeouts(config));
    let manager = manager.map_err(|error| ConnectError::Certificates(error.to_string()))?;
    let mut pool = deadpool_redis::Pool::builder(manager).max_size(POOL_SIZE).pre_recycle(check());
    if !config.sentinels.is_empty() {
        pool = pool.post_create(check());
    }
    Ok(pool.build().expect("no timeout is set that would need a runtime"))
}
