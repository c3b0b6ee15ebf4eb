//! The state of a counter, the same for all algorithms.

#[cfg(feature = "memory")]
use super::attempts;
use super::{
    Algorithm, Limit, Millis, Standing, State,
    aggregate::{self, Aggregate},
    attempts::{Attempts, Spelling},
    backoff,
    block::LastBlock,
    sliding_counter::{Counts, SlidingCounter},
    sliding_window,
    token_bucket::{Missing, TokenBucket},
};
use crate::Token;

/// The attempts that count together: those that failed and those in flight.
///
/// The algorithms share this state and differ in how they judge it, so a policy can change the algorithm of
/// a counter that exists.
#[derive(Clone, Debug, Default)]
pub struct Counter {
    attempts: Attempts,
}

/// What a failure did to a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Whether the attempt was in flight, or new.
    pub changed: bool,
    /// How the counter stands, if this failure began a block.
    pub began: Option<Standing>,
}

/// What a counter keeps of attempts that are no longer kept one by one. The summary of one algorithm is
/// ignored by the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Summary {
    Window(LastBlock),
    Bucket(Aggregate<Missing>),
    Counts(Aggregate<Counts>),
}

/// How an algorithm judges a counter.
pub(super) struct Judgement {
    pub(super) standing: Standing,
    /// How many of the oldest attempts an admission drops.
    pub(super) obsolete: usize,
    /// The summary that an admission leaves.
    pub(super) summary: Option<Summary>,
    /// The summary of the obsolete attempts, if they can be dropped at any time without a difference to
    /// later decisions.
    pub(super) folded: Option<Summary>,
    /// Whether failures of other spellings than the normal form are part of `summary` or `folded`.
    pub(super) is_mixed: bool,
    /// The newest block, in force or over.
    pub(super) block: Option<LastBlock>,
}

impl Judgement {
    /// A judgement that drops and summarizes nothing.
    pub(super) const fn of(standing: Standing) -> Self {
        Self {
            standing,
            obsolete: 0,
            summary: None,
            folded: None,
            is_mixed: false,
            block: None,
        }
    }
}

impl Counter {
    /// How the counter stands at `now`.
    #[inline(always)]
    pub fn standing(&self, limit: &Limit, now: Millis) -> Standing {
        if self.is_sparse(limit) {
            let usage = self.attempts.len() - sliding_window::expired(limit, &self.attempts, now);
            return sliding_window::standing(limit, usage, State::Clear);
        }
        self.judge(limit, now).standing
    }

    /// Whether this is a sliding window with fewer attempts than its limit and no summary: whatever their
    /// age, it is clear. Most counters are, and need not be judged.
    #[inline]
    pub(crate) fn is_sparse(&self, limit: &Limit) -> bool {
        limit.algorithm == Algorithm::SlidingWindow
            && self.attempts.summary().is_none()
            && self.attempts.len() < limit.attempts as usize
    }

    /// Whether the counter is blocked at `now`.
    #[inline]
    pub(crate) fn is_blocked(&self, limit: &Limit, now: Millis) -> bool {
        !self.is_sparse(limit) && self.judge(limit, now).standing.is_blocked()
    }

    fn judge(&self, limit: &Limit, now: Millis) -> Judgement {
        let (attempts, summary) = (&self.attempts, self.attempts.summary());
        match limit.algorithm {
            Algorithm::SlidingWindow => sliding_window::judge(limit, attempts, summary, now),
            Algorithm::Backoff => backoff::judge(limit, attempts, now),
            Algorithm::TokenBucket => {
                aggregate::judge(limit, &TokenBucket::new(limit), attempts, summary, now)
            }
            Algorithm::SlidingCounter => {
                aggregate::judge(limit, &SlidingCounter::new(limit), attempts, summary, now)
            }
        }
    }

