//! What befalls Redis, and the rules in it.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rand::RngExt as _;
use rand::rngs::StdRng;
use redis::Commands as _;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tickwatch::config::{Config, RedisConfig};
use tickwatch::sandbox::{Redis, Sentinel};

use crate::common;
use crate::plan::{Fault, Plan, rng};
use crate::proxy::Proxy;
use crate::rules::LiveRules;
use crate::timeline::Timeline;

/// How many older states Redis may come back to.
const SNAPSHOTS: usize = 5;

/// The folder of the append-only file.
const DATA: &str = "appendonlydir";

/// The name by which a sentinel knows the primary.
const MASTER: &str = "prices";

/// How long a failover may take, a quick one of a machine that is busy.
const FAILOVER: Duration = Duration::from_secs(40);

/// ms without an answer until the sentinel takes the primary for dead: longer than any stall that is to be endured.
const DOWN_AFTER: u32 = 3_000;

/// Redis, and what is between it and the workers.
pub(crate) struct Servers {
    /// The primary.
    redis: Redis,
    access: Access,
}

enum Access {
    Proxy(Proxy),
    Sentinel { replica: Redis, sentinel: Sentinel },
}

impl Servers {
    /// One Redis behind a proxy, or a primary and its replica under a sentinel.
    pub(crate) fn start(under_sentinel: bool) -> anyhow::Result<(Servers, RedisConfig)> {
        let mut config = RedisConfig::default();
        if !under_sentinel {
            // A snapshot is a copy of files that nothing but their end changes.
            let redis = Redis::start(&[("auto-aof-rewrite-percentage", "0")])?;
            let proxy = Proxy::start()?;
            proxy.lead_to(redis.port());
            config.url = format!("redis://{}", proxy.address());
            return Ok((Servers { redis, access: Access::Proxy(proxy) }, config));
        }
        let at_once = ("repl-diskless-sync-delay", "0");
        let redis = Redis::start(&[at_once])?;
        let replica = Redis::start(&[at_once])?;
        follow(&replica, &redis)?;
        let sentinel = Sentinel::start_on(
            MASTER,
            redis.port(),
            &[&format!("sentinel down-after-milliseconds {MASTER} {DOWN_AFTER}")],
        )?;
        config.sentinels = vec![sentinel.address()];
        config.master = Some(MASTER.into());
        wait_known(&sentinel, &replica)?;
        Ok((Servers { redis, access: Access::Sentinel { replica, sentinel } }, config))
    }
}

/// Waits until the sentinel would promote the replica.
fn wait_known(sentinel: &Sentinel, replica: &Redis) -> anyhow::Result<()> {
    let known = || -> anyhow::Result<bool> {
        let mut connection = common::connect(&format!("redis://{}", sentinel.address()))?;
        let replicas: Vec<HashMap<String, String>> =
            redis::cmd("SENTINEL").arg("REPLICAS").arg(MASTER).query(&mut connection)?;
        let port = replica.port().to_string();
        Ok(replicas.iter().any(|known| {
            known.get("port") == Some(&port)
                && known.get("flags").is_some_and(|flags| flags == "slave")
                && known.get("master-link-status").is_some_and(|status| status == "ok")
        }))
    };
    common::wait_until(FAILOVER, "the sentinel to know a replica in step", || known().unwrap_or(false))
}

/// Makes a server the replica of another, and waits until it is in step.
fn follow(replica: &Redis, primary: &Redis) -> anyhow::Result<()> {
    let mut redis = common::connect(&replica.url())?;
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(primary.port()).exec(&mut redis)?;
    common::wait_until(FAILOVER, "a replica in step", || {
        replication(replica, "master_link_status").is_ok_and(|status| status == "up")
    })
}

fn replication(redis: &Redis, field: &str) -> anyhow::Result<String> {
    let info: redis::InfoDict = redis::cmd("INFO").arg("replication").query(&mut common::connect(&redis.url())?)?;
    info.get(field).context("a field of INFO")
}

