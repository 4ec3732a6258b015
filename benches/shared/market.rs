//! Ticks from a seed and the rules on them: pure, the same bytes on any machine.

#![allow(dead_code)] // for every bench; none uses all of it

use std::fmt::Write as _;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Event time of the first tick, ms: in the past, so that no clock has a say.
pub(crate) const BEGIN: i64 = 1_700_000_000_000;
/// The lowest price, in hundredths.
pub(crate) const FLOOR: i64 = 10_000;
/// Prices of a symbol walk within so many hundredths above [`FLOOR`], by at most [`STEP`] a tick. With ten thresholds
/// in this band, one tick in a hundred crosses one in its rule's direction.
const BAND: i64 = 1_364;
const STEP: i64 = 5;
/// Rules of a symbol that fire now and then.
const RULES: u32 = 10;
/// A level rule matches this many of the band's prices; the two that do make one tick in a hundred fire.
const LEVEL_PRICES: i64 = 7;

/// Decides an input down to the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) ticks: u64,
    pub(crate) symbols: u32,
    /// Of all symbols, in a second of event time.
    pub(crate) a_second: u64,
    pub(crate) partitions: i32,
    /// Percent of the ticks that are of one symbol; `None`: all have the same share.
    pub(crate) hot: Option<u32>,
    pub(crate) trigger: Trigger,
    /// Rules on each symbol besides those that fire: out of its prices' reach.
    pub(crate) far_rules: u32,
    pub(crate) intervals: &'static [&'static str],
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trigger {
    Edge,
    Level,
}

impl Trigger {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Trigger::Edge => "edge",
            Trigger::Level => "level",
        }
    }
}

/// A rule; the same on every symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) id: String,
    pub(crate) trigger: Trigger,
    pub(crate) op: &'static str,
    /// In hundredths.
    pub(crate) threshold: i64,
}

/// One trade; price in hundredths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tick {
    pub(crate) symbol: u32,
    pub(crate) price: i64,
    pub(crate) volume: u64,
    pub(crate) ts: i64,
}

impl Spec {
    /// The rules on every symbol.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        let near = (0..RULES).map(|number| match self.trigger {
            Trigger::Edge => edge_rule(number),
            Trigger::Level => level_rule(number),
        });
        near.chain((0..self.far_rules).map(|number| self.far_rule(number))).collect()
    }

    /// Half of them above all prices, half below.
    fn far_rule(&self, number: u32) -> Rule {
        let step = i64::from(number / 2);
        let (op, threshold) = if number.is_multiple_of(2) {
            (">=", FLOOR + BAND + 1_000 + step)
        } else {
            ("<=", 1 + step % (FLOOR - 1_000))
        };
        Rule { id: format!("f{number}"), trigger: self.trigger, op, threshold }
    }

    /// The ticks in the order in which they are sent, without the last of each partition.
    pub(crate) fn ticks(&self) -> impl Iterator<Item = Tick> + use<> {
        let Spec { ticks, symbols, a_second, hot, .. } = *self;
        let mut random = StdRng::seed_from_u64(self.seed);
        let mut prices: Vec<i64> = (0..symbols).map(|_| random.random_range(0..BAND)).collect();
        (0..ticks).map(move |number| {
            let symbol = match hot {
                Some(percent) if random.random_range(0..100) < percent => 0,
                _ => random.random_range(0..symbols),
            };
            let price = &mut prices[symbol as usize];
            let next = (*price + random.random_range(-STEP..=STEP)).abs();
            *price = next.min(2 * (BAND - 1) - next); // bounces off both ends
            let ts = BEGIN + (number * 1_000 / a_second) as i64;
            Tick { symbol, price: FLOOR + *price, volume: random.random_range(1..=1_000), ts }
        })
    }
}

fn edge_rule(number: u32) -> Rule {
    let op = [">=", "<=", ">", "<"][number as usize % 4];
    let threshold = FLOOR + BAND * (2 * i64::from(number) + 1) / (2 * i64::from(RULES));
    Rule { id: format!("r{number}"), trigger: Trigger::Edge, op, threshold }
}

/// The first two match the highest and the lowest prices, the others none.
fn level_rule(number: u32) -> Rule {
    let beyond = i64::from(number / 2) * 100;
    let (op, threshold) = if number.is_multiple_of(2) {
        (">=", FLOOR + BAND - LEVEL_PRICES + beyond)
    } else {
        ("<=", FLOOR + LEVEL_PRICES - 1 - beyond)
    };
    Rule { id: format!("r{number}"), trigger: Trigger::Level, op, threshold }
}

impl Tick {
    /// The record's value.
    pub(crate) fn write_json(&self, symbol: &str, value: &mut String) {
        let Tick { volume, ts, .. } = self;
        let price = decimal(self.price);
        write!(value, r#"{{"symbol":"{symbol}","price":{price},"volume":{volume},"ts":{ts}}}"#)
            .expect("a String takes every write");
    }
}

/// `S00042`
pub(crate) fn symbol_name(symbol: u32) -> String {
    format!("S{symbol:05}")
}

/// The number in a symbol's name; `None` for the symbols that only end a partition.
pub(crate) fn symbol_number(name: &str) -> Option<u32> {
    name.strip_prefix('S')?.parse().ok()
}

/// Hundredths as plain decimal text.
pub(crate) fn decimal(hundredths: i64) -> String {
    format!("{}{}.{:02}", if hundredths < 0 { "-" } else { "" }, hundredths.abs() / 100, hundredths.abs() % 100)
}
