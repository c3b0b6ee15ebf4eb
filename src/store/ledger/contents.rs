//! What a counter holds, for an operator to read.

use crate::{
    AttemptId,
    algorithm::{Millis, Standing},
};

/// What a counter holds, and how it stands. See [`Ledger::inspect`](super::Ledger::inspect).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contents {
    /// How it stands under the limit that was passed. No address is exempt here.
    pub standing: Standing,
    /// The attempts that are kept one by one, the newest first, 1,000 at most.
    pub attempts: Vec<KeptAttempt>,
    /// How many attempts are kept one by one in all.
    pub kept: usize,
    /// What is kept of failures beyond that, if it matters to the limit that was passed.
    pub summary: Option<Summary>,
    /// When the counter was read, in milliseconds since 1970, by the store's clock.
    pub now: Millis,
}

impl Contents {
    /// What a counter holds that was read at `now`.
    #[must_use]
    pub const fn new(standing: Standing, now: Millis) -> Self {
        Self {
            standing,
            attempts: Vec::new(),
            kept: 0,
            summary: None,
            now,
        }
    }

    /// The same with these attempts, the newest first, of this many in all.
    #[must_use]
    pub fn with_attempts(mut self, attempts: Vec<KeptAttempt>, kept: usize) -> Self {
        (self.attempts, self.kept) = (attempts, kept);
        self
    }

    /// The same with what is kept of other failures.
    #[must_use]
    pub fn with_summary(mut self, summary: Option<Summary>) -> Self {
        self.summary = summary;
        self
    }
}

/// One attempt in a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptAttempt {
    /// Identifies the attempt in every counter that holds it.
    pub id: AttemptId,
    /// When it failed or, if it is in flight, when its lease ends, in milliseconds since 1970.
    pub at: Millis,
    /// Whether it is reserved and not settled.
    pub is_in_flight: bool,
    /// Whether the user was spelled in the normal form. Not if it is in flight in another spelling, which it
    /// gets when it fails.
    pub is_normal_form: bool,
}

impl KeptAttempt {
    /// An attempt that fails, or whose lease ends, at `at`, in a counter that was read at `now`.
    #[must_use]
    pub const fn new(id: AttemptId, at: Millis, now: Millis, is_normal_form: bool) -> Self {
        Self {
            id,
            at,
            is_in_flight: at > now,
            is_normal_form,
        }
    }
}

/// What a counter keeps of failures that are no longer kept one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// What they still count for, in thousandths of an attempt. The attempts that are kept one by one come on
    /// top.
    pub thousandths: u64,
    /// The newest block that is recorded, in force or over. A block of failures that are all kept one by one
    /// need not be recorded.
    pub last_block: Option<LastBlock>,
    /// Whether all of it came of the normal form of the user.
    pub is_normal_form: bool,
}

impl Summary {
    /// A summary of failures that count for this many thousandths of an attempt.
    #[must_use]
    pub const fn new(
        thousandths: u64,
        last_block: Option<LastBlock>,
        is_normal_form: bool,
    ) -> Self {
        Self {
            thousandths,
            last_block,
            is_normal_form,
        }
    }
}

/// A block that is recorded in a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastBlock {
    /// Its number in a row of blocks that grow, from 1.
    pub nth: u32,
    /// When it began, in milliseconds since 1970.
    pub began: Millis,
}

impl LastBlock {
    /// The nth block in a row, which began then.
    #[must_use]
    pub const fn new(nth: u32, began: Millis) -> Self {
        Self { nth, began }
    }
}
