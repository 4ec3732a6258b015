//! A child process that never outlives this one, even if this one is killed.
//!
//! The kernel's own help, a parent-death signal, is tied to the thread that spawned the child and comes too
//! early when that thread ends. So a second, tiny child, the watchdog, waits at the end of a pipe whose other
//! end only this process holds: whatever ends this process closes the pipe, and the watchdog kills the child.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Result, SandboxError};

/// Waits for the word to go and becomes the program. If the parent dies before it gave the word, so does this.
const GATE: &str = r#"read -r _ && exec "$@" </dev/null"#;

/// Waits for the word that the child has ended. If the pipe closes without it, the parent is gone.
const WATCHDOG: &str = r#"read -r _ || kill -KILL "$1""#;

/// A running program, in a process group of its own so that a terminal's ^C reaches only the parent, which
/// then stops it in good order. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    watchdog: Option<Watchdog>,
}

#[derive(Debug)]
struct Watchdog {
    child: Child,
    pipe: ChildStdin,
}

impl Process {
    /// Runs `command` (program, arguments, environment, directory) with its output appended to the file `log`.
    pub fn start(command: &Command, log: &Path) -> Result<Process> {
        let program = command.get_program().to_string_lossy().into_owned();
        Process::spawn(command, log).map_err(SandboxError::io(format!("start {program}")))
    }

    fn spawn(command: &Command, log: &Path) -> io::Result<Process> {
        let log = File::options().create(true).append(true).open(log)?;
        let mut gated = Command::new("sh");
        gated.arg("-c").arg(GATE).arg("sh").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => gated.env(name, value),
                None => gated.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            gated.current_dir(directory);
        }
        let mut child =
            gated.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log).process_group(0).spawn()?;
        let word_to_go = child.stdin.take();
        let mut process = Process { watchdog: Some(Watchdog::over(&child)?), child };
        if let Err(error) = say(word_to_go) {
            process.kill()?;
            return Err(error);
        }
        Ok(process)
    }

    /// The process id; the program's own, and not reused while this handle has not seen it end.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal; nothing happens if the process has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.exit_status()?.is_some() {
            return Ok(());
        }
        kill_process(Pid::from_child(&self.child), signal)
            .map_err(|errno| SandboxError::io(format!("signal process {}", self.pid()))(errno.into()))
    }

    /// How it ended; `None` while it runs.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait().map_err(SandboxError::io("wait for a child process"))?;
        if status.is_some() {
            self.dismiss_watchdog();
        }
        Ok(status)
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.dismiss_watchdog();
        self.child.kill()?;
        self.child.wait()
    }

    /// Asks it to end (SIGTERM); kills it if it still runs after `patience`. Says how it ended.
    pub fn stop(&mut self, patience: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if let Some(status) = self.exit_status()? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.kill().map_err(SandboxError::io("kill a child process"))
    }

    fn dismiss_watchdog(&mut self) {
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.dismiss();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nobody is left to tell of a failure; the watchdog's pipe closes with this process at the latest.
        let _ = self.kill();
    }
}

impl Watchdog {
    fn over(child: &Child) -> io::Result<Watchdog> {
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "sh", &child.id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pipe = watchdog.stdin.take().ok_or_else(|| io::Error::other("the watchdog has no pipe"))?;
        Ok(Watchdog { child: watchdog, pipe })
    }

    /// Sends it home before its child is waited for: from then on the process id may be another's.
    fn dismiss(mut self) {
        if say(Some(self.pipe)).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Writes the one line that a child waits for, and closes the pipe.
fn say(pipe: Option<ChildStdin>) -> io::Result<()> {
    pipe.ok_or_else(|| io::Error::other("a child has no pipe"))?.write_all(b"\n")
}
