//! Rules of the protocol, each taken out in turn, to show that its lack is noticed.
//!
//! Rules of the scripts and of Kafka are taken out where the simulation plays their part. Rules of the state machine
//! are taken out between it and the world: its commands are carried out, or its answers given, as if a machine without
//! the rule had asked. The machine itself knows nothing of this.

use std::sync::Arc;

use tickwatch::config::Guarantee;
use tickwatch::domain::{Batch, Entry, Output, Position};
use tickwatch::store::scripts::{Applied, Closed, Guard, Updated};
use tickwatch::worker::batching::{Bounds, Buffer};
use tickwatch::worker::protocol::{Command, Delivery, Event, Outgoing};

use super::kafka::named;
use super::log::{BEGIN, SYMBOLS};
use super::plan::INTERVALS;
use super::schedule::Simulation;
use super::tally::Seen;

/// One rule that is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    Nothing,
    // The guard, each of its parts alone.
    GuardIgnoresTheToken,
    GuardIgnoresTheOffset,
    GuardIgnoresTheWatermark,
    GuardIgnoresTheTail,
    /// An idle owner learns of a rollback by its heartbeat only.
    HeartbeatIsNotGuarded,
    /// What was pending at a takeover is read without seeing afterwards that the state is the claimed one.
    OutboxIsReadUnguarded,
    /// A write that Redis refuses, out of memory, is half done: the position moves, the outputs are lost.
    RefusedWriteIsHalfDone,
    // Section 7, item 1: the order of taking over.
    CommittedIsReadBeforeFencing,
    UnknownCommitIsTakenForFailed,
    OffsetOfAnOpenTransactionIsRead,
    /// An answer to a call of an earlier takeover is heard.
    AnswersOfBeforeAreHeard,
    // Item 2: where a batch ends.
    BatchCrossesTheDeliveredOffset,
    BatchIsNotCutBeforeALateTick,
    // Item 3.
    DeliveredWatermarkIsNotReached,
    CommitLosesTheWatermark,
    // Item 4.
    CommitWithOpenWindows,
    // Item 5: what counts as delivered.
    SendIsAcknowledgedAtOnce,
    AnyAcknowledgementCounts,
    OutputsLeaveTheirTransaction,
    ProducerDoesNotFence,
    // Item 6.
    RevisionIsACount,
    // The two positions.
    DeliveredNotificationsAreSentAgain,
    DeliveredCandlesAreSentAgain,
    DeliveredUpdatesAreSentAgain,
    ReadingStartsAtTheStatePosition,
    ReadingStartsAtTheHigherPosition,
    TrimGoesOneTooFar,
    // Updates of open candles.
    ClosedCandlesAreSentAsOpen,
    ChangesAreForgottenAtClaim,
    CommitLosesItsUpdates,
    // What is found at claim.
    StateLossGoesUnseen,
    OffsetsLostGoUnseen,
    GapGoesUnseen,
    TopicMadeAgainGoesUnseen,
    /// What is delivered is known from before the claim, and so may be of the topic before.
    DeliveredIsReadBeforeTheClaim,
    OtherGroupGoesUnseen,
    // Section 8.
    SilenceIsTakenForEvidence,
    NoAnswerIsTakenForTheEnd,
    EndHidesOpenTransactions,
    EndIsTheLastRecord,
}

impl Broken {
    pub(super) const ALL: &[Broken] = &[
        Broken::GuardIgnoresTheToken,
        Broken::GuardIgnoresTheOffset,
        Broken::GuardIgnoresTheWatermark,
        Broken::GuardIgnoresTheTail,
        Broken::HeartbeatIsNotGuarded,
        Broken::OutboxIsReadUnguarded,
        Broken::RefusedWriteIsHalfDone,
        Broken::CommittedIsReadBeforeFencing,
        Broken::UnknownCommitIsTakenForFailed,
        Broken::OffsetOfAnOpenTransactionIsRead,
        Broken::AnswersOfBeforeAreHeard,
        Broken::BatchCrossesTheDeliveredOffset,
        Broken::BatchIsNotCutBeforeALateTick,
        Broken::DeliveredWatermarkIsNotReached,
        Broken::CommitLosesTheWatermark,
        Broken::CommitWithOpenWindows,
        Broken::SendIsAcknowledgedAtOnce,
        Broken::AnyAcknowledgementCounts,
        Broken::OutputsLeaveTheirTransaction,
        Broken::ProducerDoesNotFence,
        Broken::RevisionIsACount,
        Broken::DeliveredNotificationsAreSentAgain,
        Broken::DeliveredCandlesAreSentAgain,
        Broken::DeliveredUpdatesAreSentAgain,
        Broken::ClosedCandlesAreSentAsOpen,
        Broken::ChangesAreForgottenAtClaim,
        Broken::CommitLosesItsUpdates,
        Broken::ReadingStartsAtTheStatePosition,
        Broken::ReadingStartsAtTheHigherPosition,
        Broken::TrimGoesOneTooFar,
        Broken::StateLossGoesUnseen,
        Broken::OffsetsLostGoUnseen,
        Broken::GapGoesUnseen,
        Broken::TopicMadeAgainGoesUnseen,
        Broken::DeliveredIsReadBeforeTheClaim,
        Broken::OtherGroupGoesUnseen,
        Broken::SilenceIsTakenForEvidence,
        Broken::NoAnswerIsTakenForTheEnd,
        Broken::EndHidesOpenTransactions,
        Broken::EndIsTheLastRecord,
    ];

