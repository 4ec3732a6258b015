//! A worker's hold on a partition, as its shell carries it: commands go out and are carried out in their order, answers
//! come back late, twice removed, or never.

use std::collections::BTreeMap;
use std::sync::Arc;

use tickwatch::config::{OnOffsetsLost, OnStateLoss, RecoveryConfig};
use tickwatch::domain::{Offset, Watermark};
use tickwatch::store::scripts::Token;
use tickwatch::worker::machine::{Machine, Phase};
use tickwatch::worker::protocol::{Command, Committed, Event, Notice, Outgoing};

use super::broken::Broken;
use super::log::{BEGIN, SYMBOLS};
use super::schedule::Simulation;
use super::tally::Seen;

/// A worker's hold on one partition: the machine, and what its shell would keep.
pub(super) struct Worker {
    pub(super) part: usize,
    /// The process it is in: one ends with all its partitions.
    pub(super) process: usize,
    /// Of another group.
    pub(super) foreign: bool,
    pub(super) recovery: RecoveryConfig,
    pub(super) machine: Machine,
    pub(super) alive: bool,
    pub(super) stopping_since: Option<usize>,
    /// Why it has stopped, in the word for metrics.
    pub(super) stopped: Option<&'static str>,
    pub(super) reader: Option<Reader>,
    /// Where reading began in the present takeover.
    pub(super) reading_from: i64,
    /// The state position at the present takeover.
    pub(super) took_over_at: i64,
    /// The transactional producer of the present takeover.
    pub(super) producer: u64,
    /// Where the log ended when it asked last.
    pub(super) end: i64,
    /// What was committed when it asked, and what it knows to be.
    pub(super) fetched: Committed,
    pub(super) known: Committed,
    /// It began a state since, by a policy or because there was none.
    pub(super) began: bool,
    /// The incarnation that each generation it has claimed was made from.
    pub(super) topic_of: BTreeMap<u64, usize>,
    /// Eras that had ended when it claimed last.
    pub(super) era: usize,
    /// The takeover in which it claimed last.
    pub(super) claimed_in: Option<u64>,
    /// What was committed when it asked for the transactional producer.
    pub(super) before_fencing: Committed,
    /// The outcome of its last commit is unknown.
    pub(super) commit_failed: bool,
    /// A permanent error of Kafka waits for its next output.
    pub(super) unsendable: bool,
    /// Outputs that were delivered already, for the rules about muting.
    pub(super) unmuted: Vec<Outgoing>,
    pub(super) muted_below: Watermark,
}

pub(super) struct Reader {
    pub(super) next: i64,
    pub(super) said_end: Option<i64>,
}

/// A command on its way, in order with those of the same channel.
pub(super) struct Flight {
    pub(super) worker: usize,
    pub(super) attempt: u64,
    pub(super) channel: Channel,
    pub(super) command: Command,
    /// The producer it was given to.
    pub(super) producer: u64,
    pub(super) reading_from: i64,
    pub(super) answer: Option<Event>,
    /// The answer comes at this step at the earliest.
    pub(super) not_before: usize,
    /// Nobody waits for the answer any more.
    pub(super) given_up: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channel {
    /// The connection of one takeover.
    Redis(u64),
    Producer,
    Transactions(u64),
    Consumer,
    Admin,
}

impl Worker {
    pub(super) fn new(
        part: usize,
        process: usize,
        foreign: bool,
        machine: Machine,
        recovery: RecoveryConfig,
    ) -> Worker {
        Worker {
            part,
            process,
            foreign,
            recovery,
            machine,
            alive: true,
            stopping_since: None,
            stopped: None,
            reader: None,
            reading_from: 0,
            took_over_at: 0,
            producer: 0,
            end: -1,
            fetched: Committed::None,
            known: Committed::None,
            began: false,
            topic_of: BTreeMap::new(),
            era: 0,
            claimed_in: None,
            before_fencing: Committed::None,
            commit_failed: false,
            unsendable: false,
            unmuted: Vec::new(),
            muted_below: Watermark::NEVER,
        }
    }

