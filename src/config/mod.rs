//! Configuration: `tickwatch.toml`, then `TICKWATCH_…` environment variables, then flags.
//!
//! This file says what can be set and to what by default; `load` puts the layers on one another and names the
//! layer a mistake came from; `validate` holds what one setting demands of another.

mod formats;
mod load;
mod redact;
mod validate;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use self::formats::{duration, interval_list, optional_duration};
use crate::domain::Interval;

pub use load::{ConfigError, Overrides, UnknownSetting};
pub use redact::mask_url;

/// Everything that can be set. Each field's default is the value in the annotated `tickwatch.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Prefix of every Redis key.
    pub namespace: String,
    /// Where the state is.
    pub redis: RedisConfig,
    /// Where ticks come from and outputs go to.
    pub kafka: KafkaConfig,
    /// How a record's value is read.
    pub input: InputConfig,
    /// Which candles, and what happens to late ticks.
    pub candles: CandlesConfig,
    /// Bounds on rules.
    pub rules: RulesConfig,
    /// Output topics and the form of numbers.
    pub output: OutputConfig,
    /// What to do when something is missing at takeover.
    pub recovery: RecoveryConfig,
    /// Batches and bounds of a worker.
    pub worker: WorkerConfig,
    /// Health and metrics.
    pub http: HttpConfig,
}

/// `[redis]`
#[derive(Clone, PartialEq, Serialize, Deserialize)] // Debug is by hand: it holds secrets
#[serde(deny_unknown_fields, default)]
pub struct RedisConfig {
    /// `redis://[user:password@]host:port[/db]`
    pub url: String,
    /// How long a reply may take before the connection is given up and the partition claimed again.
    #[serde(with = "duration")]
    pub response_timeout: Duration,
}

/// `[kafka]`
#[derive(Clone, PartialEq, Serialize, Deserialize)] // Debug is by hand: it holds secrets
#[serde(deny_unknown_fields, default)]
pub struct KafkaConfig {
    /// `host:port`, several separated by commas.
    pub brokers: String,
    /// Consumer group; also part of transactional ids.
    pub group: String,
    /// The source topic.
    pub topic: String,
    /// At least once, or exactly once.
    pub processing_guarantee: Guarantee,
    /// librdkafka settings for the consumer, by their own names.
    pub consumer: BTreeMap<String, Scalar>,
    /// librdkafka settings for producers, by their own names.
    pub producer: BTreeMap<String, Scalar>,
}

/// `processing_guarantee`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// Nothing is lost; after a fault an output may be sent again with the same id.
    AtLeastOnce,
    /// Outputs and the source offset are one Kafka transaction.
    ExactlyOnce,
}

/// A TOML scalar passed through to librdkafka as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Scalar(pub String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Any {
            Bool(bool),
            Integer(i64),
            Float(f64),
            Text(String),
        }
        Ok(Scalar(match Any::deserialize(d)? {
            Any::Bool(v) => v.to_string(),
            Any::Integer(v) => v.to_string(),
            Any::Float(v) => v.to_string(),
            Any::Text(v) => v,
        }))
    }
}

/// `[input]`: a preset, or JSON pointers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InputConfig {
    /// A named preset; the pointers below then override its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// JSON pointer to the array of trades in a record; absent: the record is one trade.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<String>,
    /// JSON pointer to the symbol, within a trade (`/symbol`), or from the record's root (`^/arg/instId`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
    /// JSON pointer to the price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<String>,
    /// JSON pointer to the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Whether a trade without volume is bad; default: it counts as 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_required: Option<bool>,
    /// JSON pointer to the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ts: Option<String>,
    /// Unit of the time; default ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ts_unit: Option<TsUnit>,
    /// What a price of zero means; default reject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_zero: Option<PriceZero>,
    /// How far ahead of its reference time a tick may be; default: the lateness.
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    pub max_future: Option<Duration>,
}

/// Unit of an input timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TsUnit {
    /// Seconds, with decimals if sent.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
    /// RFC 3339 text.
    Rfc3339,
}

/// `price_zero`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PriceZero {
    /// A bad record.
    Reject,
    /// A price like any other.
    Accept,
}

/// `[candles]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CandlesConfig {
    /// Intervals, such as `1s`, `1m`, `1w`. May be empty: alerts only.
    #[serde(with = "interval_list")]
    pub intervals: Vec<Interval>,
    /// How long a window stays open behind the newest tick.
    #[serde(with = "duration")]
    pub lateness: Duration,
    /// What happens to a tick whose window has closed.
    pub late: LatePolicy,
    /// How far back `revise` reaches, in event time; closed candles expire after twice this.
    #[serde(with = "duration")]
    pub keep: Duration,
    /// Least time that time passes later than the clock on a quiet partition.
    #[serde(with = "duration")]
    pub idle_grace: Duration,
}

/// `late`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LatePolicy {
    /// Counted, otherwise ignored by candles.
    Drop,
    /// Sent to `<topic>.late`.
    Divert,
    /// The closed candle is recomputed and sent again.
    Revise,
}

/// `[rules]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RulesConfig {
    /// Most rules one tick may fire; the rest are refused, counted and logged.
    pub max_matches: u32,
}

/// `[output]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputConfig {
    /// Topic of notifications.
    pub notifications: String,
    /// Topic of candles.
    pub candles: String,
    /// Topic of dead letters; default `<topic>.dlq`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<String>,
    /// Topic of diverted late ticks; default `<topic>.late`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late: Option<String>,
    /// Numbers in records: JSON numbers, or text for readers that hold numbers as doubles.
    pub numbers: Numbers,
}

