//! What the state and everything sent must be, once a schedule has come to rest; and which differences from that are
//! legal, each with its reason.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{bail, ensure};
use tickwatch::config::LatePolicy;
use tickwatch::domain::reference::Status;

use super::kafka::{Sent, price_of, whole};
use super::log::{SYMBOLS, Topic};
use super::oracle::{Content, Key, Oracle, RULES, SimCandle, Why, WindowKey};
use super::plan::INTERVALS;
use super::schedule::{Part, Simulation};
use super::tally::Seen;

/// Incarnation of the topic, and key.
type Name = (usize, Key);

/// What may be sent under each name.
type Allowed = BTreeMap<Name, BTreeSet<Content>>;

impl Simulation {
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        for part in 0..self.parts.len() {
            self.check_state(part)?;
            self.check_sent(part)?;
            self.check_last_sent(part)?;
            self.check_last_updates(part)?;
            self.check_generations(part)?;
        }
        Ok(())
    }

    fn oracle(&self, part: usize) -> Oracle<'_> {
        let (source, topics) = (self.store.source(part), &self.parts[part].topics);
        Oracle::run(self.plan.meaning(), &INTERVALS, topics, &source.happenings, self.end(part))
    }

    /// Whether what is sent follows from the log alone: rises of the watermark between two commits (by silence, or to
    /// the delivered watermark behind a loss) are not on the log, so a Redis that came back older, or was filled again,
    /// may go through others.
    fn history_is_one(&self, part: usize) -> bool {
        let it = &self.parts[part];
        !(self.plan.silence && (it.rolled_back || it.rebuilt) || it.rolled_back && !it.eras.is_empty())
    }

    fn check_state(&self, part: usize) -> anyhow::Result<()> {
        let mut want = self.oracle(part);
        let state = &self.store.source(part).state;
        let watermark = state.position.watermark.ms().unwrap_or(i64::MIN);
        self.same(part, "the watermark", &watermark, &want.watermark)?;
        let symbols = SYMBOLS[part].iter().enumerate();
        let last: BTreeMap<usize, (i64, i64)> = symbols
            .filter_map(|(number, name)| state.symbols.get(*name)?.last.map(|last| (number, last)))
            .map(|(number, last)| (number, (price_of(last.price), last.ts)))
            .collect();
        self.same(part, "last prices", &last, &want.last)?;
        let candles = self.stored_candles(part);
        let first = Topic::begin_of(self.topic(part).number);
        for (window, candle) in want.candles.iter_mut().filter(|((_, _, start), _)| *start < first) {
            // Legal: a window that was due when its topic was made again was closed by then, or never is.
            candle.closed &= candles.get(window).is_none_or(|stored| stored.closed);
        }
        for (window, stored) in &candles {
            self.same(part, &format!("the candle {window:?}"), &Some(stored), &want.candles.get(window))?;
        }
        for (window, wanted) in &want.candles {
            self.same(part, &format!("the candle {window:?}"), &candles.get(window), &Some(wanted))?;
        }
        for ((symbol, interval, start), candle) in candles.iter().filter(|((_, _, start), _)| *start >= first) {
            let left = !candle.closed && state.position.watermark.passes(start + interval);
            ensure!(
                !left,
                "an open window is left behind: {symbol} {interval} {start}{}",
                self.faults_before(self.step)
            );
        }
        for (number, rule) in RULES.iter().enumerate() {
            let member = format!("{} {}", rule.op, rule.id);
            let rules = &state.symbols[SYMBOLS[part][rule.symbol]].rules;
            let there =
                [&rules.edge, &rules.above, &rules.below, &rules.equal].iter().any(|set| set.contains_key(&member));
            self.same(part, &format!("rule {member} is there"), &there, &!want.rules_gone.contains(&number))?;
        }
        Ok(())
    }

    fn same<T: PartialEq + std::fmt::Debug>(
        &self,
        part: usize,
        what: &str,
        is: &T,
        want: &T,
    ) -> anyhow::Result<()> {
        if is != want {
            bail!("partition {part}: {what} differs: {is:?} is not {want:?}{}", self.faults_before(self.step));
        }
        Ok(())
    }

    fn stored_candles(&self, part: usize) -> BTreeMap<WindowKey, SimCandle> {
        let mut candles = BTreeMap::new();
        for (number, name) in SYMBOLS[part].iter().enumerate() {
            let Some(symbol) = self.store.source(part).state.symbols.get(*name) else { continue };
            for ((interval, start), candle) in &symbol.candles {
                candles.insert(
                    (number, interval.ms(), *start),
                    SimCandle {
                        open: price_of(candle.open),
                        high: price_of(candle.high),
                        low: price_of(candle.low),
                        close: price_of(candle.close),
                        volume: whole(&candle.volume),
                        count: candle.count as i64,
                        open_ts: candle.open_ts,
                        close_ts: candle.close_ts,
                        revision: candle.revision,
                        closed: candle.status != Status::Open,
                    },
                );
            }
        }
        candles
    }

    fn check_sent(&mut self, part: usize) -> anyhow::Result<()> {
        let (allowed, required, histories) = self.meant(part);
        let as_the_log_says = |(topic, key): Name, content: Content| {
            let Key::Update(symbol, interval, start, offset) = key else { return true };
            let stood = |oracle: &Oracle<'_>| oracle.stood(topic, (symbol, interval, start), offset);
            histories.iter().any(|oracle| stood(oracle) == Some(content))
        };
        let history_is_one = self.history_is_one(part);
        let is_update = |key: Key| matches!(key, Key::Update(..));
        let compared = |key: Key| (history_is_one || key.is_by_the_log_alone()) && !is_update(key);
        // Elsewhere an update comes again after the final candle that it was sent before; and a state that begins anew
        // has windows again that were closed.
        let in_order =
            self.plan.exactly_once() && self.parts[part].eras.is_empty() && self.parts[part].repeatable.is_empty();
        let mut closed: BTreeSet<(usize, WindowKey)> = BTreeSet::new();
        let it = &self.parts[part];
        let start = self.start_of_log(part).0;
        let mut counted: Vec<Seen> = Vec::new();
        let mut counts: BTreeMap<Name, (usize, Content)> = BTreeMap::new();
        for sent in &it.kafka.sent {
            let name = (sent.topic, sent.key);
            let differs = |what: &str| {
                let why = self.faults_before(sent.step);
                anyhow::anyhow!(
                    "partition {part}, step {}: {what}: {:?} {:?}{why}",
                    sent.step,
                    sent.key,
                    sent.content
                )
            };
            let (count, before) = counts.entry(name).or_insert((0, sent.content));
            *count += 1;
            if *count > 1 {
                // Legal at least once, always; exactly once, where the committed offset was lost: nothing else says
                // what was delivered.
                let may =
                    !self.plan.exactly_once() || it.repeatable.get(&name).is_some_and(|more| *count <= 1 + more);
                if !may {
                    return Err(differs("sent twice"));
                }
                counted.push(Seen::SentAgain);
            }
            if !as_the_log_says(name, sent.content) {
                return Err(differs("not the candle at that offset"));
            }
            match sent.key {
                Key::Candle(symbol, interval, start, _) => {
                    closed.insert((sent.topic, (symbol, interval, start)));
                }
                Key::Update(symbol, interval, start, _)
                    if in_order && closed.contains(&(sent.topic, (symbol, interval, start))) =>
                {
                    return Err(differs("sent after its final candle"));
                }
                _ => {}
            }
            if *before != sent.content && !compared(sent.key) {
                // Legal: what was sent and not committed may be made anew on another history.
                counted.push(Seen::ContentOfAnotherHistory);
            }
            // Legal at least once: until somebody sees that the topic was made again, its bad records are read as ones
            // of the topic before.
            let early = !self.plan.exactly_once()
                && sent.content == Content::DeadLetter(Why::Bad)
                && it.topics.get(sent.topic + 1).is_some_and(|topic| topic.is_bad(sent.key));
            if compared(sent.key)
                && !early
                && !allowed.get(&name).is_some_and(|contents| contents.contains(&sent.content))
            {
                let want = allowed.get(&name);
                return Err(differs(&format!("not what the log means ({want:?})")));
            }
            if sent.without_bytes {
                // Legal where retention took the record before its letter was sent, and on_gap = continue.
                if sent.key.is_without_record(start, sent.topic < it.topics.len() - 1) {
                    counted.push(Seen::BytesGone);
                } else {
                    return Err(differs("a dead letter without its record"));
                }
            }
            counted.extend(kind_of(sent));
        }
        for (name, content) in &required {
            if !compared(name.1) || counts.contains_key(name) {
                continue;
            }
            if Self::may_be_lost(it, *name, *content) {
                counted.push(Seen::LetterLost);
                continue;
            }
            bail!("partition {part}: never sent: {:?} {content:?}{}", name.1, self.faults_before(self.step));
        }
        if self.plan.exactly_once() {
            // Legal: where the committed offset is lost, and the state taken for delivered, there is nothing to commit.
            let reached = it.kafka.truth >= self.store.source(part).state.position || it.kafka.is_lost();
            self.same(part, "what is committed reaches the state", &reached, &true)?;
        }
        for seen in counted {
            self.seen(seen);
        }
        Ok(())
    }

    /// Legal: the dead letter of a record that could not be decoded has no entry in the outbox. If the offset that
    /// reading would begin at is lost, or retention takes the record before its letter was sent, nobody knows of it.
    fn may_be_lost(part: &Part, (topic, key): Name, content: Content) -> bool {
        let Key::DeadLetter(offset) = key else { return false };
        let bad = content == Content::DeadLetter(Why::Bad);
        let unknown =
            part.letters_at_risk.iter().any(|(of, from, to)| *of == topic && (*from..*to).contains(&offset));
        bad && (unknown || offset < part.topics[topic].start)
    }

    /// What may be sent, and what has to be: by every era, what was delivered within it. And the eras, read to the end.
    fn meant(&self, part: usize) -> (Allowed, BTreeMap<Name, Content>, Vec<Oracle<'_>>) {
        let (it, source) = (&self.parts[part], self.store.source(part));
        let mut allowed = Allowed::new();
        let mut required = BTreeMap::new();
        let mut histories = Vec::new();
        let run = |happenings, end| Oracle::run(self.plan.meaning(), &INTERVALS, &it.topics, happenings, end);
        for era in &it.eras {
            let end = self.plan.stop_at.unwrap_or(it.topics[era.topic].length());
            let oracle = run(&era.happenings, end);
            for (name, content) in &oracle.outputs {
                allowed.entry(*name).or_default().insert(*content);
            }
            histories.push(oracle);
            for (name, content) in run(&era.happenings, era.position.offset.0).outputs {
                if name.0 == era.topic
                    && !name.1.is_delivered(era.from.max(it.from_before))
                    && name.1.is_delivered(era.until)
                {
                    required.insert(name, content);
                }
            }
        }
        let oracle = run(&source.happenings, self.end(part));
        for (name, content) in &oracle.outputs {
            allowed.entry(*name).or_default().insert(*content);
            if name.0 == source.topic && !name.1.is_delivered(source.from.max(it.from_before)) {
                required.insert(*name, *content);
            }
        }
        histories.push(oracle);
        (allowed, required, histories)
    }

    /// What was sent last about a candle is what Redis holds.
    fn check_last_sent(&self, part: usize) -> anyhow::Result<()> {
        let it = &self.parts[part];
        // At least once, what a zombie sends of a state that was lost since may come last.
        let exact = (self.history_is_one(part) && (self.plan.exactly_once() || it.eras.is_empty()))
            || (self.plan.exactly_once() && self.plan.late == LatePolicy::Revise && it.repeatable.is_empty());
        // Not where the state was made anew from less than what was sent: the log's head was gone.
        if !exact || it.fragments {
            return Ok(());
        }
        let mut last: BTreeMap<WindowKey, (i64, &Sent)> = BTreeMap::new();
        for sent in &it.kafka.sent {
            if let Key::Candle(symbol, interval, start, revision) = sent.key {
                let newest = last.entry((symbol, interval, start)).or_insert((revision, sent));
                if revision >= newest.0 {
                    *newest = (revision, sent);
                }
            }
        }
        // A topic that was made again leaves the candles of the one before as they are, sent or not.
        let first = Topic::begin_of(self.topic(part).number);
        let stored = self.stored_candles(part);
        for (window, candle) in stored.iter().filter(|(window, candle)| candle.closed && window.2 >= first) {
            let sent = last.get(window).map(|(_, sent)| sent.content);
            self.same(part, &format!("what was sent last of {window:?}"), &sent, &Some(candle.content()))?;
        }
        Ok(())
    }

    /// A window that is open has been sent as it stands. Not where a state began anew: it may be muted up to where one
    /// before it had come.
    fn check_last_updates(&self, part: usize) -> anyhow::Result<()> {
        let it = &self.parts[part];
        if self.plan.update_interval.is_none()
            || self.plan.stop_at.is_some()
            || !it.eras.is_empty()
            || !it.repeatable.is_empty()
        {
            return Ok(());
        }
        for (window, candle) in self.stored_candles(part).iter().filter(|(_, candle)| !candle.closed) {
            let is_it = |sent: &Sent| matches!(sent.key, Key::Update(s, i, t, _) if (s, i, t) == *window);
            let last = it.kafka.sent.iter().rev().find(|sent| is_it(sent)).map(|sent| sent.content);
            self.same(part, &format!("the last update of {window:?}"), &last, &Some(candle.content()))?;
        }
        Ok(())
    }

    /// Two incarnations of a topic never share a generation: their offsets name different notifications.
    fn check_generations(&self, part: usize) -> anyhow::Result<()> {
        let it = &self.parts[part];
        // The generation is part of the state: who loses the state loses it too.
        if it.generation_lost {
            return Ok(());
        }
        let pairs: BTreeSet<(u64, usize)> =
            it.kafka.sent.iter().map(|sent| (sent.generation, sent.topic)).collect();
        let generations: BTreeSet<u64> = pairs.iter().map(|(generation, _)| *generation).collect();
        ensure!(pairs.len() == generations.len(), "partition {part}: a generation is shared: {pairs:?}");
        Ok(())
    }
}

fn kind_of(sent: &Sent) -> Option<Seen> {
    Some(match (sent.key, sent.content) {
        (Key::Candle(.., revision), _) if revision > 0 => Seen::Revised,
        (Key::Update(..), _) => Seen::Updated,
        (Key::Late(..), _) => Seen::Diverted,
        (_, Content::DeadLetter(Why::Bad)) => Seen::Bad,
        (_, Content::DeadLetter(Why::Future)) => Seen::Future,
        (_, Content::DeadLetter(Why::Poisoned)) => Seen::Poisoned,
        _ => return None,
    })
}
