//! What is complete is committed, what is committed is trimmed.

use std::sync::Arc;

use super::machine::Machine;
use super::protocol::{Command, Delivery, Mono};
use crate::config::Guarantee;

/// A position that only moved, without outputs, is committed this often at most, ms: a takeover reads a little more.
pub(super) const IDLE_COMMIT: u64 = 1_000;

impl Machine {
    pub(super) fn undelivered(&self) -> usize {
        self.deliveries.len() + self.candidate.count + self.committing.as_ref().map_or(0, |prefix| prefix.count)
    }

    pub(super) fn deliver(&mut self, now: Mono) {
        let exactly_once = self.settings.guarantee == Guarantee::ExactlyOnce;
        if !exactly_once {
            while let Some((ticket, outputs)) = self.deliveries.take_unsent() {
                let delivery = Delivery { ticket, generation: self.generation, outputs };
                self.commands.push(Command::Send(delivery));
            }
        }
        let prefix = self.deliveries.take_prefix(!exactly_once);
        if prefix.position.is_some() {
            self.candidate.position = prefix.position;
            self.candidate.last = prefix.last.or(self.candidate.last);
            self.candidate.count += prefix.count;
            self.candidate.outputs.extend(prefix.outputs);
        }
        self.commit(now, exactly_once);
        if !self.trimming
            && let (Some(last), Some(guard)) = (self.trim.take(), &self.guard)
        {
            self.trimming = true;
            self.commands.push(Command::Trim(guard.token.clone(), last));
        }
    }

    fn commit(&mut self, now: Mono, exactly_once: bool) {
        let Some(position) = self.candidate.position else { return };
        if position <= self.delivered {
            // Behind the delivered position everything is muted: there is nothing to commit, only to trim.
            let prefix = std::mem::take(&mut self.candidate);
            self.trim = prefix.last.or(self.trim);
            return;
        }
        let soon = self.candidate.count > 0
            || self.stopping
            || self.settings.stop_at.is_some_and(|end| position.offset >= end)
            || now >= self.last_commit + IDLE_COMMIT;
        if self.committing.is_some() || !soon {
            return;
        }
        let mut prefix = std::mem::take(&mut self.candidate);
        if exactly_once {
            let outputs = Arc::new(std::mem::take(&mut prefix.outputs));
            let delivery = Delivery { ticket: 0, generation: self.generation, outputs };
            self.commands.push(Command::Transact(delivery, position));
        } else {
            self.commands.push(Command::Commit(position));
        }
        self.committing = Some(prefix);
    }

    pub(super) fn committed(&mut self, now: Mono) {
        let Some(prefix) = self.committing.take() else { return };
        self.last_commit = now;
        self.backoff = 0;
        if let Some(position) = prefix.position {
            self.delivered = self.delivered.max(position);
        }
        self.trim = prefix.last.or(self.trim);
    }
}
