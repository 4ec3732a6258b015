//! Time on a quiet partition, and what holds it back.
//!
//! A window closes because a later tick proved it, or because the broker answered that nothing more is there; then
//! time passes at the pace of the clock, on the partition's own time line. Never on silence alone.

use super::machine::{Machine, Phase};
use super::protocol::{Command, Hold, HoldState, Mono};
use crate::domain::{Offset, Watermark};
use crate::store::scripts::Guard;

/// Pause before the broker is asked again whether a partition is drained, ms.
pub(super) const ASK_AGAIN: u64 = 100;

/// Nothing new for this long, ms, is called quiet.
const QUIET_AFTER: u64 = 1_000;

/// The question whether the partition is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// Not asked; not before this time.
    After(Mono),
    /// Asked at this reader position; drained, time may pass to this watermark.
    Asked(Offset, i64),
    /// Drained: to be advanced to this watermark with the next call.
    Drained(i64),
}

impl Machine {
    /// When time on a drained partition reaches the earliest open window.
    pub(super) fn silence_ends_at(&self) -> Option<Mono> {
        let (due, max_ts) = (self.next_due?, self.max_ts?);
        self.reader_end?;
        Some(self.max_ts_at + u64::try_from(due - max_ts + self.grace()).unwrap_or(0))
    }

    fn grace(&self) -> i64 {
        self.settings.batch.lateness.max(self.settings.idle_grace)
    }

    pub(super) fn let_time_pass(&mut self, now: Mono, guard: Guard) {
        let position = guard.position;
        if let Ask::Drained(to) = self.ask {
            self.ask = Ask::After(now + ASK_AGAIN);
            return self.call(Command::Advance(guard, Watermark::at(to), Some(self.grace())));
        }
        let (Ask::After(at), Some(ends_at), Some(max_ts)) = (self.ask, self.silence_ends_at(), self.max_ts) else {
            return;
        };
        let drained = self.buffer.is_empty() && self.reader_end == Some(position.offset);
        if drained && now >= at && now >= ends_at && position.offset >= self.delivered.offset {
            let to = max_ts + (now - self.max_ts_at) as i64 - self.grace();
            self.ask = Ask::Asked(position.offset, to);
            self.commands.push(Command::AskRange);
        }
    }

    pub(super) fn learn_end(&mut self, now: Mono, end: Offset) {
        let Ask::Asked(position, to) = self.ask else { return };
        let still = self.reader_end == Some(position) && self.buffer.is_empty();
        self.ask = if still && end == position { Ask::Drained(to) } else { Ask::After(now + ASK_AGAIN) };
    }

    pub(super) fn update_hold(&mut self, now: Mono) {
        if self.phase != Phase::Running {
            return;
        }
        let hold = |state, reason: String| Hold { state, reason };
        let waiting = self.buffer.len();
        let quiet_for = now.saturating_sub(self.last_record_at);
        self.hold = if self.undelivered() >= self.settings.max_undelivered {
            hold(HoldState::Lagging, format!("{} outputs wait for Kafka to acknowledge them", self.undelivered()))
        } else if self.rereading {
            hold(HoldState::Lagging, "reading what was applied but not delivered again".into())
        } else if waiting > 0 {
            let state = if waiting > self.settings.max_batch { HoldState::Lagging } else { HoldState::Current };
            hold(state, format!("{waiting} records read, not yet applied"))
        } else if self.reader_end.is_none() && quiet_for > QUIET_AFTER {
            hold(HoldState::Asking, "waiting for the broker to send the next records".into())
        } else if self.next_due.is_some() && self.silence_ends_at().is_some_and(|at| now >= at) {
            let reason =
                "time may not pass: the broker holds offsets that are not readable yet (an open transaction)";
            hold(HoldState::Asking, reason.into())
        } else if quiet_for > QUIET_AFTER {
            hold(HoldState::Quiet, "nothing new; time passes with the clock once the grace is over".into())
        } else {
            hold(HoldState::Current, String::new())
        };
    }
}
