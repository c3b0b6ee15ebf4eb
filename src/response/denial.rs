//! Why a request was denied.

use std::{error::Error, fmt, net::IpAddr};

use bytes::Bytes;
use http::{Response, StatusCode, request::Parts};

use crate::{
    Refusal, ReserveError,
    access::AccessDenied,
    extract::{ExtractError, ExtractErrorKind},
    store::StoreError,
};

/// Why a request did not reach its handler, and whose it was.
///
/// The layer puts it into the extensions of its response, for layers further out:
///
/// ```
/// use tower_login_rate_limit::response::Denial;
///
/// fn was_refused<B>(response: &http::Response<B>) -> bool {
///     response.extensions().get().and_then(Denial::refusal).is_some()
/// }
/// ```
#[derive(Clone)]
pub struct Denial {
    kind: DenialKind,
    address: Option<IpAddr>,
    user: Option<String>,
    identified: Option<String>,
}

/// Why a request did not reach its handler.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DenialKind {
    /// A rule refused the attempt.
    Refused(Refusal),
    /// An access rule denied the request.
    Denied(AccessDenied),
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
    /// A denial of which nothing else is known.
    #[must_use]
    pub const fn new(kind: DenialKind) -> Self {
        Self {
            kind,
            address: None,
            user: None,
            identified: None,
        }
    }

    /// The same for a client at this address.
    #[must_use]
    pub const fn with_address(mut self, address: IpAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// The same for this user, as it was typed.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<Option<String>>) -> Self {
        self.user = user.into().filter(|user| !user.is_empty());
        self
    }

    /// The same for this user, as the app has identified it.
    #[must_use]
    pub fn with_identified(mut self, user: impl Into<Option<String>>) -> Self {
        self.identified = user.into();
        self
    }

    /// Why the request was denied.
    pub const fn kind(&self) -> &DenialKind {
        &self.kind
    }

    /// The refusal, if a rule refused the attempt.
    pub const fn refusal(&self) -> Option<&Refusal> {
        match &self.kind {
            DenialKind::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// The client's address, if it is known.
    pub const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The user as it was typed, if the request names one. Escape it where it is shown: a client sends any text.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The user that the handler has [identified](crate::LoginAttempt::identify), if any. Whether it differs from
    /// the one that was typed shows that an account exists: not for clients.
    pub fn identified(&self) -> Option<&str> {
        self.identified.as_deref()
    }

    /// The HTTP status for this denial.
    pub const fn status(&self) -> StatusCode {
        self.kind.status()
    }

    /// Seconds after which a retry makes sense, rounded up and at least 1; `None` if it never does.
    pub fn retry_after(&self) -> Option<u64> {
        match &self.kind {
            DenialKind::Refused(refusal) => refusal.retry_after(),
            DenialKind::Denied(denied) => denied.retry_after(),
            _ if self.status() == StatusCode::SERVICE_UNAVAILABLE => Some(1),
            _ => None,
        }
    }

    /// A sentence for the client.
    pub fn detail(&self) -> String {
        self.kind.detail()
    }
}

impl DenialKind {
    const fn status(&self) -> StatusCode {
        match self {
            Self::Refused(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Denied(_) => StatusCode::FORBIDDEN,
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

    fn detail(&self) -> String {
        match self {
            Self::Refused(refusal) => refusal.to_string(),
            Self::Denied(denied) => denied.to_string(),
            // Clients need not know what is wrong with the store.
            Self::Undecided(_) | Self::Settled => {
                "this is not possible right now, try again".to_owned()
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
        match &self.kind {
            DenialKind::Undecided(error) => Some(error),
            _ => None,
        }
    }
}

/// Shows no user: logs must not name people.
impl fmt::Debug for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Denial")
            .field("kind", &self.kind)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl From<ReserveError> for DenialKind {
    fn from(error: ReserveError) -> Self {
        match error {
            ReserveError::Refused(refusal) => Self::Refused(refusal),
            ReserveError::Store(error) => Self::Undecided(error),
            ReserveError::Denied(denied) => Self::Denied(denied),
            ReserveError::Settled => Self::Settled,
        }
    }
}

impl From<ReserveError> for Denial {
    fn from(error: ReserveError) -> Self {
        Self::new(error.into())
    }
}

/// Renders a [`Denial`].
///
/// Implemented for closures: `|denial: &Denial, request: &http::request::Parts|
/// http::Response<Bytes>`; within [`respond_fn`] they need no types.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::response::respond_fn;
///
/// let layer = LoginRateLimitLayer::new(limiter).with_responder(respond_fn(|denial, _request| {
///     let mut response = http::Response::new(denial.detail().into());
///     *response.status_mut() = denial.status();
///     response
/// }));
/// ```
///
/// Respond alike for users that exist and users that do not: a denial does not distinguish them, and a
/// responder should not look them up.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not render denials",
    label = "not a `Respond`",
    note = "use `response::respond_fn(|denial, request| …)`, which returns an `http::Response<Bytes>`; in axum, \
            `RespondWith::new(|denial, request| …)` returns anything that is `IntoResponse`"
)]
pub trait Respond: Send + Sync + 'static {
    /// The response in place of the handler's.
    fn respond(&self, denial: &Denial, request: &Parts) -> Response<Bytes>;

    /// What [`respond`](Self::respond) reads of a request. In axum it is kept for each request whose handler takes a
    /// [`LoginAttempt`](crate::LoginAttempt), in case the handler returns a denial; a clone of the whole head, unless a
    /// responder says which part is enough.
    fn keep(&self, request: &Parts) -> Parts {
        request.clone()
    }
}

/// What a responder keeps that does not read the request.
pub(super) fn nothing_kept() -> Parts {
    http::Request::new(()).into_parts().0
}

impl<F> Respond for F
where
    F: Fn(&Denial, &Parts) -> Response<Bytes> + Send + Sync + 'static,
{
    fn respond(&self, denial: &Denial, request: &Parts) -> Response<Bytes> {
        self(denial, request)
    }
}

/// A closure that renders denials. The types of its parameters are inferred.
#[must_use]
pub const fn respond_fn<F>(respond: F) -> F
where
    F: Fn(&Denial, &Parts) -> Response<Bytes> + Send + Sync + 'static,
{
    respond
}
