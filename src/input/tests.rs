//! What a record decodes to, seen from where records are pushed.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::config::{InputConfig, PriceZero, TsUnit};
use crate::domain::{BadRecord, Chunk, Offset};

/// Key and value.
type KeyValue<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// A chunk of these (key, value) records, offsets from 0.
fn chunk(config: &InputConfig, records: &[KeyValue<'_>]) -> Chunk {
    let mut builder = ChunkBuilder::new(Arc::new(Decoder::new(config).unwrap()));
    for (offset, (key, value)) in records.iter().enumerate() {
        builder.push(RawRecord {
            offset: Offset(offset as i64),
            timestamp: 1_700_000_000_000,
            broker_time: false,
            key: *key,
            value: *value,
            headers: None,
        });
    }
    assert_eq!(builder.len(), records.len());
    builder.take()
}

/// The ticks of one record as text, `symbol price volume ts`, or what is bad about it.
fn decode(config: &InputConfig, key: Option<&str>, value: &str) -> Result<Vec<String>, BadRecord> {
    let chunk = chunk(config, &[(key.map(str::as_bytes), Some(value.as_bytes()))]);
    let record = &chunk.records[0];
    if let Some(bad) = &record.bad {
        assert!(record.ticks.is_empty() && chunk.ticks.is_empty());
        return Err((**bad).clone());
    }
    let show = |tick: &_| -> String {
        let crate::domain::Tick { price, volume, ts, .. } = tick;
        format!("{} {price} {volume} {ts}", chunk.symbol_of(tick))
    };
    Ok(chunk.ticks_of(record).iter().map(show).collect())
}

fn plain(value: &str) -> Result<Vec<String>, BadRecord> {
    decode(&InputConfig::default(), None, value)
}

fn preset(name: &str) -> InputConfig {
    InputConfig { format: Some(name.into()), ..InputConfig::default() }
}

/// Asserts that `outcome` is bad with `kind`, and that the message holds each of `parts`.
fn assert_bad(outcome: Result<Vec<String>, BadRecord>, kind: &str, parts: &[&str]) {
    let bad = outcome.unwrap_err();
    assert_eq!(bad.kind, kind, "{}", bad.reason);
    for part in parts {
        assert!(bad.reason.contains(part), "{part:?} is not in {:?}", bad.reason);
    }
}

#[test]
fn a_plain_record_is_one_tick() {
    for value in [
        r#"{"symbol":"BBCA","price":9505,"volume":100,"ts":1700000000000}"#,
        r#"{"symbol":"BBCA","price":"9505","volume":"100","ts":"1700000000000"}"#,
        r#" { "ts" : 1.700000000000e12 , "x":{"price":[1,{"a":null}]}, "ts":1700000000000, "volume":1e2, "price": 9505.0, "symbol":"\u0042BCA" } "#,
    ] {
        assert_eq!(plain(value).unwrap(), ["BBCA 9505 100 1700000000000"]);
    }
}

#[test]
fn a_number_is_the_text_that_was_sent() {
    let value =
        r#"{"symbol":"X","price":0.30000000000000004,"volume":1234567890.123456789012345678,"ts":1700000000000}"#;
    assert_eq!(plain(value).unwrap(), ["X 0.3 1234567890.123456789012345678 1700000000000"]);
}

#[test]
fn rounded_prices_are_counted_but_not_those_of_bad_records() {
    let good = br#"{"symbol":"X","price":0.30000000000000004,"ts":1700000000000}"#.as_slice();
    let bad = br#"[{"symbol":"X","price":0.30000000000000004,"ts":1700000000000},{}]"#.as_slice();
    assert_eq!(chunk(&InputConfig::default(), &[(None, Some(good)), (None, Some(good))]).rounded, 2);
    let config = InputConfig { records: Some(String::new()), ..InputConfig::default() };
    assert_eq!(chunk(&config, &[(None, Some(bad))]).rounded, 0);
}

#[test]
fn a_symbol_not_in_the_value_is_the_records_key() {
    let value = r#"{"price":1,"ts":1700000000000}"#;
    let config = InputConfig::default();
    assert_eq!(decode(&config, Some("BRK.B"), value).unwrap(), ["BRK.B 1 0 1700000000000"]);
    let named = r#"{"symbol":"A","price":1,"ts":1700000000000}"#;
    assert_eq!(decode(&config, Some("B"), named).unwrap(), ["A 1 0 1700000000000"]);
    assert_bad(decode(&config, None, value), "symbol", &["\"/symbol\"", "key", "[input] symbol"]);
    let not_utf8 = chunk(&config, &[(Some(b"\xff"), Some(value.as_bytes()))]);
    assert_eq!(not_utf8.records[0].bad.as_ref().unwrap().kind, "symbol");
}

#[test]
fn a_symbol_is_text_of_1_to_256_bytes() {
    let with = |symbol: &str| plain(&format!(r#"{{"symbol":{symbol},"price":1,"ts":1700000000000}}"#));
    for symbol in ["BTC/USDT:USDT", "{BTC}", "币安人生USDT", "A B", &"x".repeat(256)] {
        assert_eq!(with(&format!("{symbol:?}")).unwrap(), [format!("{symbol} 1 0 1700000000000")]);
    }
    assert_eq!(with(r#""a\"b\n""#).unwrap(), ["a\"b\n 1 0 1700000000000"]);
    assert_bad(with("\"\""), "symbol", &["empty"]);
    assert_bad(with("700"), "symbol", &["700", "is not text"]);
    assert_bad(with(&format!("{:?}", "x".repeat(257))), "symbol", &["256 bytes", "…"]);
    assert_bad(decode(&InputConfig::default(), Some(""), r#"{"price":1}"#), "symbol", &["empty"]);
}

#[test]
fn a_missing_or_null_volume_is_zero_unless_it_is_required() {
    let required = InputConfig { volume_required: Some(true), ..InputConfig::default() };
    for value in [
        r#"{"symbol":"X","price":1,"ts":1700000000000}"#,
        r#"{"symbol":"X","price":1,"volume":null,"ts":1700000000000}"#,
    ] {
        assert_eq!(plain(value).unwrap(), ["X 1 0 1700000000000"]);
        assert_bad(decode(&required, None, value), "volume", &["\"/volume\""]);
    }
}

#[test]
fn a_price_or_volume_that_is_no_number_is_bad() {
    let with = |price: &str, volume: &str| {
        plain(&format!(r#"{{"symbol":"X","price":{price},"volume":{volume},"ts":1700000000000}}"#))
    };
    for price in ["null", "true", "\"NaN\"", "\"\"", "\"abc\"", "[1]", "{}", "1e18", "1e999999999", "\"0x1F\""] {
        assert_bad(with(price, "1"), "price", &["\"/price\"", "[input] price"]);
    }
    for volume in ["true", "\"NaN\"", "\"\"", "-1", "1e18", "{}"] {
        assert_bad(with("1", volume), "volume", &["\"/volume\"", "[input] volume"]);
    }
    assert_bad(with("\"abc\"", "1"), "price", &["the price at \"/price\", \"abc\", is not a decimal number; "]);
    let long = "y".repeat(100);
    let bad = with(&format!("{long:?}"), "1").unwrap_err();
    assert!(bad.reason.contains(&format!("\"{}…\"", &long[..80])), "{}", bad.reason);
}

#[test]
fn negative_prices_are_legal_and_zero_follows_price_zero() {
    let with = |price: &str| format!(r#"{{"symbol":"CL","price":{price},"ts":1700000000000}}"#);
    assert_eq!(plain(&with("-37.63")).unwrap(), ["CL -37.63 0 1700000000000"]);
    let accept = InputConfig { price_zero: Some(PriceZero::Accept), ..InputConfig::default() };
    for zero in ["0", "-0.00", "\"0e5\""] {
        assert_bad(plain(&with(zero)), "price", &["is zero", "price_zero"]);
        assert_eq!(decode(&accept, None, &with(zero)).unwrap(), ["CL 0 0 1700000000000"]);
    }
}

#[test]
fn a_time_in_the_wrong_unit_is_bad_and_the_unit_is_guessed() {
    let with = |ts: &str| plain(&format!(r#"{{"symbol":"X","price":1,"ts":{ts}}}"#));
    assert_bad(with("1700000000000000"), "ts", &["\"/ts\"", "1700000000000000", "ts_unit = \"us\""]);
    assert_bad(with("\"2023-11-14T22:13:20Z\""), "ts", &["ts_unit = \"rfc3339\""]);
    assert_bad(with("null"), "ts", &["is null", "[input] ts"]);
    assert_bad(plain(r#"{"symbol":"X","price":1}"#), "ts", &["is missing", "[input] ts"]);
}

#[test]
fn what_is_not_json_is_bad_and_shows_its_start() {
    for value in ["", "{", "price=1", "{\"a\":1}{\"a\":2}", "{\"symbol\":\"X\",}", "nul"] {
        assert_bad(plain(value), "json", &["is not JSON", value]);
    }
    let not_utf8 = chunk(&InputConfig::default(), &[(None, Some(b"{\"symbol\":\"\xff\"}"))]);
    assert_eq!(not_utf8.records[0].bad.as_ref().unwrap().kind, "json");
    for value in ["5", "null", "[]", "\"text\"", "{}"] {
        assert_bad(decode(&InputConfig::default(), Some("X"), value), "price", &["\"/price\" is missing"]);
    }
}

#[test]
fn a_tombstone_is_bad() {
    let chunk = chunk(&InputConfig::default(), &[(Some(b"X"), None)]);
    assert_eq!(chunk.records[0].bad.as_ref().unwrap().kind, "null_value");
    assert_eq!(chunk.records[0].value, None);
}

#[test]
fn a_record_keeps_its_bytes_and_its_checksum() {
    let chunk =
        chunk(&InputConfig::default(), &[(Some(b"k"), Some(b"bad")), (None, Some(b"kbad")), (Some(b""), None)]);
    let [first, second, third] = &chunk.records[..] else { panic!("three records") };
    assert_eq!(chunk.slice(first.key.as_ref().unwrap()), b"k");
    assert_eq!(chunk.slice(first.value.as_ref().unwrap()), b"bad");
    assert_eq!(chunk.slice(second.value.as_ref().unwrap()), b"kbad");
    assert_eq!((second.key.as_ref(), third.value.as_ref()), (None, None));
    assert_eq!(first.checksum, second.checksum);
    assert_eq!(first.checksum, crc32fast::hash(b"kbad"));
}

#[test]
fn a_bad_record_leaves_its_neighbours_alone() {
    let good = br#"{"symbol":"X","price":1,"ts":1700000000000}"#.as_slice();
    let chunk = chunk(&InputConfig::default(), &[(None, Some(good)), (None, Some(b"{")), (None, Some(good))]);
    let ticks: Vec<_> = chunk.records.iter().map(|record| record.ticks.clone()).collect();
    assert_eq!(ticks, [0..1, 1..1, 1..2]);
    assert_eq!(chunk.symbols, [Box::from("X")]);
}

#[test]
fn an_array_of_trades_is_one_unit() {
    let config = InputConfig {
        records: Some("/data/trades".into()),
        symbol: Some("^/meta/0/s~1m".into()),
        price: Some("/0".into()),
        volume: Some("/1/q".into()),
        ts: Some("/2".into()),
        ts_unit: Some(TsUnit::S),
        ..InputConfig::default()
    };
    let value = |second: &str| {
        format!(
            r#"{{"data":{{"trades":[["1.5",{{"q":2}},1700000000.1239],{second}]}},"meta":[{{"s/m":"A"}},{{"s/m":"B"}}]}}"#
        )
    };
    assert_eq!(
        decode(&config, None, &value("[2,{},1700000000]")).unwrap(),
        ["A 1.5 2 1700000000123", "A 2 0 1700000000000"]
    );
    assert_bad(
        decode(&config, None, &value("[\"x\",{},1700000000]")),
        "price",
        &["\"/0\" (trade 2 of the record)"],
    );
    assert_eq!(decode(&config, None, r#"{"data":{"trades":[]}}"#).unwrap(), [""; 0]);
    for missing in ["{}", r#"{"data":{"trades":{}}}"#, r#"{"data":[]}"#, "[1]"] {
        assert_bad(decode(&config, None, missing), "records", &["\"/data/trades\"", "[input] records"]);
    }
}

#[test]
fn the_pointer_of_the_trades_may_step_through_arrays() {
    let config = InputConfig { records: Some("/*/t".into()), ..InputConfig::default() };
    let trade = |price: u32| format!(r#"{{"symbol":"X","price":{price},"ts":1700000000000}}"#);
    let value = format!(r#"[{{"t":[{},{}]}},{{"u":1}},{{"t":[{}]}}]"#, trade(1), trade(2), trade(3));
    let ticks = decode(&config, None, &value).unwrap();
    assert_eq!(ticks, ["X 1 0 1700000000000", "X 2 0 1700000000000", "X 3 0 1700000000000"]);
    assert_eq!(decode(&config, None, "[]").unwrap(), [""; 0]);
}

#[test]
fn an_element_wanted_by_its_index_is_also_one_of_the_trades() {
    let config =
        InputConfig { records: Some(String::new()), symbol: Some("^/0/symbol".into()), ..InputConfig::default() };
    let value = r#"[{"symbol":"X","price":1,"ts":1700000000000},{"price":2,"ts":1700000000000}]"#;
    assert_eq!(decode(&config, None, value).unwrap(), ["X 1 0 1700000000000", "X 2 0 1700000000000"]);
}

#[test]
fn a_message_without_a_trade_is_not_bad_under_a_preset() {
    for (name, value) in [
        ("binance-aggtrade", r#"{"result":null,"id":1}"#),
        ("binance-aggtrade", r#"{"e":"trade","s":"X","p":"1","q":"1","T":1700000000000}"#),
        ("binance-trade", r#"{"stream":"x@depth","data":{"e":"depthUpdate","s":"X"}}"#),
        ("coinbase-match", r#"{"type":"subscriptions","channels":[]}"#),
        ("coinbase-match", r#"{"type":"heartbeat","time":"2023-11-14T22:13:20Z"}"#),
        ("coinbase-market-trades", r#"{"channel":"subscriptions","events":[{"subscriptions":{}}]}"#),
        ("coinbase-market-trades", r#"{"channel":"heartbeats","events":[{"heartbeat_counter":1}]}"#),
        ("kraken-v1", r#"{"event":"heartbeat"}"#),
        ("kraken-v1", r#"[1,{"a":["1",1,"2"]},"ticker","XBT/USD"]"#),
        ("kraken-v2", r#"{"channel":"heartbeat"}"#),
        ("kraken-v2", r#"{"method":"subscribe","result":{"channel":"trade","symbol":"X"},"success":true}"#),
        ("kraken-v2", r#"{"channel":"status","type":"update","data":[{"system":"online"}]}"#),
        ("okx", r#"{"event":"subscribe","arg":{"channel":"trades","instId":"X"},"connId":"a"}"#),
        ("okx", r#"{"arg":{"channel":"tickers","instId":"X"},"data":[{"last":"1"}]}"#),
        ("bitfinex", r#"{"event":"info","version":2}"#),
        ("bitfinex", r#"[5,"hb"]"#),
        ("bitfinex", r#"[5,"tu",[1,1700000000000,1,2]]"#),
        ("polygon", r#"[{"ev":"status","status":"connected"},{"ev":"Q","sym":"X"}]"#),
    ] {
        assert_eq!(decode(&preset(name), Some("KEY"), value).unwrap(), [""; 0], "{name} {value}");
    }
}

#[test]
fn a_trade_with_a_bad_field_is_bad_under_a_preset_too() {
    let polygon = r#"[{"ev":"T","sym":"X","p":1,"s":1,"t":1700000000000},{"ev":"T","sym":"X","p":null,"t":1}]"#;
    assert_bad(decode(&preset("polygon"), None, polygon), "price", &["\"/p\" (trade 2 of the record) is null"]);
    let binance = r#"{"data":{"e":"trade","s":"X","p":"x","T":1700000000000}}"#;
    assert_bad(decode(&preset("binance-trade"), None, binance), "price", &["the price at \"/p\", \"x\", "]);
    assert_bad(decode(&preset("okx"), None, "{"), "json", &[]);
}

#[test]
fn bitfinex_trades_take_their_symbol_from_the_key_and_a_sell_counts_as_volume() {
    let bitfinex = preset("bitfinex");
    let sell = r#"[5,"te",[1,1700000000000,-0.5,60410]]"#;
    assert_eq!(decode(&bitfinex, Some("tBTCUSD"), sell).unwrap(), ["tBTCUSD 60410 0.5 1700000000000"]);
    assert_bad(decode(&bitfinex, None, sell), "symbol", &["no key"]);
    let bridged = r#"[{"channel":"trades","symbol":"tETHUSD"},"te",[1,1700000000000,2,7]]"#;
    assert_eq!(decode(&bitfinex, None, bridged).unwrap(), ["tETHUSD 7 2 1700000000000"]);
    let twice = r#"[5,"te",[1,1700000000000,"--1",7]]"#;
    assert_bad(decode(&bitfinex, Some("X"), twice), "volume", &[]);
}

#[test]
fn trades_sent_newest_first_are_put_in_the_order_in_which_they_happened() {
    let snapshot = "[5,[[4,1700000000002,1,4],[3,1700000000001,1,3],[2,1700000000001,1,2],[1,1700000000000,1,1]]]";
    let prices: Vec<String> = decode(&preset("bitfinex"), Some("X"), snapshot)
        .unwrap()
        .iter()
        .map(|tick| tick.split(' ').nth(1).unwrap().to_owned())
        .collect();
    assert_eq!(prices, ["1", "2", "3", "4"]);
}

#[test]
fn a_setting_overrides_its_preset() {
    let config = InputConfig { ts: Some("^/time".into()), ..preset("binance-trade") };
    let value = r#"{"time":1700000000009,"data":{"e":"trade","s":"X","p":"1","q":"1","T":1}}"#;
    assert_eq!(decode(&config, None, value).unwrap(), ["X 1 1 1700000000009"]);
}

#[test]
fn deep_nesting_is_bad_and_not_a_crash() {
    for value in ["[".repeat(200_000), format!("{{\"price\":{}", "{\"a\":".repeat(200_000))] {
        assert_bad(plain(&value), "json", &[]);
    }
}

/// JSON whose shape is near to what the presets look for.
fn near_json() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("1700000000000".to_owned()),
        "-?[0-9]{1,20}(\\.[0-9]{1,20})?(e-?[0-9]{1,4})?",
        "\"(te|tu|trade|T|XT|match|aggTrade|trades|market_trades|[a-z0-9.\\\\]{0,9})\"",
    ];
    let names = "(e|s|p|q|T|t|data|ev|sym|arg|channel|type|price|symbol|ts|events|trades|0|1)";
    scalar.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(|items| format!("[{}]", items.join(","))),
            proptest::collection::vec((names, inner), 0..6).prop_map(|fields| {
                let fields: Vec<String> =
                    fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
                format!("{{{}}}", fields.join(","))
            }),
        ]
    })
}

fn every_mapping() -> Vec<InputConfig> {
    let star = InputConfig {
        records: Some("/*".into()),
        symbol: Some("^/0/s".into()),
        price: Some(String::new()),
        ..InputConfig::default()
    };
    presets().map(|p| preset(p.name)).chain([InputConfig::default(), star]).collect()
}

proptest! {
    #[test]
    fn no_bytes_panic(key in proptest::option::of(any::<Vec<u8>>()), value in any::<Vec<u8>>()) {
        for config in every_mapping() {
            let chunk = chunk(&config, &[(key.as_deref(), Some(&value))]);
            prop_assert_eq!(chunk.records.len(), 1);
        }
    }

    #[test]
    fn no_json_panics_and_every_tick_is_in_range(value in near_json()) {
        for config in every_mapping() {
            let chunk = chunk(&config, &[(Some(b"K"), Some(value.as_bytes()))]);
            for tick in &chunk.ticks {
                prop_assert!(!chunk.symbol_of(tick).is_empty());
                prop_assert!((100_000_000_000..=253_402_300_799_999).contains(&tick.ts));
                prop_assert!(tick.price.to_f64().abs() < 1e18);
            }
        }
    }
}
