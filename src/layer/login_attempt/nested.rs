//! Attempts of one request in several layers.

use std::sync::atomic::Ordering;

use super::{LoginAttempt, Shared, State};
use crate::{
    Outcome, Token,
    attempt::{Reservation, Within},
    layer::Config,
    logging,
};

impl LoginAttempt {
    /// Has the attempts of layers further out receive the same outcomes, if they are of the same login.
    #[cold]
    pub(in crate::layer) fn set_outer(&self, outer: Self) {
        let Some(outer) = outer.and_outers().find(|outer| !self.is_apart_from(outer)) else {
            return;
        };
        for outer in outer.and_outers().filter(|outer| self.shares_with(outer)) {
            self.compare_user(outer);
        }
        let _ = self.shared.outer.set(outer.handle());
    }

    /// The attempt of a layer further out.
    #[inline]
    pub(super) fn outer(&self) -> Option<&Self> {
        self.shared.outer.get()
    }

    /// This attempt, and those of layers further out.
    pub(super) fn and_outers(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |attempt| attempt.outer())
    }

    /// Whether the other attempt has ended, or is another login's: of the requests in a batch, all but the
    /// first reserve attempts of their own.
    fn is_apart_from(&self, outer: &Self) -> bool {
        let has_ended = matches!(*outer.lock(), State::Settled);
        let is_other = match (self.token(), outer.token()) {
            (Some(own), Some(other)) => own != other,
            _ => false,
        };
        has_ended || (is_other && self.config().limiter.is_same(&outer.config().limiter))
    }

    fn shares_with(&self, outer: &Self) -> bool {
        self.token().is_some() && self.token() == outer.token()
    }

    fn token(&self) -> Option<Token> {
        match &*self.lock() {
            State::Reserved(attempt) => Some(attempt.token()),
            State::Shadowed(_) | State::Settled => None,
        }
    }

    /// Compares the user with that of an attempt further out, which has the same token.
    fn compare_user(&self, outer: &Self) {
        let (own, mut other) = (self.lock(), outer.lock());
        let (State::Reserved(own), State::Reserved(other)) = (&*own, &mut *other) else {
            return;
        };
        if other.is_contradicted_by(own) {
            for attempt in [self, outer] {
                let is_contradicted = &attempt.shared.is_contradicted;
                is_contradicted.store(true, Ordering::Relaxed);
            }
        } else if own.has_user() && other.is_nameless() {
            other.take_name_of(own);
        }
    }

    /// The attempt that one of a layer further in with the same limiter shares: the first of this login, if
    /// there is one, no password was checked and no other request has passed that layer.
    pub(in crate::layer) fn share(&self, config: &Config) -> Option<Box<Within>> {
        let is_same = |attempt: &&Self| attempt.config().limiter.is_same(&config.limiter);
        let same = self.and_outers().find(is_same)?;
        let Shared {
            outcome,
            is_checking,
            is_shared,
            ..
        } = &*same.shared;
        let state = same.lock();
        let within = match &*state {
            // One that is allowed is in no counter, so there is nothing to share.
            State::Reserved(attempt) if !attempt.is_withdrawn() && !attempt.is_allowed() => {
                attempt.share()
            }
            _ => return None,
        };
        if outcome.get().is_some()
            || is_checking.load(Ordering::Relaxed)
            || is_shared.swap(true, Ordering::Relaxed)
        {
            return None;
        }
        if std::ptr::eq(same.config(), config) {
            logging::nested_layer(&config.notices.nested);
        }
        Some(within)
    }

    /// Has the attempts further out that have this token settle with this outcome too: the layer nearest to the
    /// handler decides. What is not an attempt here may be one there.
    #[cold]
    pub(super) fn pass_on(&self, own: &Reservation, outcome: Outcome) {
        if outcome == Outcome::NotAnAttempt {
            return;
        }
        let failed = matches!(outcome, Outcome::Failure | Outcome::UnknownUser);
        for outer in self.and_outers().skip(1) {
            let mut state = outer.lock();
            let State::Reserved(attempt) = &mut *state else {
                continue;
            };
            if attempt.token() == own.token() {
                let _ = outer.shared.outcome.set(outcome);
                outer.shared.is_reported.store(true, Ordering::Relaxed);
                if failed {
                    attempt.set_failed_inside(own.share());
                }
            }
        }
    }
}
