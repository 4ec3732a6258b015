//! What holds for any bytes, of every reader of what others wrote. The fuzz targets run these on bytes of their own
//! making; an ordinary test (`tests/it/corpus.rs`) runs them on the seeds beside this file.

use std::future::ready;
use std::sync::{Arc, LazyLock};

use futures_util::future::FutureExt as _;
use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, Value};
use tickwatch::config::{InputConfig, PriceZero, TsUnit};
use tickwatch::domain::OutboxId;
use tickwatch::domain::{Interval, Offset, Position, Price, SourcePartition, Volume, Watermark};
use tickwatch::input::{ChunkBuilder, Decoder, RawRecord, presets};
use tickwatch::kafka::Committed;
use tickwatch::store::Keys;
use tickwatch::store::keys::{decode_symbol, encode_symbol};
use tickwatch::store::rules::{Rule, RuleSet};
use tickwatch::store::scripts::{Claim, Guard, Limits, Scripts, Token};

/// The default shape, every preset, and two mappings: an array whose trades look at the root, and exact times.
static DECODERS: LazyLock<Vec<Arc<Decoder>>> = LazyLock::new(|| {
    let text = |text: &str| Some(text.to_owned());
    let of_preset = presets().map(|preset| InputConfig { format: text(preset.name), ..InputConfig::default() });
    let nested = InputConfig {
        records: text("/data"),
        symbol: text("^/arg/instId"),
        price: text("/px"),
        volume: text("/sz"),
        volume_required: Some(true),
        ts: text("/ts"),
        ..InputConfig::default()
    };
    let exact = InputConfig {
        ts_unit: Some(TsUnit::Rfc3339),
        price_zero: Some(PriceZero::Accept),
        ..InputConfig::default()
    };
    [InputConfig::default(), nested, exact]
        .into_iter()
        .chain(of_preset)
        .map(|config| Arc::new(Decoder::new(&config).expect("a mapping that is right")))
        .collect()
});

/// Bytes: which decoder, how long the key is, key, value. A record is taken whole or refused whole, and what is taken
/// is in order and within bounds.
pub(crate) fn decode(data: &[u8]) {
    let [which, key_length, rest @ ..] = data else { return };
    let decoder = &DECODERS[usize::from(*which) % DECODERS.len()];
    let (key, value) = rest.split_at(usize::from(*key_length).min(rest.len()));
    let mut builder = ChunkBuilder::new(Arc::clone(decoder));
    for (offset, value) in [Some(value), Some(&value[..value.len() / 2]), None].into_iter().enumerate() {
        builder.push(RawRecord {
            offset: Offset(offset as i64),
            timestamp: 0,
            broker_time: false,
            key: Some(key),
            value,
            headers: None,
        });
    }
    let chunk = builder.take();
    assert_eq!(chunk.records.len(), 3);
    let mut next = 0;
    for record in &chunk.records {
        assert_eq!(record.ticks.start, next, "ticks follow on one another");
        next = record.ticks.end;
        assert!(record.bad.is_none() || record.ticks.is_empty(), "a bad record has no ticks");
        for range in [&record.key, &record.value].into_iter().flatten() {
            assert!(range.end as usize <= chunk.bytes.len());
        }
    }
    assert_eq!(next as usize, chunk.ticks.len());
    for tick in &chunk.ticks {
        let symbol = &chunk.symbols[tick.symbol as usize];
        assert!(!symbol.is_empty() && symbol.len() <= 256);
        assert!(tick.price.to_f64().abs() < 1e18);
    }
}

/// Bytes: which set, the member up to a line end, the score up to another, options. A rule that is read is one that
/// could have been put, or is too long for that.
pub(crate) fn rules(data: &[u8]) {
    let [which, rest @ ..] = data else { return };
    let set = RuleSet::ALL[usize::from(*which) % RuleSet::ALL.len()];
    let mut parts = rest.splitn(3, |byte| *byte == b'\n');
    let (member, score) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let score = std::str::from_utf8(score).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN);
    let options = parts.next();
    if let Ok(rule) = Rule::from_redis("BBCA", set, member, score, |_| options) {
        assert_eq!(rule.set(), set);
        let again = format!("{} {}", rule.op, rule.id);
        assert_eq!(again.as_bytes(), member);
        let _ = rule.validate();
    }
}

