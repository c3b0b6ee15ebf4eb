//! Protects login endpoints from password guessing, without locking out the people who own the
//! accounts.
//!
//! A [`LoginRateLimitLayer`] wraps a service: each request reserves an attempt before its handler is
//! called, and the handler records the outcome through the [`LoginAttempt`] in the request's extensions.
//! Failures count in a sliding window per address and per user and address; an attempt in flight occupies
//! a place but is no failure; a success removes the user's own failures and no others. A refusal states
//! when the block lifts.
//!
//! The [guides](guide) begin with axum, and go on with hyper, tonic, MFA, proxies, the choice of an algorithm, Redis in
//! production, operations, tests, migration and questions.
//!
//! # With axum
//!
//! ```
//! # use axum::{Json, Router, http::StatusCode, routing::post};
//! use tower_login_rate_limit::{
//!     LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy, extract::JsonField, store::MemoryStore,
//! };
//!
//! # #[derive(serde::Deserialize)]
//! # struct Login { username: String, password: String }
//! # fn is_correct(_: &Login) -> bool { false }
//! async fn login(attempt: LoginAttempt, Json(login): Json<Login>) -> StatusCode {
//!     if is_correct(&login) {
//!         attempt.succeeded();
//!         StatusCode::OK
//!     } else {
//!         attempt.failed();
//!         StatusCode::UNAUTHORIZED
//!     }
//! }
//!
//! let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
//! let layer = LoginRateLimitLayer::new(limiter).with_body_user(JsonField::new("username"));
//! let app = Router::new().route("/login", post(login).layer(layer));
//! // The client's address is that of the connection.
//! let app = app.into_make_service_with_connect_info::<std::net::SocketAddr>();
//! ```
//!
//! Any other tower service is guarded alike: see [`LoginRateLimitLayer`].
//!
//! # Without tower
//!
//! A [`LoginLimiter`] works in any async code: reserve an attempt before the password is checked, settle it
//! afterwards.
//!
//! ```
//! use std::net::IpAddr;
//! use tower_login_rate_limit::{LoginLimiter, Outcome, Policy, ReserveError, store::MemoryStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! // 25 failures of an address in 24 h: blocked for 7 days.
//! // 5 failures of a user from an address in 24 h: blocked for 24 h.
//! let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
//! let address: IpAddr = "192.0.2.1".parse()?;
//!
//! for _ in 0..5 {
//!     let attempt = limiter.reserve((address, "alice")).await?;
//!     attempt.settle(Outcome::Failure).await?;
//! }
//! match limiter.reserve((address, "alice")).await {
//!     Err(ReserveError::Refused(refusal)) => {
//!         assert_eq!(refusal.to_string(), "too many failed attempts, try again in 1 day");
//!     }
//!     other => panic!("{other:?}"),
//! }
//! # Ok(()) }
//! # tokio::runtime::Runtime::new()?.block_on(example())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Words
//!
//! | | |
//! |---|---|
//! | **attempt** | one try to log in, with one token, the same in every counter |
//! | **rule** | what is counted together, and a limit: per address, per user and address, per account, or the app's own |
//! | **limit** | an algorithm and its numbers: 5 within 24 h, then blocked for 24 h |
//! | **reserve** | request an attempt before the password is checked |
//! | **settle** | end an attempt with its outcome: success, failure, unknown user, MFA pending, not an attempt |
//! | **in flight** | reserved and not settled; when its lease ends it becomes a failure |
//! | **refusal** | which rule, blocked or busy, and when it lifts |
//!
//! # Features
//!
//! | | |
//! |---|---|
//! | `json` | `extract::JsonField`, for users in JSON bodies; on by default |
//! | `memory` | `store::MemoryStore`, the embedded store; on by default |
//! | `redis` | `store::RedisStore`, for servers that share their counters |
//! | `tls` | the same over TLS, by rustls; brings `redis` with it |
//! | `axum` | `LoginAttempt` as an extractor, and the peer's address from axum's `ConnectInfo` |
//! | `tonic` | the peer's address from tonic, and refusals as `tonic::Status` |
//! | `serde` | policies, access rules and events from and to JSON, TOML and the like |
//! | `admin` | `admin::Admin`: list, explain and lift blocks; `live`: rules that change on every instance while the app runs |
//! | `server` | `server::Server`: the HTTP API, an axum router |
//! | `console` | `console::Console`: the web console on it |
//! | `cli` | the program `login-rate-limit` |
//! | `sealed` | `event::Sealer`: users in events, encrypted with a key of the app |
//! | `metrics` | metrics through the `metrics` crate, without addresses or users |
//! | `tracing` | events of the `tracing` crate; users are never named |

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod access;
#[cfg(feature = "admin")]
pub mod admin;
pub mod algorithm;
pub mod clock;
#[cfg(feature = "console")]
pub mod console;
pub mod event;
pub mod extract;
#[cfg(any(doc, doctest))]
pub mod guide;
pub mod insight;
#[cfg(feature = "admin")]
pub mod live;
pub mod response;
#[cfg(feature = "server")]
pub mod server;
pub mod store;
pub mod testing;

mod address;
mod attempt;
#[cfg(feature = "axum")]
mod axum;
mod key_limiter;
mod layer;
mod limiter;
mod logging;
mod maybe_ready;
mod metrics;
mod missing_layer;
mod normalize;
mod policy;
mod timestamp;

pub use address::{Address, ParseAddressError};
pub use algorithm::limit::Limit;
pub use attempt::{
    Attempt, AttemptFuture, AttemptId, Caller, Outcome, ParseAttemptIdError, ParseOutcomeError,
    ParseTokenError, Reason, Refusal, Report, Token,
};
pub use key_limiter::KeyLimiter;
#[cfg(feature = "axum")]
pub use layer::ForAxum;
pub use layer::{
    Classify, HeadOnly, LoginAttempt, LoginRateLimit, LoginRateLimitLayer, MissingUser,
    ReplayedBody, ResponseBody, ResponseFuture, WithBody, classify,
};
pub use limiter::{LoginLimiter, ReserveError};
pub use maybe_ready::MaybeReady;
pub use missing_layer::MissingLayer;
pub use normalize::normalize;
pub use policy::{
    BackoffBuilder, Finding, KnownAddresses, LimitBuilder, ParsePeriodError, Part, Period, Policy,
    PolicyError, Rule, Standard,
};

/// For the command line, the model test, the plots and the tests of observers and metrics in this repository. Not part
/// of the API: it may change in any release.
#[doc(hidden)]
pub mod __private {
    pub use crate::{
        algorithm::{attempts::Spelling, counter::Counter},
        event::observers::Observers,
        metrics::{Metrics, RuleMetrics, StoreCall},
    };

    /// Text on one line, without anything that a terminal would interpret.
    #[cfg(feature = "cli")]
    pub fn escaped(text: &str) -> String {
        crate::event::escape::Escaped(text).to_string()
    }

    /// JSON without anything that a terminal would interpret.
    #[cfg(feature = "cli")]
    pub fn escaped_json(json: String) -> String {
        crate::event::escape::escaped_json(json)
    }

    /// The RFC 3339 text of a time.
    #[cfg(feature = "cli")]
    pub fn time_to_text(time: crate::algorithm::Millis) -> String {
        crate::timestamp::to_text(time)
    }

    /// The time of an RFC 3339 text.
    #[cfg(feature = "cli")]
    pub fn time_from_text(text: &str) -> Option<crate::algorithm::Millis> {
        crate::timestamp::parse(text)
    }
}

// The examples of the README are tested too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
