//! The layer and its settings.

mod body;
pub mod classify;
mod config;
mod decision;
mod future;
mod guard;
mod login_attempt;
mod missing_user;
mod mode;
mod service;

use std::{
    any::TypeId,
    fmt,
    marker::PhantomData,
    sync::{Arc, Once},
    time::Duration,
};

use http::{Method, request::Parts};
use tower_layer::Layer;

use crate::{
    LoginLimiter,
    extract::{
        ExtractAddress, ExtractBodyUser, ExtractError, ExtractUser, NoUser, PeerAddress, ReadBody,
        value::{PathPattern, plain_path},
    },
    logging,
    response::{ByAccept, Respond},
};

use config::{Classifier, Config, Notices, UserSource};

pub use body::{ReplayedBody, ResponseBody};
pub use classify::Classify;
pub use future::ResponseFuture;
pub use login_attempt::LoginAttempt;
pub use missing_user::MissingUser;
#[cfg(feature = "axum")]
pub use mode::ForAxum;
pub use mode::{HeadOnly, WithBody};
pub use service::LoginRateLimit;

/// Guards login endpoints: each request reserves an attempt before the handler is called, and the attempt
/// is settled with the outcome that the handler records.
///
/// ```
/// use http::{HeaderName, Request, Response, StatusCode};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
/// use tower_login_rate_limit::{
///     LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy,
///     extract::{Header, PeerAddressExtension}, store::MemoryStore,
/// };
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// let user = Header::new(HeaderName::from_static("x-user"));
/// let layer = LoginRateLimitLayer::new(limiter).with_user(user);
///
/// let service = ServiceBuilder::new().layer(layer).service_fn(async |request: Request<String>| {
///     let attempt = request.extensions().get::<LoginAttempt>().expect("the layer is there");
///     attempt.failed();
///     Ok::<_, std::convert::Infallible>(Response::new(String::from("wrong password")))
/// });
///
/// for i in 0..6 {
///     let mut request = Request::builder().header("x-user", "alice").body(String::new())?;
///     request.extensions_mut().insert(PeerAddressExtension("192.0.2.1:5000".parse()?));
///     let response = service.clone().oneshot(request).await?;
///     let refused = response.status() == StatusCode::TOO_MANY_REQUESTS;
///     assert_eq!(refused, i == 5);
/// }
/// # Ok(()) }
/// # tokio::runtime::Runtime::new()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// By default the layer
///
/// - counts every request,
/// - uses the [peer's address](PeerAddress) of the connection,
/// - knows no user until the handler [identifies](crate::LoginAttempt::identify) one,
/// - counts [everything but a server error](crate::classify::FailureByDefault) as a failure if the handler
///   records no outcome; not the view of a page, by `GET`, `HEAD` or `OPTIONS`, without a user and with
///   another response than 401 or 403,
/// - refuses [by what the client accepts](ByAccept): with a page for browsers that navigate, with a gRPC status
///   if the client speaks gRPC, and else with `application/problem+json`.
///
/// # Which requests it counts
///
/// Every request that reaches it. In axum put it on the route, or on a router with
/// [`route_layer`](https://docs.rs/axum/0.8/axum/struct.Router.html#method.route_layer): around a whole
/// router, requests for missing pages would count as failures. Layers that respond in place of the
/// handler, such as CORS, belong outside of it.
///
/// Several layers can share one limiter, and should: password, second factor, password reset and API are
/// ways into the same account. A request that passes several layers of one limiter is one attempt, under every
/// user that one of them finds.
///
/// The parameter `M` tells whether the layer reads bodies: after
/// [`with_body_user`](Self::with_body_user) it does, and the inner service receives a
/// [`ReplayedBody`](crate::ReplayedBody), or axum's own body after `for_axum` (feature `axum`).
pub struct LoginRateLimitLayer<M = HeadOnly> {
    config: Arc<Config>,
    mode: PhantomData<fn() -> M>,
}

/// How long a body may take. A login is one packet; the slowest connections take seconds.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