    /// Of another group, and not aware of it yet.
    pub(super) fn is_intruding(&self) -> bool {
        self.foreign && self.alive && self.stopped.is_none()
    }
}

impl Simulation {
    /// One step of one worker: something on its way is carried out or answered, or it reads, or time passes.
    pub(super) fn act(&mut self) {
        self.now += self.dice.below(8) as u64;
        if self.faults && self.dice.percent(10) && self.carry_out_abandoned() {
            return;
        }
        let worker = self.someone();
        if !self.workers[worker].alive {
            return;
        }
        let mut mine = [0; 16];
        let mut count = 0;
        for flight in 0..self.flights.len() {
            if count < mine.len() && self.is_next(flight, worker) {
                mine[count] = flight;
                count += 1;
            }
        }
        let choices = count + usize::from(self.can_read(worker));
        if choices == 0 || self.dice.percent(3) {
            if choices == 0 {
                self.now = self.now.max(self.workers[worker].machine.wake_at(self.now));
            }
            let attempt = self.workers[worker].machine.attempt();
            self.hear(worker, attempt, Event::Tick);
        } else {
            let choice = self.dice.below(choices);
            if choice == count {
                self.read(worker);
            } else if self.flights[mine[choice]].answer.is_some() {
                self.answer(mine[choice]);
            } else if let Some(before) = self.abandoned_before(mine[choice]) {
                self.execute(before);
                self.flights.remove(before);
            } else {
                self.carry_out(mine[choice]);
            }
        }
        self.look_at(worker);
    }

    /// A request through the consumer that was given up, and is done before a later one: they share a connection.
    fn abandoned_before(&self, flight: usize) -> Option<usize> {
        let it = &self.flights[flight];
        self.flights[..flight].iter().position(|before| {
            before.given_up
                && before.worker == it.worker
                && before.channel == Channel::Consumer
                && it.channel == before.channel
        })
    }

    /// A call that its caller has given up is carried out nevertheless.
    fn carry_out_abandoned(&mut self) -> bool {
        let abandoned = self.flights.iter().position(|flight| flight.given_up);
        let Some(index) = abandoned else { return false };
        self.execute(index);
        self.flights.remove(index);
        true
    }

    fn someone(&mut self) -> usize {
        if let Some((worker, steps)) = self.awake.filter(|_| self.faults) {
            self.awake = (steps > 0).then(|| (worker, steps - 1));
            return worker;
        }
        if self.faults && self.dice.per_mille(self.plan.strays) {
            let worker = self.dice.below(self.workers.len());
            if self.workers[worker].alive {
                self.awake = Some((worker, self.dice.below(8)));
            }
            return worker;
        }
        if !self.faults
            && let Some(intruder) = self.workers.iter().position(Worker::is_intruding)
            && self.dice.percent(50)
        {
            return intruder;
        }
        let part = if self.parts.len() == 1 { 0 } else { self.dice.below(self.parts.len()) };
        self.parts[part].owner
    }

    pub(super) fn look_at(&mut self, worker: usize) {
        let it = &self.workers[worker];
        match it.machine.phase() {
            Phase::Released => {
                let part = it.part;
                self.seen(Seen::Released);
                self.end_machine(worker);
                if worker == self.parts[part].owner {
                    self.start_worker(part);
                }
            }
            Phase::Running if it.foreign => self.violated("a worker of another group runs in this namespace"),
            _ => {}
        }
    }

    fn is_next(&self, flight: usize, worker: usize) -> bool {
        let it = &self.flights[flight];
        // Acknowledgements come as they come: outputs of one batch go to several topics.
        let unordered = it.channel == Channel::Producer && it.answer.is_some();
        it.worker == worker
            && !it.given_up
            && it.not_before <= self.step
            && (unordered
                || !self.flights[..flight].iter().any(|before| {
                    let waits = it.channel != Channel::Producer || before.answer.is_none();
                    before.worker == worker && before.channel == it.channel && !before.given_up && waits
                }))
    }

