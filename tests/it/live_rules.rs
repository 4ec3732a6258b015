//! Rules added, changed and removed by plain Redis commands while a worker runs, and what people may do to its Redis
//! meanwhile.

use anyhow::{Context as _, ensure};
use redis::Commands as _;
use tickwatch::sandbox::Redis;

use crate::harness::{Case, Isolation, Needs, Stage, Worker, cases, private_redis};
use crate::market::{BEGIN, Market, put_rules, start, tick, walk};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both;
        a_rule_fires_from_the_next_crossing_after_its_zadd_on,
        a_removed_rule_is_silent,
        a_changed_threshold_holds_from_the_next_tick_on,
        a_rule_fires_once,
        a_rule_cools_down_in_event_time,
        a_rule_expires_in_event_time_and_is_removed,
        a_note_is_sent_with_the_notification,
        members_that_do_not_parse_or_are_in_the_wrong_set_hurt_no_other_rule,
        a_key_of_the_wrong_type_stops_its_symbol_only,
        flushed_scripts_are_loaded_again,
        killed_connections_lose_nothing,
        a_redis_that_is_killed_and_restarted_loses_nothing,
    )
}

/// A worker on one partition, and a Redis connection to play with.
struct Live<'s> {
    market: Market<'s>,
    worker: Worker,
    redis: redis::Connection,
    now: i64,
}

