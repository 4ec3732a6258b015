//! The way from an applied batch to a delivered position: segments in order, each with its outputs.
//!
//! A segment begins with a batch (or an advance, or what the owner before left in the outbox) and is sealed when no
//! window at or below its watermark is open. *Delivered* is the longest prefix of sealed segments whose outputs are
//! all acknowledged.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::batching::RecordRef;
use super::protocol::Outgoing;
use crate::domain::{Entry, Offset, OutboxId, Output, Position};

/// Segments on their way, oldest first.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    segments: VecDeque<Segment>,
    next_ticket: u64,
    /// Outputs in all segments.
    outputs: usize,
}

#[derive(Debug, Default)]
struct Segment {
    /// Outputs not yet handed out to be sent.
    unsent: Vec<Outgoing>,
    /// Outputs held so far, for the bound.
    outputs: usize,
    /// Tickets sent and not acknowledged.
    pending: Vec<u64>,
    /// Entries of the outbox whose record's bytes are still to be read again, by offset.
    wanted: BTreeMap<Offset, Vec<String>>,
    /// Reading has to pass this offset first: bad records before it have no entry in the outbox.
    covers: Option<Offset>,
    /// Position at the end, once sealed.
    sealed: Option<Position>,
    /// Last outbox entry in it, delivered with it.
    last: Option<OutboxId>,
}

impl Segment {
    fn is_complete(&self) -> bool {
        self.sealed.is_some() && self.covers.is_none() && self.wanted.is_empty()
    }
}

/// A prefix of segments that is ready: delivered, or ready for one transaction.
#[derive(Debug, Clone, Default)]
pub(super) struct Prefix {
    /// Position at its end.
    pub position: Option<Position>,
    /// Last outbox entry in it.
    pub last: Option<OutboxId>,
    /// Outputs to send (exactly once), or the number sent (at least once).
    pub outputs: Vec<Outgoing>,
    /// Number of outputs in it.
    pub count: usize,
}

