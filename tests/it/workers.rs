//! Who owns a partition, and what becomes of it when its owner leaves, dies or freezes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use redis::Commands as _;

use crate::common::monitor::{self, Line, Monitor};
use crate::harness::{Case, Needs, Stage, Worker, cases, private_redis, wait_until};
use crate::market::{
    Market, SETTLED, START_PRICE, Walk, assert_same, put_rules, start, tick, wait_owned_by, wait_shared, walk,
};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both;
        three_workers_share_six_partitions,
        partitions_move_under_load_and_nothing_is_lost_or_repeated,
        a_worker_killed_under_load_leaves_nothing_undone,
        a_killed_workers_partition_goes_on_with_nothing_rebuilt,
        a_worker_frozen_past_its_session_writes_nothing_and_comes_back,
    )
}

/// The session timeout of a worker's membership: the default, and the least that the broker allows.
const SESSION: Duration = Duration::from_secs(6);

/// A graceful leave is known to the others at their next heartbeat. Within a busy machine's patience it is still told
/// apart from a session that ran out.
const HANDED_OVER: Duration = Duration::from_secs(5);

fn three_workers_share_six_partitions(stage: &Stage) -> anyhow::Result<()> {
    let market = market_with_rules(stage, 6)?;
    let workers = start(&market, 3)?;
    wait_until(SETTLED, "each worker to own two partitions", || {
        let owners = market.owners().unwrap_or_default();
        workers.iter().all(|worker| owners.iter().filter(|owner| **owner == worker.pid()).count() == 2)
    })
    .with_context(|| format!("{:?}", market.owners()))?;

    market.send(walk(1).take(2_000))?;
    market.send_closing()?;
    market.wait_delivered()?;
    market.check_each_once(&[&workers[0], &workers[1], &workers[2]])
}

fn partitions_move_under_load_and_nothing_is_lost_or_repeated(stage: &Stage) -> anyhow::Result<()> {
    let market = market_with_rules(stage, 6)?;
    let mut workers = start(&market, 3)?;
    wait_shared(&market, &workers)?;
    let left = market.under_load(&mut walk(2), || {
        workers.push(Worker::start(&market.config)?);
        wait_shared(&market, &workers)?;

        let mut leaving = workers.remove(0);
        let told = Instant::now();
        let status = leaving.stop()?;
        ensure!(status.success(), "{status}: {}", leaving.logs());
        wait_owned_by(&market, &workers, SETTLED)?;
        let took = told.elapsed();
        let logs = || workers.iter().map(Worker::logs).collect::<Vec<_>>().join("\n");
        ensure!(took < HANDED_OVER, "handed over after {took:?}\n{}\n{}", leaving.logs(), logs());
        Ok(leaving)
    })?;
    market.send_closing()?;
    market.wait_delivered()?;
    market.check_each_once(&[&left, &workers[0], &workers[1], &workers[2]])
}

fn a_worker_killed_under_load_leaves_nothing_undone(stage: &Stage) -> anyhow::Result<()> {
    let market = market_with_rules(stage, 4)?;
    let mut workers = start(&market, 2)?;
    wait_shared(&market, &workers)?;
    market.under_load(&mut walk(3), || {
        market.wait_under_way()?;
        workers.remove(0).kill()?;
        wait_owned_by(&market, &workers, SETTLED)
    })?;
    market.send_closing()?;
    market.wait_delivered()?;
    market.check()?; // what was sent again is equal in id and content
    Ok(())
}

