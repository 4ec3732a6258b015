//! Everything that is compared, as maps of text, so that one function shows any difference.

use std::collections::BTreeMap;

use anyhow::ensure;

use super::kafka::Record;
use super::oracle;

/// Outputs are stamped with the present, ticks of tests mostly with a time before this, ms.
const LONG_AGO: i64 = 1_750_000_000_000;

/// What is compared: a name for each thing → its content.
pub(crate) type Facts = BTreeMap<String, String>;

/// What came out of the output topics.
pub(crate) struct Received {
    /// `notification <id>`, `candle <symbol>:<interval>:<start>:<revision>`, `late <partition>/<offset>` and
    /// `dead letter <partition>/<offset>`, each with the record's value.
    pub(crate) outputs: Facts,
    /// Names of records that repeat another, word for word.
    pub(crate) repeated: Vec<String>,
}

impl Received {
    pub(crate) fn take(&mut self, name: String, record: &Record) -> anyhow::Result<()> {
        ensure!(record.timestamp > LONG_AGO, "{name}: stamped with {}, not with now", record.timestamp);
        let content = format!("{} -> {}", record.key.as_deref().unwrap_or_default(), record.value);
        match self.outputs.get(&name) {
            Some(before) => {
                ensure!(*before == content, "{name} was sent twice, differently:\n{before}\n{content}");
                self.repeated.push(name);
            }
            None => {
                self.outputs.insert(name, content);
            }
        }
        Ok(())
    }
}

/// The value of a notification, field by field as documented.
pub(crate) fn notification_value(notification: &oracle::Notification, number: impl Fn(&str) -> String) -> String {
    let oracle::Notification {
        id,
        rule,
        symbol,
        trigger,
        op,
        threshold,
        price,
        previous,
        ts,
        topic,
        partition,
        offset,
        ..
    } = notification;
    let previous = previous.as_deref().map_or_else(|| "null".into(), &number);
    let (threshold, price) = (number(threshold), number(price));
    format!(
        r#"{{"id":"{id}","rule":"{rule}","symbol":"{symbol}","trigger":"{trigger}","op":"{op}","threshold":{threshold},"price":{price},"previous":{previous},"ts":{ts},"source":{{"topic":"{topic}","partition":{partition},"offset":{offset}}}}}"#
    )
}

/// The value of a candle, field by field as documented.
pub(crate) fn candle_value(candle: &oracle::Candle, number: impl Fn(&str) -> String) -> String {
    let oracle::Candle { symbol, interval, start, end, open, high, low, close, volume, count, status, revision } =
        candle;
    let [open, high, low, close, volume] = [open, high, low, close, volume].map(|text| number(text));
    format!(
        r#"{{"symbol":"{symbol}","interval":"{interval}","start":{start},"end":{end},"open":{open},"high":{high},"low":{low},"close":{close},"volume":{volume},"count":{count},"status":"{status}","revision":{revision}}}"#
    )
}

/// The value of a late tick: the shape in which ticks come in.
pub(crate) fn late_value(late: &oracle::Diverted, number: impl Fn(&str) -> String) -> String {
    let oracle::Diverted { symbol, price, volume, ts, .. } = late;
    let (price, volume) = (number(price), number(volume));
    format!(r#"{{"symbol":"{symbol}","price":{price},"volume":{volume},"ts":{ts}}}"#)
}

/// Hundredths as a plain decimal without trailing zeros.
pub(crate) fn plain(hundredths: i64) -> String {
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Fails with the first differences.
pub(crate) fn assert_same(what: &str, expected: &Facts, found: &Facts) -> anyhow::Result<()> {
    let mut differences = Vec::new();
    for (name, content) in expected {
        match found.get(name) {
            None => differences.push(format!("missing: {name}: {content}")),
            Some(other) if other != content => {
                differences.push(format!("{name}:\n    expected {content}\n    found    {other}"));
            }
            Some(_) => {}
        }
    }
    let unexpected = found.iter().filter(|(name, _)| !expected.contains_key(*name));
    differences.extend(unexpected.map(|(name, content)| format!("unexpected: {name}: {content}")));
    let shown = differences.iter().take(6).map(String::as_str).collect::<Vec<_>>().join("\n");
    ensure!(
        differences.is_empty(),
        "{what}: {} differences ({} expected, {} found):\n{shown}",
        differences.len(),
        expected.len(),
        found.len()
    );
    Ok(())
}
