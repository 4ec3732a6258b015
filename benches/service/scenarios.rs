//! The inputs, each the standard one with one thing changed, and who works through them.

use crate::contenders::{Contender, Form, Once};
use crate::market::{Spec, Trigger};

/// An input, who runs on it, and by what name.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) spec: Spec,
    pub(crate) contenders: Vec<Contender>,
    /// Whether somebody else asks the same Redis meanwhile.
    pub(crate) bystander: bool,
    /// Whether its figures are told as ratios to [`UNIFORM`]'s.
    pub(crate) is_compared: bool,
}

/// The scenarios that are run in turns, so that a machine that gets slower does so for all of them.
pub(crate) const STANDARD: &str = "standard";
pub(crate) const NAIVE: &str = "standard, shorter";
pub(crate) const UNIFORM: &str = "uniform";
pub(crate) const SYMBOLS_10: &str = "symbols-10";
pub(crate) const SYMBOLS_100000: &str = "symbols-100000";
pub(crate) const THIN: &str = "symbols-100000-thin";
pub(crate) const PARTITIONS_1: &str = "partitions-1";
pub(crate) const PARTITIONS_12: &str = "partitions-12";
pub(crate) const HOT_90: &str = "hot-90";
pub(crate) const LEVEL: &str = "level";
pub(crate) const INTERVALS_5: &str = "intervals-5";
pub(crate) const RULES_1000: &str = "rules-1000";
pub(crate) const RULES_1000000: &str = "rules-1000000";
pub(crate) const BYSTANDER: &str = "bystander";

/// Most scenarios need only this part of the ticks.
const SHARE: u64 = 4;
/// Naive runs are this much shorter, so that they take no longer than the others.
const NAIVE_SHARE: u64 = 16;
/// But not so short that no candle closes.
const NAIVE_LEAST: u64 = 60_000;
/// So are those of an input on which each tick costs the most.
const THIN_SHARE: u64 = 16;

/// Ticks of a symbol in a second of event time.
const TICKS_A_SECOND: u64 = 50;

fn standard(ticks: u64, seed: u64) -> Spec {
    let symbols = 1_000;
    Spec {
        ticks,
        symbols,
        a_second: TICKS_A_SECOND * u64::from(symbols),
        partitions: 6,
        hot: None,
        trigger: Trigger::Edge,
        far_rules: 0,
        intervals: &["1s"],
        seed,
    }
}

/// Every contender on the standard input.
pub(crate) fn of_contenders(ticks: u64, seed: u64, with_peers: bool) -> Vec<Scenario> {
    let mut contenders = vec![
        Contender::Tickwatch(Once::AtLeast),
        Contender::Tickwatch(Once::Exactly),
        Contender::Raw { parse: true },
        Contender::Raw { parse: false },
    ];
    if with_peers {
        for form in [Form::Processor, Form::Dsl] {
            contenders.extend([Contender::Streams(form, Once::AtLeast), Contender::Streams(form, Once::Exactly)]);
        }
    }
    let about = "1,000 symbols, 6 partitions, 10 edge rules a symbol, candles of 1 s";
    vec![
        Scenario {
            name: STANDARD,
            about,
            spec: standard(ticks, seed),
            contenders,
            bystander: false,
            is_compared: false,
        },
        Scenario {
            name: NAIVE,
            about: "the same, with fewer ticks",
            spec: standard((ticks / NAIVE_SHARE).max(ticks.min(NAIVE_LEAST)), seed),
            contenders: vec![Contender::Naive],
            bystander: false,
            is_compared: false,
        },
    ]
}

/// The product alone on inputs of other shapes, the first of them the standard one.
pub(crate) fn of_shapes(ticks: u64, seed: u64) -> Vec<Scenario> {
    let uniform = standard(ticks / SHARE, seed);
    let of = |symbols| Spec { symbols, a_second: TICKS_A_SECOND * u64::from(symbols), ..uniform };
    let one_symbol = Spec { partitions: 1, ..of(1) };
    let shape = |name, about, spec| Scenario {
        name,
        about,
        spec,
        contenders: vec![Contender::Tickwatch(Once::AtLeast)],
        bystander: false,
        is_compared: ![RULES_1000, RULES_1000000].contains(&name),
    };
    vec![
        shape(UNIFORM, "the standard input, with fewer ticks", uniform),
        shape(SYMBOLS_10, "10 symbols", of(10)),
        shape(SYMBOLS_100000, "100,000 symbols, all ticks", Spec { ticks, ..of(100_000) }),
        shape(
            THIN,
            "100,000 symbols, one tick a symbol every two seconds: a candle a tick",
            Spec { symbols: 100_000, ticks: ticks / THIN_SHARE, ..uniform },
        ),
        shape(PARTITIONS_1, "1 partition", Spec { partitions: 1, ..uniform }),
        shape(PARTITIONS_12, "12 partitions, all ticks", Spec { partitions: 12, ticks, ..uniform }),
        shape(HOT_90, "90% of the ticks on one symbol", Spec { hot: Some(90), ..uniform }),
        shape(LEVEL, "level rules", Spec { trigger: Trigger::Level, ..uniform }),
        shape(INTERVALS_5, "5 intervals", Spec { intervals: &["1s", "5s", "10s", "30s", "1m"], ..uniform }),
        shape(RULES_1000, "1 symbol with 1,000 rules", Spec { far_rules: 990, ..one_symbol }),
        shape(RULES_1000000, "1 symbol with 1,000,000 rules", Spec { far_rules: 999_990, ..one_symbol }),
        Scenario {
            name: BYSTANDER,
            about: "the standard input, while somebody else asks the same Redis",
            spec: uniform,
            contenders: vec![Contender::Tickwatch(Once::AtLeast), Contender::Tickwatch(Once::Exactly)],
            bystander: true,
            is_compared: false,
        },
    ]
}
