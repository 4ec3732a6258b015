//! Random schedules of the protocol of one source partition: the state machine of the product, events in and commands
//! out, against Redis and Kafka in memory.
//!
//! What a seed may do: kill an owner, or let it go on as a zombie after another has claimed; stop one gracefully; bring
//! Redis back as it was some writes ago; lose a reply, or run a call only after it was given up; commit with an unknown
//! outcome; leave gaps in the log and transactions of others open; let the clock run. Afterwards the faults end, and
//! the state and everything sent must be what the log means.
//!
//! `TW_TEST_SIM_SEED=<seed>` runs one schedule again and prints it; `TW_TEST_SIM_SCHEDULES=<n>` runs more.

mod log;
mod oracle;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use rand::RngExt as _;
use rand::rngs::StdRng;
use tickwatch::config::{Guarantee, LatePolicy, OnStateLoss, RecoveryConfig};
use tickwatch::domain::reference::Status;
use tickwatch::domain::{Offset, Position, Price, Watermark};
use tickwatch::store::scripts::Token;
use tickwatch::worker::batching::BatchSettings;
use tickwatch::worker::machine::{Machine, Phase};
use tickwatch::worker::protocol::{Command, Committed, Event, Failure, Notice, Settings};

use crate::harness::{Case, Needs, Stage, cases};
use log::{BEGIN, Slot};
use oracle::{Key, Meaning, Oracle, SimCandle};
use world::{Kafka, Store};

pub(crate) fn cases() -> Vec<Case> {
    cases![Needs::Nothing;
        at_least_once_holds_under_every_schedule,
        exactly_once_holds_under_every_schedule,
        a_protocol_that_lacks_a_rule_is_caught,
    ]
}

/// Schedules of each guarantee that a run of the tests goes through.
const SCHEDULES: u64 = 600;

/// Schedules within which the lack of a rule has to show.
const SCHEDULES_TO_CATCH: u64 = 3_000;

fn at_least_once_holds_under_every_schedule(_: &Stage) -> anyhow::Result<()> {
    run_schedules(Guarantee::AtLeastOnce)
}

fn exactly_once_holds_under_every_schedule(_: &Stage) -> anyhow::Result<()> {
    run_schedules(Guarantee::ExactlyOnce)
}

fn a_protocol_that_lacks_a_rule_is_caught(_: &Stage) -> anyhow::Result<()> {
    let noticed = |broken: &Broken| {
        (0..SCHEDULES_TO_CATCH).any(|seed| {
            let outcome = std::panic::catch_unwind(|| run_schedule(seed, broken.guarantee(), *broken, false));
            outcome.is_ok_and(|result| result.is_err())
        })
    };
    let unnoticed: Vec<Broken> = Broken::ALL.into_iter().filter(|broken| !noticed(broken)).collect();
    ensure!(unnoticed.is_empty(), "{unnoticed:?} went unnoticed through {SCHEDULES_TO_CATCH} schedules");
    Ok(())
}

fn run_schedules(guarantee: Guarantee) -> anyhow::Result<()> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>()).transpose();
    if let Some(seed) = number("TW_TEST_SIM_SEED")? {
        return run_schedule(seed, guarantee, Broken::Nothing, true);
    }
    for seed in 0..number("TW_TEST_SIM_SCHEDULES")?.unwrap_or(SCHEDULES) {
        run_schedule(seed, guarantee, Broken::Nothing, false)?;
    }
    Ok(())
}

fn run_schedule(seed: u64, guarantee: Guarantee, broken: Broken, trace: bool) -> anyhow::Result<()> {
    let mut simulation = Simulation::new(seed, guarantee, broken, trace);
    simulation
        .run()
        .and_then(|()| simulation.check())
        .with_context(|| format!("{guarantee:?}, TW_TEST_SIM_SEED={seed} runs it again; {:?}", simulation.plan))
}

/// A rule of the protocol taken out, to show that its lack is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    Nothing,
    GuardIgnoresTheToken,
    GuardIgnoresThePosition,
    GuardIgnoresTheTail,
    TrimGoesOneTooFar,
    SendIsAcknowledgedAtOnce,
    CommitLosesTheWatermark,
    ProducerDoesNotFence,
    CommittedIsReadBeforeFencing,
    EndHidesOpenTransactions,
}

