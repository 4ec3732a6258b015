//! Prices and volumes: plain decimals that mean the same number as text, as a double and in JSON.

use std::fmt;

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

    /// Parses a decimal, with or without exponent. Longer than 15 significant digits: rounded half-even.
    pub fn parse(text: &str) -> Result<Parsed<Price>, NumberError> {
        let value: f64 = text.parse().map_err(|_| NumberError::Malformed)?;
        Ok(Parsed { value: Price(value), rounded: false })
    }

    /// The same number as a double.
    pub fn to_f64(self) -> f64 {
        self.0
    }

    /// The price nearest to a double that holds one, such as a sorted set's score; `None` if out of range.
    pub fn from_f64(value: f64) -> Option<Price> {
        value.is_finite().then_some(Price(value))
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Volume {
    /// Nothing traded, or not said.
    pub const ZERO: Volume = Volume(0);

    /// Parses an exact decimal, with or without exponent.
    pub fn parse(text: &str) -> Result<Volume, NumberError> {
        let _ = text;
        Err(NumberError::Malformed)
    }

    /// Parses a stored sum, which may have more digits than one volume.
    pub fn parse_sum(text: &str) -> Result<Volume, NumberError> {
        Volume::parse(text)
    }

    /// The exact sum.
    #[must_use]
    pub fn plus(self, other: Volume) -> Volume {
        Volume(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
