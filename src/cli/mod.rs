//! The command line: flags that every subcommand has, one file a subcommand, exit codes.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.

pub mod candles;
pub mod completions;
pub mod config;
pub mod dashboard;
pub mod demo;
pub mod generate;
pub mod man;
pub mod produce;
pub mod rule;
pub mod run;
mod sender;
pub mod status;
pub mod tail;
mod text;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{Config, ConfigError, Overrides};
use crate::input::{Decoder, InputError};
use crate::kafka::{self, KafkaSetupError};
use crate::telemetry::{self, LogFormat, TelemetryError};

/// Exit code of wrong usage and wrong configuration; clap's own too.
const USAGE: u8 = 2;

/// Price alerts and candles on Kafka and Redis.
#[derive(Debug, Parser)]
#[command(name = "tickwatch", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Examples:\n  \
    tickwatch demo                                         # see it work, on servers of its own\n  \
    tickwatch config check                                 # settings, Redis, Kafka, topics\n  \
    tickwatch run                                          # a worker; start as many as you like\n  \
    tickwatch rule put BBCA edge '>=' 9500 --id alice-1\n  \
    tickwatch tail notifications\n  \
    tickwatch candles BBCA 1m --plot\n  \
    tickwatch status\n\n\
    `tickwatch COMMAND --help` has examples of each.")]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Flags of every subcommand. They win over the environment (TICKWATCH_...) and the file.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Configuration")]
struct Global {
    /// Configuration file [default: ./tickwatch.toml if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Prefix of every Redis key
    #[arg(long, global = true, value_name = "PREFIX")]
    namespace: Option<String>,
    /// Redis, redis://[user:password@]host:port[/db]
    #[arg(long, global = true, value_name = "URL")]
    redis: Option<String>,
    /// Kafka brokers, host:port, several separated by commas
    #[arg(long, global = true, value_name = "LIST")]
    brokers: Option<String>,
    /// Consumer group
    #[arg(long, global = true, value_name = "NAME")]
    group: Option<String>,
    /// Source topic
    #[arg(long, global = true, value_name = "NAME")]
    topic: Option<String>,
    /// How log lines are written, on standard error
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    log_format: LogFormat,
    /// Log more; twice: everything. RUST_LOG wins over it
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a worker: ticks in, notifications and candles out
    Run(run::Args),
    /// Serve the live page: the whole group, every symbol, without being a worker
    Dashboard(dashboard::Args),
    /// Show it all at work on a private Redis and a private Kafka
    Demo(demo::Args),
    /// Send the lines of a file to the source topic
    Produce(produce::Args),
    /// Send made-up ticks to the source topic, as load
    Generate(generate::Args),
    /// Put, remove, list and carry over rules
    Rule(rule::Args),
    /// List the candles of a symbol
    Candles(candles::Args),
    /// Follow the notifications or the candles as they are sent
    Tail(tail::Args),
    /// Show who owns each partition and what holds its time back
    Status(status::Args),
    /// Check or show the configuration
    Config(config::Args),
    /// Print what a shell completes commands and flags with
    Completions(completions::Args),
    /// Print the manual page, or write one for every command
    Man(man::Args),
}

/// A mistake in how a command was called that clap cannot see, with what to write instead.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Runs the subcommand to its end.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    let Global { config, namespace, redis, brokers, group, topic, log_format, verbose } = cli.global;
    telemetry::start_log(log_format, verbose)?;
    let overrides = Overrides { namespace, redis, brokers, group, topic };
    let load = || load(config.as_deref(), &overrides);
    match cli.command {
        Command::Run(args) => run::run(load()?, args).await,
        Command::Dashboard(args) => dashboard::run(load()?, args).await,
        Command::Demo(args) => demo::run(load()?, args).await,
        Command::Produce(args) => produce::run(load()?, args).await,
        Command::Generate(args) => generate::run(load()?, args).await,
        Command::Rule(args) => rule::run(load()?, args).await,
        Command::Candles(args) => candles::run(load()?, args).await,
        Command::Tail(args) => tail::run(load()?, args).await,
        Command::Status(args) => status::run(load()?, args).await,
        Command::Config(args) => config::run(load()?, args).await,
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
    }
}

