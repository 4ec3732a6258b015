//! What a rule is, in Redis and to people: the two forms of it, and what is wrong with one that has neither.

use std::fmt;

use serde::Serialize;

use crate::domain::{NumberError, Op, Price, Trigger};
use crate::store::keys::Keys;

/// Longest rule id, bytes.
pub const MAX_ID: usize = 256;
/// Longest note, bytes.
pub const MAX_NOTE: usize = 1024;
/// Longest JSON of a rule's options, bytes.
const MAX_OPTIONS: usize = 4096;
/// Whole numbers up to here mean the same in JSON, in Lua and here (2^53 - 1).
pub const MAX_INTEGER: i64 = (1 << 53) - 1;

/// One rule of one symbol. Its id is unique within the symbol.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The symbol as users write it.
    pub symbol: String,
    /// Edge or level.
    pub trigger: Trigger,
    /// The operator.
    pub op: Op,
    /// What prices are compared with.
    pub threshold: Price,
    /// Names the rule within its symbol; may hold spaces.
    pub id: String,
    /// What else it was told.
    pub options: RuleOptions,
}

/// Options of a rule; all times are event time. As JSON it is the value in `rules:<SYM>:opts`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RuleOptions {
    /// The rule is removed by its first firing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
    /// After a firing the rule is silent for so long, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cooldown: Option<i64>,
    /// From then on the rule is gone, ms since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<i64>,
    /// Text that goes out with every notification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Why a rule is refused before it is written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// No symbol.
    #[error("the symbol is empty")]
    EmptySymbol,
    /// No id.
    #[error("the id is empty")]
    EmptyId,
    /// Longer than [`MAX_ID`].
    #[error("the id has {0} bytes, at most {MAX_ID} are allowed")]
    LongId(usize),
    /// A control character in the id.
    #[error("the id holds a control character")]
    ControlInId,
    /// Not a price.
    #[error("threshold {0:?} {1}")]
    Threshold(String, NumberError),
    /// More digits than a double keeps: the rule would compare with another number than was written.
    #[error("threshold {0:?} has more than 15 significant digits")]
    LongThreshold(String),
    /// Negative, or beyond [`MAX_INTEGER`].
    #[error("cooldown {0} ms is out of range")]
    Cooldown(i64),
    /// Beyond [`MAX_INTEGER`].
    #[error("expires {0} ms since the epoch is out of range")]
    Expires(i64),
    /// Longer than [`MAX_NOTE`].
    #[error("the note has {0} bytes, at most {MAX_NOTE} are allowed")]
    LongNote(usize),
}

/// Reads a threshold. Unlike a tick's price it is refused, not rounded, when it has more than 15 digits.
pub fn parse_threshold(text: &str) -> Result<Price, RuleError> {
    let parsed = Price::parse(text).map_err(|why| RuleError::Threshold(text.to_owned(), why))?;
    if parsed.rounded { Err(RuleError::LongThreshold(text.to_owned())) } else { Ok(parsed.value) }
}

impl Rule {
    /// Reads a rule as it stands in Redis: a member of one of `symbol`'s sets, its score, and its options if it has any.
    pub fn from_redis<'o>(
        symbol: &str,
        set: RuleSet,
        member: &[u8],
        score: f64,
        options: impl FnOnce(&str) -> Option<&'o [u8]>,
    ) -> Result<Rule, SkipReason> {
        let member = std::str::from_utf8(member).map_err(|_| SkipReason::NotText)?;
        let (op, id) = parse_member(set, member)?;
        let threshold = parse_score(score)?;
        let options = match options(id) {
            Some(json) => RuleOptions::from_json(json).map_err(SkipReason::Options)?,
            None => RuleOptions::default(),
        };
        Ok(Rule { symbol: symbol.to_owned(), trigger: set.trigger(), op, threshold, id: id.to_owned(), options })
    }

    /// Refuses whatever a worker would skip, and what is too long to carry.
    pub fn validate(&self) -> Result<(), RuleError> {
        if self.symbol.is_empty() {
            return Err(RuleError::EmptySymbol);
        }
        if self.id.is_empty() {
            return Err(RuleError::EmptyId);
        }
        if self.id.len() > MAX_ID {
            return Err(RuleError::LongId(self.id.len()));
        }
        if self.id.chars().any(char::is_control) {
            return Err(RuleError::ControlInId);
        }
        let RuleOptions { once: _, cooldown, expires, note } = &self.options;
        if let Some(ms) = cooldown.filter(|ms| !(0..=MAX_INTEGER).contains(ms)) {
            return Err(RuleError::Cooldown(ms));
        }
        if let Some(ms) = expires.filter(|ms| !(-MAX_INTEGER..=MAX_INTEGER).contains(ms)) {
            return Err(RuleError::Expires(ms));
        }
        match note {
            Some(note) if note.len() > MAX_NOTE => Err(RuleError::LongNote(note.len())),
            _ => Ok(()),
        }
    }

    /// The set the rule belongs to.
    pub fn set(&self) -> RuleSet {
        RuleSet::of(self.trigger, self.op)
    }
}

