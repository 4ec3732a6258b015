use super::*;
use crate::domain::Counts;

const BEGIN: i64 = 1_700_000_000_000;

fn price(text: &str) -> Price {
    Price::parse(text).unwrap().value
}

fn volume(text: &str) -> Volume {
    Volume::parse(text).unwrap()
}

fn second() -> Interval {
    "1s".parse().unwrap()
}

/// The state of a partition at its start, and one symbol, `X`.
struct World {
    state: Reference,
}

impl World {
    fn new() -> World {
        let limits = Limits { max_matches: 100, max_outputs: 1000, page: 0 };
        World { state: Reference::new(Offset(0), limits, |symbol| Cow::Borrowed(symbol)) }
    }

    fn with_edge(rule: &str, threshold: f64) -> World {
        let mut world = World::new();
        world.symbol().rules.edge.insert(rule.to_owned(), threshold);
        world
    }

    fn symbol(&mut self) -> &mut Symbol {
        self.state.symbols.entry("X".into()).or_default()
    }

    fn options(&mut self, id: &str, options: RuleOptions) {
        self.symbol().rules.options.insert(id.to_owned(), Some(options));
    }

    /// A batch of records `[from, to)` that leaves the watermark where it is.
    fn batch(&self, records: i64) -> Batch {
        let Position { offset, watermark, .. } = self.state.position;
        Batch {
            from: offset,
            to: Offset(offset.0 + records),
            watermark_before: watermark,
            watermark_after: watermark,
            max_ts: None,
            last_record: None,
            symbols: Vec::new(),
            extras: Vec::new(),
            counts: Counts::default(),
        }
    }

    fn apply(&mut self, batch: &Batch) -> Vec<Entry> {
        match self.state.apply(batch, batch.to.0 - batch.from.0 <= 1) {
            Applied::Done(entries) => entries,
            refusal => panic!("{refusal:?}"),
        }
    }

    /// One batch with a record a tick: (ts after `BEGIN`, price).
    fn ticks(&mut self, ticks: &[(i64, &str)]) -> Vec<Entry> {
        let mut batch = self.batch(ticks.len() as i64);
        let ticks = (batch.from.0..).zip(ticks).map(|(offset, (ts, text))| BatchTick {
            offset: Offset(offset),
            index: 0,
            ts: BEGIN + ts,
            price: price(text),
        });
        batch.symbols.push(SymbolBatch { symbol: "X".into(), ticks: ticks.collect(), windows: Vec::new() });
        self.apply(&batch)
    }

    /// Prices a second apart, each in a batch of its own; the prices that fired.
    fn prices(&mut self, prices: &[&str]) -> Vec<String> {
        let mut fired = Vec::new();
        for text in prices {
            let ts = self.symbol().last.map_or(0, |last| last.ts - BEGIN + 1000);
            fired.extend(notified(&self.ticks(&[(ts, text)])));
        }
        fired
    }

    /// One partial candle of the first second, of as many ticks as there are prices, a millisecond apart.
    fn partial(&mut self, first_ts: i64, prices: [&str; 2], revises: Option<i64>) -> Vec<Entry> {
        let mut batch = self.batch(1);
        let [open, close] = prices.map(price);
        let (low, high) = if open < close { (open, close) } else { (close, open) };
        batch.symbols.push(SymbolBatch {
            symbol: "X".into(),
            ticks: Vec::new(),
            windows: vec![Partial {
                interval: second(),
                window: Window { start: BEGIN, end: BEGIN + 1000 },
                open,
                high,
                low,
                close,
                volume: volume("0.5"),
                count: 2,
                open_ts: BEGIN + first_ts,
                close_ts: BEGIN + first_ts + 1,
                revises: revises.map(Offset),
            }],
        });
        self.apply(&batch)
    }

    fn candle(&mut self) -> StoredCandle {
        self.symbol().candles[&(second(), BEGIN)]
    }

