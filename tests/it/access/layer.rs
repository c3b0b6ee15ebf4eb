//! Access rules ahead of the limits, as clients of a server meet them.

use axum::{Json, Router, body::Body, routing::post};
use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::BodyExt;
use serde::Deserialize;
use tower::ServiceExt;
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Outcome, Policy, ReserveError, Rule,
    access::{AccessRule, Field},
    extract::{JsonField, PeerAddressExtension},
    response::{Denial, DenialKind},
    store::MemoryStore,
};

use super::{allow, deny, set};
use crate::support::{CLIENT, fail, ip, refused};

#[derive(Deserialize)]
struct Login {
    username: String,
    account: Option<String>,
}

/// Each password is wrong.
async fn check(attempt: LoginAttempt, Json(login): Json<Login>) -> Result<String, ReserveError> {
    if let Some(account) = login.account {
        attempt.identify(&account).await?;
    }
    attempt.failed();
    let allowed_by = attempt.allowed_by();
    assert_eq!(attempt.address(), Some(ip(CLIENT)));
    assert_eq!(attempt.user(), Some(login.username));
    Ok(allowed_by.unwrap_or_default())
}

fn limiter(rules: impl IntoIterator<Item = AccessRule>) -> LoginLimiter {
    LoginLimiter::new(Policy::default(), MemoryStore::new())
        .with_access_rules(set(rules))
        .unwrap()
}

fn layer(limiter: &LoginLimiter) -> LoginRateLimitLayer<tower_login_rate_limit::WithBody> {
    LoginRateLimitLayer::new(limiter.clone()).with_body_user(JsonField::new("username"))
}

fn app(limiter: &LoginLimiter) -> Router {
    Router::new().route("/login", post(check).layer(layer(limiter)))
}

fn login(body: impl Into<Body>) -> Request<Body> {
    let request = Request::post("/login").header(CONTENT_TYPE, "application/json");
    let mut request = request.body(body.into()).unwrap();
    let peer = PeerAddressExtension((ip(CLIENT), 5000).into());
    request.extensions_mut().insert(peer);
    request
}

async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.unwrap()
}

async fn text(response: Response<Body>) -> (StatusCode, String) {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status, String::from_utf8_lossy(&body).into_owned())
}

async fn usage(limiter: &LoginLimiter, user: &str) -> (u32, u32) {
    let report = limiter.check((ip(CLIENT), user)).await.unwrap();
    let usage = |rule| report.rule(rule).unwrap().usage;
    (usage(Rule::ADDRESS), usage(Rule::USER_ADDRESS))
}

const ALICE: &str = r#"{"username":"alice"}"#;

#[tokio::test]
async fn an_allowed_network_passes_uncounted_with_its_attempt() {
    let limiter = limiter([allow("office", Field::Network, "192.0.2.0/24")]);
    let app = app(&limiter);
    for _ in 0..50 {
        let (status, allowed_by) = text(send(&app, login(ALICE)).await).await;
        assert_eq!((status, &*allowed_by), (StatusCode::OK, "office"));
    }
    assert_eq!(usage(&limiter, "alice").await, (0, 0));
}

#[tokio::test]
async fn an_allow_lifts_the_blocks_of_what_it_names() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let plain = LoginLimiter::new(Policy::default(), std::sync::Arc::clone(&store));
    fail(&plain, ip(CLIENT), "alice", 5).await;
    refused(plain.reserve((ip(CLIENT), "alice")).await);
    let rules = set([allow("office", Field::Network, "192.0.2.0/24")]);
    let limiter = LoginLimiter::new(Policy::default(), store);
    let limiter = limiter.with_access_rules(rules).unwrap();
    assert_eq!(send(&app(&limiter), login(ALICE)).await.status(), 200);
}

#[tokio::test]
async fn a_denied_network_is_refused_before_its_body_is_read() {
    let limiter = limiter([
        deny("botnet", Field::Network, "192.0.2.1"),
        allow("office", Field::Network, "192.0.2.0/24"),
    ]);
    let app = app(&limiter);
    // A body that never ends: it would be waited for.
    let (_sender, body) = http_body_util::channel::Channel::<bytes::Bytes>::new(1);
    let response = send(&app, login(Body::new(body))).await;
    let denial = response.extensions().get::<Denial>().unwrap().clone();
    assert!(matches!(denial.kind(), DenialKind::Denied(denied) if denied.rule() == "botnet"));
    assert_eq!(denial.address(), Some(ip(CLIENT)));
    let (status, body) = text(response).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(body.contains("access is denied"), "{body}");
    assert!(
        !body.contains("botnet"),
        "the rule is not for clients: {body}"
    );
    assert_eq!(usage(&limiter, "alice").await, (0, 0));
}

/// What a body filter lets pass uncounted is denied all the same.
#[tokio::test]
async fn a_body_filter_is_no_way_around_a_deny() {
    let limiter = limiter([deny("botnet", Field::Network, CLIENT)]);
    let layer = layer(&limiter).with_body_filter(|_| Ok(false));
    let app = Router::new().route("/login", post(check).layer(layer));
    assert_eq!(
        send(&app, login(ALICE)).await.status(),
        StatusCode::FORBIDDEN
    );
}