/// `BBCA edge >= 9500 alice-1`
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { symbol, trigger, op, threshold, id, options: _ } = self;
        write!(f, "{symbol} {trigger} {op} {threshold} {id}")
    }
}

impl RuleOptions {
    /// The JSON in Redis; `None` if there is nothing to say.
    #[allow(clippy::expect_used)] // the message is the proof
    pub(super) fn to_json(&self) -> Option<String> {
        if *self == RuleOptions::default() {
            return None;
        }
        Some(serde_json::to_string(self).expect("a flag, numbers and texts are JSON"))
    }

    /// Reads the JSON in Redis as a worker does: a field it does not know, or a `once` or `note` of another
    /// type, counts as absent; a time that is no number makes the rule unusable.
    pub(super) fn from_json(json: &[u8]) -> Result<RuleOptions, String> {
        if json.len() > MAX_OPTIONS {
            return Err(format!("they have {} bytes, at most {MAX_OPTIONS} are allowed", json.len()));
        }
        let value: serde_json::Value = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        let object = value.as_object().ok_or("not a JSON object")?;
        let time = |field: &str| match object.get(field) {
            None | Some(serde_json::Value::Null) => Ok(None),
            Some(value) => value.as_f64().map(|ms| Some(ms as i64)).ok_or(format!("{field} is not a number of ms")),
        };
        let note = object.get("note").and_then(serde_json::Value::as_str);
        if let Some(note) = note.filter(|note| note.len() > MAX_NOTE) {
            return Err(format!("the note has {} bytes, at most {MAX_NOTE} are allowed", note.len()));
        }
        Ok(RuleOptions {
            once: object.get("once").and_then(serde_json::Value::as_bool).unwrap_or(false),
            cooldown: time("cooldown")?,
            expires: time("expires")?,
            note: note.map(str::to_owned),
        })
    }
}

/// The four sorted sets of a symbol's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleSet {
    /// All edge rules.
    Edge,
    /// Level rules that match at or above their threshold.
    Above,
    /// Level rules that match at or below it.
    Below,
    /// Level rules that match at it.
    Equal,
}

impl RuleSet {
    /// All four, in the order of the script's keys.
    pub const ALL: [RuleSet; 4] = [RuleSet::Edge, RuleSet::Above, RuleSet::Below, RuleSet::Equal];

    /// Where a rule belongs.
    pub fn of(trigger: Trigger, op: Op) -> RuleSet {
        match (trigger, op) {
            (Trigger::Edge, _) => RuleSet::Edge,
            (Trigger::Level, Op::Greater | Op::GreaterOrEqual) => RuleSet::Above,
            (Trigger::Level, Op::Less | Op::LessOrEqual) => RuleSet::Below,
            (Trigger::Level, Op::Equal) => RuleSet::Equal,
        }
    }

    /// Edge or level.
    pub fn trigger(self) -> Trigger {
        if self == RuleSet::Edge { Trigger::Edge } else { Trigger::Level }
    }

    /// The keys of all four sets of a symbol.
    pub(crate) fn keys_of(keys: &Keys, symbol: &str) -> [String; 4] {
        RuleSet::ALL.map(|set| set.key(keys, symbol))
    }