    fn pass_first_second(&mut self) {
        self.state.advance(Watermark::at(BEGIN + 1000));
    }
}

fn notified(entries: &[Entry]) -> Vec<String> {
    entries
        .iter()
        .filter_map(|entry| match &entry.output {
            Output::Notification(notification) => Some(notification.price.to_string()),
            _ => None,
        })
        .collect()
}

fn rules(entries: &[Entry]) -> Vec<String> {
    entries
        .iter()
        .filter_map(|entry| match &entry.output {
            Output::Notification(n) => Some(format!("{} {} {}", n.trigger, n.op, n.rule)),
            _ => None,
        })
        .collect()
}

fn candle_of(entry: &Entry) -> &Candle {
    match &entry.output {
        Output::Candle(candle) => candle,
        other => panic!("{other:?}"),
    }
}

fn once() -> RuleOptions {
    RuleOptions { once: true, ..RuleOptions::default() }
}

#[test]
fn a_first_tick_never_fires_an_edge_rule() {
    assert!(World::with_edge(">= a", 100.0).prices(&["140"]).is_empty());
}

#[test]
fn a_level_rule_fires_at_the_first_tick_with_no_previous_price() {
    let mut world = World::new();
    world.symbol().rules.below.insert("< a".to_owned(), 10.0);
    let entries = world.ticks(&[(0, "5"), (1, "4"), (2, "10")]);
    let Output::Notification(first) = &entries[0].output else { panic!("{entries:?}") };
    assert_eq!(first.previous, None);
    assert_eq!(notified(&entries), ["5", "4"]);
}

#[test]
fn staying_below_is_silent_across_a_takeover() {
    // Each price is a batch of its own: nothing but the stored last price connects them.
    assert!(World::with_edge("< a", 10.0).prices(&["5", "4"]).is_empty());
}

#[test]
fn a_crossing_fires_once_until_the_price_crosses_again() {
    assert_eq!(World::with_edge(">= a", 100.0).prices(&["99", "100.5", "99.5", "99.6"]), ["100.5"]);
    assert_eq!(World::with_edge(">= a", 100.0).prices(&["99", "101", "99", "101"]), ["101", "101"]);
}

#[test]
fn a_jump_across_the_threshold_reports_the_price_it_landed_on() {
    assert_eq!(World::with_edge(">= a", 100.0).prices(&["95", "140"]), ["140"]);
}

#[test]
fn a_price_is_compared_as_rounded_to_15_digits() {
    let prices = ["9", "10.000000000000001", "9"];
    assert_eq!(World::with_edge(">= a", 10.0).prices(&prices), ["10"]);
    assert!(World::with_edge("> a", 10.0).prices(&prices).is_empty());
}

#[test]
fn zero_is_a_price_like_any_other_where_it_is_accepted() {
    assert_eq!(World::with_edge("< a", 50.0).prices(&["100", "0", "101"]), ["0"]);
    assert_eq!(World::with_edge(">= a", 50.0).prices(&["100", "0", "101"]), ["101"]);
}

#[test]
fn once_removes_the_rule_and_its_options_within_the_batch() {
    let mut world = World::with_edge(">= a", 100.0);
    world.options("a", once());
    assert_eq!(notified(&world.ticks(&[(0, "99"), (1, "101"), (2, "99"), (3, "101")])), ["101"]);
    assert!(world.symbol().rules.edge.is_empty() && world.symbol().rules.options.is_empty());
}

#[test]
fn a_cooldown_is_counted_in_event_time_from_the_last_firing() {
    let mut world = World::with_edge(">= a", 100.0);
    world.options("a", RuleOptions { cooldown: Some(10), ..RuleOptions::default() });
    let ticks = [(0, "99"), (1, "101"), (2, "99"), (10, "102"), (10, "99"), (11, "103")];
    assert_eq!(notified(&world.ticks(&ticks)), ["101", "103"]);
    assert_eq!(world.symbol().fired["a"], BEGIN + 11);
}