    // ---- what a shell does

    pub(super) fn hear(&mut self, worker: usize, attempt: u64, event: Event) {
        if self.trace && !matches!(event, Event::Tick) {
            self.note(&format!("{worker} hears {}", short(&event)));
        }
        let it = &mut self.workers[worker];
        it.machine.handle(self.now, BEGIN + self.now as i64, attempt, event);
        let commands = it.machine.take_commands();
        if matches!(it.machine.phase(), Phase::BackingOff(_) | Phase::Stopped(_) | Phase::Released) {
            it.reader = None;
        }
        for command in commands {
            self.issue(worker, command);
        }
    }

    fn issue(&mut self, worker: usize, mut command: Command) {
        let attempt = self.workers[worker].machine.attempt();
        let stopped = self.workers[worker].stopped.is_some();
        if stopped && !matches!(command, Command::Heartbeat(..) | Command::Release | Command::Tell(_)) {
            self.violated(&format!("a stopped partition asks: {}", short(&command)));
        }
        let channel = match &mut command {
            Command::Release => return,
            Command::Tell(notice) => return self.told(worker, notice),
            Command::Claim(claim) => {
                self.tokens += 1;
                claim.token = Token::new(self.tokens);
                Channel::Redis(attempt)
            }
            Command::OpenProducer => {
                let part = self.workers[worker].part;
                self.workers[worker].before_fencing = self.parts[part].kafka.committed.clone();
                Channel::Transactions(attempt)
            }
            Command::Transact(..) => Channel::Transactions(attempt),
            Command::ReadFrom(from) => {
                let from = from.0;
                self.begins_reading(worker, from);
                Channel::Consumer
            }
            Command::FetchCommitted | Command::CommitStart(_) | Command::Commit(_) => Channel::Consumer,
            Command::Send(_) => Channel::Producer,
            Command::AskRange | Command::CheckAssigned => Channel::Admin,
            Command::Advance(guard, _, Some(_)) => {
                let end = self.workers[worker].end;
                if guard.position.offset.0 != end {
                    let offset = guard.position.offset;
                    self.violated(&format!("time passed at offset {offset}, though the log ended at {end}"));
                }
                self.seen(Seen::AdvanceByEvidence);
                Channel::Redis(attempt)
            }
            Command::Advance(_, _, None) => {
                self.seen(Seen::AdvanceToDelivered);
                Channel::Redis(attempt)
            }
            Command::Apply(..) => {
                let delivering = |flight: &Flight| {
                    flight.worker == worker && matches!(flight.command, Command::Send(_) | Command::Transact(..))
                };
                if self.flights.iter().any(delivering) {
                    self.seen(Seen::ApplyBesideDelivery);
                }
                Channel::Redis(attempt)
            }
            _ => Channel::Redis(attempt),
        };
        if self.trace {
            self.note(&format!("{worker} asks {}", short(&command)));
        }
        if let Command::Send(delivery) = &command {
            let ticket = delivery.ticket;
            if self.flights.iter().any(|it| it.worker == worker && it.channel == Channel::Producer && !it.given_up)
            {
                self.seen(Seen::SeveralSendsInFlight);
            }
            if self.broken == Broken::SendIsAcknowledgedAtOnce {
                self.push(worker, attempt, Channel::Admin, Command::CheckAssigned, Some(Event::Sent(ticket)));
            }
        }
        self.push(worker, attempt, channel, command, None);
    }

    pub(super) fn push(
        &mut self,
        worker: usize,
        attempt: u64,
        channel: Channel,
        command: Command,
        answer: Option<Event>,
    ) {
        let Worker { producer, reading_from, .. } = self.workers[worker];
        self.flights.push(Flight {
            worker,
            attempt,
            channel,
            command,
            producer,
            reading_from,
            answer,
            not_before: 0,
            given_up: false,
        });
    }

