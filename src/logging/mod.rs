//! What the crate logs by itself. `TracingObserver` logs the events for observers, under another target. Without the
//! feature `tracing` these functions do nothing. Users are never named.

#![cfg_attr(not(feature = "tracing"), allow(unused_variables))] // the functions are empty then

/// Emits an event of the `tracing` crate, if the feature is enabled.
macro_rules! event {
    ($level:ident, $($event:tt)*) => {{
        // One target for all, whichever file they are in: filters name it.
        #[cfg(feature = "tracing")]
        tracing::$level!(target: "tower_login_rate_limit::events", $($event)*);
    }};
}

mod denied;
mod sampled;

#[cfg(feature = "redis")]
use std::time::Duration;
use std::{fmt, sync::Once};

pub(crate) use self::denied::{Samples, denied, shadowed};
#[cfg(any(feature = "axum", feature = "tonic"))]
pub(crate) use self::sampled::Sampled;
#[cfg(feature = "tracing")]
use crate::algorithm::State;
#[cfg(feature = "redis")]
use crate::store::redis::Outage;
use crate::{Address, Outcome, Rule, algorithm::Standing, store::StoreError};

/// A failure began a block. Logged by the process that settled the failure, so once for each block.
pub(crate) fn block_began(rule: &Rule, address: Address, standing: &Standing) {
    #[cfg(feature = "tracing")]
    if let State::Blocked { lifts } = standing.state {
        event!(
            warn,
            rule = rule.name(),
            %address,
            usage = standing.usage,
            limit = standing.limit,
            %lifts,
            shadow = rule.is_shadow(),
            "login block began"
        );
    }
}

/// A block is missing in lists of blocks. It refuses all the same.
#[cfg(feature = "admin")]
pub(crate) fn block_not_listed(error: &StoreError) {
    event!(warn, %error, "login block not entered into the list of blocks");
}

/// A handler takes a `LoginAttempt` on a route without the layer.
#[cfg(any(feature = "axum", feature = "tonic"))]
pub(crate) fn missing_layer(error: &dyn fmt::Display) {
    static COUNT: Sampled = Sampled::new();
    if let Some(count) = COUNT.next() {
        event!(error, %error, count, "a login handler was not called");
    }
}

/// An attempt was settled whose user the layer's extractor did not find. Logged once per layer.
pub(crate) fn no_user(once: &Once) {
    once.call_once(|| {
        event!(
            warn,
            "a login request names no user where the layer looks for one: is the name of the field or \
             header spelled as the client sends it? Such requests are counted as one user; \
             `with_missing_user` changes that"
        );
    });
}

/// A second factor is pending, and no layer of the limiter is for second factors. Logged once per layer.
pub(crate) fn no_second_factor(once: &Once) {
    once.call_once(|| {
        event!(
            warn,
            "a login awaits a second factor, and no layer with this limiter guards one: give the endpoint that \
             takes the code a layer `with_second_factor(true)`, or its codes are limited by address only"
        );
    });
}

/// The same for the HTTP API. Logged once per server.
#[cfg(feature = "server")]
pub(crate) fn no_second_factor_asked(once: &Once) {
    once.call_once(|| {
        event!(
            warn,
            "logins await a second factor, and no attempt at one is reserved by this instance: send \
             `\"second_factor\": true` before a code is checked, from a proxy `X-Login-Second-Factor: true`, or codes \
             are limited by address only"
        );
    });
}

/// A layer is inside of another one with the same limiter. Logged once per layer.
pub(crate) fn nested_layer(once: &Once) {
    once.call_once(|| {
        event!(
            warn,
            "a request passed the same `LoginRateLimitLayer` twice and was counted once: remove the layer \
             from the route or from the router"
        );
    });
}

/// A route contains what looks like a pattern and is compared literally.
pub(crate) fn odd_route(route: &str) {
    event!(
        error,
        route,
        "a path of `with_routes` is compared literally although it looks like a pattern, so requests may pass \
         uncounted: parameters are whole segments, as in `/{{tenant}}/login` and `/files/{{*rest}}`"
    );
}

/// The peer of a server without a proxy sent the header of one. Logged once.
pub(crate) fn forgotten_proxy(header: &str) {
    event!(
        warn,
        header,
        "requests arrive through a proxy, and are all counted under the proxy's address, so that one \
         attacker blocks every client: set `with_address(ForwardedAddress::…)` with the proxy's network"
    );
}

/// A network of trusted proxies is very wide.
pub(crate) fn wide_network(network: &dyn fmt::Display) {
    event!(
        warn,
        %network,
        "a trusted network of proxies is very wide: each client in it can choose its own address"
    );
}

/// An outcome could not be written.
pub(crate) fn not_settled(error: &StoreError) {
    event!(
        error, %error,
        "the outcome of a login attempt could not be stored; it will count as a failure when its lease ends"
    );
}

/// A cancellation could not be written.
#[cfg(feature = "redis")]
pub(crate) fn not_canceled(error: &StoreError) {
    event!(
        error, %error,
        "a login attempt that was not admitted could not be taken back; it may count as a failure when its lease ends"
    );
}

