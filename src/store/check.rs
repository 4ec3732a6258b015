//! What a Redis must be before a worker starts on it. Each refusal says why and what to do.

use std::collections::HashMap;
use std::fmt;

use redis::aio::ConnectionLike;
use redis::{ErrorKind, InfoDict, RedisError, ServerErrorKind, cmd};

use super::pool::Pool;
use super::{Keys, StoreError, scan};

/// Oldest version with all commands the scripts use (`ZRANGE … BYSCORE REV`, `EXPIRE … NX`, streams as used).
const OLDEST: Version = Version { major: 7, minor: 0 };

/// The only policy under which nothing that is state is thrown away.
const NOEVICTION: &str = "noeviction";

/// Why this Redis cannot hold the state.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A command that is needed is not allowed to this user.
    #[error("Redis forbids {command} to this user; allow it (ACL SETUSER … +{})", command.to_lowercase())]
    Forbidden {
        /// The command.
        command: &'static str,
        /// What Redis said.
        source: RedisError,
    },
    /// No usable answer: the connection broke, or Redis is still loading.
    #[error("Redis did not carry out {command}; check that it runs and has loaded its data")]
    Failed {
        /// The command.
        command: &'static str,
        /// What happened.
        source: RedisError,
    },
    /// Too old.
    #[error("Redis is version {found}; 7.0 or newer is needed: upgrade it, or set [redis] url to another")]
    Version {
        /// What it says it is.
        found: String,
    },
    /// A cluster.
    #[error(
        "this Redis is a cluster node (cluster_enabled:1); a script touches keys of many symbols, which a cluster \
         spreads over its nodes: set [redis] url to a single primary"
    )]
    Cluster,
    /// Not a primary.
    #[error("this Redis is a replica of {primary}, which takes no writes; set [redis] url to its primary")]
    Replica {
        /// The primary, `host:port`.
        primary: String,
    },
    /// Redis may throw state away.
    #[error(
        "Redis evicts keys under maxmemory-policy {policy}, and state with them; \
         CONFIG SET maxmemory-policy noeviction (and in redis.conf), or use a Redis of its own"
    )]
    Eviction {
        /// The policy in force.
        policy: String,
    },
    /// Scripts run, but not as they should.
    #[error(
        "Redis answered {found:?} to a script that returns \"1\"; nothing is known to do that but a proxy: connect to Redis itself"
    )]
    Script {
        /// The answer.
        found: String,
    },
}

/// What starts, but costs something. Each says what to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckWarning {
    /// Neither snapshots nor the append-only file.
    NoPersistence,
    /// Snapshots only.
    SnapshotsOnly,
    /// The eviction policy cannot be read.
    PolicyUnknown,
}

impl fmt::Display for CheckWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CheckWarning::NoPersistence => {
                "Redis persists nothing: when it restarts, prices, open candles and rules are gone; \
                 set appendonly yes, and keep rules with `tickwatch rule export`"
            }
            CheckWarning::SnapshotsOnly => {
                "Redis persists by snapshots only: when it crashes, it comes back minutes older, rules included; \
                 ticks are read again, rule edits are not: set appendonly yes"
            }
            CheckWarning::PolicyUnknown => {
                "Redis does not tell its maxmemory-policy; make sure that it is noeviction"
            }
        })
    }
}

/// Checks the server behind `connection`; returns what is worth a warning.
pub async fn check(connection: &mut impl ConnectionLike) -> Result<Vec<CheckWarning>, CheckError> {
    let info = info(connection).await?;
    check_version(&info)?;
    check_place(&info)?;
    check_scripts(connection).await?;
    let mut warnings = Vec::new();
    match eviction_policy(connection, &info).await? {
        Some(policy) if policy == NOEVICTION => {}
        Some(policy) => return Err(CheckError::Eviction { policy }),
        None => warnings.push(CheckWarning::PolicyUnknown),
    }
    warnings.extend(persistence_warning(connection, &info).await?);
    Ok(warnings)
}

async fn info(connection: &mut impl ConnectionLike) -> Result<InfoDict, CheckError> {
    cmd("INFO").query_async(connection).await.map_err(|source| failed("INFO", source))
}

fn check_version(info: &InfoDict) -> Result<(), CheckError> {
    let found: String = info.get("redis_version").unwrap_or_default();
    match found.parse::<Version>() {
        Ok(version) if version >= OLDEST => Ok(()),
        _ => Err(CheckError::Version { found }),
    }
}