    fn told(&mut self, worker: usize, notice: &Notice) {
        if self.trace {
            self.note(&format!("{worker} tells {}", short(notice)));
        }
        match notice {
            Notice::Split => self.seen(Seen::Split),
            Notice::Fenced => self.seen(Seen::Fenced),
            Notice::Moved => self.seen(Seen::Moved),
            Notice::Finished => self.seen(Seen::Finished),
            Notice::TookOver { position, delivered, .. } => {
                self.workers[worker].took_over_at = position.offset.0;
                if position > delivered {
                    self.seen(Seen::StateAhead);
                } else if position < delivered {
                    self.seen(Seen::DeliveryAhead);
                }
            }
            Notice::Stopped { kind, .. } => self.stopped(worker, kind),
            _ => {}
        }
    }

    fn stopped(&mut self, worker: usize, kind: &'static str) {
        let it = &mut self.workers[worker];
        it.stopped = Some(kind);
        let (foreign, recovery) = (it.foreign, it.recovery.clone());
        let seen = match kind {
            "state_loss" if recovery.on_state_loss == OnStateLoss::Stop => Seen::StateLossStopped,
            "state_loss" if recovery.on_state_loss == OnStateLoss::Rebuild => Seen::RebuildWithoutRules,
            "offsets_lost" => Seen::OffsetsLostStopped,
            "gap" => Seen::GapStopped,
            "truncation" => Seen::TruncationStopped,
            "other_group" if foreign => Seen::OtherGroupRefused,
            "script" => Seen::ScriptStopped,
            "produce" => Seen::ProduceStopped,
            "bad_record" => Seen::BadRecordStopped,
            _ => return self.violated(&format!("worker {worker} stopped without a reason: {kind}")),
        };
        self.seen(seen);
        self.history(format!("worker {worker} stops: {kind}"));
    }

    /// Reading begins only where nothing was lost, or where the policy says to go on.
    fn begins_reading(&mut self, worker: usize, from: i64) {
        let it = &mut self.workers[worker];
        it.reading_from = from;
        let unknown = !matches!(it.fetched, Committed::At(_)) && !it.foreign;
        let (began, stops) = (it.began, it.recovery.on_offsets_lost == OnOffsetsLost::Stop);
        if unknown && !began && stops {
            self.violated("it goes on without a committed offset, though on_offsets_lost = stop");
        }
        if unknown && !began {
            self.seen(Seen::OffsetsLostResumed);
            let assumed = self.workers[worker].machine.snapshot().delivered;
            self.may_be_sent_again(self.workers[worker].part, assumed);
        }
    }

    pub(super) fn answer(&mut self, index: usize) {
        let Flight { worker, attempt, command, answer, .. } = self.flights.remove(index);
        let Some(event) = answer else { return };
        let now = self.workers[worker].machine.attempt();
        let current = attempt == now;
        if !current {
            self.seen(Seen::AnswerOfBefore);
        }
        if let (Command::ReadFrom(offset), Event::Reading, true) = (&command, &event, current) {
            let part = self.workers[worker].part;
            let (state, delivered) =
                (self.store.source(part).state.position.offset.0, self.parts[part].kafka.truth);
            let next = match self.broken {
                Broken::ReadingStartsAtTheStatePosition => offset.0.max(state),
                Broken::ReadingStartsAtTheHigherPosition => offset.0.max(state).max(delivered.offset.0),
                _ => offset.0,
            };
            self.workers[worker].reader = Some(Reader { next, said_end: None });
        }
        if let (Command::Transact(_, position), Event::Transacted) = (&command, &event) {
            self.workers[worker].known = Committed::At(*position);
        }
        if let Event::Sent(ticket) = event {
            self.acknowledged(worker, attempt, ticket);
        }
        let attempt = if self.broken == Broken::AnswersOfBeforeAreHeard { now } else { attempt };
        self.hear(worker, attempt, event);
    }

