//! Whether what is in Redis and on the output topics is what the source log means.
//!
//! The log is read from Kafka and judged by the oracle's own code. Two things are decided outside the log, and then
//! more than one outcome is legal:
//!
//! - **Time by silence** ([`Time::Clock`]): a window on a drained partition closes with the clock. Which ticks that
//!   made late shows in the final candles: the ticks of a window that are in its final candle are always the first of
//!   them in log order. From the counts of the final candles the rises of the watermark are worked out; none may be
//!   higher than the clock allows on evidence, and with them the oracle says everything else exactly: late ticks,
//!   revisions, counts, what is stored.
//! - **Time by silence, and a Redis that came back older**: rises between two commits are not on the log, so the
//!   service may go through others the second time. A final candle then holds the first ticks of its window, as many
//!   as some legal watermark lets in; counts of late ticks and what is stored may be of either history. Notifications
//!   and dead letters do not depend on the watermark: they stay exact. Exactly once with `revise`, what was sent last
//!   about a candle has the values that are stored; as a revision of which tick, may be of either history.
//!
//! Open candles are judged by the log alone; see [`crate::common::updates`].
//!
//! When a rule that is put or removed while ticks flow takes effect is a race; see [`crate::rules`].

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use redis::Commands as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use tickwatch::config::{Config, Guarantee, LatePolicy};
use tickwatch::store::keys::{decode_symbol, encode_symbol};

use crate::common::facts::{self, Expected, Facts, Received, is_closing};
use crate::common::kafka::{Isolation, Record, consume_all};
use crate::common::now;
use crate::common::oracle::{self, Decimal};
use crate::common::rules::is_there;
use crate::common::updates;
use crate::plan::{Plan, Time};
use crate::rules::LiveRule;

/// The clocks that a bound on time is worked out from count whole milliseconds.
const CLOCK_SLACK: i64 = 10;

/// Ticks this far ahead of the broker or the machine are in the future, whatever the settings: traffic sends them an
/// hour ahead.
const FUTURE: i64 = 1_800_000;

/// What a run that held looks like.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) ticks: usize,
    pub(crate) dead_letters: usize,
    pub(crate) notifications: usize,
    pub(crate) candles: usize,
    /// Open candles received, repeats included.
    pub(crate) updates: usize,
    /// Sent again, word for word.
    pub(crate) repeated: usize,
    /// Windows that the clock closed before a later tick did.
    pub(crate) closed_by_clock: usize,
    /// Claims seen, and calls of former owners after them; see [`crate::fence`].
    pub(crate) claims: u64,
    pub(crate) fenced: u64,
}

/// Something that is not as it must be.
#[derive(Debug, Clone)]
pub(crate) struct Difference {
    pub(crate) text: String,
    pub(crate) place: Option<Place>,
}

/// Partition and offset in the source topic, and when the broker had it, ms.
pub(crate) type Place = (i32, i64, i64);

/// A record of the source log.
struct Logged {
    record: Record,
    /// `None`: a dead letter.
    tick: Option<oracle::Tick>,
}

/// A window's ticks in log order: (index in the partition's log, price, volume, ts).
type Windows = BTreeMap<(String, String, i64), Vec<(usize, oracle::Tick)>>;

struct Verdict<'a> {
    plan: &'a Plan,
    config: &'a Config,
    lasting: &'a [oracle::Rule],
    live: &'a [LiveRule],
    log: BTreeMap<i32, Vec<Logged>>,
    received: Received,
    expected: Expected,
    differences: Vec<Difference>,
    /// Where each candle's last tick is, worked out once one is asked for.
    candles: OnceCell<HashMap<String, Place>>,
    tally: Tally,
}

