//! Event times: from the unit that was declared to milliseconds since the epoch.
//!
//! The unit is believed only if the time it gives is possible. Seconds, milliseconds, microseconds and nanoseconds
//! of our days read as one another are all before 1973 or after 9999.

use std::fmt;

use super::walk::Field;
use crate::config::TsUnit;

/// First time taken, ms: 1973-03-03T09:46:40Z.
const EARLIEST: i64 = 100_000_000_000;

/// Last time taken, ms: 9999-12-31T23:59:59.999Z (as RFC 3339 text: 9999-12-30T22:00:00Z, where jiff ends).
const LATEST: i64 = 253_402_300_799_999;

/// A field that is no event time; its `Display` says why and what to do, after the name of the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeError {
    /// Not written as the unit demands.
    Malformed { unit: TsUnit, looks_like: Option<TsUnit> },
    /// Before 1973 or after 9999.
    OutOfRange { unit: TsUnit, looks_like: Option<TsUnit> },
}

/// Reads `field` (a number, or text) in `unit`. What is finer than a millisecond is cut, not rounded.
pub(super) fn read(unit: TsUnit, field: Field<'_>) -> Result<i64, TimeError> {
    let malformed = || TimeError::Malformed { unit, looks_like: guess(field) };
    let ms = match (unit, field) {
        (TsUnit::Rfc3339, Field::Text(text)) => {
            text.parse::<jiff::Timestamp>().map_err(|_| malformed())?.as_millisecond()
        }
        (TsUnit::Rfc3339, _) => return Err(malformed()),
        (_, Field::Number(text) | Field::Text(text)) => count_ms(unit, text).ok_or_else(malformed)?,
        _ => return Err(malformed()),
    };
    if (EARLIEST..=LATEST).contains(&ms) {
        Ok(ms)
    } else {
        Err(TimeError::OutOfRange { unit, looks_like: guess(field) })
    }
}

/// A count of `unit` as ms, beyond any range if it is long or negative; `None` if it is no plain decimal.
fn count_ms(unit: TsUnit, text: &str) -> Option<i64> {
    let (negative, unsigned) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, fraction) = match unsigned.split_once('.') {
        Some((whole, fraction)) => (digits(whole)?, Some(fraction)),
        None => (digits(unsigned)?, None),
    };
    if let Some(fraction) = fraction {
        digits(fraction)?;
    }
    let ms = match unit {
        TsUnit::S => whole.saturating_mul(1000).saturating_add(first_three(fraction.unwrap_or_default())),
        TsUnit::Us => whole / 1000,
        TsUnit::Ns => whole / 1_000_000,
        TsUnit::Ms | TsUnit::Rfc3339 => whole,
    };
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    Some(if negative { -ms } else { ms })
}

/// Saturates beyond 10^38, which is out of range in nanoseconds too.
fn digits(text: &str) -> Option<u128> {
    let all = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| {
        text.bytes().fold(0_u128, |sum, byte| sum.saturating_mul(10).saturating_add(u128::from(byte - b'0')))
    })
}

/// Thousandths: `5575` is 557, `5` is 500.
fn first_three(fraction: &str) -> u128 {
    fraction.bytes().chain([b'0'; 3]).take(3).fold(0, |sum, byte| sum * 10 + u128::from(byte - b'0'))
}

/// The unit in which `field` would be a time between 1990 and 2100.
fn guess(field: Field<'_>) -> Option<TsUnit> {
    let (Field::Number(text) | Field::Text(text)) = field else { return None };
    if text.parse::<jiff::Timestamp>().is_ok() {
        return Some(TsUnit::Rfc3339);
    }
    let plausible = 631_152_000_000..4_102_444_800_000;
    [TsUnit::S, TsUnit::Ms, TsUnit::Us, TsUnit::Ns]
        .into_iter()
        .find(|unit| count_ms(*unit, text).is_some_and(|ms| plausible.contains(&ms)))
}

/// The name of a unit in the configuration, and in words.
fn names(unit: TsUnit) -> (&'static str, &'static str) {
    match unit {
        TsUnit::S => ("s", "seconds"),
        TsUnit::Ms => ("ms", "milliseconds"),
        TsUnit::Us => ("us", "microseconds"),
        TsUnit::Ns => ("ns", "nanoseconds"),
        TsUnit::Rfc3339 => ("rfc3339", "RFC 3339"),
    }
}

