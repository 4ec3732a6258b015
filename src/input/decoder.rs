//! From captured fields to ticks, or to one sentence about what is wrong with the record.

use std::fmt::Display;

use super::InputError;
use super::mapping::{Mapping, TradeMapping};
use super::plan::{Plan, Target};
use super::pointer::Pointer;
use super::presets::{Order, VolumeSign};
use super::symbols::Symbols;
use super::time;
use super::walk::{Captures, Field, Trade};
use crate::config::{InputConfig, PriceZero};
use crate::domain::{BadRecord, Parsed, Price, Tick, Volume};

/// Longest symbol, in bytes.
pub(crate) const MAX_SYMBOL: usize = 256;

/// Most characters of a record's own text in a message.
const EXCERPT: usize = 80;

/// Knows how the records of a topic are read; built once and shared.
#[derive(Debug)]
pub struct Decoder {
    mapping: Mapping,
    plan: Plan,
}

/// Where the ticks of a record go, and what is reused from record to record.
#[derive(Debug, Default)]
pub(super) struct Sink {
    captures: Captures,
    pub(super) symbols: Symbols,
    pub(super) ticks: Vec<Tick>,
    pub(super) rounded: u64,
}

impl Decoder {
    /// Checks `[input]` and prepares its mapping.
    pub fn new(config: &InputConfig) -> Result<Decoder, InputError> {
        let mapping = Mapping::new(config)?;
        let plan = Plan::new(&mapping);
        Ok(Decoder { mapping, plan })
    }

    /// Appends the ticks of one record to the sink: all of them, or none if the record is bad.
    pub(super) fn decode(
        &self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        sink: &mut Sink,
    ) -> Result<(), BadRecord> {
        self.check_size(value)?;
        let text = json_text(value)?;
        let (first, rounded) = (sink.ticks.len(), sink.rounded);
        let outcome = self.decode_text(key, text, sink);
        if outcome.is_err() {
            sink.ticks.truncate(first);
            sink.rounded = rounded;
        } else if self.mapping.order == Order::NewestFirst {
            sink.ticks[first..].reverse();
            sink.ticks[first..].sort_by_key(|tick| tick.ts);
        }
        outcome
    }

    /// Before anything is made of it.
    fn check_size(&self, value: Option<&[u8]>) -> Result<(), BadRecord> {
        let (bytes, most) = (value.map_or(0, <[u8]>::len), self.mapping.max_bytes);
        if bytes <= most {
            return Ok(());
        }
        let next = "send smaller records, or raise the limit";
        Err(bad(
            "size",
            format!("the value has {bytes} bytes, more than [input] max_record_bytes ({most}); {next}"),
        ))
    }

    fn too_many_ticks(&self) -> BadRecord {
        let most = self.mapping.max_ticks;
        let next = "send them in several records, or raise the limit";
        bad("size", format!("the record has more ticks than [input] max_record_ticks ({most}); {next}"))
    }

    fn decode_text(&self, key: Option<&[u8]>, text: &str, sink: &mut Sink) -> Result<(), BadRecord> {
        let first = sink.ticks.len();
        sink.captures.walk(&self.plan, text).map_err(|error| {
            bad("json", format!("the value is not JSON ({error}): {}; send one JSON value a record", excerpt(text)))
        })?;
        if self.mapping.trades_required && !sink.captures.trades_met() {
            return Err(self.no_trades(text));
        }
        for trade in sink.captures.trades() {
            let reader = TradeReader {
                mapping: &self.mapping,
                shape: &self.mapping.shapes[trade.shape],
                captures: &sink.captures,
                text,
                trade: *trade,
            };
            let slots = &self.plan.shapes[trade.shape];
            if !reader.is_trade(&slots.when) {
                continue;
            }
            if sink.ticks.len() - first == self.mapping.max_ticks {
                return Err(self.too_many_ticks());
            }
            let symbol = reader.symbol(slots.symbol, key)?;
            let Parsed { value: price, rounded } = reader.price(slots.price)?;
            let volume = reader.volume(slots.volume)?;
            let ts = reader.ts(slots.ts)?;
            sink.rounded += u64::from(rounded);
            sink.ticks.push(Tick { symbol: sink.symbols.index_of(symbol), price, volume, ts });
        }
        Ok(())
    }

    fn no_trades(&self, text: &str) -> BadRecord {
        let pointer = self.mapping.shapes.first().map_or("", |shape| &shape.trades.text);
        let value = excerpt(text);
        bad("records", format!("there is no array of trades at {pointer:?} in {value}; check [input] records"))
    }
}

/// Reads the fields of one trade.
struct TradeReader<'a> {
    mapping: &'a Mapping,
    shape: &'a TradeMapping,
    captures: &'a Captures,
    text: &'a str,
    trade: Trade,
}

