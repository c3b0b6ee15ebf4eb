//! Back-off: a wait after each failure, longer each time.
//!
//! After a failure nothing is admitted until the wait is over, and then one attempt at a time. As many
//! failures as there are waits are kept one by one.

use super::{
    Limit, Millis, Standing, State,
    attempts::{Attempts, Entry},
    counter::Judgement,
};
use crate::Period;

pub(super) fn judge(limit: &Limit, attempts: &Attempts, now: Millis) -> Judgement {
    let waits = limit.waits.as_deref().unwrap_or_default();
    let (failures, in_flight) = attempts.split(now);
    let is_forgotten = |last: &&Entry| {
        let quiet = now.saturating_sub(last.at());
        limit.window.is_some_and(|window| quiet >= window)
    };
    let last = failures.last().filter(|last| !is_forgotten(last));
    let counted = last.map_or(0, |_| failures.len().min(waits.len()));
    let max = (counted + 1).max(limit.attempts as usize);
    let standing = |usage: usize, state| {
        let whole = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Standing::new(whole(usage), whole(max), state)
    };

    let wait = counted.checked_sub(1).and_then(|i| waits.get(i));
    let ends = last.zip(wait).map(|(last, wait)| {
        let wait = with_jitter(*wait, limit.jitter, last);
        last.at().saturating_add(wait)
    });
    let standing = match ends {
        Some(ends) if now < ends => {
            let lifts = Period::of_millis(ends - now);
            standing(counted, State::Blocked { lifts })
        }
        _ => {
            let usage = counted + in_flight.len();
            standing(usage, State::clear_below(usage, max))
        }
    };
    Judgement {
        obsolete: failures.len() - counted,
        ..Judgement::of(standing)
    }
}

/// The wait after `last`, shortened or extended by up to `percent`.
///
/// The jitter is derived from the token of the failure, which is random and secret, so every evaluation
/// returns the same wait.
fn with_jitter(wait: Millis, percent: u32, last: &Entry) -> Millis {
    let draw = i64::from(last.first_byte()) - 128;
    let by = i64::from(percent) * draw * wait.cast_signed();
    wait.saturating_add_signed(by.div_euclid(12_800))
}
