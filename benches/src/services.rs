//! The layers that are compared, the service that does nothing behind them, and the requests they receive.

use std::{
    convert::Infallible,
    hint::black_box,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use axum::{body::Body, extract::ConnectInfo};
use governor::{clock::QuantaInstant, middleware::NoOpMiddleware};
use http::{HeaderName, HeaderValue, Method, Request, Response};
use tokio::runtime::Runtime;
use tower::{Layer, ServiceExt, service_fn};
use tower_governor::{
    GovernorError, GovernorLayer,
    governor::GovernorConfigBuilder,
    key_extractor::{KeyExtractor, PeerIpKeyExtractor},
};
use tower_login_rate_limit::{
    LoginLimiter, LoginRateLimitLayer, Outcome, Policy, classify::ByStatus, extract::Header,
    store::MemoryStore,
};

/// An address that passes.
pub const HOT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// An address that is refused.
pub const BLOCKED: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
/// The user at both.
pub const USER: HeaderValue = HeaderValue::from_static("somebody");
/// Carries the user.
pub const USER_HEADER: HeaderName = HeaderName::from_static("x-user");

/// A login: a `POST`, since a safe method is not an attempt to the classifier by status.
pub fn request(address: IpAddr, user: HeaderValue) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::POST;
    request.headers_mut().insert(USER_HEADER, user);
    let peer = ConnectInfo(SocketAddr::new(address, 5000));
    request.extensions_mut().insert(peer);
    request
}

/// Every login succeeds.
pub async fn nothing(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    black_box(request);
    Ok(Response::new(Body::empty()))
}

/// Our layer in memory, with [`BLOCKED`] blocked.
pub fn ours(runtime: &Runtime) -> LoginRateLimitLayer {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let user = USER.to_str().expect("text").to_owned();
    runtime.block_on(async {
        for _ in 0..5 {
            let attempt = limiter.reserve((BLOCKED, user.as_str())).await;
            let settled = attempt.expect("admitted").settle(Outcome::Failure).await;
            settled.expect("settled");
        }
    });
    LoginRateLimitLayer::new(limiter)
        .with_user(Header::new(USER_HEADER))
        .with_classifier(ByStatus)
}

/// A layer of tower_governor.
pub type Governor<K> = GovernorLayer<K, NoOpMiddleware<QuantaInstant>, Body>;

/// A layer of tower_governor that admits everything.
pub fn roomy<K: KeyExtractor>(key: K) -> Governor<K> {
    governed(key, Duration::from_nanos(1), u32::MAX)
}

/// A layer of tower_governor that admits one request.
pub fn stingy<K: KeyExtractor>(key: K) -> Governor<K> {
    governed(key, Duration::from_secs(86_400), 1)
}

fn governed<K: KeyExtractor>(key: K, period: Duration, burst: u32) -> Governor<K> {
    let mut config = GovernorConfigBuilder::default().key_extractor(key);
    let config = config.period(period).burst_size(burst).finish();
    GovernorLayer::new(config.expect("a quota"))
}

/// A layer of tower_governor by address whose quota for [`BLOCKED`] is used up.
pub fn used_up(runtime: &Runtime) -> Governor<PeerIpKeyExtractor> {
    let layer = stingy(PeerIpKeyExtractor);
    let once = layer.layer(service_fn(nothing));
    let Ok(_) = runtime.block_on(once.oneshot(request(BLOCKED, USER)));
    layer
}

/// The user as a key of tower_governor: a login is limited by two keys, the address and the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserKeyExtractor;

impl KeyExtractor for UserKeyExtractor {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let user = request.headers().get(USER_HEADER);
        let user = user.and_then(|user| user.to_str().ok());
        user.map(str::to_owned)
            .ok_or(GovernorError::UnableToExtractKey)
    }
}
