//! What occurred over a run of schedules: a net that never draws a fault is no net.

use super::plan::Fault;

macro_rules! outcomes {
    (faults { $($fault:ident,)+ } others { $($(#[$doc:meta])* $name:ident,)+ }) => {
        /// Something that has to occur over a run, and is counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Seen {
            $($fault,)+
            $($(#[$doc])* $name,)+
        }

        impl Seen {
            pub(super) const ALL: &[Seen] = &[$(Seen::$fault,)+ $(Seen::$name,)+];

            pub(super) fn of(fault: Fault) -> Seen {
                match fault {
                    $(Fault::$fault => Seen::$fault,)+
                }
            }
        }
    };
}

outcomes! {
    faults {
        Zombie,
        Kill,
        Stop,
        Rollback,
        Flush,
        Refuse,
        OffsetsGone,
        OffsetsUnreadable,
        Retention,
        MadeAgain,
        ScriptError,
        ProduceError,
        Intruder,
        ClockRuns,
    }
    others {
        /// A process ended that had both partitions.
        KillOfTwo,
        /// A rollback that took both partitions back.
        RollbackOfTwo,
        /// Redis came back between two pages of one closing.
        RollbackBetweenPages,
        // Answers that go astray.
        NothingDone,
        DoneLater,
        AnswerLost,
        AnswerLate,
        LostReplyOfApply,
        LostReplyOfSend,
        LostReplyOfCommit,
        LostReplyOfClaim,
        PartlySent,
        EndUnknown,
        /// An answer came when its takeover was over.
        AnswerOfBefore,
        // What the protocol did.
        Split,
        More,
        Fenced,
        Moved,
        TransactionFenced,
        SeveralSendsInFlight,
        ApplyBesideDelivery,
        AckOutOfOrder,
        StateAhead,
        DeliveryAhead,
        AdvanceToDelivered,
        AdvanceByEvidence,
        EndHeldByATransaction,
        Muted,
        Revised,
        Updated,
        /// A wave of updates had more than a page.
        WaveGoesOn,
        WaveWaits,
        Diverted,
        Bad,
        Future,
        Poisoned,
        /// A dead letter whose bytes were read again.
        LetterReadAgain,
        Finished,
        Released,
        // What was found at claim.
        StateLossStopped,
        StateRebuilt,
        StateResumed,
        RebuildWithoutRules,
        DataBroughtBack,
        OffsetsLostStopped,
        OffsetsLostResumed,
        OffsetsPutBack,
        GapStopped,
        GapContinued,
        TruncationStopped,
        TruncationReset,
        OtherGroupRefused,
        ScriptStopped,
        ProduceStopped,
        BadRecordStopped,
        // What is legal beside the one clean outcome.
        SentAgain,
        ContentOfAnotherHistory,
        LetterLost,
        BytesGone,
    }
}

impl Seen {
    /// Whether it can occur under this guarantee at all.
    pub(super) fn is_possible(self, exactly_once: bool) -> bool {
        match self {
            Seen::TransactionFenced => exactly_once,
            Seen::LostReplyOfSend
            | Seen::PartlySent
            | Seen::SeveralSendsInFlight
            | Seen::AckOutOfOrder
            | Seen::ContentOfAnotherHistory => !exactly_once,
            _ => true,
        }
    }
}

/// Counts, by [`Seen`].
#[derive(Debug, Clone)]
pub(super) struct Tally(Vec<u64>);

impl Default for Tally {
    fn default() -> Tally {
        Tally(vec![0; Seen::ALL.len()])
    }
}

impl Tally {
    pub(super) fn count(&mut self, seen: Seen) {
        self.0[seen as usize] += 1;
    }

    pub(super) fn of(&self, seen: Seen) -> u64 {
        self.0[seen as usize]
    }

    pub(super) fn add(&mut self, other: &Tally) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    /// What could have occurred and did not.
    pub(super) fn never(&self, exactly_once: bool) -> Vec<Seen> {
        let possible = Seen::ALL.iter().copied().filter(|seen| seen.is_possible(exactly_once));
        possible.filter(|seen| self.of(*seen) == 0).collect()
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for seen in Seen::ALL {
            writeln!(f, "{:>10} {seen:?}", self.of(*seen))?;
        }
        Ok(())
    }
}
