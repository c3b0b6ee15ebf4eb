//! Summaries as the scripts write them.

use crate::{
    Limit,
    algorithm::{
        Millis,
        aggregate::Aggregate,
        block::LastBlock,
        counter::Summary,
        sliding_counter::Counts,
        summary::{Amount, amount},
        token_bucket::Missing,
    },
};

/// What a summary amounts to that is written as in Redis; see `counters.lua`. `None` also if it can't be read.
pub(super) fn read(text: &str, limit: &Limit, now: Millis) -> Option<Amount> {
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
