//! What the crate has to say to whoever runs it, in one place. Without the feature `tracing` it says
//! nothing, and the rest of the crate does not notice. Users are never named.

#[cfg(feature = "tracing")]
mod emit {
    use std::sync::Once;

    use crate::{Outcome, refusal::Denial, store::StoreError};

    /// A request did not reach its handler, or would not have if the layer did more than watch.
    pub(crate) fn denied(denial: &Denial, shadow: bool) {
        match denial {
            Denial::Refused(refusal) => tracing::info!(
                rule = refusal.rule(),
                reason = ?refusal.reason(),
                usage = refusal.usage(),
                limit = refusal.limit(),
                lifts = %refusal.lifts_in_words(),
                shadow,
                "login attempt refused"
            ),
            Denial::Undecided(error) => {
                tracing::error!(%error, shadow, "login attempt not decided: the store failed");
            }
            Denial::NoAddress(error) if error.is_bad_request() => {
                tracing::warn!(%error, shadow, "login request without a readable address");
            }
            Denial::NoAddress(error) => {
                tracing::error!(%error, shadow, "login requests can't be counted");
            }
            Denial::AmbiguousUser(error) => {
                tracing::warn!(%error, shadow, "login request with an ambiguous user");
            }
            Denial::BodyBroken => tracing::info!(shadow, "login request whose body broke off"),
            Denial::BodyTooLarge { most } => {
                tracing::warn!(most, shadow, "login request with a body that is too large");
            }
        }
    }

    /// An outcome could not be written.
    pub(crate) fn not_settled(error: &StoreError) {
        tracing::error!(
            %error,
            "the outcome of a login attempt could not be stored; it will count as a failure when its lease ends"
        );
    }

    /// Nobody said how an attempt went. Said once for each layer.
    pub(crate) fn unsaid(once: &Once, outcome: Outcome) {
        once.call_once(|| {
            tracing::warn!(
                ?outcome,
                "a handler did not say how a login attempt went, so its response decided: take \
                 `LoginAttempt` from the request's extensions and call `succeeded()`, `failed()`, \
                 `unknown_user()`, `mfa_pending()` or `not_an_attempt()`"
            );
        });
    }

    /// Something about a Redis that works.
    #[cfg(feature = "redis")]
    pub(crate) fn redis_should_change(warning: &str) {
        tracing::warn!(
            warning,
            "a redis that keeps login attempts is not set up well"
        );
    }

    /// Somebody said it when the attempt was over.
    pub(crate) fn said_late(outcome: Outcome) {
        tracing::warn!(
            ?outcome,
            "it was said how a login attempt went when it had been settled already, because its \
             request was given up; say it before the response, or in the handler's own task"
        );
    }

    /// Somebody contradicted what was said before.
    pub(crate) fn said_twice(first: Outcome, second: Outcome) {
        tracing::warn!(
            ?first,
            ?second,
            "a login attempt was said to have ended in two ways; the first counts"
        );
    }
}

#[cfg(not(feature = "tracing"))]
mod emit {
    use std::sync::Once;

    use crate::{Outcome, refusal::Denial, store::StoreError};

    pub(crate) const fn denied(_: &Denial, _: bool) {}
    pub(crate) const fn not_settled(_: &StoreError) {}
    pub(crate) const fn unsaid(_: &Once, _: Outcome) {}
    #[cfg(feature = "redis")]
    pub(crate) const fn redis_should_change(_: &str) {}
    pub(crate) const fn said_late(_: Outcome) {}
    pub(crate) const fn said_twice(_: Outcome, _: Outcome) {}
}

#[cfg(feature = "redis")]
pub(crate) use emit::redis_should_change;
pub(crate) use emit::{denied, not_settled, said_late, said_twice, unsaid};