impl<'s> Live<'s> {
    fn start(stage: &'s Stage) -> anyhow::Result<Live<'s>> {
        let market = Market::open(stage, 1, |_| {})?;
        let worker = start(&market, 1)?.remove(0);
        let redis = market.redis()?;
        Ok(Live { market, worker, redis, now: 0 })
    }

    fn edge(&mut self, symbol: &str, threshold: i64, member: &str) -> anyhow::Result<()> {
        Ok(self.redis.zadd(self.market.key(&format!("rules:{symbol}:edge")), member, threshold)?)
    }

    fn options(&mut self, symbol: &str, id: &str, options: &str) -> anyhow::Result<()> {
        Ok(self.redis.hset(self.market.key(&format!("rules:{symbol}:opts")), id, options)?)
    }

    /// Ticks of BBCA, 10 ms apart, each applied before this returns.
    fn prices(&mut self, prices: &[i64]) -> anyhow::Result<()> {
        let ticks = prices.iter().zip(1..).map(|(price, at)| tick("BBCA", *price, self.now + 10 * at));
        self.market.send(ticks)?;
        self.now += 10 * prices.len() as i64;
        self.market.wait_applied()
    }

    /// `<rule>@<price>` of each notification, in order.
    fn fired(&self) -> anyhow::Result<Vec<String>> {
        self.market.wait_delivered()?;
        let records =
            self.market.stage().consume_all(&self.market.config.output.notifications, Isolation::ReadCommitted)?;
        let mut fired = records
            .iter()
            .map(|record| {
                let value = record.json()?;
                let offset = value["source"]["offset"].as_i64().unwrap_or(-1);
                Ok((offset, format!("{}@{}", value["rule"].as_str().unwrap_or("?"), value["price"])))
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        fired.sort();
        Ok(fired.into_iter().map(|(_, text)| text).collect())
    }
}

fn a_rule_fires_from_the_next_crossing_after_its_zadd_on(stage: &Stage) -> anyhow::Result<()> {
    let mut live = Live::start(stage)?;
    live.prices(&[90, 110])?;
    live.edge("BBCA", 100, ">= alice")?;
    live.prices(&[120, 130])?; // above already: adding a rule is no crossing
    live.prices(&[95, 101])?;
    assert_eq!(live.fired()?, ["alice@101"]);
    Ok(())
}

fn a_removed_rule_is_silent(stage: &Stage) -> anyhow::Result<()> {
    let mut live = Live::start(stage)?;
    for member in [">= alice", ">= bob"] {
        live.edge("BBCA", 100, member)?;
    }
    live.prices(&[90, 110, 90])?;
    let _: () = live.redis.zrem(live.market.key("rules:BBCA:edge"), ">= alice")?;
    live.prices(&[111])?;
    assert_eq!(live.fired()?, ["alice@110", "bob@110", "bob@111"]);
    Ok(())
}

fn a_changed_threshold_holds_from_the_next_tick_on(stage: &Stage) -> anyhow::Result<()> {
    let mut live = Live::start(stage)?;
    live.edge("BBCA", 100, ">= alice")?;
    live.prices(&[90, 105])?;
    live.edge("BBCA", 200, ">= alice")?;
    live.prices(&[90, 150, 205])?;
    assert_eq!(live.fired()?, ["alice@105", "alice@205"]);
    Ok(())
}

fn a_rule_fires_once(stage: &Stage) -> anyhow::Result<()> {
    let mut live = Live::start(stage)?;
    live.edge("BBCA", 100, ">= alice")?;
    live.options("BBCA", "alice", r#"{"once":true}"#)?;
    live.prices(&[90, 110, 90, 120])?; // within one batch too
    live.prices(&[90, 130])?;
    assert_eq!(live.fired()?, ["alice@110"]);
    let left: usize = live.redis.zcard(live.market.key("rules:BBCA:edge"))?;
    let options: usize = live.redis.hlen(live.market.key("rules:BBCA:opts"))?;
    assert_eq!((left, options), (0, 0), "the rule and its options are gone");
    Ok(())
}

fn a_rule_cools_down_in_event_time(stage: &Stage) -> anyhow::Result<()> {
    let mut live = Live::start(stage)?;
    live.edge("BBCA", 100, ">= alice")?;
    live.options("BBCA", "alice", r#"{"cooldown":1000}"#)?;
    live.prices(&[90, 110])?; // fires at 20 ms
    live.prices(&[90, 111])?;
    live.now = 1_000;
    live.prices(&[90, 112])?; // at 1,020 ms: just over
    assert_eq!(live.fired()?, ["alice@110", "alice@112"]);
    Ok(())
}

fn a_rule_expires_in_event_time_and_is_removed(stage: &Stage) -> anyhow::Result<()> {
    let mut live = Live::start(stage)?;
    live.edge("BBCA", 100, ">= alice")?;
    live.options("BBCA", "alice", &format!(r#"{{"expires":{}}}"#, BEGIN + 40))?;
    live.prices(&[90, 110])?; // at 20 ms
    live.prices(&[90, 111])?; // at 40 ms: too late
    assert_eq!(live.fired()?, ["alice@110"]);
    let left: usize = live.redis.zcard(live.market.key("rules:BBCA:edge"))?;
    assert_eq!(left, 0, "an expired rule is removed when met");
    Ok(())
}

fn a_note_is_sent_with_the_notification(stage: &Stage) -> anyhow::Result<()> {
    let mut live = Live::start(stage)?;
    live.edge("BBCA", 100, ">= alice")?;
    live.options("BBCA", "alice", r#"{"note":"sell \"half\" – 半分"}"#)?;
    live.prices(&[90, 110])?;
    assert_eq!(live.fired()?, ["alice@110"]);
    let topic = &live.market.config.output.notifications;
    let record = &live.market.stage().consume_all(topic, Isolation::ReadCommitted)?[0];
    assert_eq!(record.json()?["note"], "sell \"half\" – 半分");
    Ok(())
}

fn members_that_do_not_parse_or_are_in_the_wrong_set_hurt_no_other_rule(stage: &Stage) -> anyhow::Result<()> {
    let mut live = Live::start(stage)?;
    for member in [">= alice", "=> bob", "carol", ">=", ""] {
        live.edge("BBCA", 100, member)?;
    }
    let above = live.market.key("rules:BBCA:level:above");
    let _: () = live.redis.zadd(&above, "< dave", 100)?;
    let _: () = live.redis.zadd(&above, "> erin", 105)?;
    live.edge("BBCA", 100, ">= frank")?;
    live.options("BBCA", "frank", "no JSON")?;
    live.prices(&[90, 110])?;
    assert_eq!(live.fired()?, ["alice@110", "erin@110"]);
    // The log is for people and throttled; the count is for alarms and complete.
    let logs = live.worker.logs();
    ensure!(
        logs.contains("rules are skipped")
            && logs.contains(&live.market.key("rules:BBCA:"))
            && logs.contains("=> bob"),
        "{logs}"
    );
    let metrics = live.worker.get("/metrics")?;
    let counted = metrics.lines().find_map(|line| line.strip_prefix("tickwatch_bad_rules_total "));
    let skipped: u64 = counted.context("bad rules are counted")?.parse()?;
    ensure!(skipped >= 6, "bob, carol, two without an id, dave and frank are skipped: {skipped} counted");
    Ok(())
}

fn a_key_of_the_wrong_type_stops_its_symbol_only(stage: &Stage) -> anyhow::Result<()> {
    let mut live = Live::start(stage)?;
    live.edge("BBCA", 100, ">= alice")?;
    live.edge("TLKM", 100, ">= bob")?;
    live.prices(&[90])?;
    let key = live.market.key("last:BBCA");
    let _: () = live.redis.rename(&key, live.market.key("aside"))?;
    let _: () = live.redis.set(&key, "not a hash")?;
    live.market.send([tick("TLKM", 90, 20), tick("BBCA", 110, 21), tick("TLKM", 110, 22)])?;
    live.market.wait_applied()?;
    assert_eq!(live.fired()?, ["bob@110"]);
    let kept: String = live.redis.get(&key)?;
    assert_eq!(kept, "not a hash", "nothing of it is deleted");

    let letters =
        live.market.stage().consume_all(&live.market.config.dead_letter_topic(), Isolation::ReadCommitted)?;
    let [letter] = letters.as_slice() else { anyhow::bail!("one dead letter, not {letters:?}") };
    assert_eq!(letter.key.as_deref(), Some("BBCA"));
    assert_eq!(letter.json()?["price"], 110);
    assert_eq!(letter.header("source.offset"), Some("2"));
    let error = letter.header("error").context("the reason")?;
    ensure!(error.contains(&key) && error.contains("WRONGTYPE"), "{error}");

    let _: () = live.redis.del(&key)?;
    live.now = 30;
    live.prices(&[95, 105])?;
    assert_eq!(live.fired()?, ["bob@110", "alice@105"]);
    Ok(())
}

fn flushed_scripts_are_loaded_again(stage: &Stage) -> anyhow::Result<()> {
    let repeated = on_a_private_redis(stage, |market, _| {
        let mut walk = walk(21);
        for _ in 0..5 {
            let _: () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut market.redis()?)?;
            market.send(walk.by_ref().take(50))?;
            market.wait_applied()?;
        }
        Ok(())
    })?;
    ensure!(repeated.is_empty(), "a missing script is no reason to send anything twice: {repeated:?}");
    Ok(())
}

fn killed_connections_lose_nothing(stage: &Stage) -> anyhow::Result<()> {
    on_a_private_redis(stage, |market, _| {
        market.under_load(&mut walk(22), || {
            for _ in 0..5 {
                let mut redis = market.redis()?;
                let _: () =
                    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).query(&mut redis)?;
                let key = market.source_key(0);
                let before: i64 = redis.hget(&key, "next_offset")?;
                market.wait_for("ticks to be applied again", || {
                    redis.hget::<_, _, i64>(&key, "next_offset").is_ok_and(|offset| offset > before)
                })?;
            }
            Ok(())
        })
    })?;
    Ok(())
}

fn a_redis_that_is_killed_and_restarted_loses_nothing(stage: &Stage) -> anyhow::Result<()> {
    on_a_private_redis(stage, |market, redis| {
        market.under_load(&mut walk(23), || {
            for _ in 0..2 {
                redis.kill()?;
                redis.restart()?;
                let mut connection = market.redis()?;
                let key = market.source_key(0);
                let before: i64 = connection.hget(&key, "next_offset")?;
                market.wait_for("ticks to be applied again", || {
                    connection.hget::<_, _, i64>(&key, "next_offset").is_ok_and(|offset| offset > before)
                })?;
            }
            Ok(())
        })
    })?;
    Ok(())
}

/// Runs `trouble` beside a worker on a Redis of its own; then everything must be as the oracle says. Returns what was
/// repeated, word for word.
fn on_a_private_redis(
    stage: &Stage,
    trouble: impl FnOnce(&Market, &mut Redis) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<String>> {
    let mut redis = private_redis()?;
    let mut market = Market::open(stage, 1, |config| config.redis.url = redis.url())?;
    put_rules(&mut market)?;
    let workers = start(&market, 1)?;
    market.send(walk(20).take(100))?;
    market.wait_applied()?;
    trouble(&market, &mut redis)?;
    market.send_closing()?;
    market.wait_delivered().with_context(|| workers[0].logs())?;
    market.check()
}
