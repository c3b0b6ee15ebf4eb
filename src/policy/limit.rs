//! Limits in words.

use std::time::Duration;

use super::PolicyError;
use crate::{
    Period,
    algorithm::{Block, Limit, Millis, SlidingWindow},
    clock::to_millis,
};

/// More than this would be a typing error, and costs memory for each key.
const MOST_ATTEMPTS: u32 = 100_000;
/// Longer than this is [`Period::Forever`].
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Limit {
    /// Begins a limit: so many attempts.
    ///
    /// ```
    /// use tower_login_rate_limit::{Limit, Period};
    ///
    /// // 5 within 24 hours, then blocked for 24 hours.
    /// let limit = Limit::attempts(5)
    ///     .within(Period::hours(24))
    ///     .blocked_for(Period::hours(24))
    ///     .build()?;
    /// # Ok::<(), tower_login_rate_limit::PolicyError>(())
    /// ```
    pub const fn attempts(limit: u32) -> LimitBuilder {
        LimitBuilder {
            limit,
            within: None,
            block: BlockWords::AsLongAsTheWindow,
        }
    }
}

/// A limit that is being put into words. See [`Limit::attempts`].
///
/// ```
/// use tower_login_rate_limit::{Limit, Period, Policy};
///
/// // Wherever a limit is wanted, its words will do.
/// let words = Limit::attempts(3).within(Period::minutes(15)).blocked_for(Period::hours(1));
/// let policy = Policy::default().with_user_address_limit(words)?;
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a limit does nothing until it is part of a policy"]
pub struct LimitBuilder {
    limit: u32,
    within: Option<Period>,
    block: BlockWords,
}

#[derive(Clone, Copy, Debug)]
enum BlockWords {
    AsLongAsTheWindow,
    Sliding,
    For(Period),
}

impl LimitBuilder {
    /// How long a failure counts.
    pub fn within(mut self, window: impl Into<Period>) -> Self {
        self.within = Some(window.into());
        self
    }

    /// How long, after the failure that reached the limit, nothing is admitted. Without this, as
    /// long as the window.
    pub fn blocked_for(mut self, block: impl Into<Period>) -> Self {
        self.block = BlockWords::For(block.into());
        self
    }

    /// No block of its own: the next attempt is free as soon as the oldest failure leaves the
    /// window.
    pub const fn without_block(mut self) -> Self {
        self.block = BlockWords::Sliding;
        self
    }

    /// The limit, if its numbers make one.
    pub fn build(self) -> Result<Limit, PolicyError> {
        if !(1..=MOST_ATTEMPTS).contains(&self.limit) {
            return Err(PolicyError::new(
                "limit",
                format!(
                    "{} attempts; must be from 1 to {MOST_ATTEMPTS} (switch a rule off to stop counting)",
                    self.limit
                ),
            ));
        }
        let within = self.within.ok_or_else(|| {
            PolicyError::new("within", "is missing; say how long a failure counts")
        })?;
        let window = millis("within", within)?;
        let block = match self.block {
            BlockWords::Sliding => Block::Sliding,
            BlockWords::AsLongAsTheWindow => window.map_or(Block::Forever, Block::For),
            BlockWords::For(period) => millis("block", period)?.map_or(Block::Forever, Block::For),
        };
        Ok(Limit::SlidingWindow(SlidingWindow {
            limit: self.limit,
            window,
            block,
        }))
    }
}

impl TryFrom<LimitBuilder> for Limit {
    type Error = PolicyError;

    fn try_from(words: LimitBuilder) -> Result<Self, Self::Error> {
        words.build()
    }
}

/// Milliseconds of a period, `None` for ever.
fn millis(part: &str, period: Period) -> Result<Option<Millis>, PolicyError> {
    let Period::Of(duration) = period else {
        return Ok(None);
    };
    if duration < Duration::from_millis(1) {
        return Err(PolicyError::new(
            part,
            "is less than a millisecond; say \"forever\" for a time without end, \"none\" for no block",
        ));
    }
    if duration > LONGEST {
        return Err(PolicyError::new(
            part,
            format!("{period} is more than 100 years; say \"forever\""),
        ));
    }
    Ok(Some(to_millis(duration)))
}
