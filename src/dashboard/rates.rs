//! From counters to rates, and the lines of the headline numbers. Times are ms and come in as arguments.

use std::collections::VecDeque;

/// A rate is taken over this span.
const SPAN: i64 = 2_000;
/// Time between two points of a line.
const STEP: i64 = 5_000;
/// Points of a line: five minutes.
const POINTS: usize = 60;

/// A running count, as a rate.
#[derive(Debug, Clone, Default)]
pub(super) struct Rate {
    seen: VecDeque<(i64, i64)>,
}

impl Rate {
    /// The count stood at `count` at `now`.
    pub(super) fn count(&mut self, now: i64, count: i64) {
        if self.seen.back().is_some_and(|(_, before)| *before > count) {
            self.seen.clear(); // counted anew
        }
        while self.seen.len() > 2 && self.seen[1].0 <= now - SPAN {
            self.seen.pop_front();
        }
        self.seen.push_back((now, count));
    }

    /// A second; `None` until two counts are known.
    pub(super) fn per_second(&self) -> Option<f64> {
        let ((from, first), (to, last)) = (*self.seen.front()?, *self.seen.back()?);
        (to > from).then(|| (last - first) as f64 * 1_000.0 / (to - from) as f64)
    }
}

/// One headline number over the last five minutes, a point each five seconds. It starts empty.
#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    points: VecDeque<f64>,
    /// Sum and number of values since the last point, and when that was.
    open: (f64, u32, i64),
}

impl Line {
    /// The number was `value` at `now`.
    pub(super) fn add(&mut self, now: i64, value: f64) {
        let (sum, values, since) = &mut self.open;
        *sum += value;
        *values += 1;
        if *since == 0 {
            *since = now;
        }
        if now - *since >= STEP || self.points.is_empty() {
            if self.points.len() == POINTS {
                self.points.pop_front();
            }
            self.points.push_back(*sum / f64::from(*values));
            self.open = (0.0, 0, now);
        }
    }

    /// The points, oldest first, to three digits.
    pub(super) fn points(&self) -> Vec<f64> {
        self.points.iter().map(|value| (value * 1_000.0).round() / 1_000.0).collect()
    }

    /// The greatest point.
    pub(super) fn peak(&self) -> Option<f64> {
        self.points.iter().copied().reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_counts_and_forgets_what_is_old() {
        let mut rate = Rate::default();
        rate.count(0, 100);
        assert_eq!(rate.per_second(), None);
        rate.count(1_000, 600);
        assert_eq!(rate.per_second(), Some(500.0));
        for second in 2..=10 {
            rate.count(second * 1_000, 600);
        }
        assert_eq!(rate.per_second(), Some(0.0));
    }

    #[test]
    fn a_counter_that_starts_over_is_no_negative_rate() {
        let mut rate = Rate::default();
        rate.count(0, 1_000);
        rate.count(1_000, 10);
        assert_eq!(rate.per_second(), None);
        rate.count(2_000, 20);
        assert_eq!(rate.per_second(), Some(10.0));
    }

    #[test]
    fn a_line_has_a_point_each_step_and_no_more_than_it_keeps() {
        let mut line = Line::default();
        for tick in 0..=(STEP / 1_000) * (POINTS as i64 + 10) {
            line.add(1_000 + tick * 1_000, tick as f64);
        }
        assert_eq!(line.points().len(), POINTS);
        assert_eq!(line.peak(), line.points().last().copied());
    }
}
