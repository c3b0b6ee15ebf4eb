//! What token bucket and sliding-window counter have in common: older failures are aggregated.
//!
//! Memory does not grow with the limit. A cancel or a success takes back exactly the failures that are kept
//! one by one and what is in flight. A success also clears the aggregate of the user's own counter; from a
//! counter that is shared with others aggregated failures can't be taken back, and leave with time.

use super::{
    Limit, Millis, Standing, State,
    attempts::{Attempts, has_other_spellings},
    block::LastBlock,
    counter::{Judgement, Summary},
};
use crate::Period;

/// How many of the newest failures are kept one by one. This bounds the memory of a counter; as long as a
/// failure is kept, a reserve repeated after a lost reply counts once, and taking it back is exact.
pub(super) const KEPT: usize = 8;

/// An algorithm that aggregates failures.
pub(super) trait Aggregation {
    /// What failures add up to.
    type Sum: Copy;

    /// The sum of no failures, of which the first comes at `at`.
    fn start(&self, at: Millis) -> Self::Sum;

    /// Adds a failure at `at`. Time does not go back: an earlier one counts as of the latest.
    fn add(&self, sum: &mut Self::Sum, at: Millis);

    /// What counts at `now` in parts of an attempt, and how many parts an attempt has.
    fn parts(&self, sum: &Self::Sum, now: Millis) -> (u64, u64);

    /// What counts at `now` in whole attempts, rounded such that an attempt fits below the limit.
    fn usage(&self, sum: &Self::Sum, now: Millis) -> u32;

    /// When an attempt fits again, if none does at `now`.
    fn free_at(&self, sum: &Self::Sum, now: Millis) -> Millis;

    fn to_summary(aggregate: Aggregate<Self::Sum>) -> Summary;

    /// `None` for the summary of another algorithm.
    fn from_summary(summary: &Summary) -> Option<Aggregate<Self::Sum>>;
}

/// Failures that are no longer kept one by one, and the newest block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aggregate<S> {
    pub(crate) sum: S,
    pub(crate) block: Option<LastBlock>,
}

impl<S> Aggregate<S> {
    fn add<A: Aggregation<Sum = S>>(&mut self, limit: &Limit, algorithm: &A, at: Millis) {
        algorithm.add(&mut self.sum, at);
        // A block that was recorded after `at` is the newer one.
        let is_newest = self.block.is_none_or(|last| last.began < at);
        if let Some(block) = &limit.block
            && is_newest
            && algorithm.usage(&self.sum, at) >= limit.attempts
        {
            self.block = Some(block.after(self.block, at));
        }
    }
}

pub(super) fn judge<A: Aggregation>(
    limit: &Limit,
    algorithm: &A,
    attempts: &Attempts,
    summary: Option<&Summary>,
    now: Millis,
) -> Judgement {
    let (failures, in_flight) = attempts.split(now);
    let in_flight = u32::try_from(in_flight.len()).unwrap_or(u32::MAX);
    let obsolete = failures.len().saturating_sub(KEPT);
    let (old, kept) = failures.split_at(obsolete);

    let aggregate = summary.and_then(A::from_summary);
    let mut all = aggregate.unwrap_or_else(|| Aggregate {
        sum: algorithm.start(failures.first().map_or(now, |first| first.at())),
        block: None,
    });
    for failure in old {
        all.add(limit, algorithm, failure.at());
    }
    let folded = all;
    for failure in kept {
        all.add(limit, algorithm, failure.at());
    }
    // An admission after a block records it: otherwise a client could undo the block by logging in, which
    // takes back the failure that brought it.
    let recorded = Aggregate {
        sum: folded.sum,
        block: all.block,
    };
    let is_needed = aggregate.is_some() || obsolete > 0 || recorded.block.is_some();

    let usage = algorithm.usage(&all.sum, now);
    let (parts, whole) = algorithm.parts(&all.sum, now);
    let thousandths = parts / whole * 1000 + parts % whole * 1000 / whole;
    let full = (usage >= limit.attempts)
        .then(|| Period::of_millis(algorithm.free_at(&all.sum, now).saturating_sub(now)));
    let block = limit.block.as_ref().zip(all.block);
    let in_force = block.and_then(|(block, last)| block.left(last, now));
    let standing = match full.max(in_force) {
        Some(lifts) => Standing {
            usage,
            limit: limit.attempts,
            thousandths,
            state: State::Blocked { lifts },
        },
        None => {
            let usage = usage.saturating_add(in_flight);
            Standing {
                usage,
                limit: limit.attempts,
                thousandths: thousandths + u64::from(in_flight) * 1000,
                state: State::clear_below(usage as usize, limit.attempts as usize),
            }
        }
    };
    Judgement {
        standing,
        obsolete,
        folded: (obsolete > 0).then(|| A::to_summary(folded)),
        summary: is_needed.then(|| A::to_summary(recorded)),
        is_mixed: attempts.is_mixed() || has_other_spellings(failures),
        block: block.map(|(_, last)| last),
    }
}
