//! Candle intervals and the tumbling windows they cut time into.

use std::fmt;
use std::str::FromStr;

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const WEEK: i64 = 7 * DAY;

/// The epoch was a Thursday; weeks start on Monday, so week windows are counted from 1970-01-05.
const FIRST_MONDAY: i64 = 4 * DAY;

/// Units from large to small, with their length in ms. Weeks stand apart: `7d` is not `1w`.
const UNITS: [(&str, i64); 6] = [("w", WEEK), ("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", 1)];

/// The length of a candle's window, and what it is aligned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interval {
    ms: i64,
    weeks: bool,
}

/// A tumbling window `[start, end)`, ms since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Window {
    /// First millisecond inside.
    pub start: i64,
    /// First millisecond after.
    pub end: i64,
}

/// The text is no interval.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IntervalError {
    /// Months differ in length.
    #[error("interval {0:?}: months and years have no fixed length; use days or weeks, such as \"4w\"")]
    Calendar(String),
    /// Not `<number><unit>`.
    #[error("interval {0:?}: write a whole number and one of ms s m h d w, such as \"500ms\", \"1m\" or \"1w\"")]
    Malformed(String),
    /// Zero, or beyond 100 years.
    #[error("interval {0:?}: must be between 1ms and 5200w")]
    OutOfRange(String),
}

impl Interval {
    /// Length in milliseconds.
    pub fn ms(self) -> i64 {
        self.ms
    }

    /// The window that holds event time `ts` (ms). Aligned to the epoch, weeks to Monday, all in UTC.
    pub fn window_of(self, ts: i64) -> Window {
        let origin = if self.weeks { FIRST_MONDAY } else { 0 };
        let start = ts - (ts - origin).rem_euclid(self.ms);
        Window { start, end: start + self.ms }
    }

    /// The window that starts at `start`, if windows of this interval start there.
    pub fn window_at(self, start: i64) -> Option<Window> {
        let window = self.window_of(start);
        (window.start == start).then_some(window)
    }
}

impl FromStr for Interval {
    type Err = IntervalError;

    fn from_str(text: &str) -> Result<Interval, IntervalError> {
        let malformed = || IntervalError::Malformed(text.to_owned());
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        if matches!(unit, "M" | "mo" | "mon" | "month" | "months" | "y" | "year" | "years") {
            return Err(IntervalError::Calendar(text.to_owned()));
        }
        let (_, length) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(malformed)?;
        if number.is_empty() {
            return Err(malformed());
        }
        let out_of_range = || IntervalError::OutOfRange(text.to_owned());
        let ms = number.parse::<i64>().ok().and_then(|n| n.checked_mul(*length)).ok_or_else(out_of_range)?;
        if !(1..=5200 * WEEK).contains(&ms) {
            return Err(out_of_range());
        }
        Ok(Interval { ms, weeks: unit == "w" })
    }
}

/// Normalised: the largest unit that divides it, so `60s` prints as `1m`; weeks stay weeks and days days.
impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = if self.weeks { &UNITS[..1] } else { &UNITS[1..] };
        for (unit, length) in units {
            if self.ms % length == 0 {
                return write!(f, "{}{unit}", self.ms / length);
            }
        }
        unreachable!("every interval is a multiple of 1ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(text: &str) -> Interval {
        text.parse().unwrap()
    }

    #[test]
    fn equal_lengths_have_one_name() {
        for (text, name) in
            [("60s", "1m"), ("1000ms", "1s"), ("1500ms", "1500ms"), ("24h", "1d"), ("7d", "7d"), ("2w", "2w")]
        {
            assert_eq!(interval(text).to_string(), name);
        }
        assert_eq!(interval("60s"), interval("1m"));
        assert_ne!(interval("7d"), interval("1w"));
    }

    #[test]
    fn weeks_start_on_monday() {
        // 2026-11-30 is a Monday; 2026-12-06 23:59:59.999 the last moment of its week.
        let monday = 1_796_000_000_000 - 1_796_000_000_000_i64.rem_euclid(DAY);
        let week = interval("1w").window_of(monday + 3 * DAY);
        assert_eq!((week.start - FIRST_MONDAY) % WEEK, 0);
        assert_eq!(interval("2w").window_of(0).start, FIRST_MONDAY - 2 * WEEK);
    }

    #[test]
    fn a_window_holds_its_start_and_not_its_end() {
        let minute = interval("1m");
        assert_eq!(minute.window_of(59_999), Window { start: 0, end: 60_000 });
        assert_eq!(minute.window_of(60_000).start, 60_000);
        assert_eq!(minute.window_of(-1), Window { start: -60_000, end: 0 });
    }

    #[test]
    fn months_are_refused_with_the_reason() {
        assert!(matches!("1M".parse::<Interval>(), Err(IntervalError::Calendar(_))));
        for text in ["", "m", "0s", "-1s", "1.5m", "1x", "9999999999999w"] {
            assert!(text.parse::<Interval>().is_err(), "{text:?}");
        }
    }
}
