//! Runs the whole service on a real Kafka and a real Redis while everything around it breaks, and then holds what came
//! out against what the source log means.
//!
//! `make chaos RUNS=20 SEED=1`; a seed that fails is run again by the same command with `RUNS=1`. A seed decides the
//! settings, the traffic and the faults ([`plan`]); [`arena`] runs them; [`verdict`] judges.

#[path = "../common/mod.rs"]
mod common;

mod arena;
mod fence;
mod fleet;
mod kafka;
mod kafka_lane;
mod memory;
mod plan;
mod proxy;
mod redis_lane;
mod rules;
mod timeline;
mod traffic;
mod verdict;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use tickwatch::config::Guarantee;
use tickwatch::sandbox::Broker;

use arena::Failure;
use kafka::Kafka;
use plan::{Fault, Plan, Time};
use timeline::Timeline;
use verdict::Tally;

/// Breaks everything around the service, at random, and checks that nothing was lost and nothing came twice
#[derive(Debug, Parser)]
struct Args {
    /// How many seeds to run
    #[arg(long, default_value_t = 20)]
    runs: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many to run at a time, each with a broker and a Redis of its own
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Start no further seed after so many seconds
    #[arg(long)]
    within: Option<u64>,
    /// One run of so many seconds of steady load with rule changes and rolling restarts, memory looked at
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["runs", "within"])]
    soak: Option<u64>,
    /// Print what each seed decides
    #[arg(long)]
    verbose: bool,
}

/// What all runs came to.
#[derive(Default)]
struct Total {
    passed: u64,
    failed: Vec<u64>,
    faults: BTreeMap<Fault, u32>,
    tally: Tally,
    by_kind: BTreeMap<String, u64>,
}

fn main() -> ExitCode {
    let mut args = Args::parse();
    if args.soak.is_some() {
        args.runs = 1;
    }
    if let Some(missing) = Broker::missing() {
        println!("skipped: {missing}");
        println!("test result: ok. 0 passed; 0 failed; {} ignored", args.runs);
        return ExitCode::SUCCESS;
    }
    let started = Instant::now();
    let progress = ProgressBar::new(args.runs);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} seeds, {elapsed} {msg}");
    progress.set_style(style.expect("the template is valid"));
    progress.enable_steady_tick(Duration::from_secs(1));
    let (next, total) = (AtomicU64::new(args.seed), Mutex::new(Total::default()));
    thread::scope(|scope| {
        for _ in 0..args.jobs.min(args.runs) {
            scope.spawn(|| work(&args, started, &next, &total, &progress));
        }
    });
    progress.finish_and_clear();
    let total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    report(&args, &total, started.elapsed());
    if total.failed.is_empty() && total.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs seeds, one after the other, on a broker that lasts.
fn work(args: &Args, started: Instant, next: &AtomicU64, total: &Mutex<Total>, progress: &ProgressBar) {
    let mut kafka = None;
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        let late = args.within.is_some_and(|within| started.elapsed() > Duration::from_secs(within));
        if seed >= args.seed + args.runs || late {
            return;
        }
        let plan = args.soak.map_or_else(|| Plan::of(seed), |length| Plan::soak(seed, Duration::from_secs(length)));
        if args.verbose {
            progress.suspend(|| println!("{plan:#?}"));
        }
        let timeline = Timeline::new();
        let evidence = evidence_of(seed);
        let started = match &mut kafka {
            Some(kafka) => Ok(kafka),
            None => Kafka::start().map(|new| kafka.insert(new)),
        };
        let outcome =
            started.map_err(Failure::from).and_then(|kafka| arena::run(&plan, kafka, &evidence, &timeline));
        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
        for (fault, count) in timeline.counts() {
            *total.faults.entry(fault).or_default() += count;
        }
        *total.by_kind.entry(kind_of(&plan)).or_default() += 1;
        match outcome {
            Ok(tally) => {
                total.passed += 1;
                total.tally.add(tally);
                let _ = std::fs::remove_dir_all(&evidence); // of no use where all is well
            }
            Err(Failure { error, at }) => {
                total.failed.push(seed);
                kafka = None; // it may be down
                progress.suspend(|| {
                    println!("seed {seed} failed ({}): {error:#}", kind_of(&plan));
                    println!("what was done:\n{}", timeline.told(at));
                    println!("logs and settings: {}", evidence.display());
                    println!("again: make chaos RUNS=1 SEED={seed}\n");
                });
            }
        }
        progress.set_message(format!("{} failed", total.failed.len()));
        progress.inc(1);
    }
}

/// Where logs of a seed are kept if it fails.
fn evidence_of(seed: u64) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("chaos").join(format!("seed-{seed}"))
}

fn kind_of(plan: &Plan) -> String {
    let guarantee = match plan.settings.guarantee {
        Guarantee::AtLeastOnce => "at_least_once",
        Guarantee::ExactlyOnce => "exactly_once",
    };
    let time = if plan.time == Time::Clock { "time by clock" } else { "time by log" };
    format!("{guarantee}, late = {:?}, {time}", plan.settings.late).to_lowercase()
}

fn report(args: &Args, total: &Total, took: Duration) {
    println!("faults injected:");
    for fault in Fault::ALL {
        println!("  {:>5}  {fault}", total.faults.get(fault).copied().unwrap_or(0));
    }
    println!("seeds by kind:");
    for (kind, count) in &total.by_kind {
        println!("  {count:>5}  {kind}");
    }
    let Tally { ticks, dead_letters, notifications, candles, updates, repeated, closed_by_clock, claims, fenced } =
        total.tally;
    println!(
        "compared: {ticks} ticks, {dead_letters} dead letters, {notifications} notifications, {candles} candles \
         and {updates} open ones ({closed_by_clock} windows closed by the clock first); {repeated} outputs were sent again, word for word"
    );
    println!("owners: {claims} claims; {fenced} calls of former owners, none of which wrote");
    let result = if total.failed.is_empty() { "ok" } else { "FAILED" };
    let ignored = args.runs - total.passed - total.failed.len() as u64;
    println!(
        "\ntest result: {result}. {} passed; {} failed; {ignored} ignored; finished in {:.0}s",
        total.passed,
        total.failed.len(),
        took.as_secs_f64()
    );
    if !total.failed.is_empty() {
        println!("failed seeds: {:?}", total.failed);
    }
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.ticks += other.ticks;
        self.dead_letters += other.dead_letters;
        self.notifications += other.notifications;
        self.candles += other.candles;
        self.updates += other.updates;
        self.repeated += other.repeated;
        self.closed_by_clock += other.closed_by_clock;
        self.claims += other.claims;
        self.fenced += other.fenced;
    }
}
