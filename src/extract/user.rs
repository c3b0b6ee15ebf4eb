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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserError(&'static str);

impl UserError {
    /// What is wrong with the request.
    pub const fn new(message: &'static str) -> Self {
        Self(message)
    }
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for UserError {}

/// No user until the handler names one.
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
        let user = |value: &str| {
            let (scheme, credentials) = value.split_once(' ')?;
            if !scheme.eq_ignore_ascii_case("basic") {
                return None;
            }
            let decoded = BASE64_STANDARD.decode(credentials.trim()).ok()?;
            let user = decoded.split(|byte| *byte == b':').next()?;
            Some(String::from_utf8_lossy(user).into_owned())
        };
        Answer::now(only_header(request, &AUTHORIZATION).map(|value| value.and_then(user)))
    }
}

/// The value of a header that may be there once.
fn only_header<'a>(request: &'a Parts, name: &HeaderName) -> Result<Option<&'a str>, UserError> {
    let mut values = request.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value
            .to_str()
            .map(Some)
            .map_err(|_| UserError("the header that names the user can't be read")),
        (Some(_), Some(_)) => Err(UserError("the header that names the user is there twice")),
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
        (_, Some(_)) => Err(UserError("the field that names the user is there twice")),
    }
}

/// A user that has to be asked for, from a session store, say.
///
/// ```
/// use tower_login_rate_limit::extract::FromAsync;
///
/// let user = FromAsync(|parts: &http::request::Parts| {
///     let session = parts.headers.get("session").cloned();
///     async move {
///         let session = session?;
///         Some(look_up(session).await)
///     }
/// });
/// # async fn look_up(session: http::HeaderValue) -> String { String::new() }
/// ```
#[derive(Clone)]
pub struct FromAsync<F>(pub F);

impl<F, Fut> ExtractUser for FromAsync<F>
where
    F: Fn(&Parts) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Option<String>> + Send + 'static,
{
    fn extract_user(&self, request: &Parts) -> Answer<Extracted> {
        let user = (self.0)(request);
        Answer::later(async move { Ok(user.await) })
    }
}

impl<F> fmt::Debug for FromAsync<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromAsync").finish_non_exhaustive()
    }
}
