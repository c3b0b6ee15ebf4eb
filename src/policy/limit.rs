//! The builders of limits.

use std::time::Duration;

use super::PolicyError;
use crate::{
    Period,
    algorithm::{Algorithm, Block, Limit, Millis, limit::MAX_FINITE_WINDOW},
    clock::to_millis,
};

/// More is a typing error, and costs memory for each key.
const MAX_ATTEMPTS: u32 = 100_000;
/// Longer is [`Period::Forever`].
const MAX_PERIOD: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// More blocks or waits are a typing error.
const MAX_LENGTHS: usize = 32;
/// `again_within`, unless set.
const AGAIN_WITHIN: Period = Period::days(30);
/// `forgotten_after`, unless set.
const FORGOTTEN_AFTER: Period = Period::hours(24);

impl Limit {
    /// Begins a limit of `max` attempts. The builder reads as a sentence, and is accepted wherever a limit
    /// is.
    ///
    /// ```
    /// use tower_login_rate_limit::{Limit, Period, Policy};
    ///
    /// // 5 within 24 hours, then blocked for 24 hours; the next time for 7 days, and then for good.
    /// let growing = Limit::attempts(5)
    ///     .within(Period::hours(24))
    ///     .blocked_for(Period::hours(24))
    ///     .then_for(Period::days(7))
    ///     .then_for(Period::Forever);
    /// // 30 at once, then one a minute.
    /// let bucket = Limit::attempts(30).within(Period::minutes(30)).as_token_bucket();
    ///
    /// let policy = Policy::default().with_user_address_limit(growing)?.with_address_limit(bucket)?;
    /// # Ok::<(), tower_login_rate_limit::PolicyError>(())
    /// ```
    pub const fn attempts(max: u32) -> LimitBuilder {
        LimitBuilder {
            attempts: max,
            within: None,
            algorithm: Algorithm::SlidingWindow,
            block: FirstBlock::Default,
            then: Vec::new(),
            again_within: None,
        }
    }

    /// Begins a back-off: the waits after the first failure, the second, and so on; the last one repeats.
    /// Leading zeros are failures that cost no wait.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_login_rate_limit::{Limit, Period, Policy};
    ///
    /// // Two typing errors are free.
    /// let waits = [0, 0, 5, 30, 300].map(Duration::from_secs);
    /// let limit = Limit::backoff(waits).with_jitter(20).forgotten_after(Period::hours(12));
    /// let policy = Policy::default().with_user_address_limit(limit)?;
    /// # Ok::<(), tower_login_rate_limit::PolicyError>(())
    /// ```
    pub fn backoff(waits: impl IntoIterator<Item = Duration>) -> BackoffBuilder {
        BackoffBuilder {
            waits: waits.into_iter().collect(),
            jitter: 0,
            forgotten_after: FORGOTTEN_AFTER,
        }
    }

    /// Begins a back-off of 1, 2, 4, 8, 16, 30, 60, 180 and 300 seconds.
    pub fn default_backoff() -> BackoffBuilder {
        Self::backoff([1, 2, 4, 8, 16, 30, 60, 180, 300].map(Duration::from_secs))
    }
}

/// Builds a limit of a number of attempts. Begins with [`Limit::attempts`], which has an example.
#[derive(Clone, Debug)]
#[must_use = "a limit does nothing until it is part of a policy"]
pub struct LimitBuilder {
    attempts: u32,
    within: Option<Period>,
    algorithm: Algorithm,
    block: FirstBlock,
    then: Vec<Period>,
    again_within: Option<Period>,
}

#[derive(Clone, Copy, Debug)]
enum FirstBlock {
    /// As long as the window of a sliding window; none for the other algorithms.
    Default,
    None,
    For(Period),
}

impl LimitBuilder {
    /// How long a failure counts; for a token bucket, how long an empty one takes to refill. Required.
    pub fn within(mut self, window: impl Into<Period>) -> Self {
        self.within = Some(window.into());
        self
    }

    /// Counts with a [token bucket](Algorithm::TokenBucket): for bursts that are acceptable and a rate that
    /// is not. All tokens are refilled within the window.
    pub const fn as_token_bucket(mut self) -> Self {
        self.algorithm = Algorithm::TokenBucket;
        self
    }