impl<'a> TradeReader<'a> {
    fn field(&self, target: Target) -> Field<'a> {
        self.captures.field(self.text, self.trade, target)
    }

    /// Whether every condition of the shape holds.
    fn is_trade(&self, when: &[Target]) -> bool {
        when.iter().zip(&self.shape.when).all(|(target, (_, one_of))| match self.field(*target) {
            Field::Text(text) => one_of.contains(&text),
            _ => false,
        })
    }

    /// From the value, else the record's key.
    fn symbol<'k: 'a>(&self, target: Target, key: Option<&'k [u8]>) -> Result<&'a str, BadRecord> {
        let pointer = &self.shape.symbol;
        let symbol = match (self.field(target), key) {
            (Field::Text(symbol), _) => symbol,
            (Field::Missing | Field::Null, Some(key)) => std::str::from_utf8(key).map_err(|_| {
                bad(
                    "symbol",
                    format!("there is no symbol at {pointer}, and the record's key is not UTF-8; send the symbol in one of the two"),
                )
            })?,
            (Field::Missing | Field::Null, None) => {
                let place = self.place(pointer);
                let problem = "is missing, and the record has no key to take it from; send one of the two, or set \
                               [input] symbol";
                return Err(bad("symbol", format!("the symbol at {place} {problem}")));
            }
            (field, _) => return Err(self.wrong("symbol", pointer, "is not text", field, "send it as JSON text")),
        };
        match symbol.len() {
            0 => Err(bad("symbol", "the symbol is empty; send it in the value, or as the record's key".into())),
            1..=MAX_SYMBOL => Ok(symbol),
            _ => {
                let problem = format!("is longer than {MAX_SYMBOL} bytes");
                Err(self.wrong("symbol", pointer, problem, Field::Text(symbol), "check [input] symbol"))
            }
        }
    }

    fn price(&self, target: Target) -> Result<Parsed<Price>, BadRecord> {
        let field = self.field(target);
        let wrong = |problem: &dyn Display, next| self.wrong("price", &self.shape.price, problem, field, next);
        let next = "send a JSON number or its text, or set [input] price";
        let (Field::Number(text) | Field::Text(text)) = field else {
            return Err(wrong(&not_a_number(field), next));
        };
        let price = Price::parse(text).map_err(|error| wrong(&error, next))?;
        if price.value.is_zero() && self.mapping.price_zero == PriceZero::Reject {
            return Err(wrong(&"is zero", "set [input] price_zero = \"accept\" if that is a price here"));
        }
        Ok(price)
    }

    fn volume(&self, target: Target) -> Result<Volume, BadRecord> {
        let field = self.field(target);
        let wrong = |problem: &dyn Display| {
            let next = "send a JSON number or its text, or set [input] volume";
            self.wrong("volume", &self.shape.volume, problem, field, next)
        };
        let text = match field {
            Field::Number(text) | Field::Text(text) => text,
            Field::Missing | Field::Null if !self.mapping.volume_required => return Ok(Volume::ZERO),
            _ => return Err(wrong(&not_a_number(field))),
        };
        let unsigned = match self.mapping.volume_sign {
            VolumeSign::None => text,
            VolumeSign::Side => text.strip_prefix('-').unwrap_or(text),
        };
        Volume::parse(unsigned).map_err(|error| wrong(&error))
    }

    fn ts(&self, target: Target) -> Result<i64, BadRecord> {
        let field = self.field(target);
        if matches!(field, Field::Missing | Field::Null) {
            return Err(self.wrong("ts", &self.shape.ts, not_a_number(field), field, "send it, or set [input] ts"));
        }
        time::read(self.mapping.ts_unit, field).map_err(|error| {
            let place = self.place(&self.shape.ts);
            bad("ts", format!("the ts at {place}, {}, {error}", show(field)))
        })
    }

    /// `the price at "/price" (trade 2), "abc", is not a decimal number; <next step>`
    fn wrong(
        &self,
        kind: &'static str,
        pointer: &Pointer,
        problem: impl Display,
        field: Field<'_>,
        next: &str,
    ) -> BadRecord {
        let place = self.place(pointer);
        match field {
            Field::Missing | Field::Null => bad(kind, format!("the {kind} at {place} {problem}; {next}")),
            _ => bad(kind, format!("the {kind} at {place}, {}, {problem}; {next}", show(field))),
        }
    }

    /// The pointer, and which trade of the record it is if there are several.
    fn place(&self, pointer: &Pointer) -> String {
        let same_shape = || self.captures.trades().iter().filter(|trade| trade.shape == self.trade.shape);
        match same_shape().position(|trade| *trade == self.trade) {
            Some(index) if same_shape().count() > 1 => format!("{pointer} (trade {} of the record)", index + 1),
            _ => pointer.to_string(),
        }
    }
}

fn json_text(value: Option<&[u8]>) -> Result<&str, BadRecord> {
    let value = value.ok_or_else(|| {
        bad(
            "null_value",
            "the value is null (a tombstone), which holds no price; send a value, or keep tombstones off this topic".into(),
        )
    })?;
    std::str::from_utf8(value).map_err(|error| {
        let start = &value[..value.len().min(4 * EXCERPT)];
        let start = excerpt(&String::from_utf8_lossy(start));
        bad("json", format!("the value is not JSON ({error}): {start}; send one JSON value a record, in UTF-8"))
    })
}

fn bad(kind: &'static str, reason: String) -> BadRecord {
    BadRecord { kind, reason }
}

fn not_a_number(field: Field<'_>) -> &'static str {
    match field {
        Field::Missing => "is missing",
        Field::Null => "is null",
        _ => "is neither a number nor text",
    }
}

fn show(field: Field<'_>) -> String {
    match field {
        Field::Missing => "missing".into(),
        Field::Null => "null".into(),
        Field::Number(raw) | Field::Other(raw) => excerpt(raw),
        Field::Text(text) => format!("\"{}\"", excerpt(text)),
    }
}

/// The start of `text`, on one line.
fn excerpt(text: &str) -> String {
    let mut start: String = text.chars().take(EXCERPT).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(EXCERPT).is_some() {
        start.push('…');
    }
    start
}