#[test]
fn an_expired_rule_is_removed_when_it_would_fire() {
    let mut world = World::with_edge(">= a", 100.0);
    world.options("a", RuleOptions { expires: Some(BEGIN + 10), ..RuleOptions::default() });
    assert_eq!(notified(&world.ticks(&[(0, "99"), (9, "101"), (20, "99")])), ["101"]);
    assert_eq!(world.symbol().rules.edge.len(), 1);
    assert!(notified(&world.ticks(&[(21, "101")])).is_empty());
    assert!(world.symbol().rules.edge.is_empty() && world.symbol().rules.options.is_empty());
}

#[test]
fn a_rule_that_does_not_parse_is_skipped_and_hurts_no_other() {
    let mut world = World::with_edge(">= good", 100.0);
    for (member, threshold) in [("=> a", 100.0), (">=b", 100.0), (">= ", 100.0), ("< c", f64::INFINITY)] {
        world.symbol().rules.edge.insert(member.to_owned(), threshold);
    }
    world.symbol().rules.above.insert("< wrong set".to_owned(), 100.0);
    world.symbol().rules.edge.insert(">= bad options".to_owned(), 100.0);
    world.symbol().rules.options.insert("bad options".to_owned(), None);
    assert_eq!(rules(&world.ticks(&[(0, "99"), (1, "101")])), ["edge >= good"]);
}

#[test]
fn an_out_of_order_tick_moves_nothing_and_is_counted() {
    let mut world = World::with_edge(">= a", 100.0);
    assert!(notified(&world.ticks(&[(10, "99"), (9, "101"), (10, "98")])).is_empty());
    assert_eq!(world.symbol().last, Some(Last { price: price("98"), ts: BEGIN + 10 }));
    assert_eq!(world.state.totals.out_of_order, 1);
}

#[test]
fn a_tick_fires_at_most_max_matches_rules() {
    let mut world = World::new();
    world.state.limits.max_matches = 2;
    for id in ["c", "b", "a"] {
        world.symbol().rules.edge.insert(format!("> {id}"), 100.0);
        world.options(id, once());
    }
    assert_eq!(rules(&world.ticks(&[(0, "99"), (1, "101")])), ["edge > a", "edge > b"]);
    assert_eq!(world.state.totals.refused, 1);
    assert_eq!(world.symbol().rules.edge.len(), 1);
}

