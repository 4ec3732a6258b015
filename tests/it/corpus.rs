//! The seeds of the fuzz targets, and what fuzzing made of them, hold what the targets demand.

#[path = "../../fuzz/properties.rs"]
mod properties;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};

use crate::harness::{Case, Needs, Stage, cases};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Nothing; every_seed_holds_what_its_target_demands)
}

/// Panics where the bytes show a fault.
type Property = fn(&[u8]);

const TARGETS: [(&str, Property); 7] = [
    ("commits", properties::commits),
    ("decimals", properties::decimals),
    ("decode", properties::decode),
    ("intervals", properties::intervals),
    ("replies", properties::replies),
    ("rules", properties::rules),
    ("symbols", properties::symbols),
];

fn every_seed_holds_what_its_target_demands(_: &Stage) -> anyhow::Result<()> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let mut names: Vec<_> = fs::read_dir(fuzz.join("seeds"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<anyhow::Result<_>>()?;
    names.sort();
    ensure!(names == TARGETS.map(|(name, _)| name), "{names:?}");
    for (target, holds) in TARGETS {
        let mut seeds = 0;
        for entry in fs::read_dir(fuzz.join("seeds").join(target))? {
            let path = entry?.path();
            holds(&fs::read(&path).with_context(|| path.display().to_string())?);
            seeds += 1;
        }
        ensure!(seeds > 0, "{target} has no seeds");
    }
    Ok(())
}
