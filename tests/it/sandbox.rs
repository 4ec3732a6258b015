//! The private servers keep their data when killed, and nothing outlives a killed parent.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use redis::Commands as _;
use tickwatch::sandbox::{Broker, Process, Redis};

use crate::harness::{self, Case, Isolation, Message, Needs, Stage, cases, skip, wait_until};

/// With this set, the test binary plays a part in a test instead of running tests.
pub(crate) const ROLE_VARIABLE: &str = "TW_TEST_IT_ROLE";

const PARENT: &str = "parent";
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases!(Needs::Nothing;
        redis_restarts_with_the_data_it_had_when_it_was_killed,
        redis_takes_the_callers_options_over_the_defaults,
        the_broker_keeps_topics_and_records_over_a_kill_and_a_restart,
        a_child_dies_with_its_killed_parent,
        a_program_that_is_stopped_ends_in_good_order,
        a_program_that_ignores_the_stop_is_killed,
    );
    cases.extend(cases!(Needs::Kafka;
        the_broker_hides_aborted_transactions_from_read_committed_readers,
        records_come_back_with_their_headers_and_partition,
        a_topic_that_does_not_exist_holds_no_records,
    ));
    cases
}

fn redis_restarts_with_the_data_it_had_when_it_was_killed(_: &Stage) -> anyhow::Result<()> {
    let mut redis = or_skip(Redis::start(&[]))?;
    let _: () = harness::connect(&redis.url())?.set("price", "9505.5")?;
    redis.kill()?;
    assert!(harness::connect(&redis.url()).is_err(), "a killed server does not answer");

    let port = redis.port();
    redis.restart()?;
    assert_eq!(redis.port(), port);
    let price: String = harness::connect(&redis.url())?.get("price")?;
    assert_eq!(price, "9505.5");
    Ok(())
}

fn redis_takes_the_callers_options_over_the_defaults(_: &Stage) -> anyhow::Result<()> {
    let redis = or_skip(Redis::start(&[("appendonly", "no"), ("maxmemory", "64mb")]))?;
    let mut connection = harness::connect(&redis.url())?;
    for (key, expected) in [("appendonly", "no"), ("maxmemory", "67108864"), ("maxmemory-policy", "noeviction")] {
        let (_, value): (String, String) = redis::cmd("CONFIG").arg("GET").arg(key).query(&mut connection)?;
        assert_eq!(value, expected, "{key}");
    }
    Ok(())
}

fn the_broker_keeps_topics_and_records_over_a_kill_and_a_restart(stage: &Stage) -> anyhow::Result<()> {
    let mut broker = or_skip(Broker::start())?;
    let brokers = broker.brokers();
    harness::create_topic(stage, &brokers, "ticks", 3)?;
    harness::produce(stage, &brokers, "ticks", [("BBCA", "9500"), ("TLKM", "3000"), ("BBCA", "9505")])?;

    broker.kill()?;
    broker.restart()?;
    assert_eq!(broker.brokers(), brokers);
    let records = harness::consume_all(&brokers, "ticks", Isolation::ReadCommitted)?;
    let bbca: Vec<&str> =
        records.iter().filter(|r| r.key.as_deref() == Some("BBCA")).map(|r| r.value.as_str()).collect();
    assert_eq!(bbca, ["9500", "9505"]);
    assert_eq!(records.len(), 3);
    Ok(())
}

fn the_broker_hides_aborted_transactions_from_read_committed_readers(stage: &Stage) -> anyhow::Result<()> {
    let topic = stage.unique("ticks");
    stage.create_topic(&topic, 1)?;
    stage.produce_transaction(&topic, [("BBCA", "aborted")], false)?;
    stage.produce_transaction(&topic, [("BBCA", "committed")], true)?;

    let values = |isolation| -> anyhow::Result<Vec<String>> {
        Ok(stage.consume_all(&topic, isolation)?.into_iter().map(|record| record.value).collect())
    };
    assert_eq!(values(Isolation::ReadCommitted)?, ["committed"]);
    assert_eq!(values(Isolation::ReadUncommitted)?, ["aborted", "committed"]);
    Ok(())
}

fn records_come_back_with_their_headers_and_partition(stage: &Stage) -> anyhow::Result<()> {
    let topic = stage.unique("ticks");
    stage.create_topic(&topic, 3)?;
    let message = Message {
        key: Some("BBCA".into()),
        value: "{}".into(),
        partition: Some(2),
        timestamp: Some(1_700_000_000_000),
        headers: vec![("error".into(), "no price".into())],
    };
    assert_eq!(stage.produce(&topic, [message])?, [(2, 0)]);

    let records = stage.consume_all(&topic, Isolation::ReadCommitted)?;
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].partition, records[0].timestamp), (2, 1_700_000_000_000));
    assert_eq!(records[0].header("error"), Some("no price"));
    Ok(())
}

fn a_topic_that_does_not_exist_holds_no_records(stage: &Stage) -> anyhow::Result<()> {
    assert!(stage.consume_all(&stage.unique("nothing"), Isolation::ReadCommitted)?.is_empty());
    Ok(())
}

fn a_child_dies_with_its_killed_parent(_: &Stage) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let log = directory.path().join("parent.log");
    let mut parent = Process::start(Command::new(env::current_exe()?).env(ROLE_VARIABLE, PARENT), &log)?;
    wait_until(PATIENCE, "the parent's report of its child", || read(&log).ends_with('\n'))?;
    let child: u32 = read(&log).trim().parse().with_context(|| read(&log))?;
    ensure!(is_running(child), "the child of the living parent runs");

    parent.kill()?;
    wait_until(PATIENCE, "the child's end", || !is_running(child))
}

/// The parent of [`a_child_dies_with_its_killed_parent`]: starts a child, says its process id, waits to be killed.
pub(crate) fn play(role: &OsStr) -> ExitCode {
    assert_eq!(role, PARENT, "the only part there is");
    let started = Process::start(Command::new("sleep").arg("300"), Path::new("/dev/null"));
    let child = started.expect("`sleep` starts");
    println!("{}", child.pid());
    thread::sleep(Duration::from_mins(5));
    ExitCode::FAILURE
}

fn a_program_that_is_stopped_ends_in_good_order(_: &Stage) -> anyhow::Result<()> {
    let mut redis = or_skip(Redis::start(&[]))?;
    assert!(redis.stop()?.success());
    assert!(read(&redis.directory().join("log")).contains("bye bye"));
    Ok(())
}

fn a_program_that_ignores_the_stop_is_killed(_: &Stage) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let log = directory.path().join("log");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' TERM; echo deaf; while :; do sleep 0.01; done"]);
    let mut deaf = Process::start(&command, &log)?;
    wait_until(PATIENCE, "the program's first line", || read(&log) == "deaf\n")?;

    let status = deaf.stop(Duration::from_millis(100))?;
    assert!(!status.success());
    assert!(!is_running(deaf.pid()));
    Ok(())
}

/// The server, or a skip where this machine lacks it.
pub(crate) fn or_skip<T>(started: tickwatch::sandbox::Result<T>) -> anyhow::Result<T> {
    started.map_err(|error| if error.is_missing() { skip(error.to_string()) } else { error.into() })
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Whether the process runs; one that ended and was not waited for yet does not.
fn is_running(pid: u32) -> bool {
    // The state is the first field after the name, which is in parentheses and may hold anything.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
}
