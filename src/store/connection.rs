//! Connections to Redis: a partition holds one of its own, calls on the side share a [pool](super::pool).
//!
//! Nothing here reconnects. Behind a reconnect another worker may have claimed the partition, so a connection that
//! broke must lead to a new claim, not to a retry. Each new connection asks anew where the primary is.

use std::path::PathBuf;

use deadpool_redis::PoolError;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, Role, TlsCertificates, cmd,
};

use super::sentinel;
use crate::config::{RedisConfig, Secret, mask_url};

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
    /// A certificate or key that cannot be read.
    #[error("[redis] {setting}: cannot read {}; check the path and that this user may read it", .path.display())]
    File {
        /// The setting.
        setting: &'static str,
        /// Its file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Certificates that are no such.
    #[error(
        "[redis] tls_ca_file, tls_cert_file, tls_key_file: {0}; they have to be PEM, the key PKCS #8 (openssl pkcs8 -topk8 -nodes)"
    )]
    Certificates(String),
    /// No connection, or refused credentials.
    #[error("cannot connect to Redis at {url}; {next_step}")]
    Connect {
        /// The URL, masked.
        url: String,
        /// What to look at.
        next_step: &'static str,
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
    /// The primary that was just found gives no connection to the pool.
    #[error("cannot get a connection to Redis from the pool")]
    Pool(#[source] PoolError),
}

fn next_step(config: &RedisConfig, error: &RedisError) -> &'static str {
    let words = error.to_string().to_lowercase();
    if error.kind() == ErrorKind::AuthenticationFailed {
        "check [redis] username, and password or TICKWATCH_REDIS__PASSWORD"
    } else if words.contains("certificate verify failed") {
        "check that [redis] tls_ca_file names the authority of its certificate, and url its name"
    } else if words.contains("alert") {
        "it does not take this client's certificate; check [redis] tls_cert_file and tls_key_file"
    } else if config.url.starts_with("rediss:") && config.tls_cert_file.is_none() {
        // A server that wants a certificate may just hang up.
        "check that it runs, [redis] url or TICKWATCH_REDIS__URL, and whether it asks for a certificate (tls_cert_file)"
    } else {
        "check that it runs, and [redis] url or TICKWATCH_REDIS__URL"
    }
}

/// A connection of a partition's own: calls on it are answered in the order they were made.
pub async fn connect(config: &RedisConfig) -> Result<MultiplexedConnection, ConnectError> {
    primary(config).await.map(|(_, connection)| connection)
}

/// The primary, with a connection to it that was made to find out.
pub(super) async fn primary(config: &RedisConfig) -> Result<(Client, MultiplexedConnection), ConnectError> {
    if !config.sentinels.is_empty() {
        return sentinel::primary(config).await;
    }
    let url = || mask_url(&config.url);
    let info =
        config.url.as_str().into_connection_info().map_err(|source| ConnectError::Url { url: url(), source })?;
    let settings = login(info.redis_settings().clone(), config);
    let client = client(info.set_redis_settings(settings), certificates(config)?.as_ref())?;
    let connection = open(&client, config).await.map_err(|source| ConnectError::Connect {
        url: url(),
        next_step: next_step(config, &source),
        source,
    })?;
    Ok((client, connection))
}

/// What TLS trusts and shows, where the configuration says it. Read at each connect: files that were renewed count
/// from the next one on.
pub(super) fn certificates(config: &RedisConfig) -> Result<Option<TlsCertificates>, ConnectError> {
    let read = |setting, path: &Option<PathBuf>| {
        let Some(path) = path else { return Ok(None) };
        let content = std::fs::read(path);
        content.map(Some).map_err(|source| ConnectError::File { setting, path: path.clone(), source })
    };
    let root_cert = read("tls_ca_file", &config.tls_ca_file)?;
    let cert = read("tls_cert_file", &config.tls_cert_file)?;
    let key = read("tls_key_file", &config.tls_key_file)?;
    let client_tls = cert.zip(key).map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    Ok((root_cert.is_some() || client_tls.is_some()).then_some(TlsCertificates { client_tls, root_cert }))
}

/// A client for one server. TCP_NODELAY is off by default; with it off, a small call waits for the last one's ACK.
pub(super) fn client(info: ConnectionInfo, certificates: Option<&TlsCertificates>) -> Result<Client, ConnectError> {
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    match certificates {
        Some(certificates) => Client::build_with_tls(info, certificates.clone()),
        None => Client::open(info),
    }
    .map_err(|error| ConnectError::Certificates(error.to_string()))
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

/// A connection within the configured time.
pub(super) async fn open(client: &Client, config: &RedisConfig) -> Result<MultiplexedConnection, RedisError> {
    client.get_multiplexed_async_connection_with_config(&timeouts(config)).await
}

/// How long a connection may take to come about, and an answer to arrive.
pub(super) fn timeouts(config: &RedisConfig) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_response_timeout(Some(config.response_timeout))
        .set_connection_timeout(Some(config.response_timeout))
}

/// Whether the server takes writes.
pub(super) async fn is_primary(connection: &mut MultiplexedConnection) -> Result<bool, RedisError> {
    let role: Role = cmd("ROLE").query_async(connection).await?;
    Ok(matches!(role, Role::Primary { .. }))
}
