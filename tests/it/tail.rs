//! `tickwatch tail`: what readers of the output topics see, as JSON in a pipe and as lines on a terminal.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::{Case, Message, Needs, Stage, Terminal, cases, program, wait_until};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Kafka;
        what_is_committed_from_now_on_comes_as_it_is,
        from_the_start_to_a_limit_of_one_symbol,
        a_partition_that_is_added_is_read_from_its_start,
        a_reader_that_has_seen_enough_ends_it_though_nothing_comes,
        ctrl_c_ends_it_well,
        a_terminal_shows_coloured_lines_unless_no_colour_is_wanted,
        a_topic_that_is_not_there_comes_with_the_command_that_makes_it,
    )
}

const PATIENCE: Duration = Duration::from_secs(30);

/// `tickwatch tail`, started; dropping it kills it.
struct Tail {
    child: Child,
    directory: TempDir,
}

fn tail(stage: &Stage, topic: &str, arguments: &[&str]) -> anyhow::Result<(Command, TempDir)> {
    let directory = tempfile::tempdir()?;
    let mut command = program();
    command.current_dir(directory.path()).arg("tail").args(arguments).args(["--brokers", stage.brokers()]);
    command.env("TICKWATCH_OUTPUT__NOTIFICATIONS", topic).env("TICKWATCH_OUTPUT__CANDLES", topic);
    command.env_remove("NO_COLOR").stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(File::create(directory.path().join("log"))?);
    Ok((command, directory))
}

impl Tail {
    /// Returns when it follows the topic.
    fn start(stage: &Stage, topic: &str, arguments: &[&str]) -> anyhow::Result<Tail> {
        Tail::spawn(tail(stage, topic, arguments)?)
    }