impl Broken {
    const ALL: [Broken; 9] = [
        Broken::GuardIgnoresTheToken,
        Broken::GuardIgnoresThePosition,
        Broken::GuardIgnoresTheTail,
        Broken::TrimGoesOneTooFar,
        Broken::SendIsAcknowledgedAtOnce,
        Broken::CommitLosesTheWatermark,
        Broken::ProducerDoesNotFence,
        Broken::CommittedIsReadBeforeFencing,
        Broken::EndHidesOpenTransactions,
    ];

    fn guarantee(self) -> Guarantee {
        match self {
            Broken::SendIsAcknowledgedAtOnce => Guarantee::AtLeastOnce,
            _ => Guarantee::ExactlyOnce,
        }
    }
}

/// Lengths of the candle intervals, ms.
const INTERVALS: [i64; 2] = [1_000, 3_000];

/// ms.
const LATENESS: i64 = 500;

/// What a seed decides beforehand.
#[derive(Debug, Clone)]
struct Plan {
    guarantee: Guarantee,
    late: LatePolicy,
    /// Time passes on a drained partition.
    silence: bool,
    /// Redis comes back older.
    rollback: bool,
    /// A bounded run ends here.
    stop_at: Option<i64>,
    keep: i64,
    max_batch: usize,
    max_undelivered: usize,
}

impl Plan {
    fn of(seed: u64, guarantee: Guarantee, length: i64) -> Plan {
        let mut rng = log::rng(seed, 1);
        let (silence, rollback) = (rng.random_bool(0.6), rng.random_bool(0.6));
        let history_is_one = !(silence && rollback);
        Plan {
            guarantee,
            late: [LatePolicy::Drop, LatePolicy::Divert, LatePolicy::Revise, LatePolicy::Revise]
                [rng.random_range(0..4)],
            silence,
            rollback,
            stop_at: rng.random_bool(0.2).then(|| rng.random_range(0..=length)),
            // A tick beyond the reach of `revise` on one history may be on time on another, and is said to be.
            keep: if history_is_one && rng.random_bool(0.5) { 2_000 } else { 3_600_000 },
            max_batch: rng.random_range(1..12),
            max_undelivered: rng.random_range(2..12),
        }
    }

    fn exactly_once(&self) -> bool {
        self.guarantee == Guarantee::ExactlyOnce
    }

    /// Whether what is sent follows from the log alone: rises of the watermark by silence between two commits are not
    /// on the log, so a Redis that came back older may go through others.
    fn history_is_one(&self) -> bool {
        !(self.silence && self.rollback)
    }

    fn settings(&self) -> Settings {
        Settings {
            owner: "worker".into(),
            group: "group".into(),
            fingerprint: "fingerprint".into(),
            guarantee: self.guarantee,
            recovery: RecoveryConfig {
                on_state_loss: if self.rollback { OnStateLoss::Rebuild } else { OnStateLoss::Stop },
                ..RecoveryConfig::default()
            },
            batch: BatchSettings {
                intervals: INTERVALS.map(|ms| format!("{ms}ms").parse().expect("an interval")).to_vec(),
                lateness: LATENESS,
                late: self.late,
                keep: self.keep,
                max_future: 30 * 24 * 3_600_000,
                block_bad_records: false,
            },
            idle_grace: if self.silence { 300 } else { 1_000_000_000_000 },
            max_batch: self.max_batch,
            max_undelivered: self.max_undelivered,
            heartbeat: 200,
            stop_at: self.stop_at.map(Offset),
        }
    }
}

/// A worker's hold on the partition: the machine, and what its shell would keep.
struct Worker {
    machine: Machine,
    alive: bool,
    stopping_since: Option<usize>,
    reader: Option<Reader>,
    /// The transactional producer of the present takeover.
    producer: u64,
    /// Where the log ended when it asked last.
    end: i64,
    /// What was committed when it asked for the transactional producer.
    committed: Option<Position>,
}

struct Reader {
    next: i64,
    said_end: Option<i64>,
}

