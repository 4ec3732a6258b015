//! One source partition as the page shows it.

use serde_json::{Map, Value};

use super::verdict::Cause;
use super::words::{grouped, span, time};

/// What holds its time back, or does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Hold {
    /// Nobody ever claimed it.
    #[default]
    Unclaimed,
    Current,
    Quiet,
    Lagging,
    Asking,
    Stopped,
    /// Its owner gives no sign of life.
    Silent,
    /// It has another owner than a moment ago.
    Moved,
    /// Its owner is gone, the next one has not claimed it.
    Moving,
    /// Redis does not answer.
    Unknown,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Partition {
    pub(super) partition: i32,
    pub(super) hold: Hold,
    /// Why, in whole words.
    pub(super) reason: String,
    pub(super) since: Option<i64>,
    pub(super) owner: Option<String>,
    pub(super) epoch: Option<i64>,
    pub(super) next_offset: Option<i64>,
    pub(super) watermark: Option<i64>,
    pub(super) end: Option<i64>,
    pub(super) lag: Option<i64>,
    /// Whether the lag is known only to be at least so much.
    pub(super) lag_is_bound: bool,
    /// How many records a second the lag grows; negative: it shrinks.
    pub(super) lag_growth: Option<f64>,
    pub(super) windows: Option<u64>,
    pub(super) next_due: Option<i64>,
    pub(super) outbox: Option<u64>,
    pub(super) ticks: Option<i64>,
    /// When what Redis holds of it was read, if it cannot be read now.
    pub(super) as_of: Option<i64>,
}

impl Hold {
    /// From the word in Redis.
    pub(super) fn of(word: Option<&str>) -> Hold {
        match word {
            Some("quiet") => Hold::Quiet,
            Some("lagging") => Hold::Lagging,
            Some("asking") => Hold::Asking,
            Some("stopped") => Hold::Stopped,
            Some(_) | None => Hold::Current,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Hold::Unclaimed => "unclaimed",
            Hold::Current => "current",
            Hold::Quiet => "quiet",
            Hold::Lagging => "lagging",
            Hold::Asking => "asking",
            Hold::Stopped => "stopped",
            Hold::Silent => "silent",
            Hold::Moved => "moved",
            Hold::Moving => "moving",
            Hold::Unknown => "unknown",
        }
    }
}

impl Partition {
    /// Whether it is a cause.
    pub(super) fn holds_back(&self) -> bool {
        matches!(self.hold, Hold::Stopped | Hold::Lagging | Hold::Silent | Hold::Unclaimed | Hold::Moving)
    }

    /// As a cause of the verdict.
    pub(super) fn cause(&self, topic: &str, now: i64) -> Cause {
        let windows = self.windows.unwrap_or_default();
        let stands = self.watermark.map_or_else(String::new, |watermark| {
            format!("Time stands at {}; {} open windows wait.", time(watermark), grouped(windows as i64))
        });
        let (glyph, word, why, detail) = match self.hold {
            Hold::Stopped => ("stop", "Stopped", format!(": {}", self.reason), stands),
            Hold::Lagging => ("lag", "Lagging", self.lagging(), format!("{}{stands}", self.caught_up())),
            Hold::Silent => (
                "dead",
                "Silent",
                format!(": {}", self.reason),
                "Others take it over when Kafka drops its owner.".into(),
            ),
            Hold::Moving => ("ask", "Moving", format!(" {}", self.reason), stands),
            _ => (
                "quiet",
                "Not claimed",
                " by any worker yet.".into(),
                "It is claimed within a few seconds where a worker runs; else start one.".into(),
            ),
        };
        let since = self.since.filter(|_| self.hold == Hold::Stopped);
        let for_how_long = since.map_or_else(String::new, |since| format!(" For {}.", span(now - since)));
        Cause {
            glyph,
            what: format!("{topic}/{}", self.partition),
            partition: Some(self.partition),
            word: word.into(),
            why,
            detail: format!("{detail}{for_how_long}"),
            command: (self.hold == Hold::Unclaimed).then(|| "tickwatch run".into()),
        }
    }

    fn lagging(&self) -> String {
        let records = self.lag.map_or_else(String::new, |lag| format!(" {} records", grouped(lag)));
        let growth = self.lag_growth.filter(|growth| growth.abs() >= 1.0);
        let trend = growth.map_or_else(String::new, |growth| {
            let word = if growth > 0.0 { "growing" } else { "shrinking" };
            format!(", {word} by {}/s", grouped(growth.abs().round() as i64))
        });
        let reason = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        format!("{records}{trend}{reason}.")
    }

    fn caught_up(&self) -> String {
        match (self.lag, self.lag_growth) {
            (Some(lag), Some(growth)) if growth < -1.0 && lag > 0 => {
                format!("Caught up in about {}. ", span((lag as f64 / -growth * 1_000.0) as i64 + 1_000))
            }
            _ => String::new(),
        }
    }

    /// For the page. What is not known is left out.
    pub(super) fn view(&self) -> Value {
        let mut view = Map::new();
        view.insert("hold".into(), self.hold.name().into());
        view.insert("reason".into(), self.reason.as_str().into());
        let mut known = |name: &str, value: Option<Value>| view.extend(value.map(|value| (name.to_owned(), value)));
        known("owner", self.owner.as_deref().map(Value::from));
        known("epoch", self.epoch.map(Value::from));
        known("position", self.next_offset.map(Value::from));
        known("watermark", self.watermark.map(Value::from));
        known("lag", self.lag.map(Value::from));
        known("bound", self.lag_is_bound.then_some(Value::Bool(true)));
        known("windows", self.windows.map(Value::from));
        known("outbox", self.outbox.map(Value::from));
        known("as_of", self.as_of.map(Value::from));
        Value::Object(view)
    }
}
