//! Prices and volumes: plain decimals that mean the same number as text, as a double and in JSON.
//!
//! The text is judged before anything is expanded: `1e999999999` costs as much as its eleven characters. Zeros
//! that do not change the number (`007.500`) count neither as digits nor as decimals.

use std::fmt;

/// A double holds every decimal of this many significant digits, and gives it back.
const PRICE_DIGITS: u32 = 15;

/// Most significant digits of a volume as sent.
const VOLUME_DIGITS: u32 = 28;

/// Most decimals of a price or a volume; a volume is held in units of 1e-18.
const MAX_DECIMALS: u32 = 18;

/// Digits between 1e18 and 1e-18: no number in range has more, and a `u128` holds them.
const MAX_DIGITS: u64 = 36;

/// Powers of ten that doubles hold exactly.
const POW10: [f64; 19] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18];

/// A price: a decimal of at most 15 significant digits, so that its text, a double (Lua, a sorted set's score)
/// and JSON mean the same number. |value| < 1e18, at most 18 decimals. Never NaN, never infinite, never -0.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Price(f64);

/// A volume: an exact non-negative decimal below 1e18 with at most 18 decimals, at most 28 digits as sent;
/// held as a whole number of 1e-18, so sums are exact whatever their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Volume(u128);

/// A parsed number, and whether it had to be rounded to fit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parsed<T> {
    /// The number.
    pub value: T,
    /// True if it had more than 15 significant digits and was rounded half-even.
    pub rounded: bool,
}

/// Why a text is not a price or a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NumberError {
    /// Empty, NaN, infinity, hex, or anything else that is not a decimal.
    #[error("is not a decimal number")]
    Malformed,
    /// |value| ≥ 1e18.
    #[error("is too large: must be below 1e18")]
    TooLarge,
    /// More than 18 decimals.
    #[error("has more than 18 decimals")]
    TooFine,
    /// A volume below zero.
    #[error("is negative")]
    Negative,
    /// A volume of more than 28 digits.
    #[error("has more than 28 digits")]
    TooLong,
}

impl Price {
    /// Zero.
    pub const ZERO: Price = Price(0.0);

    /// Parses a decimal, with or without exponent: a JSON number, or its text. Longer than 15 significant
    /// digits: rounded half-even, judged on the decimal text.
    pub fn parse(text: &str) -> Result<Parsed<Price>, NumberError> {
        let (decimal, rounded) = Decimal::parse(text)?.round(PRICE_DIGITS);
        if decimal.exponent + digits(decimal.mantissa) as i32 > MAX_DECIMALS as i32 {
            return Err(NumberError::TooLarge); // 999999999999999999 rounds up to 1e18
        }
        Ok(Parsed { value: Price::from_decimal(decimal), rounded })
    }

    /// `decimal` has at most 15 digits: mantissa and power of ten are both exact doubles, and one operation on
    /// exact operands is correctly rounded, so this is the double nearest to the decimal.
    fn from_decimal(decimal: Decimal) -> Price {
        let magnitude = decimal.mantissa as f64;
        let scale = POW10[decimal.exponent.unsigned_abs() as usize];
        let value = if decimal.exponent < 0 { magnitude / scale } else { magnitude * scale };
        Price(if decimal.negative && value != 0.0 { -value } else { value })
    }

    /// The same number as a double.
    pub fn to_f64(self) -> f64 {
        self.0
    }

    /// The price a double stands for, such as a sorted set's score: its 15 significant digits, as `%.15g`
    /// prints them. `None` if that is out of a price's range (NaN, infinite, too large, too fine).
    pub fn from_f64(value: f64) -> Option<Price> {
        if value.fract() == 0.0 && value.abs() < 10_f64.powi(PRICE_DIGITS as i32) {
            return Some(Price(value + 0.0)); // a whole number of so few digits is itself; zero has no sign
        }
        Price::parse(&format!("{value:.*e}", PRICE_DIGITS as usize - 1)).ok().map(|parsed| parsed.value)
    }

