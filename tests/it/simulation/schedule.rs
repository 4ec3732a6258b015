//! A schedule: the log grows, faults strike, the operator answers what stops, somebody takes a step; then the faults
//! end, and it has to come to rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::bail;
use tickwatch::config::{BadRecords, Guarantee, OnGap, OnOffsetsLost, OnStateLoss, OnTruncation, RecoveryConfig};
use tickwatch::domain::{Offset, Position};
use tickwatch::worker::machine::Machine;
use tickwatch::worker::protocol::{Command, Committed, Event};

use super::broken::Broken;
use super::dice::Dice;
use super::kafka::Kafka;
use super::log::Topic;
use super::oracle::Key;
use super::plan::{Fault, Plan};
use super::redis::{Era, GROUP, Store};
use super::shell::{Flight, Worker};
use super::tally::{Seen, Tally};

/// One source partition, outside of Redis.
pub(super) struct Part {
    /// Every incarnation of its topic; the last is there now.
    pub(super) topics: Vec<Topic>,
    pub(super) kafka: Kafka,
    /// The worker that the group has assigned it to.
    pub(super) owner: usize,
    /// The policies, as the operator has set them by now.
    pub(super) recovery: RecoveryConfig,
    /// States that will not come back, oldest first.
    pub(super) eras: Vec<Era>,
    /// What was delivered when the topic was made again.
    pub(super) before_made_again: Position,
    /// What a former owner committed of a state of an earlier era: it covers what the present one would make anew.
    pub(super) from_before: Position,
    /// Outputs that may be sent so many times more, as the committed offset was lost.
    pub(super) repeatable: BTreeMap<(usize, Key), usize>,
    /// Incarnation, and the offsets whose bad records nobody may know of.
    pub(super) letters_at_risk: Vec<(usize, i64, i64)>,
    /// A script call is to fail in a way it should not.
    pub(super) script_fails: bool,
    pub(super) rolled_back: bool,
    pub(super) rebuilt: bool,
    pub(super) generation_lost: bool,
    /// A state was made anew from less than what was sent.
    pub(super) fragments: bool,
}

/// Redis refuses calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusing {
    pub(super) words: &'static str,
    /// Reads go through.
    pub(super) reads: bool,
    pub(super) until: usize,
}

pub(super) struct Simulation {
    pub(super) dice: Dice,
    pub(super) plan: Plan,
    pub(super) broken: Broken,
    pub(super) trace: bool,
    pub(super) now: u64,
    pub(super) step: usize,
    /// Faults are drawn.
    pub(super) faults: bool,
    pub(super) parts: Vec<Part>,
    pub(super) store: Store,
    pub(super) workers: Vec<Worker>,
    pub(super) flights: Vec<Flight>,
    pub(super) refusing: Option<Refusing>,
    /// A partition that goes to another worker just before its owner claims: where all workers start anew, the group
    /// moves partitions to and fro.
    pub(super) about_to_move: Option<usize>,
    /// That owner: it goes on, as a zombie, once another has started the topic over.
    pub(super) asleep: Option<usize>,
    /// A zombie, and how many steps it still takes in one go.
    pub(super) awake: Option<(usize, usize)>,
    pub(super) tokens: u128,
    processes: usize,
    seed: u64,
    pub(super) tally: Tally,
    /// Faults so far, each with its step.
    pub(super) struck: Vec<(usize, String)>,
    /// What must not be, with the step at which it was seen first.
    pub(super) violation: Option<(usize, String)>,
}

/// Steps with faults, and steps within which it has to come to rest after them.
const STEPS: usize = 220;
const STEPS_TO_REST: usize = 6_000;

/// A graceful stop may take so many steps.
const STEPS_TO_STOP: usize = 100;