/// Bytes: which call, and its reply as JSON (texts, whole numbers, lists). Every reply is read or refused.
pub(crate) fn replies(data: &[u8]) {
    let [which, rest @ ..] = data else { return };
    let Ok(json) = serde_json::from_slice(rest) else { return };
    let mut redis = Answering(value_of(&json));
    let limits = Limits { max_outputs: 1, max_matches: 1, page: 1, expiry: 1, updates: None };
    let scripts = Scripts::new(Keys::new("tw:"), Vec::new(), limits);
    let partition = SourcePartition { topic: "ticks".into(), partition: 0 };
    let position = Position::at(Offset(0), Watermark::NEVER);
    let tail = OutboxId { offset: Offset(0), n: 0 };
    let guard = Guard { token: Token::new(1), position, tail };
    let answered = match which % 7 {
        0 => {
            let claim = Claim {
                token: Token::new(1),
                owner: String::new(),
                group: String::new(),
                fingerprint: String::new(),
                start: None,
                reset: None,
                delivered: None,
            };
            scripts.claim(&mut redis, &partition, &claim).now_or_never().map(drop)
        }
        1 => scripts.close(&mut redis, &partition, &guard).now_or_never().map(drop),
        2 => scripts.heartbeat(&mut redis, &partition, &guard, "", "").now_or_never().map(drop),
        3 => scripts.advance(&mut redis, &partition, &guard, Watermark::NEVER, None).now_or_never().map(drop),
        4 => scripts.trim(&mut redis, &partition, &guard.token, tail).now_or_never().map(drop),
        5 => scripts.update(&mut redis, &partition, &guard).now_or_never().map(drop),
        _ => scripts.read_outbox(&mut redis, &partition, None, 1).now_or_never().map(drop),
    };
    assert!(answered.is_some(), "one answer is enough");
}

/// A Redis that always says the same.
struct Answering(Value);

impl ConnectionLike for Answering {
    fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(ready(Ok(self.0.clone())))
    }

    fn req_packed_commands<'a>(&'a mut self, _: &'a Pipeline, _: usize, _: usize) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(ready(Ok(vec![self.0.clone()])))
    }

    fn get_db(&self) -> i64 {
        0
    }
}

fn value_of(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::Nil,
        Json::Bool(_) => Value::Okay,
        Json::Number(number) => number.as_i64().map_or(Value::Nil, Value::Int),
        Json::String(text) => Value::BulkString(text.clone().into_bytes()),
        Json::Array(items) => Value::Array(items.iter().map(value_of).collect()),
        Json::Object(fields) => {
            let texts = fields
                .iter()
                .flat_map(|(name, value)| [Value::BulkString(name.clone().into_bytes()), value_of(value)]);
            Value::Array(texts.collect())
        }
    }
}

/// A commit's metadata. What is read as a watermark is written as it was read.
pub(crate) fn commits(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let committed = Committed::new(Offset(0), text);
    if let Some(watermark) = committed.watermark {
        let again = Committed::new(Offset(0), &format!("tickwatch/1 watermark={watermark}"));
        assert_eq!(again.watermark, Some(watermark));
    }
    assert_eq!(committed.metadata, text);
}

/// A number's text. What is printed is plain, and means the same when it is read again; sums do not depend on their
/// order.
pub(crate) fn decimals(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(price) = Price::parse(text) {
        let printed = price.value.to_string();
        assert!(!printed.contains(['e', 'E']), "{printed}");
        let again = Price::parse(&printed).expect("what is printed can be read");
        assert_eq!((again.value, again.rounded), (price.value, false), "{text:?}");
        assert_eq!(Price::from_f64(price.value.to_f64()), Some(price.value));
    }
    if let Ok(volume) = Volume::parse(text) {
        let printed = volume.to_string();
        assert!(!printed.contains(['e', 'E', '-']), "{printed}");
        assert_eq!(Volume::parse_sum(&printed), Ok(volume));
        let one = Volume::parse("1").expect("one is a volume");
        assert_eq!(volume.plus(one), one.plus(volume));
    }
}

/// Bytes: a time, an interval's text. An interval is printed as one that means the same, and a time is in its window.
pub(crate) fn intervals(data: &[u8]) {
    /// Ten thousand years on either side of the epoch, ms: more than a tick's time may be.
    const YEARS: i64 = 10_000 * 366 * 86_400_000;
    let Some((time, text)) = data.split_first_chunk::<8>() else { return };
    let Some(interval) = std::str::from_utf8(text).ok().and_then(|text| text.parse::<Interval>().ok()) else {
        return;
    };
    assert_eq!(interval.to_string().parse(), Ok(interval));
    let ts = i64::from_le_bytes(*time) % YEARS;
    let window = interval.window_of(ts);
    assert!(window.start <= ts && ts < window.end, "{interval}: {ts} is not in {window:?}");
    assert_eq!(interval.window_at(window.start), Some(window));
}

/// A symbol. Its key is without whitespace and control characters, and is of no other symbol.
pub(crate) fn symbols(data: &[u8]) {
    let Ok(symbol) = std::str::from_utf8(data) else { return };
    let encoded = encode_symbol(symbol);
    assert!(!encoded.contains(|c: char| c.is_whitespace() || c.is_control()), "{encoded:?}");
    assert_eq!(decode_symbol(&encoded), symbol);
    let _ = decode_symbol(symbol);
}
