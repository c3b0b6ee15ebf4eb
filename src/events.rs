//! What the crate has to say to whoever runs it, in one place. Without the feature `tracing` it says
//! nothing, and the rest of the crate does not notice. Users are never named.

#[cfg(feature = "tracing")]
mod emit {
    use std::sync::Once;
    #[cfg(feature = "redis")]
    use std::time::Duration;

    #[cfg(feature = "redis")]
    use crate::store::redis::Outage;
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

    /// Redis is not asked any more for a while.
    #[cfg(feature = "redis")]
    pub(crate) fn redis_away(error: &StoreError, outage: Outage) {
        tracing::error!(
            %error,
            ?outage,
            "redis does not answer: login attempts are decided without it until it does"
        );
    }

    /// Redis is asked again.
    #[cfg(feature = "redis")]
    pub(crate) fn redis_is_back(away: Duration, owed: usize) {
        tracing::warn!(
            ?away,
            owed,
            "redis answers again, and is told what it has missed"
        );
    }

    /// An attempt does not count, as the app has chosen.
    #[cfg(feature = "redis")]
    pub(crate) fn admitted_uncounted() {
        tracing::warn!("login attempt admitted uncounted: redis does not answer");
    }

    /// Unblocks elsewhere are not announced here.
    #[cfg(feature = "redis")]
    pub(crate) fn unblocks_are_not_heard(reason: &str) {
        tracing::warn!(
            reason,
            "redis does not announce unblocks to this process, which asks it more often instead; \
             is the redis user allowed to subscribe and publish?"
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
    #[cfg(feature = "redis")]
    use std::time::Duration;

    #[cfg(feature = "redis")]
    use crate::store::redis::Outage;
    use crate::{Outcome, refusal::Denial, store::StoreError};

    pub(crate) const fn denied(_: &Denial, _: bool) {}
    pub(crate) const fn not_settled(_: &StoreError) {}
    pub(crate) const fn unsaid(_: &Once, _: Outcome) {}
    #[cfg(feature = "redis")]
    pub(crate) const fn redis_should_change(_: &str) {}
    #[cfg(feature = "redis")]
    pub(crate) const fn redis_away(_: &StoreError, _: Outage) {}
    #[cfg(feature = "redis")]
    pub(crate) const fn redis_is_back(_: Duration, _: usize) {}
    #[cfg(feature = "redis")]
    pub(crate) const fn admitted_uncounted() {}
    #[cfg(feature = "redis")]
    pub(crate) const fn unblocks_are_not_heard(_: &str) {}
    pub(crate) const fn said_late(_: Outcome) {}
    pub(crate) const fn said_twice(_: Outcome, _: Outcome) {}
}

#[cfg(feature = "redis")]
pub(crate) use emit::{
    admitted_uncounted, redis_away, redis_is_back, redis_should_change, unblocks_are_not_heard,
};
pub(crate) use emit::{denied, not_settled, said_late, said_twice, unsaid};