/// Reads everything and judges it. The differences are in the order of the source log.
pub(crate) fn judge(
    plan: &Plan,
    config: &Config,
    redis: &mut redis::Connection,
    partitions: i32,
    lasting: &[oracle::Rule],
    live: &[LiveRule],
) -> anyhow::Result<Result<Tally, Vec<Difference>>> {
    let state = facts::state(config, redis)?; // first: candles expire
    let read_at = now();
    let mut verdict = Verdict {
        plan,
        config,
        lasting,
        live,
        log: read_log(config, partitions)?,
        received: Received::read(config, &config.kafka.brokers)?,
        expected: Expected::default(),
        differences: Vec::new(),
        candles: OnceCell::new(),
        tally: Tally::default(),
    };
    verdict.expect();
    verdict.check_repeats();
    verdict.check_live_rules();
    verdict.check_outputs();
    verdict.check_state(state, read_at);
    verdict.check_once(redis)?;
    verdict.check_updates(redis)?;
    if verdict.differences.is_empty() {
        return Ok(Ok(verdict.tally));
    }
    let mut differences = verdict.differences;
    differences.sort_by_key(|difference| difference.place.map_or(i64::MAX, |(_, _, time)| time));
    Ok(Err(differences))
}

fn read_log(config: &Config, partitions: i32) -> anyhow::Result<BTreeMap<i32, Vec<Logged>>> {
    let mut log: BTreeMap<i32, Vec<Logged>> = (0..partitions).map(|number| (number, Vec::new())).collect();
    for record in consume_all(&config.kafka.brokers, &config.kafka.topic, Isolation::ReadCommitted)? {
        let tick = tick_of(&record);
        log.entry(record.partition).or_default().push(Logged { record, tick });
    }
    Ok(log)
}

/// The tick of a record; `None` if it is none, or too far in the future.
fn tick_of(record: &Record) -> Option<oracle::Tick> {
    #[derive(Deserialize)]
    struct Value {
        symbol: String,
        price: Box<RawValue>,
        volume: Box<RawValue>,
        ts: i64,
    }
    let number = |raw: &RawValue| {
        let text = raw.get().trim_matches('"');
        let plain = text.chars().all(|c| c.is_ascii_digit() || c == '.');
        (plain && text.starts_with(|c: char| c.is_ascii_digit())).then(|| text.to_owned())
    };
    let value: Value = serde_json::from_str(&record.value).ok()?;
    let (price, volume) = (number(&value.price)?, number(&value.volume)?);
    let is_tick = !value.symbol.is_empty()
        && Decimal::price(&price) != Decimal(0)
        && (0..10_000_000_000_000).contains(&value.ts)
        && (value.ts < record.timestamp + FUTURE || is_closing(&value.symbol));
    is_tick.then_some(oracle::Tick { symbol: value.symbol, price, volume, ts: value.ts })
}

