//! Taking a source partition over, in the one order that is safe:
//!
//! ```text
//! (exactly once: open the producer, which fences the owner before) → committed position → claim →
//! look at the log → read the outbox → see that it was this claim's → start reading at the lower position
//! ```
//!
//! What is missing at claim is a loss; each kind has a policy, and by default stops that partition, loudly.

use super::machine::{Machine, Phase};
use super::protocol::{Command, Committed, Event, Mono, Notice};
use crate::config::{Guarantee, OnGap, OnOffsetsLost, OnStateLoss, OnTruncation};
use crate::domain::{Entry, Offset, Position, Watermark};
use crate::store::scripts::{Beat, Claim, Claimed, Guard, Refusal, State, Token};

/// What a takeover has learned so far.
#[derive(Debug, Default)]
pub(super) struct Takeover {
    committed: Option<Committed>,
    /// The committed offset was read once more after the claim.
    looked_again: bool,
    why_range: WhyRange,
    claimed: Option<(Token, State)>,
    /// No entry of the outbox is known to be delivered: the delivered offset is at or below the first of them.
    delivered_unknown: bool,
    /// A start chosen for a claim.
    start: Option<Offset>,
    /// The generation of a topic that was made again since.
    reset: Option<u64>,
    log_start: Option<Offset>,
}

/// Why the broker is asked where the log starts and ends.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum WhyRange {
    /// To compare it with the positions found.
    #[default]
    Check,
    /// To start a partition that was never claimed.
    First,
    /// To read everything again.
    Rebuild,
    /// To start over after the topic was made again.
    Reset,
}

impl Machine {
    pub(super) fn start_takeover(&mut self) {
        self.forget();
        self.takeover = Takeover::default();
        self.phase = Phase::TakingOver;
        self.commands.push(match self.settings.guarantee {
            Guarantee::AtLeastOnce => Command::FetchCommitted,
            Guarantee::ExactlyOnce => Command::OpenProducer,
        });
    }

    pub(super) fn take_over(&mut self, now: Mono, event: Event) {
        match event {
            Event::ProducerOpen => self.commands.push(Command::FetchCommitted),
            Event::Committed(committed) => {
                self.takeover.committed = Some(committed);
                match self.takeover.claimed.take() {
                    Some((token, state)) => self.found_state(now, token, state),
                    None => self.claim(None, None),
                }
            }
            Event::Claimed(token, Claimed::Ok(state)) => self.found_state(now, token, state),
            Event::Claimed(_, Claimed::Absent) => self.found_nothing(),
            Event::Claimed(_, Claimed::OtherGroup(group)) => self.stop(
                "other_group",
                format!(
                    "the namespace belongs to consumer group {group:?}; give this group a namespace of its own, \
                     or use that group"
                ),
            ),
            Event::Range { start, end } => self.learn_range(start, end),
            Event::RangeUnknown(failure) => self.fail(now, failure),
            Event::StartCommitted => {
                let position = Position::at(self.takeover.start.unwrap_or(Offset(0)), Watermark::NEVER);
                self.takeover.committed = Some(Committed::At(position));
                self.claim(self.takeover.start, self.takeover.reset);
            }
            Event::Rules(true) => self.claim(self.takeover.start, None),
            Event::Rules(false) => self.stop(
                "state_loss",
                "on_state_loss = \"rebuild\", but there are no rules in Redis either: their notifications would be lost. \
                 Put them back (tickwatch rule apply), or add one, then restart; or set [recovery] \
                 rebuild_without_rules = true"
                    .into(),
            ),
            Event::Outbox(entries) => self.take_outbox(now, entries),
            Event::Beat(Beat::Ok { .. }) => self.read_on(),
            Event::Beat(Beat::Refused(refusal)) => self.refused(now, refusal),
            Event::Reading => self.start_running(now),
            _ => {}
        }
    }

    fn claim(&mut self, start: Option<Offset>, reset: Option<u64>) {
        let settings = &self.settings;
        self.commands.push(Command::Claim(Claim {
            token: Token::new(0),
            owner: settings.owner.clone(),
            group: settings.group.clone(),
            fingerprint: settings.fingerprint.clone(),
            start,
            reset,
            delivered: self.takeover.committed.as_ref().and_then(Committed::position),
        }));
    }

    fn ask_range(&mut self, why: WhyRange) {
        self.takeover.why_range = why;
        self.commands.push(Command::AskRange);
    }

    // ---- no state

