//! What Redis and Kafka do with a call, and what its caller learns of it: now and then only that it failed.

use std::sync::Arc;

use tickwatch::config::{OnGap, OnStateLoss};
use tickwatch::domain::{Offset, Position, Watermark};
use tickwatch::store::scripts::{Applied, Beat, Claim, Claimed, Closed, Updated};
use tickwatch::worker::machine::Phase;
use tickwatch::worker::protocol::{Command, Committed, Delivery, Event, Failure, Outgoing};

use super::broken::Broken;
use super::kafka::{Kafka, Sent};
use super::oracle::Key;
use super::plan::{Call, Fault};
use super::redis;
use super::schedule::Simulation;
use super::shell::{Channel, Flight, name, short};
use super::tally::Seen;

fn failure(what: &'static str, message: &str) -> Failure {
    Failure { what, message: message.into(), transient: true, fenced: false, from_redis: false }
}

impl Simulation {
    /// Servers do what is asked; now and then the caller learns only that it failed.
    pub(super) fn carry_out(&mut self, index: usize) {
        let flight = &self.flights[index];
        let (worker, attempt) = (flight.worker, flight.attempt);
        let call = Call::of(&flight.command);
        let focus = self.plan.focus.filter(|focus| self.faults && Some(focus.call) == call);
        if let Some(focus) = focus.filter(|focus| focus.before)
            && self.dice.percent(focus.percent)
        {
            let part = self.workers[worker].part;
            self.strike(focus.fault, part);
            return;
        }
        if call == Some(Call::Claim)
            && self.about_to_move == Some(self.workers[worker].part)
            && self.faults
            && self.dice.percent(40)
        {
            let part = self.workers[worker].part;
            (self.about_to_move, self.asleep) = (None, Some(worker));
            return self.strike(Fault::Zombie, part);
        }
        if let Some(refusal) = self.refused(index) {
            self.flights[index].answer = Some(refusal);
            return;
        }
        let roll = if self.faults { self.dice.below(1_000) / self.plan.astray.max(1) } else { usize::MAX };
        match roll {
            _ if self.plan.astray == 0 => self.done(index),
            0 => {
                self.seen(Seen::NothingDone);
                self.history(format!("nothing is done of {}", name(&self.flights[index].command)));
                let answer = self.undone(index);
                self.flights[index].answer = Some(answer);
            }
            1 => {
                self.seen(Seen::DoneLater);
                self.history(format!("to be done later: {}", name(&self.flights[index].command)));
                let failed = Self::failed(&self.flights[index].command);
                self.flights[index].given_up = true;
                self.push(worker, attempt, Channel::Admin, Command::CheckAssigned, Some(failed));
            }
            2 | 3 => self.lose_answer(index),
            4 if self.comes_late(index) => {}
            _ => self.done(index),
        }
        if let Some(focus) = focus.filter(|focus| !focus.before)
            && self.dice.percent(focus.percent)
        {
            let part = self.workers[worker].part;
            self.strike(focus.fault, part);
        }
    }

    fn done(&mut self, index: usize) {
        let answer = self.execute(index);
        self.flights[index].answer = Some(answer);
    }

    fn lose_answer(&mut self, index: usize) {
        self.seen(Seen::AnswerLost);
        match Call::of(&self.flights[index].command) {
            Some(Call::Apply) => self.seen(Seen::LostReplyOfApply),
            Some(Call::Send) => self.seen(Seen::LostReplyOfSend),
            Some(Call::Commit) => self.seen(Seen::LostReplyOfCommit),
            Some(Call::Claim) => self.seen(Seen::LostReplyOfClaim),
            _ => {}
        }
        self.history(format!("the answer is lost to {}", name(&self.flights[index].command)));
        self.execute(index);
        self.flights[index].answer = Some(Self::failed(&self.flights[index].command));
        self.commit_is_unknown(index);
    }