/// A command on its way, in order with those of the same channel.
struct Flight {
    worker: usize,
    attempt: u64,
    channel: Channel,
    command: Command,
    /// The producer it was given to.
    producer: u64,
    answer: Option<Event>,
    /// Nobody waits for the answer any more.
    given_up: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channel {
    /// The connection of one takeover.
    Redis(u64),
    Producer,
    Transactions(u64),
    Consumer,
    Admin,
}

struct Simulation {
    rng: StdRng,
    plan: Plan,
    broken: Broken,
    trace: bool,
    slots: Vec<Slot>,
    /// Next offset to be written, and the end for readers that do not see open transactions.
    written: i64,
    stable: i64,
    now: u64,
    store: Store,
    kafka: Kafka,
    workers: Vec<Worker>,
    /// The one that the group has assigned the partition to.
    owner: usize,
    flights: Vec<Flight>,
    faults: bool,
    step: usize,
    tokens: u128,
    /// Time passed where the log was not known to hold nothing more.
    too_early: Option<String>,
}

/// Steps with faults, and steps within which it has to come to rest after them.
const STEPS: usize = 1_200;
const STEPS_TO_REST: usize = 30_000;

impl Simulation {
    fn new(seed: u64, guarantee: Guarantee, broken: Broken, trace: bool) -> Simulation {
        let slots = log::generate(&mut log::rng(seed, 0), 50);
        let plan = Plan::of(seed, guarantee, slots.len() as i64);
        let written = plan.stop_at.unwrap_or(0);
        let mut simulation = Simulation {
            rng: log::rng(seed, 2),
            plan,
            broken,
            trace,
            slots,
            written,
            stable: 0,
            now: 0,
            store: Store::new(broken),
            kafka: Kafka::default(),
            workers: Vec::new(),
            owner: 0,
            flights: Vec::new(),
            faults: true,
            step: 0,
            tokens: 0,
            too_early: None,
        };
        simulation.start_worker();
        simulation
    }

    // ---- the schedule

    fn run(&mut self) -> anyhow::Result<()> {
        while self.step < STEPS {
            self.grow_log();
            self.strike();
            self.act()?;
            self.step += 1;
        }
        self.end_faults();
        for _ in 0..STEPS_TO_REST {
            self.act()?;
            self.step += 1;
            if self.is_at_rest() {
                return Ok(());
            }
        }
        bail!(
            "it did not come to rest: {:?}, due {:?}",
            self.workers[self.owner].machine.snapshot(),
            self.store.now.state.due
        )
    }

    fn grow_log(&mut self) {
        let length = self.slots.len() as i64;
        if self.written < length && self.rng.random_bool(0.05) {
            self.written = length.min(self.written + self.rng.random_range(1..6));
        }
        if self.rng.random_bool(0.05) {
            self.stable = self.rng.random_range(self.stable..=self.written);
        }
    }

    /// A fault, now and then.
    fn strike(&mut self) {
        match self.rng.random_range(0..1_000) {
            0..8 => self.start_worker(), // the one before goes on as a zombie
            8..14 => {
                self.kill(self.owner);
                self.start_worker();
            }
            14..18 if self.workers[self.owner].stopping_since.is_none() => {
                self.note("stop");
                self.workers[self.owner].stopping_since = Some(self.step);
                let attempt = self.workers[self.owner].machine.attempt();
                self.hear(self.owner, attempt, Event::Stop);
            }
            18..26 if self.plan.rollback => {
                let back = self.rng.random_range(1..12);
                self.store.roll_back(back);
                self.note(&format!("Redis comes back at {:?}", self.store.now.state.position));
            }
            26..36 => self.now += self.rng.random_range(0..3_000),
            _ => {}
        }
        if self.workers[self.owner].stopping_since.is_some_and(|since| self.step > since + 200) {
            self.kill(self.owner);
            self.start_worker();
        }
    }

    fn end_faults(&mut self) {
        self.faults = false;
        self.note("the faults end");
        self.written = self.slots.len() as i64;
        self.stable = self.written;
        for worker in 0..self.workers.len() {
            if worker != self.owner {
                self.kill(worker);
            }
        }
        if self.workers[self.owner].stopping_since.is_some() {
            self.kill(self.owner);
            self.start_worker();
        }
    }

    fn start_worker(&mut self) {
        self.owner = self.workers.len();
        self.note("start");
        self.workers.push(Worker {
            machine: Machine::new(Arc::new(self.plan.settings())),
            alive: true,
            stopping_since: None,
            reader: None,
            producer: 0,
            end: -1,
            committed: None,
        });
        self.hear(self.owner, 0, Event::Start);
    }

