//! Outcomes of attempts whose handler has recorded none.

use http::{HeaderMap, HeaderName, Method, StatusCode, header::CONTENT_TYPE, response::Parts};

use crate::Outcome;

/// Derives the outcome of an attempt from its response, if the handler has recorded none.
///
/// Implemented for closures: `|method: &http::Method, response: &http::response::Parts| Outcome`.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::Outcome;
///
/// let classifier = |_: &http::Method, response: &http::response::Parts| {
///     if response.headers.contains_key("x-logged-in") {
///         Outcome::Success
///     } else {
///         Outcome::Failure
///     }
/// };
/// let layer = LoginRateLimitLayer::new(limiter).with_classifier(classifier);
/// ```
pub trait Classify: Send + Sync + 'static {
    /// The outcome of the attempt with this request method and this response.
    fn classify(&self, method: &Method, response: &Parts) -> Outcome;

    /// Whether the outcome is in the trailers, which follow the body of this response. The attempt then
    /// remains in flight until the trailers are sent, and [`classify`](Self::classify) is not called.
    fn awaits_trailers(&self, _method: &Method, _response: &Parts) -> bool {
        false
    }

    /// The outcome of the attempt whose response has these trailers, or ended without any. A response that
    /// is dropped before its end is a failure.
    fn classify_trailers(&self, _trailers: Option<&HeaderMap>) -> Outcome {
        Outcome::Failure
    }
}

impl<F> Classify for F
where
    F: Fn(&Method, &Parts) -> Outcome + Send + Sync + 'static,
{
    fn classify(&self, method: &Method, response: &Parts) -> Outcome {
        self(method, response)
    }
}

/// The default: a server error is not an attempt, nor is a response of the router, an extractor or another
/// layer in place of the handler (405, 406, 408, 413, 415, 429); everything else is a failure.
///
/// The layer also knows the user, and what the handler does with its [`LoginAttempt`](crate::LoginAttempt).
/// Without a user, the response to a `GET`, `HEAD` or `OPTIONS` is not an attempt unless it is 401 or 403. A
/// `GET` that checks a secret, such as a link with a code, must record its outcome. Without a user, 422 is not an
/// attempt either if the handler takes the `LoginAttempt` and no method of it was called: it is how axum rejects a body
/// without the field, after the attempt was extracted and before the handler runs. So **a handler that responds
/// with 422 to a wrong password must record it**, or name the user first; the log states once that a 422 was not
/// counted.
///
/// A response with a [`Denial`](crate::response::Denial) in its extensions, from a layer further in, is not an
/// attempt under any classifier.
///
/// So a handler that forgets to record an outcome can never erase failures: a login page that responds
/// with 200 to a wrong password must not count as success.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailureByDefault;

impl Classify for FailureByDefault {
    fn classify(&self, _: &Method, response: &Parts) -> Outcome {
        // In gRPC the HTTP status is 200, and a header has the status of the call.
        let is_unchecked = match grpc_status(response) {
            Some(status) => is_grpc_unchecked(status),
            None => response.status.is_server_error(),
        };
        if is_unchecked || is_unhandled(response.status) {
            Outcome::NotAnAttempt
        } else {
            Outcome::Failure
        }
    }
}

/// By HTTP status: 2xx is a success; 5xx, 405, 406, 408, 413, 415 and 429 are not an attempt; everything
/// else is a failure. `GET`, `HEAD` and `OPTIONS` are never a success: loading the login page is not logging
/// in. Of a gRPC response with 2xx the status of the call decides, as with [`ByGrpcStatus`].
///
/// 422 is a failure if a user is known, or a method of the [`LoginAttempt`](crate::LoginAttempt) was called. Otherwise
/// the layer takes it for the response of an extractor that rejects a body, which is not an attempt, and logs so
/// once.
///
/// **A redirect is a failure**, also after a correct password: many forms redirect after a wrong one too, and the
/// two can't be told apart. A handler that redirects has to record its outcomes.
///
/// For an endpoint that responds with 401 or 403 to a wrong password, and with 2xx only to a correct one
/// that needs no other factor. A page that responds with 200 to a wrong password would reset its own
/// limit with every guess.
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

    fn awaits_trailers(&self, _: &Method, response: &Parts) -> bool {
        is_grpc(response) && status_follows(response)
    }

    fn classify_trailers(&self, trailers: Option<&HeaderMap>) -> Outcome {
        ByGrpcStatus.classify_trailers(trailers)
    }
}

/// By the gRPC status: `OK` is a success; an error that is the server's (`DEADLINE_EXCEEDED`, `UNIMPLEMENTED`,
/// `INTERNAL`, `UNAVAILABLE`, `DATA_LOSS`), or `RESOURCE_EXHAUSTED`, is not an attempt; everything else is a failure.
/// So is `UNKNOWN`, which may stand for any error, a wrong password included.
///
/// In gRPC-Web the status is in the body, which is not read, so every response is a failure: put the layer inside of
/// the one that translates, where responses are gRPC.
///
/// A response with a message has its status in trailers. The attempt is then in flight until the trailers are
/// sent, and the trailers are sent when it is settled. A response that ends without a status, or is dropped
/// before its end, is a failure: a client could else close the stream ahead of the status. In a stream that
/// lasts longer than the lease of an attempt, the handler should record the outcome.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByGrpcStatus;

impl Classify for ByGrpcStatus {
    fn classify(&self, _: &Method, response: &Parts) -> Outcome {
        match response.status {
            status if status.is_server_error() => Outcome::NotAnAttempt,
            status if !status.is_success() => Outcome::Failure,
            _ => by_grpc_status(grpc_status(response)),
        }
    }

    fn awaits_trailers(&self, _: &Method, response: &Parts) -> bool {
        status_follows(response)
    }

    fn classify_trailers(&self, trailers: Option<&HeaderMap>) -> Outcome {
        by_grpc_status(trailers.and_then(grpc_status_in))
    }
}

/// A call without a status is a failure.
const fn by_grpc_status(status: Option<u16>) -> Outcome {
    match status {
        Some(0) => Outcome::Success,
        Some(status) if is_grpc_unchecked(status) => Outcome::NotAnAttempt,
        Some(_) | None => Outcome::Failure,
    }
}

/// Whether the status of a gRPC call follows in trailers.
fn status_follows(response: &Parts) -> bool {
    response.status.is_success() && grpc_status(response).is_none()
}

fn is_grpc(response: &Parts) -> bool {
    let content_type = response.headers.get(CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The gRPC status in the headers, as in responses without a message. An unreadable one is `u16::MAX`.
#[inline]
fn grpc_status(response: &Parts) -> Option<u16> {
    if response.headers.is_empty() {
        return None;
    }
    grpc_status_in(&response.headers)
}

fn grpc_status_in(headers: &HeaderMap) -> Option<u16> {
    let status = headers.get(GRPC_STATUS)?;
    let status = status.to_str().ok().and_then(|status| status.parse().ok());
    Some(status.unwrap_or(u16::MAX))
}

/// Whether the router, an extractor or another layer has responded, before any password was checked.
fn is_unhandled(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_ACCEPTABLE
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
    )
}

/// `DEADLINE_EXCEEDED`, `RESOURCE_EXHAUSTED` (as HTTP's 429), `UNIMPLEMENTED`, `INTERNAL`, `UNAVAILABLE`, `DATA_LOSS`.
const fn is_grpc_unchecked(status: u16) -> bool {
    matches!(status, 4 | 8 | 12 | 13 | 14 | 15)
}
