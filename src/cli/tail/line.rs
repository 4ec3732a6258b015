//! A record as one line for people, with colours; the stream it is written to takes them out where they do not belong.

use std::borrow::Cow;
use std::fmt::Write as _;

use anstyle::Style;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::text::{FALLING, RISING, utc};

const NAME: Style = Style::new().bold();
const QUIET: Style = Style::new().dimmed();

#[derive(Deserialize)]
struct Notification<'a> {
    #[serde(borrow)]
    rule: Cow<'a, str>,
    #[serde(borrow)]
    symbol: Cow<'a, str>,
    #[serde(borrow)]
    trigger: Cow<'a, str>,
    #[serde(borrow)]
    op: Cow<'a, str>,
    #[serde(borrow)]
    threshold: &'a RawValue,
    #[serde(borrow)]
    price: &'a RawValue,
    #[serde(borrow)]
    previous: Option<&'a RawValue>,
    ts: i64,
    #[serde(borrow)]
    note: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Candle<'a> {
    #[serde(borrow)]
    symbol: Cow<'a, str>,
    #[serde(borrow)]
    interval: Cow<'a, str>,
    start: i64,
    #[serde(borrow)]
    open: &'a RawValue,
    #[serde(borrow)]
    high: &'a RawValue,
    #[serde(borrow)]
    low: &'a RawValue,
    #[serde(borrow)]
    close: &'a RawValue,
    #[serde(borrow)]
    volume: &'a RawValue,
    count: u64,
    #[serde(borrow)]
    status: Cow<'a, str>,
}

/// `2026-11-30T17:00:49.971Z  BBCA 9505  edge >= 9500  alice-1  was 9490  "sell half"`
pub(super) fn of_notification(value: &[u8]) -> String {
    let Ok(record) = serde_json::from_slice::<Notification>(value) else {
        return as_it_is(value);
    };
    let direction = if record.op.starts_with('>') {
        RISING
    } else if record.op.starts_with('<') {
        FALLING
    } else {
        NAME
    };
    let (symbol, price) = (plain(&record.symbol), number(record.price));
    let (trigger, op, threshold) = (plain(&record.trigger), plain(&record.op), number(record.threshold));
    let mut line = format!(
        "{QUIET}{}{QUIET:#}  {NAME}{symbol}{NAME:#} {direction}{price}{direction:#}  {trigger} {op} {threshold}  {}",
        utc(record.ts),
        plain(&record.rule)
    );
    if let Some(previous) = record.previous {
        write!(line, "  {QUIET}was {}{QUIET:#}", number(previous)).unwrap_or_default();
    }
    if let Some(note) = record.note {
        write!(line, "  \"{}\"", plain(&note)).unwrap_or_default();
    }
    line
}

/// `2026-11-30T17:00:49Z  BBCA 1s  open 9480 high 9505 low 9480 close 9505  volume 300 in 3 ticks  final`
pub(super) fn of_candle(value: &[u8]) -> String {
    let Ok(record) = serde_json::from_slice::<Candle>(value) else {
        return as_it_is(value);
    };
    let [open, high, low, close] = [record.open, record.high, record.low, record.close].map(number);
    let as_number = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
    let direction = if as_number(&close) < as_number(&open) { FALLING } else { RISING };
    format!(
        "{QUIET}{}{QUIET:#}  {NAME}{}{NAME:#} {}  open {open} high {high} low {low} close {direction}{close}{direction:#}  \
         {QUIET}volume {} in {} ticks  {}{QUIET:#}",
        utc(record.start),
        plain(&record.symbol),
        plain(&record.interval),
        number(record.volume),
        record.count,
        plain(&record.status),
    )
}

/// A number as it was sent, as JSON number or as text.
fn number(raw: &RawValue) -> String {
    plain(raw.get().trim_matches('"'))
}

/// A record of another program, or of none.
fn as_it_is(value: &[u8]) -> String {
    plain(&String::from_utf8_lossy(value))
}

/// Foreign text must not steer the terminal.
fn plain(text: &str) -> String {
    let spelled = |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(spelled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_colours(line: &str) -> String {
        anstream::adapter::strip_str(line).to_string()
    }

    #[test]
    fn a_notification_is_told_with_its_rule_and_its_note() {
        let record = r#"{"id":"t/0/2/edge/>=/alice-1","rule":"alice-1","symbol":"BBCA","trigger":"edge","op":">=",
            "threshold":9500,"price":"9505.10","previous":9490,"ts":1796058049971,
            "source":{"topic":"t","partition":0,"offset":2},"note":"sell half"}"#;
        let line = of_notification(record.as_bytes());
        assert!(line.contains(&format!("{RISING}9505.10{RISING:#}")), "{line:?}");
        assert_eq!(
            without_colours(&line),
            "2026-11-30T17:00:49.971Z  BBCA 9505.10  edge >= 9500  alice-1  was 9490  \"sell half\""
        );
    }

    #[test]
    fn a_candle_has_the_colour_of_its_direction() {
        let candle = |close: &str| {
            let record = format!(
                r#"{{"symbol":"BBCA","interval":"1s","start":1796058049000,"end":1796058050000,"open":9480,"high":9505,
                "low":9470,"close":{close},"volume":1234567890123456789012345678,"count":3,"status":"final","revision":0}}"#
            );
            of_candle(record.as_bytes())
        };
        assert!(
            candle("9505").contains(&format!("{RISING}9505")) && candle("9470").contains(&format!("{FALLING}9470"))
        );
        assert_eq!(
            without_colours(&candle("9505")),
            "2026-11-30T17:00:49Z  BBCA 1s  open 9480 high 9505 low 9470 close 9505  \
             volume 1234567890123456789012345678 in 3 ticks  final"
        );
    }

    #[test]
    fn what_a_record_holds_does_not_steer_the_terminal() {
        let record = "{\"rule\":\"a\\u001b[2J\",\"symbol\":\"B\",\"trigger\":\"edge\",\"op\":\">\",\"threshold\":1,\
                      \"price\":2,\"ts\":0}";
        let line = without_colours(&of_notification(record.as_bytes()));
        assert!(line.contains("a\\u{1b}[2J"), "{line:?}");
        assert_eq!(of_candle(b"no \x1b[2J JSON"), "no \\u{1b}[2J JSON");
    }
}
