//! One pass over a record's JSON, which captures the wanted fields as the text that was sent.
//!
//! Nothing is built of the rest. A number is never read through a double; text is borrowed from the record unless
//! it holds escapes.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::plan::{FrameKind, Node, NodeId, Plan, ShapeId, Target};

/// What a walk found; reused from record to record.
#[derive(Debug, Default)]
pub(super) struct Captures {
    /// The slots of all frames, one frame after the other; the root's comes first.
    slots: Vec<Capture>,
    /// The trades met, in order.
    trades: Vec<Trade>,
    /// First slot of the trade that is being read, by shape.
    current: Vec<usize>,
    /// Text that held escapes, without them.
    unescaped: String,
    /// Whether an array of trades was met, empty or not.
    array_met: bool,
}

/// A trade that was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trade {
    /// Its shape.
    pub(super) shape: ShapeId,
    /// Its first slot.
    base: usize,
}

/// A captured field, as places in the record's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Capture {
    Missing,
    Null,
    Number(Span),
    Text(Span),
    /// In `Captures::unescaped`.
    Unescaped(Span),
    /// A boolean, an object or an array.
    Other(Span),
}

/// From and to, in bytes. A record is smaller than 2 GiB (Kafka's sizes are 32 bit).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span(u32, u32);

/// A captured field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field<'a> {
    /// Not in the record.
    Missing,
    /// `null`.
    Null,
    /// A JSON number, as it was sent.
    Number(&'a str),
    /// The content of a JSON text.
    Text(&'a str),
    /// A boolean, an object or an array, as it was sent.
    Other(&'a str),
}

impl Captures {
    /// Walks `text`, which must be one JSON value; forgets what an earlier walk found.
    pub(super) fn walk(&mut self, plan: &Plan, text: &str) -> Result<(), serde_json::Error> {
        self.slots.clear();
        self.slots.resize(plan.root_slots(), Capture::Missing);
        self.trades.clear();
        self.current.clear();
        self.current.resize(plan.shapes.len(), 0);
        self.unescaped.clear();
        self.array_met = false;
        let mut json = serde_json::Deserializer::from_str(text);
        Walk { plan, node: Plan::ROOT, text, found: self }.deserialize(&mut json)?;
        json.end()
    }

    /// The trades met, in the order of the payload.
    pub(super) fn trades(&self) -> &[Trade] {
        &self.trades
    }

    /// Whether trades were found where they should be; an empty array of trades counts.
    pub(super) fn trades_met(&self) -> bool {
        self.array_met || !self.trades.is_empty()
    }

    /// The field of `trade` at `target`, in the `text` that was walked.
    pub(super) fn field<'a>(&'a self, text: &'a str, trade: Trade, target: Target) -> Field<'a> {
        let base = match target.frame {
            FrameKind::Root => 0,
            FrameKind::Trade(_) => trade.base,
        };
        match self.slots[base + target.slot] {
            Capture::Missing => Field::Missing,
            Capture::Null => Field::Null,
            Capture::Number(span) => Field::Number(span.of(text)),
            Capture::Text(span) => Field::Text(span.of(text)),
            Capture::Unescaped(span) => Field::Text(span.of(&self.unescaped)),
            Capture::Other(span) => Field::Other(span.of(text)),
        }
    }

    fn begin_trades(&mut self, plan: &Plan, shapes: &[ShapeId]) {
        for &shape in shapes {
            let base = self.slots.len();
            self.slots.resize(base + plan.trade_slots(shape), Capture::Missing);
            self.current[shape] = base;
            self.trades.push(Trade { shape, base });
        }
    }

    fn capture(&mut self, targets: &[Target], raw: &str, text: &str) -> Result<(), serde_json::Error> {
        let capture = self.read(raw, text)?;
        for target in targets {
            let base = match target.frame {
                FrameKind::Root => 0,
                FrameKind::Trade(shape) => self.current[shape],
            };
            self.slots[base + target.slot] = capture;
        }
        Ok(())
    }

    /// `raw` is a JSON value within `text`.
    fn read(&mut self, raw: &str, text: &str) -> Result<Capture, serde_json::Error> {
        let span = Span::within(raw, text);
        Ok(match raw.as_bytes() {
            [b'"', content @ .., b'"'] if !content.contains(&b'\\') => Capture::Text(Span(span.0 + 1, span.1 - 1)),
            [b'"', ..] => {
                let start = self.unescaped.len() as u32;
                self.unescaped.push_str(&serde_json::from_str::<String>(raw)?);
                Capture::Unescaped(Span(start, self.unescaped.len() as u32))
            }
            [b'n', ..] => Capture::Null,
            [b'-' | b'0'..=b'9', ..] => Capture::Number(span),
            _ => Capture::Other(span),
        })
    }
}

impl Span {
    fn within(part: &str, whole: &str) -> Span {
        let start = part.as_ptr().addr() - whole.as_ptr().addr();
        Span(start as u32, (start + part.len()) as u32)
    }

    fn of(self, text: &str) -> &str {
        &text[self.0 as usize..self.1 as usize]
    }
}

/// The walk at one node.
struct Walk<'w> {
    plan: &'w Plan,
    node: NodeId,
    text: &'w str,
    found: &'w mut Captures,
}

impl Walk<'_> {
    fn here(&self) -> &Node {
        self.plan.node(self.node)
    }

    fn at(&mut self, node: NodeId) -> Walk<'_> {
        Walk { plan: self.plan, node, text: self.text, found: self.found }
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        let node = self.plan.node(self.node);
        self.found.begin_trades(self.plan, &node.trade_of);
        if node.captures.is_empty() {
            return json.deserialize_any(self);
        }
        let raw = <&RawValue as serde::Deserialize>::deserialize(json)?.get();
        self.found.capture(&node.captures, raw, self.text).map_err(D::Error::custom)?;
        // Wanted as a whole and in part, such as `[1]` of `[id,"te",[…]]` and of `[id,[[…],…]]`: rare, read twice.
        if node.has_children() && raw.starts_with(['{', '[']) {
            return serde_json::Deserializer::from_str(raw).deserialize_any(self).map_err(D::Error::custom);
        }
        Ok(())
    }
}

/// Descends into objects and arrays; at a plain value there is nothing more to find.
impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(child) = map.next_key_seed(Key(self.here()))? {
            match child {
                Some(child) => map.next_value_seed(self.at(child))?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut array: A) -> Result<(), A::Error> {
        let mut index = 0;
        loop {
            let more = match self.here().element(index) {
                Some(child) => array.next_element_seed(self.at(child))?.is_some(),
                None => array.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
            index += 1;
        }
        if let Some(each) = self.here().each {
            self.found.array_met |= index == 0 || !self.plan.node(each).trade_of.is_empty();
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Looks a key of an object up.
struct Key<'n>(&'n Node);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Option<NodeId>;

    fn deserialize<D: Deserializer<'de>>(self, key: D) -> Result<Option<NodeId>, D::Error> {
        key.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Option<NodeId>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Option<NodeId>, E> {
        Ok(self.0.key(key))
    }
}
