//! How a counter decides: pure state machines, without a clock and without I/O.
//!
//! A counter is judged by a [`Limit`] at a point in time, and the result is a [`Standing`]. The memory store
//! runs this code; the Lua scripts implement the same algorithms in Redis, and a model test holds both to the
//! same decisions.

pub(crate) mod aggregate;
pub(crate) mod attempts;
mod backoff;
pub(crate) mod block;
pub(crate) mod counter;
pub(crate) mod limit;
pub(crate) mod sliding_counter;
mod sliding_window;
#[cfg(feature = "memory")]
pub(crate) mod summary;
pub(crate) mod token_bucket;

use crate::Period;

pub(crate) use block::Block;
#[cfg(feature = "memory")]
pub(crate) use counter::Counter;
pub use limit::Algorithm;
pub(crate) use limit::Limit;

/// Milliseconds, as a point in time or as a length.
pub type Millis = u64;

/// How a counter stands: what is used, of how much, and whether it admits another attempt.
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
    /// Attempts that count: failures and, unless the counter is blocked, attempts in flight.
    pub usage: u32,
    /// How many attempts may count.
    pub limit: u32,
    /// `usage` in thousandths: a token bucket refills in fractions, and a sliding-window counter weights
    /// the previous window.
    pub thousandths: u64,
    /// Whether another attempt is admitted.
    pub state: State,
}

impl Standing {
    /// A standing in whole attempts.
    #[must_use]
    pub const fn new(usage: u32, limit: u32, state: State) -> Self {
        Self {
            usage,
            limit,
            thousandths: usage as u64 * 1000,
            state,
        }
    }

    /// How many more attempts are admitted now, or would be by a counter in shadow; [`u32::MAX`] if the counter
    /// makes an exception.
    pub const fn remaining(&self) -> u32 {
        match self.state {
            State::Exempt => u32::MAX,
            State::Clear => self.limit.saturating_sub(self.usage),
            State::Shadowed { .. } | State::Busy | State::Blocked { .. } => 0,
        }
    }

    /// The attempts that count, with their fraction: 9.5 of 10 admits one more.
    pub const fn rate(&self) -> f64 {
        self.thousandths as f64 / 1000.0
    }

    /// Whether the limit is reached.
    pub const fn is_blocked(&self) -> bool {
        matches!(self.state, State::Blocked { .. })
    }

    /// Whether the counter refuses an attempt.
    pub const fn refuses(&self) -> bool {
        matches!(self.state, State::Busy | State::Blocked { .. })
    }

    /// Whether an attempt that is admitted is written to the counter.
    #[cfg(feature = "memory")]
    pub(crate) const fn counts(&self) -> bool {
        !matches!(self.state, State::Exempt | State::Shadowed { .. })
    }

    /// The same of a counter in shadow: what it would refuse, it does not.
    #[cfg(feature = "memory")]
    pub(crate) fn in_shadow(mut self) -> Self {
        self.state = match self.state {
            State::Busy => State::Shadowed { lifts: None },
            State::Blocked { lifts } => State::Shadowed { lifts: Some(lifts) },
            state => state,
        };
        self
    }

    /// The same of a counter that is not in shadow.
    pub(crate) fn enforced(mut self) -> Self {
        self.state = match self.state {
            State::Shadowed { lifts: None } => State::Busy,
            State::Shadowed { lifts: Some(lifts) } => State::Blocked { lifts },
            state => state,
        };
        self
    }
}

/// Whether a counter admits another attempt. Ordered by severity: the longer a refusal lasts, the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum State {
    /// Admitted without being counted: the address is known for this user.
    Exempt,
    /// Admitted.
    Clear,
    /// Admitted without being counted: the counter is in [shadow](crate::store::Slot::shadow), and would refuse.
    Shadowed {
        /// The time until the block would lift; `None` if the counter would be [busy](Self::Busy).
        lifts: Option<Period>,
    },
    /// Refused while other attempts are in flight: if all of them failed, the limit would be reached. The
    /// first one that succeeds makes room.
    Busy,
    /// Refused: the limit is reached.
    Blocked {
        /// The time until the block lifts.
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