impl Verdict<'_> {
    fn many_histories(&self) -> bool {
        self.plan.time == Time::Clock && self.plan.rolls_back()
    }

    /// What the log means.
    fn expect(&mut self) {
        let mut rules = self.lasting.to_vec();
        rules.extend(self.live.iter().map(|live| live.rule.clone()));
        for number in self.log.keys().copied().collect::<Vec<_>>() {
            let records = &self.log[&number];
            let dead: BTreeMap<i64, String> = records
                .iter()
                .filter(|logged| logged.tick.is_none())
                .map(|Logged { record, .. }| {
                    let key = record.key.as_deref().unwrap_or_default();
                    (record.offset, format!("{key} -> {}", record.value))
                })
                .collect();
            let ticks: Vec<oracle::LogRecord> = records
                .iter()
                .filter_map(|logged| {
                    let tick = logged.tick.clone()?;
                    Some(oracle::LogRecord { offset: logged.record.offset, ticks: vec![tick] })
                })
                .collect();
            let settings = facts::oracle_settings(self.config, number);
            let raises =
                if self.plan.time == Time::Clock { self.raises(number, &settings, &ticks) } else { Vec::new() };
            let found = oracle::expected_after(&settings, &rules, &ticks, &raises);
            self.tally.ticks += ticks.len();
            self.tally.dead_letters += dead.len();
            self.tally.notifications += found.notifications.len();
            self.tally.candles += found.candles.len();
            self.expected.add(self.config, number, &found, ticks.len(), &dead);
        }
    }

    /// The rises of the watermark by silence that the final candles show: before the record at an offset, to ms.
    fn raises(&mut self, number: i32, settings: &oracle::Settings, ticks: &[oracle::LogRecord]) -> Vec<(i64, i64)> {
        let by_log = oracle::expected(settings, &[], ticks);
        let on_time: BTreeMap<(&str, &str, i64), u64> = by_log
            .candles
            .iter()
            .filter(|candle| candle.revision == 0)
            .map(|candle| ((candle.symbol.as_str(), candle.interval.as_str(), candle.start), candle.count))
            .collect();
        let highest = self.highest_watermarks(number, settings);
        let mut raises = Vec::new();
        for ((symbol, interval, start), of_window) in self.windows(number, settings) {
            let by_log = on_time.get(&(symbol.as_str(), interval.as_str(), start)).copied().unwrap_or(0);
            let name = format!("candle {symbol}:{interval}:{start}:0");
            let found = self.received.outputs.get(&name).and_then(|content| count_of(content)).unwrap_or(0);
            if found >= by_log {
                continue; // no raise, or more than there can be, which is told as a difference
            }
            let (index, _) = of_window[found as usize];
            let (end, offset) = (oracle::window(&interval, start).1, self.log[&number][index].record.offset);
            if end > highest[index] + CLOCK_SLACK {
                let text = format!(
                    "{name} lacks the tick at {number}/{offset}: the window ended at {end}, and no clock had passed \
                     {} then",
                    highest[index]
                );
                self.differences.push(Difference { text, place: self.place_at(number, offset) });
            }
            self.tally.closed_by_clock += 1;
            raises.push((offset, end));
        }
        raises.sort_unstable();
        raises
    }

    /// Before each record of a partition, the highest watermark that the log and the clock allow.
    ///
    /// While a partition is drained, time passes from when the greatest event time was applied, which is not before
    /// the broker had it; and whatever is drained before a record is so before the broker has that record.
    fn highest_watermarks(&self, number: i32, settings: &oracle::Settings) -> Vec<i64> {
        let grace = settings.lateness.max(self.config.candles.idle_grace.as_millis() as i64);
        let mut newest: Option<(i64, i64)> = None;
        let mut highest = i64::MIN;
        let mut found = Vec::new();
        for Logged { record, tick } in &self.log[&number] {
            if let Some((ts, since)) = newest {
                highest = highest.max(ts - settings.lateness).max(ts + (record.timestamp - since) - grace);
            }
            found.push(highest);
            if let Some(tick) = tick
                && newest.is_none_or(|(ts, _)| tick.ts > ts)
            {
                newest = Some((tick.ts, record.timestamp));
            }
        }
        found
    }

    fn windows(&self, number: i32, settings: &oracle::Settings) -> Windows {
        let mut windows = Windows::new();
        for (index, logged) in self.log[&number].iter().enumerate() {
            let Some(tick) = &logged.tick else { continue };
            for interval in &settings.intervals {
                let (start, _) = oracle::window(interval, tick.ts);
                let key = (tick.symbol.clone(), interval.clone(), start);
                windows.entry(key).or_default().push((index, tick.clone()));
            }
        }
        windows
    }

    /// At least once: only word for word. Exactly once: never.
    fn check_repeats(&mut self) {
        self.tally.repeated = self.received.repeated.len();
        let exactly_once = self.config.kafka.processing_guarantee == Guarantee::ExactlyOnce;
        if exactly_once {
            for name in std::mem::take(&mut self.received.repeated) {
                self.differ(&name, format!("{name} was committed twice"));
            }
        }
        for conflict in std::mem::take(&mut self.received.conflicts) {
            let name = conflict.split(" was sent twice").next().unwrap_or_default().to_owned();
            // At least once, what was sent but not committed may be made anew by another history.
            let by_watermark = name.starts_with("candle ") || name.starts_with("late ");
            if !(self.many_histories() && by_watermark && !exactly_once) {
                self.differ(&name, conflict);
            }
        }
    }

    /// Takes what live rules sent out of both sides, and looks whether it is legal.
    fn check_live_rules(&mut self) {
        let is_live = |name: &str| name.starts_with("notification ") && name.contains("/live ");
        let take = |facts: &mut Facts| {
            let (live, rest) = std::mem::take(facts).into_iter().partition(|(name, _)| is_live(name));
            *facts = rest;
            live
        };
        let possible: Facts = take(&mut self.expected.outputs);
        let sent: Facts = take(&mut self.received.outputs);
        for (name, content) in &sent {
            let legal = possible.get(name) == Some(content)
                && self.live_rule(name).is_some_and(|(live, offset)| live.may_fire(offset));
            if !legal {
                let expected = possible.get(name).map_or("nothing", String::as_str);
                let span = self.live_rule(name).map(|(live, _)| format!("{live:?}")).unwrap_or_default();
                self.differ(name, format!("{name}: {content}, where {expected} is legal ({span})"));
            }
        }
        for (name, content) in &possible {
            let must = self.live_rule(name).is_some_and(|(live, offset)| live.must_fire(offset));
            if must && !sent.contains_key(name) {
                let span = self.live_rule(name).map(|(live, _)| format!("{live:?}")).unwrap_or_default();
                self.differ(name, format!("missing: {name}: {content} ({span})"));
            }
        }
        let fired = |facts: &Facts, number: i32| {
            let source = format!("notification {}/{number}/", self.config.kafka.topic);
            facts.keys().filter(|name| name.starts_with(&source)).count()
        };
        // The count in Redis: of all that fired, which is what was sent, as long as it happened once.
        for number in self.log.keys() {
            let key = format!("source:{}/{number}", self.config.kafka.topic);
            let all = fired(&self.expected.outputs, *number) + fired(&sent, *number);
            if let Some(counts) = self.expected.state.get_mut(&key) {
                let mut fields: Vec<String> = counts.split(' ').map(str::to_owned).collect();
                if fields.len() == 5 && !fields[0].is_empty() {
                    fields[3] = all.to_string();
                }
                *counts = fields.join(" ");
            }
        }
    }

    /// The live rule of a notification, and its offset.
    fn live_rule(&self, name: &str) -> Option<(&LiveRule, i64)> {
        let (number, offset) = self.offset_of_notification(name)?;
        let (_, id) = name.rsplit_once('/')?;
        let live = self.live.iter().find(|live| live.rule.id == id && live.partition == number)?;
        Some((live, offset))
    }

    /// `notification <topic>/<partition>/<offset>/…`
    fn offset_of_notification(&self, name: &str) -> Option<(i32, i64)> {
        let rest = name.strip_prefix("notification ")?.strip_prefix(&self.config.kafka.topic)?;
        let mut parts = rest.split('/').skip(1);
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }

    fn check_outputs(&mut self) {
        let expected = std::mem::take(&mut self.expected.outputs);
        let received = std::mem::take(&mut self.received.outputs);
        let by_log = |name: &str| name.starts_with("notification ") || name.starts_with("dead letter ");
        let many = self.many_histories();
        let compared = |facts: &Facts| -> Facts {
            facts.iter().filter(|(name, _)| !many || by_log(name)).map(|(n, c)| (n.clone(), c.clone())).collect()
        };
        self.compare(&compared(&expected), &compared(&received));
        if many {
            self.check_candles_of_some_history(&received);
        }
        self.received.outputs = received;
    }

    /// Each final candle holds the first ticks of its window, and no window goes without.
    fn check_candles_of_some_history(&mut self, received: &Facts) {
        let mut seen = BTreeSet::new();
        for name in received.keys().filter(|name| name.starts_with("candle ")) {
            seen.insert(name.rsplit_once(':').map_or(name.as_str(), |(window, _)| window).to_owned());
        }
        for number in self.log.keys().copied().collect::<Vec<_>>() {
            let settings = facts::oracle_settings(self.config, number);
            for ((symbol, interval, start), ticks) in self.windows(number, &settings) {
                let window = format!("candle {symbol}:{interval}:{start}");
                let name = format!("{window}:0");
                match received.get(&name) {
                    Some(content) => {
                        let count = count_of(content).unwrap_or(0) as usize;
                        let first: Vec<oracle::Tick> =
                            ticks.iter().take(count).map(|(_, tick)| tick.clone()).collect();
                        let legal = legal_candle(&settings, &symbol, &interval, start, &first, self.config);
                        if count > ticks.len() || legal.as_ref() != Some(content) {
                            self.differ(
                                &name,
                                format!(
                                    "{name}: {content} is not of the first ticks, {}",
                                    legal.unwrap_or_default()
                                ),
                            );
                        }
                    }
                    None if !seen.contains(&window)
                        && self.first_tick_is_on_time(number, &settings, &ticks, &interval, start) =>
                    {
                        self.differ(&name, format!("missing: {window}, of {} ticks", ticks.len()));
                    }
                    None => {}
                }
            }
        }
    }

    fn first_tick_is_on_time(
        &self,
        number: i32,
        settings: &oracle::Settings,
        ticks: &[(usize, oracle::Tick)],
        interval: &str,
        start: i64,
    ) -> bool {
        let highest = self.highest_watermarks(number, settings);
        ticks.first().is_some_and(|(index, _)| highest[*index] + CLOCK_SLACK < oracle::window(interval, start).1)
    }

    /// `read_at`: when the state had been read, ms since the epoch.
    fn check_state(&mut self, state: Facts, read_at: i64) {
        let mut expected = std::mem::take(&mut self.expected.state);
        let mut state = state;
        self.forgive_expired(&mut expected, &state, read_at);
        let many = self.many_histories();
        if many
            && self.plan.settings.guarantee == Guarantee::ExactlyOnce
            && self.plan.settings.late == LatePolicy::Revise
        {
            self.check_last_sent_is_stored(&state);
        }
        let live_and_older = self.plan.rolls_back() && !self.live.is_empty();
        for facts in [&mut expected, &mut state] {
            if many {
                facts.retain(|name, _| !name.starts_with("ohlc:"));
            }
            for (_, counts) in facts.iter_mut().filter(|(name, _)| name.starts_with("source:")) {
                let mut fields: Vec<&str> = counts.split(' ').collect();
                // Counts of a partition without records may be there or not.
                fields.iter_mut().filter(|field| field.is_empty()).for_each(|field| *field = "0");
                if many {
                    fields[1] = "*";
                }
                if live_and_older {
                    fields[3] = "*";
                }
                *counts = fields.join(" ");
            }
        }
        self.compare(&expected, &state);
    }

    /// A closed candle stays for twice [candles] keep from when it was closed or revised, by the wall clock; that was not
    /// before its last tick came in.
    fn forgive_expired(&self, expected: &mut Facts, state: &Facts, read_at: i64) {
        let stays = 2 * self.config.candles.keep.as_millis() as i64;
        let mut written = None;
        expected.retain(|name, _| {
            let Some(stored) = name.strip_prefix("ohlc:").filter(|_| !state.contains_key(name)) else {
                return true;
            };
            let written = written.get_or_insert_with(|| self.candles_written_last());
            written.get(decode_symbol(stored).as_ref()).is_none_or(|(_, _, came)| *came > read_at - stays)
        });
    }

    /// Where each candle's last tick is that was not too late to be merged.
    fn candles_written_last(&self) -> HashMap<String, Place> {
        let keep = self.config.candles.keep.as_millis() as i64;
        let highest: BTreeMap<i32, Vec<i64>> = self
            .log
            .keys()
            .map(|number| {
                (*number, self.highest_watermarks(*number, &facts::oracle_settings(self.config, *number)))
            })
            .collect();
        self.places_of_candles(|number, index, finish| finish > highest[&number][index].saturating_sub(keep))
    }

    /// Prices, volume and count: a tick late in one history and on time in the other changes the same candle, in the one
    /// as a revision, in the other before it is final.
    fn check_last_sent_is_stored(&mut self, state: &Facts) {
        let mut sent: BTreeMap<String, (i64, String)> = BTreeMap::new();
        for (id, content) in &self.received.outputs {
            let Some((candle, revision)) = id.strip_prefix("candle ").and_then(|id| id.rsplit_once(':')) else {
                continue;
            };
            let (Ok(revision), Some(row)) = (revision.parse(), row_of(content)) else { continue };
            let last = sent.entry(candle.to_owned()).or_insert((revision, String::new()));
            if revision >= last.0 {
                *last = (revision, row);
            }
        }
        for (name, row) in state.iter().filter(|(name, _)| name.starts_with("ohlc:")) {
            let candle = decode_symbol(name.trim_start_matches("ohlc:")).into_owned();
            let last = sent.get(&candle).map(|(_, row)| row);
            if last.map(|row| values_of(row)) != Some(values_of(row)) {
                self.differ(name, format!("{name}: {row} is stored, and what was sent last is {last:?}"));
            }
        }
    }

    /// A rule that fires once is gone if it has fired, and else there.
    fn check_once(&mut self, redis: &mut redis::Connection) -> anyhow::Result<()> {
        let fired: BTreeSet<(String, String)> = self
            .received
            .outputs
            .iter()
            .filter(|(name, _)| name.starts_with("notification ") && name.ends_with("/once"))
            .filter_map(|(name, content)| Some((content.split_once(" -> ")?.0.to_owned(), name.clone())))
            .collect();
        for rule in self.lasting.iter().filter(|rule| rule.once) {
            let of_rule = fired.iter().find(|(symbol, _)| *symbol == rule.symbol);
            if is_there(redis, self.config, rule)? == of_rule.is_some() {
                let text = format!("the rule {} of {}, after {of_rule:?}", rule.id, encode_symbol(&rule.symbol));
                self.differ(of_rule.map_or("", |(_, name)| name), text);
            }
        }
        Ok(())
    }

    /// What was sent of open candles. A window that is open at the end was sent last as it stands.
    fn check_updates(&mut self, redis: &mut redis::Connection) -> anyhow::Result<()> {
        let log: updates::Log = self
            .log
            .iter()
            .map(|(number, records)| {
                let ticks = records.iter().filter_map(|Logged { record, tick }| {
                    Some((record.offset, Some(record.timestamp), tick.clone()?))
                });
                (*number, ticks.collect())
            })
            .collect();
        let run = updates::Run { rollbacks: self.plan.rollbacks() };
        for updates::Difference { window, text } in updates::judge(self.config, &log, &self.received.candles, run)?
        {
            self.differ(&window, text);
        }
        let last = updates::last_updates(&self.received.candles)?;
        self.tally.updates = last.values().map(|(count, _)| count).sum();
        if self.plan.settings.update_interval.is_none() {
            for (window, (count, _)) in &last {
                self.differ("", format!("{window:?} was sent {count} times while it was open"));
            }
            return Ok(());
        }
        for number in self.log.keys().copied().collect::<Vec<_>>() {
            let due = format!("{}due:{}/{number}", self.config.namespace, self.config.kafka.topic);
            let open: Vec<String> = redis.zrange(due, 0, -1)?;
            for member in open {
                let mut parts = member.rsplitn(3, ':');
                let (start, interval) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                let symbol = decode_symbol(parts.next().unwrap_or_default()).into_owned();
                let count: u64 = redis.hget(format!("{}ohlc:{member}", self.config.namespace), "count")?;
                let window = (symbol, interval.to_owned(), start.parse().unwrap_or_default());
                let sent = last.get(&window).and_then(|(_, value)| count_of(&format!(" -> {value}")));
                if sent != Some(count) {
                    let text = format!("{member} is open with {count} ticks, and was sent last with {sent:?}");
                    self.differ("", text);
                }
            }
        }
        Ok(())
    }

    fn compare(&mut self, expected: &Facts, found: &Facts) {
        for (name, content) in expected {
            match found.get(name) {
                None => self.differ(name, format!("missing: {name}: {content}")),
                Some(other) if other != content => {
                    self.differ(name, format!("{name}:\n    expected {content}\n    found    {other}"));
                }
                Some(_) => {}
            }
        }
        for (name, content) in found.iter().filter(|(name, _)| !expected.contains_key(*name)) {
            self.differ(name, format!("unexpected: {name}: {content}"));
        }
    }

    fn differ(&mut self, name: &str, text: String) {
        let place = self.place_of(name);
        self.differences.push(Difference { text, place });
    }

    /// Where in the log the thing of this name comes from: for a candle, its window's last tick.
    fn place_of(&self, name: &str) -> Option<Place> {
        if let Some((number, offset)) = self.offset_of_notification(name) {
            return self.place_at(number, offset);
        }
        if let Some(rest) = name.strip_prefix("late ").or_else(|| name.strip_prefix("dead letter ")) {
            let (number, offset) = rest.split(' ').next()?.split_once('/')?;
            return self.place_at(number.parse().ok()?, offset.parse().ok()?);
        }
        let stored = name.strip_prefix("ohlc:").map(decode_symbol);
        let candle = stored.as_deref().or_else(|| name.strip_prefix("candle "))?;
        let places = self.candles.get_or_init(|| self.places_of_candles(|_, _, _| true));
        let without_revision = || places.get(candle.rsplit_once(':')?.0);
        places.get(candle).or_else(without_revision).copied()
    }

    /// By `symbol:interval:start`: the last tick that `counts`, asked with partition, index and the window's end.
    fn places_of_candles(&self, counts: impl Fn(i32, usize, i64) -> bool) -> HashMap<String, Place> {
        let mut places = HashMap::new();
        for (&number, records) in &self.log {
            for (index, Logged { record, tick }) in records.iter().enumerate() {
                let Some(tick) = tick else { continue };
                for interval in self.config.candles.intervals.iter().map(ToString::to_string) {
                    let (start, finish) = oracle::window(&interval, tick.ts);
                    if counts(number, index, finish) {
                        let place = (number, record.offset, record.timestamp);
                        places.insert(format!("{}:{interval}:{start}", tick.symbol), place);
                    }
                }
            }
        }
        places
    }

    fn place_at(&self, number: i32, offset: i64) -> Option<Place> {
        let records = self.log.get(&number)?;
        let index = records.binary_search_by_key(&offset, |logged| logged.record.offset).ok()?;
        Some((number, offset, records[index].record.timestamp))
    }
}

