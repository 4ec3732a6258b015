//! The Lua scripts on a real Redis, held against the reference of their semantics (`tickwatch::domain::reference`).
//!
//! `TW_TEST_SEED` repeats a random run, `TW_TEST_ROUNDS` sets how many there are.

mod dump;
pub(crate) mod log;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use anyhow::{Context as _, bail, ensure};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use redis::Commands as _;
use tickwatch::config::LatePolicy;
use tickwatch::domain::output::Candle;
use tickwatch::domain::reference::{Applied, RuleOptions};
use tickwatch::domain::{Batch, Entry, Offset, OutboxId, Output, Position, Watermark};
use tickwatch::sandbox::Redis;
use tickwatch::store::StoreError;
use tickwatch::store::scripts::{self, Advanced, Beat, Claimed, Closed, Guard, Refusal, Token, Updated};

use crate::harness::{Case, Needs, Stage, cases};
use log::{
    BEGIN, Content, LogRecord, LogTick, STEP, SYMBOLS, Settings, interval, pick, price, random_log, random_price,
    volume,
};
use world::{Bounds, Options, World};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Redis;
        scripts_do_what_the_reference_does,
        where_batches_are_cut_changes_nothing,
        a_crossing_is_found_wherever_it_is_in_a_long_batch,
        a_refused_call_changes_nothing,
        nothing_is_applied_while_a_due_window_is_open,
        a_batch_of_too_many_outputs_is_refused_whole_unless_it_is_one_record,
        many_windows_are_sealed_page_by_page,
        a_batch_seals_what_it_passes_unless_that_is_more_than_a_page,
        open_candles_are_sent_page_by_page_and_none_twice_in_one_wave,
        a_wave_waits_for_its_interval_also_after_a_takeover,
        a_window_that_is_closed_is_not_sent_as_open,
        changes_are_noted_only_by_an_owner_that_sends_them,
        what_updates_cost_redis_beside_the_ticks,
        a_claim_of_what_is_not_there_or_not_ours_writes_nothing,
        a_claim_drops_delivered_entries_from_the_head_of_the_outbox,
        a_reset_starts_a_new_generation_without_what_was_pending,
        a_reset_that_somebody_has_made_already_changes_nothing,
        a_claim_drops_nothing_of_a_topic_that_was_made_again,
        time_passes_at_the_pace_of_the_clock_on_the_partitions_own_time_line,
        a_heartbeat_says_what_holds_time_back_and_since_when,
        a_key_that_cannot_be_used_stops_its_own_symbol_only,
        what_a_stopped_symbol_would_have_sent_does_not_count_against_the_batch,
        a_window_whose_candle_is_gone_is_reported_and_not_sent,
        rules_that_do_not_parse_are_skipped_and_counted,
        a_script_that_runs_out_of_memory_writes_nothing,
        the_last_price_names_its_partition_and_closed_candles_expire,
    )
}

/// Random runs, unless set otherwise; each is some tens of steps.
const ROUNDS: u64 = 60;
const STEPS: usize = 60;

/// Runs `round` for each seed, and names the seed of one that fails.
pub(crate) fn for_each_seed(rounds: u64, round: impl Fn(&mut StdRng)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = if let Some(seed) = number("TW_TEST_SEED") {
        seed..seed + 1
    } else {
        let first = rand::random::<u32>().into();
        first..first + number("TW_TEST_ROUNDS").unwrap_or(rounds)
    };
    for seed in seeds {
        let run = AssertUnwindSafe(|| round(&mut StdRng::seed_from_u64(seed)));
        if let Err(panic) = catch_unwind(run) {
            eprintln!("repeat with TW_TEST_SEED={seed}");
            resume_unwind(panic);
        }
    }
}

fn scripts_do_what_the_reference_does(stage: &Stage) -> anyhow::Result<()> {
    // Its own server: it makes the server forget the scripts, which other tests are calling meanwhile.
    let redis = Redis::start(&[])?;
    for_each_seed(ROUNDS, |rng| random_run(stage, &redis.url(), rng));
    Ok(())
}

/// Two partitions that share their symbols: their logs are applied in turn, among everything else that happens.
fn random_run(stage: &Stage, url: &str, rng: &mut StdRng) {
    let settings = Settings::random(rng);
    // A script reads no more rules than it may fire or send, so one of the two is small, never both.
    let (max_outputs, max_matches) = *pick(rng, &[(10_000, 10_000), (5, 10_000), (10_000, 3)]);
    let bounds = Bounds {
        max_outputs,
        max_matches,
        page: *pick(rng, &[1, 3, 5_000]),
        updates: rng.random_bool(0.5).then_some(0),
    };
    let mut world = World::at(stage, url, &settings.intervals, bounds, 2);
    let symbols = &SYMBOLS[..rng.random_range(1..=SYMBOLS.len())];
    let logs = [random_log(rng, symbols, 300), random_log(rng, symbols, 300)];
    let mut applied = [0, 0];
    for _ in 0..STEPS {
        let side = rng.random_range(0..2);
        match rng.random_range(0..100) {
            0..65 => {
                let most = *pick(rng, &[1, 2, 5, 20]);
                applied[side] += apply_next(&mut world, &settings, side, &logs[side][applied[side]..], most);
            }
            65..80 => edit_rules(&mut world, rng, symbols),
            80..85 => {
                let now = world.position(side).watermark.ms().unwrap_or(BEGIN);
                world.advance(side, Watermark::at(now + rng.random_range(-100..5000)));
            }
            85..87 => drop(world.close_page(side)),
            87..89 => drop(world.update(side)),
            89..93 => {
                let outbox = &world.sides[side].reference.outbox;
                if let Some(entry) = (!outbox.is_empty()).then(|| &outbox[rng.random_range(0..outbox.len())]) {
                    let through = entry.id;
                    world.trim(side, through);
                }
            }
            93..97 => {
                let Position { offset, watermark, .. } = world.position(side);
                let delivered = Position::at(
                    Offset(rng.random_range(0..=offset.0 + 1)),
                    watermark.ms().map_or(watermark, |ms| Watermark::at(ms - rng.random_range(0..5000))),
                );
                let delivered = rng.random_bool(0.8).then_some(delivered);
                world.claim(side, delivered);
            }
            _ => world.forget_scripts(),
        }
    }
}

