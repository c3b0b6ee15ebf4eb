//! What a summary counts for, for an operator to read.

use super::{
    Algorithm, Limit, Millis,
    aggregate::{Aggregate, Aggregation},
    block::LastBlock,
    counter::{Counter, Summary},
    sliding_counter::SlidingCounter,
    token_bucket::TokenBucket,
};
#[cfg(feature = "redis")]
use super::{sliding_counter::Counts, token_bucket::Missing};

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

fn amount(summary: &Summary, is_mixed: bool, limit: &Limit, now: Millis) -> Option<Amount> {
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

/// What a summary amounts to that is written as in Redis; see `counters.lua`. `None` also if it can't be read.
#[cfg(feature = "redis")]
pub(crate) fn read(text: &str, limit: &Limit, now: Millis) -> Option<Amount> {
    /// Times that are later are not those of a summary.
    const LATEST: Millis = 1 << 48;
    let mut parts = text.split(' ');
    let letter = parts.next()?;
    let numbers: Vec<u64> = parts.map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let block = |nth: u64, began: Millis| {
        let nth = u32::try_from(nth).ok()?;
        (began <= LATEST).then_some((nth > 0).then_some(LastBlock { nth, began }))
    };
    // Failures beyond the limit are of another policy; with any number, a rate could overflow.
    let bounded = |failures: u64| failures.min(limit.attempts.into());
    let summary = match (letter, numbers.as_slice()) {
        ("w" | "W", [nth, began]) => Summary::Window(block(*nth, *began)??),
        ("b" | "B", [tokens, less, at, nth, began]) if *at <= LATEST => {
            let (tokens, less, at) = (*tokens, *less, *at);
            Summary::Bucket(Aggregate {
                sum: Missing { tokens, less, at },
                block: block(*nth, *began)?,
            })
        }
        ("c" | "C", [start, previous, current, nth, began]) if *start <= LATEST => {
            Summary::Counts(Aggregate {
                sum: Counts {
                    start: *start,
                    previous: bounded(*previous),
                    current: bounded(*current),
                },
                block: block(*nth, *began)?,
            })
        }
        _ => return None,
    };
    let is_mixed = letter.bytes().all(|byte| byte.is_ascii_uppercase());
    amount(&summary, is_mixed, limit, now)
}