    /// Counts with a [sliding-window counter](Algorithm::SlidingCounter): for limits so large that keeping
    /// every failure would cost too much memory.
    pub const fn as_sliding_counter(mut self) -> Self {
        self.algorithm = Algorithm::SlidingCounter;
        self
    }

    /// How long nothing is admitted after the failure that reached the limit. Unless set, as long as the
    /// window of a sliding window; a token bucket and a sliding-window counter then have no block.
    pub fn blocked_for(mut self, block: impl Into<Period>) -> Self {
        self.block = FirstBlock::For(block.into());
        self
    }

    /// How long the next block is, if it comes [again too soon](Self::again_within). Can be repeated, with
    /// lengths that do not get shorter; the last one stays.
    pub fn then_for(mut self, block: impl Into<Period>) -> Self {
        self.then.push(block.into());
        self
    }

    /// A block that begins within this time of the end of the last one has the next length. 30 days unless
    /// set.
    pub fn again_within(mut self, time: impl Into<Period>) -> Self {
        self.again_within = Some(time.into());
        self
    }

    /// No block: the next attempt is admitted as soon as the count is below the limit.
    pub const fn without_block(mut self) -> Self {
        self.block = FirstBlock::None;
        self
    }

    /// Builds the limit.
    ///
    /// # Errors
    ///
    /// If a number is missing, out of range or contradicts another one; the error names it.
    pub fn build(self) -> Result<Limit, PolicyError> {
        let Self {
            attempts,
            algorithm,
            ..
        } = self;
        if !(1..=MAX_ATTEMPTS).contains(&attempts) {
            let reason = format!(
                "{attempts} attempts; must be from 1 to {MAX_ATTEMPTS} (switch a rule off to stop counting)"
            );
            return Err(PolicyError::new("limit", reason));
        }
        let within = self.within.ok_or_else(|| {
            PolicyError::new("within", "is missing; set how long a failure counts")
        })?;
        let mut limit = Limit {
            algorithm,
            attempts,
            window: millis("within", within)?,
            block: None,
            waits: None,
            jitter: 0,
        };
        let is_finite = limit.window.is_some_and(|w| w <= MAX_FINITE_WINDOW);
        if limit.aggregates() && !is_finite {
            let reason = format!("{within} is too long for this algorithm; 366 days at most");
            return Err(PolicyError::new("within", reason));
        }
        limit.block = self.block(&limit)?;
        Ok(limit)
    }

    fn block(&self, limit: &Limit) -> Result<Option<Block>, PolicyError> {
        let invalid = |reason: &str| Err(PolicyError::new("block", reason));
        if self.again_within.is_some() && self.then.is_empty() {
            let reason = "is for a block with more than one length";
            return Err(PolicyError::new("again_within", reason));
        }
        let first = match self.block {
            FirstBlock::For(period) => millis("block", period)?,
            FirstBlock::Default if !limit.aggregates() => limit.window,
            FirstBlock::Default | FirstBlock::None if self.then.is_empty() => return Ok(None),
            FirstBlock::Default | FirstBlock::None => {
                return invalid(
                    "has a length for the next time but none for the first; set the first one too",
                );
            }
        };
        let mut lengths = vec![first];
        for period in &self.then {
            lengths.push(millis("block", *period)?);
        }
        let order = |length: &Option<Millis>| length.unwrap_or(Millis::MAX);
        if !lengths.is_sorted_by_key(order) || lengths[..lengths.len() - 1].contains(&None) {
            return invalid(
                "gets shorter, or goes on after forever; each length must be at least the one before",
            );
        }
        check_length("block", lengths.len())?;
        if lengths.len() == 1 {
            return Ok(Some(Block::new(lengths, 0)));
        }
        // A window is empty after a block. An aggregate is not: if a block ended before its failures had
        // left, a single one more would bring the next block, and a few typing errors the last.
        if limit.aggregates() && first.is_some_and(|first| Some(first) < limit.counts_for()) {
            return invalid(match self.algorithm {
                Algorithm::SlidingCounter => {
                    "has several lengths, and then the first of a sliding-window counter must be at least twice as long as `within`"
                }
                _ => {
                    "has several lengths, and then the first of a token bucket must be at least as long as `within`"
                }
            });
        }
        let again_within = millis("again_within", self.again_within.unwrap_or(AGAIN_WITHIN))?;
        let again_within = again_within.ok_or_else(|| {
            PolicyError::new("again_within", "can't be \"forever\"; 100 years at most")
        })?;
        Ok(Some(Block::new(lengths, again_within)))
    }
}