    fn spawn((mut command, directory): (Command, TempDir)) -> anyhow::Result<Tail> {
        let tail = Tail { child: command.spawn()?, directory };
        wait_until(PATIENCE, "tail to follow", || tail.log().contains("following topic"))
            .with_context(|| tail.log())?;
        Ok(tail)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Its lines as they come.
    fn lines(&mut self) -> anyhow::Result<Receiver<String>> {
        let out = BufReader::new(self.child.stdout.take().context("a piped output")?);
        let (sender, lines) = channel();
        thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Ok(lines)
    }

    fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        let mut ended = None;
        wait_until(PATIENCE, "the end of tail", || {
            ended = self.child.try_wait().ok().flatten();
            ended.is_some()
        })
        .with_context(|| self.log())?;
        ended.context("tail has not ended")
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

fn next(lines: &Receiver<String>) -> anyhow::Result<String> {
    lines.recv_timeout(PATIENCE).context("no line came")
}

/// A notification's record: key and value.
fn notification(symbol: &str, price: u32) -> (String, String) {
    let value = format!(
        r#"{{"id":"t/0/2/edge/>=/alice-1","rule":"alice-1","symbol":"{symbol}","trigger":"edge","op":">=","threshold":9500,"price":{price},"previous":9490,"ts":1796058049971,"source":{{"topic":"t","partition":0,"offset":2}}}}"#
    );
    (symbol.to_owned(), value)
}

fn what_is_committed_from_now_on_comes_as_it_is(stage: &Stage) -> anyhow::Result<()> {
    let topic = stage.unique("notifications");
    stage.create_topic(&topic, 2)?;
    stage.produce(&topic, [notification("BBCA", 9501)])?;
    let mut tail = Tail::start(stage, &topic, &["notifications"])?;
    let lines = tail.lines()?;
    stage.produce_transaction(&topic, [notification("BBCA", 9502)], false)?;
    stage.produce_transaction(&topic, [notification("BBCA", 9503)], true)?;
    assert_eq!(next(&lines)?, notification("BBCA", 9503).1);
    stage.produce(&topic, [("other", "no JSON")])?;
    assert_eq!(next(&lines)?, "no JSON");
    Ok(())
}

fn from_the_start_to_a_limit_of_one_symbol(stage: &Stage) -> anyhow::Result<()> {
    let topic = stage.unique("candles");
    stage.create_topic(&topic, 3)?;
    let (mut command, _directory) =
        tail(stage, &topic, &["candles", "--from-start", "--symbol", "BBCA", "--limit", "2"])?;
    let symbols = ["BBCA", "TLKM", "BBC", "BBCA", "BBCA"];
    stage.produce(&topic, symbols.iter().enumerate().map(|(i, symbol)| (*symbol, format!("{i}"))))?;
    let output = command.output()?;
    ensure!(output.status.success(), "{}", output.status);
    assert_eq!(String::from_utf8(output.stdout)?, "0\n3\n");
    Ok(())
}

fn a_partition_that_is_added_is_read_from_its_start(stage: &Stage) -> anyhow::Result<()> {
    let topic = stage.unique("notifications");
    stage.create_topic(&topic, 1)?;
    let mut tail = Tail::start(stage, &topic, &["notifications"])?;
    let lines = tail.lines()?;
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", stage.brokers()).create()?;
    let two = NewPartitions::new(&topic, 2);
    for result in stage.block_on(admin.create_partitions([&two], &AdminOptions::new()))? {
        result.map_err(|(topic, error)| anyhow::anyhow!("{topic}: {error}"))?;
    }
    let to_the_new_one = || [Message { partition: Some(1), ..Message::from(("BBCA", "at its start")) }];
    wait_until(PATIENCE, "a leader of the new partition", || stage.produce(&topic, to_the_new_one()).is_ok())?;
    assert_eq!(next(&lines)?, "at its start");
    Ok(())
}

fn a_reader_that_has_seen_enough_ends_it_though_nothing_comes(stage: &Stage) -> anyhow::Result<()> {
    let topic = stage.unique("notifications");
    stage.create_topic(&topic, 1)?;
    let mut tail = Tail::start(stage, &topic, &["notifications"])?;
    drop(tail.child.stdout.take());
    let status = tail.wait()?;
    ensure!(status.success() && !tail.log().contains("error"), "{status}: {}", tail.log());
    Ok(())
}

fn ctrl_c_ends_it_well(stage: &Stage) -> anyhow::Result<()> {
    let topic = stage.unique("notifications");
    stage.create_topic(&topic, 1)?;
    let mut tail = Tail::start(stage, &topic, &["notifications"])?;
    let lines = tail.lines()?;
    stage.produce(&topic, [("BBCA", "a record")])?;
    next(&lines)?;
    kill_process(Pid::from_child(&tail.child), Signal::INT)?;
    let status = tail.wait()?;
    ensure!(status.success(), "{status}: {}", tail.log());
    Ok(())
}

fn a_terminal_shows_coloured_lines_unless_no_colour_is_wanted(stage: &Stage) -> anyhow::Result<()> {
    let topic = stage.unique("notifications");
    stage.create_topic(&topic, 1)?;
    stage.produce(&topic, [notification("BBCA", 9505)])?;
    let shown = |arguments: &[&str], colour: bool| -> anyhow::Result<String> {
        let terminal = Terminal::open(120, 40)?;
        let arguments = [&["notifications", "--from-start", "--limit", "1"], arguments].concat();
        let (mut command, directory) = tail(stage, &topic, &arguments)?;
        terminal.show(&mut command)?;
        if !colour {
            command.env("NO_COLOR", "1");
        }
        let mut tail = Tail { child: command.spawn()?, directory };
        drop(command);
        let written = terminal.read_to_end();
        let status = tail.wait()?;
        ensure!(status.success(), "{status}: {}", tail.log());
        written.join().map_err(|_| anyhow::anyhow!("the terminal could not be read"))
    };
    let line = "2026-11-30T17:00:49.971Z  BBCA 9505  edge >= 9500  alice-1  was 9490\n";
    assert_eq!(shown(&[], false)?, line);
    let coloured = shown(&[], true)?;
    ensure!(coloured.contains("\x1b[32m9505\x1b[0m"), "{coloured:?}");
    assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), line);
    assert_eq!(shown(&["--json"], true)?, notification("BBCA", 9505).1 + "\n");
    Ok(())
}

fn a_topic_that_is_not_there_comes_with_the_command_that_makes_it(stage: &Stage) -> anyhow::Result<()> {
    let topic = stage.unique("nowhere");
    let (mut command, _directory) = tail(stage, &topic, &["candles"])?;
    let mut child = command.stderr(Stdio::piped()).spawn()?;
    let mut said = String::new();
    child.stderr.take().context("a piped error output")?.read_to_string(&mut said)?;
    assert_eq!(child.wait()?.code(), Some(1));
    ensure!(said.contains(&format!("--create --topic {topic} ")) && said.contains("(candles)"), "{said}");
    Ok(())
}