    /// The end of its key, after the symbol.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            RuleSet::Edge => ":edge",
            RuleSet::Above => ":level:above",
            RuleSet::Below => ":level:below",
            RuleSet::Equal => ":level:equal",
        }
    }

    /// Its key.
    pub(super) fn key(self, keys: &Keys, symbol: &str) -> String {
        match self {
            RuleSet::Edge => keys.edge_rules(symbol),
            RuleSet::Above => keys.level_rules(symbol, "above"),
            RuleSet::Below => keys.level_rules(symbol, "below"),
            RuleSet::Equal => keys.level_rules(symbol, "equal"),
        }
    }
}

/// Something under `rules:` that no worker will ever fire, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Skipped {
    /// The Redis key.
    pub key: String,
    /// The symbol, if the key names one.
    pub symbol: Option<String>,
    /// The member of the set, if it is about one.
    pub member: Option<String>,
    /// Its score.
    pub score: Option<f64>,
    /// What is wrong.
    pub reason: SkipReason,
}

/// Why a worker skips what stands in Redis.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SkipReason {
    /// The member is not `<op> <id>`.
    #[error("the member is not \"<op> <id>\"")]
    NoOp,
    /// The op is none of the five.
    #[error("unknown op {0:?}: use one of < <= = >= >")]
    UnknownOp(String),
    /// A level rule in the set of another direction.
    #[error("op {0} is in the wrong set: it belongs in …{right}", right = RuleSet::of(Trigger::Level, *.0).suffix())]
    WrongSet(Op),
    /// `<op> ` and nothing more.
    #[error("the id is empty")]
    NoId,
    /// Longer than [`MAX_ID`].
    #[error("the id has {0} bytes, at most {MAX_ID} are allowed")]
    LongId(usize),
    /// Infinite, or not below 1e18, or finer than 18 decimals.
    #[error("the score is not a price")]
    Score,
    /// Options that are not the JSON object they should be.
    #[error("options do not parse: {0}")]
    Options(String),
    /// Bytes that are not UTF-8.
    #[error("not UTF-8")]
    NotText,
    /// `rules:<SYM>:level`
    #[error("a level set needs a direction: :level:above, :level:below or :level:equal")]
    NoDirection,
    /// The symbol is not encoded as workers encode it.
    #[error("never read: the symbol's key is {0}")]
    Misnamed(String),
    /// No key of this family.
    #[error("not a key of rules: it should end in :edge, :level:above, :level:below, :level:equal or :opts")]
    UnknownKey,
    /// A key of the wrong type: the symbol's ticks go to the dead-letter topic while it is there.
    #[error("is a {found} and should be a {expected}: delete or rename it, it stops the symbol")]
    WrongType {
        /// The type in Redis.
        found: String,
        /// The type it should have.
        expected: &'static str,
    },
}

/// Reads `<op> <id>` as found in `set`: the id is everything after the first space.
fn parse_member(set: RuleSet, member: &str) -> Result<(Op, &str), SkipReason> {
    let (op, id) = member.split_once(' ').ok_or(SkipReason::NoOp)?;
    let op: Op = op.parse().map_err(|_| SkipReason::UnknownOp(op.to_owned()))?;
    if RuleSet::of(set.trigger(), op) != set {
        return Err(SkipReason::WrongSet(op));
    }
    match id.len() {
        0 => Err(SkipReason::NoId),
        1..=MAX_ID => Ok((op, id)),
        bytes => Err(SkipReason::LongId(bytes)),
    }
}