    /// Another call of the same takeover fails while this one's answer is on its way: it comes when a later takeover is
    /// under way, or over.
    fn comes_late(&mut self, index: usize) -> bool {
        let Flight { worker, attempt, channel, .. } = self.flights[index];
        if !matches!(channel, Channel::Redis(_) | Channel::Transactions(_) | Channel::Producer) {
            return false;
        }
        self.seen(Seen::AnswerLate);
        self.history(format!("the answer comes late to {}", name(&self.flights[index].command)));
        self.done(index);
        self.flights[index].not_before = self.step + 10 + self.dice.below(60);
        self.commit_is_unknown(index);
        let failed = Self::failed(&Command::Release);
        self.push(worker, attempt, Channel::Admin, Command::CheckAssigned, Some(failed));
        true
    }

    fn commit_is_unknown(&mut self, index: usize) {
        if matches!(self.flights[index].command, Command::Transact(..)) {
            self.workers[self.flights[index].worker].commit_failed = true;
        }
    }

    /// A failure as the shell tells of it.
    pub(super) fn failed(command: &Command) -> Event {
        match command {
            Command::AskRange => Event::RangeUnknown(failure("ask for the end offset", "no answer")),
            _ => Event::Failed(failure("a call", "no answer")),
        }
    }

    /// A call fails. What is left of it: part of what was to be sent, at least once.
    fn undone(&mut self, index: usize) -> Event {
        let worker = self.flights[index].worker;
        match self.flights[index].command.clone() {
            Command::AskRange => {
                self.seen(Seen::EndUnknown);
                if self.broken == Broken::NoAnswerIsTakenForTheEnd {
                    let part = self.workers[worker].part;
                    let end = self.store.source(part).state.position.offset;
                    return Event::Range { start: self.start_of_log(part), end };
                }
            }
            Command::Send(delivery) if delivery.outputs.len() > 1 && self.dice.percent(50) => {
                self.seen(Seen::PartlySent);
                let sent = 1 + self.dice.below(delivery.outputs.len() - 1);
                self.send(worker, &delivery, sent);
            }
            Command::Transact(delivery, position) => {
                self.commit_is_unknown(index);
                if self.broken == Broken::OutputsLeaveTheirTransaction {
                    self.send(worker, &delivery, delivery.outputs.len());
                }
                if self.broken == Broken::OffsetOfAnOpenTransactionIsRead {
                    let part = self.workers[worker].part;
                    self.parts[part].kafka.commit(position);
                }
            }
            _ => {}
        }
        Self::failed(&self.flights[index].command)
    }

    /// Redis refuses, for a while, or fails in a way it should not; Kafka refuses an output for good.
    fn refused(&mut self, index: usize) -> Option<Event> {
        let Flight { worker, ref command, channel, reading_from, .. } = self.flights[index];
        if let Channel::Redis(_) = channel {
            let part = self.workers[worker].part;
            if std::mem::take(&mut self.parts[part].script_fails) {
                let failure =
                    Failure { transient: false, from_redis: true, ..failure("call Redis", "a script failed") };
                return Some(Event::Failed(failure));
            }
            let reads = matches!(command, Command::ReadOutbox(_) | Command::LookForRules);
            let refusing =
                self.refusing.filter(|refusing| self.step < refusing.until && !(reads && refusing.reads))?;
            if self.broken == Broken::RefusedWriteIsHalfDone && matches!(command, Command::Apply(..)) {
                let command = command.clone();
                self.run_script(part, command, reading_from, true);
            }
            let failure = Failure { from_redis: true, ..failure("call Redis", refusing.words) };
            return Some(Event::Failed(failure));
        }
        let sends = matches!(command, Command::Send(_) | Command::Transact(..));
        if sends && std::mem::take(&mut self.workers[worker].unsendable) {
            return Some(Event::Failed(Failure {
                transient: false,
                ..failure("send outputs", "the note is too large")
            }));
        }
        None
    }