fn a_killed_workers_partition_goes_on_with_nothing_rebuilt(stage: &Stage) -> anyhow::Result<()> {
    let redis = private_redis()?;
    let mut market = Market::open(stage, 1, |config| {
        config.redis.url = redis.url();
        config.candles.lateness = Duration::from_hours(1); // no window closes: nothing but new ticks needs a key
    })?;
    for symbol in ["OLD-7", "NEW-1"] {
        market.put_rule(symbol, "level", ">=", START_PRICE, "alice")?;
    }
    let mut workers = start(&market, 2)?;
    wait_owned_by(&market, &workers, SETTLED)?;
    market.send(Walk::new(4, (0..300).map(|number| format!("OLD-{number}")), 0).take(2_000))?;
    market.wait_delivered()?;

    let monitor = Monitor::start(redis.port())?;
    let owner = market.owners()?[0];
    let at = workers.iter().position(|worker| worker.pid() == owner).context("a worker owns the partition")?;
    workers.remove(at).kill()?;
    let killed = Instant::now();
    market.send((0..20).map(|number| tick("NEW-1", 200 + number, 60_000 + number)))?;
    market.wait_delivered()?;
    let took = killed.elapsed();
    ensure!(took < SESSION + Duration::from_secs(4), "delivered {took:?} after the kill");

    for line in monitor.stop()? {
        let name = line.command.as_str();
        if line.by_script {
            ensure!(!["KEYS", "SCAN", "HSCAN", "HGETALL", "SMEMBERS"].contains(&name), "{line:?}");
            ensure!(!line.text.contains("OLD-"), "the state of another symbol was touched: {line:?}");
        } else if !monitor::IS_OF_TEST.contains(&name) {
            let is_known = ["EVALSHA", "SCRIPT", "HELLO", "CLIENT"].contains(&name);
            ensure!(is_known || (name == "XRANGE" && line.text.contains("outbox:")), "{line:?}");
        }
    }
    let mut expected = market.expected();
    let mut state = market.state()?;
    for facts in [&mut expected.state, &mut state] {
        facts.retain(|name, _| name.starts_with("last:"));
    }
    expected.outputs.retain(|name, _| name.starts_with("notification "));
    assert_same("state", &expected.state, &state)?;
    assert_same("outputs", &expected.outputs, &market.received()?.outputs)
}

fn a_worker_frozen_past_its_session_writes_nothing_and_comes_back(stage: &Stage) -> anyhow::Result<()> {
    let redis = private_redis()?;
    let mut market = Market::open(stage, 2, |config| config.redis.url = redis.url())?;
    put_rules(&mut market)?;
    let mut workers = start(&market, 2)?;
    wait_shared(&market, &workers)?;
    let owner = workers[0].pid();
    let number = market.owners()?.iter().position(|of| *of == owner).context("it owns one partition")?;
    let source = market.source_key(number as i32);
    let token: String = market.redis()?.hget(&source, "token")?;

    let monitor = Monitor::start(redis.port())?;
    market.under_load(&mut walk(5), || {
        let mut redis = market.redis()?;
        wait_until(SETTLED, "the first worker to apply ticks", || {
            redis.hget::<_, _, i64>(&source, "next_offset").is_ok_and(|offset| offset > 100)
        })?;
        workers[0].pause()?;
        let other = workers[1].pid();
        wait_until(SETTLED, "the other worker to own both", || {
            market.owners().is_ok_and(|owners| owners == [other, other])
        })?;
        workers[0].cont()?;
        wait_shared(&market, &workers)
    })?;
    market.send_closing()?;
    market.wait_delivered()?;

    assert_fenced(&monitor.stop()?, &source, &token)?;
    market.check()?; // what was on its way to Kafka when it froze may come twice, word for word
    Ok(())
}

/// Once another owner has claimed `source`, no call with `token` writes.
fn assert_fenced(lines: &[Line], source: &str, token: &str) -> anyhow::Result<()> {
    const WRITES: [&str; 10] = ["HSET", "HDEL", "XADD", "XDEL", "XTRIM", "ZADD", "ZREM", "SADD", "DEL", "PEXPIRE"];
    let is_claim = |line: &Line| {
        line.by_script && line.command == "HSET" && line.text.contains(source) && line.text.contains("\"token\"")
    };
    let claim = lines.iter().position(is_claim).context("the other worker claims the partition")?;
    let mut by_frozen = false;
    for line in &lines[claim + 1..] {
        if line.by_script {
            ensure!(!(by_frozen && WRITES.contains(&line.command.as_str())), "written after the fence: {line:?}");
        } else {
            by_frozen = line.text.contains(token);
        }
    }
    Ok(())
}

fn market_with_rules(stage: &Stage, partitions: i32) -> anyhow::Result<Market<'_>> {
    let mut market = Market::open(stage, partitions, |_| {})?;
    put_rules(&mut market)?;
    Ok(market)
}
