//! Protects login endpoints from password guessing, without locking out the people who own the
//! accounts.
//!
//! A [`LoginRateLimitLayer`] wraps a service: each request reserves an attempt before its handler sees
//! it, and the handler says how it went through the [`LoginAttempt`] in the request's extensions.
//! Failures count in a sliding window per address and per user and address; what is in flight takes a
//! place but is no failure; success takes back the user's own failures and nobody else's. Whoever is
//! refused learns when the block lifts.
//!
//! The layer's page has the first example; the README has one for axum, and `docs/` pages for axum,
//! hyper, tonic, MFA, proxies, the choice of an algorithm and Redis in production.
//!
//! # Without tower
//!
//! A [`LoginLimiter`] is the whole engine, for any async code: ask before a password is checked, tell
//! afterwards how it went.
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
//!     limiter.settle(attempt, Outcome::Failure).await?;
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
//! | **reserve** | ask for an attempt before the password is checked |
//! | **settle** | say how it went: success, failure, unknown user, MFA pending, not an attempt |
//! | **in flight** | reserved and not settled; when its lease ends it becomes a failure |
//! | **refusal** | which rule, blocked or busy, and when it lifts |
//!
//! # Features
//!
//! | | |
//! |---|---|
//! | `memory` | `store::MemoryStore`, the embedded store; on by default |
//! | `redis` | `store::RedisStore`, for servers that share their counters |
//! | `tls` | the same over TLS, by rustls; brings `redis` with it |
//! | `axum` | `LoginAttempt` as an extractor, and the peer's address from axum's `ConnectInfo` |
//! | `tonic` | the peer's address from tonic, and refusals as `tonic::Status` |
//! | `serde` | policies from and to JSON, TOML and the like |
//! | `tracing` | says what happens through the `tracing` crate; users are never named |

#![forbid(unsafe_code)]

pub mod algorithm;
pub mod classify;
pub mod clock;
pub mod extract;
pub mod refusal;
pub mod store;

mod address;
mod answer;
mod attempt;
#[cfg(feature = "axum")]
mod axum;
mod body;
mod caller;
mod events;
mod future;
mod key_limiter;
mod layer;
mod limiter;
mod login_attempt;
mod normalise;
mod period;
mod policy;
mod rate_limit_fields;
mod reading;
mod reserving;
mod service;
mod settling;
mod token;

pub use address::{Address, ParseAddressError};
pub use algorithm::Limit;
pub use answer::Answer;
pub use attempt::{Attempt, Outcome, Report};
#[cfg(feature = "axum")]
pub use axum::MissingLayer;
pub use body::{ReplayedBody, ResponseBody};
pub use caller::Caller;
pub use classify::Classify;
pub use future::ResponseFuture;
pub use key_limiter::KeyLimiter;
pub use layer::LoginRateLimitLayer;
pub use limiter::{LoginLimiter, ReserveError};
pub use login_attempt::LoginAttempt;
pub use normalise::normalise;
pub use period::{ParsePeriodError, Period};
pub use policy::{BackoffBuilder, KnownAddresses, LimitBuilder, Part, Policy, PolicyError, Rule};
pub use reading::{HeadOnly, WithBody};
pub use refusal::{Reason, Refusal};
pub use reserving::Reserving;
pub use service::LoginRateLimit;
pub use token::Token;

// The examples of the README and of docs/ are tested too.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/algorithms.md")]
    struct Algorithms;
    #[doc = include_str!("../docs/axum.md")]
    struct Axum;
    #[doc = include_str!("../docs/hyper.md")]
    struct Hyper;
    #[doc = include_str!("../docs/mfa.md")]
    struct Mfa;
    #[cfg(feature = "redis")]
    #[doc = include_str!("../docs/production.md")]
    struct Production;
    #[doc = include_str!("../docs/proxies.md")]
    struct Proxies;
}