    /// Whether this is the price zero.
    pub fn is_zero(self) -> bool {
        self.0 == 0.0
    }
}

/// Plain decimal, never an exponent, no trailing zeros: what `%.15g` prints, written out.
///
/// Rust prints the shortest decimal that reads back as the same double. No two decimals of up to 15 digits are
/// the same double, so that is the price's own decimal.
impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Volume {
    /// Nothing traded, or not said.
    pub const ZERO: Volume = Volume(0);

    /// Parses an exact decimal, with or without exponent: a JSON number, or its text.
    pub fn parse(text: &str) -> Result<Volume, NumberError> {
        let decimal = Decimal::parse(text)?;
        if decimal.mantissa == 0 {
            return Ok(Volume::ZERO);
        }
        if decimal.negative {
            return Err(NumberError::Negative);
        }
        if digits(decimal.mantissa) > VOLUME_DIGITS {
            return Err(NumberError::TooLong);
        }
        Ok(Volume(decimal.mantissa * 10_u128.pow((decimal.exponent + MAX_DECIMALS as i32) as u32)))
    }

    /// Parses a stored sum: plain digits, of which there may be more than in one volume. It stops where
    /// [`Volume::plus`] does.
    pub fn parse_sum(text: &str) -> Result<Volume, NumberError> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let plain = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !plain(whole) || !plain(fraction) {
            return Err(NumberError::Malformed);
        }
        if fraction.len() > MAX_DECIMALS as usize {
            return Err(NumberError::TooFine);
        }
        let missing = MAX_DECIMALS - fraction.len() as u32;
        let units = |part: &str, scale: u32| part.parse::<u128>().ok()?.checked_mul(10_u128.pow(scale));
        let sum = units(whole, MAX_DECIMALS).and_then(|high| high.checked_add(units(fraction, missing)?));
        Ok(Volume(sum.unwrap_or(u128::MAX)))
    }

    /// The exact sum. It stops at 3.4e20, which takes hundreds of the largest volume there is.
    #[must_use]
    pub fn plus(self, other: Volume) -> Volume {
        Volume(self.0.saturating_add(other.0))
    }
}

/// Plain decimal, exact, without trailing zeros.
impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = 10_u128.pow(MAX_DECIMALS);
        let (whole, mut fraction) = (self.0 / unit, self.0 % unit);
        write!(f, "{whole}")?;
        if fraction == 0 {
            return Ok(());
        }
        let mut width = MAX_DECIMALS as usize;
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            width -= 1;
        }
        write!(f, ".{fraction:0width$}")
    }
}

/// `mantissa × 10^exponent`, below 1e18 and without a digit under 1e-18, exactly as the text said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    /// At most 36 digits.
    mantissa: u128,
    /// At least -18. The mantissa of a price ends in a digit at or below 1e17, so at most 17.
    exponent: i32,
}

impl Decimal {
    fn parse(text: &str) -> Result<Decimal, NumberError> {
        match Decimal::short(text.as_bytes()) {
            Some(decimal) => Ok(decimal),
            None => Decimal::any(text.as_bytes()),
        }
    }

    /// The ordinary price: digits and perhaps a point, short enough to be in range whatever the digits.
    fn short(text: &[u8]) -> Option<Decimal> {
        let (negative, unsigned) = strip_minus(text);
        if unsigned.len() > PRICE_DIGITS as usize {
            return None;
        }
        let mut mantissa = 0_u64;
        let mut point = None;
        for (at, byte) in unsigned.iter().enumerate() {
            match byte {
                b'0'..=b'9' => mantissa = mantissa * 10 + u64::from(byte - b'0'),
                b'.' if point.is_none() && at > 0 => point = Some(at),
                _ => return None,
            }
        }
        let decimals = match point {
            Some(at) => unsigned.len() - 1 - at,
            None => 0,
        };
        let complete = unsigned.last().is_some_and(u8::is_ascii_digit);
        complete.then_some(Decimal { negative, mantissa: mantissa.into(), exponent: -(decimals as i32) })
    }

