//! What befalls Redis, and the rules in it.

use std::collections::VecDeque;
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
use tickwatch::config::Config;
use tickwatch::sandbox::Redis;

use crate::common;
use crate::plan::{Fault, Plan, rng};
use crate::proxy::Proxy;
use crate::rules::LiveRules;
use crate::timeline::Timeline;

/// How many older states Redis may come back to.
const SNAPSHOTS: usize = 5;

/// The folder of the append-only file.
const DATA: &str = "appendonlydir";

pub(crate) struct RedisLane<'a> {
    plan: &'a Plan,
    config: &'a Config,
    timeline: &'a Timeline,
    rng: StdRng,
    redis: Redis,
    proxy: Proxy,
    snapshots: VecDeque<PathBuf>,
    kept_in: TempDir,
    taken: usize,
    /// Of which all are claimed in each snapshot.
    partitions: &'a AtomicI32,
    claimed: i32,
    pub(crate) rules: LiveRules<'a>,
}

impl<'a> RedisLane<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        config: &'a Config,
        timeline: &'a Timeline,
        (redis, proxy): (Redis, Proxy),
        partitions: &'a AtomicI32,
    ) -> anyhow::Result<RedisLane<'a>> {
        Ok(RedisLane {
            plan,
            config,
            timeline,
            rng: rng(plan.seed, 5),
            redis,
            proxy,
            snapshots: VecDeque::new(),
            kept_in: tempfile::Builder::new().prefix("tickwatch-snapshots-").tempdir()?,
            taken: 0,
            partitions,
            claimed: 0,
            rules: LiveRules::new(plan, config),
        })
    }

    /// A connection that does not go through the proxy.
    pub(crate) fn connect(&self) -> anyhow::Result<redis::Connection> {
        common::connect(&self.redis.url())
    }

    /// Keeps the state as it is, for a later return to it.
    ///
    /// Never one in which a partition has no state that has a committed offset: that is a loss, which a worker
    /// must not overcome by itself.
    pub(crate) fn snapshot(&mut self) -> anyhow::Result<()> {
        let partitions = self.partitions.load(Ordering::Relaxed);
        if self.claimed < partitions {
            self.snapshots.clear();
            let mut redis = self.connect()?;
            for number in 0..partitions {
                let source = format!("{}source:{}/{number}", self.config.namespace, self.config.kafka.topic);
                if !redis.exists::<_, bool>(source)? {
                    return Ok(());
                }
            }
            self.claimed = partitions;
        }
        self.taken += 1;
        let folder = self.kept_in.path().join(self.taken.to_string());
        copy_folder(&self.redis.directory().join(DATA), &folder)?;
        self.snapshots.push_back(folder);
        if self.snapshots.len() > SNAPSHOTS {
            let oldest = self.snapshots.pop_front().context("there are more than none")?;
            fs::remove_dir_all(oldest)?;
        }
        Ok(())
    }

    pub(crate) fn inject(&mut self, fault: Fault) -> anyhow::Result<()> {
        match fault {
            Fault::RedisKilled => {
                self.timeline.injected(fault, "");
                self.redis.kill()?;
                self.pause(0..1_500);
                self.redis.restart()?;
                self.timeline.say("redis is back");
            }
            Fault::RedisRolledBack => self.roll_back(fault)?,
            Fault::RedisStalls => {
                let pause = self.rng.random_range(200..2_500);
                self.timeline.injected(fault, &format!("{pause} ms"));
                self.signal(Signal::STOP)?;
                thread::sleep(Duration::from_millis(pause));
                self.signal(Signal::CONT)?;
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
                self.timeline.injected(fault, &format!("{} ms", pause.as_millis()));
                self.proxy.hold();
                thread::sleep(pause);
                self.proxy.release();
            }
            Fault::RepliesLost => {
                self.timeline.injected(fault, "");
                self.proxy.hold();
                self.pause(5..200);
                self.proxy.cut();
                self.proxy.release();
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

    fn roll_back(&mut self, fault: Fault) -> anyhow::Result<()> {
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let chosen = self.rng.random_range(0..self.snapshots.len());
        self.timeline.injected(fault, &format!("the last but {}", self.snapshots.len() - 1 - chosen));
        let delivered = self.rules.before_rollback();
        self.redis.kill()?;
        let data = self.redis.directory().join(DATA);
        fs::remove_dir_all(&data)?;
        copy_folder(&self.snapshots[chosen], &data)?;
        // What is newer than that never was.
        for never in self.snapshots.drain(chosen + 1..) {
            fs::remove_dir_all(never)?;
        }
        self.redis.restart()?;
        let mut redis = self.connect()?;
        self.rules.after_rollback(&mut redis, &delivered)?;
        self.timeline.say("redis is back");
        Ok(())
    }

    fn busy(&mut self, fault: Fault) -> anyhow::Result<()> {
        let mut redis = self.connect()?;
        self.set("busy-reply-threshold", "50")?;
        let port = self.redis.port();
        let looping = thread::spawn(move || -> anyhow::Result<()> {
            let mut redis = common::connect(&format!("redis://127.0.0.1:{port}"))?;
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
        self.timeline.say("redis is free again");
        Ok(())
    }

    fn slow_disk(&mut self, fault: Fault) -> anyhow::Result<()> {
        const BLOCK: usize = 4 << 20;
        self.timeline.injected(fault, "");
        self.set("appendfsync", "always")?;
        let until = Instant::now() + Duration::from_millis(self.rng.random_range(500..2_500));
        let path = self.redis.directory().join("ballast");
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

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.redis.pid() as i32).context("a process has an id")?;
        Ok(kill_process(pid, signal)?)
    }

    fn pause(&mut self, milliseconds: std::ops::Range<u64>) {
        thread::sleep(Duration::from_millis(self.rng.random_range(milliseconds)));
    }
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
