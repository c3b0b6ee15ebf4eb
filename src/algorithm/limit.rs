//! What a counter allows.

use std::{sync::Arc, time::Duration};

use super::{Block, Millis};
use crate::Period;

/// The longest window of an algorithm that multiplies by it. Times the most attempts that a limit can have
/// it is below 2⁵³, so that Lua computes with it exactly.
pub(crate) const MAX_FINITE_WINDOW: Millis = 366 * 24 * 60 * 60 * 1000;

/// How attempts are counted, and when they are too many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Algorithm {
    /// Every failure is kept until it leaves the window, so the count is exact: never more than the limit
    /// in any span as long as the window. Memory grows with the limit.
    #[default]
    SlidingWindow,
    /// A failure takes a token, an attempt in flight holds one, and tokens are refilled evenly. Keeps the
    /// newest 8 failures and an aggregate of the older ones.
    TokenBucket,
    /// The failures of this window, and those of the previous one weighted by how much of it still lies
    /// within a window's length: an estimate, exact if they were spread evenly. Keeps the newest 8
    /// failures and an aggregate of the older ones.
    SlidingCounter,
    /// After each failure a longer wait, and then one attempt at a time.
    Backoff,
}

/// What a counter allows: an algorithm and its numbers.
///
/// Begin with [`Limit::attempts`] or [`Limit::backoff`]. The numbers can be read back:
///
/// ```
/// use tower_login_rate_limit::{Limit, Period, algorithm::Algorithm};
///
/// let limit = Limit::attempts(5).within(Period::hours(1)).blocked_for(Period::hours(24)).build()?;
/// assert_eq!(limit.algorithm(), Algorithm::SlidingWindow);
/// assert_eq!((limit.max_attempts(), limit.window()), (5, Period::hours(1)));
/// assert_eq!(limit.block(), Some(Period::hours(24)));
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
// Everything that stores, files and headers know of a limit is here; each algorithm adds its decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub(crate) algorithm: Algorithm,
    /// At least 1. For a back-off, the failures that cost no wait, and one.
    pub(crate) attempts: u32,
    /// `None` is forever. For algorithms that aggregate it is finite, [`MAX_FINITE_WINDOW`] at most.
    pub(crate) window: Option<Millis>,
    /// `None` for a back-off.
    pub(crate) block: Option<Block>,
    /// Of a back-off: not empty, ascending, the last one above zero.
    pub(crate) waits: Option<Arc<[Millis]>>,
    /// Of a back-off, in percent, 100 at most.
    pub(crate) jitter: u32,
}

impl Limit {
    /// The algorithm that counts.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How many attempts may count: the limit of a window, the capacity of a bucket, the failures that a
    /// back-off lets pass before the first wait, and one.
    pub const fn max_attempts(&self) -> u32 {
        self.attempts
    }

    /// How long a failure counts. For a token bucket, the time to refill an empty one; for a back-off, the
    /// time without a failure after which the waits begin anew.
    pub fn window(&self) -> Period {
        Period::of_millis(self.window)
    }

    /// How long the first block lasts. Without a block, the next attempt is admitted as soon as the count
    /// is below the limit.
    pub fn block(&self) -> Option<Period> {
        self.blocks().next()
    }

    /// How long the first block lasts, the second in a row, and so on; the last length repeats.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = Period> + '_ {
        let lengths = self.block.as_ref().map_or(&[][..], Block::lengths);
        lengths.iter().map(|length| Period::of_millis(*length))
    }

    /// A block that begins within this time of the end of the last one has the next length. `None` if all
    /// blocks have one length.
    pub fn again_within(&self) -> Option<Period> {
        let growing = self.block.as_ref().filter(|block| block.grows());
        growing.map(|block| Period::of_millis(block.again_within()))
    }

    /// The waits of a back-off after the first failure, the second, and so on; the last one repeats.
    pub fn waits(&self) -> impl ExactSizeIterator<Item = Duration> + '_ {
        let waits = self.waits.as_deref().unwrap_or_default();
        waits.iter().copied().map(Duration::from_millis)
    }

    /// By how many percent a wait of a back-off may be shorter or longer.
    pub const fn jitter(&self) -> u32 {
        self.jitter
    }

    /// Whether blocks get longer, so that the last one is kept.
    pub(crate) fn has_growing_blocks(&self) -> bool {
        self.block.as_ref().is_some_and(Block::grows)
    }

    /// Whether older failures are kept as an aggregate and not one by one.
    #[inline]
    pub(crate) const fn aggregates(&self) -> bool {
        matches!(
            self.algorithm,
            Algorithm::TokenBucket | Algorithm::SlidingCounter
        )
    }

    /// The window of an algorithm that aggregates.
    pub(super) fn finite_window(&self) -> Millis {
        debug_assert!(self.window.is_some(), "an aggregate over an endless window");
        self.window.unwrap_or(MAX_FINITE_WINDOW)
    }

    /// How long a failure has an effect if no block follows; `None` is forever.
    pub(crate) fn counts_for(&self) -> Option<Millis> {
        match self.algorithm {
            Algorithm::SlidingCounter => self.window.map(|window| window.saturating_mul(2)),
            _ => self.window,
        }
    }

    /// How long a counter is kept after its newest attempt; `None` is forever.
    ///
    /// `block` is the number in a row, from 1, of the block that is in force or that attempts in flight may
    /// bring.
    pub(crate) fn retention(&self, block: Option<u32>) -> Option<Millis> {
        let counts = self.counts_for()?;
        match (block, &self.block) {
            (Some(nth), Some(block)) => {
                let mut blocked = block.length(nth)?;
                if block.grows() {
                    blocked = blocked.saturating_add(block.again_within());
                }
                Some(counts.max(blocked))
            }
            _ => Some(counts),
        }
    }
}