impl Simulation {
    pub(super) fn new(seed: u64, guarantee: Guarantee, broken: Broken, trace: bool) -> Simulation {
        let mut plan = Plan::of(seed, guarantee);
        if !broken.goes_with_updates() {
            plan.update_interval = None;
        }
        let parts = (0..plan.partitions)
            .map(|part| {
                let mut topic = Topic::generate(&mut Dice::new(seed, 10 + part as u64), 0, plan.length);
                topic.written = plan.stop_at.unwrap_or(0);
                Part {
                    topics: vec![topic],
                    kafka: Kafka::default(),
                    owner: 0,
                    recovery: plan.recovery.clone(),
                    eras: Vec::new(),
                    before_made_again: Kafka::default().truth,
                    from_before: Kafka::default().truth,
                    repeatable: BTreeMap::new(),
                    letters_at_risk: Vec::new(),
                    script_fails: false,
                    rolled_back: false,
                    rebuilt: false,
                    generation_lost: false,
                    fragments: false,
                }
            })
            .collect();
        let mut simulation = Simulation {
            dice: Dice::new(seed, 2),
            store: Store::new(&plan, broken),
            plan,
            broken,
            trace,
            now: 0,
            step: 0,
            faults: true,
            parts,
            workers: Vec::new(),
            flights: Vec::new(),
            refusing: None,
            about_to_move: None,
            asleep: None,
            awake: None,
            tokens: 0,
            processes: 0,
            seed,
            tally: Tally::default(),
            struck: Vec::new(),
            violation: None,
        };
        for part in 0..simulation.parts.len() {
            simulation.start_worker(part);
        }
        simulation
    }

    /// Goes through the schedule, to the end or to the first violation.
    pub(super) fn run(&mut self) -> anyhow::Result<()> {
        while self.step < STEPS && self.violation.is_none() {
            self.grow_logs();
            self.draw_fault();
            self.operate();
            self.act();
            self.step += 1;
        }
        self.end_faults();
        while self.step < STEPS + STEPS_TO_REST && self.violation.is_none() {
            self.operate();
            self.act();
            self.step += 1;
            if (0..self.parts.len()).all(|part| self.is_at_rest(part)) {
                break;
            }
        }
        if let Some((step, violation)) = &self.violation {
            bail!("step {step}: {violation}{}", self.faults_before(*step));
        }
        if self.step == STEPS + STEPS_TO_REST {
            let part = (0..self.parts.len()).find(|part| !self.is_at_rest(*part)).unwrap_or(0);
            bail!(
                "partition {part} did not come to rest: {:?}, state {:?}, due {:?}, committed {:?}{}",
                self.workers[self.parts[part].owner].machine.snapshot(),
                self.store.source(part).state.position,
                self.store.source(part).state.due.first(),
                self.parts[part].kafka.committed,
                self.faults_before(self.step),
            );
        }
        Ok(())
    }

    /// The topic as it is now.
    pub(super) fn topic(&self, part: usize) -> &Topic {
        self.parts[part].topics.last().expect("a partition has a topic")
    }

    fn grow_logs(&mut self) {
        for part in &mut self.parts {
            let topic = part.topics.last_mut().expect("a partition has a topic");
            let length = topic.length();
            if topic.written < length && self.dice.percent(15) {
                topic.written = length.min(topic.written + self.dice.between(1, 6));
            }
            if topic.stable < topic.written && self.dice.percent(15) {
                topic.stable = self.dice.between(topic.stable, topic.written + 1);
            }
        }
    }

    // ---- faults

    fn draw_fault(&mut self) {
        if let Some(worker) = self.asleep
            && self.store.source(self.workers[worker].part).generation > 0
            && self.dice.percent(8)
        {
            self.asleep = None;
            self.awake = Some((worker, 15));
        }
        let mut roll = self.dice.below(1_000);
        for number in 0..self.plan.faults.len() {
            let (fault, rate) = self.plan.faults[number];
            if roll < rate {
                let part = self.dice.below(self.parts.len());
                return self.strike(fault, part);
            }
            roll -= rate;
        }
    }

    pub(super) fn strike(&mut self, fault: Fault, part: usize) {
        let struck = match fault {
            Fault::Zombie => {
                self.start_worker(part);
                true
            }
            Fault::Kill => {
                self.kill_process(self.workers[self.parts[part].owner].process);
                true
            }
            Fault::Stop => self.stop(part),
            Fault::Rollback => self.roll_back(part),
            Fault::Flush => self.flush(),
            Fault::Refuse => {
                let (words, reads) =
                    self.dice.pick(&[("OOM", true), ("READONLY", true), ("BUSY", false), ("LOADING", false)]);
                let until = self.step + 5 + self.dice.below(30);
                self.refusing = Some(Refusing { words, reads, until });
                true
            }
            Fault::OffsetsGone | Fault::OffsetsUnreadable => self.lose_offsets(fault, part),
            Fault::Retention => self.delete_head(part),
            Fault::MadeAgain => self.make_again(part),
            Fault::ScriptError => {
                self.parts[part].script_fails = true;
                true
            }
            Fault::ProduceError => {
                let owner = self.parts[part].owner;
                self.workers[owner].unsendable = true;
                true
            }
            Fault::Intruder => self.intrude(part),
            Fault::ClockRuns => {
                self.now += self.dice.between(0, 3_000) as u64;
                true
            }
        };
        if struck {
            self.seen(Seen::of(fault));
            self.history(format!("{fault:?}, partition {part}"));
        }
    }