/// Applies the next records of a log, in smaller parts where the script asks for it; how many.
fn apply_next(world: &mut World, settings: &Settings, side: usize, rest: &[LogRecord], most: usize) -> usize {
    let (batch, taken) = settings.batch(rest, world.position(side), most);
    if taken == 0 {
        return 0;
    }
    match world.apply(side, &batch, taken == 1) {
        Applied::Done(_) => taken,
        Applied::Due => {
            world.close(side);
            apply_next(world, settings, side, rest, most)
        }
        Applied::Split => apply_next(world, settings, side, rest, taken.div_ceil(2).min(taken - 1)),
        Applied::Moved => panic!("a batch was built on another position"),
    }
}

fn edit_rules(world: &mut World, rng: &mut StdRng, symbols: &[&'static str]) {
    const SETS: [(&str, &[&str]); 4] = [
        ("edge", &["<", "<=", "=", ">=", ">"]),
        ("level:above", &[">=", ">"]),
        ("level:below", &["<=", "<"]),
        ("level:equal", &["="]),
    ];
    const IDS: [&str; 7] = ["a", "b", "alice 1", "规则", "x:y", " ", "<= a"];
    for _ in 0..rng.random_range(1..5) {
        let symbol = pick(rng, symbols);
        let (set, ops) = pick(rng, &SETS);
        let op = if rng.random_ratio(1, 15) { pick(rng, &["=>", "<", "≥", ""]) } else { pick(rng, ops) };
        let member = format!("{op} {}", pick(rng, &IDS));
        if rng.random_ratio(1, 5) {
            world.remove_rule(symbol, set, &member);
            continue;
        }
        let threshold = match rng.random_range(0..30) {
            0 => *pick(
                rng,
                &[f64::INFINITY, f64::NEG_INFINITY, 1e30, -1e18, 999_999_999_999_999_900.0, 1e-30, 1.23e-18],
            ),
            _ => random_price(rng).to_f64(),
        };
        world.put_rule(symbol, set, &member, threshold, &random_options(rng));
    }
    world.check();
}

fn random_options(rng: &mut StdRng) -> Options {
    match rng.random_range(0..12) {
        0..5 => Options::None,
        5 => Options::Bad(pick::<&str>(rng, &["{", "", "7", "{\"cooldown\":\"5m\"}", "{\"expires\":true}"])),
        _ => Options::Good(RuleOptions {
            once: rng.random_ratio(1, 3),
            cooldown: rng.random_ratio(1, 3).then(|| STEP * rng.random_range(0..30)),
            expires: rng.random_ratio(1, 4).then(|| BEGIN + STEP * rng.random_range(0..300)),
            note: rng.random_ratio(1, 3).then(|| "注意 \"now\"\n".to_owned()),
        }),
    }
}

fn where_batches_are_cut_changes_nothing(stage: &Stage) -> anyhow::Result<()> {
    for_each_seed(ROUNDS / 2, |rng| {
        let settings = Settings::random(rng);
        let symbols = &SYMBOLS[..rng.random_range(1..=SYMBOLS.len())];
        let log = random_log(rng, symbols, 120);
        let rules_seed = rng.random();
        let one_by_one = replay(stage, &settings, symbols, &log, rules_seed, || 1);
        let at_once = replay(stage, &settings, symbols, &log, rules_seed, || log.len());
        let at_random = replay(stage, &settings, symbols, &log, rules_seed, || *pick(rng, &[1, 2, 3, 7, 30]));
        assert_eq!(one_by_one, at_once);
        assert_eq!(one_by_one, at_random);
    });
    Ok(())
}

/// State and outputs after a whole log, all of it closed at the end.
#[derive(Debug, PartialEq)]
struct Replayed {
    state: dump::Dump,
    /// Filed under an offset that does not depend on where batches end: all but final candles.
    by_offset: Vec<(Offset, String)>,
    candles: Vec<String>,
}

fn replay(
    stage: &Stage,
    settings: &Settings,
    symbols: &[&'static str],
    log: &[LogRecord],
    rules_seed: u64,
    mut most: impl FnMut() -> usize,
) -> Replayed {
    let mut world = World::new(stage, &settings.intervals, Bounds::default(), 1);
    let mut rng = StdRng::seed_from_u64(rules_seed);
    for _ in 0..10 {
        edit_rules(&mut world, &mut rng, symbols);
    }
    let mut applied = 0;
    while applied < log.len() {
        applied += apply_next(&mut world, settings, 0, &log[applied..], most());
        world.close(0);
    }
    world.advance(0, Watermark::at(BEGIN + 1_000_000_000));
    world.close(0);

    let (candles, others): (Vec<Entry>, Vec<Entry>) = world.outbox(0).into_iter().partition(is_final);
    let mut by_offset: Vec<_> =
        others.into_iter().map(|entry| (entry.id.offset, format!("{:?}", entry.output))).collect();
    let mut candles: Vec<_> = candles.into_iter().map(|entry| format!("{:?}", entry.output)).collect();
    by_offset.sort();
    candles.sort();
    let keys = world.keys().clone();
    Replayed { state: dump::found(&mut world.redis, &keys), by_offset, candles }
}

fn is_final(entry: &Entry) -> bool {
    matches!(&entry.output, Output::Candle(candle) if candle.revision == 0)
}

/// One tick a record, a second apart, for one symbol.
fn simple_log(prices: &[&str]) -> Vec<LogRecord> {
    let record = |(n, text): (i64, &&str)| record_of(n, "X", text, BEGIN + n * 1000);
    (0..).zip(prices).map(record).collect()
}

fn record_of(offset: i64, symbol: &'static str, text: &str, ts: i64) -> LogRecord {
    let tick = LogTick { symbol, price: price(text), volume: volume("1"), ts };
    LogRecord { offset, content: Content::Ticks(vec![tick]) }
}

fn settings() -> Settings {
    Settings { intervals: vec![interval("1s")], lateness: 0, late: LatePolicy::Drop, keep: 86_400_000 }
}

fn world(stage: &Stage) -> World<'_> {
    World::new(stage, &settings().intervals, Bounds::default(), 1)
}

/// Applies all of a log, closing what is due.
fn apply_all(world: &mut World, log: &[LogRecord]) {
    let mut applied = 0;
    while applied < log.len() {
        applied += apply_next(world, &settings(), 0, &log[applied..], log.len());
    }
}

/// Ticks that can fire nothing are passed over by stretches: none of those that fire, and what was before them is known.
fn a_crossing_is_found_wherever_it_is_in_a_long_batch(stage: &Stage) -> anyhow::Result<()> {
    const TICKS: i64 = 50;
    for place in 0..TICKS {
        let mut world = world(stage);
        world.put_rule("X", "edge", ">= rise", 3.0, &Options::None);
        world.put_rule("X", "edge", "< fall", 3.0, &Options::None);
        let price_at = |n| if n == place { "5".to_owned() } else { format!("1.{n:02}") };
        let log: Vec<LogRecord> = (0..TICKS).map(|n| record_of(n, "X", &price_at(n), BEGIN + n)).collect();
        let (batch, taken) = settings().batch(&log, world.position(0), log.len());
        assert_eq!(taken, log.len());
        // The world compares every output with the reference's.
        let Applied::Done(entries) = world.apply(0, &batch, false) else { panic!("nothing is due") };
        let fired = entries.iter().filter(|entry| matches!(entry.output, Output::Notification(_))).count();
        let [rises, falls] = [place > 0, place < TICKS - 1].map(usize::from);
        assert_eq!(fired, rises + falls, "a crossing at {place}");
    }
    Ok(())
}

fn a_refused_call_changes_nothing(stage: &Stage) -> anyhow::Result<()> {
    let mut world = world(stage);
    world.put_rule("X", "level:above", "> a", 0.0, &Options::None);
    let log = simple_log(&["1", "2", "3", "4"]);
    apply_all(&mut world, &log[..3]);
    let (batch, _) = settings().batch(&log[3..], world.position(0), 1);
    let Guard { token, position, tail } = world.guard(0);
    let later = Watermark::at(position.watermark.ms().expect("ticks were applied") + 1);
    let before = world.bytes();

    let own = || Guard { token: token.clone(), position, tail };
    let other_offset = Position { offset: Offset(position.offset.0 + 1), ..position };
    let refusals = [
        (Guard { token: Token::new(u128::MAX), ..own() }, Refusal::Fenced),
        (Guard { position: other_offset, ..own() }, Refusal::Moved),
        (Guard { position: Position { watermark: later, ..position }, ..own() }, Refusal::Moved),
        (Guard { position: Position { watermark: Watermark::NEVER, ..position }, ..own() }, Refusal::Moved),
        (Guard { tail: OutboxId { n: tail.n + 1, ..tail }, ..own() }, Refusal::Moved),
        (Guard { tail: OutboxId { offset: Offset(0), n: 0 }, ..own() }, Refusal::Moved),
    ];
    let partition = world.sides[0].partition.clone();
    for (guard, refusal) in refusals {
        let applied = world.call(async |s, c| s.apply(c, &partition, &guard, &batch, true).await);
        assert_eq!(applied?, scripts::Applied::Refused(refusal));
        let advanced = world.call(async |s, c| s.advance(c, &partition, &guard, later, None).await);
        assert_eq!(advanced?, Advanced::Refused(refusal));
        let closed = world.call(async |s, c| s.close(c, &partition, &guard).await);
        assert_eq!(closed?, Closed::Refused(refusal));
        let updated = world.call(async |s, c| s.update(c, &partition, &guard).await);
        assert_eq!(updated?, Updated::Refused(refusal));
        let beat = world.call(async |s, c| s.heartbeat(c, &partition, &guard, "quiet", "").await);
        assert_eq!(beat?, Beat::Refused(refusal));
        assert!(world.bytes() == before, "{guard:?} changed something");
    }
    let stranger = Token::new(u128::MAX);
    assert!(!world.call(async |s, c| s.trim(c, &partition, &stranger, tail).await)?);
    assert!(world.bytes() == before, "a fenced trim changed something");
    assert!(matches!(world.apply(0, &batch, true), Applied::Due | Applied::Done(_)));
    Ok(())
}

fn nothing_is_applied_while_a_due_window_is_open(stage: &Stage) -> anyhow::Result<()> {
    let mut world = world(stage);
    let log = simple_log(&["1", "2", "3"]);
    let (batch, _) = settings().batch(&log, world.position(0), 2);
    assert!(matches!(world.apply(0, &batch, false), Applied::Done(_)));
    world.advance(0, Watermark::at(BEGIN + 2000));
    let (batch, _) = settings().batch(&log[2..], world.position(0), 1);
    let before = world.bytes();
    assert_eq!(world.apply(0, &batch, true), Applied::Due);
    assert!(world.bytes() == before, "a refused batch changed something");
    assert_eq!(world.close(0).len(), 1);
    assert!(matches!(world.apply(0, &batch, true), Applied::Done(_)));
    Ok(())
}

fn a_batch_of_too_many_outputs_is_refused_whole_unless_it_is_one_record(stage: &Stage) -> anyhow::Result<()> {
    let bounds = Bounds { max_outputs: 3, ..Bounds::default() };
    let mut world = World::new(stage, &settings().intervals, bounds, 1);
    for id in ["a", "b"] {
        world.put_rule("X", "level:above", &format!("> {id}"), 0.0, &Options::None);
    }
    let log = [record_of(0, "X", "1", BEGIN), record_of(1, "X", "2", BEGIN)];
    let (both, _) = settings().batch(&log, world.position(0), 2);
    let before = world.bytes();
    assert_eq!(world.apply(0, &both, false), Applied::Split);
    assert!(world.bytes() == before, "a refused batch changed something");

    for id in ["c", "d"] {
        world.put_rule("X", "level:above", &format!("> {id}"), 0.0, &Options::None);
    }
    let (one, _) = settings().batch(&log, world.position(0), 1);
    assert_eq!(world.apply(0, &one, false), Applied::Split);
    assert!(matches!(world.apply(0, &one, true), Applied::Done(entries) if entries.len() == 4));
    Ok(())
}

fn many_windows_are_sealed_page_by_page(stage: &Stage) -> anyhow::Result<()> {
    let bounds = Bounds { page: 2, ..Bounds::default() };
    let mut world = World::new(stage, &settings().intervals, bounds, 1);
    let log: Vec<LogRecord> = (0..).zip(SYMBOLS).take(5).map(|(n, s)| record_of(n, s, "1", BEGIN)).collect();
    let (batch, _) = settings().batch(&log, world.position(0), 5);
    world.apply(0, &batch, false);
    world.advance(0, Watermark::at(BEGIN + 1000));
    let pages: Vec<(bool, usize)> =
        (0..3).map(|_| world.close_page(0)).map(|(more, entries)| (more, entries.len())).collect();
    assert_eq!(pages, [(true, 2), (true, 2), (false, 1)]);
    Ok(())
}

fn a_batch_seals_what_it_passes_unless_that_is_more_than_a_page(stage: &Stage) -> anyhow::Result<()> {
    for (symbols, sealed) in [(2, 2), (3, 0)] {
        let bounds = Bounds { page: 2, ..Bounds::default() };
        let mut world = World::new(stage, &settings().intervals, bounds, 1);
        let open: Vec<LogRecord> =
            (0..).zip(SYMBOLS).take(symbols).map(|(n, s)| record_of(n, s, "1", BEGIN)).collect();
        apply_all(&mut world, &open);
        let passing = [record_of(symbols as i64, SYMBOLS[0], "2", BEGIN + 1000)];
        let (batch, _) = settings().batch(&passing, world.position(0), 1);
        let Applied::Done(entries) = world.apply(0, &batch, true) else { panic!("nothing is due") };
        assert_eq!(entries.len(), sealed);
        assert!(entries.iter().all(|entry| entry.id.offset == batch.to), "as `close` would file them: {entries:?}");
        assert_eq!(world.close(0).len(), symbols - sealed);
    }
    Ok(())
}

/// A world that sends open candles, at most once in `interval` ms.
fn updating(stage: &Stage, interval: i64, page: usize) -> World<'_> {
    let bounds = Bounds { updates: Some(interval), page, ..Bounds::default() };
    World::new(stage, &settings().intervals, bounds, 1)
}

