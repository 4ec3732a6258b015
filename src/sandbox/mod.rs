//! The real parts on any machine: a private Redis and a private Kafka broker for the demo and the tests.
//!
//! Each listens on a free loopback port, keeps its files in a temporary directory, and ends with its handle or,
//! at the latest, with this process, however that ends.

pub mod kafka;
pub mod process;
pub mod redis;

pub use kafka::{Broker, MockBroker};
pub use process::Process;
pub use redis::{Redis, Sentinel};

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How often a start is tried again when another process took the port that was free a moment before.
const PORT_ATTEMPTS: usize = 5;

/// Why a private server could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// This machine lacks a program or a file; the message says which, and what to do.
    #[error("{what} is missing; {next_step}")]
    Missing {
        /// The program or file.
        what: String,
        /// What puts it there.
        next_step: String,
    },
    /// The program ran, but ended or did not answer in time.
    #[error("{program} {problem}; its log ends with:\n{log}")]
    Start {
        /// The program.
        program: String,
        /// What happened to it.
        problem: String,
        /// The last lines it wrote.
        log: String,
    },
    /// The operating system refused something.
    #[error("{action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// librdkafka refused something.
    #[error("{action}: {source}")]
    Kafka {
        /// What was tried.
        action: String,
        /// What librdkafka said.
        source: rdkafka::error::KafkaError,
    },
}

impl SandboxError {
    /// Whether the machine lacks the program, so that a caller may do without (a mock broker, a skipped test).
    pub fn is_missing(&self) -> bool {
        matches!(self, SandboxError::Missing { .. })
    }

    fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> SandboxError {
        let action = action.into();
        move |source| SandboxError::Io { action, source }
    }
}

/// What starting and steering a server returns.
pub type Result<T> = std::result::Result<T, SandboxError>;

/// `N` distinct loopback ports that are free now. Nothing holds them: whoever binds one may find it taken.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listeners = (0..N).map(|_| bind()).collect::<io::Result<Vec<_>>>();
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(listeners.map_err(SandboxError::io("bind a loopback port"))?) {
        *port = listener.local_addr().map_err(SandboxError::io("ask for the bound port"))?.port();
    }
    Ok(ports)
}

/// Starts on free ports, and on others when those were taken meanwhile.
fn with_free_ports<const N: usize, T>(mut start: impl FnMut([u16; N]) -> Result<T>) -> Result<T> {
    let mut attempt = 1;
    loop {
        match start(free_ports()?) {
            Err(SandboxError::Start { log, .. })
                if attempt < PORT_ATTEMPTS && log.contains("Address already in use") =>
            {
                attempt += 1;
            }
            outcome => return outcome,
        }
    }
}

/// Waits until `ready`; fails when the process ended before, or after `patience`.
fn wait_until_ready(
    process: &mut Process,
    program: &str,
    log: &Path,
    patience: Duration,
    mut ready: impl FnMut() -> bool,
) -> Result<()> {
    let deadline = Instant::now() + patience;
    let problem = loop {
        if ready() {
            return Ok(());
        }
        if let Some(status) = process.exit_status()? {
            break format!("ended before it was ready ({status})");
        }
        if Instant::now() > deadline {
            break format!("did not answer within {}", humantime::format_duration(patience));
        }
        thread::sleep(Duration::from_millis(20));
    };
    Err(SandboxError::Start { program: program.into(), problem, log: log_tail(log) })
}

/// Whether something listens on a loopback port.
fn accepts(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// The last lines of a log file.
fn log_tail(log: &Path) -> String {
    const LINES: usize = 20;
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// The program's path, found as a shell finds it.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port_taken() -> SandboxError {
        SandboxError::Start { program: "x".into(), problem: "ended".into(), log: "Address already in use".into() }
    }

    #[test]
    fn free_ports_are_distinct() {
        let [a, b, c] = free_ports().unwrap();
        assert!(a != b && b != c && a != c);
    }

    #[test]
    fn a_port_taken_meanwhile_leads_to_another_try() {
        let mut tries = 0;
        let outcome = with_free_ports(|[port]: [u16; 1]| {
            tries += 1;
            if tries < 3 { Err(port_taken()) } else { Ok(port) }
        });
        assert!(outcome.is_ok());
        assert_eq!(tries, 3);
    }

    #[test]
    fn tries_for_a_port_come_to_an_end() {
        let mut tries = 0;
        let outcome: Result<()> = with_free_ports(|[_port]: [u16; 1]| {
            tries += 1;
            Err(port_taken())
        });
        assert!(outcome.is_err());
        assert_eq!(tries, PORT_ATTEMPTS);
    }
}
