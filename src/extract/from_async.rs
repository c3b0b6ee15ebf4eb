//! Users that have to be awaited.

use std::fmt;

use bytes::Bytes;
use http::request::Parts;

use super::{ExtractBodyUser, ExtractError, ExtractUser, user::Extracted};
use crate::MaybeReady;

/// A user that has to be awaited, for example from a session store.
///
/// The closure copies what it needs of the request, since its future does not borrow:
///
/// ```
/// use tower_login_rate_limit::extract::{ExtractError, FromAsync};
///
/// # async fn user_of_session(session: http::HeaderValue) -> Result<Option<String>, std::io::Error> { Ok(None) }
/// let by_session = FromAsync::new(|request| {
///     let session = request.headers.get("session").cloned();
///     async {
///         let Some(session) = session else { return Ok(None) };
///         let user = user_of_session(session).await;
///         user.map_err(|_| ExtractError::unavailable("the session store is unavailable"))
///     }
/// });
/// ```
#[derive(Clone)]
pub struct FromAsync<F> {
    look_up: F,
}

impl<F> FromAsync<F> {
    /// The user that the future of this closure returns, for
    /// [`with_user`](crate::LoginRateLimitLayer::with_user).
    #[must_use]
    pub const fn new<Fut>(look_up: F) -> Self
    where
        F: Fn(&Parts) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Option<String>, ExtractError>> + Send + 'static,
    {
        Self { look_up }
    }

    /// The user that the future of this closure returns, which also receives the body, for
    /// [`with_body_user`](crate::LoginRateLimitLayer::with_body_user).
    ///
    /// ```
    /// use tower_login_rate_limit::extract::FromAsync;
    ///
    /// # async fn user_of_token(token: &str) -> Option<String> { None }
    /// // The body is a token of which the database knows the user.
    /// let by_token = FromAsync::in_body(|_request, body| async move {
    ///     match str::from_utf8(&body) {
    ///         Ok(token) => Ok(user_of_token(token).await),
    ///         Err(_) => Ok(None),
    ///     }
    /// });
    /// ```
    #[must_use]
    pub const fn in_body<Fut>(look_up: F) -> Self
    where
        F: Fn(&Parts, Bytes) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Option<String>, ExtractError>> + Send + 'static,
    {
        Self { look_up }
    }
}

impl<F, Fut> ExtractUser for FromAsync<F>
where
    F: Fn(&Parts) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Extracted> + Send + 'static,
{
    fn extract_user(&self, request: &Parts) -> MaybeReady<Extracted> {
        MaybeReady::pending((self.look_up)(request))
    }
}

impl<F, Fut> ExtractBodyUser for FromAsync<F>
where
    F: Fn(&Parts, Bytes) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Extracted> + Send + 'static,
{
    fn extract_user(&self, request: &Parts, body: &Bytes) -> MaybeReady<Extracted> {
        MaybeReady::pending((self.look_up)(request, body.clone()))
    }
}

impl<F> fmt::Debug for FromAsync<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromAsync").finish_non_exhaustive()
    }
}
