//! The sliding window: every failure is kept until it leaves the window, so the count is exact.

use super::{
    Limit, Millis, Standing, State,
    attempts::{Attempts, Entry, has_other_spellings},
    counter::{Judgement, Summary},
};
use crate::Period;

pub(super) fn judge(
    limit: &Limit,
    attempts: &Attempts,
    summary: Option<&Summary>,
    now: Millis,
) -> Judgement {
    let max = limit.attempts as usize;
    let mut last_block = match summary {
        Some(Summary::Window(block)) if limit.has_growing_blocks() => Some(*block),
        _ => None,
    };
    let (failures, _) = attempts.split(now);
    let blocked = |usage, lifts| Judgement::of(standing(limit, usage, State::Blocked { lifts }));
    let mut obsolete = expired(limit, attempts, now);
    let mut is_mixed = attempts.is_mixed();

    match (&limit.block, failures.last()) {
        (_, None) => {}
        (None, Some(_)) => {
            let recent = failures.len() - obsolete;
            if recent >= max {
                // An attempt fits when fewer than the limit are left.
                let leaves = failures[failures.len() - max].at();
                return blocked(recent, left(limit.window, leaves, now));
            }
        }
        (Some(block), Some(last)) => {
            let recent = failures.len() - before(limit.window, failures, last.at());
            if recent >= max {
                let this = block.after(last_block, last.at());
                if let Some(lifts) = block.left(this, now) {
                    return Judgement {
                        block: Some(this),
                        ..blocked(recent, lifts)
                    };
                }
                // The block is over, and all failures with it.
                obsolete = failures.len();
                last_block = limit.has_growing_blocks().then_some(this);
                is_mixed |= last_block.is_some() && has_other_spellings(failures);
            }
        }
    }

    let usage = attempts.len() - obsolete;
    Judgement {
        obsolete,
        summary: last_block.map(Summary::Window),
        is_mixed,
        block: last_block,
        ..Judgement::of(standing(limit, usage, State::clear_below(usage, max)))
    }
}

pub(super) fn standing(limit: &Limit, usage: usize, state: State) -> Standing {
    let usage = u32::try_from(usage).unwrap_or(u32::MAX);
    Standing::new(usage, limit.attempts, state)
}

/// How many attempts have left the window that ends at `now`; they are the oldest.
pub(super) fn expired(limit: &Limit, attempts: &Attempts, now: Millis) -> usize {
    before(limit.window, attempts, now)
}

/// How many of the attempts came before the window that ends at `end`; those in flight never do.
fn before(window: Option<Millis>, attempts: &[Entry], end: Millis) -> usize {
    let (Some(window), Some(first)) = (window, attempts.first()) else {
        return 0;
    };
    let has_left = |entry: &Entry| end.checked_sub(entry.at()).is_some_and(|age| age >= window);
    if has_left(first) {
        attempts.partition_point(has_left)
    } else {
        0
    }
}

/// What is left at `now` of a window that began at `start`; `None` is forever.
fn left(window: Option<Millis>, start: Millis, now: Millis) -> Period {
    Period::of_millis(window.map(|window| window.saturating_sub(now.saturating_sub(start))))
}
