//! `tickwatch completions`: commands and flags, as a script for the shell.

use anyhow::Result;
use clap::CommandFactory as _;
use clap_complete::{Shell, generate};

use super::Cli;
use super::text::print;

/// Print what a shell completes commands and flags with
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tickwatch completions bash > /etc/bash_completion.d/tickwatch\n  \
    tickwatch completions zsh > /usr/local/share/zsh/site-functions/_tickwatch\n  \
    tickwatch completions fish > ~/.config/fish/completions/tickwatch.fish\n\n\
    A new shell knows them.")]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub(super) fn run(args: Args) -> Result<()> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "tickwatch", &mut script);
    print(&String::from_utf8(script)?)
}
