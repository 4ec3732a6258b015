//! A primary under Sentinel: when it dies, the replica is promoted and the workers go on with it. What the replica
//! had not received is a rollback, and no output is lost or doubled by it.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use redis::Commands as _;
use tickwatch::config::{Config, Guarantee, RedisConfig};
use tickwatch::sandbox::{Redis, Sentinel};
use tickwatch::store::pool::Pool;

use crate::harness::{self, Case, Needs, Stage, Worker, cases, program, wait_until};
use crate::market::{Market, SETTLED, put_rules, start, walk};
use crate::sandbox::or_skip;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases!(Needs::Both;
        a_killed_primary_is_replaced_and_the_worker_goes_on,
        a_replica_that_had_fallen_behind_is_promoted_and_nothing_is_lost_or_doubled,
        a_primary_that_was_demoted_is_left_for_the_new_one,
        too_few_replicas_are_waited_for,
    );
    cases.extend(cases!(Needs::Nothing;
        sentinels_that_lead_nowhere_are_each_told_with_what_they_said,
    ));
    cases
}

const MASTER: &str = "prices";

/// How long Sentinel and the worker may take together until the worker owns its partitions on the new primary.
const FAILOVER: Duration = Duration::from_secs(30);

/// A primary, its replica, and three sentinels of which one is enough.
struct Trio {
    primary: Redis,
    replica: Redis,
    sentinels: Vec<Sentinel>,
}

impl Trio {
    /// `settings` are for the primary and the replica.
    fn start(settings: &[(&str, &str)]) -> anyhow::Result<Trio> {
        // The replica is sent what it lacks at once, not after the usual 5 s that wait for others.
        let settings: Vec<_> = [("repl-diskless-sync-delay", "0")].iter().chain(settings).copied().collect();
        let primary = or_skip(Redis::start(&settings))?;
        let replica_of = format!("127.0.0.1 {}", primary.port());
        let replica = or_skip(Redis::start(&[&settings[..], &[("replicaof", &*replica_of)]].concat()))?;
        let trio = Trio { primary, replica, sentinels: Vec::new() };
        wait_until(SETTLED, "the replica to be in step", || {
            info(&trio.replica, "master_link_status").is_ok_and(|status| status == "up")
        })?;
        let sentinels = (0..3).map(|_| or_skip(Sentinel::start(MASTER, &trio.primary)));
        let trio = Trio { sentinels: sentinels.collect::<anyhow::Result<_>>()?, ..trio };
        wait_until(SETTLED, "the sentinels to know the replica and each other", || {
            trio.sentinels.iter().all(|sentinel| {
                let known = || -> anyhow::Result<(i64, i64)> {
                    let mut connection = harness::connect(&format!("redis://{}", sentinel.address()))?;
                    let master: redis::InfoDict = redis::cmd("INFO").arg("sentinel").query(&mut connection)?;
                    let line: String = master.get("master0").context("one master")?;
                    let number = |name: &str| {
                        let part = line.split(',').find_map(|part| part.strip_prefix(name));
                        part.and_then(|number| number.parse().ok()).context("a number")
                    };
                    Ok((number("slaves=")?, number("sentinels=")?))
                };
                known().is_ok_and(|known| known == (1, 3))
            })
        })?;
        Ok(trio)
    }

    fn configure(&self, config: &mut Config) {
        config.redis.url = RedisConfig::default().url;
        config.redis.sentinels = self.sentinels.iter().map(Sentinel::address).collect();
        config.redis.master = Some(MASTER.into());
    }

    /// Waits until the replica has all that the primary has.
    fn in_step(&self) -> anyhow::Result<()> {
        let replicas: i64 =
            redis::cmd("WAIT").arg(1).arg(10_000).query(&mut harness::connect(&self.primary.url())?)?;
        ensure!(replicas == 1, "the replica is not in step");
        Ok(())
    }

