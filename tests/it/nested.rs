//! Layers inside of layers, and requests inside of requests: one login is one attempt, under every name that
//! it may be checked under.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{Json, Router, body::Body, routing::post};
use http::{HeaderName, Request, StatusCode, header::CONTENT_TYPE, request::Parts};
use serde::Deserialize;
use tower::ServiceExt;
use tower_login_rate_limit::{
    Caller, Limit, LoginAttempt, LoginLimiter, LoginRateLimitLayer, MissingUser, Outcome, Part,
    Period, Policy, ReserveError, Rule,
    classify::ByStatus,
    extract::{Header, JsonField, PeerAddressExtension},
    store::MemoryStore,
};

use crate::{
    log::Log,
    support::{CLIENT, RedisServer, fail, ip},
};

#[derive(Deserialize)]
struct Login {
    username: String,
    password: String,
}

fn limiter(policy: Policy) -> LoginLimiter {
    LoginLimiter::new(policy, MemoryStore::new())
}

fn by_header() -> Header {
    Header::new(HeaderName::from_static("x-user"))
}

/// A login from an address, with a user in a header or not, and one in the body.
fn login_from(address: [u8; 4], header: &str, user: &str, password: &str) -> Request<Body> {
    let body = format!(r#"{{"username":"{user}","password":"{password}"}}"#);
    let mut request = Request::post("/login").header(CONTENT_TYPE, "application/json");
    if !header.is_empty() {
        request = request.header("x-user", header);
    }
    let mut request = request.body(Body::from(body)).unwrap();
    let peer = PeerAddressExtension((address, 5000).into());
    request.extensions_mut().insert(peer);
    request
}

fn login(header: &str, user: &str, password: &str) -> Request<Body> {
    login_from([192, 0, 2, 1], header, user, password)
}

async fn send(app: &Router, request: Request<Body>) -> u16 {
    app.clone().oneshot(request).await.unwrap().status().into()
}

/// How many attempts at this user count: at the address, at the pair.
async fn usage(limiter: &LoginLimiter, user: &str) -> (u32, u32) {
    let report = limiter.check((ip(CLIENT), user)).await.unwrap();
    let usage = |rule| report.rule(rule).unwrap().usage;
    (usage(Rule::ADDRESS), usage(Rule::USER_ADDRESS))
}

/// The password is "right", for each user.
async fn check(attempt: LoginAttempt, Json(login): Json<Login>) -> StatusCode {
    if login.password == "right" {
        attempt.succeeded();
        StatusCode::OK
    } else {
        attempt.failed();
        StatusCode::UNAUTHORIZED
    }
}

/// The same for a handler that records nothing.
async fn check_silently(Json(login): Json<Login>) -> StatusCode {
    if login.password == "right" {
        StatusCode::OK
    } else {
        StatusCode::UNAUTHORIZED
    }
}

/// A layer by header around a router, and one by body around the login in it.
fn header_around_body(limiter: &LoginLimiter, missing: MissingUser) -> [Router; 2] {
    let outer = LoginRateLimitLayer::new(limiter.clone())
        .with_user(by_header())
        .with_missing_user(missing);
    let inner =
        LoginRateLimitLayer::new(limiter.clone()).with_body_user(JsonField::new("username"));
    let recorded = Router::new()
        .route("/login", post(check).layer(inner.clone()))
        .layer(outer.clone());
    let classified = post(check_silently).layer(inner.with_classifier(ByStatus));
    let classified = Router::new()
        .route("/login", classified)
        .layer(outer.with_classifier(ByStatus));
    [recorded, classified]
}

#[tokio::test]
async fn a_decoy_in_an_outer_layers_header_buys_no_guess() {
    let app_of = |limiter: &LoginLimiter| header_around_body(limiter, MissingUser::Pass);
    for which in 0..2 {
        let limiter = limiter(Policy::strict());
        let app = &app_of(&limiter)[which];
        let mut guesses = 0;
        for i in 0..20 {
            let decoy = format!("decoy {i}");
            guesses += usize::from(send(app, login(&decoy, "alice", "guess")).await == 401);
        }
        assert_eq!(guesses, 5);
        // Nor over many addresses: the account is counted too.
        for address in 0..=255 {
            for i in 0..5 {
                let decoy = format!("decoy {address} {i}");
                let request = login_from([198, 51, 100, address], &decoy, "alice", "guess");
                guesses += usize::from(send(app, request).await == 401);
            }
        }
        assert_eq!(guesses, 100);
    }
}

/// Both layers settle the failure, which both count by address.
#[tokio::test]
async fn a_block_that_begins_behind_two_layers_is_logged_once() {
    let policy = Policy::default()
        .with_address_limit(Limit::attempts(4).within(Period::hours(1)))
        .unwrap();
    let redis = RedisServer::start();
    let limiters = [
        limiter(policy.clone()),
        LoginLimiter::new(policy, redis.store().await),
    ];
    for limiter in limiters {
        for app in header_around_body(&limiter, MissingUser::Pass) {
            let (log, _guard) = Log::start();
            for i in 0..4 {
                // Both find the same user, and then none that is the same.
                let header = if i < 2 { "alice" } else { "decoy" };
                assert_eq!(send(&app, login(header, "alice", "guess")).await, 401);
            }
            assert_eq!(log.count("login block began"), 1, "{}", log.text());
            assert_eq!(send(&app, login("", "alice", "guess")).await, 429);
            limiter.unblock((ip(CLIENT), "alice")).await.unwrap();
            limiter.unblock(ip(CLIENT)).await.unwrap();
            limiter.unblock((ip(CLIENT), "decoy")).await.unwrap();
            limiter.unblock(ip(CLIENT)).await.unwrap();
        }
    }
}

/// The other way round: the handler checks the name in the header, and the body has the decoy.
#[tokio::test]
async fn a_decoy_in_an_inner_layers_field_buys_no_guess() {
    let limiter = limiter(Policy::default());
    let [app, _] = header_around_body(&limiter, MissingUser::Pass);
    for i in 0..20 {
        let status = send(&app, login("alice", &format!("decoy {i}"), "guess")).await;
        assert_eq!(status, if i < 5 { 401 } else { 429 });
    }
    assert_eq!(usage(&limiter, "alice").await, (5, 5));
}

#[tokio::test]
async fn success_at_an_own_account_takes_nothing_back_at_the_name_in_the_header() {
    for which in 0..2 {
        let limiter = limiter(Policy::strict());
        let app = &header_around_body(&limiter, MissingUser::Pass)[which];
        fail(&limiter, ip(CLIENT), "alice", 4).await;
        fail(&limiter, ip(CLIENT), "mallory", 2).await;
        assert_eq!(send(app, login("alice", "mallory", "right")).await, 200);
        assert_eq!(usage(&limiter, "alice").await, (6, 4));
        assert_eq!(usage(&limiter, "mallory").await, (6, 2));
        for user in ["alice", "mallory"] {
            let known = limiter.known_addresses(user).await.unwrap();
            assert!(known.is_empty(), "{user}");
        }
        // Another spelling may be another account.
        assert_eq!(send(app, login("Mallory", "mallory", "right")).await, 200);
        assert_eq!(usage(&limiter, "mallory").await, (6, 2));
        // With one name it is as ever.
        assert_eq!(send(app, login("mallory", "mallory", "right")).await, 200);
        assert_eq!(usage(&limiter, "mallory").await, (4, 0));
        assert_eq!(limiter.known_addresses("mallory").await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_handler_that_names_the_account_settles_which_of_two_names_it_is() {
    async fn named(
        attempt: LoginAttempt,
        Json(login): Json<Login>,
    ) -> Result<StatusCode, ReserveError> {
        attempt.identify(&login.username).await?;
        Ok(check(attempt, Json(login)).await)
    }
    let limiter = limiter(Policy::default());
    let outer = LoginRateLimitLayer::new(limiter.clone()).with_user(by_header());
    let inner =
        LoginRateLimitLayer::new(limiter.clone()).with_body_user(JsonField::new("password"));
    let app = Router::new()
        .route("/login", post(named).layer(inner))
        .layer(outer);
    for _ in 0..3 {
        assert_eq!(send(&app, login("decoy", "alice", "guess")).await, 401);
    }
    assert_eq!(usage(&limiter, "alice").await, (3, 3));
    assert_eq!(usage(&limiter, "decoy").await.1, 0);
    assert_eq!(usage(&limiter, "guess").await.1, 0);
    assert_eq!(send(&app, login("decoy", "alice", "right")).await, 200);
    assert_eq!(usage(&limiter, "alice").await, (0, 0));
}

#[tokio::test]
async fn an_office_behind_two_layers_has_its_whole_budget() {
    let redis = RedisServer::start();
    for limiter in [
        limiter(Policy::default()),
        LoginLimiter::new(Policy::default(), redis.store().await),
    ] {
        let by_body =
            LoginRateLimitLayer::new(limiter.clone()).with_body_user(JsonField::new("username"));
        let by_header = LoginRateLimitLayer::new(limiter.clone()).with_user(by_header());
        let plain = LoginRateLimitLayer::new(limiter.clone());
        let app = Router::new()
            .route("/login", post(check).layer(by_body))
            .layer(by_header) // without the header all are one user without a name
            .layer(plain);
        for i in 0..24 {
            assert_eq!(
                send(&app, login("", &format!("user {i}"), "typo")).await,
                401
            );
        }
        assert_eq!(usage(&limiter, "user 0").await, (24, 1));
        assert_eq!(send(&app, login("", "user 0", "right")).await, 200);
        assert_eq!(usage(&limiter, "user 0").await, (23, 0));
        for i in 0..2 {
            assert_eq!(
                send(&app, login("", &format!("late {i}"), "typo")).await,
                401
            );
        }
        assert_eq!(send(&app, login("", "user 0", "right")).await, 429);
    }
}

/// A sub-request that checks nothing must not take back the attempt that it is part of.
#[tokio::test]
async fn a_page_inside_of_a_login_takes_no_guess_back() {
    let limiter = limiter(Policy::default());
    let layer = LoginRateLimitLayer::new(limiter.clone()).with_user(by_header());
    let page = Router::new()
        .route("/page", post(async || StatusCode::METHOD_NOT_ALLOWED))
        .layer(layer.clone());
    let outer = async move |request: Request<Body>| {
        let (parts, _) = request.into_parts();
        let attempt = parts.extensions.get::<LoginAttempt>().cloned().unwrap();
        let mut view = login("alice", "", "");
        *view.uri_mut() = "/page".parse().unwrap();
        *view.extensions_mut() = parts.extensions;
        assert_eq!(send(&page, view).await, 405);
        attempt.failed();
        StatusCode::UNAUTHORIZED
    };
    let app = Router::new().route("/login", post(outer)).layer(layer);
    for i in 0..7 {
        let status = send(&app, login("alice", "", "")).await;
        assert_eq!(status, if i < 5 { 401 } else { 429 });
    }
    assert_eq!(usage(&limiter, "alice").await, (5, 5));
}

#[tokio::test]
async fn values_that_only_the_inner_layer_knows_are_counted() {
    let by = |name: &'static str| {
        move |request: &Parts| {
            let value = request.headers.get(name)?.to_str().ok()?;
            Some(value.to_owned())
        }
    };
    let limit = || Limit::attempts(5).within(Period::days(1));
    let device = Rule::new("device", [Part::User, Part::value("device")], limit()).unwrap();
    let tenant = Rule::new("tenant", [Part::value("tenant")], limit()).unwrap();
    let limiter = limiter(Policy::new([device, tenant]).unwrap());
    let layer = LoginRateLimitLayer::new(limiter.clone()).with_user(by_header());
    let inner = layer.clone().with_value("device", by("x-device"));
    let app = Router::new()
        .route("/login", post(check).layer(inner))
        .layer(layer.with_value("tenant", by("x-tenant")));
    let mut request = login("alice", "alice", "guess");
    let headers = request.headers_mut();
    headers.insert("x-device", "phone".parse().unwrap());
    headers.insert("x-tenant", "acme".parse().unwrap());
    send(&app, request).await;
    let caller = Caller::new(ip(CLIENT)).with_user("alice");
    let caller = caller
        .with_value("device", "phone")
        .with_value("tenant", "acme");
    let report = limiter.check(caller).await.unwrap();
    assert_eq!(report.rule("device").unwrap().usage, 1);
    assert_eq!(report.rule("tenant").unwrap().usage, 1);
}

#[tokio::test]
async fn naming_the_user_reaches_the_limiter_of_an_outer_layer() {
    async fn named(
        attempt: LoginAttempt,
        Json(login): Json<Login>,
    ) -> Result<StatusCode, ReserveError> {
        attempt.identify(&login.username).await?;
        Ok(check(attempt, Json(login)).await)
    }
    let three = Limit::attempts(3).within(Period::days(1));
    let strict = limiter(Policy::default().with_user_address_limit(three).unwrap());
    let lax = limiter(Policy::default());
    for (outer, inner) in [(&strict, &lax), (&lax, &strict)] {
        let app = Router::new()
            .route(
                "/login",
                post(named).layer(LoginRateLimitLayer::new(inner.clone())),
            )
            .layer(LoginRateLimitLayer::new(outer.clone()));
        for i in 0..6 {
            let status = send(&app, login("", "alice", "guess")).await;
            assert_eq!(status, if i < 3 { 401 } else { 429 });
        }
        // What one refuses is a failure to neither.
        assert_eq!(usage(outer, "alice").await, (3, 3));
        assert_eq!(usage(inner, "alice").await, (3, 3));
        for limiter in [outer, inner] {
            limiter.unblock((ip(CLIENT), "alice")).await.unwrap();
            limiter.unblock(ip(CLIENT)).await.unwrap();
        }
    }
}

/// A handler that serves many logins in one request, each through the layer again.
fn batches(limiter: &LoginLimiter, at_once: bool) -> (Router, Arc<AtomicUsize>) {
    let checks = Arc::new(AtomicUsize::new(0));
    let layer = LoginRateLimitLayer::new(limiter.clone());
    let counted = Arc::clone(&checks);
    let one = async move |attempt: LoginAttempt, Json(login): Json<Login>| {
        attempt.identify(&login.username).await?;
        counted.fetch_add(1, Ordering::Relaxed);
        attempt.failed();
        Ok::<_, ReserveError>(StatusCode::UNAUTHORIZED)
    };
    let one = Router::new().route("/login", post(one).layer(layer.clone()));
    let batch = async move |request: Request<Body>| {
        let (parts, _) = request.into_parts();
        let mut running = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let mut login = login("", "alice", "guess");
            *login.extensions_mut() = parts.extensions.clone();
            running.spawn(one.clone().oneshot(login));
            if !at_once {
                running.join_next().await;
            }
        }
        running.join_all().await;
        StatusCode::OK
    };
    let app = Router::new().route("/login", post(batch)).layer(layer);
    (app, checks)
}

#[tokio::test]
async fn a_batch_of_guesses_in_one_request_is_as_many_attempts() {
    for at_once in [false, true] {
        let limiter = limiter(Policy::default());
        let (app, checks) = batches(&limiter, at_once);
        send(&app, login("", "", "")).await;
        assert_eq!(checks.load(Ordering::Relaxed), 5);
        assert_eq!(usage(&limiter, "alice").await, (5, 5));
    }
}

/// The first guess of a batch must not be moved to the name in a later one.
#[tokio::test]
async fn a_decoy_later_in_a_batch_takes_no_guess_back() {
    let limiter = limiter(Policy::default());
    let layer = LoginRateLimitLayer::new(limiter.clone());
    let one = async |attempt: LoginAttempt, Json(login): Json<Login>| {
        attempt.identify(&login.username).await?;
        attempt.record(Outcome::Failure);
        Ok::<_, ReserveError>(StatusCode::UNAUTHORIZED)
    };
    let one = Router::new().route("/login", post(one).layer(layer.clone()));
    let batch = async move |request: Request<Body>| {
        let (parts, _) = request.into_parts();
        for user in ["alice", "decoy"] {
            let mut login = login("", user, "guess");
            *login.extensions_mut() = parts.extensions.clone();
            send(&one, login).await;
        }
        StatusCode::OK
    };
    let app = Router::new().route("/login", post(batch)).layer(layer);
    for _ in 0..3 {
        send(&app, login("", "", "")).await;
    }
    assert_eq!(usage(&limiter, "alice").await, (6, 3));
}