    fn acknowledged(&mut self, worker: usize, attempt: u64, ticket: u64) {
        let mut before = Vec::new();
        for flight in &mut self.flights {
            if let Command::Send(delivery) = &flight.command
                && (flight.worker, flight.attempt, flight.given_up) == (worker, attempt, false)
                && delivery.ticket < ticket
            {
                before.push(delivery.ticket);
                flight.given_up |= self.broken == Broken::AnyAcknowledgementCounts && flight.answer.is_none();
            }
        }
        if !before.is_empty() {
            self.seen(Seen::AckOutOfOrder);
        }
        if self.broken == Broken::AnyAcknowledgementCounts {
            for ticket in before {
                self.hear(worker, attempt, Event::Sent(ticket));
            }
        }
    }

    // ---- reading

    fn can_read(&self, worker: usize) -> bool {
        let it = &self.workers[worker];
        let topic = self.topic(it.part);
        it.machine.wants_records()
            && it.reader.as_ref().is_some_and(|reader| {
                reader.next < topic.stable || reader.said_end.is_none_or(|end| end < topic.stable)
            })
    }

    fn read(&mut self, worker: usize) {
        let records = 1 + self.dice.below(6);
        let it = &mut self.workers[worker];
        let attempt = it.machine.attempt();
        let part = &self.parts[it.part];
        let topic = part.topics.last().expect("a partition has a topic");
        let Some(reader) = &mut it.reader else { return };
        if reader.next < topic.start {
            if self.broken != Broken::GapGoesUnseen {
                return self.hear(worker, attempt, Event::OutOfRange);
            }
            reader.next = topic.start;
            it.reading_from = topic.start;
        }
        let (mut chunk, next) = topic.chunk(SYMBOLS[it.part], reader.next, topic.stable, records);
        let from = std::mem::replace(&mut reader.next, next);
        if self.broken == Broken::TopicMadeAgainGoesUnseen
            && let Some(mark) = self.store.source(it.part).state.last_record
        {
            for record in chunk.records.iter_mut().filter(|record| record.offset == mark.offset) {
                (record.timestamp, record.checksum) = (mark.timestamp, mark.checksum);
            }
        }
        let event = if chunk.records.is_empty() {
            reader.next = topic.stable;
            reader.said_end = Some(topic.stable);
            let said = if self.broken == Broken::EndIsTheLastRecord {
                let last = (0..topic.stable).rev().find(|offset| !topic.is_gap(*offset));
                last.map_or(0, |last| last + 1).max(from.min(topic.stable))
            } else {
                topic.stable
            };
            Event::End(Offset(said))
        } else {
            reader.said_end = None;
            Event::Records(Arc::new(chunk))
        };
        self.hear(worker, attempt, event);
    }
}

/// One line of a thing.
pub(super) fn short(thing: &impl std::fmt::Debug) -> String {
    let mut text = format!("{thing:?}");
    if let Some((end, _)) = text.char_indices().nth(300) {
        text.truncate(end);
    }
    text
}

/// A command without what it holds.
pub(super) fn name(command: &Command) -> &'static str {
    match command {
        Command::OpenProducer => "OpenProducer",
        Command::FetchCommitted => "FetchCommitted",
        Command::AskRange => "AskRange",
        Command::CommitStart(_) => "CommitStart",
        Command::LookForRules => "LookForRules",
        Command::Claim(_) => "Claim",
        Command::ReadOutbox(_) => "ReadOutbox",
        Command::ReadFrom(_) => "ReadFrom",
        Command::Apply(..) => "Apply",
        Command::Close(_) => "Close",
        Command::Update(_) => "Update",
        Command::Advance(..) => "Advance",
        Command::Heartbeat(..) => "Heartbeat",
        Command::Send(_) => "Send",
        Command::Commit(_) => "Commit",
        Command::Transact(..) => "Transact",
        Command::Trim(..) => "Trim",
        Command::CheckAssigned => "CheckAssigned",
        Command::Tell(_) => "Tell",
        Command::Release => "Release",
    }
}
