//! Draws of a simulation: the same for the same seed, and cheap without optimisation, for half the work of a schedule
//! is to draw it.

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

/// A generator for one purpose of one seed.
pub(super) struct Dice(SmallRng);

impl Dice {
    pub(super) fn new(seed: u64, purpose: u64) -> Dice {
        Dice(SmallRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(purpose)))
    }

    /// One of `0..n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.0.next_u64()) * n as u128) >> 64) as usize
    }

    /// One of `low..high`.
    pub(super) fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low) as usize) as i64
    }

    /// So many times in a hundred.
    pub(super) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// So many times in a thousand.
    pub(super) fn per_mille(&mut self, per_mille: usize) -> bool {
        self.below(1_000) < per_mille
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
