//! Who may do what.

use std::{fmt, pin::Pin};

use http::request::Parts;
use serde::Deserialize;

/// What [`Authorize::authorize`] returns.
pub type AuthorizeFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Operator, Unauthorized>> + Send + 'a>>;

/// Identifies who sends a request, and what they may do. [`Tokens`](super::Tokens) is one; [`authorize_fn`] makes one
/// of a closure.
///
/// It is called for each request but that for the OpenAPI document, and for a stream of events again and again: the
/// stream ends when the answer changes.
pub trait Authorize: Send + Sync + 'static {
    /// The operator that sends this request.
    fn authorize<'a>(&'a self, request: &'a Parts) -> AuthorizeFuture<'a>;
}

/// Authorizes with a closure, which reads what it needs from the head of the request and returns a future.
///
/// ```
/// use http::request::Parts;
/// use tower_login_rate_limit::server::{Operator, Role, Unauthorized, authorize_fn};
/// # #[derive(Clone)] struct Sessions;
/// # impl Sessions { async fn admin(&self, _cookie: Option<http::HeaderValue>) -> Option<String> { None } }
/// # let sessions = Sessions;
///
/// let authorize = authorize_fn(move |request: &Parts| {
///     let (sessions, cookie) = (sessions.clone(), request.headers.get("cookie").cloned());
///     async move {
///         let name = sessions.admin(cookie).await.ok_or(Unauthorized::Unknown)?;
///         Ok(Operator::new(name, [Role::Operate]))
///     }
/// });
/// # fn is_authorize(_: impl tower_login_rate_limit::server::Authorize) {}
/// # is_authorize(authorize);
/// ```
pub fn authorize_fn<F, Fut>(authorize: F) -> AuthorizeFn<F>
where
    F: Fn(&Parts) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Operator, Unauthorized>> + Send + 'static,
{
    AuthorizeFn(authorize)
}

/// Authorizes with a closure. See [`authorize_fn`].
#[derive(Clone)]
pub struct AuthorizeFn<F>(F);

impl<F, Fut> Authorize for AuthorizeFn<F>
where
    F: Fn(&Parts) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Operator, Unauthorized>> + Send + 'static,
{
    fn authorize<'a>(&'a self, request: &'a Parts) -> AuthorizeFuture<'a> {
        Box::pin((self.0)(request))
    }
}

impl<F> fmt::Debug for AuthorizeFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorizeFn").finish_non_exhaustive()
    }
}

/// To choose at run time, or to share one.
impl<A: Authorize + ?Sized> Authorize for std::sync::Arc<A> {
    fn authorize<'a>(&'a self, request: &'a Parts) -> AuthorizeFuture<'a> {
        (**self).authorize(request)
    }
}

/// What an operator may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// Reserve attempts and report their outcomes: a login backend. Reads and changes nothing else.
    Decide,
    /// See blocks, events and rules, with users in clear where the server can [open](super::Server::with_sealer) them.
    Read,
    /// Lift blocks and change rules. Includes [`Read`](Self::Read).
    Operate,
}

impl Role {
    /// The name in files and answers: `decide`, `read` or `operate`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Decide => "decide",
            Self::Read => "read",
            Self::Operate => "operate",
        }
    }
}

/// Who sends a request: a name for the audit, and roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    name: Box<str>,
    roles: Vec<Role>,
}

impl Operator {
    /// An operator with this name and these roles.
    ///
    /// The name is recorded with each change, so it must come from the authentication. A name that can't be recorded,
    /// since it is blank, too long or has control characters, may read and decide, and change nothing.
    #[must_use]
    pub fn new(name: impl Into<String>, roles: impl IntoIterator<Item = Role>) -> Self {
        Self {
            name: name.into().into(),
            roles: roles.into_iter().collect(),
        }
    }

    /// Who.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What they may do, as it was given.
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// Whether they may do this.
    #[must_use]
    pub fn may(&self, role: Role) -> bool {
        let is_included =
            |own: &Role| *own == role || (*own == Role::Operate && role == Role::Read);
        self.roles.iter().any(is_included)
    }
}

/// Why a request has no operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unauthorized {
    /// The request does not show who sends it, or shows it wrongly: status 401.
    Unknown,
    /// That can't be verified at present: status 503.
    Unavailable,
}

impl fmt::Display for Unauthorized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "the request shows no valid authorization",
            Self::Unavailable => "the authorization can't be verified at present",
        })
    }
}

impl std::error::Error for Unauthorized {}
