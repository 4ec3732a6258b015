//! Whether a tick costs more than it did: instructions, counted by valgrind's callgrind, against a committed record.
//!
//! `make bench-check`. Instructions hardly depend on the machine or on what else it does. Each stage runs in a process
//! of its own with a few batches and again with more; the difference is what the batches between cost. For the stages
//! on Redis it is `redis-server` that is counted. gungraun does the first of that, but not the second, and its
//! baselines hold the paths of the machine that made them, so they can't be committed.
//!
//! More than [`TOLERANCE`] above the record fails. `--record` writes a new record, for a change that is worth it.

#![allow(clippy::expect_used)] // a measurement that panics fails, which is what it should do

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../shared/market.rs"]
mod market;
#[path = "../shared/stages.rs"]
mod stages;

use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tickwatch::sandbox::Process;
use tickwatch::store::pack::Packer;

use stages::{Grouping, START, Stand, TICKS, decode, values_of_a_batch};

/// How much more a stage may cost than is on record.
const TOLERANCE: f64 = 0.15;
const RECORD: &str = "benches/check/record.json";
/// Batches of the two runs of a stage. The first leaves behind what is done once.
const FEW: u64 = 1;
const MANY: u64 = 3;
/// Ticks of a symbol in a batch, where it is dense and where it is thin.
const DENSE: u64 = 100;
const THIN: u64 = 2;
/// How long Redis may take to start when each of its instructions is counted.
const START_PATIENCE: Duration = Duration::from_mins(1);

/// Counts instructions a tick and compares them with the record
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    /// The part of this program that is counted
    #[command(subcommand)]
    counted: Option<Counted>,
    /// Write what was counted as the new record
    #[arg(long)]
    record: bool,
    /// What cargo says to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Subcommand)]
