//! The whole service on a real broker and a real Redis, beside who does the same work in another way.
//!
//! `make bench`, `make bench-peers`. Every figure is made in one run, contenders in turns, outputs compared with what
//! has to come (docs/performance.md says how each is made).
//!
//! | file | what it is |
//! |---|---|
//! | `lab` | the servers and topics of a run |
//! | `market`, `input`, `expected`, `scenarios` | ticks from a seed, on the broker; what has to come of them; the shapes that are tried |
//! | `contenders`, `raw`, `naive` | who runs, each a process of its own; two of them are this program again |
//! | `throughput`, `accounting`, `bystander` | one contender through one input, CPU and memory by the kernel's count |
//! | `latency`, `clients` | from tick to notification at a steady pace |
//! | `takeover`, `bytes`, `state` | an owner is killed; what state costs in Redis |
//! | `goals`, `report`, `chart`, `machine`, `statistics` | what was to be reached, the tables, the files |

#![allow(clippy::expect_used)] // a measurement that panics fails, which is what it should do

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../shared/market.rs"]
mod market;

mod accounting;
mod bystander;
mod bytes;
mod chart;
mod clients;
mod contenders;
mod expected;
mod goals;
mod input;
mod lab;
mod latency;
mod machine;
mod naive;
mod raw;
mod report;
mod scenarios;
mod state;
mod statistics;
mod takeover;
mod throughput;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Parser, Subcommand};
use tickwatch::sandbox::Broker;

use input::Input;
use lab::Lab;
use latency::Way;
use machine::Machine;
use report::Report;
use scenarios::Scenario;
use takeover::Next;
use throughput::Entry;

/// Measures the service beside its peers; every figure in one run on one machine
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    /// A part of this program that is measured by another
    #[command(subcommand)]
    role: Option<Role>,
    /// Ticks of the standard input
    #[arg(long, default_value_t = 4_000_000, value_name = "N")]
    ticks: u64,
    /// How often each is measured, in turns
    #[arg(long, default_value_t = 3, value_name = "N")]
    repetitions: u32,
    /// Decides the ticks
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Only these parts; `--list` has their names
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    only: Vec<String>,
    /// Few ticks, once: whether it works, not how fast it is
    #[arg(long)]
    quick: bool,
    /// The folder of the Kafka Streams peers, built
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Where the JSON file goes
    #[arg(long, default_value = "target/bench", value_name = "DIR")]
    out: PathBuf,
    /// Copy what was measured to docs/
    #[arg(long, conflicts_with_all = ["only", "quick"])]
    keep: bool,
    /// The parts, and nothing else
    #[arg(long)]
    list: bool,
    /// What cargo says to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Subcommand)]
enum Role {
    #[command(hide = true)]
    Raw(raw::Args),
    #[command(hide = true)]
    Naive(naive::Args),
}

/// Of `--quick`.
const QUICK_TICKS: u64 = 60_000;
const QUICK_LATENCY: Duration = Duration::from_secs(3);
/// How long latency is measured on each way, a repetition.
const LATENCY: Duration = Duration::from_secs(20);

/// What is measured besides scenarios.
const LATENCIES: &str = "latency";
const TAKEOVERS: &str = "takeover";
const BYTES: &str = "bytes";

