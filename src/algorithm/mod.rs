//! What is counted and when it is too much: pure state machines without a clock and without I/O.
//!
//! A machine is asked with the time as an argument and answers with a [`Standing`]. The memory store
//! runs these machines as they are; the Lua scripts do the same in Redis, and one test drives both
//! with the same histories and demands the same answers. Somebody who writes a store of their own
//! can build on them too.

mod sliding_window;

use crate::Period;

pub use sliding_window::{Block, SlidingWindow, Window};

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
/// Put into words by [`Limit::attempts`].
///
/// ```
/// use tower_login_rate_limit::{Limit, Period};
///
/// let pure_sliding = Limit::attempts(5).within(Period::minutes(10)).without_block().build()?;
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// So many failures within so long, then blocked for so long.
    SlidingWindow(SlidingWindow),
}

/// How a counter stands: what is used, of how much, and whether one more attempt may come.
///
/// ```
/// use tower_login_rate_limit::algorithm::{Standing, State};
///
/// let standing = Standing { usage: 3, limit: 5, state: State::Clear };
/// assert_eq!(standing.remaining(), 2);
/// assert!(!standing.refuses());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Attempts that count: failures in the window and attempts in flight.
    pub usage: u32,
    /// How many may count.
    pub limit: u32,
    /// Whether one more may come.
    pub state: State,
}

impl Standing {
    /// How many more attempts may come now.
    pub const fn remaining(&self) -> u32 {
        match self.state {
            State::Clear => self.limit.saturating_sub(self.usage),
            State::Busy | State::Blocked { .. } => 0,
        }
    }

    /// Whether an attempt is turned away.
    pub const fn refuses(&self) -> bool {
        !matches!(self.state, State::Clear)
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
pub enum State {
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
