//! `tickwatch demo`: a private Redis and broker, 200 ticks through the real worker, and a look at what came out.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde_json::Value;
use tokio::sync::watch;

use super::run::stop_signal;
use super::sender::Sender;
use super::text;
use crate::config::{Config, RedisConfig};
use crate::dashboard::Dashboard;
use crate::http::{Health, HttpError, Server};
use crate::kafka::{self, outputs};
use crate::sandbox::{Broker, MockBroker, Redis};
use crate::store::connection::connect;
use crate::worker::supervisor;

/// Flags of `demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tickwatch demo                                         # 200 ticks, rules, candles; ends by itself\n  \
    tickwatch demo --keep                                  # stays up, with live ticks and the page")]
pub struct Args {
    /// Print the counts as one JSON object and nothing else
    #[arg(long)]
    json: bool,
    /// Keep it all up afterwards until Ctrl-C: live ticks, a worker, and the page to look at
    #[arg(long, conflicts_with = "json")]
    keep: bool,
}

/// Ticks of the scenario, both symbols together, and the time between two.
const TICKS: i64 = 200;
const STEP_MS: i64 = 10;
/// Time between two ticks of `--keep`: slow enough to watch.
const LIVE_STEP: Duration = Duration::from_millis(100);

/// Edge and level, each of these: symbol, operator, threshold, id.
const RULES: [(&str, &str, i64, &str); 4] = [
    ("BBCA", ">=", 9500, "alice-rise"),
    ("BBCA", "<", 9500, "bob-fall"),
    ("TLKM", ">=", 3025, "carol-high"),
    ("TLKM", "<=", 3010, "dave-low"),
];

/// A tick of the scenario: symbol, price, ms after the start.
pub fn scenario() -> impl Iterator<Item = (&'static str, i64, i64)> {
    (0..TICKS).map(|i| {
        let (turn, after) = (i / 2, i * STEP_MS);
        if i % 2 == 0 {
            ("BBCA", 9420 + 10 * triangle(turn, 16), after)
        } else {
            ("TLKM", 3100 - 5 * triangle(turn, 33), after)
        }
    })
}

/// The rules of the scenario: symbol, operator, threshold, id.
pub fn rules() -> impl Iterator<Item = (&'static str, &'static str, i64, &'static str)> {
    RULES.into_iter()
}

/// Up from 0 to `peak` and down again, over and over.
fn triangle(step: i64, peak: i64) -> i64 {
    peak - (step % (2 * peak) - peak).abs()
}

/// The broker of the demo: Kafka itself where it can run.
enum AnyBroker {
    Kafka(Broker),
    Mock(MockBroker),
}

impl AnyBroker {
    fn start() -> anyhow::Result<AnyBroker> {
        if Broker::missing().is_none() {
            return Ok(AnyBroker::Kafka(Broker::start()?));
        }
        Ok(AnyBroker::Mock(MockBroker::start()?))
    }

