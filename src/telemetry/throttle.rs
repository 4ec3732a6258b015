//! At most one log line a kind and ten seconds; the counters count everything.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Least time between two lines of one kind.
const PERIOD: Duration = Duration::from_secs(10);

/// Decides which lines of one kind are written. One static a kind.
pub(super) struct Throttle(Mutex<State>);

struct State {
    written: Option<Instant>,
    suppressed: u64,
}

impl Throttle {
    pub(super) const fn new() -> Throttle {
        Throttle(Mutex::new(State { written: None, suppressed: 0 }))
    }

    /// Whether a line may be written at `now`; if so, how many were not since the last one.
    pub(super) fn pass(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.written.is_some_and(|written| now.duration_since(written) < PERIOD) {
            state.suppressed += 1;
            return None;
        }
        state.written = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_ten_seconds_says_how_many_were_suppressed() {
        let throttle = Throttle::new();
        let start = Instant::now();
        let at = |seconds| throttle.pass(start + Duration::from_secs(seconds));
        assert_eq!(at(0), Some(0));
        assert_eq!([at(1), at(2), at(9)], [None, None, None]);
        assert_eq!(at(10), Some(3));
        assert_eq!(at(20), Some(0));
    }
}
