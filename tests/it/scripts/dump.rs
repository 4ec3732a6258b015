//! All that Redis holds under a namespace, and all that it should hold, in one form that can be compared.

use std::collections::BTreeMap;

use redis::{Commands as _, Connection, Pipeline, Value, from_redis_value};
use tickwatch::domain::reference::{Reference, Status, Symbol};
use tickwatch::domain::{RecordMark, SourcePartition};
use tickwatch::store::Keys;
use tickwatch::store::keys::encode_symbol;

/// Key without namespace → its content as sorted lines. Keys without content are left out.
pub(super) type Dump = BTreeMap<String, Vec<String>>;

/// What `tw:source` holds that follows from the log.
const SOURCE_FIELDS: [&str; 10] = [
    "wave",
    "next_offset",
    "watermark",
    "max_ts",
    "last_record",
    "ticks",
    "late",
    "out_of_order",
    "notifications",
    "dead_letters",
];

/// Every key of the namespace, byte for byte: to see that nothing was written at all.
pub(super) fn bytes(redis: &mut Connection, keys: &Keys) -> BTreeMap<String, Vec<u8>> {
    let names = names(redis, keys);
    let mut dump = |name: &String| redis::cmd("DUMP").arg(name).query(redis).expect("DUMP answers");
    names.into_iter().map(|name| (name.clone(), dump(&name))).collect()
}

/// What Redis holds; outboxes are compared as entries, not here.
pub(super) fn found(redis: &mut Connection, keys: &Keys) -> Dump {
    // Whose the namespace is: no part of the state of a partition.
    let group = format!("{}group", keys.namespace());
    let names: Vec<String> = names(redis, keys).into_iter().filter(|name| *name != group).collect();
    let short = |name: &String| name[keys.namespace().len()..].to_owned();
    let (names, families): (Vec<String>, Vec<Family>) =
        names.into_iter().filter_map(|name| Family::of(&short(&name)).map(|family| (name, family))).unzip();
    let mut pipe = redis::pipe();
    for (name, family) in names.iter().zip(&families) {
        family.read(&mut pipe, name);
    }
    let replies: Vec<Value> = pipe.query(redis).expect("every key has its family's type");

    let mut dump = Dump::new();
    let mut replies = replies.into_iter();
    for (name, family) in names.iter().zip(families) {
        insert(&mut dump, short(name), family.lines(&mut replies));
    }
    dump
}

fn names(redis: &mut Connection, keys: &Keys) -> Vec<String> {
    redis.keys(format!("{}*", keys.namespace())).expect("KEYS answers")
}

/// Keys by what they hold and how it is compared.
enum Family {
    Source,
    Last,
    Candle,
    Options,
    Fired,
    SortedSet,
    Symbols,
}

impl Family {
    /// `None`: an outbox.
    fn of(short: &str) -> Option<Family> {
        Some(match short.split(':').next() {
            Some("source") => Family::Source,
            Some("last") => Family::Last,
            Some("ohlc") => Family::Candle,
            Some("rules") if short.ends_with(":opts") => Family::Options,
            Some("rules" | "due" | "changed") => Family::SortedSet,
            Some("fired") => Family::Fired,
            Some("symbols") => Family::Symbols,
            Some("outbox") => return None,
            _ => panic!("nothing should be called {short}"),
        })
    }

    fn read(&self, pipe: &mut Pipeline, name: &str) {
        match self {
            Family::Candle => pipe.hgetall(name).pttl(name),
            Family::SortedSet => pipe.zrange_withscores(name, 0, -1),
            Family::Symbols => pipe.smembers(name),
            Family::Source | Family::Last | Family::Options | Family::Fired => pipe.hgetall(name),
        };
    }

    fn lines(&self, replies: &mut impl Iterator<Item = Value>) -> Vec<String> {
        let reply = replies.next().expect("a reply for each key");
        if let Family::SortedSet = self {
            let members: Vec<(String, f64)> = from_redis_value(reply).expect("members with scores");
            return members.into_iter().map(|(member, score)| format!("{score} {member}")).collect();
        }
        if let Family::Symbols = self {
            return from_redis_value(reply).expect("members");
        }
        let fields: BTreeMap<String, String> = from_redis_value(reply).expect("fields");
        let line = |(field, value): (&String, &String)| format!("{field} {value}");
        match self {
            Family::Source => {
                let of_the_log = fields.iter().filter(|(field, value)| {
                    SOURCE_FIELDS.contains(&field.as_str()) && (*value != "0" || *field == "next_offset")
                });
                of_the_log.map(line).collect()
            }
            Family::Last => fields.iter().filter(|(field, _)| *field != "source").map(line).collect(),
            Family::Options => fields.into_keys().collect(),
            Family::Candle => {
                let ttl: i64 = from_redis_value(replies.next().expect("a second reply")).expect("a time");
                fields.iter().map(line).chain([expiry_line(ttl > 0)]).collect()
            }
            _ => fields.iter().map(line).collect(),
        }
    }
}