/// A pending write was dropped from the journal.
#[cfg(feature = "redis")]
pub(crate) fn not_replayed(error: &StoreError) {
    event!(error, %error, "Redis rejects a pending write, which is dropped");
}

/// A handler recorded no outcome. Logged once per layer.
pub(crate) fn no_outcome(once: &Once, outcome: Outcome) {
    once.call_once(|| {
        event!(
            warn, ?outcome,
            "a handler recorded no outcome for a login attempt, so it was derived from the response: take \
             `LoginAttempt` from the request's extensions and call `succeeded()`, `failed()`, \
             `unknown_user()`, `mfa_pending()` or `not_an_attempt()`"
        );
    });
}

/// A response with 422 to a request without a user was not counted. Logged once per layer.
pub(crate) fn rejected(once: &Once) {
    once.call_once(|| {
        event!(
            warn,
            "a login request without a user was answered with 422 and not counted, since an extractor may \
             have rejected its body: a handler that responds with 422 to a wrong password has to call \
             `failed()`"
        );
    });
}

/// A request ended before its handler did, and is a failure. Logged once per layer.
pub(crate) fn dropped(once: &Once) {
    once.call_once(|| {
        event!(
            warn,
            "a login request was dropped while its handler ran, by a timeout, a client that disconnected or a panic, \
             and counts as a failure, since its password may have been checked: if handlers wait for a slow database, \
             use `with_marked_checks(true)` and call `begin_check()` ahead of the check"
        );
    });
}

/// A handler recorded an outcome after the attempt was settled.
pub(crate) fn late_outcome(outcome: Outcome) {
    event!(
        warn,
        ?outcome,
        "an outcome was recorded for a login attempt that was already settled because its request had \
         ended; record it before the response is returned"
    );
}

/// A handler recorded two different outcomes.
pub(crate) fn conflicting_outcomes(first: Outcome, second: Outcome) {
    event!(
        warn,
        ?first,
        ?second,
        "two different outcomes were recorded for a login attempt; the first one counts"
    );
}

/// The settings of a Redis server should be changed.
#[cfg(feature = "redis")]
pub(crate) fn redis_warning(warning: &str) {
    event!(
        warn,
        warning,
        "the settings of a Redis server are unsuitable for login attempts"
    );
}

/// Redis has become unavailable.
#[cfg(feature = "redis")]
pub(crate) fn store_unreachable(error: &StoreError, outage: Outage) {
    event!(error, %error, ?outage, "Redis is unavailable: login attempts are decided without it");
}

/// Redis is available again.
#[cfg(feature = "redis")]
pub(crate) fn store_reachable(unreachable: Duration, pending: usize) {
    event!(
        warn,
        ?unreachable,
        pending,
        "Redis is available again; pending writes are replayed"
    );
}

/// The stream of events can't be read. Logged once until it can.
#[cfg(all(feature = "redis", feature = "serde"))]
pub(crate) fn unreadable_stream(error: &StoreError) {
    event!(
        warn,
        %error,
        "the stream of events can't be read, so the console shows none: does the Redis user have +xrange?"
    );
}

/// A version of the ruleset in the store is not put in force. Logged once for each error.
#[cfg(feature = "admin")]
pub(crate) fn unreadable_ruleset(version: u64, error: &str) {
    event!(
        error,
        version,
        error,
        "a version of the ruleset can't be put in force, so the one before stays: was it written by a newer \
         version of this crate?"
    );
}

/// The store has an older version of the ruleset than this process had: a replica was promoted that lacked the
/// newest one, or data was restored.
#[cfg(feature = "admin")]
pub(crate) fn ruleset_went_back(from: u64, to: u64) {
    event!(
        error,
        from,
        to,
        "the ruleset in the store is older than the one in force, and takes its place: compare it with the changes \
         that were made, and write what is missing again"
    );
}

/// A file of rules is not put in force. Logged once for each state of the file.
#[cfg(feature = "admin")]
pub(crate) fn unreadable_file(path: &std::path::Path, error: &str) {
    event!(
        error,
        path = %path.display(),
        error,
        "a file of login rules can't be put in force, so the rules before stay"
    );
}

/// An attempt was admitted without being counted, as configured.
#[cfg(feature = "redis")]
pub(crate) fn admitted_uncounted() {
    event!(
        warn,
        "login attempt admitted uncounted: Redis is unavailable"
    );
}

/// This process does not receive the invalidations of blocks.
#[cfg(feature = "redis")]
pub(crate) fn not_subscribed(reason: &str) {
    event!(
        warn,
        reason,
        "not subscribed to invalidations of blocks, so Redis is queried more often; is the Redis user \
         allowed to subscribe and publish?"
    );
}

/// A request to the HTTP API has no valid authorization: a wrong token in a configuration, or guessing.
#[cfg(feature = "server")]
pub(crate) fn unauthorized(path: &str, samples: &Sampled) {
    if let Some(count) = samples.next() {
        event!(
            warn,
            path,
            count,
            "request to the HTTP API without a valid authorization"
        );
    }
}
