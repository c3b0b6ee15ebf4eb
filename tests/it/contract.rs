//! The contract of tower: readiness, clones, and company.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt, service_fn,
    util::{BoxCloneService, CallAllUnordered},
};
use tower_login_rate_limit::{
    HeadOnly, LoginAttempt, LoginLimiter, LoginRateLimit, LoginRateLimitLayer, MissingUser, Policy,
    WithBody,
    extract::{FormField, Header, PeerAddressExtension},
    response::Denial,
    store::MemoryStore,
};

use crate::support::RedisServer;

/// Fails the test if it is called before it was ready, or on a clone of the one that was.
#[derive(Default)]
struct Probe {
    asked: bool,
    ready: bool,
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<B> Service<Request<B>> for Probe {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Not at the first time, so that nobody can do without asking twice.
        if !std::mem::replace(&mut self.asked, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        assert!(self.ready, "called without being ready");
        (self.asked, self.ready) = (false, false);
        if let Some(attempt) = request.extensions().get::<LoginAttempt>() {
            attempt.failed();
        }
        std::future::ready(Ok(Response::new(Full::default())))
    }
}

fn layer() -> LoginRateLimitLayer {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    LoginRateLimitLayer::new(limiter)
        .with_user(Header::new(http::HeaderName::from_static("x-user")))
}

fn request(user: &str) -> Request<Full<Bytes>> {
    let mut request = Request::builder()
        .uri("/login")
        .header("x-user", user)
        .header("content-type", "application/x-www-form-urlencoded")
        .body(Full::from(format!("user={user}")))
        .unwrap();
    let peer = "192.0.2.1:5000".parse().unwrap();
    request.extensions_mut().insert(PeerAddressExtension(peer));
    request
}

/// Six attempts, of which the last is refused.
async fn six<S, R, E>(service: S)
where
    S: Service<Request<Full<Bytes>>, Response = Response<R>, Error = E>,
    E: std::fmt::Debug,
{
    attempts(service, 6).await;
}

async fn attempts<S, R, E>(mut service: S, attempts: u32)
where
    S: Service<Request<Full<Bytes>>, Response = Response<R>, Error = E>,
    E: std::fmt::Debug,
{
    for i in 0..attempts {
        let response = service
            .ready()
            .await
            .unwrap()
            .call(request("user"))
            .await
            .unwrap();
        let refused = response.status() == StatusCode::TOO_MANY_REQUESTS;
        assert_eq!(refused, i == 5, "attempt {}", i + 1);
    }
}

#[tokio::test]
async fn the_instance_that_is_ready_is_the_one_that_is_called() {
    six(layer().layer(Probe::default())).await;
    let redis = RedisServer::start();
    let limiter = LoginLimiter::new(Policy::default(), redis.store().await);
    let user = Header::new(http::HeaderName::from_static("x-user"));
    six(LoginRateLimitLayer::new(limiter.clone())
        .with_user(user)
        .layer(Probe::default()))
    .await;
    limiter
        .unblock(("192.0.2.1".parse().unwrap(), "user"))
        .await
        .unwrap();
    let layer = LoginRateLimitLayer::new(limiter).with_body_user(FormField::new("user"));
    six(layer.layer(Probe::default())).await;
}

/// In shadow mode the service is called although the body is refused, before a user is known.
#[tokio::test]
async fn in_shadow_mode_too_only_a_ready_instance_is_called() {
    let too_large = |layer: LoginRateLimitLayer<WithBody>| layer.with_body_limit(2);
    let nobody = |_: &http::request::Parts, _: &[u8]| -> Option<String> { None };
    let layers = [
        too_large(layer().with_body_user(FormField::new("user"))),
        (layer().with_body_user(nobody)).with_missing_user(MissingUser::Refuse),
    ];
    for layer in layers {
        let service = layer.with_shadow(true).layer(Probe::default());
        for _ in 0..2 {
            let mut request = request("user");
            *request.method_mut() = http::Method::POST;
            let response = service.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            assert!(response.extensions().get::<Denial>().is_some());
        }
    }
}

/// A service that must not be cloned.
struct Unique(Probe);

impl Clone for Unique {
    fn clone(&self) -> Self {
        panic!("cloned although nothing had to be waited for")
    }
}

impl<B> Service<Request<B>> for Unique {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<B>>::poll_ready(&mut self.0, cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.0.call(request)
    }
}

#[tokio::test]
async fn a_request_that_is_admitted_at_once_clones_nothing() {
    attempts(layer().layer(Unique(Probe::default())), 5).await;
}

#[tokio::test]
async fn it_gets_on_with_other_layers_around_and_inside() {
    six(ServiceBuilder::new()
        .buffer(8)
        .layer(layer())
        .service(Probe::default()))
    .await;
    six(ServiceBuilder::new()
        .layer(layer())
        .buffer(8)
        .service(Probe::default()))
    .await;
    six(ServiceBuilder::new()
        .concurrency_limit(1)
        .layer(layer())
        .service(Probe::default()))
    .await;
    six(ServiceBuilder::new()
        .layer(layer())
        .concurrency_limit(1)
        .service(Probe::default()))
    .await;
    six(BoxCloneService::new(layer().layer(Probe::default()))).await;
    six(layer().layer(BoxCloneService::new(Probe::default()))).await;
    six(ServiceBuilder::new()
        .boxed_clone()
        .layer(layer())
        .service(Probe::default()))
    .await;
}

#[tokio::test]
async fn oneshot_and_call_all() {
    let service = layer().layer(Probe::default());
    for _ in 0..5 {
        let response = service.clone().oneshot(request("user")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
    let response = service.clone().oneshot(request("user")).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);

    let requests = tokio_stream::iter((0..10).map(|_| request("other")));
    let responses: CallAllUnordered<_, _> = service.call_all(requests).unordered();
    let responses: Vec<_> = tokio_stream::StreamExt::collect(responses).await;
    let admitted = responses
        .iter()
        .filter(|r| r.as_ref().unwrap().status() == StatusCode::OK);
    assert_eq!(admitted.count(), 5);
}

#[tokio::test]
async fn errors_are_the_inner_services_and_no_attempt() {
    let service = layer().layer(service_fn(async |_: Request<Full<Bytes>>| {
        Err::<Response<Full<Bytes>>, _>("the database is away")
    }));
    for _ in 0..20 {
        let error = service.clone().oneshot(request("user")).await.unwrap_err();
        assert_eq!(error, "the database is away");
    }
}

#[tokio::test]
async fn what_is_not_counted_passes_untouched() {
    let layer = layer()
        .with_routes(http::Method::POST, ["/login", "/reset/"])
        .with_routes(http::Method::PUT, ["/login"]);
    let service = layer.layer(service_fn(async |request: Request<Full<Bytes>>| {
        let attempt = request.extensions().get::<LoginAttempt>().cloned();
        let counted = attempt.inspect(LoginAttempt::not_an_attempt).is_some();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Ok::<_, Infallible>(Response::new(Full::from(format!(
            "{counted} {}",
            body.len()
        ))))
    }));
    for (method, path, expected) in [
        ("GET", "/login", "false 9"),
        ("POST", "/other", "false 9"),
        ("POST", "/login", "true 9"),
        ("POST", "/login/", "true 9"),
        ("POST", "/reset", "true 9"),
        ("POST", "//login", "true 9"),
        ("POST", "/%6Cogin", "true 9"),
        ("POST", "/login/x", "false 9"),
        ("PUT", "/login", "true 9"),
    ] {
        let mut request = request("user");
        *request.method_mut() = method.parse().unwrap();
        *request.uri_mut() = path.parse().unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, expected, "{method} {path}");
    }
}

/// An app can name the types, and keep them.
struct App {
    layer: LoginRateLimitLayer<WithBody>,
    service: LoginRateLimit<Probe>,
}

#[tokio::test]
async fn types_can_be_named() {
    let app = App {
        layer: layer().with_body_user(FormField::new("user")),
        service: layer().layer(Probe::default()),
    };
    six(app.service).await;
    six(app.layer.layer(Probe::default())).await;
}

#[test]
fn types_are_clone_send_sync_and_static() {
    fn check<T: Clone + Send + Sync + 'static>() {}
    fn sendable<T: Send + 'static>() {}
    check::<LoginRateLimitLayer>();
    check::<LoginRateLimitLayer<WithBody>>();
    check::<LoginRateLimit<Probe, HeadOnly>>();
    check::<LoginRateLimit<Probe, WithBody>>();
    check::<LoginAttempt>();
    check::<LoginLimiter>();
    type FutureOf<M> = <LoginRateLimit<Probe, M> as Service<Request<Full<Bytes>>>>::Future;
    sendable::<FutureOf<HeadOnly>>();
    sendable::<FutureOf<WithBody>>();
}

/// A connection that is refused must not hold a permit of the services inside the layer.
#[tokio::test]
async fn a_refused_request_gives_back_what_the_ready_service_holds() {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let user = Header::new("x-user".parse().unwrap());
    let service = ServiceBuilder::new()
        .layer(LoginRateLimitLayer::new(limiter).with_user(user))
        .concurrency_limit(1)
        .service_fn(async |request: Request<String>| {
            request.extensions().get::<LoginAttempt>().unwrap().failed();
            Ok::<_, Infallible>(Response::new(String::new()))
        });
    let request = || {
        let mut request = Request::builder()
            .header("x-user", "user")
            .body(String::new())
            .unwrap();
        let peer = PeerAddressExtension(([192, 0, 2, 1], 5000).into());
        request.extensions_mut().insert(peer);
        request
    };
    let mut attacker = service.clone();
    for _ in 0..6 {
        let _ = attacker.ready().await.unwrap().call(request()).await;
    }
    let refused = attacker
        .ready()
        .await
        .unwrap()
        .call(request())
        .await
        .unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    // The connection of the attacker stays open, and another one gets its turn.
    let mut other = service.clone();
    let ready = tokio::time::timeout(std::time::Duration::from_secs(5), other.ready()).await;
    assert!(ready.is_ok(), "a refused connection holds the only permit");
}
