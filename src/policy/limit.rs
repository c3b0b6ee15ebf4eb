//! Limits in words.

use std::time::Duration;

use super::PolicyError;
use crate::{
    Period,
    algorithm::{Backoff, Block, Limit, Millis, SlidingCounter, SlidingWindow, TokenBucket},
    clock::to_millis,
};

/// More than this would be a typing error, and costs memory for each key.
const MOST_ATTEMPTS: u32 = 100_000;
/// Longer than this is [`Period::Forever`].
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// What is computed with, and not only compared. Times [`MOST_ATTEMPTS`] it is below 2⁵³, so that Lua
/// computes with it exactly.
const YEAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// More blocks or waits than this would be a typing error.
const LONGEST_LIST: usize = 32;
const AGAIN_WITHIN: Millis = 30 * 24 * 60 * 60 * 1000;
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

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
            algorithm: Algorithm::SlidingWindow,
            block: BlockWords::Usual,
            then: Vec::new(),
            again_within: None,
        }
    }

    /// Begins a back-off: how long to wait after the first failure, the second, and so on; the last
    /// wait stays. Zeros in front are failures that cost no wait.
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
            forgotten_after: FORGOTTEN_AFTER.into(),
        }
    }

    /// A back-off of 1, 2, 4, 8, 16, 30, 60, 180 and 300 seconds.
    pub fn default_backoff() -> BackoffBuilder {
        Self::backoff([1, 2, 4, 8, 16, 30, 60, 180, 300].map(Duration::from_secs))
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
#[derive(Clone, Debug)]
#[must_use = "a limit does nothing until it is part of a policy"]
pub struct LimitBuilder {
    limit: u32,
    within: Option<Period>,
    algorithm: Algorithm,
    block: BlockWords,
    then: Vec<Period>,
    again_within: Option<Period>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    SlidingWindow,
    TokenBucket,
    SlidingCounter,
}

#[derive(Clone, Copy, Debug)]
enum BlockWords {
    /// As long as the window of a sliding window; none for the others.
    Usual,
    None,
    For(Period),
}

impl LimitBuilder {
    /// How long a failure counts; for a token bucket, how long an empty one takes to be full.
    pub fn within(mut self, window: impl Into<Period>) -> Self {
        self.within = Some(window.into());
        self
    }

    /// Counts with a token bucket: a failure takes a token, and they come back evenly, all of them
    /// within the time given. For bursts that are fine and a rate that is not.
    ///
    /// ```
    /// use tower_login_rate_limit::{Limit, Period};
    ///
    /// // 30 at once, then one a minute; whoever uses up all of them is locked out for 30 minutes.
    /// let limit = Limit::attempts(30)
    ///     .within(Period::minutes(30))
    ///     .as_token_bucket()
    ///     .blocked_for(Period::minutes(30))
    ///     .build()?;
    /// # Ok::<(), tower_login_rate_limit::PolicyError>(())
    /// ```
    pub const fn as_token_bucket(mut self) -> Self {
        self.algorithm = Algorithm::TokenBucket;
        self
    }

    /// Counts with a sliding-window counter: the last window's count, weighted, and this one's. For
    /// large limits, where keeping every failure would cost too much.
    ///
    /// ```
    /// use tower_login_rate_limit::{Limit, Period};
    ///
    /// let limit = Limit::attempts(10_000).within(Period::hours(1)).as_sliding_counter().build()?;
    /// # Ok::<(), tower_login_rate_limit::PolicyError>(())
    /// ```
    pub const fn as_sliding_counter(mut self) -> Self {
        self.algorithm = Algorithm::SlidingCounter;
        self
    }

    /// How long, after the failure that reached the limit, nothing is admitted. Without this, as
    /// long as the window; a token bucket and a sliding-window counter then have no block.
    pub fn blocked_for(mut self, block: impl Into<Period>) -> Self {
        self.block = BlockWords::For(block.into());
        self
    }

    /// How long the next block is, if it comes [again too soon](Self::again_within). May be said
    /// several times; the last length stays.
    ///
    /// ```
    /// use tower_login_rate_limit::{Limit, Period};
    ///
    /// let limit = Limit::attempts(5)
    ///     .within(Period::hours(1))
    ///     .blocked_for(Period::hours(24))
    ///     .then_for(Period::days(7))
    ///     .then_for(Period::Forever)
    ///     .build()?;
    /// # Ok::<(), tower_login_rate_limit::PolicyError>(())
    /// ```
    pub fn then_for(mut self, block: impl Into<Period>) -> Self {
        self.then.push(block.into());
        self
    }

    /// A block that begins within this time of the end of the last has the next length. 30 days
    /// unless set.
    pub fn again_within(mut self, time: impl Into<Period>) -> Self {
        self.again_within = Some(time.into());
        self
    }

    /// No block of its own: the next attempt is free as soon as there is room.
    pub const fn without_block(mut self) -> Self {
        self.block = BlockWords::None;
        self
    }

    /// The limit, if its numbers make one.
    pub fn build(self) -> Result<Limit, PolicyError> {
        let limit = self.limit;
        if !(1..=MOST_ATTEMPTS).contains(&limit) {
            return Err(PolicyError::new(
                "limit",
                format!(
                    "{limit} attempts; must be from 1 to {MOST_ATTEMPTS} (switch a rule off to stop counting)",
                ),
            ));
        }
        let within = self.within.ok_or_else(|| {
            PolicyError::new("within", "is missing; say how long a failure counts")
        })?;
        let window = millis("within", within)?;
        let block = self.block(window)?;
        // Sums are computed with it.
        let finite = || {
            let window = window.filter(|window| *window <= to_millis(YEAR));
            window.ok_or_else(|| {
                let reason = format!("{within} is too long to be computed with; 366 days at most");
                PolicyError::new("within", reason)
            })
        };
        Ok(match self.algorithm {
            Algorithm::SlidingWindow => Limit::SlidingWindow(SlidingWindow {
                limit,
                window,
                block,
            }),
            Algorithm::TokenBucket => Limit::TokenBucket(TokenBucket {
                capacity: limit,
                refill: finite()?,
                block,
            }),
            Algorithm::SlidingCounter => Limit::SlidingCounter(SlidingCounter {
                limit,
                window: finite()?,
                block,
            }),
        })
    }

    fn block(&self, window: Option<Millis>) -> Result<Option<Block>, PolicyError> {
        let first = match self.block {
            BlockWords::None => None,
            BlockWords::Usual if self.algorithm == Algorithm::SlidingWindow => Some(window),
            BlockWords::Usual => None,
            BlockWords::For(period) => Some(millis("block", period)?),
        };
        if self.again_within.is_some() && self.then.is_empty() {
            let reason = "is for a block with more than one length";
            return Err(PolicyError::new("again_within", reason));
        }
        let Some(first) = first else {
            return match self.then.first() {
                None => Ok(None),
                Some(_) => Err(PolicyError::new(
                    "block",
                    "has a length for the next time but none for the first; say how long the first one is",
                )),
            };
        };
        let mut lengths = vec![first];
        for period in &self.then {
            lengths.push(millis("block", *period)?);
        }
        // For ever is the longest.
        let order = |length: &Option<Millis>| length.unwrap_or(Millis::MAX);
        if !lengths.is_sorted_by_key(order) || lengths[..lengths.len() - 1].contains(&None) {
            return Err(PolicyError::new(
                "block",
                "gets shorter, or goes on after forever; each length must be at least the one before",
            ));
        }
        check_length("block", lengths.len())?;
        let again_within = match self.again_within {
            None => AGAIN_WITHIN,
            Some(time) => millis("again_within", time)?.ok_or_else(|| {
                PolicyError::new(
                    "again_within",
                    "can't be for ever; say 100 years to come near it",
                )
            })?,
        };
        self.check_growth(&lengths, window)?;
        // With one length no block is the next one.
        let again_within = if lengths.len() > 1 { again_within } else { 0 };
        Ok(Some(Block::new(lengths, again_within)))
    }
}

impl LimitBuilder {
    /// A window is clean after a block. A bucket and a counter go on with what is left of theirs: if a
    /// block were over before that is nothing, a single failure would bring the next one, and a few
    /// typing errors the last.
    fn check_growth(
        &self,
        lengths: &[Option<Millis>],
        window: Option<Millis>,
    ) -> Result<(), PolicyError> {
        let (windows, reason) = match self.algorithm {
            Algorithm::SlidingWindow => return Ok(()),
            Algorithm::TokenBucket => (1, "of a token bucket must be at least as long as `within`"),
            Algorithm::SlidingCounter => (
                2,
                "of a sliding-window counter must be at least twice as long as `within`",
            ),
        };
        let least = window.map(|window| window.saturating_mul(windows));
        match lengths {
            [Some(first), _, ..] if Some(*first) < least => Err(PolicyError::new(
                "block",
                format!("has several lengths, and then the first {reason}"),
            )),
            _ => Ok(()),
        }
    }
}

impl TryFrom<LimitBuilder> for Limit {
    type Error = PolicyError;

    fn try_from(words: LimitBuilder) -> Result<Self, Self::Error> {
        words.build()
    }
}

/// A back-off that is being put into words. See [`Limit::backoff`].
///
/// ```
/// use std::time::Duration;
/// use tower_login_rate_limit::{Limit, Policy};
///
/// let words = Limit::backoff([1, 10, 100].map(Duration::from_secs));
/// let policy = Policy::default().with_user_address_limit(words)?;
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a limit does nothing until it is part of a policy"]
pub struct BackoffBuilder {
    waits: Vec<Duration>,
    jitter: u32,
    forgotten_after: Period,
}

impl BackoffBuilder {
    /// Makes each wait up to so many percent shorter or longer, at random, so that nobody knows the
    /// exact moment and those who wait don't come back all at once.
    pub const fn with_jitter(mut self, percent: u32) -> Self {
        self.jitter = percent;
        self
    }

    /// After so long without a failure, the first wait comes first again. 24 hours unless set.
    pub fn forgotten_after(mut self, time: impl Into<Period>) -> Self {
        self.forgotten_after = time.into();
        self
    }

    /// The limit, if its numbers make one.
    pub fn build(self) -> Result<Limit, PolicyError> {
        let waits = |reason: &str| PolicyError::new("waits", reason);
        check_length("waits", self.waits.len())?;
        if self.waits.iter().any(|wait| *wait > YEAR) {
            return Err(waits("a wait can be 366 days at most"));
        }
        let least = Duration::from_millis(1);
        if self
            .waits
            .iter()
            .any(|wait| !wait.is_zero() && *wait < least)
        {
            return Err(waits("a wait is a millisecond at least, or zero for none"));
        }
        let in_millis: Vec<_> = self.waits.iter().map(|wait| to_millis(*wait)).collect();
        if !in_millis.is_sorted() {
            return Err(waits(
                "get shorter; each must be at least as long as the one before",
            ));
        }
        let longest = in_millis.last().copied().unwrap_or(0);
        if longest == 0 {
            return Err(waits("are all zero, so nothing would be limited"));
        }
        if self.jitter > 100 {
            return Err(PolicyError::new(
                "jitter",
                format!("{} percent; must be from 0 to 100", self.jitter),
            ));
        }
        let forgotten_after = millis("forgotten_after", self.forgotten_after)?;
        let longest = longest + longest * u64::from(self.jitter) / 100;
        if forgotten_after.is_some_and(|after| after < longest) {
            return Err(PolicyError::new(
                "forgotten_after",
                "is shorter than the longest wait can be, which would end it early",
            ));
        }
        Ok(Limit::Backoff(Backoff {
            waits: in_millis.into(),
            jitter: self.jitter,
            forgotten_after,
        }))
    }
}

impl TryFrom<BackoffBuilder> for Limit {
    type Error = PolicyError;

    fn try_from(words: BackoffBuilder) -> Result<Self, Self::Error> {
        words.build()
    }
}

fn check_length(part: &str, length: usize) -> Result<(), PolicyError> {
    if (1..=LONGEST_LIST).contains(&length) {
        return Ok(());
    }
    Err(PolicyError::new(
        part,
        format!("{length} lengths; must be from 1 to {LONGEST_LIST}"),
    ))
}

/// Milliseconds of a period, `None` for ever.
fn millis(part: &str, period: Period) -> Result<Option<Millis>, PolicyError> {
    let Period::Of(duration) = period else {
        return Ok(None);
    };
    if duration < Duration::from_millis(1) {
        let none = if part == "block" {
            ", \"none\" for no block"
        } else {
            ""
        };
        return Err(PolicyError::new(
            part,
            format!("is less than a millisecond; say \"forever\" for a time without end{none}"),
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
