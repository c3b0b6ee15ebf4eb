//! Helpers for tests of an app behind the layer: without a socket, and without waiting.
//!
//! ```
//! # #[cfg(feature = "memory")] {
//! use std::time::Duration;
//!
//! use http::{Request, Response};
//! use tower::{Layer, ServiceExt, service_fn};
//! use tower_login_rate_limit::{
//!     LoginAttempt, LoginRateLimitLayer, Policy, Rule, extract::user_fn,
//!     testing::{self, RequestExt},
//! };
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let (limiter, clock) = testing::limiter(Policy::default());
//! let layer = LoginRateLimitLayer::new(limiter).with_user(user_fn(|_| Some("alice".to_owned())));
//! let app = layer.layer(service_fn(async |request: Request<String>| {
//!     LoginAttempt::of(request.extensions())?.failed();
//!     Ok::<_, tower_login_rate_limit::MissingLayer>(Response::new(String::new()))
//! }));
//! let guess = || Request::new(String::new()).with_peer([192, 0, 2, 1]);
//!
//! for _ in 0..5 {
//!     let response = app.clone().oneshot(guess()).await?;
//!     testing::assert_admitted(&response);
//! }
//! let response = app.clone().oneshot(guess()).await?;
//! assert_eq!(testing::assert_refused(&response).rule(), Rule::USER_ADDRESS);
//!
//! clock.advance(Duration::from_secs(24 * 60 * 60)); // a day later
//! testing::assert_admitted(&app.oneshot(guess()).await?);
//! # Ok(()) }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! # }
//! ```
//!
//! The module is always there, since it is small and needs nothing; what an app does not call is not part of its
//! program. `docs/testing.md` has an example for axum.

use std::net::{IpAddr, SocketAddr};
#[cfg(feature = "memory")]
use std::sync::Arc;

use http::{Request, Response};

#[cfg(feature = "memory")]
use crate::{LoginLimiter, Policy, clock::ManualClock, store::MemoryStore};
use crate::{Refusal, extract::PeerAddressExtension, response::Denial};

/// A limiter in memory whose time stands still, and the clock that moves it.
#[cfg(feature = "memory")]
#[must_use]
pub fn limiter(policy: Policy) -> (LoginLimiter, Arc<ManualClock>) {
    // Away from zero, so that a test can also set the clock back.
    let clock = Arc::new(ManualClock::at(1_000_000_000_000));
    let store = MemoryStore::new().with_clock(Arc::clone(&clock));
    (LoginLimiter::new(policy, store), clock)
}

/// Requests that come from an address, for `oneshot`.
pub trait RequestExt {
    /// The same request, as if a connection from this address had brought it. For an app behind a proxy this is the
    /// proxy's; the client's is in the header.
    #[must_use]
    fn with_peer(self, peer: impl Into<IpAddr>) -> Self;
}

impl<B> RequestExt for Request<B> {
    fn with_peer(mut self, peer: impl Into<IpAddr>) -> Self {
        let peer = SocketAddr::new(peer.into(), 50_000);
        self.extensions_mut().insert(PeerAddressExtension(peer));
        self
    }
}

/// Asserts that a limit refused the request, and returns the refusal.
///
/// # Panics
///
/// If the request reached its handler, or was denied for another reason.
#[track_caller]
pub fn assert_refused<B>(response: &Response<B>) -> &Refusal {
    let status = response.status();
    let denial = response.extensions().get::<Denial>();
    match denial.map(|denial| (denial.refusal(), denial)) {
        Some((Some(refusal), _)) => refusal,
        Some((None, other)) => {
            panic!("the request was denied, but by no limit: {status}, {other:?}")
        }
        None => panic!(
            "the request was not refused: {status}. Is the layer on this route, and does the handler record \
             `failed()`?"
        ),
    }
}

/// Asserts that the layer has let the request pass, whatever the handler responds.
///
/// # Panics
///
/// If the request was denied: by a limit, or because it lacks an address, for example.
#[track_caller]
pub fn assert_admitted<B>(response: &Response<B>) {
    if let Some(denial) = response.extensions().get::<Denial>() {
        panic!("the request was denied: {}, {denial:?}", response.status());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied() -> Response<()> {
        let mut response = Response::new(());
        response
            .extensions_mut()
            .insert(Denial::new(crate::response::DenialKind::NoUser));
        response
    }

    #[test]
    #[should_panic(expected = "does the handler record `failed()`?")]
    fn a_response_of_the_handler_is_no_refusal() {
        assert_refused(&Response::new(()));
    }

    #[test]
    #[should_panic(expected = "denied, but by no limit")]
    fn a_request_without_a_user_is_not_refused_by_a_limit() {
        assert_refused(&denied());
    }

    #[test]
    #[should_panic(expected = "the request was denied: 200 OK, Denial { kind: NoUser")]
    fn a_denied_request_is_not_admitted() {
        assert_admitted(&denied());
    }
}
