//! The stages of a tick's way to Redis, each by itself on the same ticks.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tickwatch::config::{Config, InputConfig, RedisConfig};
use tickwatch::domain::{Chunk, Offset, Position, SourcePartition, Watermark};
use tickwatch::input::{ChunkBuilder, Decoder, RawRecord};
use tickwatch::store::pack::Packer;
use tickwatch::store::scripts::{Applied, Claim, Claimed, Closed, Guard, Limits, Scripts, Token};
use tickwatch::store::{Keys, connection};
use tickwatch::worker::batching::{BatchSettings, Bounds, Buffer, Built};
use tickwatch::worker::supervisor::settings_of;
use tokio::runtime::Runtime;

use crate::market::{Spec, Trigger, decimal, symbol_name};

/// Ticks of one batch.
pub(crate) const TICKS: u64 = 10_000;

/// One partition's ticks, endless, about `a_symbol` of each symbol in a batch.
pub(crate) fn spec(a_symbol: u64) -> Spec {
    let symbols = (TICKS / a_symbol) as u32;
    Spec {
        ticks: u64::MAX,
        symbols,
        a_second: 50 * u64::from(symbols),
        partitions: 1,
        hot: None,
        trigger: Trigger::Edge,
        far_rules: 0,
        intervals: &["1s"],
        seed: 1,
    }
}

/// The records' values.
pub(crate) fn values(spec: &Spec) -> impl Iterator<Item = String> + use<> {
    spec.ticks().map(|tick| {
        let mut value = String::new();
        tick.write_json(&symbol_name(tick.symbol), &mut value);
        value
    })
}

/// The values of one batch.
pub(crate) fn values_of_a_batch(a_symbol: u64) -> Vec<String> {
    values(&spec(a_symbol)).take(TICKS as usize).collect()
}

/// Decodes records from offset `first` on.
pub(crate) fn decode(values: &[String], first: i64) -> Chunk {
    let decoder = Decoder::new(&InputConfig::default()).expect("the default mapping is valid");
    let mut builder = ChunkBuilder::new(Arc::new(decoder));
    for (offset, value) in (first..).zip(values) {
        builder.push(RawRecord {
            offset: Offset(offset),
            timestamp: 0,
            broker_time: false,
            key: None,
            value: Some(value.as_bytes()),
            headers: None,
        });
    }
    builder.take()
}

/// Makes batches of chunks.
pub(crate) struct Grouping {
    settings: BatchSettings,
    config: Config,
}

impl Grouping {
    /// Candles of 1 s, lateness 1 s.
    pub(crate) fn new() -> Grouping {
        let mut config = Config::default();
        config.candles.intervals = vec!["1s".parse().expect("it is an interval")];
        config.candles.lateness = std::time::Duration::from_secs(1);
        Grouping { settings: settings_of(&config).batch, config }
    }

    /// A buffer that holds a chunk.
    pub(crate) fn filled(chunk: &Arc<Chunk>) -> Buffer {
        let mut buffer = Buffer::default();
        buffer.push(Arc::clone(chunk));
        buffer
    }

    /// One batch of all that is in the buffer.
    pub(crate) fn group(&self, buffer: &Buffer, position: Position) -> Built {
        let bounds = Bounds {
            ticks: usize::MAX,
            symbols: usize::MAX,
            records: usize::MAX,
            until: None,
            clock: i64::MAX / 2,
        };
        buffer.next_batch(&self.settings, position, None, bounds).expect("the buffer is not empty")
    }

    /// Packs every symbol of a batch; returns how many bytes that are.
    pub(crate) fn pack(&self, packer: &mut Packer, built: &Built) -> usize {
        let Built { batch, .. } = built;
        batch.symbols.iter().map(|symbol| packer.pack(symbol, batch.from, &self.settings.intervals).len()).sum()
    }
}

/// The first position of a partition that nobody has read.
pub(crate) const START: Position = Position::at(Offset(0), Watermark::NEVER);

/// A partition on a real Redis, whose batches follow one another: windows open and close as they do in service.
pub(crate) struct Stand {
    runtime: Runtime,
    connection: MultiplexedConnection,
    scripts: Scripts,
    partition: SourcePartition,
    guard: Guard,
    grouping: Grouping,
    values: Box<dyn Iterator<Item = String>>,
}