/// The field `count` of `<key> -> <candle>`.
fn count_of(content: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Counted {
        count: u64,
    }
    let (_, value) = content.split_once(" -> ")?;
    Some(serde_json::from_str::<Counted>(value).ok()?.count)
}

/// `<key> -> <candle>` as it is stored: the fields that [`facts::state`] tells.
fn row_of(content: &str) -> Option<String> {
    let (_, value) = content.split_once(" -> ")?;
    let candle = oracle::Candle::parse(value).ok()?;
    let oracle::Candle { open, high, low, close, volume, count, status, revision, .. } = candle;
    Some(format!("{open} {high} {low} {close} {volume} {count} {status} {revision}"))
}

/// A row without status and revision.
fn values_of(row: &str) -> Vec<&str> {
    row.split(' ').take(6).collect()
}

/// The final candle of a window that holds these ticks, as it is sent.
fn legal_candle(
    settings: &oracle::Settings,
    symbol: &str,
    interval: &str,
    start: i64,
    ticks: &[oracle::Tick],
    config: &Config,
) -> Option<String> {
    // With no lateness to speak of, one window is what all of these ticks fall into.
    let settings = oracle::Settings {
        intervals: vec![interval.to_owned()],
        lateness: i64::from(i32::MAX),
        late: oracle::Late::Drop,
        ..settings.clone()
    };
    let log: Vec<oracle::LogRecord> = ticks
        .iter()
        .enumerate()
        .map(|(offset, tick)| oracle::LogRecord { offset: offset as i64, ticks: vec![tick.clone()] })
        .collect();
    let found = oracle::expected(&settings, &[], &log);
    let mut expected = Expected::default();
    expected.add(config, settings.partition, &found, ticks.len(), &BTreeMap::new());
    expected.outputs.remove(&format!("candle {symbol}:{interval}:{start}:0"))
}
