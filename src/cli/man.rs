//! `tickwatch man`: the help of every command as manual pages.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::Cli;
use super::text::print;

/// Print the manual page, or write one for every command
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tickwatch man | man -l -                               # read it\n  \
    tickwatch man --dir /usr/local/share/man/man1          # tickwatch.1, tickwatch-run.1, …")]
pub(super) struct Args {
    /// Write a page for every command into this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the page, or writes all of them.
pub(super) fn run(args: Args) -> Result<()> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    match args.dir {
        Some(dir) => write_all(&root, &dir),
        None => print(&String::from_utf8(page(root)?)?),
    }
}

/// Writes the page of a command and those of the commands below it.
fn write_all(command: &clap::Command, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for below in command.get_subcommands() {
        write_all(below, dir)?;
    }
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let file = dir.join(format!("{name}.1"));
    fs::write(&file, page(command.clone())?).with_context(|| format!("cannot write {}", file.display()))
}

/// What `--help` says, with the examples as they stand there: as running text they could not be copied.
fn page(command: clap::Command) -> Result<Vec<u8>> {
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let has_commands = command.has_subcommands();
    let man = Man::new(command);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_commands {
        man.render_subcommands_section(&mut page)?;
    }
    let mut section = Roff::new();
    section.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in examples.lines().filter(|line| *line != "Examples:") {
        section.text([roman(line)]);
    }
    section.control("fi", []).to_writer(&mut page)?;
    man.render_version_section(&mut page)?;
    Ok(page)
}
