//! The layer among others, and its results in other formats.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use axum::{
    Form, Router,
    body::{Body, Bytes},
    extract::{Request, connect_info::MockConnectInfo},
    http::StatusCode,
    middleware::{Next, from_fn},
    response::Response,
    routing::post,
};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::json;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_http::{cors::CorsLayer, trace::TraceLayer};
use tower_login_rate_limit::{
    ForAxum, LoginAttempt, LoginLimiter, LoginRateLimitLayer, MissingLayer, Outcome, Period,
    Policy,
    algorithm::{Standing, State},
    clock::ManualClock,
    extract::{FormField, Header, PeerAddressExtension},
    store::MemoryStore,
};

use crate::support::{attempt, fail, ip};

const CLIENT: &str = "192.0.2.1";

fn by_form() -> LoginRateLimitLayer<ForAxum> {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    LoginRateLimitLayer::new(limiter)
        .with_body_user(FormField::new("email"))
        .for_axum()
}

#[derive(Deserialize)]
struct Login {
    email: String,
    password: String,
}

async fn login(attempt: LoginAttempt, Form(login): Form<Login>) -> StatusCode {
    assert_eq!(
        (&*login.email, &*login.password),
        ("alice@example.org", "x")
    );
    attempt.failed();
    StatusCode::UNAUTHORIZED
}

/// A function that takes axum's own body, and reads it.
async fn middleware(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    assert!(bytes.starts_with(b"email="));
    next.run(Request::from_parts(parts, Body::from(bytes)))
        .await
}

async fn assert_guards(app: Router) {
    let app = app.layer(MockConnectInfo(SocketAddr::from((ip(CLIENT), 5000))));
    for i in 0..6 {
        let request = Request::post("/login")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(Body::from("email=alice%40example.org&password=x"))
            .unwrap();
        let status = app.clone().oneshot(request).await.unwrap().status();
        assert_eq!(status, if i < 5 { 401 } else { 429 });
    }
}

#[tokio::test]
async fn a_middleware_function_is_inside_of_a_layer_that_reads_bodies() {
    let layers = ServiceBuilder::new()
        .layer(by_form())
        .layer(from_fn(middleware));
    assert_guards(Router::new().route("/login", post(login)).layer(layers)).await;
    let layers = ServiceBuilder::new()
        .layer(by_form())
        .layer(from_fn(middleware));
    assert_guards(Router::new().route("/login", post(login).layer(layers))).await;
}

#[tokio::test]
async fn a_method_router_has_several_layers() {
    let method = post(login)
        .layer(TraceLayer::new_for_http())
        .layer(by_form());
    assert_guards(Router::new().route("/login", method)).await;
    let method = post(login)
        .layer::<_, Infallible>(by_form())
        .layer(CorsLayer::new());
    assert_guards(Router::new().route("/login", method)).await;
}

#[tokio::test]
async fn a_body_that_is_not_read_is_passed_on_as_it_is() {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let user = Header::new(http::HeaderName::from_static("x-user"));
    let layer = LoginRateLimitLayer::new(limiter).with_user(user).for_axum();
    let service = layer.layer(service_fn(async |request: Request| {
        let mut body = request.into_body();
        let mut frames = Vec::new();
        while let Some(frame) = body.frame().await {
            frames.push(frame.unwrap().into_data().unwrap());
        }
        assert_eq!(frames, ["one", "two"].map(Bytes::from));
        Ok::<_, Infallible>(http::Response::new(()))
    }));
    let frames =
        ["one", "two"].map(|frame| Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(frame))));
    let body = Body::new(http_body_util::StreamBody::new(tokio_stream::iter(frames)));
    let mut request = Request::new(body);
    let peer = PeerAddressExtension((ip(CLIENT), 5000).into());
    request.extensions_mut().insert(peer);
    service.oneshot(request).await.unwrap();
}

#[tokio::test]
async fn a_grpc_client_of_a_server_without_the_layer_learns_nothing_of_its_configuration() {
    let error = LoginAttempt::of(&http::Extensions::new()).unwrap_err();
    assert!(error.to_string().contains("LoginRateLimitLayer::new"));
    let status = tonic::Status::from(MissingLayer);
    assert_eq!(status.code(), tonic::Code::Internal);
    assert!(!status.message().contains("Layer"), "{status:?}");
}

#[tokio::test]
async fn reports_and_refusals_are_data() {
    let clock = Arc::new(ManualClock::at(0));
    let store = MemoryStore::new().with_clock(Arc::clone(&clock));
    let limiter = LoginLimiter::new(Policy::default(), store);
    let caller = (ip(CLIENT), "alice");
    fail(&limiter, caller.0, caller.1, 2).await;
    let report = serde_json::to_value(limiter.check(caller).await.unwrap()).unwrap();
    let expected = json!({
        "remaining": 3,
        "refusal": null,
        "rules": [
            {"rule": "address", "state": "clear", "usage": 2, "rate": 2.0, "limit": 25, "remaining": 23,
             "retry_after": null},
            {"rule": "user-address", "state": "clear", "usage": 2, "rate": 2.0, "limit": 5, "remaining": 3,
             "retry_after": null},
        ],
    });
    assert_eq!(report, expected);

    fail(&limiter, caller.0, caller.1, 3).await;
    let refusal = attempt(&limiter, caller.0, caller.1, Outcome::Failure)
        .await
        .unwrap_err();
    let expected = json!({
        "detail": "too many failed attempts, try again in 1 day", "reason": "blocked",
        "rule": "user-address", "usage": 5, "rate": 5.0, "limit": 5, "remaining": 0,
        "lifts": "in 1 day", "retry_after": 86_400,
    });
    assert_eq!(serde_json::to_value(&refusal).unwrap(), expected);
    let report = serde_json::to_value(limiter.check(caller).await.unwrap()).unwrap();
    assert_eq!(report["refusal"], expected);
    assert_eq!(
        (
            &report["rules"][1]["state"],
            &report["rules"][1]["retry_after"]
        ),
        (&json!("blocked"), &json!(86_400))
    );

    let state = |state| serde_json::to_value(Standing::new(1, 5, state)).unwrap();
    assert_eq!(state(State::Exempt)["remaining"], json!(null));
    let forever = state(State::Blocked {
        lifts: Period::Forever,
    });
    assert_eq!(
        (&forever["state"], &forever["retry_after"]),
        (&json!("blocked"), &json!(null))
    );
    assert_eq!(state(State::Busy)["state"], json!("busy"));
}
