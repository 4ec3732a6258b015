//! What a seed decides beforehand: settings, and which faults a schedule draws and how often. Not all at once: a
//! schedule with few kinds of faults gets deeper into each, and a focus brings one kind of fault to one kind of call,
//! where the gap between two calls is what matters.

use std::sync::LazyLock;

use tickwatch::config::{
    BadRecords, Guarantee, LatePolicy, OnGap, OnOffsetsLost, OnStateLoss, OnTruncation, RecoveryConfig,
};
use tickwatch::domain::{Interval, Offset};
use tickwatch::worker::batching::BatchSettings;
use tickwatch::worker::protocol::{Command, Settings};

use super::dice::Dice;
use super::oracle::Meaning;

/// Lengths of the candle intervals, ms.
pub(super) const INTERVALS: [i64; 2] = [1_000, 3_000];

static DOMAIN_INTERVALS: LazyLock<[Interval; 2]> =
    LazyLock::new(|| INTERVALS.map(|ms| format!("{ms}ms").parse().expect("an interval")));

/// ms.
const LATENESS: i64 = 500;

/// Something that goes wrong at a moment of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The partition goes to another worker; the one before goes on as a zombie.
    Zombie,
    /// A process ends, with all its partitions.
    Kill,
    /// A graceful stop.
    Stop,
    /// Redis comes back as it was some writes ago.
    Rollback,
    /// FLUSHALL.
    Flush,
    /// Redis refuses calls for a while.
    Refuse,
    /// The committed offset expires.
    OffsetsGone,
    /// The committed offset is set by a tool, without our metadata.
    OffsetsUnreadable,
    /// Retention deletes from the head of the log.
    Retention,
    /// The topic is deleted and made again.
    MadeAgain,
    /// A script fails in a way it should not.
    ScriptError,
    /// Kafka refuses an output for good.
    ProduceError,
    /// A worker of another group comes to the namespace.
    Intruder,
    /// The clock runs on.
    ClockRuns,
}

impl Fault {
    const ALL: [Fault; 14] = [
        Fault::Zombie,
        Fault::Kill,
        Fault::Stop,
        Fault::Rollback,
        Fault::Flush,
        Fault::Refuse,
        Fault::OffsetsGone,
        Fault::OffsetsUnreadable,
        Fault::Retention,
        Fault::MadeAgain,
        Fault::ScriptError,
        Fault::ProduceError,
        Fault::Intruder,
        Fault::ClockRuns,
    ];

    /// In how many of a hundred schedules it occurs, and how often in a thousand steps of these.
    fn rate(self) -> (usize, usize) {
        match self {
            Fault::Zombie => (60, 12),
            Fault::Kill => (50, 10),
            Fault::Stop => (30, 8),
            Fault::Rollback => (60, 14),
            Fault::Flush => (12, 4),
            Fault::OffsetsGone | Fault::OffsetsUnreadable => (7, 4),
            Fault::MadeAgain => (12, 10),
            Fault::Refuse | Fault::Retention => (15, 8),
            Fault::ScriptError | Fault::ProduceError => (4, 3),
            Fault::Intruder => (4, 5),
            Fault::ClockRuns => (80, 15),
        }
    }
}

/// Calls that a focus can be on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    TakeOver,
    Claim,
    ReadOutbox,
    Apply,
    Close,
    Advance,
    Trim,
    Send,
    Commit,
}

impl Call {
    const ALL: [Call; 9] = [
        Call::TakeOver,
        Call::Claim,
        Call::ReadOutbox,
        Call::Apply,
        Call::Close,
        Call::Advance,
        Call::Trim,
        Call::Send,
        Call::Commit,
    ];

    pub(super) fn of(command: &Command) -> Option<Call> {
        Some(match command {
            Command::OpenProducer | Command::FetchCommitted | Command::ReadFrom(_) => Call::TakeOver,
            Command::ReadOutbox(_) => Call::ReadOutbox,
            Command::Claim(_) => Call::Claim,
            Command::Apply(..) => Call::Apply,
            Command::Close(_) => Call::Close,
            Command::Advance(..) => Call::Advance,
            Command::Trim(..) => Call::Trim,
            Command::Send(_) => Call::Send,
            Command::Commit(_) | Command::Transact(..) => Call::Commit,
            _ => return None,
        })
    }
}

/// A fault that strikes right after, or right before, a call of one kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Focus {
    pub(super) call: Call,
    pub(super) fault: Fault,
    pub(super) before: bool,
    pub(super) percent: usize,
}

