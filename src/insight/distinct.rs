//! How many different values there were, about.

/// Linear counting in 256 bits: exact enough up to some hundred, and never much too high.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Distinct([u64; 4]);

const BITS: f64 = 256.0;

impl Distinct {
    /// Adds a value by its hash, which clients must not be able to choose.
    pub(super) const fn add(&mut self, hash: u64) {
        let bit = hash % 256;
        self.0[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    /// The values of both.
    pub(super) fn union(&self, other: &Self) -> Self {
        let mut all = *self;
        for (mine, others) in all.0.iter_mut().zip(other.0) {
            *mine |= others;
        }
        all
    }

    /// About how many values; 1,420 stands for any number above.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // from 0 to 1,420
    pub(super) fn estimate(&self) -> u32 {
        let free: u32 = self.0.iter().map(|word| word.count_zeros()).sum();
        (-BITS * (f64::from(free.max(1)) / BITS).ln()).round() as u32
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    use super::*;

    #[test]
    fn estimates_are_near() {
        let state = RandomState::new();
        let mut total = 0.0;
        for _ in 0..50 {
            let state = RandomState::new();
            let mut distinct = Distinct::default();
            (0..100).for_each(|n| distinct.add(state.hash_one(n)));
            (0..100).for_each(|n| distinct.add(state.hash_one(n)));
            total += f64::from(distinct.estimate());
        }
        let mean = total / 50.0;
        assert!((90.0..110.0).contains(&mean), "{mean}");
        let mut many = Distinct::default();
        assert_eq!(many.estimate(), 0);
        (0..100_000).for_each(|n| many.add(state.hash_one(n)));
        assert_eq!(many.estimate(), 1_420);
        assert_eq!(Distinct::default().union(&many).estimate(), 1_420);
    }
}