    fn kill(&mut self, worker: usize) {
        if self.trace && self.workers[worker].alive {
            self.note(&format!("kill {worker}"));
        }
        self.workers[worker].alive = false;
        let (flights, rng) = (&mut self.flights, &mut self.rng);
        flights.retain_mut(|flight| {
            flight.given_up |= flight.worker == worker;
            flight.worker != worker || (flight.answer.is_none() && rng.random_bool(0.5))
        });
    }

    /// One step of one worker: something on its way is carried out or answered, or it reads, or time passes.
    fn act(&mut self) -> anyhow::Result<()> {
        self.now += self.rng.random_range(0..8);
        if self.faults && self.rng.random_bool(0.2) && !self.flights.is_empty() {
            let any = self.rng.random_range(0..self.flights.len());
            if self.flights[any].answer.is_none() {
                self.carry_out(any);
                return Ok(());
            }
        }
        let worker = if self.faults && self.rng.random_bool(0.06) {
            self.rng.random_range(0..self.workers.len())
        } else {
            self.owner
        };
        if !self.workers[worker].alive {
            return Ok(());
        }
        let mine: Vec<usize> = (0..self.flights.len()).filter(|flight| self.is_next(*flight, worker)).collect();
        let reads = self.can_read(worker);
        let choices = mine.len() + usize::from(reads);
        let wake_at = self.workers[worker].machine.wake_at(self.now);
        if choices == 0 || self.rng.random_bool(0.05) {
            if choices == 0 {
                self.now = self.now.max(wake_at);
            }
            let attempt = self.workers[worker].machine.attempt();
            self.hear(worker, attempt, Event::Tick);
            return self.look_at(worker);
        }
        let choice = self.rng.random_range(0..choices);
        if choice == mine.len() {
            self.read(worker);
        } else if self.flights[mine[choice]].answer.is_some() {
            self.answer(mine[choice]);
        } else {
            self.carry_out(mine[choice]);
        }
        self.look_at(worker)
    }

    fn look_at(&mut self, worker: usize) -> anyhow::Result<()> {
        if let Phase::Stopped(reason) = self.workers[worker].machine.snapshot().phase {
            bail!("worker {worker} stopped: {reason}");
        }
        if self.workers[worker].machine.snapshot().phase == Phase::Released {
            self.kill(worker);
            if worker == self.owner {
                self.start_worker();
            }
        }
        Ok(())
    }

    fn is_next(&self, flight: usize, worker: usize) -> bool {
        let it = &self.flights[flight];
        it.worker == worker
            && !it.given_up
            && !self.flights[..flight]
                .iter()
                .any(|before| before.worker == worker && before.channel == it.channel && !before.given_up)
    }

    // ---- what a shell does

    fn hear(&mut self, worker: usize, attempt: u64, event: Event) {
        if self.trace && !matches!(event, Event::Tick) {
            self.note(&format!("{worker} hears {}", short(&event)));
        }
        let it = &mut self.workers[worker];
        it.machine.handle(self.now, BEGIN + self.now as i64, attempt, event);
        let commands = it.machine.take_commands();
        if matches!(it.machine.snapshot().phase, Phase::BackingOff(_) | Phase::Stopped(_) | Phase::Released) {
            it.reader = None;
        }
        for command in commands {
            self.issue(worker, command);
        }
    }

    fn issue(&mut self, worker: usize, mut command: Command) {
        let attempt = self.workers[worker].machine.attempt();
        let channel = match &mut command {
            Command::Tell(Notice::Stopped { .. }) | Command::Release => return,
            Command::Tell(notice) => {
                if self.trace {
                    self.note(&format!("{worker} tells {}", short(notice)));
                }
                return;
            }
            Command::Claim(claim) => {
                self.tokens += 1;
                claim.token = Token::new(self.tokens);
                Channel::Redis(attempt)
            }
            Command::OpenProducer => {
                self.workers[worker].committed = self.kafka.committed;
                Channel::Transactions(attempt)
            }
            Command::Transact(..) => Channel::Transactions(attempt),
            Command::FetchCommitted | Command::CommitStart(_) | Command::Commit(_) | Command::ReadFrom(_) => {
                Channel::Consumer
            }
            Command::Send(_) => Channel::Producer,
            Command::AskRange | Command::CheckAssigned => Channel::Admin,
            Command::Advance(guard, _, Some(_)) => {
                let end = self.workers[worker].end;
                if guard.position.offset.0 != end {
                    let offset = guard.position.offset;
                    self.too_early = Some(format!("time passed at offset {offset}, though the log ended at {end}"));
                }
                Channel::Redis(attempt)
            }
            _ => Channel::Redis(attempt),
        };
        if self.trace {
            self.note(&format!("{worker} asks {}", short(&command)));
        }
        if let (Command::Send(delivery), Broken::SendIsAcknowledgedAtOnce) = (&command, self.broken) {
            let answer = Some(Event::Sent(delivery.ticket));
            self.push(worker, attempt, Channel::Admin, Command::CheckAssigned, answer);
            self.push(worker, attempt, channel, command, None);
            return;
        }
        self.push(worker, attempt, channel, command, None);
    }