/// `numbers`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Numbers {
    /// `9505.5`
    Number,
    /// `"9505.5"`
    String,
}

/// `[recovery]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecoveryConfig {
    /// A committed offset, but no state in Redis.
    pub on_state_loss: OnStateLoss,
    /// Rebuild although there is no rule in Redis either.
    pub rebuild_without_rules: bool,
    /// State in Redis, but no committed offset.
    pub on_offsets_lost: OnOffsetsLost,
    /// The log starts after the position.
    pub on_gap: OnGap,
    /// The position is beyond the log's end, or the last applied record is another.
    pub on_truncation: OnTruncation,
    /// A record that cannot be decoded.
    pub bad_records: BadRecords,
}

/// `on_state_loss`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStateLoss {
    /// Stop the partition.
    Stop,
    /// Read the retained log again, muted up to the delivered position.
    Rebuild,
    /// Go on from the committed offset with empty state.
    Resume,
}

/// `on_offsets_lost`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnOffsetsLost {
    /// Stop the partition.
    Stop,
    /// Go on from the state; the last outputs may be sent again.
    Resume,
}

/// `on_gap`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnGap {
    /// Stop the partition.
    Stop,
    /// Go on from the log's start; the records between are lost.
    Continue,
}

/// `on_truncation`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTruncation {
    /// Stop the partition.
    Stop,
    /// Start over at the log's start, with a new generation in notification ids.
    Reset,
}

/// `bad_records`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadRecords {
    /// To the dead-letter topic; its neighbours go on.
    DeadLetter,
    /// Stop the partition there.
    Block,
}

/// `[worker]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerConfig {
    /// Most ticks in one batch: bounds how long one script holds Redis.
    pub max_batch: u32,
    /// Most outputs of one batch; a batch with more is halved.
    pub max_outputs: u32,
    /// Most outputs applied but not yet delivered, a partition; then it waits.
    pub max_undelivered: u32,
    /// Most records read ahead, a partition; then it is paused.
    pub max_buffered: u32,
    /// How often an idle owner looks whether it still is one.
    #[serde(with = "duration")]
    pub heartbeat: Duration,
    /// How long a graceful stop may take to finish what is in flight.
    #[serde(with = "duration")]
    pub stop_deadline: Duration,
}

/// `[http]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpConfig {
    /// Address of `/healthz`, `/readyz` and `/metrics`; port 0 picks a free one.
    pub listen: SocketAddr,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            namespace: "tw:".into(),
            redis: RedisConfig::default(),
            kafka: KafkaConfig::default(),
            input: InputConfig::default(),
            candles: CandlesConfig::default(),
            rules: RulesConfig::default(),
            output: OutputConfig::default(),
            recovery: RecoveryConfig::default(),
            worker: WorkerConfig::default(),
            http: HttpConfig::default(),
        }
    }
}

impl Default for RedisConfig {
    fn default() -> Self {
        RedisConfig { url: "redis://127.0.0.1:6379".into(), response_timeout: Duration::from_secs(5) }
    }
}

impl Default for KafkaConfig {
    fn default() -> Self {
        KafkaConfig {
            brokers: "127.0.0.1:9092".into(),
            group: "tickwatch".into(),
            topic: "market-updates".into(),
            processing_guarantee: Guarantee::AtLeastOnce,
            consumer: BTreeMap::new(),
            producer: BTreeMap::new(),
        }
    }
}

impl Default for CandlesConfig {
    fn default() -> Self {
        #[allow(clippy::expect_used)] // both are literals that parse
        let [second, minute] = ["1s", "1m"].map(|text| text.parse().expect("a valid interval"));
        CandlesConfig {
            intervals: vec![second, minute],
            lateness: Duration::from_secs(2),
            late: LatePolicy::Drop,
            keep: Duration::from_hours(24),
            idle_grace: Duration::from_millis(500),
        }
    }
}

impl Default for RulesConfig {
    fn default() -> Self {
        RulesConfig { max_matches: 10_000 }
    }
}

impl Default for OutputConfig {
    fn default() -> Self {
        OutputConfig {
            notifications: "notifications".into(),
            candles: "candles".into(),
            dead_letters: None,
            late: None,
            numbers: Numbers::Number,
        }
    }
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        RecoveryConfig {
            on_state_loss: OnStateLoss::Stop,
            rebuild_without_rules: false,
            on_offsets_lost: OnOffsetsLost::Stop,
            on_gap: OnGap::Stop,
            on_truncation: OnTruncation::Stop,
            bad_records: BadRecords::DeadLetter,
        }
    }
}

impl Default for WorkerConfig {
    fn default() -> Self {
        WorkerConfig {
            max_batch: 20_000,
            max_outputs: 10_000,
            max_undelivered: 50_000,
            max_buffered: 50_000,
            heartbeat: Duration::from_secs(1),
            stop_deadline: Duration::from_secs(5),
        }
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        HttpConfig { listen: SocketAddr::from(([127, 0, 0, 1], 8080)) }
    }
}

impl Config {
    /// Topic of dead letters.
    pub fn dead_letter_topic(&self) -> String {
        self.output.dead_letters.clone().unwrap_or_else(|| format!("{}.dlq", self.kafka.topic))
    }

    /// Topic of diverted late ticks.
    pub fn late_topic(&self) -> String {
        self.output.late.clone().unwrap_or_else(|| format!("{}.late", self.kafka.topic))
    }
}
