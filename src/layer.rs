//! The layer, and its settings.

use std::{
    fmt,
    marker::PhantomData,
    net::IpAddr,
    sync::{Arc, Once},
};

use http::{Method, request::Parts};
use tower_layer::Layer;

use crate::{
    Caller, Classify, LoginLimiter, LoginRateLimit, Part, Rule,
    extract::{
        ExtractAddress, ExtractBodyUser, ExtractUser, NoUser, PeerAddress,
        value::{self, plain_path},
    },
    reading::{HeadOnly, WithBody},
    refusal::{ByContentType, Respond},
};

/// Guards login endpoints: wraps a service so that each request reserves an attempt before the
/// handler sees it, and settles it with what the handler says.
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
/// use tower_login_rate_limit::{
///     LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy,
///     extract::{Header, PeerAddressExtension}, store::MemoryStore,
/// };
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// let layer = LoginRateLimitLayer::new(limiter).with_user(Header("x-user".parse()?));
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
/// Unless told otherwise it counts every request, by the connection's [other end](PeerAddress) and
/// without a user until the handler [identifies](crate::LoginAttempt::identify) one; it takes
/// [everything but a server error](crate::classify::FailureUnlessSaid) for a failure if the handler says nothing; and
/// it refuses with [`application/problem+json`](crate::refusal::ProblemJson), or with a gRPC status
/// where gRPC is spoken.
///
/// # What it counts
///
/// Every request that gets to it. In axum put it on the route, or on a router with
/// [`route_layer`](https://docs.rs/axum/0.8/axum/struct.Router.html#method.route_layer): around a whole
/// router, requests for pages that do not exist would count as failures. Put layers that answer in the
/// handler's place (CORS, say) outside of it.
///
/// Several layers may share one limiter, and should: the password, the second factor, the reset of a
/// password and the API are doors to the same room.
///
/// `M` says whether the layer reads bodies: [`with_body_user`](Self::with_body_user) makes it do so,
/// and the inner service then gets a [`ReplayedBody`](crate::ReplayedBody).
pub struct LoginRateLimitLayer<M = HeadOnly> {
    config: Arc<Config>,
    mode: PhantomData<fn() -> M>,
}

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) limiter: LoginLimiter,
    pub(crate) address: Arc<dyn ExtractAddress>,
    pub(crate) user: UserSource,
    values: Vec<(Arc<str>, Value)>,
    pub(crate) most_of_body: usize,
    pub(crate) pass_too_large: bool,
    /// `None`: [`FailureUnlessSaid`], and it is worth a word that nobody said anything.
    pub(crate) classify: Option<Arc<dyn Classify>>,
    pub(crate) unsaid: Arc<Once>,
    pub(crate) respond: Arc<dyn Respond>,
    counts: Option<Filter>,
    pub(crate) shadow: bool,
    pub(crate) rate_limit_fields: bool,
}

type Filter = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
type Value = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

#[derive(Clone)]
pub(crate) enum UserSource {
    Head(Arc<dyn ExtractUser>),
    Body(Arc<dyn ExtractBodyUser>),
}

impl Config {
    /// Somebody at this address, with the values of the app's own.
    pub(crate) fn caller(&self, address: IpAddr, request: &Parts) -> Caller<'static> {
        let mut caller = Caller::new(address);
        for (name, value) in &self.values {
            if let Some(value) = value(request) {
                caller = caller.value(name.to_string(), value);
            }
        }
        caller
    }

    pub(crate) fn counts(&self, request: &Parts) -> bool {
        self.counts.as_ref().is_none_or(|counts| counts(request))
    }
}