    /// Waits until the worker owns both partitions by what the promoted replica says.
    fn wait_taken_over(&self, market: &Market, worker: &Worker) -> anyhow::Result<()> {
        let mut seen = String::new();
        wait_until(FAILOVER, "the worker to own its partitions on the promoted replica", || {
            let role = info(&self.replica, "role").unwrap_or_default();
            let (epochs, owners) = (epochs(market, &self.replica), market.owners());
            seen = format!("role {role}, epochs {epochs:?}, owners {owners:?}");
            role == "master"
                && epochs.is_ok_and(|epochs| epochs.iter().all(|epoch| *epoch >= 2))
                && owners.is_ok_and(|owners| owners.iter().all(|owner| *owner == worker.pid()))
        })
        .with_context(|| format!("{seen}\n{}", worker.logs()))
    }
}

fn info(redis: &Redis, field: &str) -> anyhow::Result<String> {
    let info: redis::InfoDict =
        redis::cmd("INFO").arg("replication").query(&mut harness::connect(&redis.url())?)?;
    info.get(field).context("a field of INFO")
}

fn epochs(market: &Market, redis: &Redis) -> anyhow::Result<Vec<i64>> {
    let mut connection = harness::connect(&redis.url())?;
    (0..2).map(|number| Ok(connection.hget(market.source_key(number), "epoch")?)).collect()
}

fn market<'s>(stage: &'s Stage, trio: &Trio, guarantee: Guarantee) -> anyhow::Result<Market<'s>> {
    let mut market = Market::open(stage, 2, |config| {
        trio.configure(config);
        config.kafka.processing_guarantee = guarantee;
    })?;
    put_rules(&mut market)?;
    trio.in_step()?;
    Ok(market)
}

fn a_killed_primary_is_replaced_and_the_worker_goes_on(stage: &Stage) -> anyhow::Result<()> {
    let mut trio = Trio::start(&[])?;
    let market = market(stage, &trio, Guarantee::AtLeastOnce)?;
    let workers = start(&market, 1)?;
    market.under_load(&mut walk(21), || {
        market.wait_under_way()?;
        trio.primary.kill()?;
        trio.wait_taken_over(&market, &workers[0])
    })?;
    // It comes back as a primary and is told otherwise; nobody follows it meanwhile.
    trio.primary.restart()?;
    market.send(walk(22).take(200))?;
    wait_until(FAILOVER, "the former primary to be a replica", || {
        info(&trio.primary, "role").is_ok_and(|role| role == "slave")
    })?;
    market.send_closing()?;
    market.wait_delivered()?;
    market.check()?; // what was on its way may come twice, word for word
    Ok(())
}

fn a_replica_that_had_fallen_behind_is_promoted_and_nothing_is_lost_or_doubled(
    stage: &Stage,
) -> anyhow::Result<()> {
    let mut trio = Trio::start(&[])?;
    let market = market(stage, &trio, Guarantee::ExactlyOnce)?;
    let workers = start(&market, 1)?;
    let behind = market.under_load(&mut walk(23), || {
        market.wait_under_way()?;
        // Asynchronous replication that lost what came last, made certain.
        let nowhere = harness::free_address()?.port();
        redis::cmd("REPLICAOF").arg("127.0.0.1").arg(nowhere).exec(&mut harness::connect(&trio.replica.url())?)?;
        let behind = offsets(&market, &trio.replica)?;
        wait_until(SETTLED, "the primary to go further than the replica", || {
            offsets(&market, &trio.primary)
                .is_ok_and(|now| now.iter().zip(&behind).all(|(now, old)| *now > old + 500))
        })?;
        let delivered = market.committed_offsets()?;
        ensure!(delivered.iter().zip(&behind).all(|(now, old)| now > old), "{delivered:?} delivered, {behind:?}");
        trio.primary.kill()?;
        trio.wait_taken_over(&market, &workers[0])?;
        Ok(behind)
    })?;
    market.send_closing()?;
    market.wait_delivered()?;
    market
        .check_each_once(&workers.iter().collect::<Vec<_>>())
        .with_context(|| format!("rolled back to {behind:?}"))
}

