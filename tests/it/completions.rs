//! What is installed beside the program: completions that their shells take, and manual pages of every command.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::ensure;

use crate::harness::{Case, Needs, Stage, cases, program, skip};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Nothing;
        bash_completes_commands_flags_and_values,
        zsh_reads_its_completions,
        fish_completes_commands,
        every_command_has_a_manual_page,
        a_broken_configuration_stops_neither,
    )
}

fn completions(shell: &str, directory: &Path) -> anyhow::Result<String> {
    let output = program().args(["completions", shell]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file = directory.join(format!("tickwatch.{shell}"));
    fs::write(&file, output.stdout)?;
    Ok(file.to_string_lossy().into_owned())
}

/// What the shell prints when it runs a script.
fn said(shell: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(shell);
    command.args(arguments).stdin(Stdio::null());
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(skip(format!("{shell} is not installed")));
        }
        output => output?,
    };
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success() && errors.is_empty(), "{}: {errors}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn bash_completes_commands_flags_and_values(_: &Stage) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let file = completions("bash", directory.path())?;
    let complete = |words: &str| {
        let last = words.split(' ').count() - 1;
        let script = format!(
            "source '{file}'; COMP_WORDS=({words}); COMP_CWORD={last}; cur=${{COMP_WORDS[{last}]}}; \
             prev=${{COMP_WORDS[{last}-1]}}; _tickwatch tickwatch \"$cur\" \"$prev\"; echo ${{COMPREPLY[@]}}"
        );
        said("bash", &["--norc", "-c", &script])
    };
    assert_eq!(complete("tickwatch ta")?, "tail\n");
    assert_eq!(complete("tickwatch candles --pl")?, "--plot\n");
    assert_eq!(complete("tickwatch rule exp")?, "export\n");
    assert_eq!(complete("tickwatch tail no")?, "notifications\n");
    Ok(())
}

fn zsh_reads_its_completions(_: &Stage) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let file = completions("zsh", directory.path())?;
    let script = format!("autoload -U compinit; compinit -D; source '{file}'; print $_comps[tickwatch]");
    assert_eq!(said("zsh", &["-f", "-c", &script])?, "_tickwatch\n");
    Ok(())
}

fn fish_completes_commands(_: &Stage) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let file = completions("fish", directory.path())?;
    let script = format!("source '{file}'; complete --do-complete 'tickwatch ta'");
    let completed = said("fish", &["--no-config", "-c", &script])?;
    ensure!(completed.starts_with("tail\t"), "{completed:?}");
    Ok(())
}

fn every_command_has_a_manual_page(_: &Stage) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let output = program().arg("man").arg("--dir").arg(directory.path()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = |name: &str| fs::read_to_string(directory.path().join(name));
    let root = page("tickwatch.1")?;
    for command in ["run", "tail", "rule", "candles", "status", "completions", "man"] {
        ensure!(root.contains(&format!("tickwatch\\-{command}(1)")), "{command} is not in\n{root}");
        ensure!(page(&format!("tickwatch-{command}.1"))?.contains("EXAMPLES"), "{command}");
    }
    let put = page("tickwatch-rule-put.1")?;
    let examples = put.split(".nf\n").nth(1).and_then(|rest| rest.split(".fi\n").next()).unwrap_or_default();
    ensure!(examples.lines().all(|line| !line.starts_with('.')), "{examples}");
    ensure!(examples.contains("tickwatch rule put BBCA level"), "{put}");
    let printed = program().arg("man").output()?;
    assert_eq!(String::from_utf8(printed.stdout)?, root);
    Ok(())
}

fn a_broken_configuration_stops_neither(_: &Stage) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    fs::write(directory.path().join("tickwatch.toml"), "namespase = 1")?;
    for arguments in [&["completions", "bash"][..], &["man"]] {
        let status = program().current_dir(directory.path()).args(arguments).stdout(Stdio::null()).status()?;
        ensure!(status.success(), "{arguments:?}");
    }
    Ok(())
}
