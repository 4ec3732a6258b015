//! Random schedules of the protocol of a source partition: the state machine of the product, events in and commands
//! out, against Redis and Kafka in memory.
//!
//! What a seed may do: kill an owner, or let it go on as a zombie after another has claimed; stop one gracefully; bring
//! Redis back as it was some writes ago, flush it, let it refuse writes; lose an answer, or carry a call out only after
//! it was given up; commit with an unknown outcome; lose the committed offsets; delete the head of the log, or make
//! the topic again; leave gaps in the log and transactions of others open; let the clock run; send a worker of another
//! group; and let an operator answer what stopped. Afterwards the faults end, and the state and everything sent must
//! be what the log means.
//!
//! `TW_TEST_SIM_SEED=<seed>` runs one schedule again and prints it; `TW_TEST_SIM_SCHEDULES=<n>` runs more, from
//! `TW_TEST_SIM_FIRST=<seed>` on, and prints what occurred; `TW_TEST_SIM_BROKEN=<rule>` takes a rule out.

mod broken;
mod check;
mod dice;
mod kafka;
mod log;
mod oracle;
mod plan;
mod redis;
mod schedule;
mod servers;
mod shell;
mod tally;

use anyhow::{Context as _, ensure};
use tickwatch::config::Guarantee;

use crate::harness::{Case, Needs, Stage, cases};
use broken::Broken;
use schedule::Simulation;
use tally::Tally;

pub(crate) fn cases() -> Vec<Case> {
    cases![Needs::Nothing;
        at_least_once_holds_under_every_schedule,
        exactly_once_holds_under_every_schedule,
        a_protocol_that_lacks_a_rule_is_caught,
    ]
}

/// Schedules of each guarantee that a run of the tests goes through.
const SCHEDULES: u64 = 10_000;

/// Schedules within which the lack of a rule has to show.
const SCHEDULES_TO_CATCH: u64 = 3_000;

fn at_least_once_holds_under_every_schedule(_: &Stage) -> anyhow::Result<()> {
    run_schedules(Guarantee::AtLeastOnce)
}

fn exactly_once_holds_under_every_schedule(_: &Stage) -> anyhow::Result<()> {
    run_schedules(Guarantee::ExactlyOnce)
}

/// A difference is one of the lack: without it these schedules hold.
fn a_protocol_that_lacks_a_rule_is_caught(_: &Stage) -> anyhow::Result<()> {
    let noticed = |broken: &Broken| {
        (0..SCHEDULES_TO_CATCH).any(|seed| run_schedule(seed, broken.guarantee(), *broken, false).is_err())
    };
    let unnoticed: Vec<&Broken> = Broken::ALL.iter().filter(|broken| !noticed(broken)).collect();
    ensure!(unnoticed.is_empty(), "{unnoticed:?} went unnoticed through {SCHEDULES_TO_CATCH} schedules");
    Ok(())
}

fn run_schedules(guarantee: Guarantee) -> anyhow::Result<()> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>()).transpose();
    let broken = std::env::var("TW_TEST_SIM_BROKEN").ok();
    let broken = broken.and_then(|name| Broken::ALL.iter().find(|it| format!("{it:?}") == name));
    let broken = broken.copied().unwrap_or(Broken::Nothing);
    if let Some(seed) = number("TW_TEST_SIM_SEED")? {
        return run_schedule(seed, guarantee, broken, true).map(drop);
    }
    let (first, schedules) = (number("TW_TEST_SIM_FIRST")?.unwrap_or(0), number("TW_TEST_SIM_SCHEDULES")?);
    let mut tally = Tally::default();
    for seed in first..first + schedules.unwrap_or(SCHEDULES) {
        tally.add(&run_schedule(seed, guarantee, broken, false)?);
    }
    if schedules.is_some() {
        println!("{guarantee:?}\n{tally}");
    }
    if schedules.is_none_or(|schedules| schedules >= SCHEDULES) {
        let never = tally.never(guarantee == Guarantee::ExactlyOnce);
        ensure!(never.is_empty(), "never drawn: {never:?}");
    }
    Ok(())
}

fn run_schedule(seed: u64, guarantee: Guarantee, broken: Broken, trace: bool) -> anyhow::Result<Tally> {
    let mut simulation = Simulation::new(seed, guarantee, broken, trace);
    simulation
        .run()
        .and_then(|()| simulation.check())
        .with_context(|| format!("{guarantee:?}, TW_TEST_SIM_SEED={seed} runs it again; {:?}", simulation.plan))?;
    Ok(simulation.tally)
}