    pub(super) fn execute(&mut self, index: usize) -> Event {
        let Flight { worker, producer, reading_from, attempt, .. } = self.flights[index];
        let command = self.flights[index].command.clone();
        let part = self.workers[worker].part;
        if self.trace {
            self.note(&format!("done for {worker}: {}", short(&command)));
        }
        match command {
            Command::OpenProducer => {
                if !self.workers[worker].foreign {
                    self.parts[part].kafka.producer += 1;
                    self.workers[worker].producer = self.parts[part].kafka.producer;
                }
                Event::ProducerOpen
            }
            Command::FetchCommitted => self.fetch_committed(worker),
            Command::AskRange => self.range(worker),
            Command::CommitStart(position) => self.commit(worker, position, true),
            Command::Commit(position) => self.commit(worker, position, false),
            Command::ReadFrom(_) => Event::Reading,
            Command::Send(delivery) => {
                self.send(worker, &delivery, delivery.outputs.len());
                Event::Sent(delivery.ticket)
            }
            Command::Transact(delivery, position) => {
                if producer != self.parts[part].kafka.producer && self.broken != Broken::ProducerDoesNotFence {
                    self.seen(Seen::TransactionFenced);
                    return Event::Failed(Failure { fenced: true, ..failure("commit a transaction", "fenced") });
                }
                self.transact(worker, &delivery, position)
            }
            Command::CheckAssigned => Event::Assigned(worker == self.parts[part].owner),
            Command::Apply(guard, batch, single) => {
                let (joined, loses_answer) = match self.joined(worker, attempt, &guard, &batch) {
                    Some(joined) => (Command::Apply(guard, Arc::new(joined), true), true),
                    None => (Command::Apply(guard, batch, single), false),
                };
                let event = self.run_script(part, joined, reading_from, false);
                self.unmute(worker, &event);
                if loses_answer { Self::failed(&Command::Release) } else { event }
            }
            Command::Heartbeat(..)
                if self.broken == Broken::OutboxIsReadUnguarded
                    && *self.workers[worker].machine.phase() == Phase::TakingOver =>
            {
                Event::Beat(Beat::Ok { outbox: 0, open_windows: 0 })
            }
            Command::Claim(claim) => self.claim(worker, claim),
            script => {
                let event = self.run_script(part, script, reading_from, false);
                self.unmute(worker, &event);
                event
            }
        }
    }

    fn run_script(&mut self, part: usize, command: Command, reading_from: i64, half: bool) -> Event {
        let before = if let Command::Apply(_, batch, _) = &command {
            let skipped = batch.from.0..reading_from.min(batch.to.0);
            let records = skipped.clone().any(|offset| !self.topic(part).is_gap(offset));
            records.then(|| self.store.era(part, self.store.claimed_with(part).max(self.parts[part].kafka.at())))
        } else {
            None
        };
        // A gap without a record skips nothing.
        let reading_from = if before.is_some() { reading_from } else { 0 };
        let topic = self.parts[part].topics.len() - 1;
        let event = self.store.run(
            redis::Call { now: self.now, part, command, truth: self.parts[part].kafka.at(), reading_from, half },
            topic,
        );
        match &event {
            Event::Applied(Applied::Ok(_)) => {
                if let Some(era) = before {
                    self.seen(Seen::GapContinued);
                    if self.parts[part].recovery.on_gap == OnGap::Stop {
                        self.violated("it goes on behind a gap, though on_gap = stop");
                    }
                    // What was delivered of the skipped records is not in the state.
                    let it = &mut self.parts[part];
                    it.fragments |= it.rolled_back || it.kafka.truth.offset > era.position.offset;
                    it.eras.push(era);
                    self.store.forget_the_past();
                }
            }
            Event::Updated(Updated::Ok { more: true, .. }) => self.seen(Seen::WaveGoesOn),
            Event::Updated(Updated::Wait { .. }) => self.seen(Seen::WaveWaits),
            Event::Closed(Closed::Ok { more: true, .. }) => self.seen(Seen::More),
            _ => {}
        }
        event
    }

