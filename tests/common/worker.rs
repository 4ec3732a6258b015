//! A worker as its own process, steered as an operator or a fault would.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use tempfile::TempDir;
use tickwatch::config::Config;
use tickwatch::sandbox::Process;
use tickwatch::sandbox::kafka::LIBS_VARIABLE;

use super::{PATIENCE, wait_until};

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_tickwatch");

/// Names another build of the program to test: an older one, or one that was broken on purpose.
const PROGRAM_VARIABLE: &str = "TW_TEST_PROGRAM";

/// Waits until `tickwatch status`, with a worker's configuration, says all these words.
pub(crate) fn expect_status(worker: &Worker, words: &[&str]) -> anyhow::Result<()> {
    let mut said = String::new();
    wait_until(PATIENCE, "tickwatch status to say it", || {
        let output = program().arg("--config").arg(worker.config_file()).arg("status").output();
        said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        words.iter().all(|word| said.contains(word))
    })
    .with_context(|| format!("{words:?} are not all in {said}"))
}

/// The program under test, with no setting from the environment of the tests.
pub(crate) fn program() -> Command {
    let mut command = Command::new(std::env::var_os(PROGRAM_VARIABLE).unwrap_or_else(|| PROGRAM.into()));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TICKWATCH_") && name != LIBS_VARIABLE {
            command.env_remove(name);
        }
    }
    command
}

/// `tickwatch run` with its configuration in a file and its log in another. Dropping it kills it.
pub(crate) struct Worker {
    process: Process,
    directory: TempDir,
    http: SocketAddr,
}

impl Worker {
    /// Starts a worker; `[http] listen` is set to a free port.
    pub(crate) fn start(config: &Config) -> anyhow::Result<Worker> {
        Worker::start_with(config, &[], &[])
    }

    /// Starts a worker with more arguments after `run` and more environment.
    pub(crate) fn start_with(
        config: &Config,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Worker> {
        let directory = tempfile::Builder::new().prefix("tickwatch-worker-").tempdir()?;
        let mut config = config.clone();
        config.http.listen = free_address()?;
        let file = directory.path().join("tickwatch.toml");
        fs::write(&file, toml::to_string(&config)?)?;

        let mut command = program();
        command.current_dir(directory.path()).arg("--config").arg(&file).arg("run").args(arguments);
        if config.redis.url.contains('@') {
            command.env("TICKWATCH_REDIS__URL", &config.redis.url); // a file is written without secrets
        }
        command.envs(environment.iter().copied());
        let process = Process::start(&command, &directory.path().join("log"))?;
        Ok(Worker { process, directory, http: config.http.listen })
    }

    /// Waits until `/readyz` says 200; fails with the log if the worker ends before.
    pub(crate) fn wait_ready(&mut self) -> anyhow::Result<()> {
        let mut ended = None;
        let waited = wait_until(PATIENCE, "the worker's /readyz", || {
            ended = self.process.exit_status().ok().flatten();
            ended.is_some() || self.get("/readyz").is_ok()
        });
        ensure!(ended.is_none(), "the worker ended: {ended:?}\n{}", self.logs());
        waited.with_context(|| self.logs())
    }

    /// The body of a page; an error if its status is not 200.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<String> {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(5))).build().into();
        Ok(agent.get(format!("http://{}{path}", self.http)).call()?.body_mut().read_to_string()?)
    }

    /// Status and body of a page, whatever the status.
    pub(crate) fn page(&self, path: &str) -> anyhow::Result<(u16, String)> {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(5)))
            .http_status_as_error(false)
            .build()
            .into();
        let mut response = agent.get(format!("http://{}{path}", self.http)).call()?;
        Ok((response.status().as_u16(), response.body_mut().read_to_string()?))
    }

    /// Where `/healthz`, `/readyz` and `/metrics` are.
    pub(crate) fn http(&self) -> SocketAddr {
        self.http
    }

    /// Everything it wrote so far.
    pub(crate) fn logs(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Its configuration.
    pub(crate) fn config_file(&self) -> PathBuf {
        self.directory.path().join("tickwatch.toml")
    }

    /// The file it writes to.
    pub(crate) fn log_file(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// How it ended; `None` while it runs.
    pub(crate) fn exit_status(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.process.exit_status()?)
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        let mut ended = None;
        wait_until(patience, "the worker's end", || {
            ended = self.process.exit_status().ok().flatten();
            ended.is_some()
        })
        .with_context(|| self.logs())?;
        ended.context("the worker has not ended")
    }

    /// Pulls the plug (SIGKILL).
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill()?;
        Ok(())
    }

    /// Asks it to end (SIGTERM).
    pub(crate) fn terminate(&mut self) -> anyhow::Result<()> {
        Ok(self.process.signal(Signal::TERM)?)
    }

    /// Asks it to end (SIGTERM) and waits; it is killed if it does not.
    pub(crate) fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        Ok(self.process.stop(PATIENCE)?)
    }

    /// Freezes it (SIGSTOP), like a long pause of its machine.
    pub(crate) fn pause(&mut self) -> anyhow::Result<()> {
        Ok(self.process.signal(Signal::STOP)?)
    }

    /// Lets it go on (SIGCONT).
    pub(crate) fn cont(&mut self) -> anyhow::Result<()> {
        Ok(self.process.signal(Signal::CONT)?)
    }
}

/// An address on this machine where nobody listens.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// The process in an owner's name, `<host>-<process>-<random>`.
pub(crate) fn process_of(owner: &str) -> Option<u32> {
    owner.rsplit('-').nth(1)?.parse().ok()
}