#[tokio::test]
async fn a_denied_user_is_refused_in_every_spelling_and_from_allowed_networks() {
    let limiter = limiter([
        deny("locked", Field::User, "alice"),
        allow("office", Field::Network, "192.0.2.0/24"),
    ]);
    let app = app(&limiter);
    for user in ["alice", "ALICE", " Alice "] {
        let body = format!(r#"{{"username":"{user}"}}"#);
        let response = send(&app, login(body)).await;
        let denial = response.extensions().get::<Denial>().unwrap();
        assert_eq!(denial.user(), Some(user), "as it was typed");
        assert_eq!(response.status(), StatusCode::FORBIDDEN, "{user}");
    }
    assert_eq!(
        send(&app, login(r#"{"username":"bob"}"#)).await.status(),
        200
    );
    assert_eq!(usage(&limiter, "alice").await, (0, 0));
}

#[tokio::test]
async fn an_alias_of_a_denied_account_is_refused_when_it_is_identified() {
    let limiter = limiter([deny("locked", Field::User, "alice")]);
    let app = app(&limiter);
    let alias = r#"{"username":"a.l.ice","account":"alice"}"#;
    let response = send(&app, login(alias)).await;
    let denial = response.extensions().get::<Denial>().unwrap();
    assert_eq!(denial.identified(), Some("alice"));
    assert_eq!(denial.user(), Some("a.l.ice"));
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(usage(&limiter, "a.l.ice").await, (0, 0), "taken back");
}

#[tokio::test]
async fn a_user_who_is_allowed_is_no_way_to_guess_at_another() {
    let limiter = limiter([allow("service", Field::User, "svc")]);
    let app = app(&limiter);
    let guess = r#"{"username":"svc","account":"alice"}"#;
    for _ in 0..5 {
        assert_eq!(send(&app, login(guess)).await.status(), StatusCode::OK);
    }
    assert_eq!(send(&app, login(guess)).await.status(), 429);
    assert_eq!(usage(&limiter, "alice").await, (5, 5));
    assert_eq!(
        send(&app, login(r#"{"username":"svc"}"#)).await.status(),
        200
    );
    assert_eq!(usage(&limiter, "svc").await, (5, 0));
}

#[tokio::test]
async fn an_account_that_is_allowed_takes_its_attempt_back() {
    let limiter = limiter([allow("service", Field::User, "svc")]);
    let app = app(&limiter);
    let alias = r#"{"username":"service","account":"svc"}"#;
    for _ in 0..30 {
        assert_eq!(send(&app, login(alias)).await.status(), StatusCode::OK);
    }
    assert_eq!(usage(&limiter, "service").await, (0, 0));
}

#[tokio::test]
async fn a_rule_for_one_user_in_a_network_concerns_no_other() {
    let pair = deny("phone", Field::Network, CLIENT)
        .for_user("Alice")
        .unwrap();
    let limiter = limiter([pair]);
    let app = app(&limiter);
    assert_eq!(
        send(&app, login(ALICE)).await.status(),
        StatusCode::FORBIDDEN
    );
    assert_eq!(
        send(&app, login(r#"{"username":"bob"}"#)).await.status(),
        200
    );
    let elsewhere = limiter.reserve((ip("192.0.2.2"), "alice")).await.unwrap();
    elsewhere.settle(Outcome::Success).await.unwrap();
}

#[tokio::test]
async fn user_agents_and_paths_are_compared_as_sent() {
    let limiter = limiter([
        deny("scanner", Field::UserAgent, "sqlmap"),
        deny("old", Field::PathPrefix, "/v1"),
    ]);
    let nested = Router::new()
        .nest("/v1", app(&limiter))
        .merge(app(&limiter));
    let mut scan = login(ALICE);
    scan.headers_mut()
        .insert("user-agent", "SQLMap/1.8\u{ff}".parse().unwrap());
    assert_eq!(send(&nested, scan).await.status(), StatusCode::FORBIDDEN);
    let mut old = login(ALICE);
    *old.uri_mut() = "/%76%31/login".parse().unwrap();
    let status = send(&nested, old).await.status();
    assert!(status == 403 || status == 404, "{status}");
    let mut old = login(ALICE);
    *old.uri_mut() = "/v1/login".parse().unwrap();
    assert_eq!(send(&nested, old).await.status(), StatusCode::FORBIDDEN);
    assert_eq!(send(&nested, login(ALICE)).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn in_shadow_mode_a_denied_request_passes() {
    let limiter = limiter([deny("botnet", Field::Network, CLIENT)]);
    let layer = layer(&limiter).with_shadow(true);
    let handler = async |attempt: LoginAttempt| attempt.failed();
    let app = Router::new().route("/login", post(handler).layer(layer));
    let response = send(&app, login(ALICE)).await;
    assert_eq!(response.status(), StatusCode::OK);
    let denial = response.extensions().get::<Denial>().unwrap();
    assert!(matches!(denial.kind(), DenialKind::Denied(_)));
}

/// Without tower, values of the caller stand for the request.
#[tokio::test]
async fn a_limiter_without_a_layer_obeys_the_same_rules() {
    let limiter = limiter([
        deny("scanner", Field::UserAgent, "sqlmap"),
        allow("office", Field::Network, "192.0.2.0/24"),
    ]);
    let caller = || tower_login_rate_limit::Caller::new(ip(CLIENT)).with_user("alice");
    let attempt = limiter.reserve(caller()).await.unwrap();
    assert_eq!(attempt.allowed_by(), Some("office"));
    assert_eq!(attempt.report().remaining(), None);
    attempt.settle(Outcome::Failure).await.unwrap();
    let scan = caller().with_value("user-agent", "sqlmap/1.8");
    match limiter.reserve(scan).await {
        Err(ReserveError::Denied(denied)) => assert_eq!(denied.rule(), "scanner"),
        other => panic!("{other:?}"),
    }
}
