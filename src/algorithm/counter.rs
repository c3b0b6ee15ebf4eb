//! A counter: what is kept of the attempts that count together, whatever the algorithm.

use super::{
    Limit, Millis, SlidingWindow, Standing, State,
    adding_up::{self, Added},
    attempts::Attempts,
    block::LastBlock,
    sliding_counter::Counts,
    token_bucket::Missing,
};
use crate::Token;

/// The attempts that count together: those that failed and those in flight.
///
/// All algorithms keep the same, so that one can be asked as well as another, and only differ in what
/// they make of it.
///
/// ```
/// use tower_login_rate_limit::{Limit, Period, Token, algorithm::{Counter, State}};
///
/// let limit = Limit::attempts(1).within(Period::hours(24)).build()?;
/// let mut counter = Counter::default();
///
/// // Reserved at second 0 with a lease of 30 s, failed at second 2.
/// let token = Token::new();
/// counter.admit(&limit, token, 30_000, 0);
/// assert_eq!(counter.standing(&limit, 1_000).state, State::Busy);
/// counter.fail(&limit, token, 2_000);
/// let lifts = Period::hours(24);
/// assert_eq!(counter.standing(&limit, 2_000).state, State::Blocked { lifts });
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    attempts: Attempts,
    /// Most counters have none.
    past: Option<Box<Past>>,
}

/// What a counter remembers of attempts that it no longer keeps one by one. What one algorithm
/// remembers means nothing to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Past {
    Window(LastBlock),
    Bucket(Added<Missing>),
    Counts(Added<Counts>),
}

/// What an algorithm makes of a counter.
pub(super) struct Judgement<P = Past> {
    pub(super) standing: Standing,
    /// How many of the oldest attempts an admission drops,
    pub(super) obsolete: usize,
    /// and what it leaves remembered.
    pub(super) past: Option<P>,
    /// What those attempts add up to, if they can be dropped at any time without a difference to what
    /// is decided.
    pub(super) folded: Option<P>,
    /// The newest block, in force or over.
    pub(super) block: Option<LastBlock>,
}

impl<P> Judgement<P> {
    fn remembering(self, as_past: impl Fn(P) -> Past) -> Judgement {
        Judgement {
            standing: self.standing,
            obsolete: self.obsolete,
            past: self.past.map(&as_past),
            folded: self.folded.map(as_past),
            block: self.block,
        }
    }
}

impl Counter {
    /// How the counter stands at `now`.
    pub fn standing(&self, limit: &Limit, now: Millis) -> Standing {
        match self.as_sparse(limit) {
            Some(window) => {
                let usage = self.attempts.len() - window.left_behind(&self.attempts, now);
                window.standing(usage, State::Clear)
            }
            None => self.judge(limit, now).standing,
        }
    }

