//! The integration tests: one binary, one Redis and one Kafka broker for all of them.
//!
//! A new module is one line in [`MODULES`]. `cargo test --test it NAME` runs what holds NAME; servers start only
//! if a selected test needs them, and end with this process. What a machine lacks is a skip with its reason.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test that panics fails, which is what it should do

mod compose;
mod harness;
mod operations;
mod rules;
mod sandbox;
mod simulation;
mod wrong_at_claim;

use std::process::ExitCode;

use harness::Module;

/// Every test of this binary.
const MODULES: &[Module] = &[
    Module::Cases(compose::cases),
    Module::Cases(rules::cases),
    Module::Cases(sandbox::cases),
    Module::Cases(simulation::cases),
    Module::Cases(operations::cases),
    Module::Cases(wrong_at_claim::cases),
];

fn main() -> ExitCode {
    if let Some(role) = std::env::var_os(sandbox::ROLE_VARIABLE) {
        return sandbox::play(&role);
    }
    harness::run(MODULES)
}