impl LoginRateLimitLayer {
    /// A layer with this limiter.
    #[must_use]
    pub fn new(limiter: LoginLimiter) -> Self {
        Self {
            config: Arc::new(Config {
                limiter,
                address: Arc::new(PeerAddress),
                user: UserSource::Handler,
                missing_user: MissingUser::default(),
                values: Vec::new(),
                body_limit: 64 * 1024,
                body_timeout: Some(BODY_TIMEOUT),
                pass_oversized: false,
                marked_checks: false,
                is_second_factor: false,
                classifier: Classifier::Default,
                notices: Arc::new(Notices {
                    no_outcome: Once::new(),
                    no_user: Once::new(),
                    no_second_factor: Once::new(),
                    nested: Once::new(),
                    rejected: Once::new(),
                    dropped: Once::new(),
                    samples: logging::Samples::default(),
                }),
                responder: Arc::new(ByAccept::new()),
                filter: None,
                body_filter: None,
                shadow: false,
                rate_limit_fields: false,
            }),
            mode: PhantomData,
        }
    }
}

impl<M> LoginRateLimitLayer<M> {
    fn with(mut self, set: impl FnOnce(&mut Config)) -> Self {
        set(Arc::make_mut(&mut self.config));
        self
    }

    fn into_mode<N>(self) -> LoginRateLimitLayer<N> {
        LoginRateLimitLayer {
            config: self.config,
            mode: PhantomData,
        }
    }

    /// Sets how the client's address is found. The default is [`PeerAddress`].
    #[must_use]
    pub fn with_address(self, address: impl ExtractAddress) -> Self {
        self.with(|config| config.address = Arc::new(address))
    }

    /// Sets how the user is found, without reading the body. The default is [`NoUser`].
    #[must_use]
    pub fn with_user<U: ExtractUser>(self, user: U) -> LoginRateLimitLayer<HeadOnly> {
        let source = if is_type::<U, NoUser>() {
            UserSource::Handler
        } else {
            UserSource::Head(Arc::new(user))
        };
        self.with(|config| config.user = source).into_mode()
    }

    /// Sets what becomes of requests in which no user is found. The default is [`MissingUser::Shared`]: they
    /// count as one user.
    #[must_use]
    pub fn with_missing_user(self, missing: MissingUser) -> Self {
        self.with(|config| config.missing_user = missing)
    }

    /// Declares that every handler behind this layer calls
    /// [`begin_check`](crate::LoginAttempt::begin_check) before it looks at a password. A request that is
    /// dropped before that is then not an attempt; otherwise each one that is dropped is a failure.
    ///
    /// A slow database, and a timeout outside of the layer, would else count correct logins as failures.
    /// A handler that forgets the call lets clients guess without being counted, by disconnecting as soon as
    /// the response is late.
    #[must_use]
    pub fn with_marked_checks(self, marked: bool) -> Self {
        self.with(|config| config.marked_checks = marked)
    }

    /// Declares that requests to this layer carry a second factor, such as a code: they also count under the
    /// rule [`SECOND_FACTOR`](crate::Rule::SECOND_FACTOR), which limits the codes of an account over all addresses. A request that
    /// carries the password too does not belong here: anyone could use up the codes of an account.
    #[must_use]
    pub fn with_second_factor(self, second_factor: bool) -> Self {
        if second_factor {
            self.config.limiter.set_guards_second_factor();
        }
        self.with(|config| config.is_second_factor = second_factor)
    }

    /// Sets how the user is found in the body. The handler receives the same body again.
    #[must_use]
    pub fn with_body_user(self, user: impl ExtractBodyUser) -> LoginRateLimitLayer<WithBody> {
        self.with(|config| config.user = UserSource::Body(Arc::new(user)))
            .into_mode()
    }

