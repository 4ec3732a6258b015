//! The names of every Redis key, in one place (`lua/` has its one helper of the same shape).
//!
//! A symbol stays readable in its key: only `%`, whitespace and control characters are percent-encoded.
//! Names are parsed from the right, so no two symbols collide.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::domain::{Interval, SourcePartition};

/// Builds key names under one namespace (prefix), `tw:` by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    namespace: String,
}

impl Keys {
    /// Keys under `namespace`, which is put in front as it is.
    pub fn new(namespace: impl Into<String>) -> Keys {
        Keys { namespace: namespace.into() }
    }

    /// The prefix of all keys.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    fn symbol_key(&self, family: &str, symbol: &str, rest: &str) -> String {
        format!("{}{family}:{}{rest}", self.namespace, encode_symbol(symbol))
    }

    /// Hash: last price of a symbol.
    pub fn last(&self, symbol: &str) -> String {
        self.symbol_key("last", symbol, "")
    }

    /// Hash: one candle.
    pub fn candle(&self, symbol: &str, interval: Interval, start: i64) -> String {
        self.symbol_key("ohlc", symbol, &format!(":{interval}:{start}"))
    }

    /// Sorted set: edge rules of a symbol.
    pub fn edge_rules(&self, symbol: &str) -> String {
        self.symbol_key("rules", symbol, ":edge")
    }

    /// Sorted set: level rules of a symbol in one direction, `above`, `below` or `equal`.
    pub fn level_rules(&self, symbol: &str, direction: &str) -> String {
        self.symbol_key("rules", symbol, &format!(":level:{direction}"))
    }

    /// Hash: options of a symbol's rules.
    pub fn rule_options(&self, symbol: &str) -> String {
        self.symbol_key("rules", symbol, ":opts")
    }

    /// Hash: when rules with a cooldown last fired.
    pub fn fired(&self, symbol: &str) -> String {
        self.symbol_key("fired", symbol, "")
    }

    /// Hash: owner, positions and counts of a source partition.
    pub fn source(&self, partition: &SourcePartition) -> String {
        format!("{}source:{partition}", self.namespace)
    }

    /// Sorted set: open windows of a source partition.
    pub fn due(&self, partition: &SourcePartition) -> String {
        format!("{}due:{partition}", self.namespace)
    }

    /// Sorted set: open windows of a source partition that changed since they were last sent, under `emit = "updates"`.
    pub fn changed(&self, partition: &SourcePartition) -> String {
        format!("{}changed:{partition}", self.namespace)
    }

    /// Stream: outputs of a source partition not yet known to be delivered.
    pub fn outbox(&self, partition: &SourcePartition) -> String {
        format!("{}outbox:{partition}", self.namespace)
    }

    /// Set: every symbol ever seen, in its encoded form.
    pub fn symbols(&self) -> String {
        format!("{}symbols", self.namespace)
    }
}

/// The form of a symbol in keys: `%`, whitespace and control characters percent-encoded, all else as it is.
pub fn encode_symbol(symbol: &str) -> Cow<'_, str> {
    let special = |c: char| c == '%' || c.is_whitespace() || c.is_control();
    if !symbol.contains(special) {
        return Cow::Borrowed(symbol);
    }
    let mut encoded = String::with_capacity(symbol.len() + 8);
    for c in symbol.chars() {
        if special(c) {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                write!(encoded, "%{byte:02X}").expect("a String takes every write");
            }
        } else {
            encoded.push(c);
        }
    }
    Cow::Owned(encoded)
}

/// The symbol behind its form in keys. What was never encoded comes back as it is.
pub fn decode_symbol(encoded: &str) -> Cow<'_, str> {
    if !encoded.contains('%') {
        return Cow::Borrowed(encoded);
    }
    let bytes = encoded.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = (bytes[i] == b'%').then(|| encoded.get(i + 1..i + 3)).flatten();
        if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            decoded.push(byte);
            i += 3;
        } else {
            decoded.push(bytes[i]);
            i += 1;
        }
    }
    String::from_utf8(decoded).map_or(Cow::Borrowed(encoded), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_stay_readable_and_come_back() {
        for symbol in ["BRK.B", "BTC/USDT:USDT", "ES=F", "{BTC}", "A}B{C", "币安人生USDT", "a:b"] {
            assert_eq!(encode_symbol(symbol), symbol);
            assert_eq!(decode_symbol(symbol), symbol);
        }
        for (symbol, encoded) in [("A B", "A%20B"), ("100%", "100%25"), ("A\u{a0}B\n", "A%C2%A0B%0A")] {
            assert_eq!(encode_symbol(symbol), encoded);
            assert_eq!(decode_symbol(encoded), symbol);
        }
    }
}