/// A single primary: no cluster, no replica.
fn check_place(info: &InfoDict) -> Result<(), CheckError> {
    if info.get::<u8>("cluster_enabled") == Some(1) {
        return Err(CheckError::Cluster);
    }
    if info.get::<String>("role").is_some_and(|role| role != "master") {
        let part = |name| info.get::<String>(name).unwrap_or_default();
        return Err(CheckError::Replica { primary: format!("{}:{}", part("master_host"), part("master_port")) });
    }
    Ok(())
}

/// EVALSHA and SCRIPT LOAD are what every call needs.
async fn check_scripts(connection: &mut impl ConnectionLike) -> Result<(), CheckError> {
    let sha: String = cmd("SCRIPT")
        .arg("LOAD")
        .arg("return '1'")
        .query_async(connection)
        .await
        .map_err(|source| failed("SCRIPT", source))?;
    let found: String =
        cmd("EVALSHA").arg(sha).arg(0).query_async(connection).await.map_err(|source| failed("EVALSHA", source))?;
    if found == "1" { Ok(()) } else { Err(CheckError::Script { found }) }
}

/// CONFIG is often forbidden; INFO knows the policy too.
async fn eviction_policy(
    connection: &mut impl ConnectionLike,
    info: &InfoDict,
) -> Result<Option<String>, CheckError> {
    let configured = config(connection, "maxmemory-policy").await?;
    Ok(configured.or_else(|| info.get("maxmemory_policy")))
}

async fn persistence_warning(
    connection: &mut impl ConnectionLike,
    info: &InfoDict,
) -> Result<Option<CheckWarning>, CheckError> {
    if info.get::<u8>("aof_enabled") == Some(1) {
        return Ok(None);
    }
    // Where CONFIG is forbidden nothing tells whether snapshots are made; the milder warning is true either way.
    let snapshots = config(connection, "save").await?;
    let none = snapshots.is_some_and(|save| save.is_empty());
    Ok(Some(if none { CheckWarning::NoPersistence } else { CheckWarning::SnapshotsOnly }))
}

/// A setting of the server, or `None` where this user may not ask.
async fn config(connection: &mut impl ConnectionLike, name: &str) -> Result<Option<String>, CheckError> {
    let found: Result<HashMap<String, String>, RedisError> =
        cmd("CONFIG").arg("GET").arg(name).query_async(connection).await;
    match found {
        Ok(mut settings) => Ok(settings.remove(name)),
        Err(e) if e.code().is_some() => Ok(None),
        Err(source) => Err(failed("CONFIG", source)),
    }
}

/// Tells a missing right from a server that does not work.
fn failed(command: &'static str, source: RedisError) -> CheckError {
    match source.kind() {
        ErrorKind::Server(ServerErrorKind::NoPerm) => CheckError::Forbidden { command, source },
        _ => CheckError::Failed { command, source },
    }
}

/// The first two numbers of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: u32,
    minor: u32,
}

impl std::str::FromStr for Version {
    type Err = ();

    fn from_str(text: &str) -> Result<Version, ()> {
        let mut parts = text.split('.').map(|part| part.parse().map_err(|_| ()));
        let mut next = || parts.next().unwrap_or(Err(()));
        Ok(Version { major: next()?, minor: next()? })
    }
}

