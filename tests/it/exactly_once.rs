//! `processing_guarantee = "exactly_once"`: readers with isolation read_committed see each output once, whatever
//! happens to workers.

use anyhow::ensure;
use tickwatch::config::Guarantee;

use crate::harness::{Case, Isolation, Needs, Stage, Worker, cases};
use crate::market::{Market, SETTLED, put_rules, start, wait_owned_by, wait_shared, walk};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both;
        a_kill_in_the_middle_of_a_load_repeats_nothing,
        a_graceful_stop_and_a_new_start_repeat_nothing,
        partitions_that_move_between_two_workers_repeat_nothing,
        dead_letters_are_in_the_transaction_too,
    )
}

fn a_kill_in_the_middle_of_a_load_repeats_nothing(stage: &Stage) -> anyhow::Result<()> {
    let market = exactly_once(stage, 2)?;
    let mut workers = start(&market, 2)?;
    wait_shared(&market, &workers)?;
    market.under_load(&mut walk(11), || {
        market.wait_under_way()?;
        workers.remove(0).kill()?;
        wait_owned_by(&market, &workers, SETTLED)?;
        workers.push(Worker::start(&market.config)?);
        wait_shared(&market, &workers)
    })?;
    check_each_once(&market)
}

fn a_graceful_stop_and_a_new_start_repeat_nothing(stage: &Stage) -> anyhow::Result<()> {
    let market = exactly_once(stage, 2)?;
    market.under_load(&mut walk(12), || {
        for _ in 0..3 {
            let mut workers = start(&market, 1)?;
            market.wait_under_way()?;
            let status = workers[0].stop()?;
            ensure!(status.success(), "{status}: {}", workers[0].logs());
        }
        Ok(())
    })?;
    let _last = start(&market, 1)?;
    check_each_once(&market)
}

fn partitions_that_move_between_two_workers_repeat_nothing(stage: &Stage) -> anyhow::Result<()> {
    let market = exactly_once(stage, 4)?;
    let mut workers = start(&market, 1)?;
    market.under_load(&mut walk(13), || {
        for _ in 0..3 {
            workers.push(Worker::start(&market.config)?);
            wait_shared(&market, &workers)?;
            workers.remove(0).stop()?;
            wait_owned_by(&market, &workers, SETTLED)?;
        }
        Ok(())
    })?;
    check_each_once(&market)
}

fn dead_letters_are_in_the_transaction_too(stage: &Stage) -> anyhow::Result<()> {
    let market = exactly_once(stage, 1)?;
    market.send(walk(14).take(50))?;
    market.send_bad("SYM-1", "no JSON")?;
    let mut workers = start(&market, 1)?;
    market.wait_delivered()?;
    workers.remove(0).kill()?;
    market.send(walk(15).take(50))?;
    let _next = start(&market, 1)?;
    check_each_once(&market)?;

    let letters = stage.consume_all(&market.config.dead_letter_topic(), Isolation::ReadCommitted)?;
    assert_eq!(letters.len(), 1);
    Ok(())
}

fn exactly_once(stage: &Stage, partitions: i32) -> anyhow::Result<Market<'_>> {
    let mut market =
        Market::open(stage, partitions, |config| config.kafka.processing_guarantee = Guarantee::ExactlyOnce)?;
    put_rules(&mut market)?;
    Ok(market)
}

/// Closes what is open, and checks that what is committed is what the oracle expects: each record once, each
/// symbol's notifications in the order of its ticks.
fn check_each_once(market: &Market) -> anyhow::Result<()> {
    market.send_closing()?;
    market.wait_delivered()?;
    market.check_each_once(&[])?;
    market.check_order()
}
