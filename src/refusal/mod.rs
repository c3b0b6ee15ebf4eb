//! Why an attempt was turned away, and for how long.

mod denial;
mod grpc;
mod problem;

use std::{error::Error, fmt, sync::Arc, time::Duration};

use crate::{
    Period,
    algorithm::{Standing, State},
};

pub use denial::{ByContentType, Denial, Respond};
pub use grpc::GrpcStatus;
pub use problem::ProblemJson;

/// An attempt was turned away: by which rule, why, and until when.
///
/// Its text is meant for the person who was refused: `too many failed attempts, try again in 6 days
/// 23 hours`.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_login_rate_limit::{KeyLimiter, Limit, Period, Reason, ReserveError, store::MemoryStore};
///
/// let one_a_day = Limit::attempts(1).within(Period::days(1));
/// let mails = KeyLimiter::new("mail", one_a_day, MemoryStore::new())?;
/// mails.reserve("alice").await?;
/// if let Err(ReserveError::Refused(refusal)) = mails.reserve("alice").await {
///     assert_eq!(refusal.reason(), Reason::Blocked);
///     assert_eq!(refusal.lifts_in_words(), "in 1 day");
/// }
/// # Ok(()) }
/// # tokio::runtime::Runtime::new()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    rule: Arc<str>,
    standing: Standing,
}

/// Why an attempt was turned away.
///
/// ```
/// use tower_login_rate_limit::{Reason, Refusal};
///
/// fn is_worth_a_log_line(refusal: &Refusal) -> bool {
///     refusal.reason() == Reason::Blocked
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Too many attempts have failed.
    Blocked,
    /// Too many attempts are in flight. None of them has to fail; a moment later there may be room.
    Busy,
}

/// When to come back while others are in flight: long enough for a password to be checked.
const BUSY_RETRY: Duration = Duration::from_secs(1);

impl Refusal {
    /// `None` if the standing does not refuse.
    pub(crate) fn new(rule: Arc<str>, standing: Standing) -> Option<Self> {
        standing.refuses().then_some(Self { rule, standing })
    }

    pub(crate) const fn standing(&self) -> Standing {
        self.standing
    }

    /// The name of the rule that refused.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Why.
    pub const fn reason(&self) -> Reason {
        match self.standing.state {
            State::Blocked { .. } => Reason::Blocked,
            State::Exempt | State::Clear | State::Busy => Reason::Busy,
        }
    }

    /// How many attempts count.
    pub const fn usage(&self) -> u32 {
        self.standing.usage
    }

    /// The same with its fraction, where an algorithm has one.
    pub const fn rate(&self) -> f64 {
        self.standing.rate()
    }

    /// How many may count.
    pub const fn limit(&self) -> u32 {
        self.standing.limit
    }

    /// How many are left: none, or it would not be a refusal.
    pub const fn remaining(&self) -> u32 {
        self.standing.remaining()
    }

    /// When the next attempt may come, counted from now: when the block lifts, or a moment later if
    /// the reason is [`Busy`](Reason::Busy).
    pub const fn lifts(&self) -> Period {
        match self.standing.state {
            State::Blocked { lifts } => lifts,
            State::Exempt | State::Clear | State::Busy => Period::Of(BUSY_RETRY),
        }
    }

    /// Seconds until the next attempt may come: rounded up, at least 1; `None` for never.
    pub fn retry_after(&self) -> Option<u64> {
        let left = self.lifts().as_duration()?;
        Some(
            left.as_millis()
                .div_ceil(1000)
                .max(1)
                .try_into()
                .unwrap_or(u64::MAX),
        )
    }

    /// The same in words: `in 6 days 23 hours`, `forever`.
    pub fn lifts_in_words(&self) -> String {
        let mut words = String::new();
        // Writing to a string can't fail.
        let _ = self.write_lifts(&mut words);
        words
    }

    fn write_lifts(&self, words: &mut impl fmt::Write) -> fmt::Result {
        let lifts = self.lifts().rounded_up();
        if lifts != Period::Forever {
            words.write_str("in ")?;
        }
        lifts.write_words(words)
    }

    /// Writes what [`Display`](fmt::Display) does.
    fn write_detail(&self, words: &mut impl fmt::Write) -> fmt::Result {
        match (self.reason(), self.lifts()) {
            (Reason::Busy, _) => {
                return words.write_str("too many attempts at once, try again in a moment");
            }
            (Reason::Blocked, Period::Forever) => {
                words.write_str("too many failed attempts, blocked ")?;
            }
            (Reason::Blocked, _) => words.write_str("too many failed attempts, try again ")?,
        }
        self.write_lifts(words)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_detail(f)
    }
}

impl Error for Refusal {}
