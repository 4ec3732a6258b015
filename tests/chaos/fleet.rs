//! The workers of a run, and what befalls them.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use rand::RngExt as _;
use rand::rngs::StdRng;
use tickwatch::config::Config;

use crate::common::worker::Worker;
use crate::plan::{Fault, Plan, rng};
use crate::proxy::Proxy;
use crate::timeline::Timeline;

/// A worker that was told to end may finish what is in flight, and wait for a broker that is away.
const END_PATIENCE: Duration = Duration::from_secs(90);

/// What a worker says once it is a member; before, an unreachable server may end its start.
const RUNS: &str = "worker started";

/// A worker and its way to Kafka.
struct Member<'a> {
    worker: Worker,
    relay: &'a Proxy,
}

pub(crate) struct Fleet<'a> {
    plan: &'a Plan,
    config: &'a Config,
    timeline: &'a Timeline,
    rng: StdRng,
    workers: Vec<Member<'a>>,
    /// To Kafka, one for each worker there can be.
    relays: &'a [Proxy],
    /// Where logs of ended workers are kept.
    logs: &'a Path,
}

impl<'a> Fleet<'a> {
    pub(crate) fn start(
        plan: &'a Plan,
        config: &'a Config,
        timeline: &'a Timeline,
        relays: &'a [Proxy],
        logs: &'a Path,
    ) -> anyhow::Result<Fleet<'a>> {
        let workers = Vec::new();
        let mut fleet = Fleet { plan, config, timeline, rng: rng(plan.seed, 3), workers, relays, logs };
        for _ in 0..plan.workers {
            fleet.join()?;
        }
        for worker in &mut fleet.workers {
            worker.worker.wait_ready()?;
        }
        Ok(fleet)
    }

    fn join(&mut self) -> anyhow::Result<()> {
        let is_free = |relay: &&Proxy| !self.workers.iter().any(|member| std::ptr::eq(member.relay, *relay));
        let relay = self.relays.iter().find(is_free).context("no more workers than relays")?;
        let mut config = self.config.clone();
        config.kafka.brokers = relay.address().to_string();
        self.workers.push(Member { worker: Worker::start(&config)?, relay });
        Ok(())
    }

    pub(crate) fn inject(&mut self, fault: Fault) -> anyhow::Result<()> {
        self.tend()?;
        // In a long run the first worker stays, for its memory to be looked at.
        let victim = self.rng.random_range(usize::from(self.plan.soak)..self.workers.len());
        let pid = self.workers[victim].worker.pid();
        match fault {
            Fault::WorkerKilled => {
                self.timeline.injected(fault, &format!("process {pid}"));
                self.workers[victim].worker.kill()?;
                self.bury(victim)?;
                thread::sleep(Duration::from_millis(self.rng.random_range(0..1_500)));
                self.join()?;
            }
            Fault::AllWorkersKilled => {
                self.timeline.injected(fault, "");
                let count = self.workers.len();
                for _ in 0..count {
                    self.workers[0].worker.kill()?;
                    self.bury(0)?;
                }
                thread::sleep(Duration::from_millis(self.rng.random_range(0..1_500)));
                for _ in 0..count {
                    self.join()?;
                }
            }
            Fault::WorkerFrozen => {
                let beyond = Duration::from_millis(self.rng.random_range(1_000..4_000));
                self.freeze(fault, victim, self.plan.settings.session + beyond)?;
            }
            Fault::WorkerCutOff => {
                let beyond = Duration::from_millis(self.rng.random_range(1_000..4_000));
                let (relay, pause) = (self.workers[victim].relay, self.plan.settings.session + beyond);
                self.timeline.injected(fault, &format!("process {pid} for {} ms", pause.as_millis()));
                relay.hold_all();
                thread::sleep(pause);
                if self.rng.random_bool(0.3) {
                    relay.cut(); // what waited never arrives
                }
                relay.release();
                self.timeline.say(format!("process {pid} reaches kafka again"));
            }
            Fault::WorkerPaused => {
                let pause = self.plan.settings.session.mul_f64(self.rng.random_range(0.1..0.7));
                self.freeze(fault, victim, pause)?;
            }
            Fault::WorkerLeaves => {
                self.timeline.injected(fault, &format!("process {pid}"));
                self.end(victim)?;
                if self.workers.len() < 2 {
                    self.join()?;
                }
            }
            Fault::WorkerJoins if self.workers.len() < self.relays.len() => {
                self.timeline.injected(fault, "");
                self.join()?;
            }
            _ => {}
        }
        Ok(())
    }

    fn freeze(&mut self, fault: Fault, victim: usize, pause: Duration) -> anyhow::Result<()> {
        let pid = self.workers[victim].worker.pid();
        self.timeline.injected(fault, &format!("process {pid} for {} ms", pause.as_millis()));
        self.workers[victim].worker.pause()?;
        thread::sleep(pause);
        self.workers[victim].worker.cont()?;
        self.timeline.say(format!("process {pid} goes on"));
        Ok(())
    }

    /// The process that was started first, as long as nothing befalls it.
    pub(crate) fn first(&self) -> Option<u32> {
        self.workers.first().map(|member| member.worker.pid())
    }

    /// Starts a worker again that could not start, as a service manager does. A worker that ran never ends by itself.
    pub(crate) fn tend(&mut self) -> anyhow::Result<()> {
        for number in (0..self.workers.len()).rev() {
            let Some(status) = self.workers[number].worker.exit_status()? else { continue };
            let pid = self.workers[number].worker.pid();
            if self.workers[number].worker.logs().contains(RUNS) {
                self.timeline.complain(format!("process {pid} ended by itself ({status})"));
            }
            self.bury(number)?;
            self.join()?;
        }
        Ok(())
    }

    /// Tells a worker to end, and waits until it has.
    fn end(&mut self, number: usize) -> anyhow::Result<()> {
        let worker = &mut self.workers[number].worker;
        let (pid, ran) = (worker.pid(), worker.logs().contains(RUNS));
        worker.terminate()?;
        match worker.wait(END_PATIENCE) {
            Ok(status) if status.success() || !ran => {}
            Ok(status) => self.timeline.complain(format!("process {pid}, told to end, ended with {status}")),
            Err(_) => {
                let patience = END_PATIENCE.as_secs();
                self.timeline.complain(format!("process {pid} did not end within {patience} s"));
                self.workers[number].worker.kill()?;
            }
        }
        self.bury(number)
    }

    /// Tells all to end.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        while !self.workers.is_empty() {
            self.end(0)?;
        }
        Ok(())
    }

    /// Keeps an ended worker's log, and looks at it.
    fn bury(&mut self, number: usize) -> anyhow::Result<()> {
        let worker = self.workers.remove(number).worker;
        let (pid, log) = (worker.pid(), worker.logs());
        for line in log.lines().filter(|line| line.contains("panicked")) {
            self.timeline.complain(format!("process {pid}: {line}"));
        }
        std::fs::write(self.logs.join(format!("worker-{pid}.log")), log)?;
        Ok(())
    }

    /// Keeps the logs of those that run.
    pub(crate) fn keep_logs(&self) -> anyhow::Result<()> {
        for Member { worker, .. } in &self.workers {
            std::fs::write(self.logs.join(format!("worker-{}.log", worker.pid())), worker.logs())?;
        }
        Ok(())
    }
}
