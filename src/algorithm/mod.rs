//! What is counted and when it is too much: pure state machines without a clock and without I/O.
//!
//! A [`Counter`] is asked with a [`Limit`] and the time, and answers with a [`Standing`]. The memory
//! store runs it as it is; the Lua scripts do the same in Redis, and one test drives both
//! with the same histories and demands the same answers. Somebody who writes a store of their own
//! can build on them too.

mod adding_up;
mod attempts;
mod backoff;
mod block;
mod counter;
mod sliding_counter;
mod sliding_window;
mod token_bucket;

use crate::Period;

pub use backoff::Backoff;
pub use block::Block;
pub use counter::Counter;
pub use sliding_counter::SlidingCounter;
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;

/// Milliseconds, as a moment or as a length.
///
/// ```
/// use tower_login_rate_limit::algorithm::Millis;
///
/// const AN_HOUR: Millis = 60 * 60 * 1000;
/// ```
pub type Millis = u64;

/// What a counter allows: an algorithm and its numbers.
///
/// Put into words by [`Limit::attempts`] and [`Limit::backoff`].
///
/// ```
/// use tower_login_rate_limit::{Limit, Period};
///
/// let pure_sliding = Limit::attempts(5).within(Period::minutes(10)).without_block().build()?;
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// So many failures within so long, then blocked for so long. Exact.
    SlidingWindow(SlidingWindow),
    /// After each failure a longer wait.
    Backoff(Backoff),
    /// A failure takes a token, and tokens come back with time.
    TokenBucket(TokenBucket),
    /// The last window's count, weighted, and this one's: an estimate in little memory.
    SlidingCounter(SlidingCounter),
}

impl Limit {
    /// What happens when it is reached, if anything does beyond waiting until there is room.
    pub const fn block(&self) -> Option<&Block> {
        match self {
            Self::SlidingWindow(numbers) => numbers.block(),
            Self::Backoff(_) => None,
            Self::TokenBucket(numbers) => numbers.block(),
            Self::SlidingCounter(numbers) => numbers.block(),
        }
    }

    /// Whether what was counted is added up in the end, in place of being kept one by one.
    pub(crate) const fn adds_up(&self) -> bool {
        matches!(self, Self::TokenBucket(_) | Self::SlidingCounter(_))
    }

    /// How long a counter is of use after its newest attempt; `None` for ever.
    ///
    /// `block` is for a counter that is blocked or may be with what is in flight: which block in a
    /// row that is, from 1.
    pub(crate) fn retention(&self, block: Option<u32>) -> Option<Millis> {
        let counts = match self {
            Self::SlidingWindow(numbers) => numbers.window(),
            Self::Backoff(numbers) => numbers.forgotten_after(),
            Self::TokenBucket(numbers) => Some(numbers.refill()),
            Self::SlidingCounter(numbers) => Some(numbers.window().saturating_mul(2)),
        }?;
        match (block, self.block()) {
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

/// How a counter stands: what is used, of how much, and whether one more attempt may come.
///
/// ```
/// use tower_login_rate_limit::algorithm::{Standing, State};
///
/// let standing = Standing::new(3, 5, State::Clear);
/// assert_eq!(standing.remaining(), 2);
/// assert_eq!(standing.rate(), 3.0);
/// assert!(!standing.refuses());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Standing {
    /// Attempts that count: failures, and attempts in flight unless it is blocked.
    pub usage: u32,
    /// How many may count.
    pub limit: u32,
    /// The same as `usage`, in thousandths: a token may have come back in part, and a counter weighs
    /// what it has counted.
    pub thousandths: u64,
    /// Whether one more may come.
    pub state: State,
}

impl Standing {
    /// A standing in whole attempts.
    pub const fn new(usage: u32, limit: u32, state: State) -> Self {
        Self {
            usage,
            limit,
            thousandths: usage as u64 * 1000,
            state,
        }
    }

    /// How many more attempts may come now; [`u32::MAX`] where they don't count.
    pub const fn remaining(&self) -> u32 {
        match self.state {
            State::Exempt => u32::MAX,
            State::Clear => self.limit.saturating_sub(self.usage),
            State::Busy | State::Blocked { .. } => 0,
        }
    }

    /// The attempts that count, with their fraction: at 9.5 of 10 there is room for one more.
    pub const fn rate(&self) -> f64 {
        self.thousandths as f64 / 1000.0
    }

    /// Whether an attempt is turned away.
    pub const fn refuses(&self) -> bool {
        matches!(self.state, State::Busy | State::Blocked { .. })
    }
}

/// Whether a counter lets one more attempt come.
///
/// ```
/// use tower_login_rate_limit::{Period, algorithm::State};
///
/// // The longer something is refused, the more it is.
/// let lifts = Period::Forever;
/// assert!(State::Clear < State::Busy && State::Busy < State::Blocked { lifts });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum State {
    /// Yes, and it does not count here: the caller's address is known.
    Exempt,
    /// Yes.
    Clear,
    /// Not while others are in flight: had they all failed, the limit would be reached. As soon as
    /// one of them turns out well there is room again.
    Busy,
    /// No: the limit is reached.
    Blocked {
        /// When the block lifts, counted from now.
        lifts: Period,
    },
}

impl State {
    /// Clear below the limit, busy from there on.
    const fn clear_below(usage: usize, limit: usize) -> Self {
        if usage < limit {
            Self::Clear
        } else {
            Self::Busy
        }
    }
}