    /// Adds a value of the app's own, such as a tenant or a device, for rules that count by it. Requests
    /// without it are counted together. [`Part::PATH`](crate::Part::PATH) and
    /// [`Part::USER_AGENT`](crate::Part::USER_AGENT) are built in, and this can override them.
    #[must_use]
    pub fn with_value(
        self,
        name: impl Into<Arc<str>>,
        value: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.values.push((name.into(), Arc::new(value))))
    }

    /// Counts only requests for which this filter, or one added before, returns `true`. All others pass
    /// uncounted.
    #[must_use]
    pub fn with_filter(self, filter: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|config| {
            config.filter = Some(match config.filter.take() {
                None => Arc::new(filter),
                Some(before) => Arc::new(move |request| before(request) || filter(request)),
            });
        })
    }

    /// Counts only requests with this method to one of these paths, or those that an earlier filter
    /// counts. All others pass uncounted.
    ///
    /// A segment `{name}` of a path is any segment, and `{*name}` at its end is any rest, as in axum. Other
    /// patterns, such as `:name`, are compared literally and logged as an error; in axum also with the pattern of
    /// the route.
    ///
    /// Percent-encoding, doubled slashes and a trailing slash make no difference, since the inner service
    /// may ignore them too. In axum the path is compared as it was sent, also inside of `nest`. If the
    /// layer can be put on the route itself, prefer that.
    #[must_use]
    pub fn with_routes<P: Into<String>>(
        self,
        method: Method,
        paths: impl IntoIterator<Item = P>,
    ) -> Self {
        let paths: Vec<_> = paths
            .into_iter()
            .map(|path| PathPattern::new(&path.into()))
            .collect();
        self.with_filter(move |request| {
            let is_known = |path: &str| {
                let path = plain_path(path);
                paths.iter().any(|pattern| pattern.matches(&path))
            };
            #[cfg(feature = "axum")]
            let is_known = |path: &str| {
                let sent = request.extensions.get::<axum::extract::OriginalUri>();
                let route = request.extensions.get::<axum::extract::MatchedPath>();
                is_known(path)
                    || sent.is_some_and(|sent| is_known(sent.0.path()))
                    || route.is_some_and(|route| is_known(route.as_str()))
            };
            request.method == method && is_known(request.uri.path())
        })
    }

    /// Sets how outcomes are derived from responses if the handler records none. The default is
    /// [`FailureByDefault`](crate::classify::FailureByDefault).
    #[must_use]
    pub fn with_classifier<C: Classify>(self, classifier: C) -> Self {
        let classifier = if is_type::<C, classify::FailureByDefault>() {
            Classifier::Default
        } else if is_type::<C, classify::ByStatus>() {
            Classifier::ByStatus
        } else {
            Classifier::Custom(Arc::new(classifier))
        };
        self.with(|config| config.classifier = classifier)
    }

    /// Sets how denials are rendered. The default is [`ByAccept`].
    #[must_use]
    pub fn with_responder(self, responder: impl Respond) -> Self {
        self.with(|config| config.responder = Arc::new(responder))
    }

    /// Enables shadow mode, to see what a policy would do: the layer decides but denies nothing.
    ///
    /// Denials are logged (feature `tracing`), and the response has the
    /// [`Denial`](crate::response::Denial) in its extensions.
    #[must_use]
    pub fn with_shadow(self, shadow: bool) -> Self {
        self.with(|config| config.shadow = shadow)
    }

    /// Adds the `RateLimit-Policy` and `RateLimit` fields of the IETF draft to responses, for the rule by
    /// address alone: fields for a user would disclose the state of an account to anyone.
    #[must_use]
    pub fn with_rate_limit_fields(self, fields: bool) -> Self {
        self.with(|config| config.rate_limit_fields = fields)
    }

    /// Hands axum's own body to the inner service. Call it last, since [`with_user`](Self::with_user) and
    /// [`with_body_user`](Self::with_body_user) choose the type of the body anew.
    ///
    /// Handlers and routers take any body, and need this not. Two others do:
    ///
    /// - `axum::middleware::from_fn` directly inside of a layer that reads bodies, in a `ServiceBuilder`;
    /// - a second layer on the same method router: axum has no error type for the service in between, and this layer
    ///   then names it.
    ///
    /// ```
    /// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
    /// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    /// # async fn login() {}
    /// use axum::{Router, extract::Request, middleware::{Next, from_fn}, response::Response, routing::post};
    /// use tower::ServiceBuilder;
    /// use tower_http::trace::TraceLayer;
    /// use tower_login_rate_limit::extract::FormField;
    ///
    /// async fn check_origin(request: Request, next: Next) -> Response {
    ///     next.run(request).await
    /// }
    ///
    /// let layer = LoginRateLimitLayer::new(limiter).with_body_user(FormField::new("email")).for_axum();
    /// let layers = ServiceBuilder::new().layer(layer.clone()).layer(from_fn(check_origin));
    /// let app: Router = Router::new()
    ///     .route("/login", post(login).layer(layers))
    ///     .route("/admin/login", post(login).layer(TraceLayer::new_for_http()).layer(layer));
    /// ```
    #[cfg(feature = "axum")]
    #[must_use]
    pub fn for_axum(self) -> LoginRateLimitLayer<ForAxum> {
        self.into_mode()
    }

    /// The limiter of this layer.
    pub fn limiter(&self) -> &LoginLimiter {
        &self.config.limiter
    }
}

