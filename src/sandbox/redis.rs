//! A private `redis-server`, and a sentinel over one.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use tempfile::TempDir;

use super::{Process, Result, SandboxError, accepts, find_program, wait_until_ready, with_free_ports};

const PROGRAM: &str = "redis-server";
const START_PATIENCE: Duration = Duration::from_secs(20);
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// The settings a sandbox starts with; options given by the caller win.
///
/// `appendfsync no` writes each command to the operating system before its reply and leaves the disk alone: a
/// killed server loses nothing, and tests do not wait for a disk.
const DEFAULTS: [(&str, &str); 7] = [
    ("bind", "127.0.0.1"),
    ("save", ""),
    ("appendonly", "yes"),
    ("appendfsync", "no"),
    ("maxmemory-policy", "noeviction"),
    ("daemonize", "no"),
    ("dir", "."),
];

/// A private `redis-server` on a loopback port, with an append-only file. Dropping it ends it and its data.
#[derive(Debug)]
pub struct Redis {
    directory: TempDir,
    options: Vec<(String, String)>,
    port: u16,
    process: Process,
}

impl Redis {
    /// Starts a server. `options` are settings of `redis.conf`, such as `("maxmemory", "64mb")` or
    /// `("appendonly", "no")`.
    pub fn start(options: &[(&str, &str)]) -> Result<Redis> {
        if find_program(PROGRAM).is_none() {
            return Err(SandboxError::Missing {
                what: PROGRAM.into(),
                next_step: "run `make install`, or install the package redis-server".into(),
            });
        }
        let options: Vec<(String, String)> =
            DEFAULTS.iter().chain(options).map(|&(key, value)| (key.into(), value.into())).collect();
        let directory = tempfile::Builder::new()
            .prefix("tickwatch-redis-")
            .tempdir()
            .map_err(SandboxError::io("make a directory for Redis"))?;
        let (port, process) = with_free_ports(|[port]| Ok((port, launch(directory.path(), port, &options)?)))?;
        Ok(Redis { directory, options, port, process })
    }

    /// `redis://127.0.0.1:<port>`
    pub fn url(&self) -> String {
        url(self.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The directory with its data and its log, `log`.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Kills the server (SIGKILL); its data stays for [`Redis::restart`].
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill().map(drop).map_err(SandboxError::io("kill redis-server"))
    }

    /// Stops the server in good order; its data stays for [`Redis::restart`].
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.process.stop(STOP_PATIENCE)
    }

    /// Starts it again with the same data and port, killing it first if it runs.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.process = launch(self.directory.path(), self.port, &self.options)?;
        Ok(())
    }
}

/// A private sentinel of quorum 1, quick to judge. Dropping it ends it; it leaves nothing.
#[derive(Debug)]
pub struct Sentinel {
    _directory: TempDir,
    port: u16,
    _process: Process,
}

impl Sentinel {
    /// Starts a sentinel over `primary`, by the name `master`.
    pub fn start(master: &str, primary: &Redis) -> Result<Sentinel> {
        Sentinel::start_on(master, primary.port, &[])
    }

    /// Starts a sentinel over the primary on `primary_port`. `settings` are lines of `sentinel.conf`.
    pub fn start_on(master: &str, primary_port: u16, settings: &[&str]) -> Result<Sentinel> {
        let directory = tempfile::Builder::new()
            .prefix("tickwatch-sentinel-")
            .tempdir()
            .map_err(SandboxError::io("make a directory for a sentinel"))?;
        let (port, process) = with_free_ports(|[port]| {
            // A sentinel keeps what it learns in its configuration file, so a new start is a new file.
            let lines = format!(
                "port {port}\nbind 127.0.0.1\n\
                 sentinel monitor {master} 127.0.0.1 {primary_port} 1\n\
                 sentinel down-after-milliseconds {master} 500\n\
                 sentinel failover-timeout {master} 2000\n{}\n",
                settings.join("\n"),
            );
            fs::write(directory.path().join("sentinel.conf"), lines)
                .map_err(SandboxError::io("write sentinel.conf"))?;
            let mut command = Command::new(PROGRAM);
            command.current_dir(directory.path()).args(["sentinel.conf", "--sentinel"]);
            let log = directory.path().join("log");
            let mut process = Process::start(&command, &log)?;
            wait_until_ready(&mut process, "the sentinel", &log, START_PATIENCE, || accepts(port))?;
            Ok((port, process))
        })?;
        Ok(Sentinel { _directory: directory, port, _process: process })
    }

    /// `127.0.0.1:<port>`
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

/// Runs the server and waits until it answers.
fn launch(directory: &Path, port: u16, options: &[(String, String)]) -> Result<Process> {
    let mut command = Command::new(PROGRAM);
    command.current_dir(directory).arg("--port").arg(port.to_string());
    for (key, value) in options {
        command.arg(format!("--{key}")).arg(value);
    }
    let log = directory.join("log");
    let mut process = Process::start(&command, &log)?;
    let pid = process.pid();
    wait_until_ready(&mut process, PROGRAM, &log, START_PATIENCE, || answers(port, pid))?;
    Ok(process)
}

/// Whether the server on `port` is process `pid`, and has loaded its data.
fn answers(port: u16, pid: u32) -> bool {
    let info = || -> redis::RedisResult<redis::InfoDict> {
        let mut connection = redis::Client::open(url(port))?.get_connection_with_timeout(Duration::from_secs(1))?;
        redis::cmd("PING").exec(&mut connection)?;
        redis::cmd("INFO").arg("server").query(&mut connection)
    };
    info().ok().and_then(|info| info.get::<u32>("process_id")) == Some(pid)
}
