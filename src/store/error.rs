//! What can go wrong with Redis, by what the caller does about it.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::connection::ConnectError;

/// An error of Redis or of a reply.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The connection is gone, or no reply came in time. Whether the call ran is unknown: claim again.
    #[error("Redis is away: {0}")]
    Away(String),
    /// The server refused before running anything, and will do so until an operator or time changes that
    /// (loading, read-only, out of memory, busy with a script, no right).
    #[error("Redis refused {call}: {message}{}", hint(.message))]
    Refused {
        /// The call, such as `apply`.
        call: &'static str,
        /// What the server said.
        message: String,
    },
    /// A command that the scripts need is refused here.
    #[error(
        "the scripts need {what}, but Redis refuses it: {message}; give the ACL user this command on the keys of the \
         namespace, or move what is in the way"
    )]
    Denied {
        /// The command and its key.
        what: String,
        /// What the server said.
        message: String,
    },
    /// A script failed in a way it should not. Never retried blindly.
    #[error("script {call} failed: {message}")]
    Script {
        /// The script.
        call: &'static str,
        /// What the server said.
        message: String,
    },
    /// The reply was not of the agreed shape: the script and this binary are of different versions.
    #[error("script {call} replied with something else than {expected}")]
    Reply {
        /// The script.
        call: &'static str,
        /// What was expected, in words.
        expected: &'static str,
    },
}

impl From<ConnectError> for StoreError {
    fn from(error: ConnectError) -> StoreError {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        StoreError::Away(format!("{error}{cause}"))
    }
}

impl StoreError {
    /// Sorts an error of `call` by what to do about it.
    pub fn of(call: &'static str, error: &RedisError) -> StoreError {
        let message = message_of(error);
        match error.kind() {
            ErrorKind::Io | ErrorKind::Client => StoreError::Away(message),
            _ if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() => {
                StoreError::Away(message)
            }
            ErrorKind::AuthenticationFailed
            | ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::NoPerm,
            ) => StoreError::Refused { call, message },
            _ => match error.code() {
                Some("OOM" | "BUSY" | "NOREPLICAS" | "MISCONF" | "NOAUTH" | "WRONGPASS" | "UNBLOCKED") => {
                    StoreError::Refused { call, message }
                }
                // Inside a script the code of the command's refusal comes wrapped: before the first write only.
                _ if ["OOM ", "READONLY ", "NOPERM ", "MISCONF ", "NOREPLICAS "]
                    .iter()
                    .any(|code| message.contains(code)) =>
                {
                    StoreError::Refused { call, message }
                }
                _ => StoreError::Script { call, message },
            },
        }
    }

    /// Whether waiting may help: the partition is taken over again, with back-off. Otherwise it stops.
    pub fn is_transient(&self) -> bool {
        matches!(self, StoreError::Away(_) | StoreError::Refused { .. })
    }

    /// A short, stable word for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            StoreError::Away(_) => "away",
            StoreError::Refused { .. } | StoreError::Denied { .. } => "refused",
            StoreError::Script { .. } => "script",
            StoreError::Reply { .. } => "reply",
        }
    }
}

fn message_of(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

fn hint(message: &str) -> &'static str {
    if message.contains("OOM") {
        "; raise maxmemory or shorten [candles] keep, the worker goes on by itself"
    } else if message.contains("READONLY") {
        "; this is a replica: point [redis] url at the primary; under Sentinel, the next claim asks for it"
    } else if message.contains("NOREPLICAS") {
        "; too few replicas are in reach (min-replicas-to-write), the worker goes on by itself once they are back"
    } else if message.contains("NOPERM") {
        "; give the ACL user this command on the namespace's keys"
    } else if message.contains("NOAUTH") || message.contains("WRONGPASS") {
        "; set user and password in [redis] url"
    } else {
        ""
    }
}