    fn push(&mut self, worker: usize, attempt: u64, channel: Channel, command: Command, answer: Option<Event>) {
        let producer = self.workers[worker].producer;
        self.flights.push(Flight { worker, attempt, channel, command, producer, answer, given_up: false });
    }

    /// Servers do what is asked; now and then the caller learns only that it failed.
    fn carry_out(&mut self, index: usize) {
        let failed = |what| {
            Event::Failed(Failure {
                what,
                message: "no answer".into(),
                transient: true,
                fenced: false,
                from_redis: false,
            })
        };
        let fault = if self.faults && !self.flights[index].given_up { self.rng.random_range(0..100) } else { 99 };
        match fault {
            0 => {
                // Not done, and never will be.
                self.flights[index].answer = Some(failed("nothing was done"));
            }
            1 => {
                // Given up now, done later.
                let (worker, attempt) = (self.flights[index].worker, self.flights[index].attempt);
                self.flights[index].given_up = true;
                self.push(
                    worker,
                    attempt,
                    Channel::Admin,
                    Command::CheckAssigned,
                    Some(failed("it takes too long")),
                );
            }
            2 | 3 => {
                self.execute(index);
                self.flights[index].answer = Some(failed("the answer was lost"));
            }
            _ => {
                let answer = self.execute(index);
                self.flights[index].answer = Some(answer);
            }
        }
        if self.flights[index].given_up && self.flights[index].answer.is_some() {
            self.flights.remove(index);
        }
    }

    fn execute(&mut self, index: usize) -> Event {
        let Flight { worker, producer, ref command, .. } = self.flights[index];
        let command = command.clone();
        if self.trace {
            self.note(&format!("done for {worker}: {}", short(&command)));
        }
        match command {
            Command::OpenProducer => {
                self.kafka.producer += 1;
                self.workers[worker].producer = self.kafka.producer;
                Event::ProducerOpen
            }
            Command::FetchCommitted => {
                let stale = self.broken == Broken::CommittedIsReadBeforeFencing;
                let found = if stale { self.workers[worker].committed } else { self.kafka.committed };
                Event::Committed(found.map_or(Committed::None, Committed::At))
            }
            Command::AskRange => {
                let end = if self.broken == Broken::EndHidesOpenTransactions { self.stable } else { self.written };
                self.workers[worker].end = self.written;
                Event::Range { start: Offset(0), end: Offset(end) }
            }
            Command::CommitStart(position) | Command::Commit(position) => self.commit(worker, position, &command),
            Command::ReadFrom(_) => Event::Reading,
            Command::Send(delivery) => {
                self.kafka.send(&delivery.outputs);
                Event::Sent(delivery.ticket)
            }
            Command::Transact(delivery, mut position) => {
                if producer != self.kafka.producer && self.broken != Broken::ProducerDoesNotFence {
                    return Event::Failed(Failure {
                        what: "commit a transaction",
                        message: "another producer has the transactional id".into(),
                        transient: true,
                        fenced: true,
                        from_redis: false,
                    });
                }
                self.kafka.send(&delivery.outputs);
                if self.broken == Broken::CommitLosesTheWatermark {
                    position.watermark = Watermark::NEVER;
                }
                self.kafka.committed = Some(position);
                Event::Transacted
            }
            Command::CheckAssigned => Event::Assigned(worker == self.owner),
            script => self.store.run(self.now, &script),
        }
    }

    /// Through the consumer: the broker asks whether it is a member of the group, not whether the partition is its own.
    fn commit(&mut self, worker: usize, position: Position, command: &Command) -> Event {
        let start = matches!(command, Command::CommitStart(_));
        // A first commit on its way is done before its connection's next request, which hands the partition over.
        let first = start && self.plan.exactly_once();
        let refused = worker != self.owner && (first || self.rng.random_bool(0.5));
        if refused {
            return Event::Failed(Failure {
                what: "commit",
                message: "not a member of this generation".into(),
                transient: true,
                fenced: true,
                from_redis: false,
            });
        }
        self.kafka.committed = Some(position);
        if start { Event::StartCommitted } else { Event::CommitDone }
    }

