//! `tickwatch config check | show | presets`.

use std::time::Duration;

use anyhow::{Context as _, bail};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use crate::config::{Config, KafkaConfig};
use crate::store::check::check;
use crate::store::pool::connect;

/// How long Kafka may take to answer.
const KAFKA_ANSWER: Duration = Duration::from_secs(10);

/// Arguments of `config`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Check every setting, then that Redis and Kafka are there and fit
    Check {
        /// Check the settings only
        #[arg(long)]
        offline: bool,
    },
    /// Print the settings in force, as TOML, without secrets
    Show,
}

/// By the time this runs, the configuration was loaded and is valid.
pub async fn run(config: Config, args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Check { offline } => check_all(&config, offline).await,
        Action::Show => show(&config),
    }
}

fn show(config: &Config) -> anyhow::Result<()> {
    print!("{}", toml::to_string(&config.redacted()).context("cannot write the configuration as TOML")?);
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
    let (redis, kafka) = (check_redis(config).await, check_kafka(&config.kafka).await);
    let mut failed = false;
    for (part, outcome) in [("redis", redis), ("kafka", kafka)] {
        match outcome {
            Ok(said) => println!("{part}: ok, {said}"),
            Err(error) => {
                failed = true;
                println!("{part}: {error:#}");
            }
        }
    }
    if failed {
        bail!("not ready to run");
    }
    Ok(())
}

async fn check_redis(config: &Config) -> anyhow::Result<String> {
    let warnings = check(&mut connect(&config.redis).await?).await?;
    for warning in &warnings {
        println!("warning: {warning}");
    }
    Ok("a single primary that evicts nothing".to_owned())
}

async fn check_kafka(kafka: &KafkaConfig) -> anyhow::Result<String> {
    let (kafka, topic) = (kafka.clone(), kafka.topic.clone());
    let partitions = tokio::task::spawn_blocking(move || partitions(&kafka)).await??;
    if partitions == 0 {
        bail!("topic {topic} does not exist; create it, or set [kafka] topic");
    }
    Ok(format!("topic {topic} has {partitions} partitions"))
}

fn partitions(kafka: &KafkaConfig) -> anyhow::Result<usize> {
    let mut client = ClientConfig::new();
    for (name, value) in &kafka.consumer {
        client.set(name, &value.0);
    }
    client.set("bootstrap.servers", &kafka.brokers).set("allow.auto.create.topics", "false");
    let client: BaseConsumer = client.create().context("cannot make a Kafka client; check [kafka.consumer]")?;
    let metadata = client
        .fetch_metadata(Some(&kafka.topic), KAFKA_ANSWER)
        .with_context(|| format!("no answer from Kafka at {}; check [kafka] brokers", kafka.brokers))?;
    Ok(metadata.topics().first().map_or(0, |topic| topic.partitions().len()))
}
