//! When a rule fires. The five operators and the two triggers.

use std::fmt;
use std::str::FromStr;

use super::Price;

/// A comparison of a price with a rule's threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `=`
    Equal,
    /// `>=`
    GreaterOrEqual,
    /// `>`
    Greater,
}

impl Op {
    /// All five, in the order of the documentation.
    pub const ALL: [Op; 5] = [Op::Less, Op::LessOrEqual, Op::Equal, Op::GreaterOrEqual, Op::Greater];

    /// The operator as written in a rule.
    pub fn as_str(self) -> &'static str {
        match self {
            Op::Less => "<",
            Op::LessOrEqual => "<=",
            Op::Equal => "=",
            Op::GreaterOrEqual => ">=",
            Op::Greater => ">",
        }
    }

    /// Whether `price` stands in this relation to `threshold`.
    pub fn matches(self, price: Price, threshold: Price) -> bool {
        let (p, t) = (price.to_f64(), threshold.to_f64());
        match self {
            Op::Less => p < t,
            Op::LessOrEqual => p <= t,
            Op::Equal => p.total_cmp(&t).is_eq(),
            Op::GreaterOrEqual => p >= t,
            Op::Greater => p > t,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text is none of the five operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an operator: use one of < <= = >= >")]
pub struct OpError(pub String);

impl FromStr for Op {
    type Err = OpError;

    fn from_str(text: &str) -> Result<Op, OpError> {
        Op::ALL.into_iter().find(|op| op.as_str() == text).ok_or_else(|| OpError(text.to_owned()))
    }
}

/// When a matching price fires a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trigger {
    /// Once a crossing: the previous price did not match and this one does.
    Edge,
    /// On every tick that matches.
    Level,
}

impl Trigger {
    /// Both.
    pub const ALL: [Trigger; 2] = [Trigger::Edge, Trigger::Level];

    /// The trigger as written in keys, records and flags.
    pub fn as_str(self) -> &'static str {
        match self {
            Trigger::Edge => "edge",
            Trigger::Level => "level",
        }
    }

    /// Whether a rule fires at `price` when the symbol's price before it was `previous` (`None`: its first tick).
    pub fn fires(self, op: Op, threshold: Price, previous: Option<Price>, price: Price) -> bool {
        op.matches(price, threshold)
            && match self {
                Trigger::Level => true,
                Trigger::Edge => previous.is_some_and(|p| !op.matches(p, threshold)),
            }
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text is none of the two triggers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no trigger: edge or level")]
pub struct TriggerError(pub String);

impl FromStr for Trigger {
    type Err = TriggerError;

    fn from_str(text: &str) -> Result<Trigger, TriggerError> {
        Trigger::ALL
            .into_iter()
            .find(|trigger| trigger.as_str() == text)
            .ok_or_else(|| TriggerError(text.to_owned()))
    }
}