impl LoginRateLimitLayer {
    /// A layer that asks this limiter.
    pub fn new(limiter: LoginLimiter) -> Self {
        let counts_by = |name: &str| {
            let rules = limiter.policy().rules().iter();
            rules.flat_map(Rule::parts).any(|part| match part {
                Part::Value(value) => **value == *name,
                _ => false,
            })
        };
        let ready_made: [(&str, Value); 2] = [
            (Part::PATH, Arc::new(value::path)),
            (Part::USER_AGENT, Arc::new(value::user_agent)),
        ];
        let values = (ready_made.into_iter())
            .filter(|(name, _)| counts_by(name))
            .map(|(name, value)| (name.into(), value))
            .collect();
        Self {
            config: Arc::new(Config {
                limiter,
                address: Arc::new(PeerAddress),
                user: UserSource::Head(Arc::new(NoUser)),
                values,
                most_of_body: 64 * 1024,
                pass_too_large: false,
                classify: None,
                unsaid: Arc::new(Once::new()),
                respond: Arc::new(ByContentType),
                counts: None,
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

    /// Where the client's address is found. [`PeerAddress`] unless set.
    #[must_use]
    pub fn with_address(self, address: impl ExtractAddress) -> Self {
        self.with(|config| config.address = Arc::new(address))
    }

    /// Where the user is found, without reading the body.
    #[must_use]
    pub fn with_user(self, user: impl ExtractUser) -> LoginRateLimitLayer<HeadOnly> {
        let layer = self.with(|config| config.user = UserSource::Head(Arc::new(user)));
        LoginRateLimitLayer {
            config: layer.config,
            mode: PhantomData,
        }
    }

    /// Where the user is found in the body. The handler gets the same body again.
    #[must_use]
    pub fn with_body_user(self, user: impl ExtractBodyUser) -> LoginRateLimitLayer<WithBody> {
        let layer = self.with(|config| config.user = UserSource::Body(Arc::new(user)));
        LoginRateLimitLayer {
            config: layer.config,
            mode: PhantomData,
        }
    }

    /// Where a value of the app's own is found, for rules that count by it: a tenant, a device. Requests
    /// without it are counted together. [`Part::PATH`] and [`Part::USER_AGENT`] are found by
    /// themselves, unless this says otherwise.
    ///
    /// ```
    /// use http::request::Parts;
    /// use tower_login_rate_limit::{
    ///     Limit, LoginLimiter, LoginRateLimitLayer, Part, Period, Policy, Rule, store::MemoryStore,
    /// };
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limit = Limit::attempts(100).within(Period::hours(1));
    /// let per_tenant = Rule::new("tenant", [Part::Address, Part::value("tenant")], limit)?;
    /// let limiter = LoginLimiter::new(Policy::default().with_rule(per_tenant), MemoryStore::new());
    /// let layer = LoginRateLimitLayer::new(limiter).with_value("tenant", |request: &Parts| {
    ///     Some(request.uri.host()?.to_owned())
    /// });
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_value(
        self,
        name: impl Into<Arc<str>>,
        value: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.values.push((name.into(), Arc::new(value))))
    }

    /// Counts only requests for which this is true, or another filter is; all others pass untouched.
    #[must_use]
    pub fn with_filter(self, counts: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|config| {
            config.counts = Some(match config.counts.take() {
                None => Arc::new(counts),
                Some(before) => Arc::new(move |request| before(request) || counts(request)),
            });
        })
    }

    /// Counts only requests with this method to one of these paths; all others pass untouched. Said
    /// again, for another method say, it adds to that.
    ///
    /// Encoded characters, doubled slashes and one at the end make no difference, since what is inside
    /// may not see one either. In axum the path counts as it was sent, also inside of `nest`. Where
    /// the layer can be put on the route itself, do that: then nothing has to be compared.
    #[must_use]
    pub fn with_routes<P: Into<String>>(
        self,
        method: Method,
        paths: impl IntoIterator<Item = P>,
    ) -> Self {
        let paths: Vec<_> = paths
            .into_iter()
            .map(|path| plain_path(&path.into()))
            .collect();
        self.with_filter(move |request| {
            let is_known = |path: &str| paths.contains(&plain_path(path));
            #[cfg(feature = "axum")]
            let sent = request.extensions.get::<axum::extract::OriginalUri>();
            #[cfg(feature = "axum")]
            let is_known =
                |path: &str| is_known(path) || sent.is_some_and(|s| is_known(s.0.path()));
            request.method == method && is_known(request.uri.path())
        })
    }

    /// How an attempt went, if the handler does not say.
    /// [`FailureUnlessSaid`](crate::classify::FailureUnlessSaid) unless set.
    #[must_use]
    pub fn with_classifier(self, classify: impl Classify) -> Self {
        self.with(|config| config.classify = Some(Arc::new(classify)))
    }

    /// How denials are rendered. [`ByContentType`] unless set.
    #[must_use]
    pub fn with_response(self, respond: impl Respond) -> Self {
        self.with(|config| config.respond = Arc::new(respond))
    }

    /// Decides and reports, but refuses nobody: to see what a policy would do before it does it.
    ///
    /// What would have been refused is logged (feature `tracing`), and its response has the
    /// [`Denial`](crate::refusal::Denial) in its extensions.
    #[must_use]
    pub fn with_shadow(self, shadow: bool) -> Self {
        self.with(|config| config.shadow = shadow)
    }

    /// Adds the `RateLimit-Policy` and `RateLimit` fields of the IETF's draft to responses, for the
    /// rule by address alone: what is said of a user would tell a stranger about somebody's account.
    #[must_use]
    pub fn with_rate_limit_fields(self, fields: bool) -> Self {
        self.with(|config| config.rate_limit_fields = fields)
    }

    /// The limiter that it asks.
    pub fn limiter(&self) -> &LoginLimiter {
        &self.config.limiter
    }
}

impl LoginRateLimitLayer<WithBody> {
    /// How many bytes of a body are read at most, 64 KiB unless set. A larger one is answered with
    /// 413.
    #[must_use]
    pub fn with_body_limit(self, bytes: usize) -> Self {
        self.with(|config| config.most_of_body = bytes)
    }

    /// Lets bodies that are too large pass, without a user, in place of answering 413. The handler
    /// has to name the user then: the rules with a user do not apply until it does.
    #[must_use]
    pub fn with_large_bodies_passed(self, pass: bool) -> Self {
        self.with(|config| config.pass_too_large = pass)
    }
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

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("limiter", &self.limiter)
            .field("shadow", &self.shadow)
            .finish_non_exhaustive()
    }
}
