//! The reference applies a random log in random batches; what it sends is written as records.

use std::borrow::Cow;
use std::collections::BTreeSet;

use rand::RngExt as _;
use rand::rngs::StdRng;
use tickwatch::config::LatePolicy;
use tickwatch::domain::reference::{Applied, Limits, Reference, RuleOptions};
use tickwatch::domain::{Entry, Offset, Output, Watermark};

use super::{Candle, Diverted, Expected, Late, LogRecord, Notification, Rule, Settings, Tick};
use crate::harness::Stage;
use crate::scripts::for_each_seed;
use crate::scripts::log::{self, BEGIN, Content, STEP, SYMBOLS, pick, random_log, random_price};

pub(super) fn the_oracle_expects_what_the_reference_sends(_: &Stage) -> anyhow::Result<()> {
    for_each_seed(300, of_one_log);
    Ok(())
}

fn of_one_log(rng: &mut StdRng) {
    let settings = log::Settings::random(rng);
    let symbols = &SYMBOLS[..3];
    let log = random_log(rng, symbols, 150);
    let rules: Vec<Rule> = (0..12).map(|number| random_rule(rng, symbols, number)).collect();
    let limits = Limits { max_matches: usize::MAX, max_outputs: usize::MAX, page: 0 };
    let mut reference = Reference::new(Offset(0), limits, |symbol| Cow::Borrowed(symbol));
    for rule in &rules {
        put(&mut reference, rule);
    }

    let mut sent = Vec::new();
    let mut applied = 0;
    while applied < log.len() {
        let most = rng.random_range(1..10);
        let (batch, taken) = settings.batch(&log[applied..], reference.position, most);
        let Applied::Done(entries) = reference.apply(&batch, taken == 1) else { panic!("all was closed") };
        sent.extend(entries);
        sent.extend(reference.close(usize::MAX).entries);
        applied += taken;
    }
    reference.advance(Watermark::at(BEGIN + 1_000_000_000));
    sent.extend(reference.close(usize::MAX).entries);

    let expected = super::expected(&settings_of(&settings), &rules, &log_of(&log));
    assert_eq!(notifications(&sent), expected.notifications);
    assert_eq!(candles(&sent), expected.candles);
    assert_eq!(diverted(&sent), expected.diverted);
    assert_state(&reference, &expected);
}

fn assert_state(reference: &Reference, expected: &Expected) {
    assert_eq!((reference.totals.late, reference.totals.out_of_order), (expected.late, expected.out_of_order));
    let mut stored = 0;
    for (name, symbol) in &reference.symbols {
        let last = symbol.last.map(|last| (last.price.to_string(), last.ts));
        assert_eq!(last.as_ref(), expected.last.get(&**name), "{name}");
        for ((interval, start), candle) in &symbol.candles {
            let expected = &expected.stored[&(name.to_string(), interval.to_string(), *start)];
            assert_eq!((candle.revision, candle.count), (expected.revision, expected.count));
            stored += 1;
        }
    }
    assert_eq!(stored, expected.stored.len());
}

fn settings_of(settings: &log::Settings) -> Settings {
    Settings {
        topic: "ticks".to_owned(),
        partition: 0,
        intervals: settings.intervals.iter().map(ToString::to_string).collect(),
        lateness: settings.lateness,
        late: match settings.late {
            LatePolicy::Drop => Late::Drop,
            LatePolicy::Divert => Late::Divert,
            LatePolicy::Revise => Late::Revise,
        },
        keep: settings.keep,
    }
}

fn log_of(log: &[log::LogRecord]) -> Vec<LogRecord> {
    let ticks_of = |record: &log::LogRecord| match &record.content {
        Content::Ticks(ticks) => ticks.iter().map(tick_of).collect(),
        Content::Future | Content::Undecodable => Vec::new(),
    };
    log.iter().map(|record| LogRecord { offset: record.offset, ticks: ticks_of(record) }).collect()
}

