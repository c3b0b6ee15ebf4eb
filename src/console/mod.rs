//! The web console: what happens at the login, which blocks are in force and why, and the rules.
//!
//! A [`Console`] is a page on the [HTTP API](crate::server), and a client of it: it reads and changes nothing in
//! another way. Its router is nested at any path.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::Router;
//! use tower_login_rate_limit::{
//!     LoginLimiter, Policy, console::Console, event::Feed, server::{Role, Server, Tokens}, store::MemoryStore,
//! };
//!
//! let feed = Feed::new(10_000);
//! let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new()).with_observer(feed.clone()).live().await?;
//! # let secret = "89e6c98d92887913cadf06b2adb97f26";
//! let tokens = Tokens::new().with_token("alice@ops", secret, [Role::Operate])?;
//! let server = Server::new(limiter, tokens)?.with_feed(feed);
//!
//! let app: Router = Router::new().nest("/console", Console::new(server).router());
//! # Ok(()) }
//! # tokio::runtime::Runtime::new()?.block_on(example())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Serve it with `into_make_service_with_connect_info::<SocketAddr>()`: its login is limited by address.
//!
//! # Who is let in
//!
//! By default an operator logs in with a token, which the server's [`Authorize`](crate::server::Authorize) verifies as
//! a bearer token. The browser receives a session cookie and never the token again; each request of the session is
//! authorized anew, so that a token which is withdrawn ends its sessions. The login is guarded by this crate's own
//! [layer](crate::LoginRateLimitLayer).
//!
//! An app whose administrators are logged in already uses [`Console::without_login`]: `Authorize` then sees the
//! requests of the browser as they are, with the cookies and extensions of the app.
//!
//! # Caveats
//!
//! - Sessions are in the memory of one process. Behind a load balancer, either give the console to one instance or
//!   make requests sticky; or use the app's own sessions.
//! - A proxy must forward `Host` and `Origin` unchanged: changes are refused if they come from another origin.

mod assets;
mod gate;
mod login;
mod pages;
mod sessions;

use std::{fmt, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware,
    routing::{get, post},
};
use tower_http::csrf::CsrfLayer;

use self::{gate::Api, sessions::Sessions};
use crate::{
    Limit, LoginLimiter, LoginRateLimitLayer, Part, Period, Policy, Rule,
    extract::{ExtractAddress, PeerAddress},
    server::Server,
    store::MemoryStore,
};

/// How long a session is kept that is not used.
const IDLE: Duration = Duration::from_secs(60 * 60);
/// How long a session lasts.
const LASTS: Duration = Duration::from_secs(12 * 60 * 60);

/// The web console. See the [module](self).
#[must_use = "a console does nothing until its router is served"]
pub struct Console {
    api: Router,
    address: Arc<dyn ExtractAddress>,
    has_login: bool,
    secure: bool,
    idle: Duration,
    lasts: Duration,
}

impl Console {
    /// A console on this server, with a login page that takes a token.
    pub fn new(server: Server) -> Self {
        Self::for_router(server.router())
    }

    /// As [`new`](Self::new), for a server whose router is served by itself too.
    pub fn for_router(server: Router) -> Self {
        Self {
            api: server,
            address: Arc::new(PeerAddress),
            has_login: true,
            secure: false,
            idle: IDLE,
            lasts: LASTS,
        }
    }

    /// Without a login page and without sessions: the server's [`Authorize`](crate::server::Authorize) sees each
    /// request of the browser as it is.
    pub fn without_login(mut self) -> Self {
        self.has_login = false;
        self
    }

    /// Where the client's address is read, by which the login is limited: behind a proxy, the header that the proxy
    /// sets. The peer's address unless set.
    pub fn with_address(mut self, address: impl ExtractAddress) -> Self {
        self.address = Arc::new(address);
        self
    }

    /// Whether the session cookie is for HTTPS only, whatever the request of the login looks like. Unless set, it is
    /// if the browser logs in over HTTPS.
    pub const fn with_secure_cookie(mut self, secure: bool) -> Self {
        self.secure = secure;
        self
    }

    /// How long a session is kept that is not used, and how long it lasts at most. 1 hour and 12 hours unless set. A
    /// page that is only left open does not use its session.
    pub const fn with_session_times(mut self, idle: Duration, at_most: Duration) -> Self {
        self.idle = idle;
        self.lasts = at_most;
        self
    }

    /// The router, to be nested at a path such as `/console` or served by itself.
    pub fn router(self) -> Router {
        let sessions = self
            .has_login
            .then(|| Arc::new(Sessions::new(self.idle, self.lasts, self.secure)));
        let gate = Api::new(self.api.clone(), sessions.clone());
        let api = self
            .api
            .layer(middleware::from_fn_with_state(gate.clone(), gate::pass));
        let mut router = Router::new()
            .nest_service("/api", api)
            .route("/", get(pages::shell))
            .fallback(get(pages::file))
            .with_state(gate.clone());
        if let Some(sessions) = sessions {
            let guard = guard(self.address);
            let log_in = post(login::log_in).layer(guard).with_state(gate);
            let login = Router::new()
                .route("/login", get(login::page).merge(log_in))
                .route("/logout", post(login::log_out).with_state(sessions))
                .layer(DefaultBodyLimit::max(login::MAX_FORM));
            router = router.merge(login);
        }
        router
            .layer(CsrfLayer::new())
            .layer(middleware::map_response(pages::protect))
    }
}

/// The layer of this crate, in front of the console's own login.
fn guard(address: Arc<dyn ExtractAddress>) -> LoginRateLimitLayer {
    // Short: tokens can't be guessed, and operators may share an address or its network with an attacker.
    let minute = Period::minutes(1);
    let limit = |attempts| Limit::attempts(attempts).within(minute);
    let rules = [
        Rule::new(
            Rule::ADDRESS,
            [Part::Address],
            limit(10).blocked_for(minute),
        ),
        Rule::new(Rule::NETWORK_56, [Part::Network(56)], limit(100)),
        Rule::new(Rule::NETWORK_48, [Part::Network(48)], limit(400)),
    ];
    let rules: Result<Vec<_>, _> = rules.into_iter().collect();
    // They are valid; the default ones are as safe.
    let policy = rules.and_then(Policy::new).unwrap_or_default();
    LoginRateLimitLayer::new(LoginLimiter::unmeasured(policy, MemoryStore::new()))
        .with_address(address)
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("has_login", &self.has_login)
            .field("idle", &self.idle)
            .field("lasts", &self.lasts)
            .finish_non_exhaustive()
    }
}