impl LoginRateLimitLayer<WithBody> {
    /// Sets the maximum number of bytes that are read of a body. The default is 64 KiB. The response to a
    /// larger body is 413.
    #[must_use]
    pub fn with_body_limit(self, bytes: usize) -> Self {
        self.with(|config| config.body_limit = bytes)
    }

    /// Counts only requests for which this filter, or one added before, returns `true`, of those that the
    /// filters of the head count. All others pass uncounted, with their body.
    ///
    /// An error denies the request. [`ReadBody::field`] returns one where the handler might read another value:
    /// otherwise a body with two grant types would be a login for the handler and none for the filter. Name what
    /// is exempt, not what counts: a spelling that the filter does not know is then counted.
    ///
    /// ```
    /// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
    /// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    /// use tower_login_rate_limit::extract::FormField;
    ///
    /// // An OAuth token endpoint: a refresh token is no guess at a password.
    /// let layer = LoginRateLimitLayer::new(limiter)
    ///     .with_body_user(FormField::new("username"))
    ///     .with_body_filter(|body| Ok(body.field("grant_type")?.as_deref() != Some("refresh_token")));
    /// ```
    ///
    /// The body of a blocked client has to be read before it is known whether the request counts; without this
    /// filter it is refused before. A body that is too large to be read is counted.
    #[must_use]
    pub fn with_body_filter(
        self,
        filter: impl Fn(ReadBody<'_>) -> Result<bool, ExtractError> + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| {
            config.body_filter = Some(match config.body_filter.take() {
                None => Arc::new(filter),
                Some(before) => Arc::new(move |body| Ok(before(body)? || filter(body)?)),
            });
        })
    }

    /// Sets how long a body may take to arrive. The default is 30 seconds; [`Duration::MAX`] is no limit. The
    /// response to a slower body is 408, which counts nowhere.
    ///
    /// The time is Tokio's: a runtime that is built by hand must have it
    /// [enabled](https://docs.rs/tokio/1/tokio/runtime/struct.Builder.html#method.enable_time).
    #[must_use]
    pub fn with_body_timeout(self, timeout: Duration) -> Self {
        let timeout = (timeout != Duration::MAX).then_some(timeout);
        self.with(|config| config.body_timeout = timeout)
    }

    /// Passes bodies that are too large, without a user, in place of responding with 413. The handler has
    /// to [identify](crate::LoginAttempt::identify) the user then; until it does, the rules by user do not
    /// apply.
    #[must_use]
    pub fn with_large_bodies_passed(self, pass: bool) -> Self {
        self.with(|config| config.pass_oversized = pass)
    }
}

fn is_type<T: 'static, U: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<U>()
}

impl<S, M> Layer<S> for LoginRateLimitLayer<M> {
    type Service = LoginRateLimit<S, M>;

    fn layer(&self, inner: S) -> Self::Service {
        LoginRateLimit::new(inner, Arc::clone(&self.config))
    }
}

impl<M> Clone for LoginRateLimitLayer<M> {
    fn clone(&self) -> Self {
        Self {
            config: Arc::clone(&self.config),
            mode: PhantomData,
        }
    }
}

impl<M> fmt::Debug for LoginRateLimitLayer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginRateLimitLayer")
            .field("config", &self.config)
            .finish()
    }
}
