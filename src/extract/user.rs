//! The user that is being logged in, from the head of a request.

use std::{error::Error, fmt};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderName, header::AUTHORIZATION, request::Parts};

use crate::Answer;

/// What was found of a user: nobody, somebody, or something that must not be guessed at.
pub(crate) type Extracted = Result<Option<String>, UserError>;

/// Finds the user that a request wants to log in, without its body.
///
/// Implemented for closures: `|parts: &http::request::Parts| Option<String>`. See [`FromAsync`] for
/// those that have to ask somebody, and [`ExtractBodyUser`](super::ExtractBodyUser) for users that
/// are named in the body.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// // The last part of the path.
/// let user = |parts: &http::request::Parts| -> Option<String> {
///     parts.uri.path().rsplit('/').next().map(str::to_owned)
/// };
/// let layer = LoginRateLimitLayer::new(limiter).with_user(user);
/// ```
///
/// If there is none, rules with a user do not apply until the handler
/// [identifies](crate::LoginAttempt::identify) one. Trimming, Unicode forms and case are the limiter's
/// business.
pub trait ExtractUser: Send + Sync + 'static {
    /// The user, if there is one.
    fn extract_user(&self, request: &Parts) -> Answer<Result<Option<String>, UserError>>;
}

impl<F> ExtractUser for F
where
    F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
{
    fn extract_user(&self, request: &Parts) -> Answer<Extracted> {
        Answer::now(Ok(self(request)))
    }
}

/// It can't be told which user a request means, because it names several, say. The request is
/// refused: the handler might choose another one than was counted.
///
/// ```
/// use tower_login_rate_limit::extract::UserError;
///
/// assert!(UserError::unavailable("the session store is away").is_unavailable());
/// assert!(!UserError::new("two users are named").is_unavailable());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserError {
    message: &'static str,
    unavailable: bool,
}

impl UserError {
    /// The request is to blame: this is wrong with it.
    pub const fn new(message: &'static str) -> Self {
        Self {
            message,
            unavailable: false,
        }
    }

    /// Whoever should know can't be asked right now.
    pub const fn unavailable(message: &'static str) -> Self {
        Self {
            message,
            unavailable: true,
        }
    }

    /// Whether it may be different a moment later.
    pub const fn is_unavailable(&self) -> bool {
        self.unavailable
    }
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message)
    }
}

impl Error for UserError {}

/// No user until the handler names one.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::extract::NoUser;
///
/// let layer = LoginRateLimitLayer::new(limiter).with_user(NoUser); // as it is by default
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NoUser;

impl ExtractUser for NoUser {
    fn extract_user(&self, _: &Parts) -> Answer<Extracted> {
        Answer::now(Ok(None))
    }
}

/// The user in a header.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::extract::Header;
///
/// let user = Header(http::HeaderName::from_static("x-user"));
/// let layer = LoginRateLimitLayer::new(limiter).with_user(user);
/// ```
#[derive(Clone, Debug)]
pub struct Header(pub HeaderName);

impl ExtractUser for Header {
    fn extract_user(&self, request: &Parts) -> Answer<Extracted> {
        let value = only_header(request, &self.0);
        Answer::now(value.map(|value| value.map(str::to_owned)))
    }
}

/// The user of HTTP basic authentication.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::extract::BasicAuth;
///
/// let layer = LoginRateLimitLayer::new(limiter).with_user(BasicAuth);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct BasicAuth;

impl ExtractUser for BasicAuth {
    fn extract_user(&self, request: &Parts) -> Answer<Extracted> {
        // What begins like it and can't be read is nobody to us, and might be somebody to the handler.
        let user = |value: &str| {
            let Some((scheme, rest)) = value.trim().split_at_checked("basic".len()) else {
                return Ok(None);
            };
            if !scheme.eq_ignore_ascii_case("basic") {
                return Ok(None);
            }
            let decoded = BASE64_STANDARD.decode(rest.trim()).ok();
            decoded
                .and_then(|decoded| String::from_utf8(decoded).ok())
                .and_then(|decoded| Some(decoded.split(':').next()?.to_owned()))
                .map(Some)
                .ok_or(UserError::new("the credentials can't be read"))
        };
        let value = only_header(request, &AUTHORIZATION);
        Answer::now(value.and_then(|value| value.map_or(Ok(None), user)))
    }
}

/// The value of a header that may be there once.
fn only_header<'a>(request: &'a Parts, name: &HeaderName) -> Result<Option<&'a str>, UserError> {
    let mut values = request.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => str::from_utf8(value.as_bytes())
            .map(Some)
            .map_err(|_| UserError::new("the header that names the user can't be read")),
        (Some(_), Some(_)) => Err(UserError::new(
            "the header that names the user is there twice",
        )),
    }
}

/// The user in the query of the URL.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::extract::QueryField;
///
/// let layer = LoginRateLimitLayer::new(limiter).with_user(QueryField("user".to_owned()));
/// ```
#[derive(Clone, Debug)]
pub struct QueryField(pub String);

impl ExtractUser for QueryField {
    fn extract_user(&self, request: &Parts) -> Answer<Extracted> {
        let query = request.uri.query().unwrap_or_default();
        Answer::now(only_field(query.as_bytes(), &self.0))
    }
}

/// The value of a field that may be there once, in URL encoding.
pub(super) fn only_field(encoded: &[u8], name: &str) -> Extracted {
    let mut values = form_urlencoded::parse(encoded).filter(|(field, _)| field == name);
    match (values.next(), values.next()) {
        (value, None) => Ok(value.map(|(_, value)| value.into_owned())),
        (_, Some(_)) => Err(UserError::new(
            "the field that names the user is there twice",
        )),
    }
}

/// A user that has to be asked for, from a session store, say.
///
/// ```
/// use tower_login_rate_limit::extract::{FromAsync, UserError};
///
/// let user = FromAsync(|parts: &http::request::Parts| {
///     let session = parts.headers.get("session").cloned();
///     async move {
///         let Some(session) = session else {
///             return Ok(None);
///         };
///         look_up(session).await.map_err(|_| UserError::unavailable("no sessions right now"))
///     }
/// });
/// # async fn look_up(session: http::HeaderValue) -> Result<Option<String>, ()> { Ok(None) }
/// ```
#[derive(Clone)]
pub struct FromAsync<F>(pub F);

impl<F, Fut> ExtractUser for FromAsync<F>
where
    F: Fn(&Parts) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Option<String>, UserError>> + Send + 'static,
{
    fn extract_user(&self, request: &Parts) -> Answer<Extracted> {
        Answer::later((self.0)(request))
    }
}

impl<F> fmt::Debug for FromAsync<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromAsync").finish_non_exhaustive()
    }
}
