//! The HTTP API: decisions for logins in any language, and what operators do.
//!
//! [`Server`] makes an axum router of a limiter. A login backend in PHP, Java or Python reserves an attempt before it
//! checks a password, and reports the outcome afterwards; nginx and Envoy ask without any code. Operators list,
//! explain and lift blocks and change rules. `docs/http-api.md` has the requests, with examples, and
//! `/v1/openapi.json` describes all of them.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tower_login_rate_limit::server::{Role, Server, Tokens};
//! use tower_login_rate_limit::{LoginLimiter, Policy, event::Feed, store::MemoryStore};
//!
//! let feed = Feed::new(10_000);
//! let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new()).with_observer(feed.clone());
//! # let [shop, alice] = ["3f786850e387550fdab836ed7e6dc881", "89e6c98d92887913cadf06b2adb97f26"];
//! let tokens = Tokens::new()
//!     .with_token("shop", shop, [Role::Decide])?
//!     .with_token("alice@ops", alice, [Role::Operate])?;
//! let app = Server::new(limiter, tokens)?.with_feed(feed).router();
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let url = format!("http://{}/v1", listener.local_addr()?);
//! tokio::spawn(async move { axum::serve(listener, app).await });
//!
//! let client = reqwest::Client::new();
//! let login = serde_json::json!({"address": "192.0.2.1", "user": "alice"});
//! let request = client.post(format!("{url}/attempts")).bearer_auth(shop).json(&login);
//! let decision: serde_json::Value = request.send().await?.json().await?;
//! assert_eq!((&decision["admitted"], &decision["remaining"]), (&true.into(), &4.into()));
//!
//! // The password is wrong.
//! let token = decision["token"].as_str().ok_or("a token")?;
//! let outcome = serde_json::json!({"outcome": "failure"});
//! let request = client.post(format!("{url}/attempts/{token}/outcome")).bearer_auth(shop).json(&outcome);
//! assert_eq!(request.send().await?.status(), 200);
//! # Ok(()) }
//! # tokio::runtime::Runtime::new()?.block_on(example())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Rules
//!
//! 1. **A server can't be made without authorization.** [`Tokens`], or any [`Authorize`] of the app, finds the
//!    [`Operator`] of each request; its [roles](Role) permit a kind of route each.
//! 2. **A refusal is an answer**, with the status 200. Any other status means that nothing was decided, and no password
//!    must be checked; at 503 the request can be repeated.
//! 3. **The token of an attempt is sealed.** It holds the caller, so that any instance with the same
//!    [secret](Server::with_secret) settles it, and no other party can read or forge one.
//! 4. **An outcome counts once.** For a token that is unknown, settled or over its lease it is an error, and changes
//!    nothing. At two instances two outcomes may both be written, if they arrive within a millisecond or so, or if the
//!    store can't tell: it is one failure at most. An attempt that is never settled is a failure when its lease ends.
//! 5. **Every change has an author**: the name of the operator, and a reason that the request gives.
//!
//! # Caveats
//!
//! It has no TLS and no limit of its own: put it into a network that only backends and operators reach, or behind a
//! proxy. A client with the role [`Decide`](Role::Decide) names the client's address, and must find it as carefully as
//! [`ForwardedAddress`](crate::extract::ForwardedAddress) does.

mod attempt_token;
mod attempts;
mod auth_request;
mod authorize;
mod decision;
mod extract;
mod idempotency;
mod openapi;
mod operate;
mod outcomes;
mod policies;
mod problem;
mod routes;
mod schema;
mod second_factor;
mod settle;
mod shares;
mod tokens;

use std::{fmt, sync::Arc};

use axum::Router;
use tokio::sync::Semaphore;

pub use authorize::{
    Authorize, AuthorizeFn, AuthorizeFuture, Operator, Role, Unauthorized, authorize_fn,
};
pub use tokens::Tokens;

use self::{
    attempt_token::AttemptSealer, idempotency::Keys, outcomes::Outcomes, policies::Policies,
    second_factor::SecondFactor, shares::Shares,
};
use crate::{
    LoginLimiter, Token,
    admin::{Admin, AdminError},
    clock::{Clock, SystemClock},
    event::{Feed, Sealer, SecretError, derive_key},
    logging::Sampled,
};