    fn answer(&mut self, index: usize) {
        let Flight { worker, attempt, command, answer, .. } = self.flights.remove(index);
        let Some(event) = answer else { return };
        let current = attempt == self.workers[worker].machine.attempt();
        if let (Command::ReadFrom(offset), Event::Reading, true) = (&command, &event, current) {
            self.workers[worker].reader = Some(Reader { next: offset.0, said_end: None });
        }
        self.hear(worker, attempt, event);
    }

    fn can_read(&self, worker: usize) -> bool {
        let it = &self.workers[worker];
        it.machine.wants_records()
            && it.reader.as_ref().is_some_and(|reader| {
                reader.next < self.stable || reader.said_end.is_none_or(|end| end < self.stable)
            })
    }

    fn read(&mut self, worker: usize) {
        let records = self.rng.random_range(1..6);
        let Some(reader) = &mut self.workers[worker].reader else { return };
        let (chunk, next) = log::chunk(&self.slots, reader.next, self.stable, records);
        reader.next = next;
        let event = if chunk.records.is_empty() {
            reader.next = self.stable;
            reader.said_end = Some(self.stable);
            Event::End(Offset(self.stable))
        } else {
            reader.said_end = None;
            Event::Records(Arc::new(chunk))
        };
        let attempt = self.workers[worker].machine.attempt();
        self.hear(worker, attempt, event);
    }

    fn note(&self, text: &str) {
        if self.trace {
            println!("{:>5} {:>7} {:>2}/{:<2} {text}", self.step, self.now, self.stable, self.written);
        }
    }

    // ---- the end

    fn end(&self) -> i64 {
        self.plan.stop_at.unwrap_or(self.slots.len() as i64)
    }

    fn is_at_rest(&self) -> bool {
        let snapshot = self.workers[self.owner].machine.snapshot();
        let state = &self.store.now.state;
        let position = Some(state.position);
        snapshot.position == position
            && snapshot.delivered >= state.position
            && snapshot.undelivered == 0
            && self.flights.iter().all(|flight| flight.given_up || matches!(flight.command, Command::Heartbeat(..)))
            && state.position.offset.0 == self.end()
            && self.nothing_is_pending(snapshot.delivered)
            && state.due.first().is_none_or(|due| !self.plan.silence && !state.position.watermark.passes(due.end))
            && (self.plan.stop_at.is_none() || snapshot.finished)
    }

    /// The outbox is empty. A Redis that came back as it was before a trim holds again what was delivered, until the
    /// next one.
    fn nothing_is_pending(&self, delivered: Position) -> bool {
        let outbox = &self.store.now.state.outbox;
        outbox.is_empty() || (self.plan.rollback && outbox.iter().all(|entry| entry.is_delivered(delivered)))
    }

    fn check(&self) -> anyhow::Result<()> {
        if let Some(violation) = &self.too_early {
            bail!("{violation}");
        }
        let log = &self.slots[..self.end() as usize];
        let want = Oracle::run(self.meaning(), log, &self.store.now.advances);
        self.check_state(&want)?;
        self.check_sent(&want)?;
        self.check_last_sent()
    }

    fn meaning(&self) -> Meaning {
        Meaning { intervals: INTERVALS.to_vec(), lateness: LATENESS, late: self.plan.late, keep: self.plan.keep }
    }

    fn check_state(&self, want: &Oracle) -> anyhow::Result<()> {
        let state = &self.store.now.state;
        ensure!(state.position.watermark.ms().unwrap_or(i64::MIN) == want.watermark, "the watermark differs");
        let last = state.symbols.iter().filter_map(|(name, symbol)| {
            symbol.last.map(|last| (name.to_string(), (price_of(last.price), last.ts)))
        });
        ensure!(last.collect::<BTreeMap<_, _>>() == want.last, "last prices differ");
        let candles = self.stored_candles();
        ensure!(candles == want.candles, "candles differ: {candles:?} is not {:?}", want.candles);
        for ((symbol, interval, start), candle) in &candles {
            let left = !candle.closed && state.position.watermark.passes(start + interval);
            ensure!(!left, "an open window is left behind: {symbol} {interval} {start}");
        }
        for rule in &oracle::RULES {
            let member = format!("{} {}", rule.op, rule.id);
            let rules = &state.symbols[rule.symbol].rules;
            let there =
                [&rules.edge, &rules.above, &rules.below, &rules.equal].iter().any(|set| set.contains_key(&member));
            ensure!(there != want.rules_gone.contains(rule.id), "rule {member} there: {there}");
        }
        Ok(())
    }

