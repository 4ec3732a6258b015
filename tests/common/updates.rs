//! Updates of open candles, judged by the source log alone: each is the candle of its window with the ticks of all
//! offsets below the one it names. That holds whatever closed windows meanwhile, and whatever Redis went through: a
//! window that is open has had no late tick.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tickwatch::config::{Config, Guarantee, Numbers};

use super::facts::{candle_value, oracle_settings};
use super::kafka::Record;
use super::oracle::{self, Candle, Tick};

/// A source partition's ticks that count, in order: offset, when the broker had it (ms) if that is known, the tick.
pub(crate) type Log = BTreeMap<i32, Vec<(i64, Option<i64>, Tick)>>;

/// Symbol, interval, start.
pub(crate) type Window = (String, String, i64);

/// What is known of the run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Run {
    /// Redis may have come back older: then a wave may come again before its interval is over, and what was sent of
    /// before may be of no history that goes on.
    pub(crate) rollbacks: usize,
}

/// Something that is not as it must be.
pub(crate) struct Difference {
    /// `candle <symbol>:<interval>:<start>`
    pub(crate) window: String,
    pub(crate) text: String,
}

#[derive(Deserialize)]
struct Sent {
    symbol: String,
    interval: String,
    start: i64,
    status: String,
    source: Option<Source>,
}

#[derive(Deserialize)]
struct Source {
    partition: i32,
    next_offset: i64,
}

/// Judges the records of the topic of candles.
pub(crate) fn judge(config: &Config, log: &Log, candles: &[Record], run: Run) -> anyhow::Result<Vec<Difference>> {
    let mut judge = Judge {
        config,
        windows: windows_of(config, log),
        exactly_once: config.kafka.processing_guarantee == Guarantee::ExactlyOnce,
        run,
        sent: BTreeMap::new(),
        differences: Vec::new(),
    };
    let mut in_order: Vec<&Record> = candles.iter().collect();
    in_order.sort_by_key(|record| (record.partition, record.offset));
    for record in in_order {
        judge.take(record)?;
    }
    judge.finish();
    Ok(judge.differences)
}

/// How often each window was sent while it was open, what was sent of it last, and whether it was closed since.
pub(crate) fn last_updates(candles: &[Record]) -> anyhow::Result<BTreeMap<Window, (usize, String)>> {
    let mut last: BTreeMap<Window, (usize, String)> = BTreeMap::new();
    for record in candles {
        let sent: Sent = serde_json::from_str(&record.value)?;
        if sent.status == "open" {
            let (count, value) = last.entry((sent.symbol, sent.interval, sent.start)).or_default();
            *count += 1;
            value.clone_from(&record.value);
        }
    }
    Ok(last)
}

#[derive(Default)]
struct SentOfWindow {
    /// By the offset up to which it holds: how often, and when it was last.
    updates: BTreeMap<i64, (usize, i64)>,
    closed: bool,
    /// The offsets of updates that came after a final candle, and no final candle after them.
    after_the_final: BTreeSet<i64>,
}

/// By window: its partition, and its ticks there.
type Windows = BTreeMap<Window, BTreeMap<i32, Vec<(i64, Option<i64>, Tick)>>>;

struct Judge<'a> {
    config: &'a Config,
    windows: Windows,
    exactly_once: bool,
    run: Run,
    sent: BTreeMap<Window, SentOfWindow>,
    differences: Vec<Difference>,
}

fn windows_of(config: &Config, log: &Log) -> Windows {
    let mut windows = Windows::new();
    for (number, ticks) in log {
        for (offset, arrived, tick) in ticks {
            for interval in config.candles.intervals.iter().map(ToString::to_string) {
                let (start, _) = oracle::window(&interval, tick.ts);
                let window = windows.entry((tick.symbol.clone(), interval, start)).or_default();
                window.entry(*number).or_default().push((*offset, *arrived, tick.clone()));
            }
        }
    }
    windows
}