    fn found_nothing(&mut self) {
        let offset = match &self.takeover.committed {
            None | Some(Committed::None) => return self.ask_range(WhyRange::First),
            // The start is committed before Redis is written: an owner ended, or is, between the two. Before the first
            // tick there is no state to lose.
            Some(Committed::At(Position { offset, watermark: Watermark::NEVER, .. })) => {
                let start = Some(*offset);
                return self.claim(start, None);
            }
            Some(Committed::At(position)) => position.offset,
            Some(Committed::Unreadable(offset, _)) => *offset,
        };
        let known = self.takeover.committed.as_ref().and_then(Committed::position);
        let delivered = known.unwrap_or(Position::at(offset, Watermark::NEVER));
        match self.settings.recovery.on_state_loss {
            OnStateLoss::Stop => self.stop(
                "state_loss",
                format!(
                    "the group has committed offset {offset}, but Redis holds no state: it was flushed, lost its data, or is \
                     another one. Bring the data back and restart; or set [recovery] on_state_loss = \"rebuild\" (read \
                     the retained log again, muted up to what was delivered) or \"resume\" (go on with empty state)"
                ),
            ),
            OnStateLoss::Resume => {
                self.tell(format!("no state in Redis: going on at offset {offset} with empty state"));
                self.takeover.committed = Some(Committed::At(delivered));
                self.claim(Some(offset), None);
            }
            OnStateLoss::Rebuild => {
                self.takeover.committed = Some(Committed::At(delivered));
                self.ask_range(WhyRange::Rebuild);
            }
        }
    }

    fn tell(&mut self, text: String) {
        self.commands.push(Command::Tell(Notice::Recovered(text)));
    }

    // ---- state

    fn found_state(&mut self, now: Mono, token: Token, state: State) {
        let known = self.takeover.committed.as_ref().and_then(Committed::position).is_some();
        // Another owner may have started the partition since the offset was read, or started it over: then the delivered
        // position went back. It committed before it claimed, and from this claim on it cannot.
        if (!known || state.generation > 0) && !self.takeover.looked_again {
            self.takeover.looked_again = true;
            self.takeover.claimed = Some((token, state));
            return self.commands.push(Command::FetchCommitted);
        }
        let found = match &self.takeover.committed {
            Some(Committed::At(position)) => Ok(*position),
            Some(Committed::Unreadable(offset, metadata)) if metadata.is_empty() => {
                let moved = Position::at(*offset, Watermark::NEVER);
                self.tell(moved_by_hand(state.position.offset, moved.offset));
                Ok(moved)
            }
            Some(Committed::Unreadable(offset, metadata)) => {
                Err(format!("offset {offset} was committed by something else (metadata {metadata:?})"))
            }
            None | Some(Committed::None) => Err("no offset is committed (it expired, or was deleted)".into()),
        };
        match found {
            Ok(delivered) => self.delivered = delivered,
            Err(problem) if self.settings.recovery.on_offsets_lost == OnOffsetsLost::Stop => {
                let next = state.position.offset;
                self.takeover.claimed = Some((token, state));
                self.hold_claim();
                return self.stop(
                    "offsets_lost",
                    format!(
                        "Redis holds state up to offset {next}, but {problem}. Set [recovery] on_offsets_lost = \"resume\" to \
                         go on from the state (the last outputs may be sent again). If the topic was deleted and made again, its \
                         offsets went with it: set on_truncation = \"reset\" too"
                    ),
                );
            }
            Err(problem) => {
                self.tell(format!("{problem}: going on from the state, the last outputs may be sent again"));
                self.delivered = Position::at(state.position.offset, Watermark::NEVER);
                self.takeover.delivered_unknown = true;
            }
        }
        self.take_delivered_updates();
        self.max_ts = state.max_ts;
        self.max_ts_at = now.saturating_sub(state.max_ts_age as u64);
        self.next_due = state.next_due;
        self.generation = state.generation;
        self.verify = state.last_record;
        self.takeover.claimed = Some((token, state));
        self.ask_range(WhyRange::Check);
    }

    fn learn_range(&mut self, start: Offset, end: Offset) {
        match self.takeover.why_range {
            WhyRange::First | WhyRange::Reset => {
                self.takeover.start = Some(start);
                self.takeover.reset = (self.takeover.why_range == WhyRange::Reset).then_some(self.generation);
                self.commands.push(Command::CommitStart(Position::at(start, Watermark::NEVER)));
            }
            WhyRange::Rebuild => {
                self.takeover.start = Some(start);
                self.tell(format!("no state in Redis: reading the retained log again from offset {start}, muted"));
                if self.settings.recovery.rebuild_without_rules {
                    return self.claim(self.takeover.start, None);
                }
                self.commands.push(Command::LookForRules);
            }
            WhyRange::Check => self.check_range(start, end),
        }
    }

