//! The primary under Sentinel: asked for at each connect, and held to its word.
//!
//! A sentinel may be the last to hear of a failover, and a primary that was away comes back as a primary until it is
//! told otherwise. So the role is asked over the very connection that is used afterwards. (The client library's own
//! lookup asks over another, with timeouts of its own.)

use std::collections::BTreeSet;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo, RedisError, cmd};

use super::pool::{ConnectError, is_primary, login, open, with_user};
use crate::config::{RedisConfig, host_and_port};

/// A connection to the primary that a sentinel names. All are asked at once: one that is away costs nothing while
/// another answers.
pub(super) async fn connect(config: &RedisConfig) -> Result<MultiplexedConnection, ConnectError> {
    let master = config.master.as_deref().unwrap_or_default();
    let mut answers: FuturesUnordered<_> = config
        .sentinels
        .iter()
        .map(|sentinel| async move { (sentinel, ask(config, sentinel, master).await) })
        .collect();
    let (mut tried, mut problems) = (BTreeSet::new(), Vec::new());
    while let Some((sentinel, answer)) = answers.next().await {
        match answer {
            Ok(Some(primary)) if !tried.contains(&primary) => {
                match connect_to_primary(config, &primary).await {
                    Ok(Some(connection)) => return Ok(connection),
                    Ok(None) => problems.push(format!("{}:{} is a replica", primary.0, primary.1)),
                    Err(error) => problems.push(format!("primary {}:{}: {error}", primary.0, primary.1)),
                }
                tried.insert(primary);
            }
            Ok(Some(_)) => {}
            Ok(None) => problems.push(format!("sentinel {sentinel} does not know it")),
            Err(error) => problems.push(format!("sentinel {sentinel}: {error}")),
        }
    }
    Err(ConnectError::Sentinel { master: master.to_owned(), problems })
}

/// Where a sentinel says the primary is; `None`: it knows none by this name.
async fn ask(config: &RedisConfig, sentinel: &str, master: &str) -> Result<Option<(String, u16)>, RedisError> {
    let (host, port) = host_and_port(sentinel).unwrap_or((sentinel, 0)); // validated; port 0 connects to nothing
    let (username, password) = (config.sentinel_username.as_deref(), config.sentinel_password.as_ref());
    let settings = with_user(RedisConnectionInfo::default(), username, password);
    let mut connection = open(address(host, port)?.set_redis_settings(settings), config).await?;
    cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master).query_async(&mut connection).await
}

/// A connection, or `None` where a replica answers.
async fn connect_to_primary(
    config: &RedisConfig,
    (host, port): &(String, u16),
) -> Result<Option<MultiplexedConnection>, RedisError> {
    let settings = login(RedisConnectionInfo::default(), config);
    let mut connection = open(address(host, *port)?.set_redis_settings(settings), config).await?;
    Ok(is_primary(&mut connection).await?.then_some(connection))
}

fn address(host: &str, port: u16) -> Result<ConnectionInfo, RedisError> {
    ConnectionAddr::Tcp(host.to_owned(), port).into_connection_info()
}
