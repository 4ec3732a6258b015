//! The integration tests: one binary, one Redis and one Kafka broker for all of them.
//!
//! A new module is one line in [`MODULES`]. `cargo test --features failpoints --test it NAME` runs what holds NAME;
//! servers start only if a selected test needs them, and end with this process. What a machine or the build lacks is a
//! skip with its reason.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test that panics fails, which is what it should do
#![allow(clippy::unnecessary_wraps)] // every case has the same type, whether it uses `?` or not

#[path = "../common/mod.rs"]
mod common;

mod alerts;
mod bounds;
mod browser;
mod completions;
mod compose;
mod corpus;
mod dashboard;
mod deaths;
mod end_to_end;
mod exactly_once;
mod exchanges;
mod first_steps;
mod formats;
mod harness;
mod input;
mod kafka;
mod kafka_access;
mod latency;
mod listings;
mod live_rules;
mod market;
mod operations;
mod ops_files;
mod oracle;
mod redis_access;
mod reports;
mod rules;
mod sandbox;
mod scene;
mod scripts;
mod secrets;
mod sentinel;
mod simulation;
mod tail;
mod takeover;
mod time;
mod updates;
mod workers;
mod wrong_at_claim;

use std::process::ExitCode;

use harness::Module;

/// Every test of this binary.
const MODULES: &[Module] = &[
    Module::Cases(bounds::cases),
    Module::Cases(browser::cases),
    Module::Cases(completions::cases),
    Module::Cases(compose::cases),
    Module::Cases(corpus::cases),
    Module::Cases(dashboard::cases),
    Module::Cases(deaths::cases),
    Module::Cases(end_to_end::cases),
    Module::Cases(exactly_once::cases),
    Module::Cases(exchanges::cases),
    Module::Cases(first_steps::cases),
    Module::Trials(formats::trials),
    Module::Cases(input::cases),
    Module::KafkaTrials(kafka::trials),
    Module::Cases(kafka_access::cases),
    Module::Cases(latency::cases),
    Module::Cases(listings::cases),
    Module::Cases(live_rules::cases),
    Module::Cases(operations::cases),
    Module::Cases(ops_files::cases),
    Module::Cases(oracle::cases),
    Module::Cases(redis_access::cases),
    Module::Cases(reports::cases),
    Module::Cases(rules::cases),
    Module::Cases(sandbox::cases),
    Module::Cases(scripts::cases),
    Module::Cases(secrets::cases),
    Module::Cases(sentinel::cases),
    Module::Cases(simulation::cases),
    Module::Cases(tail::cases),
    Module::Cases(takeover::cases),
    Module::Cases(time::cases),
    Module::Cases(updates::cases),
    Module::Cases(workers::cases),
    Module::Cases(wrong_at_claim::cases),
];

fn main() -> ExitCode {
    if let Some(role) = std::env::var_os(sandbox::ROLE_VARIABLE) {
        return sandbox::play(&role);
    }
    harness::run(MODULES)
}