    fn check_range(&mut self, start: Offset, end: Offset) {
        let Some((_, state)) = &self.takeover.claimed else { return };
        let (position, delivered) = (state.position.offset, self.delivered.offset);
        let (lower, higher) = (position.min(delivered), position.max(delivered));
        if higher > end {
            return self.truncated(&format!(
                "the position is {higher}, but the log ends at {end}: the topic was deleted and made again"
            ));
        }
        if lower < start {
            match self.settings.recovery.on_gap {
                OnGap::Stop => {
                    self.hold_claim();
                    return self.stop(
                        "gap",
                        format!(
                            "the log starts at offset {start}, but the position is {lower}: retention deleted {} offsets that \
                             were never processed. Set [recovery] on_gap = \"continue\" to go on without them",
                            start.0 - lower.0
                        ),
                    );
                }
                OnGap::Continue => {
                    self.tell(format!("offsets {lower} to {start} are gone from the log: going on without them"));
                }
            }
        }
        self.takeover.log_start = Some(start);
        self.deliveries.begin(Some(position));
        self.commands.push(Command::ReadOutbox(None));
    }

    /// Keeps what was claimed, so that a stopped partition can say why in Redis.
    fn hold_claim(&mut self) {
        if let Some((token, State { position, tail, .. })) = self.takeover.claimed.take() {
            self.guard = Some(Guard { token, position, tail });
        }
    }

    /// The topic was deleted and made again.
    pub(super) fn truncated(&mut self, problem: &str) {
        match self.settings.recovery.on_truncation {
            OnTruncation::Stop => {
                self.hold_claim();
                self.stop(
                    "truncation",
                    format!(
                        "{problem}. Set [recovery] on_truncation = \"reset\" to start over at the log's start (what is pending \
                         is dropped; notification ids get a new generation)"
                    ),
                );
            }
            OnTruncation::Reset => {
                self.forget();
                self.takeover = Takeover::default();
                self.phase = Phase::TakingOver;
                self.tell(format!("{problem}: starting over at the log's start"));
                self.ask_range(WhyRange::Reset);
            }
        }
    }

    // ---- what the owner before left

    fn take_outbox(&mut self, now: Mono, entries: Vec<Entry>) {
        if let Some(last) = entries.last().map(|entry| entry.id) {
            // Another owner's, of a state that may be gone by the time the claim is looked at again.
            if self.takeover.claimed.as_ref().is_some_and(|(_, state)| last > state.tail) {
                return self.refused(now, Refusal::Moved);
            }
            if self.takeover.delivered_unknown {
                self.takeover.delivered_unknown = false;
                self.delivered.offset = self.delivered.offset.min(entries[0].id.offset);
            }
            if let Some(position) = self.takeover.claimed.as_ref().map(|(_, state)| state.position) {
                self.take_updates_left(position, &entries);
            }
            self.deliveries.add_entries(entries, self.delivered, |_| None);
            return self.commands.push(Command::ReadOutbox(Some(last)));
        }
        // Reading is not guarded: a Redis that came back older since the claim would look as if nothing were pending.
        let Some((token, State { position, tail, .. })) = &self.takeover.claimed else { return };
        let guard = Guard { token: token.clone(), position: *position, tail: *tail };
        self.commands.push(Command::Heartbeat(guard, self.hold.clone()));
    }

    fn read_on(&mut self) {
        let Some((_, state)) = &self.takeover.claimed else { return };
        let lower = state.position.offset.min(self.delivered.offset);
        let log_start = self.takeover.log_start.unwrap_or(lower);
        // One record earlier where it still exists: the last applied one is compared with the log.
        let compared = self.verify.map(|mark| mark.offset).filter(|offset| *offset >= log_start);
        if compared.is_none() {
            self.verify = None;
        }
        let from = compared.map_or(lower, |offset| offset.min(lower)).max(log_start);
        self.commands.push(Command::ReadFrom(from));
    }

    fn start_running(&mut self, now: Mono) {
        let Some((token, state)) = self.takeover.claimed.take() else { return };
        self.commands.push(Command::Tell(Notice::TookOver {
            epoch: state.epoch,
            position: state.position,
            delivered: self.delivered,
            settings_changed: !state.fingerprint.is_empty() && state.fingerprint != self.settings.fingerprint,
            previous_owner: state.previous_owner,
        }));
        self.rereading = true;
        self.enter_running(now, token, state.position, state.tail);
    }
}