    fn claim(&mut self, worker: usize, claim: Claim) -> Event {
        let part = self.workers[worker].part;
        let foreign = self.workers[worker].foreign;
        if foreign && !self.store.group_is_known() {
            return Self::failed(&Command::Release); // it would be first, and we the intruders
        }
        let (was_claimed, topic) = (self.store.source(part).claimed, self.parts[part].topics.len() - 1);
        let resets = self.store.source(part).resets(&claim);
        let began = claim.start.is_some() && !was_claimed || resets;
        let era = if resets { Some(self.store.era(part, self.parts[part].before_made_again)) } else { None };
        let call = redis::Call {
            now: self.now,
            part,
            command: Command::Claim(claim.clone()),
            truth: self.parts[part].kafka.at(),
            reading_from: 0,
            half: false,
        };
        let event = self.store.run(call, topic);
        if let Event::Claimed(_, Claimed::Ok(state)) = &event {
            let topic = self.store.source(part).topic;
            self.workers[worker].topic_of.insert(state.generation, topic);
            let nothing_known = claim.delivered.is_none_or(|delivered| delivered.watermark == Watermark::NEVER);
            self.workers[worker].began |= began;
            self.workers[worker].era = self.parts[part].eras.len();
            let it = &mut self.workers[worker];
            it.claimed_in = Some(it.machine.attempt());
            if began && !resets && (nothing_known || self.parts[part].kafka.is_lost()) {
                self.may_be_sent_again(part, claim.delivered.unwrap_or(Kafka::default().truth));
            }
            if let Some(era) = era {
                self.seen(Seen::TruncationReset);
                self.parts[part].eras.push(era);
                self.store.forget_the_past();
            } else if !was_claimed && let Some(mut era) = self.store.take_lost(part) {
                self.parts[part].generation_lost |= era.topic > 0;
                // A first start, when the committed offset is lost too, says nothing of what was delivered before it.
                let it = &mut self.parts[part];
                let known = claim.delivered.filter(|_| !nothing_known);
                era.until = known.map_or(Kafka::default().truth, |known| known.max(it.kafka.at()));
                it.fragments |= claim.start.is_some_and(|start| start < era.until.offset);
                self.parts[part].eras.push(era);
                self.began_anew(worker, &claim);
            }
        }
        event
    }

    /// The state was lost, and begins anew: by the policy only, unless there was nothing to lose.
    fn began_anew(&mut self, worker: usize, claim: &Claim) {
        let nothing_to_lose = claim.delivered.is_none_or(|delivered| delivered.watermark == Watermark::NEVER);
        let part = self.workers[worker].part;
        match self.workers[worker].recovery.on_state_loss {
            _ if nothing_to_lose => {}
            OnStateLoss::Stop => self.violated("lost state begins anew, though on_state_loss = stop"),
            OnStateLoss::Rebuild => {
                self.seen(Seen::StateRebuilt);
                self.parts[part].rebuilt = true;
                if claim.start.is_some_and(|start| start.0 > 0) {
                    self.parts[part].fragments = true;
                }
            }
            OnStateLoss::Resume => self.seen(Seen::StateResumed),
        }
    }

    /// The committed offset is lost, and with it what was delivered. Whoever goes on may send again what was sent, from
    /// the position that it takes for the delivered one; and it does not know of bad records before that.
    pub(super) fn may_be_sent_again(&mut self, part: usize, assumed: Position) {
        let it = &mut self.parts[part];
        let topic = it.topics.len() - 1;
        for sent in it.kafka.sent.iter().filter(|sent| sent.topic == topic && !sent.key.is_delivered(assumed)) {
            *it.repeatable.entry((topic, sent.key)).or_insert(0) += 1;
        }
        it.letters_at_risk.push((topic, it.kafka.truth.offset.0, assumed.offset.0));
    }

    fn fetch_committed(&mut self, worker: usize) -> Event {
        let it = &mut self.workers[worker];
        let kafka = &self.parts[it.part].kafka;
        let mut found = match self.broken {
            _ if it.foreign => Committed::None,
            Broken::CommittedIsReadBeforeFencing => it.before_fencing.clone(),
            Broken::UnknownCommitIsTakenForFailed if it.commit_failed => it.known.clone(),
            Broken::DeliveredIsReadBeforeTheClaim if it.claimed_in == Some(it.machine.attempt()) => {
                it.fetched.clone()
            }
            Broken::OffsetsLostGoUnseen if kafka.is_lost() => {
                Committed::At(Position::at(Offset(0), Watermark::NEVER))
            }
            _ => kafka.committed.clone(),
        };
        it.fetched = kafka.committed.clone();
        it.began = false;
        it.commit_failed = false;
        it.known = found.clone();
        if let (Broken::DeliveredWatermarkIsNotReached, Committed::At(position)) = (self.broken, &mut found) {
            it.muted_below = position.watermark;
            position.watermark = Watermark::NEVER;
        }
        Event::Committed(found)
    }