/// Builds a back-off. Begins with [`Limit::backoff`], which has an example.
#[derive(Clone, Debug)]
#[must_use = "a limit does nothing until it is part of a policy"]
pub struct BackoffBuilder {
    waits: Vec<Duration>,
    jitter: u32,
    forgotten_after: Period,
}

impl BackoffBuilder {
    /// Makes each wait shorter or longer by a random share of up to `percent`, so that the end of a wait
    /// can't be predicted and clients do not come back all at once.
    pub const fn with_jitter(mut self, percent: u32) -> Self {
        self.jitter = percent;
        self
    }

    /// The time without a failure after which the waits begin anew. 24 hours unless set.
    pub fn forgotten_after(mut self, time: impl Into<Period>) -> Self {
        self.forgotten_after = time.into();
        self
    }

    /// Builds the limit.
    ///
    /// # Errors
    ///
    /// If a number is out of range or contradicts another one; the error names it.
    pub fn build(self) -> Result<Limit, PolicyError> {
        let invalid = |reason: &str| Err(PolicyError::new("waits", reason));
        check_length("waits", self.waits.len())?;
        let is_too_short = |wait: &Duration| !wait.is_zero() && wait.as_millis() == 0;
        if self.waits.iter().any(is_too_short) {
            return invalid("a wait is a millisecond at least, or zero for none");
        }
        let waits: Vec<_> = self.waits.iter().map(|wait| to_millis(*wait)).collect();
        let longest = waits.iter().max().copied().unwrap_or(0);
        if longest > MAX_FINITE_WINDOW {
            return invalid("a wait can be 366 days at most");
        }
        if !waits.is_sorted() {
            return invalid("get shorter; each must be at least as long as the one before");
        }
        if longest == 0 {
            return invalid("are all zero, so nothing would be limited");
        }
        if self.jitter > 100 {
            let reason = format!("{} percent; must be from 0 to 100", self.jitter);
            return Err(PolicyError::new("jitter", reason));
        }
        let window = millis("forgotten_after", self.forgotten_after)?;
        let longest = longest + longest * u64::from(self.jitter) / 100;
        if window.is_some_and(|window| window < longest) {
            let reason = "is shorter than the longest wait can be, which would end it early";
            return Err(PolicyError::new("forgotten_after", reason));
        }
        let free = waits.partition_point(|wait| *wait == 0);
        Ok(Limit {
            algorithm: Algorithm::Backoff,
            attempts: u32::try_from(free + 1).unwrap_or(u32::MAX),
            window,
            block: None,
            waits: Some(waits.into()),
            jitter: self.jitter,
        })
    }
}

impl TryFrom<LimitBuilder> for Limit {
    type Error = PolicyError;

    fn try_from(builder: LimitBuilder) -> Result<Self, Self::Error> {
        builder.build()
    }
}

impl TryFrom<BackoffBuilder> for Limit {
    type Error = PolicyError;

    fn try_from(builder: BackoffBuilder) -> Result<Self, Self::Error> {
        builder.build()
    }
}

fn check_length(part: &str, length: usize) -> Result<(), PolicyError> {
    if (1..=MAX_LENGTHS).contains(&length) {
        return Ok(());
    }
    let reason = format!("{length} lengths; must be from 1 to {MAX_LENGTHS}");
    Err(PolicyError::new(part, reason))
}

/// The milliseconds of a period; `None` is forever.
fn millis(part: &str, period: Period) -> Result<Option<Millis>, PolicyError> {
    let Period::Of(duration) = period else {
        return Ok(None);
    };
    if duration < Duration::from_millis(1) {
        let none = match part {
            "block" => ", \"none\" for no block",
            _ => "",
        };
        let reason =
            format!("is less than a millisecond; write \"forever\" for a time without end{none}");
        return Err(PolicyError::new(part, reason));
    }
    if duration > MAX_PERIOD {
        let reason = format!("{period} is more than 100 years; write \"forever\"");
        return Err(PolicyError::new(part, reason));
    }
    Ok(Some(to_millis(duration)))
}