/// Applies one tick of each of these symbols, in the first window.
fn apply_ticks(world: &mut World, symbols: &[&'static str]) {
    let first = world.position(0).offset.0;
    let log: Vec<LogRecord> = (first..).zip(symbols).map(|(n, s)| record_of(n, s, "1", BEGIN)).collect();
    apply_all(world, &log);
}

fn told(entries: &[Entry]) -> Vec<(i64, String, u64)> {
    let told = |entry: &Entry| match &entry.output {
        Output::Update(candle) => (entry.id.offset.0, candle.symbol.clone(), candle.count),
        other => panic!("{other:?} is no update"),
    };
    entries.iter().map(told).collect()
}

fn open_candles_are_sent_page_by_page_and_none_twice_in_one_wave(stage: &Stage) -> anyhow::Result<()> {
    let mut world = updating(stage, 0, 2);
    let [a, b, c] = [SYMBOLS[0], SYMBOLS[1], SYMBOLS[2]];
    let mut in_order = [a, b, c];
    in_order.sort_unstable();
    let [first, second, third] = in_order;
    apply_ticks(&mut world, &[a, b, c]);
    let (more, page) = world.update(0);
    assert_eq!((more, told(&page)), (true, vec![(3, first.into(), 1), (3, second.into(), 1)]));

    // Both the one that was sent and the one that waits change before the next page.
    apply_ticks(&mut world, &[first, third]);
    let (more, page) = world.update(0);
    assert_eq!((more, told(&page)), (false, vec![(5, third.into(), 2)]));
    let (more, page) = world.update(0);
    assert_eq!((more, told(&page)), (false, vec![(5, first.into(), 2)]), "it waited for the next wave");
    let before = world.bytes();
    assert_eq!(world.update(0), (false, Vec::new()), "nothing changed since");
    assert!(world.bytes() == before, "an empty wave changed something");
    Ok(())
}

fn a_wave_waits_for_its_interval_also_after_a_takeover(stage: &Stage) -> anyhow::Result<()> {
    const INTERVAL: i64 = 600_000;
    let mut world = updating(stage, INTERVAL, 1);
    let [a, b] = [SYMBOLS[0], SYMBOLS[1]];
    let partition = world.sides[0].partition.clone();
    let update = |world: &mut World| {
        let guard = world.guard(0);
        world.call(async |s, c| s.update(c, &partition, &guard).await).inspect(|updated| {
            if let Updated::Ok { more, outputs, .. } = updated {
                // The reference knows no clock: it follows.
                let side = &mut world.sides[0].reference;
                std::mem::swap(&mut side.symbols, &mut world.symbols);
                let expected = side.update(1);
                std::mem::swap(&mut side.symbols, &mut world.symbols);
                assert_eq!((expected.more, &expected.entries), (*more, outputs));
            }
        })
    };
    apply_ticks(&mut world, &[a, b]);
    assert!(matches!(update(&mut world)?, Updated::Ok { more: true, .. }), "the first wave waits for nothing");
    world.claim(0, None);
    assert!(matches!(update(&mut world)?, Updated::Ok { more: false, .. }), "a wave that began goes on");
    apply_ticks(&mut world, &[a]);
    for _ in 0..2 {
        let before = world.bytes();
        let answer = update(&mut world)?;
        assert!(
            matches!(answer, Updated::Wait { ms, left: 1 } if (1..=INTERVAL as u64).contains(&ms)),
            "{answer:?}"
        );
        assert!(world.bytes() == before, "a wave that waits changed something");
        world.claim(0, None);
    }
    let source = world.keys().source(&world.sides[0].partition);
    let ended: i64 = world.redis.hget(&source, "updated_at")?;
    let () = world.redis.hset(&source, "updated_at", ended - INTERVAL)?;
    assert!(matches!(update(&mut world)?, Updated::Ok { more: false, left: 0, .. }), "the interval is over");
    Ok(())
}

fn a_window_that_is_closed_is_not_sent_as_open(stage: &Stage) -> anyhow::Result<()> {
    for at_once in [true, false] {
        let mut world = updating(stage, 0, 5_000);
        let [a, b] = [SYMBOLS[0], SYMBOLS[1]];
        apply_ticks(&mut world, &[a, b]);
        if at_once {
            let log = [record_of(2, a, "2", BEGIN + 1000)];
            let (batch, _) = settings().batch(&log, world.position(0), 1);
            world.apply(0, &batch, true);
            let (_, sent) = world.update(0);
            assert_eq!(told(&sent), [(3, a.to_owned(), 1)], "of the new window alone");
        } else {
            world.advance(0, Watermark::at(BEGIN + 1000));
            world.close(0);
            assert_eq!(world.update(0), (false, Vec::new()));
        }
    }
    // Another partition closed it, as its symbol is in both.
    let bounds = Bounds { updates: Some(0), ..Bounds::default() };
    let mut world = World::new(stage, &settings().intervals, bounds, 2);
    for side in [0, 1] {
        let log = [record_of(0, "X", "1", BEGIN)];
        let (batch, _) = settings().batch(&log, world.position(side), 1);
        world.apply(side, &batch, true);
    }
    world.advance(0, Watermark::at(BEGIN + 1000));
    assert_eq!(world.close(0).len(), 1);
    assert_eq!(world.update(1), (false, Vec::new()));
    Ok(())
}

fn changes_are_noted_only_by_an_owner_that_sends_them(stage: &Stage) -> anyhow::Result<()> {
    let changed = |world: &mut World| -> u64 {
        let key = world.keys().changed(&world.sides[0].partition);
        world.redis.zcard(key).expect("ZCARD answers")
    };
    let mut silent = world(stage);
    apply_ticks(&mut silent, &[SYMBOLS[0]]);
    assert_eq!(changed(&mut silent), 0);

    let mut world = updating(stage, 0, 1);
    apply_ticks(&mut world, &[SYMBOLS[0], SYMBOLS[1]]);
    world.update(0);
    assert_eq!(changed(&mut world), 1);
    // One that sends none drops what was noted, so that a later one does not send what is long past.
    let partition = world.sides[0].partition.clone();
    let limits = scripts::Limits { max_outputs: 1, max_matches: 1, page: 1, expiry: 1, updates: None };
    let sends_none = scripts::Scripts::new(world.keys().clone(), settings().intervals, limits);
    let claim = world.claim_request(None, None);
    world.call(async |_, c| sends_none.claim(c, &partition, &claim).await)?;
    assert_eq!(changed(&mut world), 0);
    let source = world.keys().source(&partition);
    assert_eq!(world.redis.hget::<_, _, Option<String>>(source, "wave")?, None);

    let mut world = updating(stage, 0, 1);
    apply_ticks(&mut world, &[SYMBOLS[0]]);
    let claim = scripts::Claim { reset: Some(0), ..world.claim_request(Some(0), None) };
    world.call(async |s, c| s.claim(c, &partition, &claim).await)?;
    assert_eq!(changed(&mut world), 0, "the topic was made again");
    Ok(())
}

/// CPU time of a server so far, us.
fn cpu_of(redis: &mut redis::Connection) -> anyhow::Result<f64> {
    let told: String = redis::cmd("INFO").arg("cpu").query(redis)?;
    let seconds = |field: &str| told.lines().find_map(|line| line.strip_prefix(field)?.parse::<f64>().ok());
    let (user, system) = (seconds("used_cpu_user:"), seconds("used_cpu_sys:"));
    Ok((user.context("no used_cpu_user")? + system.context("no used_cpu_sys")?) * 1e6)
}

/// The standard load of `make bench` as one of its six partitions has it at the pace of its event time, and a wave of
/// updates each second of that: with and without, in turns on one server. In small batches, as a worker that keeps up
/// makes them, and in large ones.
fn what_updates_cost_redis_beside_the_ticks(stage: &Stage) -> anyhow::Result<()> {
    [(83, 100), (8, 1_000)].into_iter().try_for_each(|(batches, batch)| cost_of_updates(stage, batches, batch))
}

fn cost_of_updates(stage: &Stage, batches: i64, batch: i64) -> anyhow::Result<()> {
    const SECONDS: i64 = 13;
    const SYMBOLS: i64 = 167;
    let redis = Redis::start(&[])?;
    let symbols: Vec<&'static str> = (0..SYMBOLS).map(|number| &*format!("SYM-{number}").leak()).collect();
    let settings = Settings { lateness: 1_000, ..settings() };
    let mut sides = [None, Some(0)].map(|updates| {
        let bounds = Bounds { updates, ..Bounds::default() };
        let mut world = World::at(stage, &redis.url(), &settings.intervals, bounds, 1);
        for symbol in &symbols {
            for rule in 0..10 {
                let member = format!(">= {rule}");
                world.put_rule(symbol, "edge", &member, f64::from(20_000 + rule), &Options::None);
            }
        }
        (world.guard(0), world)
    });
    let mut ratios = Vec::new();
    let (mut sent, mut ticks_us) = (0, Vec::new());
    for second in 0..SECONDS {
        let mut spent = [0.0; 2];
        for (side, (guard, world)) in sides.iter_mut().enumerate() {
            let partition = world.sides[0].partition.clone();
            let mut made = Vec::new();
            let mut position = guard.position;
            for number in 0..batches {
                let first = (second * batches + number) * batch;
                let log: Vec<LogRecord> = (first..first + batch)
                    .map(|n| {
                        let symbol = symbols[(n * 89 % SYMBOLS) as usize];
                        let price = price(&(9_000 + n * 37 % 1_000).to_string());
                        let ts = BEGIN + second * 1_000 + number * 1_000 / batches;
                        let tick = LogTick { symbol, price, volume: volume("1"), ts };
                        LogRecord { offset: n, content: Content::Ticks(vec![tick]) }
                    })
                    .collect();
                let (next, taken) = settings.batch(&log, position, log.len());
                ensure!(taken == log.len(), "ticks in order make one batch");
                position = Position::at(next.to, next.watermark_after);
                made.push(next);
            }
            let before = cpu_of(&mut world.redis)?;
            for batch in &made {
                let applied = world.call(async |s, c| s.apply(c, &partition, guard, batch, false).await)?;
                let scripts::Applied::Ok(effects) = applied else { bail!("{applied:?}") };
                (guard.position, guard.tail) = (Position::at(batch.to, batch.watermark_after), effects.tail);
            }
            if side == 1 {
                let updated = world.call(async |s, c| s.update(c, &partition, guard).await)?;
                let Updated::Ok { more: false, outputs, tail, .. } = updated else { bail!("{updated:?}") };
                guard.tail = tail;
                sent += outputs.len();
            }
            world.call(async |s, c| s.trim(c, &partition, &guard.token, guard.tail).await)?;
            spent[side] = cpu_of(&mut world.redis)? - before;
        }
        if second > 1 {
            ratios.push(spent[1] / spent[0]);
            ticks_us.push(spent[0] / (batches * batch) as f64);
        }
    }
    ratios.sort_by(f64::total_cmp);
    ticks_us.sort_by(f64::total_cmp);
    let middle = ratios.len() / 2;
    println!(
        "batches of {batch}: a tick costs Redis {:.1} us of CPU; with {} updates a second {:.2} times that ({:.2} to {:.2})",
        ticks_us[middle],
        sent as i64 / SECONDS,
        ratios[middle],
        ratios[0],
        ratios[ratios.len() - 1]
    );
    ensure!(sent as i64 >= SYMBOLS * SECONDS, "{sent} updates");
    ensure!(ratios[middle] < 2.0, "updates cost as much as all the rest");
    Ok(())
}

fn a_claim_of_what_is_not_there_or_not_ours_writes_nothing(stage: &Stage) -> anyhow::Result<()> {
    let mut world = World::new(stage, &settings().intervals, Bounds::default(), 0);
    let partition = tickwatch::domain::SourcePartition { topic: "ticks".to_owned(), partition: 0 };
    let claim = world.claim_request(None, None);
    assert_eq!(world.call(async |s, c| s.claim(c, &partition, &claim).await)?, Claimed::Absent);
    assert!(world.bytes().is_empty());

    let claim = world.claim_request(Some(7), None);
    let created = world.call(async |s, c| s.claim(c, &partition, &claim).await)?;
    assert!(matches!(created, Claimed::Ok(state) if state.epoch == 1 && state.position.offset == Offset(7)));
    let before = world.bytes();
    let other = scripts::Claim { group: "other".to_owned(), ..world.claim_request(Some(7), None) };
    let refused = world.call(async |s, c| s.claim(c, &partition, &other).await)?;
    assert_eq!(refused, Claimed::OtherGroup(world::GROUP.to_owned()));
    assert!(world.bytes() == before, "a refused claim changed something");
    Ok(())
}

fn a_claim_drops_delivered_entries_from_the_head_of_the_outbox(stage: &Stage) -> anyhow::Result<()> {
    let mut world = world(stage);
    world.put_rule("X", "level:above", "> a", 0.0, &Options::None);
    apply_all(&mut world, &simple_log(&["1", "2", "3", "4"]));
    let all = world.outbox(0).len();
    let watermark = Watermark::at(BEGIN + 1000);
    world.claim(0, Some(Position::at(Offset(2), watermark)));
    let left = world.outbox(0);
    assert!(left.len() < all && !left.is_empty(), "{} of {all} are left", left.len());
    let state = world.claim(0, None);
    assert_eq!((state.epoch, state.previous_owner.as_str()), (3, "owner-2"));
    assert_eq!(world.outbox(0), left, "without a delivered position nothing is known to be delivered");
    Ok(())
}

fn a_reset_starts_a_new_generation_without_what_was_pending(stage: &Stage) -> anyhow::Result<()> {
    let mut world = world(stage);
    world.put_rule("X", "level:above", "> a", 0.0, &Options::None);
    apply_all(&mut world, &simple_log(&["1", "2"]));
    let partition = world.sides[0].partition.clone();
    let claim = scripts::Claim { reset: Some(0), ..world.claim_request(Some(0), None) };
    let Claimed::Ok(state) = world.call(async |s, c| s.claim(c, &partition, &claim).await)? else {
        panic!("the partition is ours");
    };
    assert_eq!((state.generation, state.outbox, state.next_due), (1, 0, None));
    assert_eq!(state.position, Position::at(Offset(0), Watermark::NEVER));
    assert_eq!((state.max_ts, state.last_record), (None, None));
    assert_eq!(state.tail, OutboxId { offset: Offset(0), n: 0 });

    let claim = world.claim_request(None, None);
    let again = world.call(async |s, c| s.claim(c, &partition, &claim).await)?;
    assert!(matches!(again, Claimed::Ok(again) if again.generation == 1 && again.position == state.position));
    Ok(())
}

fn a_reset_that_somebody_has_made_already_changes_nothing(stage: &Stage) -> anyhow::Result<()> {
    let mut world = world(stage);
    let partition = world.sides[0].partition.clone();
    let reset = |world: &mut World| {
        let claim = scripts::Claim { reset: Some(0), ..world.claim_request(Some(0), None) };
        world.call(async |s, c| s.claim(c, &partition, &claim).await)
    };
    reset(&mut world)?;
    world.put_rule("X", "level:above", "> a", 0.0, &Options::None);
    world.claim(0, None);
    apply_all(&mut world, &simple_log(&["1", "2"]));
    let (before, outbox) = (world.guard(0).position, world.outbox(0));
    let Claimed::Ok(state) = reset(&mut world)? else { panic!("the partition is ours") };
    assert_eq!((state.generation, state.position), (1, before));
    let left = world.outbox(0);
    assert!(!left.is_empty() && left == outbox, "what is pending by now is of the new topic");
    Ok(())
}

fn a_claim_drops_nothing_of_a_topic_that_was_made_again(stage: &Stage) -> anyhow::Result<()> {
    let mut world = world(stage);
    let partition = world.sides[0].partition.clone();
    let claim = scripts::Claim { reset: Some(0), ..world.claim_request(Some(0), None) };
    world.call(async |s, c| s.claim(c, &partition, &claim).await)?;
    world.put_rule("X", "level:above", "> a", 0.0, &Options::None);
    world.claim(0, None);
    apply_all(&mut world, &simple_log(&["1", "2"]));
    let outbox = world.outbox(0);
    let beyond = Position::at(Offset(1_000), Watermark::at(i64::MAX / 2));
    let claim = world.claim_request(None, Some(beyond));
    world.call(async |s, c| s.claim(c, &partition, &claim).await)?;
    let left = world.outbox(0);
    assert!(!left.is_empty() && left == outbox, "that position may be of the topic before");
    Ok(())
}

fn time_passes_at_the_pace_of_the_clock_on_the_partitions_own_time_line(stage: &Stage) -> anyhow::Result<()> {
    const GRACE: i64 = 600_000;
    let mut world = world(stage);
    let far = Watermark::at(BEGIN + 1_000_000_000);
    let (partition, guard) = (world.sides[0].partition.clone(), world.guard(0));
    let advanced = world.call(async |s, c| s.advance(c, &partition, &guard, far, Some(GRACE)).await)?;
    assert_eq!(advanced, Advanced::Ok { watermark: Watermark::NEVER, next_due: None }, "no tick, no time");

    apply_all(&mut world, &simple_log(&["1"]));
    let guard = world.guard(0);
    let next_due = Some(BEGIN + 1000);
    let advanced = world.call(async |s, c| s.advance(c, &partition, &guard, far, Some(GRACE)).await)?;
    assert_eq!(advanced, Advanced::Ok { watermark: Watermark::at(BEGIN), next_due }, "it never goes back");

    // A negative grace stands for time that has passed.
    let advanced = world.call(async |s, c| s.advance(c, &partition, &guard, far, Some(-GRACE)).await)?;
    let Advanced::Ok { watermark, .. } = advanced else { panic!("{advanced:?}") };
    let passed = watermark.ms().expect("a tick was applied") - BEGIN - GRACE;
    assert!((0..GRACE).contains(&passed), "{passed} ms passed since the tick was applied");
    Ok(())
}

fn a_heartbeat_says_what_holds_time_back_and_since_when(stage: &Stage) -> anyhow::Result<()> {
    let mut world = world(stage);
    apply_all(&mut world, &simple_log(&["1", "2"]));
    let (partition, guard) = (world.sides[0].partition.clone(), world.guard(0));
    let source = world.keys().source(&partition);
    let beat = world.call(async |s, c| s.heartbeat(c, &partition, &guard, "quiet", "nothing new").await)?;
    assert_eq!(beat, Beat::Ok { outbox: 1, open_windows: 1 });
    let since: i64 = world.redis.hget(&source, "since")?;
    world.call(async |s, c| s.heartbeat(c, &partition, &guard, "quiet", "still nothing").await)?;
    let now: (String, String, i64, i64) = world.redis.hmget(&source, &["state", "reason", "since", "seen"])?;
    assert_eq!((now.0.as_str(), now.1.as_str(), now.2), ("quiet", "still nothing", since));
    assert!(now.3 >= since);
    Ok(())
}

fn a_key_that_cannot_be_used_stops_its_own_symbol_only(stage: &Stage) -> anyhow::Result<()> {
    type Name = fn(&tickwatch::store::Keys) -> String;
    let last: Name = |keys| keys.last("X");
    let candle: Name = |keys| keys.candle("X", interval("1s"), BEGIN);
    let families: [(Name, &str); 8] = [
        (last, "last:X"),
        (candle, "ohlc:X:1s:"),
        (|keys| keys.edge_rules("X"), "rules:X:edge"),
        (|keys| keys.level_rules("X", "above"), "rules:X:level:above"),
        (|keys| keys.level_rules("X", "below"), "rules:X:level:below"),
        (|keys| keys.level_rules("X", "equal"), "rules:X:level:equal"),
        (|keys| keys.rule_options("X"), "rules:X:opts"),
        (|keys| keys.fired("X"), "fired:X"),
    ];
    for (name, shown) in families {
        stops_its_own_symbol_only(stage, name, &["SET", "not mine"], &[shown, "WRONGTYPE"])?;
    }
    let number = |field, text| ["HSET", "price", "9500", "ts", "1", field, text];
    stops_its_own_symbol_only(stage, last, &number("price", "cheap"), &["last:X: price cheap is no number"])?;
    stops_its_own_symbol_only(stage, last, &number("price", "9.5e3"), &["price 9.5e3 is no number"])?;
    stops_its_own_symbol_only(stage, last, &number("price", "nan"), &["price nan is no number"])?;
    stops_its_own_symbol_only(stage, last, &number("ts", ""), &["last:X: ts  is no number"])?;
    for field in ["high", "volume", "count", "close_ts"] {
        let mut damaged = vec!["HSET"];
        for field in ["open", "high", "low", "close", "volume", "count", "open_ts", "close_ts"] {
            damaged.extend([field, "1"]);
        }
        damaged.extend([field, "inf"]);
        stops_its_own_symbol_only(stage, candle, &damaged, &["ohlc:X:1s:", &format!("{field} inf is no number")])?;
    }
    Ok(())
}

/// Writes a key of the symbol X by hand: its tick becomes a dead letter with these words, nothing of it is written or
/// deleted, and Y goes through.
fn stops_its_own_symbol_only(
    stage: &Stage,
    name: impl Fn(&tickwatch::store::Keys) -> String,
    by_hand: &[&str],
    words: &[&str],
) -> anyhow::Result<()> {
    let mut world = world(stage);
    let shown = by_hand;
    for symbol in ["X", "Y"] {
        world.put_rule(symbol, "level:above", "> a", 0.0, &Options::None);
    }
    let poisoned = name(world.keys());
    let _: () = redis::cmd("DEL").arg(&poisoned).query(&mut world.redis)?;
    let _: () = redis::cmd(by_hand[0]).arg(&poisoned).arg(&by_hand[1..]).query(&mut world.redis)?;
    let before: Vec<u8> = redis::cmd("DUMP").arg(&poisoned).query(&mut world.redis)?;
    // Options and firings are read when a rule is in reach; above is poisoned in one family only.
    let ticks = [("X", "1"), ("Y", "2"), ("X", "3")];
    let ticks = ticks.map(|(symbol, text)| LogTick { symbol, price: price(text), volume: volume("1"), ts: BEGIN });
    let log = [LogRecord { offset: 0, content: Content::Ticks(ticks.to_vec()) }];
    let (batch, _) = settings().batch(&log, world.position(0), 1);
    let (partition, guard) = (world.sides[0].partition.clone(), world.guard(0));
    let applied = world.call(async |s, c| s.apply(c, &partition, &guard, &batch, true).await)?;
    let scripts::Applied::Ok(effects) = applied else { panic!("{shown:?}: {applied:?}") };

    assert_eq!(effects.poisoned.len(), 1, "{shown:?}: {:?}", effects.poisoned);
    let outputs: Vec<&Output> = effects.outputs.iter().map(|entry| &entry.output).collect();
    match outputs[..] {
        [Output::DeadLetter { reason }, Output::Notification(fired)] => {
            assert!(words.iter().all(|word| reason.contains(word)), "{words:?} are not in {reason}");
            assert_eq!(fired.symbol, "Y");
        }
        _ => panic!("{shown:?}: {outputs:?}"),
    }
    let kept: Vec<u8> = redis::cmd("DUMP").arg(&poisoned).query(&mut world.redis)?;
    assert_eq!(kept, before, "{shown:?}");
    let (last, candle) = (world.keys().last("X"), world.keys().candle("X", interval("1s"), BEGIN));
    for key in [last, candle].iter().filter(|key| **key != poisoned) {
        assert!(!world.redis.exists::<_, bool>(key)?, "{shown:?}: {key} was written");
    }
    assert_eq!(world.redis.hget::<_, _, String>(world.keys().last("Y"), "price")?, "2");
    let dead: i64 = world.redis.hget(world.keys().source(&partition), "dead_letters")?;
    assert_eq!(dead, 1, "{shown:?}");
    Ok(())
}

fn what_a_stopped_symbol_would_have_sent_does_not_count_against_the_batch(stage: &Stage) -> anyhow::Result<()> {
    let settings = Settings { late: LatePolicy::Revise, ..settings() };
    let bounds = Bounds { max_outputs: 1, ..Bounds::default() };
    let mut world = World::new(stage, &settings.intervals, bounds, 1);
    apply_all(&mut world, &simple_log(&["1", "2"]));
    world.close(0);
    let edge = world.keys().edge_rules("X");
    let _: () = world.redis.set(edge, "not mine")?;

    let late = [record_of(2, "X", "3", BEGIN), LogRecord { offset: 3, content: Content::Undecodable }];
    let (batch, _) = settings.batch(&late, world.position(0), 2);
    let (partition, guard) = (world.sides[0].partition.clone(), world.guard(0));
    let applied = world.call(async |s, c| s.apply(c, &partition, &guard, &batch, false).await)?;
    let scripts::Applied::Ok(effects) = applied else { panic!("{applied:?}") };
    assert!(
        matches!(&effects.outputs[..], [Entry { output: Output::DeadLetter { .. }, .. }]),
        "{:?}",
        effects.outputs
    );
    Ok(())
}

fn a_window_whose_candle_is_gone_is_reported_and_not_sent(stage: &Stage) -> anyhow::Result<()> {
    let mut world = world(stage);
    let log = [record_of(0, "X", "1", BEGIN), record_of(1, "Y", "1", BEGIN), record_of(2, "Z", "1", BEGIN)];
    let (batch, _) = settings().batch(&log, world.position(0), 3);
    world.apply(0, &batch, false);
    let [gone, strange] = ["X", "Y"].map(|symbol| world.keys().candle(symbol, interval("1s"), BEGIN));
    let _: () = world.redis.del(&[&gone, &strange])?;
    let _: () = world.redis.set(&strange, "not mine")?;

    let (partition, mut guard) = (world.sides[0].partition.clone(), world.guard(0));
    let watermark = Watermark::at(BEGIN + 1000);
    world.call(async |s, c| s.advance(c, &partition, &guard, watermark, None).await)?;
    guard.position.watermark = watermark;
    let closed = world.call(async |s, c| s.close(c, &partition, &guard).await)?;
    let Closed::Ok { more: false, outputs, next_due: None, lost, .. } = closed else { panic!("{closed:?}") };
    assert_eq!(lost, [gone, strange]);
    assert!(matches!(&outputs[..], [Entry { output: Output::Candle(Candle { symbol, .. }), .. }] if symbol == "Z"));
    Ok(())
}

fn rules_that_do_not_parse_are_skipped_and_counted(stage: &Stage) -> anyhow::Result<()> {
    let mut world = world(stage);
    world.put_rule("X", "edge", ">= good", 1.5, &Options::None);
    let bad: [(&str, &str, f64, Options); 9] = [
        ("edge", "=> unknown", 1.5, Options::None),
        ("edge", ">=no-space", 1.5, Options::None),
        ("edge", ">= ", 1.5, Options::None),
        ("edge", ">= unparsable", 1.5, Options::Bad("{")),
        ("level:above", "< wrong-set", 1.5, Options::None),
        ("level:above", "> infinite", f64::NEG_INFINITY, Options::None),
        ("level:below", "< huge", 1e18, Options::None),
        ("level:below", "< huge-when-printed", 999_999_999_999_999_900.0, Options::None),
        ("level:above", "> too-fine", 1e-30, Options::None),
    ];
    for (set, member, threshold, options) in &bad {
        world.put_rule("X", set, member, *threshold, options);
    }
    let undirected = format!("{}rules:X:level", world.keys().namespace());
    let _: () = world.redis.zadd(&undirected, "> no-direction", 0)?;

    let log = [record_of(0, "X", "1", BEGIN), record_of(1, "X", "2", BEGIN)];
    let (batch, _) = settings().batch(&log, world.position(0), 2);
    let (partition, guard) = (world.sides[0].partition.clone(), world.guard(0));
    let applied = world.call(async |s, c| s.apply(c, &partition, &guard, &batch, false).await)?;
    let scripts::Applied::Ok(mut effects) = applied else { panic!("{applied:?}") };
    assert!(
        matches!(&effects.outputs[..], [Entry { output: Output::Notification(fired), .. }] if fired.rule == "good"),
        "{:?}",
        effects.outputs
    );
    let mut expected: Vec<String> = bad
        .iter()
        .map(|(set, member, _, options)| match options {
            Options::Bad(_) => format!("{} unparsable", world.keys().rule_options("X")),
            _ => format!("{}rules:X:{set} {member}", world.keys().namespace()),
        })
        .collect();
    expected.sort();
    effects.bad_rules.sort();
    assert_eq!(effects.bad_rules, expected);
    Ok(())
}

fn a_script_that_runs_out_of_memory_writes_nothing(stage: &Stage) -> anyhow::Result<()> {
    let redis = Redis::start(&[])?;
    let mut world = World::at(stage, &redis.url(), &settings().intervals, Bounds::default(), 1);
    world.put_rule("X", "level:above", "> a", 0.0, &Options::None);
    let log = simple_log(&["1", "2", "3"]);
    let (batch, _) = settings().batch(&log, world.position(0), 2);
    world.apply(0, &batch, false);
    world.advance(0, Watermark::at(BEGIN + 2000));
    let before = world.bytes();
    let (partition, guard) = (world.sides[0].partition.clone(), world.guard(0));

    let _: () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1mb").query(&mut world.redis)?;
    let due: Result<_, StoreError> = world.call(async |s, c| s.close(c, &partition, &guard).await);
    assert!(matches!(&due, Err(error @ StoreError::Refused { .. }) if error.is_transient()), "{due:?}");
    assert!(world.bytes() == before, "half a close was written");

    let _: () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("0").query(&mut world.redis)?;
    world.close(0);
    let (batch, _): (Batch, _) = settings().batch(&log[2..], world.position(0), 1);
    let (before, guard) = (world.bytes(), world.guard(0));
    let _: () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1mb").query(&mut world.redis)?;
    let applied = world.call(async |s, c| s.apply(c, &partition, &guard, &batch, true).await);
    assert!(matches!(&applied, Err(StoreError::Refused { .. })), "{applied:?}");
    assert!(world.bytes() == before, "half a batch was written");

    let _: () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("0").query(&mut world.redis)?;
    assert!(matches!(world.apply(0, &batch, true), Applied::Done(_)));
    Ok(())
}

fn the_last_price_names_its_partition_and_closed_candles_expire(stage: &Stage) -> anyhow::Result<()> {
    let mut world = world(stage);
    apply_all(&mut world, &simple_log(&["1", "2"]));
    world.close(0);
    let last = world.keys().last("X");
    assert_eq!(world.redis.hget::<_, _, String>(last, "source")?, "ticks/0");
    let [closed, open] = [BEGIN, BEGIN + 1000].map(|start| world.keys().candle("X", interval("1s"), start));
    let ttl: i64 = world.redis.pttl(closed)?;
    assert!((3_000_000..=3_600_000).contains(&ttl), "{ttl} ms");
    assert_eq!(world.redis.pttl::<_, i64>(open)?, -1);
    Ok(())
}
