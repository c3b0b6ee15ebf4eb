//! Settles an attempt, whatever becomes of its request.

use std::ops::Deref;

use http::{HeaderMap, Method, StatusCode, response::Parts};

use super::{
    Classifier, LoginAttempt,
    classify::{ByStatus, Classify, FailureByDefault},
};
use crate::{
    AttemptFuture, Outcome, logging,
    response::{Denial, RateLimitFields},
    store::{StoreError, StoreFuture},
};

/// Owns an attempt while its handler runs.
///
/// If it is dropped, because the client disconnected, a timeout expired or the handler panicked, the
/// attempt is settled with the outcome that the handler has recorded, or as a failure.
pub(super) struct Guard {
    attempt: Tracked,
    method: Method,
    /// The outcome if the guard is dropped and the handler has recorded none.
    default_outcome: Outcome,
    is_settled: bool,
}

/// An attempt that [`LoginLimiter::all_settled`](crate::LoginLimiter::all_settled) waits for: until it is dropped, also
/// by a panic while it is settled.
struct Tracked(LoginAttempt);

impl Tracked {
    #[inline]
    fn new(attempt: LoginAttempt) -> Self {
        attempt.config().limiter.tracker().add();
        Self(attempt)
    }
}

impl Deref for Tracked {
    type Target = LoginAttempt;

    #[inline]
    fn deref(&self) -> &LoginAttempt {
        &self.0
    }
}

impl Drop for Tracked {
    #[inline]
    fn drop(&mut self) {
        self.0.config().limiter.tracker().remove();
    }
}

/// How far an attempt has come when the inner service has responded.
pub(super) enum Finished {
    /// The outcome is written.
    Settled,
    /// The outcome is being written.
    Settling(Settling),
    /// The outcome is in the response's trailers.
    AwaitsTrailers,
}

/// In the extensions of a response whose [`Denial`] is that of a layer in shadow mode: the handler was called.
#[derive(Clone, Copy)]
struct PassedInShadow;

/// An outcome that is being written.
pub(super) type Settling = AttemptFuture<Result<(), StoreError>>;

impl Guard {
    #[inline]
    pub(super) fn new(attempt: LoginAttempt, method: Method) -> Self {
        Self {
            attempt: Tracked::new(attempt),
            method,
            default_outcome: Outcome::Failure,
            is_settled: false,
        }
    }

    /// Sets whether the handler may have checked a password: not if it was called and its future has
    /// never been polled.
    #[inline]
    pub(super) fn set_handler_started(&mut self, started: bool) {
        self.default_outcome = if started {
            Outcome::Failure
        } else {
            Outcome::NotAnAttempt
        };
    }

    /// Settles the attempt by the head of the inner service's response, if it is not an error, and adds to the head what
    /// the layer is configured to add.
    pub(super) fn finish(&mut self, response: Option<&mut Parts>) -> Finished {
        let outcome = match response {
            Some(response) => {
                let outcome = self.outcome(response);
                self.annotate(outcome.unwrap_or(Outcome::Failure), response);
                #[cfg(feature = "axum")]
                self.attempt.render_denial(response);
                let Some(outcome) = outcome else {
                    return Finished::AwaitsTrailers;
                };
                outcome
            }
            // The service failed, not the client.
            None => (self.attempt.recorded()).unwrap_or(Outcome::NotAnAttempt),
        };
        match self.settle(outcome) {
            None => Finished::Settled,
            Some(settling) => Finished::Settling(settling),
        }
    }

    /// Settles the attempt by the trailers of the response, or by their absence. `None` if the outcome is
    /// written already.
    pub(super) fn finish_with_trailers(
        &mut self,
        trailers: Option<&HeaderMap>,
    ) -> Option<Settling> {
        let outcome = self.attempt.recorded().unwrap_or_else(|| {
            let classifier = self.attempt.config().classifier.get();
            classifier.classify_trailers(trailers)
        });
        self.settle(outcome)
    }

