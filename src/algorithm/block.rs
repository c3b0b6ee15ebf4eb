//! What happens when a limit is reached, and when it is reached again.

use std::{sync::Arc, time::Duration};

use super::Millis;
use crate::Period;

/// How long nothing is admitted once a limit is reached; longer each time that it happens again too
/// soon, if more than one length is given.
///
/// Put into words by [`blocked_for`](crate::LimitBuilder::blocked_for) and
/// [`then_for`](crate::LimitBuilder::then_for).
///
/// ```
/// use tower_login_rate_limit::{Limit, Period};
///
/// let limit = Limit::attempts(5)
///     .within(Period::hours(24))
///     .blocked_for(Period::hours(24))
///     .then_for(Period::days(7))
///     .then_for(Period::Forever)
///     .again_within(Period::days(30))
///     .build()?;
/// let block = limit.block().expect("it has one");
/// assert_eq!(block.lengths().last(), Some(&None));
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Not empty.
    lengths: Arc<[Option<Millis>]>,
    again_within: Millis,
}

impl Block {
    /// `lengths` must not be empty.
    pub(crate) fn new(lengths: impl Into<Arc<[Option<Millis>]>>, again_within: Millis) -> Self {
        let lengths = lengths.into();
        debug_assert!(!lengths.is_empty(), "a block without a length");
        Self {
            lengths,
            again_within,
        }
    }

    /// How long the first block is, the second in a row, and so on; `None` is for ever.
    pub fn lengths(&self) -> &[Option<Millis>] {
        &self.lengths
    }

    /// A block that begins within this time of the end of the last is the next one in the row.
    pub const fn again_within(&self) -> Millis {
        self.again_within
    }

    /// Whether there is more than one length, so that blocks must be remembered.
    pub(super) fn grows(&self) -> bool {
        self.lengths.len() > 1
    }

    /// How long the `nth` in a row is.
    pub(super) fn length(&self, nth: u32) -> Option<Millis> {
        let last = self.lengths.len().saturating_sub(1);
        let i = (nth as usize).saturating_sub(1).min(last);
        self.lengths.get(i).copied().flatten()
    }

    /// When a block no longer makes the next one longer; `None` for never.
    pub(super) fn forgotten(&self, block: LastBlock) -> Option<Millis> {
        let remembered = self.length(block.nth)?.saturating_add(self.again_within);
        Some(block.began.saturating_add(remembered))
    }

    /// The block that begins at `at`, after `last`.
    pub(super) fn after(&self, last: Option<LastBlock>, at: Millis) -> LastBlock {
        let most = u32::try_from(self.lengths.len()).unwrap_or(u32::MAX);
        let nth = match last {
            None => 1,
            Some(last) if self.left(last, at).is_some() => last.nth.min(most),
            Some(last) if self.forgotten(last).is_none_or(|end| at < end) => {
                last.nth.saturating_add(1).min(most)
            }
            Some(_) => 1,
        };
        LastBlock { nth, began: at }
    }

    /// What is left of a block at `now`; nothing if it is over.
    pub(super) fn left(&self, block: LastBlock, now: Millis) -> Option<Period> {
        let Some(length) = self.length(block.nth) else {
            return Some(Period::Forever);
        };
        // By its age, which is right also where the clock ends.
        let left = match now.checked_sub(block.began) {
            Some(age) => length.saturating_sub(age),
            None => length.saturating_add(block.began - now),
        };
        (left > 0).then(|| Period::Of(Duration::from_millis(left)))
    }
}

/// The newest block of a counter: its number in a row of blocks, from 1, and when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastBlock {
    pub(super) nth: u32,
    pub(super) began: Millis,
}