/// Whether there is any rule under the namespace. Looks at keys with SCAN: for rare moments, not for each batch.
pub async fn any_rule(pool: &Pool, keys: &Keys) -> Result<bool, StoreError> {
    let mut connection = pool.get().await?;
    let pattern = format!("{}rules:*", scan::glob_escape(keys.namespace()));
    let found = scan::keys(&mut connection, &pattern).await.map_err(|e| StoreError::of("look for rules", &e))?;
    Ok(found.iter().any(|key| !key.ends_with(":opts")))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::config::RedisConfig;
    use crate::store::connection::{ConnectError, connect};

    /// A private Redis, stopped when dropped.
    struct Server {
        process: Child,
        config: RedisConfig,
        _dir: tempfile::TempDir,
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.process.kill().unwrap();
            self.process.wait().unwrap();
        }
    }

    fn free_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    /// Starts a Redis with `settings`; `None`, said aloud, where no Redis is installed.
    async fn redis(settings: &[&str]) -> Option<Server> {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let started = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"])
            .arg(dir.path())
            .args(settings)
            .stdout(Stdio::null())
            .spawn();
        let Ok(process) = started else {
            eprintln!("skipped: redis-server is not installed");
            return None;
        };
        let config = RedisConfig {
            url: format!("redis://127.0.0.1:{port}"),
            response_timeout: Duration::from_secs(10),
            ..RedisConfig::default()
        };
        let server = Server { process, config, _dir: dir };
        let deadline = Instant::now() + Duration::from_secs(20);
        while connect(&server.config).await.is_err() {
            assert!(Instant::now() < deadline, "redis-server did not start");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Some(server)
    }

    async fn check_with(settings: &[&str]) -> Option<Result<Vec<CheckWarning>, CheckError>> {
        let server = redis(settings).await?;
        Some(check(&mut connect(&server.config).await.unwrap()).await)
    }

    #[tokio::test]
    async fn a_single_primary_with_an_append_only_file_starts_without_warnings() {
        let Some(checked) = check_with(&["--appendonly", "yes"]).await else { return };
        assert_eq!(checked.unwrap(), []);
    }

    #[tokio::test]
    async fn a_redis_that_forgets_is_warned_of() {
        let Some(checked) = check_with(&["--save", ""]).await else { return };
        assert_eq!(checked.unwrap(), [CheckWarning::NoPersistence]);
        let Some(checked) = check_with(&["--save", "900 1"]).await else { return };
        assert_eq!(checked.unwrap(), [CheckWarning::SnapshotsOnly]);
    }

    #[tokio::test]
    async fn a_redis_that_evicts_is_refused() {
        let Some(checked) = check_with(&["--maxmemory-policy", "volatile-lru"]).await else { return };
        assert!(matches!(checked, Err(CheckError::Eviction { policy }) if policy == "volatile-lru"));
    }

    #[tokio::test]
    async fn a_cluster_node_is_refused() {
        let Some(checked) = check_with(&["--cluster-enabled", "yes"]).await else { return };
        assert!(matches!(checked, Err(CheckError::Cluster)), "{checked:?}");
    }

    #[tokio::test]
    async fn a_replica_is_refused_and_its_primary_named() {
        let nobody = free_port().to_string();
        let replica_of = format!("127.0.0.1 {nobody}");
        let Some(checked) = check_with(&["--replicaof", &replica_of]).await else { return };
        let expected = format!("127.0.0.1:{nobody}");
        assert!(matches!(checked, Err(CheckError::Replica { primary }) if primary == expected));
    }

    #[tokio::test]
    async fn where_config_is_forbidden_info_tells_the_policy() {
        let Some(server) = redis(&["--maxmemory-policy", "allkeys-lru", "--save", ""]).await else { return };
        let mut admin = connect(&server.config).await.unwrap();
        let another = admin.clone();
        let set_user = async |rule: &str| {
            cmd("ACL").arg("SETUSER").arg("worker").arg(rule).exec_async(&mut another.clone()).await.unwrap();
        };
        for rule in ["on", ">word", "~*", "+@all", "-config"] {
            set_user(rule).await;
        }
        let url = server.config.url.replace("redis://", "redis://worker:word@");
        let config = RedisConfig { url, ..server.config.clone() };
        let mut worker = connect(&config).await.unwrap();
        let checked = check(&mut worker).await;
        assert!(matches!(checked, Err(CheckError::Eviction { .. })), "{checked:?}");

        cmd("CONFIG").arg("SET").arg("maxmemory-policy").arg(NOEVICTION).exec_async(&mut admin).await.unwrap();
        assert_eq!(check(&mut worker).await.unwrap(), [CheckWarning::SnapshotsOnly]);

        set_user("-evalsha").await;
        let checked = check(&mut worker).await;
        assert!(matches!(checked, Err(CheckError::Forbidden { command: "EVALSHA", .. })), "{checked:?}");
    }

    #[tokio::test]
    async fn the_pool_hands_out_connections_that_work() {
        let Some(server) = redis(&[]).await else { return };
        let mut pooled = Pool::new(&server.config).get().await.unwrap();
        let pong: String = cmd("PING").query_async(&mut *pooled).await.unwrap();
        assert_eq!(pong, "PONG");
    }

    #[tokio::test]
    async fn a_redis_that_is_not_there_is_told_without_its_password() {
        let url = format!("redis://me:hunter2@127.0.0.1:{}", free_port());
        let config = RedisConfig { url, ..RedisConfig::default() };
        let error = connect(&config).await.err().unwrap();
        assert!(matches!(error, ConnectError::Connect { .. }));
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }

    #[test]
    fn versions_are_compared_by_number() {
        let version = |text: &str| text.parse::<Version>();
        assert!(version("10.0.1").unwrap() > version("7.2.4").unwrap());
        assert!(version("6.2.14").unwrap() < OLDEST);
        assert!(version("unstable").is_err());
    }
}