enum Counted {
    #[command(hide = true)]
    Stage { stage: Stage, batches: u64 },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Stage {
    Decode,
    Group,
    Pack,
}

/// Instructions a tick by stage, and what they were counted with.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    rustc: String,
    redis: String,
    instructions_a_tick: BTreeMap<String, f64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.counted {
        Some(Counted::Stage { stage, batches }) => {
            run(stage, batches);
            Ok(ExitCode::SUCCESS)
        }
        None => check(args.record),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn check(record: bool) -> anyhow::Result<ExitCode> {
    if said_by("valgrind", "--version").is_none() {
        println!("skipped: valgrind is missing; run `scripts/install.sh bench-check`");
        return Ok(ExitCode::SUCCESS);
    }
    let before: Option<Record> = match fs::read(RECORD) {
        Ok(bytes) => Some(serde_json::from_slice(&bytes).with_context(|| format!("{RECORD} is no record"))?),
        Err(_) if record => None,
        Err(error) => return Err(error).context(format!("{RECORD}; `make bench-record` writes it")),
    };
    let rustc = said_by("rustc", "--version").unwrap_or_default();
    let redis = said_by("redis-server", "--version")
        .and_then(|text| text.split(' ').find_map(|word| word.strip_prefix("v=").map(ToOwned::to_owned)));

    let mut counted = BTreeMap::new();
    for (name, stage) in [("decode", Stage::Decode), ("group", Stage::Group), ("pack", Stage::Pack)] {
        counted.insert(name.to_owned(), difference(|batches| count_stage(stage, batches))?);
    }
    match (&redis, &before) {
        (None, _) => println!("apply: skipped: redis-server is missing; run `make install`"),
        (Some(redis), Some(before)) if !record && *redis != before.redis => {
            println!("apply: skipped: Redis {redis} is here, the record is of {}", before.redis);
        }
        (Some(_), _) => {
            for (name, a_symbol) in [("apply, 100 ticks a symbol", DENSE), ("apply, 2 ticks a symbol", THIN)] {
                counted.insert(name.to_owned(), difference(|batches| count_redis(a_symbol, batches))?);
            }
        }
    }
    if let Some(before) = before.as_ref().filter(|before| before.rustc != rustc) {
        println!("the record was made by {}, this is {rustc}", before.rustc);
    }
    let worse = compare(before.as_ref(), &counted);
    if record {
        let record = Record { rustc, redis: redis.unwrap_or_default(), instructions_a_tick: counted };
        fs::write(RECORD, serde_json::to_string_pretty(&record)? + "\n")?;
        println!("written to {RECORD}");
        return Ok(ExitCode::SUCCESS);
    }
    if !worse.is_empty() {
        bail!(
            "{} cost over {:.0}% more than on record; make it cheaper, or `make bench-record` if it is worth it",
            worse.join(" and "),
            100.0 * TOLERANCE
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells all; returns what costs too much.
fn compare(before: Option<&Record>, counted: &BTreeMap<String, f64>) -> Vec<String> {
    let mut worse = Vec::new();
    for (name, now) in counted {
        let was = before.and_then(|before| before.instructions_a_tick.get(name));
        let change = was.map(|was| now / was - 1.0);
        let told = change.map_or_else(|| "not on record".to_owned(), |change| format!("{:+.1}%", 100.0 * change));
        println!("{name:<28} {now:>10.1} instructions a tick  {told}");
        if change.is_some_and(|change| change > TOLERANCE) {
            worse.push(name.clone());
        }
    }
    worse
}

/// Instructions a tick, from two counts.
fn difference(count: impl Fn(u64) -> anyhow::Result<u64>) -> anyhow::Result<f64> {
    let (few, many) = (count(FEW)?, count(MANY)?);
    ensure!(many > few, "{MANY} batches took no more instructions than {FEW}");
    Ok((many - few) as f64 / ((MANY - FEW) * TICKS) as f64)
}

/// The stage by itself, so many times. What comes before it is done once.
fn run(stage: Stage, batches: u64) {
    let values = values_of_a_batch(DENSE);
    let chunk = Arc::new(decode(&values, 0));
    let grouping = Grouping::new();
    let buffer = Grouping::filled(&chunk);
    let built = grouping.group(&buffer, START);
    let mut packer = Packer::default();
    for _ in 0..batches {
        match stage {
            Stage::Decode => drop(black_box(decode(black_box(&values), 0))),
            Stage::Group => drop(black_box(grouping.group(black_box(&buffer), START))),
            Stage::Pack => drop(black_box(grouping.pack(&mut packer, black_box(&built)))),
        }
    }
}

fn count_stage(stage: Stage, batches: u64) -> anyhow::Result<u64> {
    let name = stage.to_possible_value().expect("no stage is skipped");
    let output = callgrind(&std::env::current_exe()?.display().to_string())
        .args(["stage", name.get_name(), &batches.to_string()])
        .output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the stage {} failed under valgrind:\n{told}", name.get_name());
    collected(&told)
}

/// Instructions of a `redis-server` that applies so many batches, closes their windows and drops their outputs.
fn count_redis(a_symbol: u64, batches: u64) -> anyhow::Result<u64> {
    let directory = TempDir::new()?;
    let log = directory.path().join("log");
    let port = common::worker::free_address()?.port();
    let mut command = callgrind("redis-server");
    command.current_dir(directory.path()).args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    // What Redis does by the clock is left out as far as that can be.
    command.args(["--appendonly", "yes", "--appendfsync", "no", "--hz", "1", "--dynamic-hz", "no"]);
    let mut process = Process::start(&command, &log)?;
    let url = format!("redis://127.0.0.1:{port}");
    wait_for(&url, &mut process, &log)?;

    let mut stand = Stand::new(&url, a_symbol)?;
    for _ in 0..batches {
        let built = stand.next();
        let applied = stand.apply(&built)?;
        stand.settle(&built, applied)?;
    }
    drop(stand);
    process.stop(START_PATIENCE)?;
    collected(&fs::read_to_string(&log)?)
}

fn wait_for(url: &str, process: &mut Process, log: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_PATIENCE;
    while common::connect(url).is_err() {
        let ended = process.exit_status()?;
        if ended.is_some() || Instant::now() > deadline {
            bail!("redis-server did not start under valgrind:\n{}", fs::read_to_string(log)?);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn callgrind(program: &str) -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", program]);
    command
}

/// What callgrind says at its end: `==123== Collected : 4567`.
fn collected(told: &str) -> anyhow::Result<u64> {
    let count = told.lines().find_map(|line| line.split_once("Collected :"));
    let (_, count) = count.with_context(|| format!("valgrind counted nothing:\n{told}"))?;
    Ok(count.trim().parse()?)
}

fn said_by(program: &str, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
