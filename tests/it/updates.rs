//! `[output] emit = "updates"`: open candles are sent as they change, at most once per interval, and never after their
//! final candle.

use std::time::Duration;

use anyhow::ensure;
use tickwatch::config::{Config, Emit, Guarantee};

use crate::common::updates;
use crate::harness::{Case, Isolation, Needs, Stage, cases, wait_until};
use crate::market::{Market, put_rules, start, wait_shared, walk};
use crate::scene::{Candle, MINUTE, PATIENCE, Scene, tick};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both;
        nothing_is_sent_of_an_open_candle_unless_it_is_asked_for,
        an_open_candle_is_sent_as_it_changes_and_the_final_one_last,
        the_last_change_before_a_silence_is_sent,
        the_next_owner_keeps_the_interval_and_sends_what_was_left,
        workers_that_share_the_partitions_send_what_the_log_says,
        workers_that_share_the_partitions_send_each_update_once,
    )
}

fn emit_updates(interval: Duration) -> impl Fn(&mut Config) {
    move |config| {
        config.output.emit = Emit::Updates;
        config.output.update_interval = interval;
    }
}

/// Sends a tick of BBCA in the first minute and waits until it is applied.
fn send_and_wait(scene: &Scene, price: &str, second: i64, next_offset: i64) -> anyhow::Result<()> {
    scene.send([tick("BBCA", price, MINUTE + second * 1000)])?;
    scene.wait_for_source(0, "next_offset", &next_offset.to_string())
}

fn wait_for_last(scene: &Scene, told: &str) -> anyhow::Result<Vec<Candle>> {
    let mut found = Vec::new();
    wait_until(PATIENCE, told, || {
        found = scene.candle_list().unwrap_or_default();
        found.last().is_some_and(|last| last.to_string() == told)
    })?;
    Ok(found)
}

fn nothing_is_sent_of_an_open_candle_unless_it_is_asked_for(stage: &Stage) -> anyhow::Result<()> {
    let scene = Scene::new(stage)?;
    let worker = scene.start();
    send_and_wait(&scene, "100", 0, 1)?;
    send_and_wait(&scene, "101", 30, 2)?;
    send_and_wait(&scene, "102", 90, 3)?;
    assert_eq!(scene.wait_for_candles(1)?, ["BBCA 1m 0 100 101 100 101 2 2 final"]);
    worker.stop()?;
    assert_eq!(scene.candles()?.len(), 1);
    let changed = scene.keys().changed(&scene.partition(0));
    ensure!(!redis::Commands::exists::<_, bool>(&mut stage.redis()?, changed)?, "changes are noted");
    Ok(())
}

fn an_open_candle_is_sent_as_it_changes_and_the_final_one_last(stage: &Stage) -> anyhow::Result<()> {
    const INTERVAL: Duration = Duration::from_millis(300);
    let scene = Scene::with(stage, 1, emit_updates(INTERVAL))?;
    let worker = scene.start();
    let begin = std::time::Instant::now();
    for second in 0..50 {
        send_and_wait(&scene, &(100 + second).to_string(), second, second + 1)?;
    }
    send_and_wait(&scene, "200", 90, 51)?;
    let took = begin.elapsed();
    let all = wait_for_last(&scene, "BBCA 1m 60000 200 200 200 200 1 1 open")?;
    worker.stop()?;

    let first: Vec<&Candle> = all.iter().filter(|candle| candle.start == MINUTE).collect();
    let (last, open) = first.split_last().expect("the first minute has candles");
    assert_eq!(last.to_string(), "BBCA 1m 0 100 149 100 149 50 50 final");
    assert!(last.source.is_none());
    assert!(open.iter().all(|candle| candle.status == "open" && candle.revision == 0), "{open:?}");
    let most = took.as_millis() / INTERVAL.as_millis() + 2;
    assert!(!open.is_empty() && open.len() as u128 <= most, "{} updates in {took:?}", open.len());
    for candle in open {
        let source = candle.source.as_ref().expect("an open candle says up to where it holds");
        assert_eq!((source.topic.as_str(), source.partition), (scene.config.kafka.topic.as_str(), 0));
        assert_eq!(source.next_offset, candle.count as i64, "one tick an offset");
    }
    assert!(open.is_sorted_by(|a, b| a.count < b.count), "{open:?}");
    Ok(())
}

