//! Why a request was denied.

use std::{error::Error, fmt};

use bytes::Bytes;
use http::{Response, StatusCode, request::Parts};

use crate::{
    Refusal, ReserveError,
    extract::{ExtractError, ExtractErrorKind},
    store::StoreError,
};

/// Why a request did not reach its handler.
///
/// The layer puts it into the extensions of its response, for layers further out:
///
/// ```
/// use tower_login_rate_limit::response::Denial;
///
/// fn was_refused<B>(response: &http::Response<B>) -> bool {
///     matches!(response.extensions().get(), Some(Denial::Refused(_)))
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Denial {
    /// A rule refused the attempt.
    Refused(Refusal),
    /// The store could not decide, which has nothing to do with the client.
    Undecided(StoreError),
    /// The attempt was settled before its user was identified.
    Settled,
    /// The client's address is unknown.
    NoAddress(ExtractError),
    /// It is unclear which user the request names.
    AmbiguousUser(ExtractError),
    /// The request names no user. See [`MissingUser::Refuse`](crate::MissingUser::Refuse).
    NoUser,
    /// The body is incomplete, so it is unclear which user the request names.
    BodyBroken,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The body is larger than what may be read to find the user.
    BodyTooLarge {
        /// The number of bytes that may be read.
        limit: usize,
    },
}

/// The sentence for clients of a server that is misconfigured. The log has the cause.
pub(crate) const MISCONFIGURED: &str =
    "logging in is not possible because of an error in the server";

impl Denial {
    /// The HTTP status for this denial.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Refused(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Undecided(_) | Self::Settled => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoAddress(error) | Self::AmbiguousUser(error) => match error.kind() {
                ExtractErrorKind::BadRequest => StatusCode::BAD_REQUEST,
                ExtractErrorKind::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
                ExtractErrorKind::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
                ExtractErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            },
            Self::NoUser | Self::BodyBroken => StatusCode::BAD_REQUEST,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        }
    }

    /// Seconds after which a retry makes sense, rounded up and at least 1; `None` if it never does.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Refused(refusal) => refusal.retry_after(),
            _ if self.status() == StatusCode::SERVICE_UNAVAILABLE => Some(1),
            _ => None,
        }
    }

    /// A sentence for the client.
    pub fn detail(&self) -> String {
        match self {
            Self::Refused(refusal) => refusal.to_string(),
            // Clients need not know what is wrong with the store.
            Self::Undecided(_) | Self::Settled => {
                "logging in is not possible right now, try again".to_owned()
            }
            // Nor how the server is configured.
            Self::NoAddress(error) | Self::AmbiguousUser(error)
                if error.kind() == ExtractErrorKind::Misconfigured =>
            {
                MISCONFIGURED.to_owned()
            }
            Self::NoAddress(error) | Self::AmbiguousUser(error) => error.to_string(),
            Self::NoUser => "the request names no user".to_owned(),
            Self::BodyBroken => "the body broke off".to_owned(),
            Self::BodyTimeout => "the body did not arrive in time".to_owned(),
            Self::BodyTooLarge { limit } => format!("the body may have {limit} bytes at most"),
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail())
    }
}

impl Error for Denial {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Undecided(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ReserveError> for Denial {
    fn from(error: ReserveError) -> Self {
        match error {
            ReserveError::Refused(refusal) => Self::Refused(refusal),
            ReserveError::Store(error) => Self::Undecided(error),
            ReserveError::Settled => Self::Settled,
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
/// use tower_login_rate_limit::response::Denial;
///
/// let layer = LoginRateLimitLayer::new(limiter).with_responder(
///     |denial: &Denial, _: &http::request::Parts| {
///         let mut response = http::Response::new(denial.detail().into());
///         *response.status_mut() = denial.status();
///         response
///     },
/// );
/// ```
///
/// Respond alike for users that exist and users that do not: a denial does not distinguish them, and a
/// responder should not look them up.
pub trait Respond: Send + Sync + 'static {
    /// The response in place of the handler's.
    fn respond(&self, denial: &Denial, request: &Parts) -> Response<Bytes>;
}

impl<F> Respond for F
where
    F: Fn(&Denial, &Parts) -> Response<Bytes> + Send + Sync + 'static,
{
    fn respond(&self, denial: &Denial, request: &Parts) -> Response<Bytes> {
        self(denial, request)
    }
}