    /// Any JSON number, judged in one pass.
    fn any(text: &[u8]) -> Result<Decimal, NumberError> {
        let (negative, rest) = strip_minus(text);
        let (whole, rest) = split_digits(rest);
        let (fraction, rest) = match rest {
            [b'.', rest @ ..] => split_digits(rest),
            _ => (&[b'0'][..], rest),
        };
        let exponent = match rest {
            [] => 0,
            [b'e' | b'E', rest @ ..] => parse_exponent(rest)?,
            _ => return Err(NumberError::Malformed),
        };
        if whole.is_empty() || fraction.is_empty() {
            return Err(NumberError::Malformed);
        }
        let mut significand = Significand::default();
        whole.iter().chain(fraction).for_each(|byte| significand.push(byte - b'0'));
        if significand.length == 0 {
            return Ok(Decimal { negative, mantissa: 0, exponent: 0 });
        }
        // Powers of ten of the last digit that counts, and of the one above the first.
        let lowest = exponent - fraction.len() as i64 + significand.zeros;
        if lowest + significand.length > i64::from(MAX_DECIMALS) {
            return Err(NumberError::TooLarge);
        }
        if lowest < -i64::from(MAX_DECIMALS) {
            return Err(NumberError::TooFine);
        }
        Ok(Decimal { negative, mantissa: significand.mantissa, exponent: lowest as i32 })
    }

    /// At most `keep` significant digits, half-even; and whether that changed the number.
    fn round(self, keep: u32) -> (Decimal, bool) {
        let excess = digits(self.mantissa).saturating_sub(keep);
        if excess == 0 {
            return (self, false);
        }
        let unit = 10_u128.pow(excess);
        let (kept, cut) = (self.mantissa / unit, self.mantissa % unit);
        let up = cut > unit / 2 || (cut == unit / 2 && kept % 2 == 1);
        let rounded = Decimal {
            mantissa: kept + u128::from(up),
            exponent: self.exponent + excess as i32,
            negative: self.negative,
        };
        (rounded.shortened(keep), cut != 0)
    }

    /// Rounding up 999… gives one digit more than was kept, and that digit is a zero.
    fn shortened(self, keep: u32) -> Decimal {
        if digits(self.mantissa) > keep {
            return Decimal { mantissa: self.mantissa / 10, exponent: self.exponent + 1, ..self };
        }
        self
    }
}

/// The digits from the first to the last that is not zero; zeros after it wait until a digit follows.
#[derive(Default)]
struct Significand {
    /// Meaningless once `length` is beyond what any number in range has.
    mantissa: u128,
    length: i64,
    zeros: i64,
}

impl Significand {
    fn push(&mut self, digit: u8) {
        if digit == 0 {
            self.zeros += i64::from(self.length > 0);
            return;
        }
        let shift = self.zeros + 1;
        self.length += shift;
        self.zeros = 0;
        if self.length <= MAX_DIGITS as i64 {
            self.mantissa = self.mantissa * 10_u128.pow(shift as u32) + u128::from(digit);
        }
    }
}

fn strip_minus(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    }
}

fn split_digits(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count())
}

/// Capped far beyond any text's length, so that no sum of it with a length overflows.
fn parse_exponent(text: &[u8]) -> Result<i64, NumberError> {
    const CAP: i64 = 1 << 60;
    let (negative, digits) = match text {
        [b'+', rest @ ..] => (false, rest),
        _ => strip_minus(text),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(NumberError::Malformed);
    }
    let magnitude = digits.iter().fold(0_i64, |sum, byte| (sum * 10 + i64::from(byte - b'0')).min(CAP / 16));
    Ok(if negative { -magnitude } else { magnitude })
}