impl Judge<'_> {
    fn take(&mut self, record: &Record) -> anyhow::Result<()> {
        let Sent { symbol, interval, start, status, source } = serde_json::from_str(&record.value)?;
        let window = (symbol, interval, start);
        if status != "open" {
            let of_window = self.sent.entry(window.clone()).or_default();
            of_window.closed = true;
            of_window.after_the_final.clear();
            if source.is_some() {
                self.differ(&window, format!("{status}, and has a source: {}", record.value));
            }
            return Ok(());
        }
        let Some(Source { partition, next_offset }) = source else {
            self.differ(&window, format!("open, and does not say up to where it holds: {}", record.value));
            return Ok(());
        };
        let expected = self.expected(&window, partition, next_offset);
        if expected.as_ref() != Some(&record.value) || record.key.as_ref() != Some(&window.0) {
            let text = format!(
                "open at {partition}/{next_offset}:\n    expected {}\n    found    {}",
                expected.as_deref().unwrap_or("nothing"),
                record.value
            );
            self.differ(&window, text);
        }
        let of_window = self.sent.entry(window.clone()).or_default();
        let (count, at) = of_window.updates.entry(next_offset).or_default();
        *count += 1;
        *at = record.timestamp;
        let (count, after) = (*count, of_window.closed);
        if after {
            of_window.after_the_final.insert(next_offset);
        }
        if self.exactly_once && count > 1 {
            self.differ(&window, format!("open at {partition}/{next_offset} was committed twice"));
        }
        if self.exactly_once && after {
            self.differ(&window, format!("open at {partition}/{next_offset}, after its final candle"));
        }
        Ok(())
    }

    /// The value of an update.
    fn expected(&self, window: &Window, partition: i32, next_offset: i64) -> Option<String> {
        let ticks = self.windows.get(window)?.get(&partition)?;
        let ticks: Vec<Tick> =
            ticks.iter().take_while(|(offset, ..)| *offset < next_offset).map(|(.., tick)| tick.clone()).collect();
        let candle = Candle { status: "open".to_owned(), ..whole(self.config, partition, window, &ticks)? };
        let value = candle_value(&candle, |plain| match self.config.output.numbers {
            Numbers::Number => plain.to_owned(),
            Numbers::String => format!("\"{plain}\""),
        });
        let topic = &self.config.kafka.topic;
        let source =
            format!(r#","source":{{"topic":"{topic}","partition":{partition},"next_offset":{next_offset}}}}}"#);
        Some(value.strip_suffix('}')?.to_owned() + &source)
    }

    fn finish(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        let interval = self.config.output.update_interval.as_millis() as i64;
        for (window, of_window) in &sent {
            // Legal at least once: after a fault what was sent comes again in its order, so that the final candle comes
            // again too; a former owner's producer may send what it still holds, which its successor sends as well.
            if !self.exactly_once && self.run.rollbacks == 0 {
                for offset in &of_window.after_the_final {
                    if of_window.updates[offset].0 == 1 {
                        self.differ(
                            window,
                            format!("open at {offset}, after its final candle, and sent once only"),
                        );
                    }
                }
            }
            let first = self
                .windows
                .get(window)
                .and_then(|of_window| of_window.values().filter_map(|ticks| ticks.first()?.1).min());
            let last = of_window.updates.values().map(|(_, at)| *at).max();
            if let (Some(first), Some(last)) = (first, last) {
                let most = (last - first).max(0) / interval + 2 + self.run.rollbacks as i64;
                let count = of_window.updates.len() as i64;
                if count > most {
                    self.differ(
                        window,
                        format!("sent {count} times while open, in {} ms: at most {most} are legal", last - first),
                    );
                }
            }
        }
    }

    fn differ(&mut self, (symbol, interval, start): &Window, text: String) {
        let window = format!("candle {symbol}:{interval}:{start}");
        self.differences.push(Difference { text: format!("{window}: {text}"), window });
    }
}

/// The candle of a window that holds these ticks.
fn whole(config: &Config, partition: i32, window: &Window, ticks: &[Tick]) -> Option<Candle> {
    // With no lateness to speak of, none of them is late.
    let settings = oracle::Settings {
        intervals: vec![window.1.clone()],
        lateness: i64::from(i32::MAX),
        late: oracle::Late::Drop,
        ..oracle_settings(config, partition)
    };
    let records = (0..).zip(ticks).map(|(offset, tick)| oracle::LogRecord { offset, ticks: vec![tick.clone()] });
    oracle::expected(&settings, &[], &records.collect::<Vec<_>>()).candles.into_iter().next()
}