    fn stop(&mut self, part: usize) -> bool {
        let owner = self.parts[part].owner;
        if self.workers[owner].stopping_since.is_some() || !self.workers[owner].alive {
            return false;
        }
        self.workers[owner].stopping_since = Some(self.step);
        let attempt = self.workers[owner].machine.attempt();
        self.hear(owner, attempt, Event::Stop);
        self.look_at(owner);
        true
    }

    fn roll_back(&mut self, part: usize) -> bool {
        if self.store.writes() == 0 {
            return false;
        }
        let between_pages = self.store.source(part).is_due();
        let back = if self.dice.percent(50) { 1 } else { 1 + self.dice.below(self.store.writes()) };
        let changed = self.store.roll_back(back);
        if between_pages && self.store.source(part).is_due() {
            self.seen(Seen::RollbackBetweenPages);
        }
        if changed.len() > 1 {
            self.seen(Seen::RollbackOfTwo);
        }
        for part in changed {
            self.parts[part].rolled_back = true;
        }
        if self.trace {
            let position = self.store.source(part).state.position;
            self.note(&format!("Redis comes back {back} writes ago, at {position:?}"));
        }
        true
    }

    /// Whether a partition's topic was made again and its state is still of the one before.
    fn is_made_again(&self, part: usize) -> bool {
        let source = self.store.source(part);
        source.claimed && source.topic + 1 < self.parts[part].topics.len()
    }

    fn flush(&mut self) -> bool {
        // A topic that was made again is recognised by the state of before.
        if (0..self.parts.len()).any(|part| self.is_made_again(part)) || !self.store.source(0).claimed {
            return false;
        }
        self.store.flush(self.plan.poisoned);
        // Rules are the users' own: they have them elsewhere, and put them back at once, or when they are asked to.
        let rebuilds = self.parts.iter().all(|part| part.recovery.on_state_loss == OnStateLoss::Rebuild);
        self.store.rules_gone = rebuilds && self.dice.percent(50);
        true
    }

    fn lose_offsets(&mut self, fault: Fault, part: usize) -> bool {
        let kafka = &mut self.parts[part].kafka;
        let Committed::At(position) = kafka.committed else { return false };
        // Lost together with the state they are no loss that anybody can see: it is a first start.
        if !self.store.source(part).claimed || position == Kafka::default().truth {
            return false;
        }
        kafka.committed = match fault {
            Fault::OffsetsGone => Committed::None,
            _ => Committed::Unreadable(position.offset, "a tool".into()),
        };
        true
    }

    fn delete_head(&mut self, part: usize) -> bool {
        if self.is_made_again(part) {
            return false; // the record that says so would be gone
        }
        let topic = self.parts[part].topics.last_mut().expect("a partition has a topic");
        if topic.start >= topic.stable {
            return false;
        }
        topic.start = self.dice.between(topic.start + 1, topic.stable + 1);
        true
    }

    /// Everybody is stopped, the topic is deleted and made again, and workers start. What was applied last has to be
    /// recognisable: a topic whose records are not there to be compared looks like one that was compacted.
    fn make_again(&mut self, part: usize) -> bool {
        let source = self.store.source(part);
        let (Some(mark), false) = (source.state.last_record, self.is_made_again(part)) else { return false };
        if !source.claimed
            || self.parts[part].topics.len() == 3
            || matches!(self.parts[part].kafka.committed, Committed::None)
        {
            return false;
        }
        let (seed, number) = (self.seed, self.parts[part].topics.len());
        let mut dice = Dice::new(seed, 100 + (number * 2 + part) as u64);
        let mut topic = Topic::generate(&mut dice, number, self.plan.length);
        if topic.is_gap(mark.offset.0) {
            return false;
        }
        topic.written = self.dice.between(0, topic.length() + 1);
        topic.stable = self.dice.between(0, topic.written + 1);
        for worker in 0..self.workers.len() {
            if self.workers[worker].part == part {
                self.workers[worker].alive = false;
            }
        }
        let workers = &self.workers;
        self.flights.retain(|flight| workers[flight.worker].part != part);
        let it = &mut self.parts[part];
        it.before_made_again = it.kafka.truth;
        it.topics.push(topic);
        if self.dice.percent(30) {
            it.kafka.committed = Committed::None; // the group's offsets went with it
        }
        self.store.forget_the_past();
        self.start_worker(part);
        if self.dice.percent(70) {
            self.about_to_move = Some(part);
        }
        true
    }