    fn brokers(&self) -> String {
        match self {
            AnyBroker::Kafka(broker) => broker.brokers(),
            AnyBroker::Mock(broker) => broker.brokers(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            AnyBroker::Kafka(_) => "Apache Kafka",
            AnyBroker::Mock(_) => "librdkafka's mock broker (no java, or no Kafka jars: see make install)",
        }
    }

    async fn create_topic(&self, config: &Config, name: &str, partitions: u16) -> anyhow::Result<()> {
        match self {
            AnyBroker::Kafka(_) => Ok(kafka::topics::create(&config.kafka, name, i32::from(partitions)).await?),
            AnyBroker::Mock(broker) => Ok(broker.create_topic(name, partitions)?),
        }
    }
}

/// Runs the scenario and says what happened.
pub async fn run(mut config: Config, args: Args) -> anyhow::Result<()> {
    let say = |text: &str| {
        if !args.json {
            println!("{text}");
        }
    };
    say("Starting a private Redis and a private broker …");
    let (redis, broker) = tokio::task::spawn_blocking(|| anyhow::Ok((Redis::start(&[])?, AnyBroker::start()?)))
        .await
        .context("the servers could not be started")??;
    configure(&mut config, &redis, &broker);
    say(&format!("Redis at {}, {} at {}\n", redis.url(), broker.name(), broker.brokers()));

    let topics = [
        (config.kafka.topic.clone(), 2),
        (config.output.notifications.clone(), 1),
        (config.output.candles.clone(), 1),
        (config.dead_letter_topic(), 1),
    ];
    for (topic, partitions) in &topics {
        broker.create_topic(&config, topic, *partitions).await?;
    }
    let mut connection = connect(&config.redis).await?;
    let rules = put_rules(&mut connection, &config.namespace).await?;
    if !args.json {
        print_rules(&rules);
    }
    produce(&config).await?;
    say(&format!("{TICKS} ticks sent to {}, two symbols in turn, {STEP_MS} ms apart.", config.kafka.topic));

    let summary = supervisor::run(&config, Health::starting(), true, std::future::pending()).await?;
    say(&format!("A worker ran until the end: {} ticks applied.\n", summary.ticks));

    let counted = Counted::read(&config).await?;
    if args.json {
        println!("{}", counted.json(&broker));
        return Ok(());
    }
    counted.print();
    look_around(&mut connection, &redis).await?;
    if args.keep {
        keep_up(config, &redis, &broker).await?;
    }
    Ok(())
}

/// Live ticks, a worker and the page, until Ctrl-C.
async fn keep_up(mut config: Config, redis: &Redis, broker: &AnyBroker) -> anyhow::Result<()> {
    config.candles.intervals = vec!["1s".parse()?, "1m".parse()?];
    config.dashboard.allow_writes = true; // it is a sandbox
    let any_port = SocketAddr::new(config.http.listen.ip(), 0);
    let server = match Server::bind(config.http.listen).await {
        Err(HttpError::InUse(_)) => Server::bind(any_port).await?,
        bound => bound?,
    };
    println!(
        "\nHeld open, with a worker and live ticks. See it live: http://{}/\n\
         Redis: redis-cli -u {redis}   Kafka: {brokers}   Ctrl-C ends it.\n\
         For tickwatch in another terminal:\n  \
         export TICKWATCH_REDIS__URL={redis} TICKWATCH_KAFKA__BROKERS={brokers} TICKWATCH_KAFKA__GROUP={}",
        server.address(),
        config.kafka.group,
        redis = redis.url(),
        brokers = broker.brokers(),
    );
    let dashboard = Dashboard::start(&config, "tickwatch demo");
    let (stop, stopped) = watch::channel(false);
    let until = |mut stopped: watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stopped| *stopped).await; // dropped or sent: both mean stop
    };
    let serving = tokio::spawn(server.serve(dashboard.routes(), until(stopped.clone())));
    let sender = Sender::new(&config.kafka)?;
    let sending = tokio::task::spawn_blocking(move || send_live(sender, &stopped));
    supervisor::run(&config, Health::starting(), false, stop_signal()?).await?;
    dashboard.close();
    stop.send_replace(true);
    sending.await??;
    serving.await??;
    Ok(())
}