/// What a committed offset without metadata means: a tool put it there.
fn moved_by_hand(state: Offset, committed: Offset) -> String {
    if committed > state {
        return format!(
            "the committed offset was moved by hand from {state} to {committed}: the records between are processed, and \
             what they fire is not sent"
        );
    }
    format!(
        "the committed offset was moved by hand to {committed}, the state is at {state}: what was delivered is not sent \
         again; to have it again, run another group over the log, with a namespace and output topics of its own"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::{LatePolicy, RecoveryConfig};
    use crate::domain::output::Candle;
    use crate::domain::{OutboxId, Output, Price, Volume};
    use crate::store::scripts::Updated;
    use crate::worker::batching::BatchSettings;
    use crate::worker::protocol::Settings;

    fn settings() -> Settings {
        Settings {
            owner: "worker".into(),
            group: "group".into(),
            fingerprint: String::new(),
            guarantee: Guarantee::AtLeastOnce,
            recovery: RecoveryConfig {
                on_gap: OnGap::Continue,
                on_truncation: OnTruncation::Reset,
                ..RecoveryConfig::default()
            },
            batch: BatchSettings {
                intervals: Vec::new(),
                lateness: 0,
                late: LatePolicy::Drop,
                keep: 0,
                max_future: 0,
                block_bad_records: false,
            },
            idle_grace: 0,
            update_interval: None,
            max_batch: 1,
            max_symbols: 1,
            max_undelivered: 1,
            heartbeat: 1_000,
            stop_at: None,
        }
    }

    fn at(offset: i64) -> Position {
        Position::at(Offset(offset), Watermark::at(0))
    }

    fn state(generation: u64, position: Position) -> State {
        State {
            epoch: 1,
            position,
            tail: OutboxId { offset: Offset(0), n: 0 },
            max_ts: None,
            max_ts_age: 0,
            last_record: None,
            fingerprint: String::new(),
            generation,
            next_due: None,
            outbox: 0,
            previous_owner: String::new(),
        }
    }

    /// A machine that has claimed this state, having read before that `committed` is delivered.
    fn claimed(committed: Position, state: State) -> Machine {
        let mut machine = Machine::new(Arc::new(settings()));
        machine.handle(0, 0, 0, Event::Start);
        hear(&mut machine, Event::Committed(Committed::At(committed)));
        machine.take_commands();
        hear(&mut machine, Event::Claimed(Token::new(1), Claimed::Ok(state)));
        machine
    }

    fn hear(machine: &mut Machine, event: Event) {
        machine.handle(0, 0, machine.attempt(), event);
    }

    #[test]
    fn what_is_delivered_of_a_topic_made_again_is_read_after_the_claim() {
        let mut machine = claimed(at(8), state(1, at(9)));
        let commands = machine.take_commands();
        assert!(matches!(commands[..], [Command::FetchCommitted]), "{commands:?}");
        hear(&mut machine, Event::Committed(Committed::At(at(5))));
        let commands = machine.take_commands();
        assert!(matches!(commands[..], [Command::AskRange]), "with no other claim: {commands:?}");
        assert_eq!(machine.snapshot().delivered, at(5));
    }

    #[test]
    fn an_outbox_that_goes_on_behind_the_claimed_tail_is_of_another_owner() {
        let mut machine = claimed(at(5), State { tail: OutboxId { offset: Offset(7), n: 2 }, ..state(0, at(8)) });
        hear(&mut machine, Event::Range { start: Offset(0), end: Offset(9) });
        let entry = |offset, n| Entry {
            id: OutboxId { offset: Offset(offset), n },
            output: Output::DeadLetter { reason: "poisoned".into() },
        };
        hear(&mut machine, Event::Outbox(vec![entry(7, 1), entry(7, 2)]));
        assert_eq!(*machine.phase(), Phase::TakingOver);
        hear(&mut machine, Event::Outbox(vec![entry(8, 1)]));
        assert!(matches!(machine.phase(), Phase::BackingOff(_)), "{:?}", machine.phase());
    }

    #[test]
    fn a_state_that_begins_behind_the_delivered_offset_advances_to_its_watermark() {
        let begins = Position::at(Offset(9), Watermark::NEVER);
        let mut machine = claimed(at(6), state(0, begins));
        for event in [
            Event::Range { start: Offset(9), end: Offset(20) },
            Event::Outbox(Vec::new()),
            Event::Beat(Beat::Ok { outbox: 0, open_windows: 0 }),
            Event::Reading,
        ] {
            machine.take_commands();
            hear(&mut machine, event);
        }
        let commands = machine.take_commands();
        let advances =
            |command: &Command| matches!(command, Command::Advance(_, to, None) if *to == at(6).watermark);
        assert!(commands.iter().any(advances), "{commands:?}");
    }

    /// A machine that runs at offset 8, where the owner before left an update in the outbox.
    fn with_an_update_left(update_interval: Option<u64>) -> Machine {
        let left = OutboxId { offset: Offset(8), n: 1 };
        let mut machine = Machine::new(Arc::new(Settings { update_interval, max_undelivered: 10, ..settings() }));
        machine.handle(0, 0, 0, Event::Start);
        let update = Entry { id: left, output: Output::Update(candle()) };
        for event in [
            Event::Committed(Committed::At(at(8))),
            Event::Claimed(Token::new(1), Claimed::Ok(State { tail: left, ..state(0, at(8)) })),
            Event::Range { start: Offset(0), end: Offset(8) },
            Event::Outbox(vec![update]),
            Event::Outbox(Vec::new()),
            Event::Beat(Beat::Ok { outbox: 1, open_windows: 1 }),
            Event::Reading,
            Event::End(Offset(8)),
            Event::Sent(0),
        ] {
            hear(&mut machine, event);
        }
        machine
    }

    fn candle() -> Candle {
        let price = Price::parse("1").expect("it is a price").value;
        let volume = Volume::parse("1").expect("it is a volume");
        let interval = "1s".parse().expect("it is an interval");
        let (symbol, start, end) = ("X".to_owned(), 1_000, 2_000);
        let [open, high, low, close] = [price; 4];
        Candle { symbol, interval, start, end, open, high, low, close, volume, count: 1, revision: 0 }
    }

    fn commits(machine: &mut Machine) -> Option<Position> {
        machine.take_commands().into_iter().find_map(|command| match command {
            Command::Commit(position) => Some(position),
            _ => None,
        })
    }

    #[test]
    fn updates_that_were_left_are_committed_once_their_wave_has_ended() {
        let mut machine = with_an_update_left(Some(1_000));
        assert_eq!(commits(&mut machine), None, "more of the wave may come");
        hear(&mut machine, Event::Updated(Updated::Wait { ms: 500, left: 0 }));
        assert_eq!(commits(&mut machine), Some(Position { updates: true, ..at(8) }), "it has ended, they say");
    }

    #[test]
    fn updates_of_an_offset_at_which_more_will_be_sent_wait_for_the_next_wave() {
        let mut machine = with_an_update_left(Some(1_000));
        hear(&mut machine, Event::Updated(Updated::Wait { ms: 500, left: 2 }));
        assert_eq!(commits(&mut machine), None);
        assert_eq!(machine.wake_at(0), 500);
        machine.handle(500, 0, machine.attempt(), Event::Tick);
        let commands = machine.take_commands();
        assert!(commands.iter().any(|command| matches!(command, Command::Update(_))), "{commands:?}");
        // Told to end meanwhile, it leaves them to the next owner.
        let mut machine = with_an_update_left(Some(1_000));
        hear(&mut machine, Event::Updated(Updated::Wait { ms: 500, left: 2 }));
        hear(&mut machine, Event::Stop);
        assert_eq!(*machine.phase(), Phase::Released);
    }

    #[test]
    fn updates_that_were_left_are_committed_by_an_owner_that_sends_none() {
        let mut machine = with_an_update_left(None);
        assert_eq!(commits(&mut machine), Some(Position { updates: true, ..at(8) }));
    }

    #[test]
    fn of_any_other_topic_it_is_read_once() {
        let mut machine = claimed(at(8), state(0, at(9)));
        let commands = machine.take_commands();
        assert!(matches!(commands[..], [Command::AskRange]), "{commands:?}");
    }

    #[test]
    fn a_reset_names_the_generation_that_was_found() {
        let mut machine = claimed(at(20), state(3, at(20)));
        let shorter = || Event::Range { start: Offset(0), end: Offset(4) };
        for event in [Event::Committed(Committed::At(at(20))), shorter(), shorter(), Event::StartCommitted] {
            machine.take_commands();
            hear(&mut machine, event);
        }
        let commands = machine.take_commands();
        let [Command::Claim(claim)] = &commands[..] else { panic!("{commands:?}") };
        assert_eq!((claim.reset, claim.start), (Some(3), Some(Offset(0))));
    }
}
