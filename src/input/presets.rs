//! Payloads of exchanges as data: what a trade looks like in each, one row a format.
//!
//! A preset reads one record by itself. What an exchange says once on a connection, such as the symbol behind a
//! channel number, is not in the record: then the record's key must hold it.

use super::InputError;
use crate::config::TsUnit;

/// A named payload format: `[input] format = "<name>"`.
#[derive(Debug)]
pub struct Preset {
    /// The name in the configuration.
    pub name: &'static str,
    /// One line: whose messages, which stream.
    pub summary: &'static str,
    /// What a user should know before using it: what is taken, what is passed over, where the symbol is.
    pub notes: &'static str,
    /// Unit of the time.
    pub(super) ts_unit: TsUnit,
    /// What the sign of a volume says.
    pub(super) volume_sign: VolumeSign,
    /// How several trades in one record are ordered.
    pub(super) order: Order,
    /// The shapes a trade may have; a record is read by each whose conditions hold.
    pub(super) shapes: &'static [Shape],
}

/// What the sign of a volume says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VolumeSign {
    /// A volume below zero is bad.
    None,
    /// Below zero means the taker sold: the volume is the absolute value.
    Side,
}

/// How several trades in one record are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// As they happened.
    OldestFirst,
    /// The other way round. They are turned over, then sorted by time (stable), so that trades of equal time
    /// keep the order in which they happened.
    NewestFirst,
}

/// Where a trade and its fields are. Pointers are relative to the trade; `^` starts at the record's root.
#[derive(Debug)]
pub(super) struct Shape {
    /// The trade, or each trade (`/data/*`), from the record's root.
    pub(super) trades: &'static str,
    /// All must hold, else there is no trade here.
    pub(super) when: &'static [Condition],
    pub(super) symbol: &'static str,
    pub(super) price: &'static str,
    pub(super) volume: &'static str,
    pub(super) ts: &'static str,
}

/// The text at `pointer` is one of `one_of`.
#[derive(Debug)]
pub(super) struct Condition {
    pub(super) pointer: &'static str,
    pub(super) one_of: &'static [&'static str],
}

/// The shape without a preset: `{"symbol":"BBCA","price":9505,"volume":100,"ts":1700000000000}`.
pub(super) const PLAIN: Shape =
    Shape { trades: "", when: &[], symbol: "/symbol", price: "/price", volume: "/volume", ts: "/ts" };

const fn binance(trades: &'static str, when: &'static [Condition]) -> Shape {
    Shape { trades, when, symbol: "/s", price: "/p", volume: "/q", ts: "/T" }
}

const fn bitfinex(trades: &'static str, when: &'static [Condition]) -> Shape {
    Shape { trades, when, symbol: "^/0/symbol", price: "/3", volume: "/2", ts: "/1" }
}

const fn polygon(symbol: &'static str, when: &'static [Condition]) -> Shape {
    Shape { trades: "/*", when, symbol, price: "/p", volume: "/s", ts: "/t" }
}

const AGG_TRADE: &[Condition] = &[Condition { pointer: "/e", one_of: &["aggTrade"] }];
const TRADE: &[Condition] = &[Condition { pointer: "/e", one_of: &["trade"] }];