/// What a seed decides beforehand.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) guarantee: Guarantee,
    pub(super) late: LatePolicy,
    pub(super) partitions: usize,
    /// Offsets of a partition.
    pub(super) length: usize,
    /// Time passes on a drained partition.
    pub(super) silence: bool,
    pub(super) recovery: RecoveryConfig,
    /// Faults that occur, each so many times in a thousand steps.
    pub(super) faults: Vec<(Fault, usize)>,
    pub(super) focus: Option<Focus>,
    /// So many answers in a thousand go astray, each way of it.
    pub(super) astray: usize,
    /// So many steps in a thousand are another's than the owner's.
    pub(super) strays: usize,
    /// A bounded run ends here.
    pub(super) stop_at: Option<i64>,
    pub(super) poisoned: Option<usize>,
    keep: i64,
    max_batch: usize,
    max_undelivered: usize,
    /// Windows closed by one call, and outputs of one batch.
    pub(super) page: usize,
    pub(super) max_outputs: usize,
    /// Open candles are sent at most so often, ms.
    pub(super) update_interval: Option<u64>,
}

impl Plan {
    pub(super) fn of(seed: u64, guarantee: Guarantee) -> Plan {
        let mut dice = Dice::new(seed, 1);
        let mut of_updates = Dice::new(seed, 3);
        let partitions = if dice.percent(15) { 2 } else { 1 };
        let mut faults = Vec::new();
        for fault in Fault::ALL {
            let (schedules, steps) = fault.rate();
            if dice.percent(schedules) {
                faults.push((fault, steps));
            }
        }
        let focus = dice.percent(50).then(|| Focus {
            call: dice.pick(&Call::ALL),
            fault: dice.pick(&[Fault::Rollback, Fault::Rollback, Fault::Zombie, Fault::Kill]),
            before: dice.percent(30),
            percent: dice.pick(&[5, 15, 30]),
        });
        let occurs = |fault| faults.iter().any(|(it, _)| *it == fault) || focus.is_some_and(|it| it.fault == fault);
        let silence = dice.percent(60);
        // A tick beyond the reach of `revise` on one history may be on time on another, and is said to be.
        let may_keep_little = !(silence && (occurs(Fault::Rollback) || occurs(Fault::Flush)));
        let length = if partitions == 1 { 24 } else { 14 };
        Plan {
            guarantee,
            late: dice.pick(&[LatePolicy::Drop, LatePolicy::Divert, LatePolicy::Revise, LatePolicy::Revise]),
            partitions,
            length,
            silence,
            recovery: RecoveryConfig {
                rebuild_without_rules: false,
                on_state_loss: dice.pick(&[OnStateLoss::Stop, OnStateLoss::Rebuild, OnStateLoss::Resume]),
                on_offsets_lost: dice.pick(&[OnOffsetsLost::Stop, OnOffsetsLost::Resume]),
                on_gap: dice.pick(&[OnGap::Stop, OnGap::Continue]),
                on_truncation: dice.pick(&[OnTruncation::Stop, OnTruncation::Reset, OnTruncation::Reset]),
                bad_records: if dice.percent(5) { BadRecords::Block } else { BadRecords::DeadLetter },
            },
            stop_at: (dice.percent(15) && !occurs(Fault::MadeAgain)).then(|| dice.between(0, length as i64 + 1)),
            faults: faults.clone(),
            focus,
            astray: dice.pick(&[0, 5, 10, 30]),
            strays: dice.pick(&[10, 20, 50]),
            poisoned: dice.percent(15).then(|| dice.below(2)),
            keep: if may_keep_little && dice.percent(50) { 2_000 } else { 3_600_000 },
            max_batch: 1 + dice.below(11),
            max_undelivered: 2 + dice.below(10),
            page: dice.pick(&[1, 2, 2, 5]),
            max_outputs: dice.pick(&[2, 3, 3, 8]),
            update_interval: of_updates.percent(50).then(|| of_updates.pick(&[20, 100, 500])),
        }
    }

    pub(super) fn exactly_once(&self) -> bool {
        self.guarantee == Guarantee::ExactlyOnce
    }

    pub(super) fn meaning(&self) -> Meaning {
        Meaning {
            lateness: LATENESS,
            late: self.late,
            keep: self.keep,
            poisoned: self.poisoned,
            updates: self.update_interval.is_some(),
        }
    }

    pub(super) fn batch_settings(&self, recovery: &RecoveryConfig) -> BatchSettings {
        BatchSettings {
            intervals: DOMAIN_INTERVALS.to_vec(),
            lateness: LATENESS,
            late: self.late,
            keep: self.keep,
            max_future: 30 * 24 * 3_600_000,
            block_bad_records: recovery.bad_records == BadRecords::Block,
        }
    }

    pub(super) fn settings(&self, group: &str, recovery: &RecoveryConfig) -> Settings {
        Settings {
            owner: "worker".into(),
            group: group.into(),
            fingerprint: "fingerprint".into(),
            guarantee: self.guarantee,
            recovery: recovery.clone(),
            update_interval: self.update_interval,
            batch: self.batch_settings(recovery),
            idle_grace: if self.silence { 300 } else { 1_000_000_000_000 },
            max_batch: self.max_batch,
            max_symbols: self.max_batch.div_ceil(3),
            max_undelivered: self.max_undelivered,
            heartbeat: 200,
            stop_at: self.stop_at.map(Offset),
        }
    }
}