impl fmt::Display for TimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (TimeError::Malformed { unit, looks_like } | TimeError::OutOfRange { unit, looks_like }) = *self;
        match self {
            TimeError::Malformed { unit: TsUnit::Rfc3339, .. } => {
                f.write_str("is no RFC 3339 time such as \"2026-08-09T21:05:42.514Z\"")?;
            }
            TimeError::Malformed { .. } => write!(f, "is no whole or decimal number of {}", names(unit).1)?,
            TimeError::OutOfRange { .. } => {
                write!(f, "is not between 1973-03-03 and 9999-12-31 when read as {}", names(unit).1)?;
            }
        }
        match looks_like.filter(|guess| *guess != unit) {
            Some(guess) => {
                let (name, words) = names(guess);
                write!(f, "; it looks like {words}: set [input] ts_unit = {name:?}")
            }
            None => f.write_str("; check [input] ts and ts_unit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_gives_milliseconds_and_finer_input_is_cut() {
        for (unit, field, ms) in [
            (TsUnit::Ms, Field::Number("1700000000000"), 1_700_000_000_000),
            (TsUnit::Ms, Field::Text("1700000000000"), 1_700_000_000_000),
            (TsUnit::Ms, Field::Number("1700000000000.9"), 1_700_000_000_000),
            (TsUnit::S, Field::Text("1618678142.557535"), 1_618_678_142_557),
            (TsUnit::S, Field::Number("1618678142.9999999"), 1_618_678_142_999),
            (TsUnit::S, Field::Number("1618678142.5"), 1_618_678_142_500),
            (TsUnit::S, Field::Number("1618678142"), 1_618_678_142_000),
            (TsUnit::Us, Field::Number("1618678142557999"), 1_618_678_142_557),
            (TsUnit::Ns, Field::Text("1618678142557999999"), 1_618_678_142_557),
            (TsUnit::Rfc3339, Field::Text("2021-04-17T16:49:02.557999Z"), 1_618_678_142_557),
            (TsUnit::Rfc3339, Field::Text("2021-04-17T18:49:02+02:00"), 1_618_678_142_000),
        ] {
            assert_eq!(read(unit, field), Ok(ms), "{unit:?} {field:?}");
        }
    }

    #[test]
    fn the_range_ends_at_1973_and_9999() {
        assert_eq!(read(TsUnit::Ms, Field::Number("100000000000")), Ok(EARLIEST));
        assert!(read(TsUnit::Ms, Field::Number("99999999999")).is_err());
        assert_eq!(read(TsUnit::Rfc3339, Field::Text("1973-03-03T09:46:40Z")), Ok(EARLIEST));
        assert_eq!(read(TsUnit::Rfc3339, Field::Text("9999-12-30T21:59:59Z")), Ok(LATEST - 93_600_999));
        assert_eq!(read(TsUnit::Ms, Field::Number("253402300799999")), Ok(LATEST));
        assert!(read(TsUnit::Ms, Field::Number("253402300800000")).is_err());
    }

    #[test]
    fn a_time_in_another_unit_is_refused_and_the_unit_guessed() {
        let now = [
            (TsUnit::S, Field::Number("1700000000"), "\"s\""),
            (TsUnit::Ms, Field::Number("1700000000000"), "\"ms\""),
            (TsUnit::Us, Field::Number("1700000000000000"), "\"us\""),
            (TsUnit::Ns, Field::Number("1700000000000000000"), "\"ns\""),
            (TsUnit::Rfc3339, Field::Text("2023-11-14T22:13:20Z"), "\"rfc3339\""),
        ];
        for (unit, field, name) in now {
            assert!(read(unit, field).is_ok());
            for (other, ..) in now.iter().filter(|(other, ..)| *other != unit) {
                let message = read(*other, field).unwrap_err().to_string();
                assert!(message.ends_with(&format!("set [input] ts_unit = {name}")), "{other:?}: {message}");
            }
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for field in [
            Field::Text(""),
            Field::Text("now"),
            Field::Text("1."),
            Field::Text(".5"),
            Field::Text("1700000000.5.5"),
            Field::Number("1.7e12"),
            Field::Number("-1700000000000"),
            Field::Number("99999999999999999999999999999999999999999999"),
            Field::Other("true"),
        ] {
            for unit in [TsUnit::S, TsUnit::Ms, TsUnit::Us, TsUnit::Ns, TsUnit::Rfc3339] {
                assert!(read(unit, field).is_err(), "{unit:?} {field:?}");
            }
        }
    }
}