fn offsets(market: &Market, redis: &Redis) -> anyhow::Result<Vec<i64>> {
    let mut connection = harness::connect(&redis.url())?;
    (0..2).map(|number| Ok(connection.hget(market.source_key(number), "next_offset")?)).collect()
}

/// An operator moves the primary: connections to the former one stay open, and calls over them meet a replica. So do
/// new ones, until the sentinels are told.
fn a_primary_that_was_demoted_is_left_for_the_new_one(stage: &Stage) -> anyhow::Result<()> {
    let trio = Trio::start(&[])?;
    let market = market(stage, &trio, Guarantee::AtLeastOnce)?;
    let workers = start(&market, 1)?;
    let pool = Pool::new(&market.config.redis);
    ensure!(stage.block_on(pooled_port(&pool))? == trio.primary.port());
    market.under_load(&mut walk(24), || {
        market.wait_under_way()?;
        let mut primary = harness::connect(&trio.primary.url())?;
        redis::cmd("REPLICAOF").arg("127.0.0.1").arg(trio.replica.port()).exec(&mut primary)?;
        wait_until(SETTLED, "a call to meet the replica", || workers[0].logs().contains("READONLY"))
            .with_context(|| workers[0].logs())?;
        wait_until(SETTLED, "the role to be seen", || workers[0].logs().contains("is a replica"))
            .with_context(|| workers[0].logs())?;
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut harness::connect(&trio.replica.url())?)?;
        for sentinel in &trio.sentinels {
            let mut sentinel = harness::connect(&format!("redis://{}", sentinel.address()))?;
            redis::cmd("SENTINEL").arg("REMOVE").arg(MASTER).exec(&mut sentinel)?;
            let monitor = ["MONITOR", MASTER, "127.0.0.1"];
            redis::cmd("SENTINEL").arg(&monitor).arg(trio.replica.port()).arg(1).exec(&mut sentinel)?;
        }
        trio.wait_taken_over(&market, &workers[0])
    })?;
    ensure!(stage.block_on(pooled_port(&pool))? == trio.replica.port(), "the pool kept to the former primary");
    market.send_closing()?;
    market.wait_delivered()?;
    market.check()?;
    Ok(())
}

/// The port of the server that a pool's connection leads to; the connection goes back to the pool.
async fn pooled_port(pool: &Pool) -> anyhow::Result<u16> {
    let mut connection = pool.get().await?;
    let (_, port): (String, u16) = redis::cmd("CONFIG").arg("GET").arg("port").query_async(&mut connection).await?;
    Ok(port)
}

fn too_few_replicas_are_waited_for(stage: &Stage) -> anyhow::Result<()> {
    let mut trio = Trio::start(&[("min-replicas-to-write", "1"), ("min-replicas-max-lag", "1")])?;
    let market = market(stage, &trio, Guarantee::AtLeastOnce)?;
    let mut workers = start(&market, 1)?;
    trio.replica.kill()?;
    market.send(walk(25).take(500))?;
    wait_until(SETTLED, "writes to be refused", || workers[0].logs().contains("NOREPLICAS"))
        .with_context(|| workers[0].logs())?;
    trio.replica.restart()?;
    market.send_closing()?;
    market.wait_delivered().with_context(|| workers[0].logs())?;
    workers[0].wait_ready()?;
    market.check()?;
    Ok(())
}

fn sentinels_that_lead_nowhere_are_each_told_with_what_they_said(_: &Stage) -> anyhow::Result<()> {
    let redis = harness::private_redis()?;
    let sentinel = or_skip(Sentinel::start("others", &redis))?;
    let nobody = harness::free_address()?.to_string();
    let output = program()
        .args(["rule", "list", "BBCA"])
        .env("TICKWATCH_REDIS__SENTINELS", format!("{nobody},{}", sentinel.address()))
        .env("TICKWATCH_REDIS__MASTER", MASTER)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{}: {said}", output.status);
    for part in [
        format!("sentinel {nobody}: "),
        format!("sentinel {} does not know it", sentinel.address()),
        "check [redis] sentinels and master".into(),
    ] {
        ensure!(said.contains(&part), "{part} is not in {said}");
    }
    Ok(())
}
