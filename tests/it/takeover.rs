//! How long a partition stands still when its owner leaves or dies: measured to the first output of the next owner.
//!
//! The promise is for a machine that is not busy with other things: [`AFTER_A_STOP`] and [`AFTER_A_KILL`], however much
//! state there is. `TW_TEST_STRICT=1` holds a run against that. Without, [`ALLOWED`] on top is for a machine whose two
//! cores compile and run other tests meanwhile; it is less than the second that librdkafka sleeps if nothing wakes it,
//! with which a heartbeat or the first fetch would be late.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tickwatch::config::Guarantee;
use tickwatch::sandbox::Redis;

use crate::alerts::{Alerts, Outputs};
use crate::harness::{Case, Needs, Stage, Worker, cases, private_redis};
use crate::market::{Market, SETTLED, start, tick, wait_owned_by};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both; the_next_owner_is_at_work_in_time_however_much_state_there_is)
}

/// From SIGTERM on: the owner's last commit, its leave, the other's next heartbeat, the takeover.
const AFTER_A_STOP: Duration = Duration::from_millis(400);
/// From SIGKILL on: the session timeout, by default 6 s, and a takeover.
const AFTER_A_KILL: Duration = Duration::from_millis(6_200);
/// Ticks sent before it is waited for them.
const PORTION: usize = 20_000;
/// What a busy machine may add.
const ALLOWED: Duration = Duration::from_millis(900);

fn the_next_owner_is_at_work_in_time_however_much_state_there_is(stage: &Stage) -> anyhow::Result<()> {
    let redis = private_redis()?;
    let groups = [
        Group::at_work(stage, &redis, Guarantee::AtLeastOnce, 1_000)?,
        Group::at_work(stage, &redis, Guarantee::AtLeastOnce, 200_000)?,
        Group::at_work(stage, &redis, Guarantee::ExactlyOnce, 1_000)?,
    ];
    thread::scope(|scope| {
        let measured = groups.map(|group| scope.spawn(move || group.measure()));
        measured.into_iter().try_for_each(|one| one.join().expect("a measurement does not panic"))
    })
}

/// Two workers, one partition.
struct Group<'s> {
    market: Market<'s>,
    workers: Vec<Worker>,
    alerts: Alerts,
    symbols: i64,
}

impl<'s> Group<'s> {
    /// Each symbol has a last price, an open candle and a window that is due, as the ticks of a worker leave them.
    fn at_work(stage: &'s Stage, redis: &Redis, guarantee: Guarantee, symbols: i64) -> anyhow::Result<Self> {
        let mut market = Market::open(stage, 1, |config| {
            config.namespace = format!("{}:", stage.unique("state"));
            config.redis.url = redis.url();
            config.kafka.processing_guarantee = guarantee;
            config.candles.intervals = vec!["1m".parse().expect("it is an interval")];
            config.candles.lateness = Duration::from_hours(1); // no window closes: the state stays
        })?;
        let alerts = Alerts::open(&mut market)?;
        let workers = start(&market, 2)?;
        wait_owned_by(&market, &workers, SETTLED)?;
        for first in (0..symbols).step_by(PORTION) {
            let portion = first..symbols.min(first + PORTION as i64);
            market.send(portion.map(|number| tick(&format!("SYM-{number}"), 200, number % 60_000)))?;
            market.wait_delivered()?;
        }
        Ok(Group { market, workers, alerts, symbols })
    }

    fn measure(mut self) -> anyhow::Result<()> {
        let told = self.replace(|owner| owner.stop().map(drop))?;
        let killed = self.replace(Worker::kill)?;
        let guarantee = self.market.config.kafka.processing_guarantee;
        println!(
            "takeover, {guarantee:?}, {} symbols: {told:?} after SIGTERM, {killed:?} after SIGKILL",
            self.symbols
        );
        let strict = std::env::var_os("TW_TEST_STRICT").is_some();
        let allowed = if strict { Duration::ZERO } else { ALLOWED };
        ensure!(told <= AFTER_A_STOP + allowed, "{told:?} after a graceful stop");
        ensure!(killed <= AFTER_A_KILL + allowed, "{killed:?} after a kill");
        Ok(())
    }

    /// From the owner's end to the first output of the other worker. A third one joins afterwards.
    fn replace(&mut self, end: fn(&mut Worker) -> anyhow::Result<()>) -> anyhow::Result<Duration> {
        let market = &self.market;
        let owner = market.owners()?[0];
        let at = self.workers.iter().position(|worker| worker.pid() == owner).context("a worker owns it")?;
        let outputs = Outputs::from_now_on(market)?;
        self.alerts.send(market)?;
        outputs.wait_for_one().context("of the owner before")?;
        let since = Instant::now();
        end(&mut self.workers[at])?;
        self.alerts.send(market)?; // nobody but the next owner can have it
        let logs = || self.workers.iter().map(Worker::logs).collect::<Vec<_>>().join("\n");
        let took = outputs.wait_for_one().with_context(logs)?.duration_since(since);
        self.workers[at] = Worker::start(&market.config)?;
        self.workers[at].wait_ready()?;
        Ok(took)
    }
}