#[test]
fn outputs_of_a_tick_are_filed_edge_before_level_then_by_threshold_then_by_member() {
    let mut world = World::new();
    let rules_of = &mut world.symbol().rules;
    rules_of.edge.insert("> e".to_owned(), 100.0);
    rules_of.above.insert(">= high".to_owned(), 101.0);
    rules_of.above.insert("> low".to_owned(), 1.0);
    rules_of.equal.insert("= high".to_owned(), 101.0);
    rules_of.below.insert("<= high".to_owned(), 101.0);
    let entries = world.ticks(&[(0, "99"), (1, "101")]);
    let of_second: Vec<Entry> = entries.into_iter().filter(|entry| entry.id.offset == Offset(1)).collect();
    assert_eq!(rules(&of_second), ["edge > e", "level > low", "level <= high", "level = high", "level >= high"]);
    assert_eq!(of_second.iter().map(|entry| entry.id.n).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
}

#[test]
fn ids_count_on_from_the_last_entry_of_the_same_offset_even_if_it_was_trimmed() {
    let mut world = World::new();
    world.symbol().rules.above.insert("> a".to_owned(), 0.0);
    world.partial(0, ["10", "11"], None);
    world.pass_first_second();
    let closed = world.state.close(10).entries;
    assert_eq!(closed[0].id, OutboxId { offset: Offset(1), n: 1 });
    world.state.trim(OutboxId { offset: Offset(1), n: 2 });
    assert!(world.state.outbox.is_empty());
    assert_eq!(world.ticks(&[(0, "9")])[0].id, OutboxId { offset: Offset(1), n: 2 });
    assert_eq!(world.ticks(&[(0, "9")])[0].id, OutboxId { offset: Offset(2), n: 1 });
}

#[test]
fn among_equal_times_the_first_tick_stays_open_and_the_last_becomes_close() {
    let mut world = World::new();
    world.partial(5, ["10", "11"], None);
    world.partial(5, ["20", "21"], None);
    let candle = world.candle();
    assert_eq!((candle.open, candle.close), (price("10"), price("21")));
    world.partial(4, ["1", "2"], None);
    let candle = world.candle();
    assert_eq!((candle.open, candle.close), (price("1"), price("21")));
    assert_eq!((candle.low, candle.high), (price("1"), price("21")));
    assert_eq!((candle.volume, candle.count), (volume("1.5"), 6));
    assert_eq!((candle.status, candle.revision), (Status::Open, 0));
    assert_eq!(world.state.due.len(), 1);
}

#[test]
fn nothing_is_applied_while_a_due_window_is_open() {
    let mut world = World::new();
    world.partial(0, ["10", "11"], None);
    world.pass_first_second();
    let batch = world.batch(1);
    assert_eq!(world.state.apply(&batch, true), Applied::Due);
    let closed = world.state.close(1);
    assert!(!closed.more);
    let sent = candle_of(&closed.entries[0]);
    assert_eq!((sent.revision, sent.start, sent.end), (0, BEGIN, BEGIN + 1000));
    assert_eq!(world.candle().status, Status::Final);
    assert!(matches!(world.state.apply(&batch, true), Applied::Done(_)));
}

#[test]
fn closing_goes_page_by_page_in_the_order_of_end_and_name() {
    let mut world = World::new();
    let minute: Interval = "1m".parse().unwrap();
    let mut batch = world.batch(1);
    world.partial(0, ["10", "11"], None);
    let mut partial = Partial { interval: second(), ..partial_of(&world.candle()) };
    batch.from = Offset(1);
    batch.to = Offset(2);
    for symbol in ["B", "A"] {
        let start = minute.window_of(BEGIN);
        let long = Partial { interval: minute, window: start, ..partial };
        partial.window = Window { start: BEGIN, end: BEGIN + 1000 };
        batch.symbols.push(SymbolBatch { symbol: symbol.into(), ticks: vec![], windows: vec![partial, long] });
    }
    world.apply(&batch);
    world.state.advance(Watermark::at(BEGIN + 60_000));
    let mut closed = Vec::new();
    while {
        let page = world.state.close(2);
        closed.extend(page.entries);
        page.more
    } {}
    let names: Vec<String> = closed.iter().map(candle_of).map(|c| format!("{} {}", c.symbol, c.interval)).collect();
    assert_eq!(names, ["A 1s", "B 1s", "X 1s", "A 1m", "B 1m"]);
}

fn partial_of(candle: &StoredCandle) -> Partial {
    Partial {
        interval: second(),
        window: Window { start: BEGIN, end: BEGIN + 1000 },
        open: candle.open,
        high: candle.high,
        low: candle.low,
        close: candle.close,
        volume: candle.volume,
        count: candle.count,
        open_ts: candle.open_ts,
        close_ts: candle.close_ts,
        revises: None,
    }
}

#[test]
fn a_late_tick_revises_its_candle_under_its_own_offset() {
    let mut world = World::new();
    world.partial(5, ["10", "11"], None);
    world.pass_first_second();
    world.state.close(10);
    let entries = world.partial(0, ["9", "12"], Some(1));
    let sent = candle_of(&entries[0]);
    assert_eq!((sent.revision, sent.open, sent.close, sent.count), (2, price("9"), price("11"), 4));
    assert_eq!(world.candle().status, Status::Revised);
    assert!(world.state.due.is_empty());
}

#[test]
fn a_candle_that_was_sent_before_its_symbol_moved_here_is_closed_as_a_revision() {
    let mut world = World::new();
    world.partial(5, ["10", "11"], None);
    world.pass_first_second();
    world.state.close(10);
    let mut other = World::new();
    other.state.position.offset = Offset(70);
    other.state.symbols = world.state.symbols.clone();
    other.partial(6, ["12", "13"], None);
    assert_eq!(other.state.due.len(), 1);
    other.pass_first_second();
    let closed = other.state.close(10);
    assert_eq!((candle_of(&closed.entries[0]).revision, candle_of(&closed.entries[0]).count), (71, 4));
    assert_eq!(other.candle().status, Status::Revised);
}

#[test]
fn a_window_whose_candle_is_gone_closes_without_an_output() {
    let mut world = World::new();
    world.partial(5, ["10", "11"], None);
    world.symbol().candles.clear();
    world.pass_first_second();
    assert_eq!(world.state.close(10), Closed { entries: vec![], more: false });
}

#[test]
fn too_many_outputs_split_a_batch_unless_it_is_one_record() {
    let mut world = World::new();
    world.state.limits.max_outputs = 1;
    for id in ["a", "b"] {
        world.symbol().rules.above.insert(format!("> {id}"), 0.0);
    }
    let mut batch = world.batch(2);
    let ticks = vec![BatchTick { offset: Offset(0), index: 0, ts: BEGIN, price: price("1") }];
    batch.symbols.push(SymbolBatch { symbol: "X".into(), ticks, windows: vec![] });
    let before = world.state.clone();
    assert_eq!(world.state.apply(&batch, false), Applied::Split);
    assert_eq!(world.state.symbols, before.symbols);
    assert_eq!(world.state.position, before.position);
    assert!(matches!(world.state.apply(&batch, true), Applied::Done(entries) if entries.len() == 2));
}

#[test]
fn a_batch_that_starts_elsewhere_is_refused() {
    let mut world = World::new();
    let batch = world.batch(1);
    let elsewhere = Batch { from: Offset(7), ..batch.clone() };
    assert_eq!(world.state.apply(&elsewhere, true), Applied::Moved);
    let other_time = Batch { watermark_before: Watermark::at(7), ..batch };
    assert_eq!(world.state.apply(&other_time, true), Applied::Moved);
}

#[test]
fn a_record_of_a_poisoned_symbol_becomes_one_dead_letter_and_changes_nothing_of_the_symbol() {
    let mut world = World::with_edge(">= a", 100.0);
    world.state.poisoned.insert("X".into(), "tw:last:X: WRONGTYPE".to_owned());
    let mut batch = world.batch(2);
    let tick = |offset, index| BatchTick { offset: Offset(offset), index, ts: BEGIN, price: price("1") };
    let ticks = vec![tick(0, 0), tick(0, 1), tick(1, 0)];
    batch.symbols.push(SymbolBatch { symbol: "X".into(), ticks, windows: vec![] });
    let entries = world.apply(&batch);
    assert_eq!(entries.iter().map(|entry| entry.id.offset.0).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(world.state.totals.dead_letters, 2);
    assert_eq!(world.symbol().last, None);
}

#[test]
fn delivered_entries_are_dropped_from_the_head_only() {
    let mut world = World::new();
    world.symbol().rules.above.insert("> a".to_owned(), 0.0);
    world.ticks(&[(0, "1")]);
    world.partial(0, ["10", "11"], None);
    world.pass_first_second();
    world.state.close(10); // filed under offset 2
    world.ticks(&[(0, "1")]); // offset 2
    let delivered = Position::at(Offset(3), Watermark::at(BEGIN));
    world.state.drop_delivered(delivered);
    let left: Vec<String> = world.state.outbox.iter().map(|entry| entry.id.to_string()).collect();
    assert_eq!(left, ["2-1", "2-2"]);
}