fn the_last_change_before_a_silence_is_sent(stage: &Stage) -> anyhow::Result<()> {
    const INTERVAL: Duration = Duration::from_millis(1_500);
    let scene = Scene::with(stage, 1, emit_updates(INTERVAL))?;
    let worker = scene.start();
    send_and_wait(&scene, "100", 0, 1)?;
    wait_for_last(&scene, "BBCA 1m 0 100 100 100 100 1 1 open")?;
    send_and_wait(&scene, "101", 1, 2)?;
    wait_for_last(&scene, "BBCA 1m 0 100 101 100 101 2 2 open")?;
    let sent: Vec<i64> =
        scene.output(&scene.config.output.candles)?.iter().map(|record| record.timestamp).collect();
    assert_eq!(sent.len(), 2);
    // The stamp is when a record was sent, which may be later than its script by a little.
    let pause = sent[1] - sent[0];
    assert!(
        (INTERVAL.as_millis() as i64 - 300..INTERVAL.as_millis() as i64 + 2_000).contains(&pause),
        "{pause} ms"
    );
    std::thread::sleep(INTERVAL * 2);
    assert_eq!(scene.candle_list()?.len(), 2, "nothing changed since");
    worker.stop()?;
    Ok(())
}

fn the_next_owner_keeps_the_interval_and_sends_what_was_left(stage: &Stage) -> anyhow::Result<()> {
    const INTERVAL: Duration = Duration::from_secs(4);
    let scene = Scene::with(stage, 1, emit_updates(INTERVAL))?;
    let first = scene.start();
    send_and_wait(&scene, "100", 0, 1)?;
    wait_for_last(&scene, "BBCA 1m 0 100 100 100 100 1 1 open")?;
    send_and_wait(&scene, "101", 1, 2)?;
    first.stop()?;
    let second = scene.start();
    wait_for_last(&scene, "BBCA 1m 0 100 101 100 101 2 2 open")?;
    let sent = scene.output(&scene.config.output.candles)?;
    let pause = sent[1].timestamp - sent[0].timestamp;
    assert!(sent.len() == 2 && pause > INTERVAL.as_millis() as i64 - 300, "{pause} ms, {sent:?}");
    second.stop()?;
    Ok(())
}

fn workers_that_share_the_partitions_send_what_the_log_says(stage: &Stage) -> anyhow::Result<()> {
    share_under_load(stage, Guarantee::AtLeastOnce)
}

fn workers_that_share_the_partitions_send_each_update_once(stage: &Stage) -> anyhow::Result<()> {
    share_under_load(stage, Guarantee::ExactlyOnce)
}

/// Two workers, one of which leaves and comes back, under load; then what was sent is compared with the log.
fn share_under_load(stage: &Stage, guarantee: Guarantee) -> anyhow::Result<()> {
    let mut market = Market::open(stage, 2, |config| {
        config.kafka.processing_guarantee = guarantee;
        emit_updates(Duration::from_millis(150))(config);
    })?;
    put_rules(&mut market)?;
    let mut workers = start(&market, 2)?;
    wait_shared(&market, &workers)?;
    market.under_load(&mut walk(5), || {
        market.wait_under_way()?;
        workers.remove(0).stop()?;
        workers.extend(start(&market, 1)?);
        wait_shared(&market, &workers)
    })?;
    market.send_closing()?;
    market.wait_delivered()?;
    if guarantee == Guarantee::ExactlyOnce {
        market.check_each_once(&workers.iter().collect::<Vec<_>>())?;
    } else {
        market.check()?;
    }
    // What is open at the end was sent as it stands: the closing ticks.
    for number in 0..2 {
        let symbol = format!("CLOSE-{number}");
        wait_until(PATIENCE, "the last update", || {
            let candles = stage.consume_all(&market.config.output.candles, Isolation::ReadCommitted);
            let last = candles.and_then(|candles| updates::last_updates(&candles)).unwrap_or_default();
            let open = last.iter().filter(|((of, ..), _)| *of == symbol);
            open.count() == market.config.candles.intervals.len()
        })?;
    }
    Ok(())
}
