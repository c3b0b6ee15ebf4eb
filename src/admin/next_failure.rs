//! What one more failure would do to a counter.

use serde::Serialize;

use super::text;
use crate::{
    Limit, Period,
    algorithm::{Algorithm, Millis, Standing, State},
    attempt::block_after,
    clock::to_millis,
    store::{Contents, KeptAttempt},
};

/// What one more failure would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
#[non_exhaustive]
pub enum NextFailure {
    /// Attempts are still admitted after it.
    #[non_exhaustive]
    Counts {
        /// How many, if those in flight fail.
        remaining: u32,
    },
    /// It begins a block.
    #[non_exhaustive]
    Blocks {
        /// How long the block lasts, or longer unless `exact`.
        #[serde(rename = "for_ms", serialize_with = "text::period")]
        lifts: Period,
        /// Whether the length is exact, and the block begins whatever becomes of attempts in flight.
        exact: bool,
    },
    /// There is none: attempts are refused.
    Refused,
    /// It does not count: the user has logged in from this address before.
    Exempt,
}

impl NextFailure {
    /// For a counter with these contents under this limit.
    pub(super) fn of(limit: &Limit, contents: &Contents) -> Self {
        let now = contents.standing;
        match now.state {
            State::Exempt => return Self::Exempt,
            State::Busy | State::Blocked { .. } | State::Shadowed { .. } => return Self::Refused,
            State::Clear => {}
        }
        let then = Standing {
            usage: now.usage.saturating_add(1),
            thousandths: now.thousandths.saturating_add(1000),
            ..now
        };
        if then.remaining() > 0 {
            return Self::Counts {
                remaining: then.remaining(),
            };
        }
        let in_flight = contents.attempts.iter().filter(|kept| kept.is_in_flight);
        let is_last = in_flight.count() == 0;
        let (lifts, exact) = length(limit, contents, then);
        Self::Blocks {
            lifts,
            exact: exact && is_last,
        }
    }
}

/// How long the block lasts that a failure now brings, and whether that is exact.
fn length(limit: &Limit, contents: &Contents, then: Standing) -> (Period, bool) {
    let at_least = block_after(limit, then);
    let failed = |kept: &&KeptAttempt| !kept.is_in_flight;
    match (limit.algorithm(), &limit.block) {
        (Algorithm::SlidingWindow, Some(block)) => {
            let last = contents.summary.and_then(|summary| summary.last_block);
            let full = last_full(limit, contents);
            let last = last.map(|last| (last.nth, last.began));
            (block.next_length(last, full, contents.now), true)
        }
        // As many as the limit less the new one, the newest first: when the last of these leaves, one fits again.
        (Algorithm::SlidingWindow, None) => {
            let Some(window) = limit.window().as_duration() else {
                return (Period::Forever, true);
            };
            let Some(older) = (limit.max_attempts() as usize).checked_sub(2) else {
                return (limit.window(), true);
            };
            match contents.attempts.iter().filter(failed).nth(older) {
                Some(kept) => {
                    let age = contents.now.saturating_sub(kept.at);
                    (
                        Period::of_millis(to_millis(window).saturating_sub(age)),
                        true,
                    )
                }
                None => (at_least, false),
            }
        }
        (Algorithm::Backoff, _) => (at_least, limit.jitter() == 0),
        // A block that outlasts the failures is not extended by them.
        (Algorithm::TokenBucket | Algorithm::SlidingCounter, Some(block)) => {
            let outlasts = to_millis_or_max(at_least) >= limit.counts_for().unwrap_or(Millis::MAX);
            (at_least, outlasts && !block.grows())
        }
        (Algorithm::TokenBucket | Algorithm::SlidingCounter, None) => (at_least, false),
    }
}

fn to_millis_or_max(period: Period) -> Millis {
    period.as_duration().map_or(Millis::MAX, to_millis)
}

/// When the failures that a window keeps began a block, which is over: it is recorded with the next admission.
fn last_full(limit: &Limit, contents: &Contents) -> Option<Millis> {
    let mut failed = contents.attempts.iter().filter(|kept| !kept.is_in_flight);
    let newest = failed.clone().next()?.at;
    let oldest = failed
        .nth((limit.max_attempts() as usize).checked_sub(1)?)?
        .at;
    let is_within = |window: Millis| newest.saturating_sub(oldest) < window;
    let window = limit.window().as_duration().map(to_millis);
    window.is_none_or(is_within).then_some(newest)
}