impl Stand {
    /// Claims a new partition, with ten rules on each symbol.
    pub(crate) fn new(url: &str, a_symbol: u64) -> anyhow::Result<Stand> {
        let spec = spec(a_symbol);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let redis = RedisConfig {
            url: url.to_owned(),
            // A server that is being counted is fifty times slower.
            response_timeout: std::time::Duration::from_mins(5),
            ..RedisConfig::default()
        };
        let mut connection = runtime.block_on(connection::connect(&redis))?;
        let grouping = Grouping::new();
        let Config { worker, rules, .. } = &grouping.config;
        let limits = Limits {
            max_outputs: worker.max_outputs,
            max_matches: rules.max_matches,
            page: 5_000,
            expiry: 3_600_000,
            updates: None,
        };
        let keys = Keys::new(format!("stand-{}:", spec.symbols));
        let scripts = Scripts::new(keys, grouping.config.candles.intervals.clone(), limits);
        let partition = SourcePartition { topic: "ticks".to_owned(), partition: 0 };
        let claim = Claim {
            token: Token::new(1),
            owner: "bench".to_owned(),
            group: "bench".to_owned(),
            fingerprint: String::new(),
            start: Some(Offset(0)),
            reset: None,
            delivered: None,
        };
        let Claimed::Ok(state) = runtime.block_on(scripts.claim(&mut connection, &partition, &claim))? else {
            anyhow::bail!("the partition of a new Redis could not be claimed");
        };
        let guard = Guard { token: claim.token, position: state.position, tail: state.tail };
        put_rules(&runtime, &mut connection, &scripts, &spec)?;
        let values = Box::new(values(&spec));
        Ok(Stand { runtime, connection, scripts, partition, guard, grouping, values })
    }

    /// The next batch.
    pub(crate) fn next(&mut self) -> Built {
        let values: Vec<String> = self.values.by_ref().take(TICKS as usize).collect();
        let first = self.guard.position.offset.0;
        let chunk = Arc::new(decode(&values, first));
        let built = self.grouping.group(&Grouping::filled(&chunk), self.guard.position);
        assert_eq!(built.records, values.len(), "ticks in order make one batch");
        built
    }

    /// Applies a batch: the one call that is measured.
    pub(crate) fn apply(&mut self, built: &Built) -> anyhow::Result<Applied> {
        let apply = self.scripts.apply(&mut self.connection, &self.partition, &self.guard, &built.batch, false);
        Ok(self.runtime.block_on(apply)?)
    }

    /// What a worker does behind a batch: windows are closed, outputs that were delivered are dropped.
    pub(crate) fn settle(&mut self, built: &Built, applied: Applied) -> anyhow::Result<()> {
        let Applied::Ok(effects) = applied else { anyhow::bail!("a batch was not applied: {applied:?}") };
        self.guard.position = Position::at(built.batch.to, built.batch.watermark_after);
        self.guard.tail = effects.tail;
        let Stand { runtime, connection, scripts, partition, guard, .. } = self;
        runtime.block_on(async {
            loop {
                let Closed::Ok { more, tail, .. } = scripts.close(connection, partition, guard).await? else {
                    anyhow::bail!("windows could not be closed");
                };
                guard.tail = tail;
                if !more {
                    break;
                }
            }
            scripts.trim(connection, partition, &guard.token, guard.tail).await?;
            Ok(())
        })
    }
}

fn put_rules(
    runtime: &Runtime,
    connection: &mut MultiplexedConnection,
    scripts: &Scripts,
    spec: &Spec,
) -> anyhow::Result<()> {
    let mut pipe = redis::pipe();
    for symbol in (0..spec.symbols).map(symbol_name) {
        for rule in spec.rules() {
            let member = format!("{} {}", rule.op, rule.id);
            pipe.cmd("ZADD")
                .arg(scripts.keys().edge_rules(&symbol))
                .arg(decimal(rule.threshold))
                .arg(member)
                .ignore();
        }
    }
    Ok(runtime.block_on(pipe.query_async(connection))?)
}
