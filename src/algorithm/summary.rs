//! What a summary counts for, for an operator to read.

use super::{
    Algorithm, Limit, Millis,
    aggregate::{Aggregate, Aggregation},
    block::LastBlock,
    counter::{Counter, Summary},
    sliding_counter::SlidingCounter,
    token_bucket::TokenBucket,
};

/// What the failures that are no longer kept one by one amount to under a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amount {
    /// What they count for, in thousandths of an attempt.
    pub(crate) thousandths: u64,
    /// The number in a row and the beginning of the newest block that is recorded.
    pub(crate) block: Option<(u32, Millis)>,
    /// Whether failures of other spellings than the normal form are part of it.
    pub(crate) is_mixed: bool,
}

impl Counter {
    /// What the summary amounts to at `now`; `None` if there is none, or one of another algorithm, which is
    /// ignored.
    pub(crate) fn summary(&self, limit: &Limit, now: Millis) -> Option<Amount> {
        let (summary, is_mixed) = self.summarized()?;
        amount(summary, is_mixed, limit, now)
    }
}

/// What a summary amounts to at `now`.
pub(crate) fn amount(
    summary: &Summary,
    is_mixed: bool,
    limit: &Limit,
    now: Millis,
) -> Option<Amount> {
    let (thousandths, block) = match (limit.algorithm, summary) {
        (Algorithm::SlidingWindow, Summary::Window(block)) if limit.has_growing_blocks() => {
            (0, Some(*block))
        }
        (Algorithm::TokenBucket, Summary::Bucket(sum)) => total(&TokenBucket::new(limit), sum, now),
        (Algorithm::SlidingCounter, Summary::Counts(sum)) => {
            total(&SlidingCounter::new(limit), sum, now)
        }
        _ => return None,
    };
    Some(Amount {
        thousandths,
        block: block.map(|block| (block.nth, block.began)),
        is_mixed,
    })
}

fn total<A: Aggregation>(
    algorithm: &A,
    aggregate: &Aggregate<A::Sum>,
    now: Millis,
) -> (u64, Option<LastBlock>) {
    let (parts, whole) = algorithm.parts(&aggregate.sum, now);
    let thousandths = parts / whole * 1000 + parts % whole * 1000 / whole;
    (thousandths, aggregate.block)
}