static PRESETS: [Preset; 9] = [
    Preset {
        name: "binance-aggtrade",
        summary: "Binance aggregate trades (`<symbol>@aggTrade`), spot and futures",
        notes: "Bare or in the combined-stream envelope. Time is the trade time `T`, not the event time `E`.",
        ts_unit: TsUnit::Ms,
        volume_sign: VolumeSign::None,
        order: Order::OldestFirst,
        shapes: &[binance("/data", AGG_TRADE), binance("", AGG_TRADE)],
    },
    Preset {
        name: "binance-trade",
        summary: "Binance single trades (`<symbol>@trade`), spot and futures",
        notes: "Bare or in the combined-stream envelope. Time is the trade time `T`, not the event time `E`.",
        ts_unit: TsUnit::Ms,
        volume_sign: VolumeSign::None,
        order: Order::OldestFirst,
        shapes: &[binance("/data", TRADE), binance("", TRADE)],
    },
    Preset {
        name: "coinbase-match",
        summary: "Coinbase Exchange, channel `matches`",
        notes: "Takes `match` and `last_match` (the trade before the subscription).",
        ts_unit: TsUnit::Rfc3339,
        volume_sign: VolumeSign::None,
        order: Order::OldestFirst,
        shapes: &[Shape {
            trades: "",
            when: &[Condition { pointer: "/type", one_of: &["match", "last_match"] }],
            symbol: "/product_id",
            price: "/price",
            volume: "/size",
            ts: "/time",
        }],
    },
    Preset {
        name: "coinbase-market-trades",
        summary: "Coinbase Advanced Trade, channel `market_trades`",
        notes: "Snapshots and updates. The exchange sends the newest trade first; ticks are put in the order of \
                their times.",
        ts_unit: TsUnit::Rfc3339,
        volume_sign: VolumeSign::None,
        order: Order::NewestFirst,
        shapes: &[Shape {
            trades: "/events/*/trades/*",
            when: &[Condition { pointer: "^/channel", one_of: &["market_trades"] }],
            symbol: "/product_id",
            price: "/price",
            volume: "/size",
            ts: "/time",
        }],
    },
    Preset {
        name: "kraken-v1",
        summary: "Kraken WebSocket v1, channel `trade`",
        notes: "Symbols are pairs as Kraken writes them (`XBT/USD`). Times are cut from µs to ms.",
        ts_unit: TsUnit::S,
        volume_sign: VolumeSign::None,
        order: Order::OldestFirst,
        shapes: &[Shape {
            trades: "/1/*",
            when: &[Condition { pointer: "^/2", one_of: &["trade"] }],
            symbol: "^/3",
            price: "/0",
            volume: "/1",
            ts: "/2",
        }],
    },
    Preset {
        name: "kraken-v2",
        summary: "Kraken WebSocket v2, channel `trade`",
        notes: "Snapshots (past trades) and updates.",
        ts_unit: TsUnit::Rfc3339,
        volume_sign: VolumeSign::None,
        order: Order::OldestFirst,
        shapes: &[Shape {
            trades: "/data/*",
            when: &[Condition { pointer: "^/channel", one_of: &["trade"] }],
            symbol: "/symbol",
            price: "/price",
            volume: "/qty",
            ts: "/timestamp",
        }],
    },
    Preset {
        name: "okx",
        summary: "OKX, channels `trades` and `trades-all`",
        notes: "Volume is in contracts for derivatives, in the base currency for spot, as OKX sends it.",
        ts_unit: TsUnit::Ms,
        volume_sign: VolumeSign::None,
        order: Order::OldestFirst,
        shapes: &[Shape {
            trades: "/data/*",
            when: &[Condition { pointer: "^/arg/channel", one_of: &["trades", "trades-all"] }],
            symbol: "/instId",
            price: "/px",
            volume: "/sz",
            ts: "/ts",
        }],
    },
    Preset {
        name: "bitfinex",
        summary: "Bitfinex WebSocket v2, channel `trades` of trading pairs",
        notes: "A payload names a channel number; its symbol was in the `subscribed` message and is not in the \
                record. So the record's key must be the symbol, or `[0]` an object with it \
                (`{\"symbol\":\"tBTCUSD\"}`). Takes snapshots `[id,[[…],…]]` (newest first; ticks are put in the \
                order of their times) and `te`; passes over `tu`, which repeats the trade of a `te`. A volume \
                below zero is a sell: its absolute value counts. Send the `trades` channel only: an array of \
                arrays of another channel looks the same.",
        ts_unit: TsUnit::Ms,
        volume_sign: VolumeSign::Side,
        order: Order::NewestFirst,
        shapes: &[bitfinex("/1/*", &[]), bitfinex("/2", &[Condition { pointer: "^/1", one_of: &["te"] }])],
    },
    Preset {
        name: "polygon",
        summary: "Polygon (Massive) stocks `T` and crypto `XT` trades",
        notes: "An array of events; quotes, aggregates and status events are passed over. One bad trade sends \
                the whole record to the dead-letter topic.",
        ts_unit: TsUnit::Ms,
        volume_sign: VolumeSign::None,
        order: Order::OldestFirst,
        shapes: &[
            polygon("/sym", &[Condition { pointer: "/ev", one_of: &["T"] }]),
            polygon("/pair", &[Condition { pointer: "/ev", one_of: &["XT"] }]),
        ],
    },
];

/// Every preset, for listings.
pub fn presets() -> impl Iterator<Item = &'static Preset> {
    PRESETS.iter()
}

/// The preset of that name; an error that names the nearest one.
pub(super) fn find(name: &str) -> Result<&'static Preset, InputError> {
    presets().find(|preset| preset.name == name).ok_or_else(|| {
        let likeness = |preset: &&Preset| strsim::jaro_winkler(preset.name, name);
        let nearest = presets().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        InputError::UnknownFormat {
            name: name.into(),
            nearest: nearest.map_or("", |preset| preset.name),
            known: presets().map(|preset| preset.name).collect::<Vec<_>>().join(", "),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_row_is_documented() {
        let names: Vec<&str> = presets().map(|preset| preset.name).collect();
        for preset in presets() {
            assert_eq!(names.iter().filter(|name| **name == preset.name).count(), 1);
            assert!(!preset.summary.is_empty() && !preset.notes.is_empty() && !preset.shapes.is_empty());
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        for (given, nearest) in
            [("krakenv2", "kraken-v2"), ("binance-aggTrades", "binance-aggtrade"), ("okex", "okx")]
        {
            let error = find(given).unwrap_err().to_string();
            assert!(error.contains(&format!("did you mean {nearest:?}")), "{error}");
            assert!(error.contains("[input] format"), "{error}");
        }
    }
}
