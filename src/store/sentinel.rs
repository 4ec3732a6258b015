//! The primary under Sentinel: asked for at each connect, and held to its word.
//!
//! A sentinel may be the last to hear of a failover, and a primary that was away comes back as a primary until it is
//! told otherwise. So the role is asked over the very connection that is used afterwards. (The client library's own
//! lookup asks over another, with timeouts of its own.)

use std::collections::BTreeSet;

use anyhow::Context as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::aio::MultiplexedConnection;
use redis::{Client, ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo, TlsCertificates, cmd};

use super::connection::{ConnectError, certificates, client, is_primary, login, open, with_user};
use crate::config::{RedisConfig, host_and_port};

/// The primary that a sentinel names, with a connection to it. All are asked at once: one that is away costs nothing
/// while another answers.
pub(super) async fn primary(config: &RedisConfig) -> Result<(Client, MultiplexedConnection), ConnectError> {
    let lookup = &Lookup { config, certificates: certificates(config)? };
    let mut answers: FuturesUnordered<_> =
        config.sentinels.iter().map(|sentinel| async move { (sentinel, lookup.ask(sentinel).await) }).collect();
    let (mut tried, mut problems) = (BTreeSet::new(), Vec::new());
    while let Some((sentinel, answer)) = answers.next().await {
        match answer {
            Ok(Some(primary)) if !tried.contains(&primary) => {
                match lookup.connect_to(&primary).await {
                    Ok(Some(found)) => return Ok(found),
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
    Err(ConnectError::Sentinel { master: lookup.master().to_owned(), problems })
}

struct Lookup<'c> {
    config: &'c RedisConfig,
    certificates: Option<TlsCertificates>,
}

impl Lookup<'_> {
    fn master(&self) -> &str {
        self.config.master.as_deref().unwrap_or_default()
    }

    /// Where a sentinel says the primary is; `None`: it knows none by this name.
    async fn ask(&self, sentinel: &str) -> anyhow::Result<Option<(String, u16)>> {
        let (host, port) = host_and_port(sentinel).context("is no host:port")?;
        let (username, password) = (self.config.sentinel_username.as_deref(), &self.config.sentinel_password);
        let settings = with_user(RedisConnectionInfo::default(), username, password.as_ref());
        let (_, mut connection) = self.open(host, port, settings).await?;
        let mut question = cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(self.master());
        Ok(question.query_async(&mut connection).await?)
    }

    /// A connection, or `None` where a replica answers.
    async fn connect_to(
        &self,
        (host, port): &(String, u16),
    ) -> anyhow::Result<Option<(Client, MultiplexedConnection)>> {
        let settings = login(RedisConnectionInfo::default(), self.config);
        let (client, mut connection) = self.open(host, *port, settings).await?;
        Ok(is_primary(&mut connection).await?.then_some((client, connection)))
    }

    async fn open(
        &self,
        host: &str,
        port: u16,
        settings: RedisConnectionInfo,
    ) -> anyhow::Result<(Client, MultiplexedConnection)> {
        let host = host.to_owned();
        let address = if self.config.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let info = address.into_connection_info()?.set_redis_settings(settings);
        let client = client(info, self.certificates.as_ref())?;
        let connection = open(&client, self.config).await?;
        Ok((client, connection))
    }
}