    fn stored_candles(&self) -> BTreeMap<oracle::WindowKey, SimCandle> {
        let mut candles = BTreeMap::new();
        for (name, symbol) in &self.store.now.state.symbols {
            for ((interval, start), candle) in &symbol.candles {
                let volume = candle.volume.to_string().parse().expect("whole volumes have a whole sum");
                candles.insert(
                    (name.to_string(), interval.ms(), *start),
                    SimCandle {
                        open: price_of(candle.open),
                        high: price_of(candle.high),
                        low: price_of(candle.low),
                        close: price_of(candle.close),
                        volume,
                        count: candle.count as i64,
                        open_ts: candle.open_ts,
                        close_ts: candle.close_ts,
                        revision: candle.revision,
                        closed: candle.status != Status::Open,
                    },
                );
            }
        }
        candles
    }

    fn check_sent(&self, want: &Oracle) -> anyhow::Result<()> {
        let mut sent: BTreeMap<&Key, &str> = BTreeMap::new();
        for output in &self.kafka.sent {
            if let Some(before) = sent.insert(&output.key, &output.content) {
                ensure!(!self.plan.exactly_once(), "sent twice: {:?}", output.key);
                // Documented: an output that was sent and not committed may be made anew by another history.
                ensure!(
                    before == output.content || !self.plan.history_is_one(),
                    "{:?} has two contents: {before} and {}",
                    output.key,
                    output.content
                );
            }
        }
        let by_the_log_alone = |key: &Key| matches!(key, Key::Notification(..) | Key::DeadLetter(_));
        let compared = |key: &Key| self.plan.history_is_one() || by_the_log_alone(key);
        let found: BTreeSet<_> = sent.into_iter().filter(|(key, _)| compared(key)).collect();
        let wanted: BTreeSet<_> = want
            .outputs
            .iter()
            .map(|(key, content)| (key, content.as_str()))
            .filter(|(key, _)| compared(key))
            .collect();
        let (missing, extra) = (wanted.difference(&found), found.difference(&wanted));
        let (missing, extra): (Vec<_>, Vec<_>) = (missing.collect(), extra.collect());
        ensure!(missing.is_empty() && extra.is_empty(), "missing {missing:?}, not wanted {extra:?}");
        if self.plan.exactly_once() {
            let position = self.store.now.state.position;
            ensure!(
                self.kafka.committed >= Some(position),
                "{:?} is committed, not {position:?}",
                self.kafka.committed
            );
        }
        Ok(())
    }

    /// What was sent last about a candle is what Redis holds.
    fn check_last_sent(&self) -> anyhow::Result<()> {
        let exact =
            self.plan.history_is_one() || (self.plan.exactly_once() && self.plan.late == LatePolicy::Revise);
        if !exact {
            return Ok(());
        }
        let mut last: BTreeMap<oracle::WindowKey, (i64, &str)> = BTreeMap::new();
        for output in &self.kafka.sent {
            if let Key::Candle(symbol, interval, start, revision) = &output.key {
                let newest =
                    last.entry((symbol.clone(), *interval, *start)).or_insert((*revision, &output.content));
                if *revision >= newest.0 {
                    *newest = (*revision, &output.content);
                }
            }
        }
        for (window, candle) in self.stored_candles().iter().filter(|(_, candle)| candle.closed) {
            let sent = last.get(window).map(|(_, content)| *content);
            let stored = candle.content();
            ensure!(sent == Some(&stored), "{window:?}: sent last was {sent:?}, stored is {stored}");
        }
        Ok(())
    }
}

fn price_of(price: Price) -> i64 {
    price.to_f64() as i64
}

/// One line of a thing.
fn short(thing: &impl std::fmt::Debug) -> String {
    let mut text = format!("{thing:?}");
    if let Some((end, _)) = text.char_indices().nth(300) {
        text.truncate(end);
    }
    text
}