    /// The outcome that the handler has recorded, through its [`LoginAttempt`] or in the response's
    /// extensions, or the classification of the response. `None` if the trailers have it.
    #[inline]
    fn outcome(&self, response: &Parts) -> Option<Outcome> {
        if let Some(outcome) = response.extensions.get::<Outcome>() {
            self.attempt.record(*outcome);
        }
        let recorded = self.attempt.recorded();
        if recorded.is_some() {
            return recorded;
        }
        if response.extensions.get::<Denial>().is_some()
            && response.extensions.get::<PassedInShadow>().is_none()
        {
            return Some(Outcome::NotAnAttempt);
        }
        let config = self.attempt.config();
        let is_unprocessable = response.status == StatusCode::UNPROCESSABLE_ENTITY;
        if is_unprocessable && self.is_rejected() {
            return Some(Outcome::NotAnAttempt);
        }
        match &config.classifier {
            Classifier::Custom(classifier) => return self.classify(&**classifier, response),
            Classifier::ByStatus => return self.classify(&ByStatus, response),
            Classifier::Default => {}
        }
        let outcome = FailureByDefault.classify(&self.method, response);
        if outcome != Outcome::Failure || self.attempt.is_withdrawn() {
            return Some(outcome);
        }
        if self.is_page_view(response.status) {
            return Some(Outcome::NotAnAttempt);
        }
        logging::no_outcome(&config.notices.no_outcome, outcome);
        Some(outcome)
    }

    #[inline]
    fn classify(&self, by: &(impl Classify + ?Sized), response: &Parts) -> Option<Outcome> {
        let awaits_trailers = by.awaits_trailers(&self.method, response);
        (!awaits_trailers).then(|| by.classify(&self.method, response))
    }

    /// Whether this is the response to a request that only views a page.
    fn is_page_view(&self, status: StatusCode) -> bool {
        let is_page = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => false,
            _ => self.method.is_safe(),
        };
        is_page && !self.attempt.has_user()
    }

    /// Whether 422 may be the response of an extractor that rejects a body, ahead of the handler. With a user,
    /// or after the handler has used the attempt, it is the handler's.
    #[cold]
    fn is_rejected(&self) -> bool {
        let config = self.attempt.config();
        let is_rejected = !self.attempt.has_user()
            && match config.classifier {
                // A handler that has no attempt never records one, so each of its responses counts.
                Classifier::Default => self.attempt.is_taken() && !self.attempt.is_used(),
                Classifier::ByStatus => !self.attempt.is_used(),
                Classifier::Custom(_) => false,
            };
        if is_rejected {
            logging::rejected(&config.notices.rejected);
        }
        is_rejected
    }

    #[inline]
    fn annotate(&self, outcome: Outcome, response: &mut Parts) {
        let config = self.attempt.config();
        // As in the layer's own refusal by a rule with a user: no fields.
        if config.rate_limit_fields
            && !self.attempt.is_withdrawn()
            && let Some(report) = self.attempt.standings()
        {
            let failed = matches!(outcome, Outcome::Failure | Outcome::UnknownUser);
            if let Some(fields) = RateLimitFields::of_report(&report, failed) {
                fields.write(&mut response.headers);
            }
        }
        if config.shadow
            && let Some(denial) = self.attempt.shadowed()
        {
            response.extensions.insert(denial);
            response.extensions.insert(PassedInShadow);
        }
    }

    #[inline]
    fn settle(&mut self, outcome: Outcome) -> Option<Settling> {
        let settled = self.attempt.settle(outcome);
        self.written(settled)
    }

    #[inline]
    fn written(&mut self, settled: StoreFuture<()>) -> Option<Settling> {
        self.is_settled = true;
        match settled.at_once() {
            Ok(result) => {
                if let Err(error) = result {
                    logging::not_settled(&error);
                }
                None
            }
            Err(call) => Some(AttemptFuture::settle(&self.attempt.config().limiter, call)),
        }
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        if !self.is_settled {
            let settled = self.attempt.abandon(self.default_outcome);
            // Dropping the future has a task complete it.
            drop(self.written(settled));
        }
    }
}
