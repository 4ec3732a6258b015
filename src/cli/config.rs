//! `tickwatch config check | show | presets`.

use anyhow::{Context as _, bail};

use super::causes;
use crate::config::Config;
use crate::input::presets;
use crate::kafka::topics;
use crate::store::check::check;
use crate::store::connection::connect;
use crate::worker::supervisor::scripts_of;

/// Arguments of `config`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tickwatch config check                                 # everything that `run` would check\n  \
    tickwatch config show                                  # what is in force\n  \
    tickwatch config presets                               # formats of exchanges")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Check every setting, then that Redis and Kafka are there and fit
    #[command(after_help = "Examples:\n  \
    tickwatch config check\n  \
    tickwatch config check --offline --config tickwatch.toml # needs neither Redis nor Kafka")]
    Check {
        /// Check the settings only
        #[arg(long)]
        offline: bool,
    },
    /// Print the settings in force, as TOML, without secrets
    #[command(after_help = "Examples:\n  \
    tickwatch config show\n  \
    TICKWATCH_CANDLES__INTERVALS=1s,1h tickwatch config show")]
    Show,
    /// List the payload formats that [input] format knows
    #[command(after_help = "Examples:\n  \
    tickwatch config presets\n  \
    tickwatch config presets --json | jq -r '.[].name'")]
    Presets {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// By the time this runs, the configuration was loaded and is valid.
pub async fn run(config: Config, args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Check { offline } => check_all(&config, offline).await,
        Action::Show => show(&config),
        Action::Presets { json } => show_presets(json),
    }
}

fn show(config: &Config) -> anyhow::Result<()> {
    print!("{}", toml::to_string(config).context("cannot write the configuration as TOML")?);
    Ok(())
}

/// Checks all there is before it fails, so that one call tells everything.
async fn check_all(config: &Config, offline: bool) -> anyhow::Result<()> {
    for warning in config.warnings() {
        println!("warning: {warning}");
    }
    println!("settings: ok");
    if offline {
        return Ok(());
    }
    let (redis, kafka) = (check_redis(config).await, check_kafka(config).await);
    let mut failed = false;
    for (part, outcome) in [("redis", redis), ("kafka", kafka)] {
        match outcome {
            Ok(said) => println!("{part}: ok, {said}"),
            Err(error) => {
                failed = true;
                println!("{part}: {}", [vec![error.to_string()], causes(&error)].concat().join(": "));
            }
        }
    }
    if failed {
        bail!("not ready to run");
    }
    Ok(())
}

async fn check_redis(config: &Config) -> anyhow::Result<String> {
    let mut redis = connect(&config.redis).await?;
    for warning in check(&mut redis).await? {
        println!("warning: {warning}");
    }
    scripts_of(config).probe(&mut redis).await?;
    Ok("a single primary that evicts nothing".to_owned())
}

async fn check_kafka(config: &Config) -> anyhow::Result<String> {
    let topics = topics::required(config);
    let by_name: Vec<_> = topics.iter().map(|(name, role)| (name.as_str(), *role)).collect();
    topics::check(&config.kafka, &by_name).await?;
    Ok("all topics are there".to_owned())
}

/// The payload formats that `[input] format` knows.
fn show_presets(json: bool) -> anyhow::Result<()> {
    if json {
        let presets: Vec<_> = presets()
            .map(|preset| serde_json::json!({ "name": preset.name, "summary": preset.summary, "notes": preset.notes }))
            .collect();
        println!("{}", serde_json::to_string_pretty(&presets)?);
        return Ok(());
    }
    for preset in presets() {
        println!("{}\n  {}\n  {}", preset.name, preset.summary, preset.notes);
    }
    Ok(())
}
