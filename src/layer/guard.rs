//! Settles an attempt, whatever becomes of its request.

use http::{HeaderMap, Method, Response, StatusCode, response::Parts};

use super::{
    LoginAttempt,
    classify::{Classify, FailureByDefault},
};
use crate::{
    AttemptFuture, Outcome,
    attempt::InFlight,
    events,
    response::{Denial, RateLimitFields},
    store::{StoreError, StoreFuture},
};

/// Owns an attempt while its handler runs.
///
/// If it is dropped, because the client disconnected, a timeout expired or the handler panicked, the
/// attempt is settled with the outcome that the handler has recorded, or as a failure.
pub(super) struct Guard {
    attempt: LoginAttempt,
    method: Method,
    /// The outcome if the guard is dropped and the handler has recorded none.
    default_outcome: Outcome,
    is_settled: bool,
    _in_flight: InFlight,
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
            _in_flight: attempt.config().limiter.track(),
            attempt,
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

    /// Settles the attempt by the inner service's response, and adds to the response what the layer is
    /// configured to add.
    #[inline]
    pub(super) fn finish<R, E>(
        &mut self,
        response: Result<Response<R>, E>,
    ) -> (Finished, Result<Response<R>, E>) {
        let (outcome, response) = match response {
            Ok(response) => {
                let (mut parts, body) = response.into_parts();
                let outcome = self.outcome(&parts);
                self.annotate(outcome.unwrap_or(Outcome::Failure), &mut parts);
                #[cfg(feature = "axum")]
                self.attempt.render_denial(&mut parts);
                let response = Ok(Response::from_parts(parts, body));
                let Some(outcome) = outcome else {
                    return (Finished::AwaitsTrailers, response);
                };
                (outcome, response)
            }
            // The service failed, not the client.
            Err(error) => {
                let outcome = self.attempt.outcome();
                (outcome.unwrap_or(Outcome::NotAnAttempt), Err(error))
            }
        };
        match self.settle(outcome) {
            None => (Finished::Settled, response),
            Some(settling) => (Finished::Settling(settling), response),
        }
    }

    /// Settles the attempt by the trailers of the response, or by their absence. `None` if the outcome is
    /// written already.
    pub(super) fn finish_with_trailers(
        &mut self,
        trailers: Option<&HeaderMap>,
    ) -> Option<Settling> {
        let outcome = self.attempt.outcome().unwrap_or_else(|| {
            let classifier = self.attempt.config().classifier.as_ref();
            classifier.map_or(Outcome::Failure, |by| by.classify_trailers(trailers))
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
        let recorded = self.attempt.outcome();
        if recorded.is_some() {
            return recorded;
        }
        if response.extensions.get::<Denial>().is_some()
            && response.extensions.get::<PassedInShadow>().is_none()
        {
            return Some(Outcome::NotAnAttempt);
        }
        let config = self.attempt.config();
        if let Some(classifier) = &config.classifier {
            let awaits_trailers = classifier.awaits_trailers(&self.method, response);
            return (!awaits_trailers).then(|| classifier.classify(&self.method, response));
        }
        let outcome = FailureByDefault.classify(&self.method, response);
        if outcome != Outcome::Failure || self.attempt.is_withdrawn() {
            return Some(outcome);
        }
        if self.is_idle(response.status) && !self.attempt.has_user() {
            return Some(Outcome::NotAnAttempt);
        }
        events::no_outcome(&config.notices.no_outcome, outcome);
        Some(outcome)
    }

    /// Whether this is the response to a request that checks no password, unless it names a user: the view of
    /// a page, or a body that an extractor rejects.
    fn is_idle(&self, status: StatusCode) -> bool {
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => false,
            StatusCode::UNPROCESSABLE_ENTITY => true,
            _ => self.method.is_safe(),
        }
    }

    #[inline]
    fn annotate(&self, outcome: Outcome, response: &mut Parts) {
        let config = self.attempt.config();
        // As in the layer's own refusal by a rule with a user: no fields.
        if config.rate_limit_fields
            && !self.attempt.is_withdrawn()
            && let Some(report) = self.attempt.report()
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
                    events::not_settled(&error);
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
