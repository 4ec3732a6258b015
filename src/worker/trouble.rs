//! When something goes wrong: try again from the start of the takeover, stop loudly, or give the partition up.

use super::delivery::Prefix;
use super::machine::{Machine, Phase};
use super::protocol::{Command, Failure, Hold, HoldState, Mono, Notice};
use super::silence::Ask;
use super::updating::Updates;
use crate::store::scripts::Refusal;

/// Pause before the first retry of a takeover, ms; doubled up to [`LONGEST_BACKOFF`].
const FIRST_BACKOFF: u64 = 50;
const LONGEST_BACKOFF: u64 = 5_000;

impl Machine {
    pub(super) fn refused(&mut self, now: Mono, refusal: Refusal) {
        self.commands.push(Command::Tell(match refusal {
            Refusal::Fenced => Notice::Fenced,
            Refusal::Moved => Notice::Moved,
        }));
        self.back_off(now);
    }

    pub(super) fn fail(&mut self, now: Mono, failure: Failure) {
        if matches!(self.phase, Phase::Stopped(_)) {
            return;
        }
        if failure.fenced {
            self.commands.push(Command::Tell(Notice::Fenced));
            self.back_off(now);
        } else if failure.transient {
            self.back_off(now);
            self.commands.push(Command::Tell(Notice::Retrying(failure, self.backoff)));
        } else {
            let kind = if failure.from_redis { "script" } else { "produce" };
            self.stop(kind, format!("{}: {}", failure.what, failure.message));
        }
    }

    fn back_off(&mut self, now: Mono) {
        self.backoff = (self.backoff * 2).clamp(FIRST_BACKOFF, LONGEST_BACKOFF);
        self.forget();
        if self.stopping {
            return self.release();
        }
        self.phase = Phase::BackingOff(now + self.backoff);
        self.hold = Hold { state: HoldState::Lagging, reason: "being taken over again".into() };
    }

    pub(super) fn assigned(&mut self, assigned: bool) {
        if self.phase != Phase::CheckingAssignment {
            return;
        }
        if assigned {
            self.start_takeover();
        } else {
            self.release();
        }
    }

    /// Forgets everything but the settings: what is under way is answered in vain.
    pub(super) fn forget(&mut self) {
        self.attempt += 1;
        self.finished = false;
        self.guard = None;
        self.buffer.clear();
        self.reader_end = None;
        self.rereading = false;
        self.verify = None;
        self.calling = false;
        self.built = None;
        self.batch_records = usize::MAX;
        self.sealed = false;
        self.deliveries.clear();
        self.candidate = Prefix::default();
        self.committing = None;
        self.trim = None;
        self.trimming = false;
        self.updates = Updates::default();
        self.ask = Ask::After(0);
        self.max_ts = None;
        self.next_due = None;
    }

    /// Stops the partition, loudly. It stays assigned, so that nobody else walks into the same.
    pub(super) fn stop(&mut self, kind: &'static str, reason: String) {
        let guard = self.guard.take();
        self.forget();
        self.guard = guard;
        self.hold = Hold { state: HoldState::Stopped, reason: reason.clone() };
        if let Some(guard) = &self.guard {
            self.commands.push(Command::Heartbeat(guard.clone(), self.hold.clone()));
        }
        self.commands.push(Command::Tell(Notice::Stopped { kind, reason: reason.clone() }));
        self.phase = Phase::Stopped(reason);
        if self.stopping {
            self.release();
        }
    }

    pub(super) fn stop_gracefully(&mut self) {
        self.stopping = true;
        if self.phase != Phase::Running {
            self.release();
        }
    }

    pub(super) fn release(&mut self) {
        if self.phase != Phase::Released {
            self.forget();
            self.phase = Phase::Released;
            self.commands.push(Command::Release);
        }
    }
}
