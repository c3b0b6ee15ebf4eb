//! The token bucket: an attempt takes a token, and tokens come back with time.

use super::{Block, Millis, adding_up::AddsUp};

/// The numbers of a token bucket. Put into words by
/// [`as_token_bucket`](crate::LimitBuilder::as_token_bucket).
///
/// A failure takes a token for good, an attempt in flight holds one. Tokens come back evenly, so many
/// within so long, computed from the clock when somebody asks.
///
/// Memory does not grow with the capacity. The newest 8 failures are kept one by one: a cancel or a
/// success takes back exactly those and what is in flight. Older ones are a mere number: a success
/// of the user whose counter it is forgets them; from a counter that is shared with others they can't
/// be taken back, and come back with time.
///
/// ```
/// use tower_login_rate_limit::{Limit, Period};
///
/// let limit = Limit::attempts(30).within(Period::minutes(30)).as_token_bucket().build()?;
/// if let Limit::TokenBucket(numbers) = limit {
///     assert_eq!((numbers.capacity(), numbers.refill()), (30, 30 * 60 * 1000));
/// }
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// At least 1.
    pub(crate) capacity: u32,
    /// At least 1. Times the capacity this is below 2⁵³, so that Lua can compute with it exactly.
    pub(crate) refill: Millis,
    pub(crate) block: Option<Block>,
}

impl TokenBucket {
    /// How many tokens a full bucket has.
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// How long an empty one takes to be full.
    pub const fn refill(&self) -> Millis {
        self.refill
    }

    /// What happens when no token is left. With no block of its own, the next attempt is free as soon
    /// as there is a token again.
    pub const fn block(&self) -> Option<&Block> {
        self.block.as_ref()
    }

    // In parts of a token, so that nothing is ever rounded: a token has as many as the bucket takes
    // milliseconds to fill, and then as many come back in a millisecond as the bucket has tokens.

    const fn full(&self) -> u64 {
        self.capacity as u64 * self.refill
    }

    /// How many parts are missing at `at`.
    fn missing(&self, sum: &Missing, at: Millis) -> u64 {
        let then = (sum.tokens.saturating_mul(self.refill))
            .saturating_sub(sum.less.min(self.refill - 1))
            .min(self.full());
        let time = at.saturating_sub(sum.at);
        then.saturating_sub(time.saturating_mul(self.capacity.into()))
    }
}

/// What was missing from a bucket at a moment: so many tokens less so many parts of one. Tokens, and
/// not parts alone, so that they still mean the same when a policy changes its numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    tokens: u64,
    less: u64,
    at: Millis,
}

impl AddsUp for TokenBucket {
    type Sum = Missing;

    fn limit(&self) -> u32 {
        self.capacity
    }

    fn block(&self) -> Option<&Block> {
        self.block.as_ref()
    }

    fn begin(&self, _: Millis) -> Missing {
        Missing::default()
    }

    fn count(&self, sum: &mut Missing, at: Millis) {
        let missing = (self.missing(sum, at) + self.refill).min(self.full());
        let tokens = missing.div_ceil(self.refill);
        *sum = Missing {
            tokens,
            less: tokens * self.refill - missing,
            at: sum.at.max(at),
        };
    }

    fn parts(&self, sum: &Missing, now: Millis) -> (u64, u64) {
        (self.missing(sum, now), self.refill)
    }

    fn usage(&self, sum: &Missing, now: Millis) -> u32 {
        let tokens = self.missing(sum, now).div_ceil(self.refill);
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    fn room_at(&self, sum: &Missing, now: Millis) -> Millis {
        let wanted = (self.missing(sum, now) + self.refill).saturating_sub(self.full());
        let wait = wanted.div_ceil(self.capacity.into());
        now.max(sum.at).saturating_add(wait)
    }
}