    fn intrude(&mut self, part: usize) -> bool {
        if !self.store.group_is_known() || self.workers.iter().any(|worker| worker.foreign && worker.alive) {
            return false;
        }
        let recovery = self.parts[part].recovery.clone();
        self.start_machine(part, true, recovery);
        true
    }

    fn end_faults(&mut self) {
        self.note("the faults end");
        self.history("the faults end".into());
        self.faults = false;
        self.refusing = None;
        for part in 0..self.parts.len() {
            self.parts[part].script_fails = false;
            let topic = self.parts[part].topics.last_mut().expect("a partition has a topic");
            topic.written = topic.length();
            topic.stable = topic.written;
        }
        for worker in 0..self.workers.len() {
            let it = &mut self.workers[worker];
            it.unsendable = false;
            let (part, stopping, foreign) = (it.part, it.stopping_since.is_some(), it.foreign);
            let is_owner = worker == self.parts[part].owner;
            if foreign {
                continue; // it has to learn that the namespace is not its own
            }
            if !is_owner || stopping {
                self.end_machine(worker);
            }
            if is_owner && stopping {
                self.start_worker(part);
            }
        }
    }

    // ---- workers

    /// The group assigns the partition to a worker: a new one, or one that has the other partition.
    pub(super) fn start_worker(&mut self, part: usize) {
        let recovery = self.parts[part].recovery.clone();
        let worker = self.start_machine(part, false, recovery);
        self.parts[part].owner = worker;
        let other = (0..self.parts.len()).find(|other| *other != part);
        if let Some(owner) = other.map(|other| self.parts[other].owner)
            && owner != worker
            && self.workers[owner].alive
            && self.dice.percent(50)
        {
            self.workers[worker].process = self.workers[owner].process;
        }
        self.hear(worker, 0, Event::Start);
    }

    fn start_machine(&mut self, part: usize, foreign: bool, recovery: RecoveryConfig) -> usize {
        let worker = self.workers.len();
        self.note(&format!("start {worker}"));
        self.processes += 1;
        let settings = self.plan.settings(if foreign { "other group" } else { GROUP }, &recovery);
        let machine = Machine::new(Arc::new(settings));
        self.workers.push(Worker::new(part, self.processes, foreign, machine, recovery));
        if foreign {
            self.hear(worker, 0, Event::Start);
        }
        worker
    }

    fn kill_process(&mut self, process: usize) {
        let mut orphans = Vec::new();
        for worker in 0..self.workers.len() {
            if self.workers[worker].process == process && self.workers[worker].alive {
                self.note(&format!("kill {worker}"));
                self.end_machine(worker);
                if self.parts[self.workers[worker].part].owner == worker {
                    orphans.push(self.workers[worker].part);
                }
            }
        }
        if orphans.len() > 1 {
            self.seen(Seen::KillOfTwo);
        }
        for part in orphans {
            self.start_worker(part);
        }
    }

    /// A machine ends. Some of what it has asked for is done nevertheless.
    pub(super) fn end_machine(&mut self, worker: usize) {
        self.workers[worker].alive = false;
        let (flights, dice) = (&mut self.flights, &mut self.dice);
        flights.retain_mut(|flight| {
            flight.given_up |= flight.worker == worker;
            flight.worker != worker || (flight.answer.is_none() && dice.percent(50))
        });
    }

    // ---- the operator

    /// Somebody answers what stopped: by the policy that lets it go on, by mending what is broken, or by a restart
    /// that changes nothing.
    fn operate(&mut self) {
        for part in 0..self.parts.len() {
            let owner = self.parts[part].owner;
            let stopping =
                self.workers[owner].stopping_since.is_some_and(|since| self.step > since + STEPS_TO_STOP);
            if stopping {
                self.kill_process(self.workers[owner].process);
            }
            if let Some(kind) = self.workers[owner].stopped
                && (!self.faults || self.dice.percent(5))
            {
                if !self.faults || self.dice.percent(85) {
                    self.mend(part, kind);
                }
                self.note(&format!("the operator answers {kind}"));
                self.end_machine(owner);
                self.start_worker(part);
            }
        }
    }

