//! The sliding window: so many failures within so long, then blocked for so long.

use std::time::Duration;

use super::{
    Block, Millis, Standing, State,
    attempts::{Attempts, Entry},
    block::LastBlock,
    counter::{Judgement, Past},
};
use crate::Period;

/// The numbers of a sliding window. Put into words by [`Limit::attempts`](crate::Limit::attempts).
///
/// Every failure is kept until it leaves the window, so what is counted is exact: never more than
/// the limit in any stretch of time as long as the window, and a cancel or a success takes back
/// exactly its own. Memory grows with the limit.
///
/// ```
/// use tower_login_rate_limit::{Limit, Period};
///
/// let limit = Limit::attempts(5).within(Period::seconds(60)).build()?;
/// if let Limit::SlidingWindow(numbers) = limit {
///     assert_eq!((numbers.limit(), numbers.window()), (5, Some(60_000)));
///     // Without a word about it, the block is as long as the window.
///     assert_eq!(numbers.block().map(|block| block.lengths()), Some(&[Some(60_000)][..]));
/// }
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// How many failures fill the window, at least 1.
    pub(crate) limit: u32,
    /// How long a failure counts; `None` for ever.
    pub(crate) window: Option<Millis>,
    /// What happens when the window is full.
    pub(crate) block: Option<Block>,
}

impl SlidingWindow {
    /// How many failures fill the window.
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// How long a failure counts; `None` for ever.
    pub const fn window(&self) -> Option<Millis> {
        self.window
    }

    /// What happens when the window is full. With no block of its own, the next attempt is free as
    /// soon as the oldest failure leaves the window.
    pub const fn block(&self) -> Option<&Block> {
        self.block.as_ref()
    }

    pub(super) fn judge(
        &self,
        attempts: &Attempts,
        past: Option<LastBlock>,
        now: Millis,
    ) -> Judgement {
        let limit = self.limit as usize;
        let mut past = past.filter(|_| self.block.as_ref().is_some_and(Block::grows));
        let failures = attempts.failures(now);
        let blocked = |usage: usize, lifts, block| Judgement {
            standing: self.standing(usage, State::Blocked { lifts }),
            obsolete: 0,
            folded: None,
            past: None,
            block,
        };
        let mut obsolete = self.left_behind(attempts, now);

        match (&self.block, failures.last()) {
            (_, None) => {}
            (None, Some(_)) => {
                let recent = failures.len() - obsolete;
                if recent >= limit {
                    // There is room when fewer than `limit` are left.
                    let gives_way = failures[failures.len() - limit].at;
                    return blocked(recent, until(self.window, gives_way, now), None);
                }
            }
            (Some(block), Some(last)) => {
                let recent = failures.len() - self.before(failures, last.at);
                if recent >= limit {
                    let this = block.after(past, last.at);
                    if let Some(lifts) = block.left(this, now) {
                        return blocked(recent, lifts, Some(this));
                    }
                    // The block is over and the slate is clean.
                    obsolete = failures.len();
                    past = block.grows().then_some(this);
                }
            }
        }

        let usage = attempts.len() - obsolete;
        Judgement {
            standing: self.standing(usage, State::clear_below(usage, limit)),
            obsolete,
            folded: None,
            past: past.map(Past::Window),
            block: past,
        }
    }

    /// How many attempts have left the window that ends now; they are the first ones.
    pub(super) fn left_behind(&self, attempts: &Attempts, now: Millis) -> usize {
        self.before(attempts.all(), now)
    }

    /// How many of these were before the window that ends at `end`; those in flight never are.
    fn before(&self, attempts: &[Entry], end: Millis) -> usize {
        let (Some(window), Some(first)) = (self.window, attempts.first()) else {
            return 0;
        };
        match has_passed(window, first.at, end) {
            true => attempts.partition_point(|entry| has_passed(window, entry.at, end)),
            false => 0,
        }
    }

    pub(super) fn standing(&self, usage: usize, state: State) -> Standing {
        let usage = u32::try_from(usage).unwrap_or(u32::MAX);
        Standing::new(usage, self.limit, state)
    }
}

/// Whether a length that began at `start` is over at `now`.
fn has_passed(length: Millis, start: Millis, now: Millis) -> bool {
    now.checked_sub(start).is_some_and(|age| age >= length)
}

/// What is left, at `now`, of a length that began at `start`; `None` has no end.
fn until(length: Option<Millis>, start: Millis, now: Millis) -> Period {
    length.map_or(Period::Forever, |length| {
        let left = length.saturating_sub(now.saturating_sub(start));
        Period::Of(Duration::from_millis(left))
    })
}
