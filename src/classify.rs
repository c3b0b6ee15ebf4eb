//! How an attempt went, if nobody said.

use http::{Method, StatusCode, response::Parts};

use crate::Outcome;

/// Tells from a response how an attempt went, if the handler did not say.
///
/// Implemented for closures: `|method: &http::Method, response: &http::response::Parts| Outcome`.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::Outcome;
///
/// let classify = |_: &http::Method, response: &http::response::Parts| {
///     match response.headers.contains_key("x-logged-in") {
///         true => Outcome::Success,
///         false => Outcome::Failure,
///     }
/// };
/// let layer = LoginRateLimitLayer::new(limiter).with_classifier(classify);
/// ```
pub trait Classify: Send + Sync + 'static {
    /// How it went. `method` is the request's.
    fn classify(&self, method: &Method, response: &Parts) -> Outcome;
}

impl<F> Classify for F
where
    F: Fn(&Method, &Parts) -> Outcome + Send + Sync + 'static,
{
    fn classify(&self, method: &Method, response: &Parts) -> Outcome {
        self(method, response)
    }
}

/// A server error is not an attempt, and neither is what no handler looked at (405, 406, 413, 415);
/// everything else is a failure. The default.
///
/// So forgetting to say how it went can never erase failures: a login page that answers 200 to a
/// wrong password must not count as success.
///
/// ```
/// use http::{Method, Response};
/// use tower_login_rate_limit::{Classify, Outcome, classify::FailureUnlessSaid};
///
/// let (ok, ()) = Response::new(()).into_parts();
/// assert_eq!(FailureUnlessSaid.classify(&Method::POST, &ok), Outcome::Failure);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct FailureUnlessSaid;

impl Classify for FailureUnlessSaid {
    fn classify(&self, _: &Method, response: &Parts) -> Outcome {
        // In gRPC every answer is 200, and the status stands in a header of its own.
        let server_error = match grpc_status(response) {
            Some(status) => is_grpc_server_error(status),
            None => response.status.is_server_error(),
        };
        match server_error || is_unhandled(response.status) {
            true => Outcome::NotAnAttempt,
            false => Outcome::Failure,
        }
    }
}

/// By HTTP status: 2xx is success, 5xx and what no handler looked at is not an attempt, everything
/// else is a failure. `GET`, `HEAD` and `OPTIONS` are never a success: who may look at the login page
/// has not logged in.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::classify::ByStatus;
///
/// let layer = LoginRateLimitLayer::new(limiter).with_classifier(ByStatus);
/// ```
///
/// Right for an endpoint that answers 401 or 403 to a wrong password, and nothing but 2xx to a right
/// one that needs no other factor. A page that answers 200 to a wrong password would reset its own
/// limit with each guess.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByStatus;

impl Classify for ByStatus {
    fn classify(&self, method: &Method, response: &Parts) -> Outcome {
        match response.status.as_u16() {
            _ if is_unhandled(response.status) => Outcome::NotAnAttempt,
            200..=299 if method.is_safe() => Outcome::NotAnAttempt,
            200..=299 if grpc_status(response).is_some_and(|status| status != 0) => {
                Outcome::Failure
            }
            200..=299 => Outcome::Success,
            500.. => Outcome::NotAnAttempt,
            _ => Outcome::Failure,
        }
    }
}

/// By gRPC status, as far as it stands in the response's head: `OK`, or an answer that only begins
/// there, is success; what the server is to blame for is not an attempt; everything else is a failure.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::classify::ByGrpcStatus;
///
/// let layer = LoginRateLimitLayer::new(limiter).with_classifier(ByGrpcStatus);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ByGrpcStatus;

impl Classify for ByGrpcStatus {
    fn classify(&self, _: &Method, response: &Parts) -> Outcome {
        match grpc_status(response) {
            _ if response.status.is_server_error() => Outcome::NotAnAttempt,
            _ if !response.status.is_success() => Outcome::Failure,
            None | Some(0) => Outcome::Success,
            Some(status) if is_grpc_server_error(status) => Outcome::NotAnAttempt,
            Some(_) => Outcome::Failure,
        }
    }
}

/// The status of an answer that consists of nothing else. One that can't be read is none of those
/// that are known.
fn grpc_status(response: &Parts) -> Option<u16> {
    let status = response.headers.get("grpc-status")?;
    let status = status.to_str().ok().and_then(|status| status.parse().ok());
    Some(status.unwrap_or(u16::MAX))
}

/// Whether the router or an extractor answered, before any password was looked at.
fn is_unhandled(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_ACCEPTABLE
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
    )
}

/// `UNKNOWN`, `DEADLINE_EXCEEDED`, `ABORTED`, `UNIMPLEMENTED`, `INTERNAL`, `UNAVAILABLE`, `DATA_LOSS`.
const fn is_grpc_server_error(status: u16) -> bool {
    matches!(status, 2 | 4 | 10 | 12 | 13 | 14 | 15)
}