    /// The window, if this is one that holds fewer attempts than its limit and has no past. Of whatever
    /// age they are, they are neither a block nor a crowd. Most counters are such, and need no closer look.
    #[inline]
    fn as_sparse<'l>(&self, limit: &'l Limit) -> Option<&'l SlidingWindow> {
        match limit {
            Limit::SlidingWindow(window)
                if self.past.is_none() && self.attempts.len() < window.limit as usize =>
            {
                Some(window)
            }
            _ => None,
        }
    }

    fn judge(&self, limit: &Limit, now: Millis) -> Judgement {
        let past = self.past.as_deref().copied();
        match limit {
            Limit::SlidingWindow(numbers) => {
                let past = past.and_then(|past| match past {
                    Past::Window(block) => Some(block),
                    _ => None,
                });
                numbers.judge(&self.attempts, past, now)
            }
            Limit::Backoff(numbers) => numbers.judge(&self.attempts, now),
            Limit::TokenBucket(numbers) => {
                let past = past.and_then(|past| match past {
                    Past::Bucket(added) => Some(added),
                    _ => None,
                });
                adding_up::judge(numbers, &self.attempts, past, now).remembering(Past::Bucket)
            }
            Limit::SlidingCounter(numbers) => {
                let past = past.and_then(|past| match past {
                    Past::Counts(added) => Some(added),
                    _ => None,
                });
                adding_up::judge(numbers, &self.attempts, past, now).remembering(Past::Counts)
            }
        }
    }

    /// Writes an attempt that is in flight until `now + lease`, and drops what no longer counts.
    /// Says how the counter stands with it.
    ///
    /// With a lease of 0 the attempt counts at once. A token that is here already changes nothing.
    /// The caller has seen that [`standing`](Self::standing) is [`State::Clear`].
    pub fn admit(&mut self, limit: &Limit, token: Token, lease: Millis, now: Millis) -> Standing {
        if self.holds(token) {
            return Standing {
                state: State::Clear,
                ..self.standing(limit, now)
            };
        }
        let ends = now.saturating_add(lease);
        if let Some(window) = self.as_sparse(limit) {
            let obsolete = window.left_behind(&self.attempts, now);
            self.attempts.drop_oldest(obsolete);
            self.attempts.insert(ends, token);
            return window.standing(self.attempts.len(), State::Clear);
        }
        let judgement = self.judge(limit, now);
        self.attempts.drop_oldest(judgement.obsolete);
        self.attempts.insert(ends, token);
        self.past = judgement.past.map(Box::new);
        let Standing {
            usage, thousandths, ..
        } = judgement.standing;
        Standing {
            usage: usage.saturating_add(1),
            thousandths: thousandths.saturating_add(1000),
            state: State::Clear,
            ..judgement.standing
        }
    }

    /// Turns an attempt in flight into a failure at `now`. One that has failed stays as it is, so
    /// that saying it late or twice extends nothing. Returns whether anything changed.
    pub fn fail(&mut self, limit: &Limit, token: Token, now: Millis) -> bool {
        let failed = self.attempts.fail(token, now);
        if failed {
            self.fold(limit, now);
        }
        failed
    }

    /// Adds up what need not be kept one by one. An admission and a failure do that too; to be called
    /// when an attempt was refused, so that whoever is refused again and again does not cost more
    /// each time.
    pub fn fold(&mut self, limit: &Limit, now: Millis) {
        if !limit.adds_up() {
            return;
        }
        let judgement = self.judge(limit, now);
        if judgement.folded.is_some() {
            self.attempts.drop_oldest(judgement.obsolete);
            self.past = judgement.folded.map(Box::new);
        }
    }

    /// Takes one attempt out, in flight or failed, if it is kept one by one. Returns whether it was
    /// there.
    pub fn cancel(&mut self, token: Token) -> bool {
        self.cancel_all(&[token]) > 0
    }

    /// Takes all of these out. Returns how many were there.
    pub fn cancel_all(&mut self, tokens: &[Token]) -> usize {
        self.attempts.cancel_all(tokens)
    }

    /// Takes out every attempt that has failed by `now`, and `token` if given, and forgets the past;
    /// those in flight stay. With a token that is not here, does nothing.
    ///
    /// Returns what is to leave other counters too: what was taken out here, and the token.
    pub fn clean_up(&mut self, token: Option<Token>, now: Millis) -> Vec<Token> {
        let mut tokens: Vec<_> = token.into_iter().collect();
        self.clean_up_into(token, now, &mut tokens);
        tokens
    }

    /// The same; adds to `tokens` what was taken out, but for the token.
    pub(crate) fn clean_up_into(
        &mut self,
        token: Option<Token>,
        now: Millis,
        tokens: &mut impl Extend<Token>,
    ) {
        if token.is_none_or(|token| self.holds(token)) {
            let failures = self.attempts.failures(now);
            tokens.extend(failures.iter().map(|entry| entry.token));
            let failures = failures.len();
            self.attempts.drop_oldest(failures);
            if let Some(token) = token {
                self.cancel(token);
            }
            self.past = None;
        }
    }

    /// The counter with nothing but what had failed by then.
    #[cfg(feature = "redis")]
    pub(crate) fn failed_by(&self, by: Millis) -> Self {
        let mut failed = self.clone();
        failed
            .attempts
            .keep_oldest(self.attempts.failures(by).len());
        failed
    }

    /// Forgets so many of the oldest failures, as far as they were made by then: others, who know better,
    /// no longer count them.
    #[cfg(feature = "redis")]
    pub(crate) fn forget_oldest(&mut self, failures: usize, by: Millis) {
        let made = self.attempts.failures(by).len();
        self.attempts.drop_oldest(failures.min(made));
        if failures > made && !matches!(self.past.as_deref(), Some(Past::Window(_))) {
            self.past = None;
        }
    }

    /// Whether the attempt is kept here, failed or in flight.
    pub fn holds(&self, token: Token) -> bool {
        self.attempts.holds(token)
    }

    /// Whether nothing is here.
    pub fn is_empty(&self) -> bool {
        self.attempts.is_empty() && self.past.is_none()
    }

    /// When nothing in here will count any more; `None` for never.
    pub fn expires(&self, limit: &Limit, now: Millis) -> Option<Millis> {
        let newest = match (self.attempts.newest(), &self.past) {
            (Some(newest), None) => newest,
            (newest, Some(_)) => newest.map_or(now, |newest| newest.max(now)),
            (None, None) => return Some(now),
        };
        // A window that is not full is kept as long as what is in it counts.
        if let Some(window) = self.as_sparse(limit) {
            return Some(newest.saturating_add(window.window?));
        }
        let block = limit.block();
        let judgement = self.judge(limit, now);
        let may_come = judgement.standing.refuses().then_some(block).flatten();
        let retention = match may_come {
            // As long as the one in force, or the one that may come of what is in flight.
            Some(block) => limit.retention(Some(block.after(judgement.block, now).nth))?,
            None => limit.retention(None)?,
        };
        let expires = newest.saturating_add(retention);
        match (block, judgement.block) {
            (Some(block), Some(last)) if block.grows() => Some(expires.max(block.forgotten(last)?)),
            _ => Some(expires),
        }
    }
}
