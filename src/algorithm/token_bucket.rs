//! The token bucket: a failure takes a token, an attempt in flight holds one, tokens are refilled evenly.

use super::{
    Limit, Millis,
    aggregate::{Aggregate, Aggregation},
    counter::Summary,
};

/// The numbers of a token bucket. It computes in parts of a token, so that nothing is rounded: a token has
/// as many parts as the bucket takes milliseconds to refill, and each millisecond brings back as many parts
/// as the bucket has tokens.
pub(super) struct TokenBucket {
    capacity: u64,
    refill: Millis,
}

impl TokenBucket {
    pub(super) fn new(limit: &Limit) -> Self {
        Self {
            capacity: limit.attempts.into(),
            refill: limit.finite_window(),
        }
    }

    const fn full(&self) -> u64 {
        self.capacity * self.refill
    }

    /// How many parts are missing at `at`.
    fn missing(&self, sum: &Missing, at: Millis) -> u64 {
        let then = (sum.tokens.saturating_mul(self.refill))
            .saturating_sub(sum.less.min(self.refill - 1))
            .min(self.full());
        let time = at.saturating_sub(sum.at);
        then.saturating_sub(time.saturating_mul(self.capacity))
    }
}

/// What was missing from a bucket at a time: `tokens`, less `less` parts of one. In tokens and not in parts
/// alone, so that it keeps its meaning when a policy changes its numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) tokens: u64,
    pub(crate) less: u64,
    pub(crate) at: Millis,
}

impl Aggregation for TokenBucket {
    type Sum = Missing;

    fn start(&self, _: Millis) -> Missing {
        Missing::default()
    }

    fn add(&self, sum: &mut Missing, at: Millis) {
        let missing = (self.missing(sum, at) + self.refill).min(self.full());
        let tokens = missing.div_ceil(self.refill);
        *sum = Missing {
            tokens,
            less: tokens * self.refill - missing,
            at: sum.at.max(at),
        };
    }

    fn parts(&self, sum: &Missing, now: Millis) -> (u64, u64) {
        (self.missing(sum, now), self.refill)
    }

    fn usage(&self, sum: &Missing, now: Millis) -> u32 {
        let tokens = self.missing(sum, now).div_ceil(self.refill);
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    fn free_at(&self, sum: &Missing, now: Millis) -> Millis {
        let wanted = (self.missing(sum, now) + self.refill).saturating_sub(self.full());
        let wait = wanted.div_ceil(self.capacity);
        now.max(sum.at).saturating_add(wait)
    }

    fn to_summary(aggregate: Aggregate<Missing>) -> Summary {
        Summary::Bucket(aggregate)
    }

    fn from_summary(summary: &Summary) -> Option<Aggregate<Missing>> {
        match summary {
            Summary::Bucket(aggregate) => Some(*aggregate),
            _ => None,
        }
    }
}
