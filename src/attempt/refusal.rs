//! Why an attempt was refused, and for how long.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use crate::{
    Period,
    algorithm::{Standing, State},
};

/// Which rule refused an attempt, why, and until when.
///
/// The [`Display`](fmt::Display) text is for the person who logs in: `too many failed attempts, try again
/// in 6 days 23 hours`. That of a [`KeyLimiter`](crate::KeyLimiter) is `too many requests, try again in 1 hour`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    rule: Arc<str>,
    standing: Standing,
    is_login: bool,
}

/// Why an attempt was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Too many attempts have failed.
    Blocked,
    /// Too many attempts are in flight. As they end, others are admitted.
    Busy,
}

/// How long to wait for attempts in flight: long enough to check a password.
const BUSY_RETRY: Duration = Duration::from_secs(1);

impl Refusal {
    /// `None` if the standing does not refuse.
    pub(crate) fn new(rule: Arc<str>, standing: Standing) -> Option<Self> {
        standing.refuses().then_some(Self {
            rule,
            standing,
            is_login: true,
        })
    }

    /// The same for a [`KeyLimiter`](crate::KeyLimiter), whose name takes the place of a rule's.
    pub(crate) fn of_key(limiter: Arc<str>, standing: Standing) -> Option<Self> {
        let refusal = Self::new(limiter, standing)?;
        Some(Self {
            is_login: false,
            ..refusal
        })
    }

    pub(crate) fn shared_rule(&self) -> Arc<str> {
        Arc::clone(&self.rule)
    }

    pub(crate) const fn standing(&self) -> Standing {
        self.standing
    }

    /// Whether an attempt to log in was refused, and not a request by a [`KeyLimiter`](crate::KeyLimiter): what the
    /// app says should fit.
    pub const fn is_login(&self) -> bool {
        self.is_login
    }

    /// The name of the rule that refused, or of the [`KeyLimiter`](crate::KeyLimiter).
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Why the rule refused.
    pub const fn reason(&self) -> Reason {
        match self.standing.state {
            State::Blocked { .. } => Reason::Blocked,
            _ => Reason::Busy,
        }
    }

    /// The number of attempts that count.
    pub const fn usage(&self) -> u32 {
        self.standing.usage
    }

    /// [`usage`](Self::usage) with its fraction, under an algorithm that has one.
    pub const fn rate(&self) -> f64 {
        self.standing.rate()
    }

    /// The number of attempts that may count.
    pub const fn limit(&self) -> u32 {
        self.standing.limit
    }

    /// The number of attempts that are left, which is zero.
    pub const fn remaining(&self) -> u32 {
        self.standing.remaining()
    }

    /// The time until the block lifts, or one second if the reason is [`Busy`](Reason::Busy).
    pub const fn lifts(&self) -> Period {
        match self.standing.state {
            State::Blocked { lifts } => lifts,
            _ => Period::Of(BUSY_RETRY),
        }
    }

    /// Seconds until an attempt may be admitted, rounded up and at least 1; `None` if that is never.
    pub fn retry_after(&self) -> Option<u64> {
        self.lifts().whole_seconds()
    }

    /// When an attempt may be admitted, in words: `in 6 days 23 hours`, `forever`.
    pub fn lifts_in_words(&self) -> String {
        let mut words = String::new();
        // Writing to a string can't fail.
        let _ = self.write_lifts(&mut words);
        words
    }

    pub(crate) fn write_lifts(&self, words: &mut impl fmt::Write) -> fmt::Result {
        let lifts = self.lifts().rounded_up();
        if lifts != Period::Forever {
            words.write_str("in ")?;
        }
        lifts.write_words(words)
    }

    /// The text of [`Display`](fmt::Display), without the time that ends it for a block.
    pub(crate) const fn detail_start(&self) -> &'static str {
        match (self.reason(), self.lifts(), self.is_login) {
            (Reason::Busy, _, true) => "too many attempts at once, try again in a moment",
            (Reason::Busy, _, false) => "too many requests at once, try again in a moment",
            (Reason::Blocked, Period::Forever, true) => "too many failed attempts, blocked ",
            (Reason::Blocked, Period::Forever, false) => "too many requests, blocked ",
            (Reason::Blocked, _, true) => "too many failed attempts, try again ",
            (Reason::Blocked, _, false) => "too many requests, try again ",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.detail_start())?;
        match self.reason() {
            Reason::Busy => Ok(()),
            Reason::Blocked => self.write_lifts(f),
        }
    }
}

impl Error for Refusal {}