    fn range(&mut self, worker: usize) -> Event {
        let part = self.workers[worker].part;
        let (start, written, stable) = {
            let topic = self.topic(part);
            (topic.start, topic.written, topic.stable)
        };
        self.workers[worker].end = written;
        let position = self.store.source(part).state.position.offset.0;
        let running = *self.workers[worker].machine.phase() == Phase::Running;
        if running && stable == position && written > stable {
            self.seen(Seen::EndHeldByATransaction);
        }
        let (start, end) = match self.broken {
            Broken::EndHidesOpenTransactions => (start, stable),
            Broken::SilenceIsTakenForEvidence if running => (start, position),
            Broken::GapGoesUnseen => (0, written),
            Broken::TopicMadeAgainGoesUnseen => {
                (start, written.max(position).max(self.parts[part].kafka.truth.offset.0))
            }
            _ => (start, written),
        };
        Event::Range { start: Offset(start), end: Offset(end) }
    }

    /// Through the consumer: the broker asks whether it is a member of the group, not whether the partition is its own.
    fn commit(&mut self, worker: usize, position: Position, start: bool) -> Event {
        let part = self.workers[worker].part;
        if self.workers[worker].foreign {
            return Event::StartCommitted; // in its own group
        }
        // A first commit on its way is done before its connection's next request, which hands the partition over; and a
        // worker that has handed it over asks for none.
        if worker != self.parts[part].owner && (start || self.dice.percent(50)) {
            return Event::Failed(Failure { fenced: true, ..failure("commit", "not a member of this generation") });
        }
        let it = &mut self.parts[part];
        it.kafka.commit(position);
        if !start {
            if self.workers[worker].era < it.eras.len() {
                it.from_before = it.from_before.max(position);
            }
            return Event::CommitDone;
        }
        self.workers[worker].fetched = Committed::At(position);
        Event::StartCommitted
    }

    fn transact(&mut self, worker: usize, delivery: &Delivery, mut position: Position) -> Event {
        let part = self.workers[worker].part;
        self.send(worker, delivery, delivery.outputs.len());
        for output in std::mem::take(&mut self.workers[worker].unmuted) {
            let delivery = Delivery { outputs: Arc::new(vec![output]), ..delivery.clone() };
            self.send(worker, &delivery, 1);
        }
        let answer = self.commits_with_open_windows(worker, delivery, &mut position);
        if self.broken == Broken::CommitLosesItsUpdates {
            position.updates = false;
        }
        if self.broken == Broken::CommitLosesTheWatermark {
            position.watermark = Watermark::NEVER;
        }
        self.parts[part].kafka.commit(position);
        answer.unwrap_or(Event::Transacted)
    }

    pub(super) fn send(&mut self, worker: usize, delivery: &Delivery, count: usize) {
        let part = self.workers[worker].part;
        // What is pending of a topic that was made again may be sent until somebody sees that it was.
        let topic = self.workers[worker].topic_of[&delivery.generation];
        for output in &delivery.outputs[..count] {
            let mut sent = Sent::new(part, output, topic, delivery.generation, self.step);
            if let Key::Candle(symbol, interval, start, revision) = sent.key {
                if revision == 0 && self.workers[worker].muted_below.passes(start + interval) {
                    continue;
                }
                if let Some(count) = self.store.counted.get(&(part, (symbol, interval, start), revision)) {
                    sent.key = Key::Candle(symbol, interval, start, *count);
                }
            }
            if let Outgoing::DeadLetter { offset, record: Some(_), .. } = output
                && offset.0 < self.workers[worker].took_over_at
            {
                self.seen(Seen::LetterReadAgain);
            }
            if self.trace {
                self.note(&format!("sent: {:?} {:?}", sent.key, sent.content));
            }
            self.parts[part].kafka.sent.push(sent);
        }
    }
}