/// Loads the configuration and has it judged by those who know: librdkafka its own settings, the input its mapping.
fn load(file: Option<&Path>, overrides: &Overrides) -> anyhow::Result<Config> {
    let config = Config::load(file, overrides)?;
    kafka::client::check(&config.kafka)?;
    Decoder::new(&config.input)?;
    Ok(config)
}

/// What is printed of an error: every line of its message, then its causes, one line each.
pub fn describe(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for line in error.to_string().lines() {
        writeln!(text, "error: {line}").unwrap_or_default();
    }
    for cause in causes(error) {
        writeln!(text, "  caused by: {cause}").unwrap_or_default();
    }
    text
}

/// The causes behind an error's message, one line each; what the line before says already is left out.
fn causes(error: &anyhow::Error) -> Vec<String> {
    let mut said = error.to_string();
    let mut causes = Vec::new();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string().replace('\n', " ");
        if !said.contains(&cause) {
            causes.push(cause.clone());
        }
        said = cause;
    }
    causes
}

/// 2 for usage and configuration, 1 for any other failure.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    if is_usage(error) { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
}

fn is_usage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<ConfigError>()
            || cause.is::<KafkaSetupError>()
            || cause.is::<InputError>()
            || cause.is::<UsageError>()
            || matches!(cause.downcast_ref(), Some(TelemetryError::Filter(_)))
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    /// A command line in words, as a shell reads it.
    fn words(line: &str) -> Vec<String> {
        let in_quotes = line.split('\'').enumerate();
        let parts = in_quotes.flat_map(|(number, part)| match number % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![format!("'{part}")],
        });
        parts.take_while(|word| word != "#").collect()
    }

    /// The examples of a help, what is ours of each.
    fn examples(help: &str) -> Vec<Vec<String>> {
        let ours = |line: &str| {
            let words = words(line);
            let parts = words.split(|word| word == "|" || word == ">").map(|part| {
                part.iter()
                    .skip_while(|word| *word != "tickwatch")
                    .map(|word| word.trim_start_matches('\'').to_owned())
            });
            parts.map(Iterator::collect).filter(|part: &Vec<String>| !part.is_empty()).collect::<Vec<_>>()
        };
        let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
        lines.take_while(|line| line.starts_with("  ")).flat_map(ours).collect()
    }

    fn all_commands(command: &clap::Command) -> Vec<&clap::Command> {
        let below = command.get_subcommands().filter(|below| below.get_name() != "help").flat_map(all_commands);
        std::iter::once(command).chain(below).collect()
    }

    #[test]
    fn every_command_has_examples_and_understands_them() {
        let mut root = Cli::command();
        root.build();
        for command in all_commands(&root) {
            let name = command.get_display_name().unwrap_or_default();
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples = examples(&help);
            assert!(!examples.is_empty(), "{name} has no examples");
            for example in examples {
                let understood = Cli::try_parse_from(&example);
                assert!(understood.is_ok(), "{name}: {example:?}: {}", understood.unwrap_err());
            }
        }
    }

    #[test]
    fn an_error_is_told_with_its_causes_one_line_each() {
        let error = Err::<(), _>(std::io::Error::other("disk\nfull")).context("cannot save").unwrap_err();
        assert_eq!(describe(&error), "error: cannot save\n  caused by: disk full\n");
        let twice = anyhow::anyhow!("refused").context("refused (os error 111)").context("cannot connect");
        assert_eq!(describe(&twice), "error: cannot connect\n  caused by: refused (os error 111)\n");
        let error = anyhow::Error::from(ConfigError::Invalid(vec!["one".into(), "two".into()]));
        assert_eq!(describe(&error), "error: one\nerror: two\n");
    }

    #[test]
    fn configuration_errors_are_usage_even_with_context_around_them() {
        let invalid = || ConfigError::Invalid(vec!["one".into()]);
        assert!(is_usage(&invalid().into()));
        assert!(is_usage(&Err::<(), _>(invalid()).context("while starting").unwrap_err()));
        assert!(!is_usage(&anyhow::anyhow!("Redis is away")));
    }
}
