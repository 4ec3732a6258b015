//! The whole service on a real broker and a real Redis, beside who does the same work in another way.
//!
//! `make bench`, `make bench-peers`. Every figure is made in one run, contenders in turns, outputs compared with what
//! has to come (docs/performance.md says how each is made).
//!
//! | file | what it is |
//! |---|---|
//! | `lab` | the servers and topics of a run |
//! | `input`, `expected`, `scenarios` | ticks from a seed, what has to come of them, the shapes that are tried |
//! | `contenders`, `raw`, `naive` | who runs, each a process of its own; two of them are this program again |
//! | `throughput`, `accounting`, `bystander` | one contender through one input, CPU and memory by the kernel's count |
//! | `report`, `statistics` | the table, the JSON file |

#![allow(clippy::expect_used)] // a measurement that panics fails, which is what it should do

#[path = "../../tests/common/mod.rs"]
mod common;

mod accounting;
mod bystander;
mod contenders;
mod expected;
mod input;
mod lab;
mod naive;
mod raw;
mod report;
mod scenarios;
mod statistics;
mod throughput;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use tickwatch::sandbox::Broker;

use input::Input;
use lab::Lab;
use report::Report;
use scenarios::Scenario;
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
    if args.list {
        for scenario in groups.iter().flatten() {
            println!("{:<16} {}", scenario.name, scenario.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(missing) = Broker::missing() {
        println!("skipped: {missing}");
        return Ok(ExitCode::SUCCESS);
    }
    let lab = Lab::open()?;
    let mut report = Report::default();
    for group in groups {
        let chosen = choose(group, &args.only);
        in_turns(&lab, &args, &chosen, &mut report)?;
    }
    lab.close()?;
    report.print();
    report.write(&args.out)?;
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The scenarios that are wanted, with the one that the others are compared with.
fn choose(group: Vec<Scenario>, only: &[String]) -> Vec<Scenario> {
    let wanted = |name: &str| only.is_empty() || only.iter().any(|part| part == name);
    let with = [(scenarios::NAIVE, scenarios::STANDARD), (scenarios::RULES_1000, scenarios::RULES_1000000)];
    let any = group.iter().any(|scenario| wanted(scenario.name));
    let chosen = group.into_iter().filter(|scenario| {
        wanted(scenario.name)
            || (any && scenario.name == scenarios::UNIFORM)
            || with.iter().any(|(name, other)| scenario.name == *name && wanted(other))
    });
    chosen.collect()
}

/// Loads the inputs, then runs everybody on them, once a repetition.
fn in_turns(lab: &Lab, args: &Args, group: &[Scenario], report: &mut Report) -> anyhow::Result<()> {
    let mut inputs: Vec<Input> = Vec::new();
    for scenario in group {
        if inputs.iter().all(|input| input.spec != scenario.spec) {
            let started = Instant::now();
            inputs.push(scenario.spec.load(lab)?);
            eprintln!("{}: {} ticks loaded in {:.1?}", scenario.name, scenario.spec.ticks, started.elapsed());
        }
    }
    for repetition in 1..=args.repetitions {
        for scenario in group {
            let input = inputs.iter().find(|input| input.spec == scenario.spec).expect("all were loaded");
            for contender in scenario.contenders.iter().copied() {
                let entry = Entry { scenario: scenario.name, contender, input, bystander: scenario.bystander };
                report.add(throughput::run(lab, entry, args.peers.as_deref(), repetition));
            }
        }
    }
    for input in inputs {
        lab.delete_topics(&input.topic)?;
    }
    Ok(())
}