/// Digits of a whole number; zero has none.
fn digits(mantissa: u128) -> u32 {
    mantissa.checked_ilog10().map_or(0, |log| log + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn price(text: &str) -> String {
        Price::parse(text).unwrap().value.to_string()
    }

    fn volume(text: &str) -> String {
        Volume::parse(text).unwrap().to_string()
    }

    #[test]
    fn a_long_price_is_rounded_half_even_to_15_digits() {
        for (text, rounded) in [
            ("0.30000000000000004", "0.3"),
            ("10.000000000000001", "10"),
            ("1000000000000.125", "1000000000000.12"),
            ("1000000000000.135", "1000000000000.14"),
            ("1000000000000.1250000000001", "1000000000000.13"),
            ("-1000000000000.125", "-1000000000000.12"),
            ("9.999999999999999", "10"),
            ("99999999999999999", "100000000000000000"),
        ] {
            let parsed = Price::parse(text).unwrap();
            assert_eq!((parsed.value.to_string().as_str(), parsed.rounded), (rounded, true), "{text}");
        }
    }

    #[test]
    fn a_price_of_up_to_15_digits_is_kept() {
        for text in ["0.00000012", "0.0000001", "9505", "-37.63", "999999999999999", "0.000000000000000001"] {
            let parsed = Price::parse(text).unwrap();
            assert_eq!((parsed.value.to_string().as_str(), parsed.rounded), (text, false));
        }
    }

    #[test]
    fn prices_are_printed_plain() {
        for (text, plain) in [
            ("1.2e-7", "0.00000012"),
            ("4.522e-05", "0.00004522"),
            ("1E+3", "1000"),
            ("1e17", "100000000000000000"),
            ("-0.0", "0"),
            ("-0", "0"),
            ("0e999999999", "0"),
            ("68500.0", "68500"),
            ("0.35280000", "0.3528"),
            ("007.50", "7.5"),
            ("0.500000000000000000000000000000000000000000000000", "0.5"),
            ("100000000000000000.000000000000000000000000", "100000000000000000"),
        ] {
            assert_eq!(price(text), plain, "{text}");
        }
        assert!(Price::parse("-0.0").unwrap().value.to_f64().is_sign_positive());
    }

    #[test]
    fn what_is_no_decimal_is_refused() {
        let malformed = [
            "",
            "-",
            "+1",
            "--1",
            "NaN",
            "nan",
            "inf",
            "-inf",
            "Infinity",
            "0x1F",
            "1_000",
            "1,5",
            "1.",
            ".5",
            "-.5",
            "1e",
            "1e+",
            "1e1.5",
            "1.2.3",
            " 1",
            "1 ",
            "e5",
            "1e5x",
            "\u{0661}",
            "1f",
            "1234567890123456.",
            "null",
        ];
        for text in malformed {
            assert_eq!(Price::parse(text), Err(NumberError::Malformed), "{text:?}");
            assert_eq!(Volume::parse(text), Err(NumberError::Malformed), "{text:?}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused_before_they_are_expanded() {
        for (text, error) in [
            ("1e999999999", NumberError::TooLarge),
            ("1e99999999999999999999999999", NumberError::TooLarge),
            ("1000000000000000000", NumberError::TooLarge),
            ("1e18", NumberError::TooLarge),
            ("1000000000000000000000000000000000000000.0000000000000000000000001", NumberError::TooLarge),
            ("1e-19", NumberError::TooFine),
            ("1e-999999999", NumberError::TooFine),
            ("1e-99999999999999999999999999", NumberError::TooFine),
            ("0.1234567890123456789", NumberError::TooFine),
            ("0.10000000000000000000000000000000000000000000000000001", NumberError::TooFine),
        ] {
            assert_eq!(Price::parse(text), Err(error), "{text}");
            assert_eq!(Volume::parse(text), Err(error), "{text}");
        }
        assert_eq!(Price::parse("999999999999999999"), Err(NumberError::TooLarge));
        assert_eq!(Price::parse("-1e18"), Err(NumberError::TooLarge));
    }

    #[test]
    fn a_score_stands_for_its_15_digits() {
        // The right side is what C's printf("%.15g") prints, written out.
        for (score, text) in [
            (0.1 + 0.2, "0.3"),
            (1_000_000_000_000.125, "1000000000000.12"),
            (1_000_000_000_000_005.0, "1000000000000000"),
            (1_000_000_000_000.375, "1000000000000.38"),
            (-0.0, "0"),
            (9505.0, "9505"),
        ] {
            assert_eq!(Price::from_f64(score).unwrap().to_string(), text);
        }
        for score in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e18, -1e18, 1e-19, f64::MAX, f64::MIN_POSITIVE] {
            assert_eq!(Price::from_f64(score), None, "{score}");
        }
    }

    #[test]
    fn only_zero_is_zero() {
        assert!(Price::parse("-0.00e5").unwrap().value.is_zero());
        assert!(!Price::parse("0.000000000000000001").unwrap().value.is_zero());
    }

    #[test]
    fn volumes_are_exact() {
        let sum = Volume::parse("5200").unwrap().plus(Volume::parse("10.43").unwrap());
        assert_eq!(sum.to_string(), "5210.43");
        for (text, plain) in [
            ("58.00000000", "58"),
            ("4.522e-05", "0.00004522"),
            ("0", "0"),
            ("-0.0", "0"),
            ("0.000000000000000001", "0.000000000000000001"),
            ("1234567890.123456789012345678", "1234567890.123456789012345678"),
            ("999999999999999999", "999999999999999999"),
            ("100.100", "100.1"),
        ] {
            assert_eq!(volume(text), plain);
        }
    }

    #[test]
    fn a_stored_sum_may_be_longer_than_a_volume() {
        let sum = |text| Volume::parse_sum(text).map(|sum| sum.to_string());
        for text in ["0", "5210.43", "99999999999999999999.000000000000000001"] {
            assert_eq!(sum(text).as_deref(), Ok(text));
        }
        for text in ["", ".", "1.", ".5", "-1", "1e3", "0x1", "1.0000000000000000001"] {
            assert!(sum(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_volume_below_zero_or_of_29_digits_is_refused() {
        assert_eq!(Volume::parse("-1"), Err(NumberError::Negative));
        assert_eq!(Volume::parse("-0.000000000000000001"), Err(NumberError::Negative));
        assert!(Volume::parse("1234567890.123456789012345678").is_ok());
        assert_eq!(Volume::parse("12345678901.123456789012345678"), Err(NumberError::TooLong));
    }

    /// Decimals as text, with the sign, digits before and after the point they were made of, in all writings.
    fn decimal_text() -> impl Strategy<Value = String> {
        (any::<bool>(), "[0-9]{1,24}", proptest::option::of("[0-9]{1,24}"), proptest::option::of(-30_i32..30))
            .prop_map(|(negative, whole, fraction, exponent)| {
                let sign = if negative { "-" } else { "" };
                let fraction = fraction.map(|f| format!(".{f}")).unwrap_or_default();
                let exponent = exponent.map(|e| format!("e{e}")).unwrap_or_default();
                format!("{sign}{whole}{fraction}{exponent}")
            })
    }

    /// The same number by long-hand: its digits without zeros at either end, and the power of ten of the last.
    fn long_hand(text: &str) -> (bool, Vec<u8>, i64) {
        let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (plain, exponent) = text.split_once('e').unwrap_or((text, "0"));
        let (whole, fraction) = plain.split_once('.').unwrap_or((plain, ""));
        let all = format!("{whole}{fraction}");
        let trimmed = all.trim_end_matches('0');
        let lowest = exponent.parse::<i64>().unwrap() - fraction.len() as i64 + (all.len() - trimmed.len()) as i64;
        (negative, trimmed.trim_start_matches('0').bytes().map(|b| b - b'0').collect(), lowest)
    }

    /// Half-even to 15 digits by long-hand, one digit at a time.
    fn round_long_hand(mut digits: Vec<u8>, mut lowest: i64) -> (Vec<u8>, i64) {
        if digits.len() > 15 {
            let cut = digits.split_off(15);
            lowest += cut.len() as i64;
            let odd = digits[14] % 2 == 1;
            let above_half = cut[0] > 5 || (cut[0] == 5 && (odd || cut[1..].iter().any(|d| *d != 0)));
            let mut carry = u8::from(above_half);
            for digit in digits.iter_mut().rev() {
                *digit += carry;
                carry = u8::from(*digit == 10);
                *digit %= 10;
            }
            if carry == 1 {
                digits.insert(0, 1);
            }
        }
        while digits.last() == Some(&0) {
            digits.pop();
            lowest += 1;
        }
        (digits, lowest)
    }

    proptest! {
        #[test]
        fn parsing_agrees_with_long_hand(text in decimal_text()) {
            let (negative, digits, lowest) = long_hand(&text);
            let top = lowest + digits.len() as i64;
            let (rounded, rounded_lowest) = round_long_hand(digits.clone(), lowest);
            let rounded_top = rounded_lowest + rounded.len() as i64;
            let parsed = Price::parse(&text);
            if digits.is_empty() {
                prop_assert!(parsed.unwrap().value.is_zero());
            } else if top > 18 {
                prop_assert_eq!(parsed, Err(NumberError::TooLarge));
            } else if lowest < -18 {
                prop_assert_eq!(parsed, Err(NumberError::TooFine));
            } else if rounded_top > 18 {
                prop_assert_eq!(parsed, Err(NumberError::TooLarge));
            } else {
                let parsed = parsed.unwrap();
                prop_assert_eq!(parsed.rounded, digits.len() > 15);
                let (shown_negative, shown_digits, shown_lowest) = long_hand(&parsed.value.to_string());
                prop_assert_eq!((shown_negative, shown_digits, shown_lowest), (negative, rounded, rounded_lowest));
            }
        }

        #[test]
        fn text_double_and_json_are_the_same_number(text in decimal_text()) {
            if let Ok(Parsed { value, .. }) = Price::parse(&text) {
                let shown = value.to_string();
                prop_assert!(!shown.contains(['e', 'E']), "{}", shown);
                prop_assert_eq!(Price::parse(&shown).unwrap(), Parsed { value, rounded: false });
                prop_assert_eq!(shown.parse::<f64>().unwrap().to_bits(), value.to_f64().to_bits());
                prop_assert_eq!(serde_json::from_str::<f64>(&shown).unwrap().to_bits(), value.to_f64().to_bits());
                prop_assert_eq!(Price::from_f64(value.to_f64()), Some(value));
            }
        }

        #[test]
        fn a_volume_is_the_number_that_was_sent(text in decimal_text()) {
            let (negative, digits, lowest) = long_hand(&text);
            match Volume::parse(&text) {
                Ok(volume) => {
                    let shown = volume.to_string();
                    prop_assert_eq!(Volume::parse(&shown), Ok(volume));
                    let (_, shown_digits, shown_lowest) = long_hand(&shown);
                    if !digits.is_empty() {
                        prop_assert_eq!((shown_digits, shown_lowest), (digits, lowest));
                    }
                }
                Err(NumberError::Negative) => prop_assert!(negative),
                Err(NumberError::TooLong) => prop_assert!(digits.len() > 28),
                Err(NumberError::TooFine) => prop_assert!(lowest < -18),
                Err(error) => prop_assert_eq!(error, NumberError::TooLarge),
            }
        }

        #[test]
        fn sums_do_not_depend_on_order(texts in proptest::collection::vec("[0-9]{1,9}(\\.[0-9]{1,18})?", 1..20)) {
            let volumes: Vec<Volume> = texts.iter().map(|text| Volume::parse(text).unwrap()).collect();
            let forward = volumes.iter().fold(Volume::ZERO, |sum, v| sum.plus(*v));
            let backward = volumes.iter().rev().fold(Volume::ZERO, |sum, v| sum.plus(*v));
            prop_assert_eq!(forward, backward);
        }

        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = (Price::parse(&text), Volume::parse(&text));
        }
    }
}
