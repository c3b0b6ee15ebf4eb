//! Why a request did not reach its handler.

use std::{error::Error, fmt};

use http::{Method, StatusCode, Version, request::Parts};

use super::Refusal;
use crate::{
    ReserveError,
    extract::{AddressError, UserError},
    store::StoreError,
};

/// Why a request did not reach its handler. Also found in the extensions of the response that the
/// layer gave in its place.
///
/// ```
/// use tower_login_rate_limit::refusal::Denial;
///
/// // In a layer further out.
/// fn was_refused<B>(response: &http::Response<B>) -> bool {
///     matches!(response.extensions().get(), Some(Denial::Refused(_)))
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Denial {
    /// A rule refused the attempt.
    Refused(Refusal),
    /// The store could not decide. That says nothing about the client.
    Undecided(StoreError),
    /// It can't be told where the request comes from.
    NoAddress(AddressError),
    /// It can't be told which user the request means.
    AmbiguousUser(UserError),
    /// The body broke off, so it can't be told which user the request means.
    BodyBroken,
    /// The body is larger than what may be read to find the user.
    BodyTooLarge {
        /// How many bytes may be read.
        most: usize,
    },
}

impl Denial {
    /// The HTTP status that says so.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Refused(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Undecided(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoAddress(error) if !error.is_bad_request() => StatusCode::INTERNAL_SERVER_ERROR,
            Self::AmbiguousUser(error) if error.is_unavailable() => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoAddress(_) | Self::AmbiguousUser(_) | Self::BodyBroken => {
                StatusCode::BAD_REQUEST
            }
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        }
    }

    /// Seconds after which it makes sense to come again: rounded up, at least 1; `None` if never, or
    /// if time does not help.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Refused(refusal) => refusal.retry_after(),
            Self::Undecided(_) => Some(1),
            Self::AmbiguousUser(error) if error.is_unavailable() => Some(1),
            _ => None,
        }
    }

    /// What the client is told, in a sentence.
    pub fn detail(&self) -> String {
        match self {
            Self::Refused(refusal) => refusal.to_string(),
            // What is wrong with the store is nobody else's business.
            Self::Undecided(_) => "logging in is not possible right now, try again".to_owned(),
            Self::NoAddress(error) => error.to_string(),
            Self::AmbiguousUser(error) => error.to_string(),
            Self::BodyBroken => "the body broke off".to_owned(),
            Self::BodyTooLarge { most } => format!("the body may have {most} bytes at most"),
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail())
    }
}

impl Error for Denial {}

impl From<ReserveError> for Denial {
    fn from(error: ReserveError) -> Self {
        match error {
            ReserveError::Refused(refusal) => Self::Refused(refusal),
            ReserveError::Store(error) => Self::Undecided(error),
        }
    }
}

/// Renders a [`Denial`].
///
/// Implemented for closures: `|denial: &Denial, request: &http::request::Parts|
/// http::Response<Bytes>`.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::refusal::Denial;
///
/// let layer = LoginRateLimitLayer::new(limiter).with_response(
///     |denial: &Denial, _: &http::request::Parts| {
///         let mut response = http::Response::new(denial.detail().into());
///         *response.status_mut() = denial.status();
///         response
///     },
/// );
/// ```
///
/// Answer alike for users that exist and users that do not: a denial knows no difference, and its
/// rendering should look none up.
pub trait Respond: Send + Sync + 'static {
    /// The response in place of the handler's.
    fn respond(&self, denial: &Denial, request: &Parts) -> http::Response<bytes::Bytes>;
}

impl<F> Respond for F
where
    F: Fn(&Denial, &Parts) -> http::Response<bytes::Bytes> + Send + Sync + 'static,
{
    fn respond(&self, denial: &Denial, request: &Parts) -> http::Response<bytes::Bytes> {
        self(denial, request)
    }
}

/// gRPC to who speaks gRPC, by the request's content type over HTTP/2, and [`ProblemJson`](super::ProblemJson) to
/// everybody else. The default.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::refusal::ByContentType;
///
/// let layer = LoginRateLimitLayer::new(limiter).with_response(ByContentType); // as it is by default
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ByContentType;

impl Respond for ByContentType {
    fn respond(&self, denial: &Denial, request: &Parts) -> http::Response<bytes::Bytes> {
        match is_grpc(request) {
            true => super::GrpcStatus.respond(denial, request),
            false => super::ProblemJson.respond(denial, request),
        }
    }
}

/// Whether a gRPC client is on the other end: to others an answer with status 200 would look like
/// success.
fn is_grpc(request: &Parts) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let content_type = request.headers.get(http::header::CONTENT_TYPE);
    let Some((kind, rest)) = content_type.and_then(|t| t.as_bytes().split_at_checked(GRPC.len()))
    else {
        return false;
    };
    kind.eq_ignore_ascii_case(GRPC)
        && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
        && request.method == Method::POST
        && request.version == Version::HTTP_2
}