impl Deliveries {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        // Tickets go on counting: an answer to one of before means nothing now.
        *self = Deliveries { next_ticket: self.next_ticket, ..Deliveries::default() };
    }

    /// Begins a segment. `covers`: it also holds the dead letters of bad records up to this offset, read again.
    pub(super) fn begin(&mut self, covers: Option<Offset>) {
        self.segments.push_back(Segment { covers, ..Segment::default() });
    }

    /// Adds outbox entries to the newest segment, but those delivered already. A dead letter takes the record's bytes
    /// from `find`, or waits until it is read again.
    pub(super) fn add_entries(
        &mut self,
        entries: Vec<Entry>,
        delivered: Position,
        find: impl Fn(Offset) -> Option<RecordRef>,
    ) {
        let Some(segment) = self.segments.back_mut() else { return };
        for entry in entries {
            segment.last = Some(entry.id);
            if entry.is_delivered(delivered) {
                continue;
            }
            segment.outputs += 1;
            self.outputs += 1;
            match entry.output {
                Output::DeadLetter { reason } => match find(entry.id.offset) {
                    Some(record) => segment.unsent.push(dead_letter(entry.id.offset, reason, Some(record))),
                    None => segment.wanted.entry(entry.id.offset).or_default().push(reason),
                },
                _ => segment.unsent.push(Outgoing::Entry(entry)),
            }
        }
    }

    /// Adds the dead letter of a record that could not be decoded to the newest segment.
    pub(super) fn add_bad_record(&mut self, record: RecordRef, delivered: Position) {
        if let Some(segment) = self.segments.back_mut() {
            self.outputs += segment.add_bad_record(record, delivered);
        }
    }

    /// A record below the state position was read again: bytes for dead letters that wait, and bad records that have
    /// no entry.
    pub(super) fn reread(&mut self, record: &RecordRef, delivered: Position) {
        let offset = record.record().offset;
        for segment in &mut self.segments {
            segment.miss_below(offset);
            if segment.covers.is_some_and(|covers| offset < covers) {
                self.outputs += segment.add_bad_record(record.clone(), delivered);
            }
            for reason in segment.wanted.remove(&offset).unwrap_or_default() {
                segment.unsent.push(dead_letter(offset, reason, Some(record.clone())));
            }
        }
    }

    /// The reader has passed everything below `offset`: what was waited for does not exist any more.
    pub(super) fn passed(&mut self, offset: Offset) {
        for segment in &mut self.segments {
            segment.miss_below(offset);
            if segment.covers.is_some_and(|covers| covers <= offset) {
                segment.covers = None;
            }
        }
    }

    /// Seals the newest segment at `position`; joins it to the one before if neither has outputs.
    pub(super) fn seal(&mut self, position: Position) {
        if let Some(segment) = self.segments.back_mut() {
            segment.sealed = Some(position);
        }
        let count = self.segments.len();
        if count >= 2 && self.segments[count - 1].outputs == 0 && self.segments[count - 2].is_idle() {
            let newer = self.segments.pop_back();
            if let (Some(newer), Some(older)) = (newer, self.segments.back_mut()) {
                older.sealed = newer.sealed;
                older.last = newer.last.or(older.last);
            }
        }
    }

    /// Outputs to be sent now, with the ticket that acknowledges them (at least once).
    pub(super) fn take_unsent(&mut self) -> Option<(u64, Arc<Vec<Outgoing>>)> {
        let segment = self.segments.iter_mut().find(|segment| !segment.unsent.is_empty())?;
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        segment.pending.push(ticket);
        Some((ticket, Arc::new(std::mem::take(&mut segment.unsent))))
    }

    /// All outputs of `ticket` are acknowledged.
    pub(super) fn acknowledge(&mut self, ticket: u64) {
        for segment in &mut self.segments {
            segment.pending.retain(|pending| *pending != ticket);
        }
    }

    /// Takes the longest prefix of complete segments. `acknowledged`: whose outputs are also sent and acknowledged
    /// (at least once); else they are in the result (exactly once).
    pub(super) fn take_prefix(&mut self, acknowledged: bool) -> Prefix {
        let mut prefix = Prefix::default();
        while let Some(segment) = self.segments.front() {
            let ready = !acknowledged || (segment.unsent.is_empty() && segment.pending.is_empty());
            if !segment.is_complete() || !ready {
                break;
            }
            let Some(segment) = self.segments.pop_front() else { break };
            self.outputs -= segment.outputs;
            prefix.position = segment.sealed;
            prefix.last = segment.last.or(prefix.last);
            prefix.count += segment.outputs;
            prefix.outputs.extend(segment.unsent);
        }
        prefix
    }

    /// Outputs that are not delivered.
    pub(super) fn len(&self) -> usize {
        self.outputs
    }

    /// Whether all that is on its way is in the newest segment.
    pub(super) fn is_newest_only(&self) -> bool {
        self.segments.len() <= 1
    }

    /// Whether nothing is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }
}

impl Segment {
    /// Sealed, without any output, and nothing waited for.
    fn is_idle(&self) -> bool {
        self.is_complete() && self.outputs == 0
    }

    fn add_bad_record(&mut self, record: RecordRef, delivered: Position) -> usize {
        let (offset, Some(bad)) = (record.record().offset, record.record().bad.clone()) else { return 0 };
        if offset < delivered.offset {
            return 0;
        }
        self.outputs += 1;
        self.unsent.push(Outgoing::DeadLetter { offset, kind: bad.kind, reason: bad.reason, record: Some(record) });
        1
    }

    fn miss_below(&mut self, offset: Offset) {
        while let Some(entry) = self.wanted.first_entry()
            && *entry.key() < offset
        {
            let (gone, reasons) = entry.remove_entry();
            self.unsent.extend(reasons.into_iter().map(|reason| dead_letter(gone, reason, None)));
        }
    }
}

fn dead_letter(offset: Offset, reason: String, record: Option<RecordRef>) -> Outgoing {
    let kind = if reason.contains("max_future") { "future" } else { "poisoned" };
    Outgoing::DeadLetter { offset, kind, reason, record }
}