fn main() -> ExitCode {
    let outcome = match Args::parse() {
        Args { role: Some(Role::Raw(args)), .. } => raw::run(&args).map(|()| ExitCode::SUCCESS),
        Args { role: Some(Role::Naive(args)), .. } => naive::run(args).map(|()| ExitCode::SUCCESS),
        args => measure(args),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn measure(mut args: Args) -> anyhow::Result<ExitCode> {
    if args.quick {
        (args.ticks, args.repetitions) = (QUICK_TICKS, 1);
    }
    let groups = [
        scenarios::of_contenders(args.ticks, args.seed, args.peers.is_some()),
        scenarios::of_shapes(args.ticks, args.seed),
    ];
    let others = [
        (LATENCIES, "tick to notification at a steady pace"),
        (TAKEOVERS, "an owner is killed"),
        (BYTES, "what state costs in Redis"),
    ];
    let parts = || groups.iter().flatten().map(|scenario| (scenario.name, scenario.about)).chain(others);
    if args.list {
        parts().for_each(|(name, about)| println!("{name:<18} {about}"));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(unknown) = args.only.iter().find(|part| parts().all(|(name, _)| name != **part)) {
        bail!("there is no part {unknown:?}; --list has their names");
    }
    if let Some(missing) = Broker::missing() {
        println!("skipped: {missing}");
        return Ok(ExitCode::SUCCESS);
    }
    let lab = Lab::open()?;
    let Args { ticks, repetitions, seed, .. } = args;
    let mut report = Report { machine: Machine::look(&lab), ticks, repetitions, seed, ..Report::default() };
    for group in &groups {
        in_turns(&lab, &args, &choose(group, &args.only), &mut report)?;
    }
    others_in_turns(&lab, &args, &mut report);
    lab.close()?;
    report.finish(args.only.is_empty());
    report.write(&args.out)?;
    if args.keep {
        report.keep()?;
    }
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn wanted(only: &[String], name: &str) -> bool {
    only.is_empty() || only.iter().any(|part| part == name)
}

/// The scenarios that are wanted, with the one that the others are compared with.
fn choose(group: &[Scenario], only: &[String]) -> Vec<Scenario> {
    let is_compared = |name: &str| match name {
        scenarios::NAIVE => wanted(only, scenarios::STANDARD),
        scenarios::RULES_1000 => wanted(only, scenarios::RULES_1000000),
        scenarios::UNIFORM => group.iter().any(|scenario| scenario.is_compared && wanted(only, scenario.name)),
        _ => false,
    };
    let is_chosen = |scenario: &&Scenario| wanted(only, scenario.name) || is_compared(scenario.name);
    group.iter().filter(is_chosen).cloned().collect()
}

/// Loads the inputs, then runs everybody on them, once a repetition.
fn in_turns(lab: &Lab, args: &Args, group: &[Scenario], report: &mut Report) -> anyhow::Result<()> {
    let mut inputs: Vec<Input> = Vec::new();
    for scenario in group {
        if inputs.iter().all(|input| input.spec != scenario.spec) {
            let started = Instant::now();
            inputs.push(Input::load(scenario.spec, lab)?);
            eprintln!("{}: {} ticks loaded in {:.1?}", scenario.name, scenario.spec.ticks, started.elapsed());
        }
    }
    for repetition in 1..=args.repetitions {
        for scenario in group {
            let input = inputs.iter().find(|input| input.spec == scenario.spec).expect("all were loaded");
            for contender in scenario.contenders.iter().copied() {
                let entry = Entry { scenario: scenario.name, contender, input, bystander: scenario.bystander };
                if let Some(run) = report.note(throughput::run(lab, entry, args.peers.as_deref(), repetition)) {
                    eprintln!("{run}");
                    report.runs.push(run);
                }
            }
        }
    }
    for input in inputs {
        lab.delete_topics(&input.topic)?;
    }
    Ok(())
}

/// What is measured without an input of its own.
fn others_in_turns(lab: &Lab, args: &Args, report: &mut Report) {
    let peers = args.peers.as_deref();
    let length = if args.quick { QUICK_LATENCY } else { LATENCY };
    for repetition in 1..=args.repetitions {
        for way in Way::all(peers.is_some()).into_iter().filter(|_| wanted(&args.only, LATENCIES)) {
            if let Some(latency) = report.note(latency::run(lab, way, length, peers, repetition)) {
                eprintln!(
                    "{repetition} latency, {way}: p50 {:.2} ms, p99 {:.2} ms",
                    latency.p50_ms, latency.p99_ms
                );
                report.latencies.push(latency);
            }
        }
    }
    if wanted(&args.only, TAKEOVERS) {
        for (symbols, next) in [(1_000, Next::StandBy), (200_000, Next::StandBy), (200_000, Next::Restarted)] {
            if let Some(all) = report.note(takeover::run(lab, symbols, next, args.repetitions)) {
                for takeover in &all {
                    eprintln!("{takeover}");
                }
                report.takeovers.extend(all);
            }
        }
    }
    if wanted(&args.only, BYTES) {
        report.bytes = report.note(bytes::run(lab));
    }
}