pub(crate) struct RedisLane<'a> {
    plan: &'a Plan,
    config: &'a Config,
    timeline: &'a Timeline,
    rng: StdRng,
    servers: Servers,
    snapshots: VecDeque<PathBuf>,
    kept_in: TempDir,
    taken: usize,
    partitions: &'a AtomicI32,
    /// So many are claimed in each snapshot.
    in_snapshots: i32,
    pub(crate) rules: LiveRules<'a>,
}

impl<'a> RedisLane<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        config: &'a Config,
        timeline: &'a Timeline,
        servers: Servers,
        partitions: &'a AtomicI32,
    ) -> anyhow::Result<RedisLane<'a>> {
        Ok(RedisLane {
            plan,
            config,
            timeline,
            rng: rng(plan.seed, 5),
            servers,
            snapshots: VecDeque::new(),
            kept_in: tempfile::Builder::new().prefix("tickwatch-snapshots-").tempdir()?,
            taken: 0,
            partitions,
            in_snapshots: 0,
            rules: LiveRules::new(plan, config),
        })
    }

    /// The port of a Redis that stays the primary; under a sentinel none does.
    pub(crate) fn steady_port(&self) -> Option<u16> {
        matches!(self.servers.access, Access::Proxy(_)).then(|| self.servers.redis.port())
    }

    /// A connection that does not go through the proxy.
    pub(crate) fn connect(&self) -> anyhow::Result<redis::Connection> {
        if self.plan.sentinel {
            return self.connect_through_sentinel();
        }
        common::connect(&self.servers.redis.url())
    }

    /// While a failover is under way the sentinel may name a server that is not the primary, yet or any more.
    fn connect_through_sentinel(&self) -> anyhow::Result<redis::Connection> {
        let primary = || -> anyhow::Result<redis::Connection> {
            let mut connection = common::connect_to_primary(&self.config.redis)?;
            let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut connection)?;
            let role = role.into_iter().next().context("a role")?;
            ensure!(redis::from_redis_value::<String>(role)? == "master", "no primary");
            Ok(connection)
        };
        let mut found = None;
        common::wait_until(FAILOVER, "a primary", || {
            found = primary().ok();
            found.is_some()
        })?;
        found.context("a primary")
    }

    /// A busy machine may stall a primary for so long that the sentinel promotes the replica by itself.
    pub(crate) fn notice_failover(&mut self) -> anyhow::Result<()> {
        let Access::Sentinel { replica, .. } = &mut self.servers.access else { return Ok(()) };
        if replication(replica, "role")? != "master" {
            return Ok(());
        }
        self.timeline.injected(Fault::ReplicaPromoted, "by the sentinel alone");
        let delivered = self.rules.before_rollback();
        std::mem::swap(&mut self.servers.redis, replica);
        follow(replica, &self.servers.redis)?;
        let mut redis = self.connect()?;
        self.rules.after_rollback(&mut redis, &delivered)
    }

    /// Waits until every partition has been claimed, and a replica knows.
    pub(crate) fn wait_claimed(&mut self) -> anyhow::Result<()> {
        common::wait_until(FAILOVER, "the first claim of every partition", || self.claimed().unwrap_or(false))?;
        if self.plan.sentinel {
            let replicas: u32 = redis::cmd("WAIT").arg(1).arg(10_000).query(&mut self.connect()?)?;
            ensure!(replicas == 1, "the replica is not in step");
        }
        Ok(())
    }

    fn claimed(&self) -> anyhow::Result<bool> {
        let mut redis = self.connect()?;
        for number in 0..self.partitions.load(Ordering::Relaxed) {
            let source = format!("{}source:{}/{number}", self.config.namespace, self.config.kafka.topic);
            if !redis.exists::<_, bool>(source)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Keeps the state as it is, for a later return to it.
    ///
    /// Never one in which a partition has no state that has a committed offset: that is a loss, which a worker
    /// must not overcome by itself.
    pub(crate) fn snapshot(&mut self) -> anyhow::Result<()> {
        if !self.plan.faults.iter().any(|(_, fault)| *fault == Fault::RedisRolledBack) {
            return Ok(());
        }
        let partitions = self.partitions.load(Ordering::Relaxed);
        if self.in_snapshots < partitions {
            for lacking in self.snapshots.drain(..) {
                fs::remove_dir_all(lacking)?;
            }
            if !self.claimed()? {
                return Ok(());
            }
            self.in_snapshots = partitions;
        }
        self.taken += 1;
        let folder = self.kept_in.path().join(self.taken.to_string());
        copy_folder(&self.servers.redis.directory().join(DATA), &folder)?;
        self.snapshots.push_back(folder);
        if self.snapshots.len() > SNAPSHOTS {
            let oldest = self.snapshots.pop_front().context("there are more than none")?;
            fs::remove_dir_all(oldest)?;
        }
        Ok(())
    }

    pub(crate) fn inject(&mut self, fault: Fault) -> anyhow::Result<()> {
        self.notice_failover()?;
        match fault {
            Fault::RedisKilled => {
                self.timeline.injected(fault, "");
                self.servers.redis.kill()?;
                self.pause(0..1_500);
                self.servers.redis.restart()?;
                self.timeline.say("redis is back");
            }
            Fault::ReplicaPromoted => self.promote(fault)?,
            Fault::RedisRolledBack => self.roll_back(fault)?,
            Fault::RedisStalls => {
                let pause = self.rng.random_range(200..2_500);
                self.timeline.injected(fault, &format!("{pause} ms"));
                signal(&self.servers.redis, Signal::STOP)?;
                thread::sleep(Duration::from_millis(pause));
                signal(&self.servers.redis, Signal::CONT)?;
            }
            Fault::RedisBusy => self.busy(fault)?,
            Fault::RedisFull => {
                self.timeline.injected(fault, "");
                self.set("maxmemory", "100kb")?;
                self.pause(200..2_500);
                self.set("maxmemory", "0")?;
                self.timeline.say("redis takes writes again");
            }
            Fault::RedisReadOnly => {
                self.timeline.injected(fault, "");
                let mut redis = self.connect()?;
                // A primary that never answers: its replica takes no writes and keeps what it has.
                redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).exec(&mut redis)?;
                self.pause(200..2_500);
                redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut redis)?;
                self.timeline.say("redis is a primary again");
            }
            Fault::DiskSlow => self.slow_disk(fault)?,
            Fault::ScriptsFlushed => {
                redis::cmd("SCRIPT").arg("FLUSH").exec(&mut self.connect()?)?;
                self.timeline.injected(fault, "");
            }
            Fault::ConnectionsKilled => {
                let killed: u32 = redis::cmd("CLIENT")
                    .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
                    .query(&mut self.connect()?)?;
                self.timeline.injected(fault, &format!("{killed}"));
            }
            Fault::RepliesDelayed => {
                let pause = self.plan.settings.response_timeout.mul_f64(self.rng.random_range(0.5..1.5));
                let Access::Proxy(proxy) = &self.servers.access else { return Ok(()) };
                self.timeline.injected(fault, &format!("{} ms", pause.as_millis()));
                proxy.hold_replies();
                thread::sleep(pause);
                proxy.release();
            }
            Fault::RepliesLost => {
                let pause = Duration::from_millis(self.rng.random_range(5..200));
                let Access::Proxy(proxy) = &self.servers.access else { return Ok(()) };
                self.timeline.injected(fault, "");
                proxy.hold_replies();
                thread::sleep(pause);
                proxy.cut();
                proxy.release();
            }
            Fault::RuleAdded => {
                let mut redis = self.connect()?;
                if let Some(rule) = self.rules.add(&mut redis, &mut self.rng)? {
                    self.timeline.injected(fault, &rule);
                }
            }
            Fault::RuleRemoved => {
                let mut redis = self.connect()?;
                if let Some(rule) = self.rules.remove(&mut redis, &mut self.rng)? {
                    self.timeline.injected(fault, &rule);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The primary dies, perhaps with writes that its replica never had, and comes back as the other's replica.
    fn promote(&mut self, fault: Fault) -> anyhow::Result<()> {
        let behind = self.rng.random_bool(0.5).then(|| Duration::from_millis(self.rng.random_range(50..800)));
        let Access::Sentinel { replica, sentinel } = &mut self.servers.access else { return Ok(()) };
        wait_known(sentinel, replica)?;
        let delivered = self.rules.before_rollback();
        if let Some(behind) = behind {
            signal(replica, Signal::STOP)?;
            thread::sleep(behind);
        }
        self.timeline.injected(fault, &behind.map_or(String::new(), |by| format!("{} ms behind", by.as_millis())));
        self.servers.redis.kill()?;
        signal(replica, Signal::CONT)?;
        common::wait_until(FAILOVER, "the replica to be promoted", || {
            replication(replica, "role").is_ok_and(|role| role == "master")
        })?;
        std::mem::swap(&mut self.servers.redis, replica);
        replica.restart()?;
        follow(replica, &self.servers.redis)?;
        let mut redis = self.connect()?;
        self.rules.after_rollback(&mut redis, &delivered)?;
        self.timeline.say("redis has a primary and a replica again");
        Ok(())
    }

    fn roll_back(&mut self, fault: Fault) -> anyhow::Result<()> {
        self.snapshot()?; // forgets those that lack a partition added since
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let chosen = self.rng.random_range(0..self.snapshots.len());
        self.timeline.injected(fault, &format!("the last but {}", self.snapshots.len() - 1 - chosen));
        let delivered = self.rules.before_rollback();
        self.servers.redis.kill()?;
        let data = self.servers.redis.directory().join(DATA);
        fs::remove_dir_all(&data)?;
        copy_folder(&self.snapshots[chosen], &data)?;
        // What is newer than that never was.
        for never in self.snapshots.drain(chosen + 1..) {
            fs::remove_dir_all(never)?;
        }
        self.servers.redis.restart()?;
        let mut redis = self.connect()?;
        self.rules.after_rollback(&mut redis, &delivered)?;
        self.timeline.say("redis is back");
        Ok(())
    }

    fn busy(&mut self, fault: Fault) -> anyhow::Result<()> {
        const THRESHOLD: &str = "busy-reply-threshold";
        self.set(THRESHOLD, "50")?;
        let url = self.servers.redis.url();
        let mut redis = common::connect(&url)?;
        let looping = thread::spawn(move || -> anyhow::Result<()> {
            let mut redis = common::connect(&url)?;
            let ended = redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut redis);
            ensure!(ended.is_err(), "a script without end ended");
            Ok(())
        });
        self.timeline.injected(fault, "");
        self.pause(200..2_500);
        // Refused as long as the script has not begun.
        common::wait_until(Duration::from_secs(20), "the script to be killed", || {
            redis::cmd("SCRIPT").arg("KILL").exec(&mut redis).is_ok() || looping.is_finished()
        })?;
        looping.join().expect("the connection's thread does not panic")?;
        self.set(THRESHOLD, "5000")?; // Redis's own: a machine under load makes an honest script take 50 ms
        self.timeline.say("redis is free again");
        Ok(())
    }

    fn slow_disk(&mut self, fault: Fault) -> anyhow::Result<()> {
        const BLOCK: usize = 4 << 20;
        self.timeline.injected(fault, "");
        self.set("appendfsync", "always")?;
        let until = Instant::now() + Duration::from_millis(self.rng.random_range(500..2_500));
        let path = self.servers.redis.directory().join("ballast");
        let mut file = fs::File::create(&path)?;
        let block = vec![0x5a; BLOCK];
        while Instant::now() < until {
            for _ in 0..8 {
                file.write_all(&block)?;
            }
            file.sync_data()?;
            file.set_len(0)?;
        }
        fs::remove_file(path)?;
        self.set("appendfsync", "no")
    }

    fn set(&self, name: &str, value: &str) -> anyhow::Result<()> {
        redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec(&mut self.connect()?)?;
        Ok(())
    }

    fn pause(&mut self, milliseconds: std::ops::Range<u64>) {
        thread::sleep(Duration::from_millis(self.rng.random_range(milliseconds)));
    }
}

fn signal(redis: &Redis, signal: Signal) -> anyhow::Result<()> {
    let pid = Pid::from_raw(redis.pid() as i32).context("a process has an id")?;
    Ok(kill_process(pid, signal)?)
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
