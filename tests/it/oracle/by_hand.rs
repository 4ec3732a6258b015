//! The oracle on what can be worked out by hand.

use std::collections::BTreeSet;

use super::{Candle, Decimal, Expected, Late, LogRecord, Notification, Rule, Settings, Tick, expected};
use crate::harness::Stage;

fn sample(late: Late) -> Settings {
    Settings {
        topic: "ticks".to_owned(),
        partition: 0,
        intervals: vec!["1s".to_owned()],
        lateness: 500,
        late,
        keep: 86_400_000,
    }
}

/// A record a tick: (ts, price, volume).
fn log_of(ticks: &[(i64, &str, &str)]) -> Vec<LogRecord> {
    let tick = |(ts, price, volume): &(i64, &str, &str)| Tick {
        symbol: "X".to_owned(),
        price: (*price).to_owned(),
        volume: (*volume).to_owned(),
        ts: *ts,
    };
    (0..).zip(ticks).map(|(offset, sent)| LogRecord { offset, ticks: vec![tick(sent)] }).collect()
}

pub(super) fn a_crossing_is_expected_once_with_both_prices(_: &Stage) -> anyhow::Result<()> {
    let rule = Rule {
        symbol: "X".to_owned(),
        id: "a b".to_owned(),
        trigger: "edge",
        op: ">=",
        threshold: "100".to_owned(),
        ..Rule::default()
    };
    let log = log_of(&[(0, "99", "1"), (1, "100.50", "1"), (2, "101", "1"), (1, "99", "1")]);
    let expected = expected(&sample(Late::Drop), &[rule], &log);
    let record = r#"{"id":"ticks/0/1/edge/>=/a b","rule":"a b","symbol":"X","trigger":"edge","op":">=",
        "threshold":100,"price":"100.5","previous":99,"ts":1,"source":{"topic":"ticks","partition":0,"offset":1}}"#;
    assert_eq!(expected.notifications, BTreeSet::from([Notification::parse(record)?]));
    assert_eq!(expected.out_of_order, 1);
    assert_eq!(expected.last["X"], ("101".to_owned(), 2));
    Ok(())
}

pub(super) fn a_final_candle_holds_what_was_there_when_time_passed_it_and_late_ticks_revise_it(
    _: &Stage,
) -> anyhow::Result<()> {
    // Offset 2 takes the watermark to 1000; offset 3 is late for the first second.
    let log = log_of(&[(200, "2", "1"), (100, "1", "0.5"), (1500, "3", "1"), (50, "9", "2")]);
    let final_candle = r#"{"symbol":"X","interval":"1s","start":0,"end":1000,"open":1,"high":2,"low":1,"close":2,
        "volume":1.5,"count":2,"status":"final","revision":0}"#;
    let revision = r#"{"symbol":"X","interval":"1s","start":0,"end":1000,"open":9,"high":9,"low":1,"close":2,
        "volume":3.5,"count":3,"status":"revised","revision":4}"#;
    let (final_candle, revision) = (Candle::parse(final_candle)?, Candle::parse(revision)?);
    let of_first = |expected: &Expected| -> Vec<Candle> {
        expected.candles.iter().filter(|candle| candle.start == 0).cloned().collect()
    };

    let dropped = expected(&sample(Late::Drop), &[], &log);
    assert_eq!(of_first(&dropped), std::slice::from_ref(&final_candle));
    assert_eq!((dropped.late, dropped.candles.len()), (1, 2));

    let diverted = expected(&sample(Late::Divert), &[], &log);
    assert_eq!(of_first(&diverted), std::slice::from_ref(&final_candle));
    assert_eq!(diverted.diverted.first().map(|tick| (tick.offset, tick.intervals.as_str())), Some((3, "1s")));

    let revised = expected(&sample(Late::Revise), &[], &log);
    assert!(revised.candles.contains(&final_candle) && revised.candles.contains(&revision));
    assert_eq!(revised.stored[&("X".to_owned(), "1s".to_owned(), 0)], revision);
    Ok(())
}

pub(super) fn numbers_are_rounded_and_summed_exactly(_: &Stage) -> anyhow::Result<()> {
    for (sent, price) in [
        ("0.30000000000000004", "0.3"),
        ("10.000000000000001", "10"),
        ("1.000000000000005", "1"),
        ("1.000000000000015", "1.00000000000002"),
        ("-1.000000000000005", "-1"),
        ("0", "0"),
        ("9505.50", "9505.5"),
    ] {
        assert_eq!(Decimal::price(sent).to_string(), price, "{sent}");
    }
    let sum = Decimal(Decimal::volume("5200").0 + Decimal::volume("10.43").0);
    assert_eq!(sum.to_string(), "5210.43");
    Ok(())
}