    /// Adds an attempt that is in flight until `now + lease`, and drops what no longer counts. Returns how
    /// the counter stands with it.
    ///
    /// With a lease of 0 the attempt counts at once. The spelling is the normal form, or
    /// [pending](Spelling::PENDING) for every other. A token that is present changes nothing, but its spelling
    /// may become pending. The caller has checked that [`standing`](Self::standing) is [`State::Clear`].
    #[inline]
    pub fn admit(
        &mut self,
        limit: &Limit,
        token: Token,
        spelling: Spelling,
        lease: Millis,
        now: Millis,
    ) -> Standing {
        if self.holds(token) {
            // Ahead of the mark, which changes the order of failures at one time, as the scripts judge.
            let standing = self.standing(limit, now);
            if !spelling.is_normal() {
                self.attempts.set_pending(token);
            }
            return Standing {
                state: State::Clear,
                ..standing
            };
        }
        let ends = now.saturating_add(lease);
        if self.is_sparse(limit) {
            let expired = sliding_window::expired(limit, &self.attempts, now);
            self.attempts.drop_oldest(expired);
            self.attempts.insert(ends, token, spelling);
            return sliding_window::standing(limit, self.attempts.len(), State::Clear);
        }
        let judgement = self.judge(limit, now);
        self.attempts.drop_oldest(judgement.obsolete);
        self.attempts.insert(ends, token, spelling);
        (self.attempts).set_summary(judgement.summary, judgement.is_mixed);
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

    /// Turns an attempt in flight into a failure at `at`, which is `now` or earlier, of a user who was spelled
    /// like this. One that has failed by then keeps its time, so a late or repeated report extends nothing.
    #[inline]
    pub fn fail(
        &mut self,
        limit: &Limit,
        token: Token,
        spelling: Spelling,
        at: Millis,
        now: Millis,
    ) -> Effect {
        // Below its limit, a window is not blocked, whatever fails.
        if self.is_sparse(limit) {
            return Effect {
                changed: self.attempts.fail(token, spelling, at),
                began: None,
            };
        }
        self.fail_when_full(limit, token, spelling, at, now)
    }

    #[cold]
    fn fail_when_full(
        &mut self,
        limit: &Limit,
        token: Token,
        spelling: Spelling,
        at: Millis,
        now: Millis,
    ) -> Effect {
        let was_blocked = self.is_blocked(limit, now);
        let changed = self.attempts.fail(token, spelling, at);
        if changed {
            self.fold(limit, now);
        }
        // If the report is repeated because its reply was lost, the block that it began is in force.
        let is_new = if changed {
            !was_blocked
        } else {
            self.attempts.is_newest_failure(token, now)
        };
        Effect {
            changed,
            began: self.blocked_standing(limit, now).filter(|_| is_new),
        }
    }

    fn blocked_standing(&self, limit: &Limit, now: Millis) -> Option<Standing> {
        Some(self.standing(limit, now)).filter(Standing::is_blocked)
    }

    /// Writes a failure at `at`, whatever the limit: it was decided elsewhere. A token that is present
    /// changes nothing.
    pub fn record(
        &mut self,
        limit: &Limit,
        token: Token,
        spelling: Spelling,
        at: Millis,
        now: Millis,
    ) -> Effect {
        if self.holds(token) {
            return Effect::default();
        }
        let was_blocked = self.standing(limit, now).is_blocked();
        self.attempts.insert(at, token, spelling);
        self.fold(limit, now);
        Effect {
            changed: true,
            began: self.blocked_standing(limit, now).filter(|_| !was_blocked),
        }
    }

    /// Aggregates failures that need not be kept one by one. An admission and a failure do so too; call it
    /// after a refusal, so that repeated refusals do not get slower.
    pub fn fold(&mut self, limit: &Limit, now: Millis) {
        if !limit.aggregates() {
            return;
        }
        let judgement = self.judge(limit, now);
        if judgement.folded.is_some() {
            self.attempts.drop_oldest(judgement.obsolete);
            (self.attempts).set_summary(judgement.folded, judgement.is_mixed);
        }
    }

    /// Removes one attempt, in flight or failed, if it is kept one by one. Returns whether it was present.
    pub fn cancel(&mut self, token: Token) -> bool {
        self.cancel_all(&[token]) > 0
    }

    /// Removes the attempts with these tokens. Returns how many were present.
    #[inline]
    pub fn cancel_all(&mut self, tokens: &[Token]) -> usize {
        self.attempts.cancel_all(tokens)
    }

    /// Removes every attempt of this spelling that has failed by `upto`, `own`, and the summary, if all that
    /// is in it has this spelling; `None` is every spelling. Attempts in flight stay. With tokens of an attempt
    /// that is not present, does nothing.
    ///
    /// Returns the tokens to remove from other counters too: those removed here, and `own`.
    pub fn clean_up(
        &mut self,
        own: &[Token],
        spelling: Option<Spelling>,
        upto: Millis,
    ) -> Vec<Token> {
        let mut tokens = own.to_vec();
        self.clean_up_into(own, spelling, upto, &mut tokens);
        tokens
    }

    /// As [`clean_up`](Self::clean_up), but extends `tokens` by those removed, except for `own`.
    pub(crate) fn clean_up_into(
        &mut self,
        own: &[Token],
        spelling: Option<Spelling>,
        upto: Millis,
        tokens: &mut impl Extend<Token>,
    ) {
        if own.is_empty() || own.iter().any(|token| self.holds(*token)) {
            // Of what is summed up, it is only known whether all of it had the normal form.
            if spelling.is_none_or(|of| of.is_normal() && !self.attempts.is_mixed()) {
                self.attempts.set_summary(None, false);
            }
            self.attempts.clean_up(own, spelling, upto, tokens);
        }
    }

    /// The summary, and whether failures of other spellings than the normal form are part of it.
    #[cfg(feature = "memory")]
    pub(super) fn summarized(&self) -> Option<(&Summary, bool)> {
        let summary = self.attempts.summary()?;
        Some((summary, self.attempts.is_mixed()))
    }

    /// The attempts kept one by one, the oldest first: those that have failed by `now`, and the others.
    #[cfg(feature = "memory")]
    pub(crate) fn split(&self, now: Millis) -> (&[attempts::Entry], &[attempts::Entry]) {
        self.attempts.split(now)
    }

    /// Whether the attempt is kept one by one, failed or in flight.
    #[inline]
    pub fn holds(&self, token: Token) -> bool {
        self.attempts.holds(token)
    }

    /// Whether the counter holds nothing but attempts with these tokens.
    #[cfg(feature = "memory")]
    #[inline]
    pub(crate) fn holds_only(&self, tokens: &[Token]) -> bool {
        self.attempts.summary().is_none() && self.attempts.are_only(tokens)
    }

    /// Whether the counter holds neither attempts nor a summary.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.attempts.is_empty() && self.attempts.summary().is_none()
    }

    /// When nothing in the counter counts any more; `None` is never.
    #[inline]
    pub fn expires(&self, limit: &Limit, now: Millis) -> Option<Millis> {
        // Below its limit, a window is kept as long as what is in it counts.
        if self.is_sparse(limit) {
            let Some(newest) = self.attempts.newest() else {
                return Some(now);
            };
            return Some(newest.saturating_add(limit.window?));
        }
        self.expires_when_full(limit, now)
    }

    fn expires_when_full(&self, limit: &Limit, now: Millis) -> Option<Millis> {
        let newest = match (self.attempts.newest(), self.attempts.summary()) {
            (Some(newest), None) => newest,
            (newest, Some(_)) => newest.map_or(now, |newest| newest.max(now)),
            (None, None) => return Some(now),
        };
        let block = limit.block.as_ref();
        let judgement = self.judge(limit, now);
        let retention = match block.filter(|_| judgement.standing.refuses()) {
            // As long as the block in force, or the one that attempts in flight may bring.
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
