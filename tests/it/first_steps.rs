//! The README's first ten minutes, line by line, in a shell beside `tickwatch demo --keep`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use tickwatch::sandbox::{Broker, Process};

use crate::harness::{Case, Needs, PROGRAM, Stage, cases, program, skip, wait_until};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Nothing; the_first_ten_minutes_go_as_the_readme_says)
}

const README: &str = include_str!("../../README.md");
const PATIENCE: Duration = Duration::from_mins(1);

/// Waits in a shell until so many owners share the two partitions. What a reader would do by looking again.
fn until_owners(number: usize) -> String {
    format!(
        "for try in $(seq 300); do \
         owners=$(tickwatch status --json | grep -o '\"owner\": \"[^\"]*\"' | sort -u | wc -l); \
         [ \"$owners\" = {number} ] && break; sleep 0.1; done; echo \"owners: $owners\""
    )
}

fn the_first_ten_minutes_go_as_the_readme_says(_: &Stage) -> anyhow::Result<()> {
    if let Some(missing) = Broker::missing() {
        return Err(skip(missing.to_string()));
    }
    let directory = tempfile::tempdir()?;
    let log = directory.path().join("demo.log");
    let mut command = program();
    command.current_dir(directory.path()).args(["demo", "--keep"]).env("TICKWATCH_HTTP__LISTEN", "127.0.0.1:0");
    let mut demo = Process::start(&command, &log)?;
    let said = || fs::read_to_string(&log).unwrap_or_default();
    let export = || said().lines().find(|line| line.trim().starts_with("export ")).map(str::to_owned);
    wait_until(PATIENCE, "the demo to be held open", || export().is_some()).with_context(said)?;

    let section = README.split("## First ten minutes").nth(1).context("the section")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let lines: Vec<&str> = section.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    ensure!(lines.len() > 5, "the section has commands: {lines:?}");
    let mut script = vec![export().context("an export line")?];
    for line in lines {
        script.push(line.to_owned());
        if line.ends_with('&') {
            script.push(until_owners(2));
        } else if line.starts_with("kill ") {
            script.push(until_owners(1));
        }
    }
    let bin = Path::new(PROGRAM).parent().context("a directory of the program")?;
    let path = std::env::var("PATH")?;
    let mut shell = Command::new("bash");
    shell.current_dir(directory.path()).args(["-c", &script.join("\n")]).stdin(Stdio::null());
    let output = shell.env("PATH", format!("{}:{path}", bin.display())).output()?;
    let [out, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let context = || format!("{out}\n{errors}\n{}", said());
    for told in [r#""note":"sell half""#, "▴ up", "owners: 2", "owners: 1", "lag"] {
        ensure!(out.contains(told), "{told} is not in\n{}", context());
    }
    let promised = section.lines().find(|line| line.ends_with(": added")).context("what is promised")?;
    ensure!(out.contains(promised), "{promised} is not in\n{}", context());

    demo.signal(Signal::INT)?;
    let mut ended = None;
    wait_until(PATIENCE, "the demo's end", || {
        ended = demo.exit_status().ok().flatten();
        ended.is_some()
    })
    .with_context(said)?;
    ensure!(ended.is_some_and(|status| status.success()), "{ended:?}: {}", said());
    Ok(())
}