fn expiry_line(expires: bool) -> String {
    format!("expires {expires}")
}

fn insert(dump: &mut Dump, key: String, mut lines: Vec<String>) {
    if !lines.is_empty() {
        lines.sort();
        dump.insert(key, lines);
    }
}

/// What Redis should hold: the state of each partition, and of the symbols they share.
pub(super) fn expected<'a>(
    partitions: impl Iterator<Item = (&'a SourcePartition, &'a Reference)>,
    symbols: &BTreeMap<Box<str>, Symbol>,
) -> Dump {
    let mut dump = Dump::new();
    for (partition, state) in partitions {
        insert(&mut dump, format!("source:{partition}"), source_lines(state));
        let due = state.due.iter().map(|due| format!("{} {}", due.end as f64, due.member)).collect();
        insert(&mut dump, format!("due:{partition}"), due);
        let changed = state.changed.iter().map(|(at, member)| format!("{} {member}", at.0)).collect();
        insert(&mut dump, format!("changed:{partition}"), changed);
    }
    for (name, symbol) in symbols {
        symbol_lines(&mut dump, &encode_symbol(name), symbol);
    }
    let seen = symbols.iter().filter(|(_, symbol)| symbol.last.is_some());
    insert(&mut dump, "symbols".to_owned(), seen.map(|(name, _)| encode_symbol(name).into_owned()).collect());
    dump
}

fn source_lines(state: &Reference) -> Vec<String> {
    let mut lines = vec![format!("next_offset {}", state.position.offset)];
    if let Some(ms) = state.position.watermark.ms() {
        lines.push(format!("watermark {ms}"));
    }
    if let Some(ms) = state.max_ts {
        lines.push(format!("max_ts {ms}"));
    }
    if let Some(RecordMark { offset, timestamp, checksum }) = state.last_record {
        lines.push(format!("last_record {offset} {timestamp} {checksum:08x}"));
    }
    if let Some(offset) = state.wave {
        lines.push(format!("wave {offset}"));
    }
    let totals = state.totals;
    for (name, count) in [
        ("ticks", totals.ticks),
        ("late", totals.late),
        ("out_of_order", totals.out_of_order),
        ("notifications", totals.notifications),
        ("dead_letters", totals.dead_letters),
    ] {
        if count > 0 {
            lines.push(format!("{name} {count}"));
        }
    }
    lines
}

fn symbol_lines(dump: &mut Dump, name: &str, symbol: &Symbol) {
    if let Some(last) = symbol.last {
        let lines = vec![format!("price {}", last.price), format!("ts {}", last.ts)];
        insert(dump, format!("last:{name}"), lines);
    }
    for ((interval, start), candle) in &symbol.candles {
        let status = match candle.status {
            Status::Open => "open",
            Status::Final => "final",
            Status::Revised => "revised",
        };
        let lines = vec![
            format!("open {}", candle.open),
            format!("high {}", candle.high),
            format!("low {}", candle.low),
            format!("close {}", candle.close),
            format!("volume {}", candle.volume),
            format!("count {}", candle.count),
            format!("open_ts {}", candle.open_ts),
            format!("close_ts {}", candle.close_ts),
            format!("status {status}"),
            format!("revision {}", candle.revision),
            expiry_line(candle.status != Status::Open),
        ];
        insert(dump, format!("ohlc:{name}:{interval}:{start}"), lines);
    }
    let rules = &symbol.rules;
    for (set, members) in [
        ("edge", &rules.edge),
        ("level:above", &rules.above),
        ("level:below", &rules.below),
        ("level:equal", &rules.equal),
    ] {
        let lines = members.iter().map(|(member, score)| format!("{score} {member}")).collect();
        insert(dump, format!("rules:{name}:{set}"), lines);
    }
    insert(dump, format!("rules:{name}:opts"), rules.options.keys().cloned().collect());
    let fired = symbol.fired.iter().map(|(id, ts)| format!("{id} {ts}")).collect();
    insert(dump, format!("fired:{name}"), fired);
}

/// Fails with the keys that differ, and nothing else.
pub(super) fn assert_same(found: &Dump, expected: &Dump) {
    let keys = found.keys().chain(expected.keys().filter(|key| !found.contains_key(*key)));
    let differing: Vec<String> = keys
        .filter(|key| found.get(*key) != expected.get(*key))
        .map(|key| format!("{key}\n  found    {:?}\n  expected {:?}", found.get(key), expected.get(key)))
        .collect();
    assert!(differing.is_empty(), "Redis holds something else than it should:\n{}", differing.join("\n"));
}