    fn mend(&mut self, part: usize, kind: &str) {
        match kind {
            "state_loss" if self.dice.percent(30) && self.store.bring_back() => self.seen(Seen::DataBroughtBack),
            "state_loss" if self.parts[part].recovery.on_state_loss == OnStateLoss::Stop => {
                let policy = self.dice.pick(&[OnStateLoss::Rebuild, OnStateLoss::Resume]);
                self.parts[part].recovery.on_state_loss = policy;
            }
            "state_loss" => self.store.rules_gone = false,
            "offsets_lost" if self.dice.percent(30) && !self.is_made_again(part) => {
                let truth = self.parts[part].kafka.truth;
                self.parts[part].kafka.committed = Committed::At(truth);
                self.seen(Seen::OffsetsPutBack);
            }
            "offsets_lost" => self.parts[part].recovery.on_offsets_lost = OnOffsetsLost::Resume,
            "gap" => self.parts[part].recovery.on_gap = OnGap::Continue,
            "truncation" => self.parts[part].recovery.on_truncation = OnTruncation::Reset,
            "bad_record" => self.parts[part].recovery.bad_records = BadRecords::DeadLetter,
            _ => {} // what failed was mended outside
        }
    }

    // ---- rest

    pub(super) fn end(&self, part: usize) -> i64 {
        self.plan.stop_at.unwrap_or(self.topic(part).length())
    }

    fn is_at_rest(&self, part: usize) -> bool {
        let source = self.store.source(part);
        let state = &source.state;
        if state.position.offset.0 < self.end(part)
            || self.is_made_again(part)
            || self.flights.iter().any(|flight| {
                !flight.given_up
                    && !self.workers[flight.worker].foreign
                    && self.workers[flight.worker].part == part
                    && !matches!(flight.command, Command::Heartbeat(..))
            })
        {
            return false;
        }
        let snapshot = self.workers[self.parts[part].owner].machine.snapshot();
        let outbox = &state.outbox;
        // A Redis that came back as it was before a trim holds again what was delivered, until the next one.
        let nothing_pending = outbox.is_empty()
            || (self.parts[part].rolled_back && outbox.iter().all(|entry| entry.is_delivered(snapshot.delivered)));
        snapshot.position == Some(state.position)
            && snapshot.delivered >= state.position
            && snapshot.undelivered == 0
            && nothing_pending
            && (state.changed.is_empty() || self.plan.stop_at.is_some())
            && state.due.first().is_none_or(|due| !self.plan.silence && !state.position.watermark.passes(due.end))
            && (self.plan.stop_at.is_none() || snapshot.finished)
            && !self.workers.iter().any(Worker::is_intruding)
    }

    // ---- notes

    pub(super) fn seen(&mut self, seen: Seen) {
        self.tally.count(seen);
    }

    /// What must not be. The first one counts.
    pub(super) fn violated(&mut self, text: &str) {
        self.note(&format!("VIOLATED: {text}"));
        if self.violation.is_none() {
            self.violation = Some((self.step, text.to_owned()));
        }
    }

    pub(super) fn history(&mut self, text: String) {
        self.struck.push((self.step, text));
    }

    /// What went wrong before a step, the last of it first.
    pub(super) fn faults_before(&self, step: usize) -> String {
        let before: Vec<&(usize, String)> = self.struck.iter().filter(|(at, _)| *at <= step).collect();
        let lines: Vec<String> =
            before.iter().rev().take(6).map(|(at, text)| format!("\n  step {at}: {text}")).collect();
        if lines.is_empty() {
            "; no fault before it".into()
        } else {
            format!("; faults before it, the last first:{}", lines.concat())
        }
    }

    pub(super) fn note(&self, text: &str) {
        if self.trace {
            let topic = self.topic(0);
            println!("{:>5} {:>7} {:>2}/{:<2} {text}", self.step, self.now, topic.stable, topic.written);
        }
    }

    pub(super) fn start_of_log(&self, part: usize) -> Offset {
        Offset(self.topic(part).start)
    }
}