    /// Whether schedules send open candles. Those that show the lack of another rule are few for some, and stay as they
    /// are.
    pub(super) fn goes_with_updates(self) -> bool {
        matches!(
            self,
            Broken::Nothing
                | Broken::DeliveredUpdatesAreSentAgain
                | Broken::ClosedCandlesAreSentAsOpen
                | Broken::ChangesAreForgottenAtClaim
                | Broken::CommitLosesItsUpdates
        )
    }

    /// The guarantee under which its lack shows.
    pub(super) fn guarantee(self) -> Guarantee {
        match self {
            Broken::SendIsAcknowledgedAtOnce
            | Broken::AnyAcknowledgementCounts
            | Broken::DeliveredIsReadBeforeTheClaim => Guarantee::AtLeastOnce,
            _ => Guarantee::ExactlyOnce,
        }
    }
}

impl Simulation {
    /// The batch that a machine would make that does not end where it has to: this one, and what follows.
    pub(super) fn joined(&self, worker: usize, attempt: u64, guard: &Guard, batch: &Batch) -> Option<Batch> {
        let crosses = match self.broken {
            Broken::BatchCrossesTheDeliveredOffset => {
                let delivered = self.workers[worker].machine.snapshot().delivered.offset;
                attempt == self.workers[worker].machine.attempt() && batch.to == delivered && batch.from < delivered
            }
            Broken::BatchIsNotCutBeforeALateTick => true,
            _ => false,
        };
        let part = self.workers[worker].part;
        if !crosses || self.store.source(part).refusal(guard, self.broken).is_some() {
            return None;
        }
        let topic = self.topic(part);
        let (chunk, _) = topic.chunk(SYMBOLS[part], batch.to.0, topic.stable, 3);
        if self.broken == Broken::BatchIsNotCutBeforeALateTick {
            let first = chunk.records.first()?;
            let cut = chunk.ticks_of(first).iter().any(|tick| {
                INTERVALS.iter().any(|interval| {
                    let end = tick.ts - tick.ts.rem_euclid(*interval) + interval;
                    batch.watermark_after.passes(end) && !batch.watermark_before.passes(end)
                })
            });
            if !cut {
                return None;
            }
        }
        let mut buffer = Buffer::default();
        buffer.push(Arc::new(chunk));
        let position = Position::at(batch.to, batch.watermark_after);
        let bounds = Bounds { ticks: 100, symbols: 100, records: 100, until: None, clock: BEGIN + self.now as i64 };
        let settings = self.plan.batch_settings(&self.parts[part].recovery);
        let more = buffer.next_batch(&settings, position, None, bounds)?.batch;
        let mut joined = batch.clone();
        (joined.to, joined.watermark_after) = (more.to, more.watermark_after);
        joined.max_ts = joined.max_ts.max(more.max_ts);
        joined.last_record = more.last_record.or(joined.last_record);
        joined.symbols.extend(more.symbols.iter().cloned());
        joined.extras.extend(more.extras.iter().cloned());
        Some(joined)
    }

    /// Commits the position of the state though windows at or below its watermark are open: with every output that is
    /// there, but without those that closing them will make.
    pub(super) fn commits_with_open_windows(
        &mut self,
        worker: usize,
        delivery: &Delivery,
        position: &mut Position,
    ) -> Option<Event> {
        let part = self.workers[worker].part;
        if self.broken != Broken::CommitWithOpenWindows || !self.store.source(part).is_due() {
            return None;
        }
        let state = &self.store.source(part).state;
        let (truth, ahead) = (self.parts[part].kafka.truth, state.position);
        let letters = |entry: &&Entry| matches!(entry.output, Output::DeadLetter { .. });
        if ahead <= *position || state.outbox.iter().any(|entry| letters(&entry)) {
            return None;
        }
        let pending = state.outbox.iter().filter(|entry| !entry.is_delivered(truth));
        let sent = &self.parts[part].kafka.sent;
        let unsent = pending.filter(|entry| !sent.iter().any(|sent| sent.key == named(part, entry).0));
        let outputs: Vec<Outgoing> = unsent.cloned().map(Outgoing::Entry).collect();
        let count = outputs.len();
        let delivery = Delivery { outputs: Arc::new(outputs), ..delivery.clone() };
        self.send(worker, &delivery, count);
        *position = ahead;
        Some(Self::failed(&Command::Release))
    }

    /// Keeps what a machine mutes, to be sent with its next transaction.
    pub(super) fn unmute(&mut self, worker: usize, event: &Event) {
        let entries = match event {
            Event::Applied(Applied::Ok(effects)) => &effects.outputs,
            Event::Closed(Closed::Ok { outputs, .. }) | Event::Updated(Updated::Ok { outputs, .. }) => outputs,
            Event::Outbox(entries) => entries,
            _ => return,
        };
        let delivered = self.workers[worker].machine.snapshot().delivered;
        let mut muted = entries.iter().filter(|entry| entry.is_delivered(delivered)).peekable();
        if muted.peek().is_none() {
            return;
        }
        let wanted = |entry: &&Entry| match entry.output {
            Output::Notification(_) => self.broken == Broken::DeliveredNotificationsAreSentAgain,
            Output::Candle(_) => self.broken == Broken::DeliveredCandlesAreSentAgain,
            Output::Update(_) => self.broken == Broken::DeliveredUpdatesAreSentAgain,
            _ => false,
        };
        let unmuted: Vec<Outgoing> = muted.filter(wanted).cloned().map(Outgoing::Entry).collect();
        self.seen(Seen::Muted);
        self.workers[worker].unmuted.extend(unmuted);
    }
}