/// The threshold behind a score. One of more than 15 digits, which only a hand could write, is compared as it is and
/// shown with 15, as workers do.
fn parse_score(score: f64) -> Result<Price, SkipReason> {
    Price::from_f64(score).ok_or(SkipReason::Score)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule() -> Rule {
        Rule {
            symbol: "BBCA".into(),
            trigger: Trigger::Edge,
            op: Op::GreaterOrEqual,
            threshold: parse_threshold("9500").unwrap(),
            id: "alice-1".into(),
            options: RuleOptions::default(),
        }
    }

    #[test]
    fn an_id_is_everything_after_the_first_space() {
        assert_eq!(parse_member(RuleSet::Edge, ">= my own  rule"), Ok((Op::GreaterOrEqual, "my own  rule")));
        assert_eq!(parse_member(RuleSet::Edge, ">=  x"), Ok((Op::GreaterOrEqual, " x")));
    }

    #[test]
    fn members_no_worker_fires_are_told_apart() {
        use SkipReason::{NoId, NoOp, UnknownOp, WrongSet};
        for (set, member, reason) in [
            (RuleSet::Edge, "alice-1", NoOp),
            (RuleSet::Edge, "!= alice-1", UnknownOp("!=".into())),
            (RuleSet::Edge, " alice-1", UnknownOp(String::new())),
            (RuleSet::Above, "< alice-1", WrongSet(Op::Less)),
            (RuleSet::Equal, ">= alice-1", WrongSet(Op::GreaterOrEqual)),
            (RuleSet::Edge, ">= ", NoId),
        ] {
            assert_eq!(parse_member(set, member), Err(reason), "{member:?}");
        }
    }

    #[test]
    fn a_score_is_a_price_shown_with_15_digits() {
        for score in [9500.0, -37.63, 0.3, 0.0, -0.0, 999_999_999_999_999.0] {
            assert_eq!(parse_score(score).map(Price::to_f64), Ok(score));
        }
        assert_eq!(parse_score(0.1 + 0.2).map(|price| price.to_string()), Ok("0.3".into()));
        for score in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e18] {
            assert_eq!(parse_score(score), Err(SkipReason::Score), "{score}");
        }
    }

    #[test]
    fn a_rule_that_cannot_be_carried_is_refused() {
        let refuse = |change: fn(&mut Rule)| {
            let mut rule = rule();
            change(&mut rule);
            rule.validate().unwrap_err()
        };
        assert_eq!(refuse(|r| r.symbol.clear()), RuleError::EmptySymbol);
        assert_eq!(refuse(|r| r.id.clear()), RuleError::EmptyId);
        assert_eq!(refuse(|r| r.id = "x".repeat(257)), RuleError::LongId(257));
        assert_eq!(refuse(|r| r.id = "a\tb".into()), RuleError::ControlInId);
        assert_eq!(refuse(|r| r.options.cooldown = Some(-1)), RuleError::Cooldown(-1));
        assert_eq!(refuse(|r| r.options.expires = Some(i64::MAX)), RuleError::Expires(i64::MAX));
        assert_eq!(refuse(|r| r.options.note = Some("é".repeat(513))), RuleError::LongNote(1026));
        assert_eq!(rule().validate(), Ok(()));
    }

    #[test]
    fn a_threshold_is_refused_rather_than_rounded() {
        assert!(parse_threshold("-37.63").is_ok());
        assert!(matches!(parse_threshold("0.30000000000000004"), Err(RuleError::LongThreshold(_))));
        for text in ["", "nan", "inf", "1e18", "0x10", "nine"] {
            assert!(matches!(parse_threshold(text), Err(RuleError::Threshold(..))), "{text:?}");
        }
    }

    #[test]
    fn options_are_read_as_a_worker_reads_them() {
        let read = |json: &str| RuleOptions::from_json(json.as_bytes());
        assert_eq!(read(r#"{"once":1,"cooldown":null,"colour":"red"}"#), Ok(RuleOptions::default()));
        assert_eq!(read(r#"{"cooldown":3e5}"#).map(|o| o.cooldown), Ok(Some(300_000)));
        for bad in ["", "once", "[]", r#"{"cooldown":"5m"}"#, r#"{"expires":true}"#] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn options_come_back_from_redis(
            once: bool,
            cooldown in proptest::option::of(0..=MAX_INTEGER),
            expires in proptest::option::of(-MAX_INTEGER..=MAX_INTEGER),
            note in proptest::option::of(".{1,40}"),
        ) {
            let options = RuleOptions { once, cooldown, expires, note };
            let back = options.to_json().map_or(Ok(RuleOptions::default()), |json| {
                RuleOptions::from_json(json.as_bytes())
            });
            prop_assert_eq!(back, Ok(options));
        }
    }
}
