//! Open candles, sent as they change: a wave of pages, at most once per interval.
//!
//! Updates move neither offset nor watermark. So a segment that holds some is sealed only once the offset has moved past
//! theirs, or nothing more can come under theirs, at a position that says so: whatever was committed before covers none
//! of them. More comes where batches were applied between the pages of a wave and nothing after it: what they changed is
//! for the next wave, and the last page waits with it.

use super::machine::{Machine, Phase};
use super::protocol::{Command, Mono};
use crate::domain::{Entry, Offset, Output, Position};
use crate::store::scripts::{Guard, Updated};

/// Where the updates of a partition stand.
#[derive(Debug)]
pub(super) struct Updates {
    /// Something may have changed since the last wave began.
    changed: bool,
    /// No wave begins before this.
    not_before: Mono,
    /// A wave has begun and has more pages.
    under_way: bool,
    /// A batch was applied since the last page, so that the next is due before another batch.
    has_its_turn: bool,
    /// Updates were filed under this offset, and more may come.
    open_at: Option<Offset>,
    /// The updates under this offset are all there is.
    complete_at: Option<Offset>,
}

impl Default for Updates {
    /// Of a partition that was just taken over: what the owner before left is not known.
    fn default() -> Updates {
        Updates {
            changed: true,
            not_before: 0,
            under_way: false,
            has_its_turn: true,
            open_at: None,
            complete_at: None,
        }
    }
}

impl Machine {
    /// A batch was applied.
    pub(super) fn note_change(&mut self) {
        self.updates.changed = true;
        self.updates.has_its_turn = true;
    }

    /// The owner before left these in the outbox, at this position.
    pub(super) fn take_updates_left(&mut self, position: Position, entries: &[Entry]) {
        let pending = |entry: &Entry| {
            matches!(entry.output, Output::Update(_))
                && entry.id.offset == position.offset
                && !entry.is_delivered(self.delivered)
        };
        if !entries.iter().any(pending) {
            return;
        }
        // Without updates the claim has dropped what the wave had left.
        if self.settings.update_interval.is_some() {
            (self.updates.open_at, self.updates.under_way) = (Some(position.offset), true);
        } else {
            self.updates.complete_at = Some(position.offset);
        }
    }

    /// A delivered position that covers updates of its offset goes on doing so.
    pub(super) fn take_delivered_updates(&mut self) {
        if self.delivered.updates {
            self.updates.complete_at = Some(self.delivered.offset);
        }
    }

    /// Whether the newest segment has to stay open for its updates.
    pub(super) fn holds_updates(&self, position: Position) -> bool {
        self.updates.open_at == Some(position.offset)
    }

    /// The position at which a segment is sealed now.
    pub(super) fn sealing_position(&self, position: Position) -> Position {
        Position { updates: self.updates.complete_at == Some(position.offset), ..position }
    }

    /// Whether a page is to be asked for, now or, if no wave is under way, once its time has come.
    fn wants_update(&self, position: Position) -> bool {
        if self.settings.update_interval.is_none() {
            return false;
        }
        // What is held up by the end of its wave cannot wait for anything.
        self.holds_updates(position)
            || ((self.updates.changed || self.updates.under_way)
                && !self.stopping
                && !self.finished
                && position.offset >= self.delivered.offset
                && self.undelivered() < self.settings.max_undelivered.div_ceil(2))
    }

    /// Whether a page is due, before or after (`idle`) the next batch.
    pub(super) fn update_is_due(&self, now: Mono, position: Position, idle: bool) -> bool {
        self.wants_update(position)
            && (idle || self.updates.has_its_turn)
            && (self.updates.under_way || now >= self.updates.not_before)
    }

    /// When a wave wants to begin.
    pub(super) fn update_at(&self) -> Mono {
        match &self.guard {
            Some(guard) if self.phase == Phase::Running && self.wants_update(guard.position) => {
                self.updates.not_before
            }
            _ => Mono::MAX,
        }
    }

    /// Told to end while updates wait for the next wave: they are left to the next owner.
    pub(super) fn leaves_updates(&self, now: Mono) -> bool {
        let waits = !self.updates.under_way && now < self.updates.not_before;
        let held = self.guard.as_ref().is_some_and(|guard| self.holds_updates(guard.position));
        held && waits && self.deliveries.is_newest_only()
    }

    /// Windows were closed: less is left for the next wave, perhaps nothing.
    pub(super) fn look_again_for_updates(&mut self) {
        let held = self.guard.as_ref().is_some_and(|guard| self.holds_updates(guard.position));
        self.updates.under_way |= held;
    }

    pub(super) fn ask_for_update(&mut self, guard: Guard) {
        self.updates.changed &= self.updates.under_way;
        self.updates.has_its_turn = false;
        self.call(Command::Update(guard));
    }

    pub(super) fn updated(&mut self, now: Mono, reply: Updated) {
        self.calling = false;
        match reply {
            Updated::Ok { more, outputs, tail, left } => {
                let Some(guard) = &mut self.guard else { return };
                guard.tail = tail;
                let offset = guard.position.offset;
                if !outputs.is_empty() {
                    self.unseal();
                    self.updates.open_at = Some(offset);
                    self.deliveries.add_entries(outputs, self.delivered, |_| None);
                }
                self.updates.under_way = more;
                if !more {
                    self.end_wave(offset, now + self.settings.update_interval.unwrap_or_default(), left);
                }
            }
            Updated::Wait { ms, left } => {
                let Some(offset) = self.guard.as_ref().map(|guard| guard.position.offset) else { return };
                self.end_wave(offset, now + ms, left);
            }
            Updated::Refused(refusal) => self.refused(now, refusal),
        }
    }

    fn end_wave(&mut self, offset: Offset, not_before: Mono, left: u64) {
        self.updates.under_way = false;
        self.updates.not_before = not_before;
        self.updates.changed |= left > 0;
        if left == 0 && self.updates.open_at.take() == Some(offset) {
            self.updates.complete_at = Some(offset);
        }
    }
}
