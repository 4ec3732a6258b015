//! The oracle of the end-to-end tests, on what can be worked out by hand, and against the reference of the scripts.

mod agreement;
mod by_hand;

pub(crate) use crate::common::oracle::*;
use crate::harness::{Case, Needs, cases};
use agreement::the_oracle_expects_what_the_reference_sends;
use by_hand::{
    a_crossing_is_expected_once_with_both_prices,
    a_final_candle_holds_what_was_there_when_time_passed_it_and_late_ticks_revise_it,
    numbers_are_rounded_and_summed_exactly,
};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Nothing;
        a_crossing_is_expected_once_with_both_prices,
        a_final_candle_holds_what_was_there_when_time_passed_it_and_late_ticks_revise_it,
        numbers_are_rounded_and_summed_exactly,
        the_oracle_expects_what_the_reference_sends,
    )
}