/// The scenario's prices over and over, at the pace of the clock.
fn send_live(mut sender: Sender, stopped: &watch::Receiver<bool>) -> anyhow::Result<()> {
    for (symbol, price, _) in scenario().collect::<Vec<_>>().into_iter().cycle() {
        if *stopped.borrow() {
            break;
        }
        let ts = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
        let value = format!(r#"{{"symbol":"{symbol}","price":{price},"volume":100,"ts":{ts}}}"#);
        sender.send(Some(symbol.as_bytes()), value.as_bytes())?;
        std::thread::sleep(LIVE_STEP);
    }
    sender.finish().map(drop)
}

/// The private servers know no logins: what the configuration has of one is for others.
fn configure(config: &mut Config, redis: &Redis, broker: &AnyBroker) {
    let response_timeout = config.redis.response_timeout;
    config.redis = RedisConfig { url: redis.url(), response_timeout, ..RedisConfig::default() };
    config.kafka.client.clear();
    config.kafka.brokers = broker.brokers();
    config.kafka.group = "demo".into();
    config.candles.intervals = vec!["50ms".parse().expect("a valid interval")];
}

/// One ZADD is a rule.
async fn put_rules(
    connection: &mut redis::aio::MultiplexedConnection,
    namespace: &str,
) -> anyhow::Result<Vec<[String; 4]>> {
    let mut put = Vec::new();
    for (symbol, op, threshold, id) in RULES {
        let direction = if op.starts_with('>') { "above" } else { "below" };
        for set in ["edge".to_owned(), format!("level:{direction}")] {
            let (key, member) = (format!("{namespace}rules:{symbol}:{set}"), format!("{op} {id}"));
            redis::cmd("ZADD").arg(&key).arg(threshold).arg(&member).exec_async(connection).await?;
            put.push([key, threshold.to_string(), member, format!("{symbol} {op} {threshold}")]);
        }
    }
    Ok(put)
}

fn print_rules(rules: &[[String; 4]]) {
    println!("The rules, each one ZADD, the same four as edge and as level:");
    for [key, threshold, member, _] in rules {
        println!("  ZADD {key} {threshold} \"{member}\"");
    }
    println!();
}

async fn produce(config: &Config) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as i64;
    let start = now - now % 1_000 - TICKS * STEP_MS - 1_000;
    let mut sender = Sender::new(&config.kafka)?;
    for (symbol, price, after) in scenario() {
        let value = format!(r#"{{"symbol":"{symbol}","price":{price},"volume":100,"ts":{}}}"#, start + after);
        sender.send(Some(symbol.as_bytes()), value.as_bytes())?;
    }
    tokio::task::spawn_blocking(|| sender.finish()).await??;
    Ok(())
}

/// What is in the output topics.
struct Counted {
    notifications: Vec<Value>,
    candles: Vec<Value>,
}

impl Counted {
    async fn read(config: &Config) -> anyhow::Result<Counted> {
        let config = config.clone();
        tokio::task::spawn_blocking(move || {
            let parsed = |topic: &str| -> anyhow::Result<Vec<Value>> {
                let records = outputs::read_to_end(&config.kafka, topic)?;
                records
                    .iter()
                    .map(|r| Ok(serde_json::from_slice(r.value.as_deref().unwrap_or_default())?))
                    .collect()
            };
            let notifications = parsed(&config.output.notifications)?;
            Ok(Counted { notifications, candles: parsed(&config.output.candles)? })
        })
        .await?
    }

    fn with_trigger(&self, trigger: &str) -> usize {
        self.notifications.iter().filter(|notification| notification["trigger"] == trigger).count()
    }

    fn json(&self, broker: &AnyBroker) -> Value {
        serde_json::json!({
            "ticks": TICKS,
            "edge": self.with_trigger("edge"),
            "level": self.with_trigger("level"),
            "candles": self.candles.len(),
            "broker": broker.name(),
        })
    }

    fn print(&self) {
        println!("The first edge notifications (topic notifications):");
        for notification in self.notifications.iter().filter(|n| n["trigger"] == "edge").take(3) {
            println!("  {notification}");
        }
        println!("\nCandles of 50 ms (topic candles), the first of each symbol:");
        let mut table = text::table(&["symbol", "start", "open", "high", "low", "close", "volume", "ticks"]);
        let mut by_symbol: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
        for candle in &self.candles {
            by_symbol.entry(plain(&candle["symbol"])).or_default().push(candle);
        }
        for candles in by_symbol.values() {
            for candle in candles.iter().take(3) {
                let fields = ["symbol", "start", "open", "high", "low", "close", "volume", "count"];
                table.add_row(fields.map(|field| text::number(plain(&candle[field]))));
            }
        }
        println!("{table}");
        for (symbol, candles) in &by_symbol {
            println!("  {symbol:<6} {}", picture(candles));
        }
        println!(
            "\nCounted in the output topics: {} edge notifications, {} level notifications, {} candles.",
            self.with_trigger("edge"),
            self.with_trigger("level"),
            self.candles.len()
        );
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// Closing prices as a line of blocks.
fn picture(candles: &[&Value]) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let closes: Vec<f64> = candles.iter().filter_map(|candle| candle["close"].as_f64()).collect();
    let low = closes.iter().copied().fold(f64::INFINITY, f64::min);
    let high = closes.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let step = (high - low) / 7.0;
    closes
        .iter()
        .map(|close| BLOCKS[if step > 0.0 { ((close - low) / step).round() as usize } else { 0 }])
        .collect()
}

/// The commands with which to look around, and what they answer.
async fn look_around(connection: &mut redis::aio::MultiplexedConnection, redis: &Redis) -> anyhow::Result<()> {
    println!("\nLook around in Redis (tickwatch demo --keep holds it open at port {}):", redis.port());
    for line in [
        "HGETALL tw:last:BBCA",
        "ZRANGE tw:rules:BBCA:edge 0 -1 WITHSCORES",
        "SMEMBERS tw:symbols",
        "HMGET tw:source:market-updates/0 owner epoch next_offset watermark ticks",
        "XLEN tw:outbox:market-updates/0",
    ] {
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().unwrap_or_default());
        for word in words {
            command.arg(word);
        }
        let answer: redis::Value = command.query_async(connection).await?;
        println!("  redis-cli {line}\n    {}", words_of(&answer));
    }
    Ok(())
}

fn words_of(value: &redis::Value) -> String {
    match value {
        redis::Value::Array(items) => {
            let mut text = String::new();
            for item in items {
                write!(text, "{}  ", words_of(item)).unwrap_or_default();
            }
            text.trim_end().to_owned()
        }
        redis::Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        redis::Value::Int(number) => number.to_string(),
        redis::Value::Nil => "(nil)".into(),
        other => format!("{other:?}"),
    }
}
