//! Requests that a layer denies. Clients can cause these at will, so most of them are sampled.

use super::sampled::{Sampled, SampledByRule};
use crate::{
    Refusal,
    extract::ExtractErrorKind,
    response::{Denial, DenialKind},
};

/// The sampled events of a layer.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    shadowed: SampledByRule,
    denied: Sampled,
    misconfigured: Sampled,
    no_address: Sampled,
    ambiguous_user: Sampled,
    no_user: Sampled,
    body_broken: Sampled,
    body_timeout: Sampled,
    body_too_large: Sampled,
}

/// A request was denied, or would have been if the layer were not in shadow mode.
pub(crate) fn denied(denial: &Denial, samples: &Samples, shadow: bool) {
    match denial.kind() {
        DenialKind::Refused(refusal) => event!(
            info,
            rule = refusal.rule(),
            reason = ?refusal.reason(),
            usage = refusal.usage(),
            limit = refusal.limit(),
            lifts = %refusal.lifts_in_words(),
            shadow,
            "login attempt refused"
        ),
        DenialKind::Denied(denied) => {
            if let Some(count) = samples.denied.next() {
                event!(
                    info,
                    rule = denied.rule(),
                    count,
                    shadow,
                    "login request denied by an access rule"
                );
            }
        }
        DenialKind::Undecided(error) => {
            event!(error, %error, shadow, "login attempt not decided: the store failed");
        }
        DenialKind::Settled => event!(
            warn,
            shadow,
            "login attempt identified after it was settled"
        ),
        DenialKind::NoAddress(error) | DenialKind::AmbiguousUser(error)
            if error.kind() == ExtractErrorKind::Misconfigured =>
        {
            if let Some(count) = samples.misconfigured.next() {
                event!(error, %error, count, shadow, "login requests can't be counted");
            }
        }
        DenialKind::NoAddress(error) => {
            if let Some(count) = samples.no_address.next() {
                event!(warn, %error, count, shadow, "login request without a readable address");
            }
        }
        DenialKind::AmbiguousUser(error) => {
            if let Some(count) = samples.ambiguous_user.next() {
                event!(warn, %error, count, shadow, "login request with an ambiguous user");
            }
        }
        DenialKind::NoUser => {
            if let Some(count) = samples.no_user.next() {
                event!(warn, count, shadow, "login request without a user");
            }
        }
        DenialKind::BodyBroken => {
            if let Some(count) = samples.body_broken.next() {
                event!(info, count, shadow, "login request with an incomplete body");
            }
        }
        DenialKind::BodyTimeout => {
            if let Some(count) = samples.body_timeout.next() {
                event!(
                    warn,
                    count,
                    shadow,
                    "login request with a body that did not arrive in time"
                );
            }
        }
        DenialKind::BodyTooLarge { limit } => {
            if let Some(count) = samples.body_too_large.next() {
                event!(
                    warn,
                    limit,
                    count,
                    shadow,
                    "login request with a body that is too large"
                );
            }
        }
    }
}

/// A rule in shadow would have refused an attempt.
pub(crate) fn shadowed(refusal: &Refusal, samples: &Samples) {
    if let Some(count) = samples.shadowed.next(refusal.rule()) {
        event!(
            info,
            rule = refusal.rule(),
            reason = ?refusal.reason(),
            usage = refusal.usage(),
            limit = refusal.limit(),
            lifts = %refusal.lifts_in_words(),
            count,
            shadow = true,
            "login attempt would be refused by a rule in shadow"
        );
    }
}
