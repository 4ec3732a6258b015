//! Configuration: `tickwatch.toml`, then `TICKWATCH_…` environment variables, then flags.
//!
//! This file says what can be set and to what by default; `load` puts the layers on one another and names the
//! layer a mistake came from; `validate` holds what one setting demands of another.

mod formats;
mod load;
mod passed_through;
mod redact;
mod secret;
mod secret_files;
mod validate;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::formats::{duration, interval_list, optional_duration};
use crate::domain::Interval;

pub use load::{ConfigError, Overrides, UnknownSetting};
pub use passed_through::{PassedThrough, Scalar};
use redact::is_secret;
pub use redact::mask_url;
pub use secret::Secret;
pub use validate::host_and_port;

/// Where Redis is if nothing says otherwise.
const DEFAULT_REDIS_URL: &str = "redis://127.0.0.1:6379";

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
    /// Health, metrics and the page.
    pub http: HttpConfig,
    /// The page.
    pub dashboard: DashboardConfig,
}

/// `[redis]`. Written out, by serde or `Debug`, it holds no secret.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RedisConfig {
    /// `redis://[user:password@]host:port[/db]`, or `rediss://` with TLS: a single primary.
    #[serde(serialize_with = "redact::url")]
    pub url: String,
    /// `host:port` of the sentinels; empty: there are none, and `url` says where the primary is.
    pub sentinels: Vec<String>,
    /// The name under which the sentinels know the primary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<String>,
    /// The ACL user; absent: `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Its password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// A file that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Number of the database; absent: the one in `url`, else 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub db: Option<u32>,
    /// The ACL user of the sentinels themselves; absent: `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sentinel_username: Option<String>,
    /// Their password; absent: they ask for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sentinel_password: Option<Secret>,
    /// A file that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sentinel_password_file: Option<PathBuf>,
    /// TLS to the sentinels and to the primary they name; without sentinels, `url` says it.
    pub tls: bool,
    /// Certificates (PEM) of the authorities that are trusted, in place of the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_ca_file: Option<PathBuf>,
    /// This client's certificate (PEM), where the server asks for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert_file: Option<PathBuf>,
    /// Its key (PEM, PKCS #8).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key_file: Option<PathBuf>,
    /// How long a reply may take before the connection is given up and the partition claimed again.
    #[serde(with = "duration")]
    pub response_timeout: Duration,
}

/// `[kafka]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// librdkafka settings for every client, by their own names: how to reach and trust the brokers.
    pub client: PassedThrough,
    /// librdkafka settings for the consumer, by their own names.
    pub consumer: PassedThrough,
    /// librdkafka settings for producers, by their own names.
    pub producer: PassedThrough,
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
    /// Most bytes of a record's value; default [`InputConfig::MAX_RECORD_BYTES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_record_bytes: Option<u32>,
    /// Most ticks of one record; default [`InputConfig::MAX_RECORD_TICKS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_record_ticks: Option<u32>,
    /// How far ahead of its reference time a tick may be; default: the lateness.
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    pub max_future: Option<Duration>,
}

impl InputConfig {
    /// Most bytes of a record's value, if nothing else is said: four times what Kafka's brokers take by default.
    pub const MAX_RECORD_BYTES: u32 = 4 << 20;
    /// Most ticks of one record, if nothing else is said. A record is applied by one call, which holds Redis.
    pub const MAX_RECORD_TICKS: u32 = 20_000;
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
    /// Whether open candles are sent too, before they are final.
    pub emit: Emit,
    /// Under `emit = "updates"`: how often an open candle is sent at most.
    #[serde(with = "duration")]
    pub update_interval: Duration,
    /// Numbers in records: JSON numbers, or text for readers that hold numbers as doubles.
    pub numbers: Numbers,
}

/// `emit`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Emit {
    /// Candles whose window has closed, and revisions of them.
    Final,
    /// Open ones too, as they change.
    Updates,
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
    /// Most symbols in one batch, for the same reason: where each has few ticks, they are what takes time.
    pub max_symbols: u32,
    /// Most outputs of one batch; a batch with more is halved.
    pub max_outputs: u32,
    /// Most outputs applied but not yet delivered, a partition; then it waits.
    pub max_undelivered: u32,
    /// Most records read ahead, a partition; then it is paused.
    pub max_buffered: u32,
    /// How often an idle owner looks whether it still is one.
    #[serde(with = "duration")]
    pub heartbeat: Duration,
    /// How long a graceful stop may take to finish what is in flight; to leave the group may take as long again.
    #[serde(with = "duration")]
    pub stop_deadline: Duration,
}

/// `[http]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpConfig {
    /// Address of `/healthz`, `/readyz`, `/metrics` and the page; port 0 picks a free one.
    pub listen: SocketAddr,
}

/// `[dashboard]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DashboardConfig {
    /// Whether workers serve the page too; `tickwatch dashboard` always does.
    pub enabled: bool,
    /// Whether rules can be put and removed on the page.
    pub allow_writes: bool,
    /// Names of hosts under which the page may be called, beside addresses and `localhost`.
    pub hosts: Vec<String>,
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
            dashboard: DashboardConfig::default(),
        }
    }
}

impl Default for RedisConfig {
    fn default() -> Self {
        RedisConfig {
            url: DEFAULT_REDIS_URL.into(),
            sentinels: Vec::new(),
            master: None,
            username: None,
            password: None,
            password_file: None,
            db: None,
            sentinel_username: None,
            sentinel_password: None,
            sentinel_password_file: None,
            tls: false,
            tls_ca_file: None,
            tls_cert_file: None,
            tls_key_file: None,
            response_timeout: Duration::from_secs(5),
        }
    }
}

impl Default for KafkaConfig {
    fn default() -> Self {
        KafkaConfig {
            brokers: "127.0.0.1:9092".into(),
            group: "tickwatch".into(),
            topic: "market-updates".into(),
            processing_guarantee: Guarantee::AtLeastOnce,
            client: PassedThrough::default(),
            consumer: PassedThrough::default(),
            producer: PassedThrough::default(),
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
            emit: Emit::Final,
            update_interval: Duration::from_secs(1),
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
            max_batch: 10_000,
            max_symbols: 2_000,
            max_outputs: 10_000,
            max_undelivered: 50_000,
            max_buffered: 20_000,
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

impl Default for DashboardConfig {
    fn default() -> Self {
        DashboardConfig { enabled: true, allow_writes: false, hosts: Vec::new() }
    }
}

impl Config {
    /// Topic of dead letters.
    pub fn dead_letter_topic(&self) -> String {
        self.output.dead_letters.clone().unwrap_or_else(|| format!("{}.dlq", self.kafka.topic))
    }

    /// How often an open candle is sent at most; `None`: open ones are not sent.
    pub fn update_interval(&self) -> Option<Duration> {
        (self.output.emit == Emit::Updates).then_some(self.output.update_interval)
    }

    /// Topic of diverted late ticks.
    pub fn late_topic(&self) -> String {
        self.output.late.clone().unwrap_or_else(|| format!("{}.late", self.kafka.topic))
    }
}
