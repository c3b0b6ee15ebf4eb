//! How the attempt of a request ends.

use std::sync::{MutexGuard, atomic::Ordering};

use super::{LoginAttempt, State};
use crate::{Outcome, attempt::Reservation, layer::UserSource, logging, store::StoreFuture};

impl LoginAttempt {
    /// Ends the attempt. Nothing happens if it has ended before.
    #[inline]
    pub(in crate::layer) fn settle(&self, outcome: Outcome) -> StoreFuture<()> {
        self.settle_locked(self.lock(), outcome)
    }

    /// Ends the attempt of a request that was dropped: with the outcome that was recorded, or else with this
    /// one, if a password may have been checked.
    pub(in crate::layer) fn abandon(&self, default: Outcome) -> StoreFuture<()> {
        // Locked until it is settled, so that no check begins in between.
        let state = self.lock();
        let is_unchecked =
            self.shared.config.marked_checks && !self.shared.is_checking.load(Ordering::Relaxed);
        let default = if is_unchecked {
            Outcome::NotAnAttempt
        } else {
            default
        };
        let recorded = self.recorded();
        let config = &self.shared.config;
        if recorded.is_none()
            && default == Outcome::Failure
            && !config.marked_checks
            && let State::Reserved(attempt) = &*state
            && !attempt.is_withdrawn()
            && !attempt.is_allowed()
        {
            logging::dropped(&config.notices.dropped);
        }
        self.settle_locked(state, recorded.unwrap_or(default))
    }

    #[inline]
    fn settle_locked(
        &self,
        mut state: MutexGuard<'_, State>,
        mut outcome: Outcome,
    ) -> StoreFuture<()> {
        if self.outer().is_some()
            && let State::Reserved(attempt) = &*state
        {
            self.pass_on(attempt, outcome);
        }
        // It is unclear whose password was correct, so that takes back nothing but itself.
        if outcome == Outcome::Success && self.shared.is_contradicted.load(Ordering::Relaxed) {
            outcome = Outcome::NotAnAttempt;
        }
        let written = match &*state {
            State::Reserved(attempt) => {
                if !attempt.has_user() {
                    self.note_missing_user(outcome);
                }
                if outcome == Outcome::MfaPending {
                    self.note_second_factor();
                }
                if attempt.is_shadowed() {
                    self.note_shadowed(attempt);
                }
                let is_reported = self.shared.is_reported.load(Ordering::Relaxed);
                attempt.write_outcome(outcome, is_reported)
            }
            State::Shadowed(_) | State::Settled => StoreFuture::ready(Ok(())),
        };
        *state = State::Settled;
        #[cfg(feature = "axum")]
        drop(self.head().take());
        written
    }

    /// Logs that codes follow which are limited by address only.
    #[cold]
    fn note_second_factor(&self) {
        let config = self.config();
        if !config.limiter.guards_second_factor() {
            logging::no_second_factor(&config.notices.no_second_factor);
        }
    }

    /// Logs what rules in shadow would have refused.
    #[cold]
    fn note_shadowed(&self, attempt: &Reservation) {
        for refusal in attempt.shadowed() {
            logging::shadowed(&refusal, &self.config().notices.samples);
        }
    }

    /// Logs that the layer looks for users in vain.
    #[cold]
    fn note_missing_user(&self, outcome: Outcome) {
        let config = self.config();
        let is_attempt = !matches!(outcome, Outcome::NotAnAttempt);
        if is_attempt && !matches!(config.user, UserSource::Handler) {
            logging::no_user(&config.notices.no_user);
        }
    }
}