fn tick_of(tick: &log::LogTick) -> Tick {
    Tick {
        symbol: tick.symbol.to_owned(),
        price: tick.price.to_string(),
        volume: tick.volume.to_string(),
        ts: tick.ts,
    }
}

fn random_rule(rng: &mut StdRng, symbols: &[&'static str], number: usize) -> Rule {
    Rule {
        symbol: pick::<&str>(rng, symbols).to_string(),
        id: format!("rule {number}"),
        trigger: pick::<&str>(rng, &["edge", "level"]),
        op: pick::<&str>(rng, &["<", "<=", "=", ">=", ">"]),
        threshold: random_price(rng).to_string(),
        once: rng.random_ratio(1, 4),
        cooldown: rng.random_ratio(1, 4).then(|| STEP * rng.random_range(0..30)),
        expires: rng.random_ratio(1, 4).then(|| BEGIN + STEP * rng.random_range(0..300)),
        note: rng.random_ratio(1, 4).then(|| "a note".to_owned()),
    }
}

fn put(reference: &mut Reference, rule: &Rule) {
    let rules = &mut reference.symbols.entry(rule.symbol.as_str().into()).or_default().rules;
    let set = match (rule.trigger, rule.op) {
        ("edge", _) => &mut rules.edge,
        (_, "<" | "<=") => &mut rules.below,
        (_, "=") => &mut rules.equal,
        _ => &mut rules.above,
    };
    set.insert(format!("{} {}", rule.op, rule.id), log::price(&rule.threshold).to_f64());
    let Rule { once, cooldown, expires, note, .. } = rule.clone();
    rules.options.insert(rule.id.clone(), Some(RuleOptions { once, cooldown, expires, note }));
}

fn notifications(sent: &[Entry]) -> BTreeSet<Notification> {
    let record = |entry: &Entry| {
        let Output::Notification(fired) = &entry.output else { return None };
        let offset = entry.id.offset.0;
        let place = if fired.index == 0 { offset.to_string() } else { format!("{offset}.{}", fired.index) };
        Some(Notification {
            id: format!("ticks/0/{place}/{}/{}/{}", fired.trigger, fired.op, fired.rule),
            rule: fired.rule.clone(),
            symbol: fired.symbol.clone(),
            trigger: fired.trigger.to_string(),
            op: fired.op.to_string(),
            threshold: fired.threshold.to_string(),
            price: fired.price.to_string(),
            previous: fired.previous.map(|price| price.to_string()),
            ts: fired.ts,
            topic: "ticks".to_owned(),
            partition: 0,
            offset,
            note: fired.note.clone(),
        })
    };
    sent.iter().filter_map(record).collect()
}

fn candles(sent: &[Entry]) -> BTreeSet<Candle> {
    let record = |entry: &Entry| {
        let Output::Candle(candle) = &entry.output else { return None };
        Some(Candle {
            symbol: candle.symbol.clone(),
            interval: candle.interval.to_string(),
            start: candle.start,
            end: candle.end,
            open: candle.open.to_string(),
            high: candle.high.to_string(),
            low: candle.low.to_string(),
            close: candle.close.to_string(),
            volume: candle.volume.to_string(),
            count: candle.count,
            status: if candle.revision == 0 { "final" } else { "revised" }.to_owned(),
            revision: candle.revision,
        })
    };
    sent.iter().filter_map(record).collect()
}

fn diverted(sent: &[Entry]) -> BTreeSet<Diverted> {
    let record = |entry: &Entry| {
        let Output::Late(tick) = &entry.output else { return None };
        Some(Diverted {
            offset: entry.id.offset.0,
            symbol: tick.symbol.clone(),
            price: tick.price.to_string(),
            volume: tick.volume.to_string(),
            ts: tick.ts,
            intervals: tick.intervals.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        })
    };
    sent.iter().filter_map(record).collect()
}
