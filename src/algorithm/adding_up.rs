//! What token bucket and sliding-window counter have in common: they add failures up.

use std::time::Duration;

use super::{
    Block, Millis, Standing, State, attempts::Attempts, block::LastBlock, counter::Judgement,
};
use crate::Period;

/// How many of the newest failures are kept one by one. It bounds the memory of a counter; as long as
/// they are kept, a reserve repeated after a lost reply counts once, and what is taken back is exact.
pub(super) const KEPT: usize = 8;

/// An algorithm that adds failures up.
pub(super) trait AddsUp {
    /// What failures add up to.
    type Sum: Copy;

    fn limit(&self) -> u32;

    fn block(&self) -> Option<&Block>;

    /// No failures, with the first about to come at `at`.
    fn begin(&self, at: Millis) -> Self::Sum;

    /// Adds a failure at `at`. Time does not go back: an earlier one counts as of the latest.
    fn count(&self, sum: &mut Self::Sum, at: Millis);

    /// What counts at `now`, in parts of an attempt, and how many parts an attempt has.
    fn parts(&self, sum: &Self::Sum, now: Millis) -> (u64, u64);

    /// What counts at `now`, in whole attempts, such that reaching the limit leaves no room.
    fn usage(&self, sum: &Self::Sum, now: Millis) -> u32;

    /// When there is room again, if there is none.
    fn room_at(&self, sum: &Self::Sum, now: Millis) -> Millis;
}

/// Failures that are no longer kept one by one, and the newest block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Added<S> {
    pub(super) sum: S,
    pub(super) block: Option<LastBlock>,
}

impl<S> Added<S> {
    fn count<A: AddsUp<Sum = S>>(&mut self, numbers: &A, at: Millis) {
        numbers.count(&mut self.sum, at);
        // One that has been noted since then is the newer one.
        let is_newest = self.block.is_none_or(|last| last.began < at);
        if let Some(block) = numbers.block()
            && is_newest
            && numbers.usage(&self.sum, at) >= numbers.limit()
        {
            self.block = Some(block.after(self.block, at));
        }
    }
}

pub(super) fn judge<A: AddsUp>(
    numbers: &A,
    attempts: &Attempts,
    past: Option<Added<A::Sum>>,
    now: Millis,
) -> Judgement<Added<A::Sum>> {
    let failures = attempts.failures(now);
    let in_flight = u32::try_from(attempts.len() - failures.len()).unwrap_or(u32::MAX);
    let obsolete = failures.len().saturating_sub(KEPT);
    let (old, kept) = failures.split_at(obsolete);

    let mut all = past.unwrap_or_else(|| Added {
        sum: numbers.begin(failures.first().map_or(now, |first| first.at)),
        block: None,
    });
    for failure in old {
        all.count(numbers, failure.at);
    }
    let folded = all;
    for failure in kept {
        all.count(numbers, failure.at);
    }
    // An admission comes after a block, and notes it: taking back the failure that brought it, as
    // whoever made it can by logging in, does not undo it.
    let noted = Added {
        sum: folded.sum,
        block: all.block,
    };
    let is_worth_it = past.is_some() || obsolete > 0 || noted.block.is_some();

    let usage = numbers.usage(&all.sum, now);
    let (parts, whole) = numbers.parts(&all.sum, now);
    let thousandths = parts / whole * 1000 + parts % whole * 1000 / whole;
    let limit = numbers.limit();
    let no_room = (usage >= limit).then(|| {
        let room_at = numbers.room_at(&all.sum, now);
        Period::Of(Duration::from_millis(room_at.saturating_sub(now)))
    });
    let block = numbers.block().zip(all.block);
    let in_force = block.and_then(|(block, last)| block.left(last, now));
    let standing = match no_room.max(in_force) {
        Some(lifts) => Standing {
            usage,
            limit,
            thousandths,
            state: State::Blocked { lifts },
        },
        None => {
            let usage = usage.saturating_add(in_flight);
            Standing {
                usage,
                limit,
                thousandths: thousandths + u64::from(in_flight) * 1000,
                state: State::clear_below(usage as usize, limit as usize),
            }
        }
    };
    Judgement {
        standing,
        obsolete,
        folded: (obsolete > 0).then_some(folded),
        past: is_worth_it.then_some(noted),
        block: block.map(|(_, last)| last),
    }
}