/// Makes the HTTP API of a limiter. See the [module](self).
#[derive(Debug)]
#[must_use = "a server does nothing until its router is served"]
pub struct Server(Inner);

/// What all requests share.
type Shared = Arc<Inner>;

struct Inner {
    limiter: LoginLimiter,
    admin: Admin,
    authorize: Box<dyn Authorize>,
    feed: Option<Feed>,
    /// Opens users that are sealed in events and lists.
    users: Option<Sealer>,
    sealer: AttemptSealer,
    keys: Keys,
    outcomes: Outcomes,
    second_factor: SecondFactor,
    policies: Policies,
    /// Held by streams of events.
    streams: Arc<Shares>,
    /// Held by the preview that is computed.
    previews: Arc<Semaphore>,
    /// Held while rulesets are checked and access rules are tried.
    checks: Arc<Semaphore>,
    /// Held by searches for events.
    searches: Arc<Semaphore>,
    /// Held by exports of events, until the last one is written.
    exports: Arc<Shares>,
    unauthorized: Sampled,
    /// The system's. Tests set it.
    clock: Arc<dyn Clock>,
}

impl Server {
    /// The API of this limiter, for whom this authorizes.
    ///
    /// # Errors
    ///
    /// If the limiter's store can't be operated.
    pub fn new(limiter: LoginLimiter, authorize: impl Authorize) -> Result<Self, AdminError> {
        // Two UUIDs have 244 random bits.
        let secret = [Token::new(), Token::new()].map(|token| *token.as_bytes());
        let secret = secret.as_flattened();
        let policies = Policies::default();
        // Also if this instance reserves nothing before it changes, it settles what others have reserved.
        policies.id(limiter.version(), &limiter.policy());
        Ok(Self(Inner {
            admin: limiter.admin()?,
            limiter,
            authorize: Box::new(authorize),
            feed: None,
            users: None,
            sealer: AttemptSealer::new(secret),
            keys: Keys::new(secret),
            outcomes: Outcomes::default(),
            second_factor: SecondFactor::new(),
            policies,
            streams: Arc::new(Shares::new(operate::live::MAX_STREAMS)),
            previews: Arc::new(Semaphore::new(1)),
            checks: Arc::new(Semaphore::new(operate::MAX_CHECKS)),
            searches: Arc::new(Semaphore::new(operate::events::MAX_SEARCHES)),
            exports: Arc::new(Shares::new(operate::events::MAX_EXPORTS)),
            unauthorized: Sampled::default(),
            clock: Arc::new(SystemClock),
        }))
    }

    /// Seals the tokens of attempts with this secret, the same on each instance. A random one unless set: another
    /// instance, or this one after a restart, then settles no attempt of this one.
    ///
    /// # Errors
    ///
    /// The secret has fewer than 16 bytes.
    pub fn with_secret(mut self, secret: impl AsRef<[u8]>) -> Result<Self, SecretError> {
        let secret = derive_key("tower-login-rate-limit server v1", secret.as_ref())?;
        self.0.sealer = AttemptSealer::new(&secret);
        self.0.keys = Keys::new(&secret);
        Ok(self)
    }

    /// Lists and streams the events of this feed, which observes the limiter, or follows the stream of a fleet. Without
    /// one these routes respond with 404.
    pub fn with_feed(mut self, feed: Feed) -> Self {
        self.0.feed = Some(feed);
        self
    }

    /// Shows users that are [sealed](crate::event::UserDisplay::sealed) in clear to operators.
    pub fn with_sealer(mut self, sealer: Sealer) -> Self {
        self.0.users = Some(sealer);
        self
    }

    /// The routes, all below `/v1/`: to be served, or nested in an app.
    ///
    /// It has a fallback of its own, so that every error is problem+json: an app with a fallback nests it rather than
    /// merging it.
    pub fn router(self) -> Router {
        routes::router(Arc::new(self.0))
    }
}

/// Without the secrets.
impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("limiter", &self.limiter)
            .field("feed", &self.feed)
            .finish_non_exhaustive()
    }
}
