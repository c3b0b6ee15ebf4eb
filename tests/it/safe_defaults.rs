//! What attackers try and newcomers get wrong, each under the name of the attack or the mistake.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    time::{Duration, Instant},
};

use axum::{
    Form, Json, Router,
    body::Body,
    extract::connect_info::MockConnectInfo,
    routing::{get, post},
};
use bytes::Bytes;
use http::{
    HeaderMap, Method, Request, Response, StatusCode, header::CONTENT_TYPE, request::Parts,
};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use serde::Deserialize;
use tower::{Layer, ServiceExt, service_fn};
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, MissingUser, Policy, ReplayedBody,
    ReserveError, Rule,
    classify::{ByGrpcStatus, ByStatus},
    clock::ManualClock,
    extract::{
        BasicAuth, FormField, ForwardedAddress, Header, JsonField, NoUser, PeerAddressExtension,
    },
    normalize,
    store::MemoryStore,
};

use crate::{
    log::Log,
    support::{CLIENT, DAY, RedisServer, START, fail, ip, request},
};

const PEER: ([u8; 4], u16) = ([192, 0, 2, 1], 5000);

fn limiter() -> LoginLimiter {
    LoginLimiter::new(Policy::default(), MemoryStore::new())
}

async fn usage(limiter: &LoginLimiter) -> u32 {
    let report = limiter.check(ip(CLIENT)).await.unwrap();
    report.rule(Rule::ADDRESS).unwrap().usage
}

/// The app at a client that is not on this machine.
fn serve(app: Router) -> Router {
    app.layer(MockConnectInfo(SocketAddr::from(PEER)))
}

async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.unwrap()
}

async fn text(response: Response<Body>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8_lossy(&body).into_owned()
}

fn post_body(content_type: Option<&str>, body: &str) -> Request<Body> {
    let mut request = Request::post("/login");
    if let Some(content_type) = content_type {
        request = request.header(CONTENT_TYPE, content_type);
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

const JSON: Option<&str> = Some("application/json");
const FORM: Option<&str> = Some("application/x-www-form-urlencoded");

#[derive(Deserialize)]
struct Login {
    #[serde(alias = "email")]
    username: String,
}

/// Every password is wrong.
async fn wrong(attempt: LoginAttempt) -> StatusCode {
    attempt.failed();
    StatusCode::UNAUTHORIZED
}

async fn guesses(app: &Router, times: usize, request: impl Fn(usize) -> Request<Body>) -> usize {
    let mut checked = 0;
    for i in 0..times {
        checked += usize::from(send(app, request(i)).await.status() == StatusCode::UNAUTHORIZED);
    }
    checked
}

// --- The user ---

#[tokio::test]
async fn a_misspelled_field_does_not_switch_the_limit_by_user_off() {
    let (log, _guard) = Log::start();
    let layer = LoginRateLimitLayer::new(limiter());
    let json = layer.clone().with_body_user(JsonField::new("username"));
    let form = layer.clone().with_body_user(FormField::new("username"));
    let header = layer.with_user(Header::new("x-user".parse().unwrap()));
    let guess = |content_type, body: &'static str| move |_| post_body(content_type, body);
    let json = serve(Router::new().route("/login", post(wrong).layer(json)));
    assert_eq!(
        guesses(&json, 7, guess(JSON, r#"{"email":"victim"}"#)).await,
        5
    );
    for body in [r#"{"username":null}"#, r#"{"username":""}"#, ""] {
        assert_eq!(guesses(&json, 2, guess(JSON, body)).await, 0, "{body}");
    }
    assert_eq!(log.count("names no user"), 1, "{}", log.text());
    // All doors of a limiter share one user without a name.
    let form = serve(Router::new().route("/login", post(wrong).layer(form)));
    let header = serve(Router::new().route("/login", post(wrong).layer(header)));
    for app in [form, header] {
        assert_eq!(guesses(&app, 7, guess(FORM, "email=victim")).await, 0);
    }
}

#[tokio::test]
async fn an_app_decides_what_becomes_of_requests_without_a_user() {
    for (missing, statuses) in [
        (MissingUser::Refuse, [400; 7]),
        (MissingUser::Pass, [401; 7]),
        (MissingUser::Shared, [401, 401, 401, 401, 401, 429, 429]),
    ] {
        let layer = LoginRateLimitLayer::new(limiter())
            .with_user(Header::new("x-user".parse().unwrap()))
            .with_missing_user(missing);
        let app = serve(Router::new().route("/", get(async || "page").post(wrong).layer(layer)));
        for status in statuses {
            let request = Request::post("/").body(Body::empty()).unwrap();
            assert_eq!(send(&app, request).await.status(), status, "{missing:?}");
            let page = Request::get("/").body(Body::empty()).unwrap();
            assert_eq!(send(&app, page).await.status(), 200, "{missing:?}");
        }
    }
}

#[tokio::test]
async fn a_handler_that_names_the_user_itself_is_not_affected() {
    let layer = LoginRateLimitLayer::new(limiter());
    for layer in [layer.clone(), layer.with_user(NoUser)] {
        let app = serve(Router::new().route("/login", post(wrong).layer(layer)));
        let guess = |_| post_body(FORM, "email=victim");
        assert!(
            guesses(&app, 12, guess).await >= 12,
            "under the rule by address alone"
        );
    }
}

#[tokio::test]
async fn success_at_an_own_account_buys_no_guesses_where_the_field_is_misspelled() {
    let layer = LoginRateLimitLayer::new(limiter()).with_body_user(JsonField::new("user"));
    let handler = async |attempt: LoginAttempt, Json(login): Json<Login>| {
        if login.username == "attacker" {
            attempt.succeeded();
            StatusCode::OK
        } else {
            attempt.failed();
            StatusCode::UNAUTHORIZED
        }
    };
    let app = serve(Router::new().route("/login", post(handler).layer(layer)));
    let mut checked = 0;
    for _ in 0..10 {
        checked += guesses(&app, 4, |_| post_body(JSON, r#"{"username":"victim"}"#)).await;
        send(&app, post_body(JSON, r#"{"username":"attacker"}"#)).await;
    }
    assert_eq!(checked, 5);
}

#[tokio::test]
async fn a_json_body_in_the_guise_of_a_form_names_no_decoy() {
    // As a handler that takes both, by content type.
    let handler = async |attempt: LoginAttempt, request: axum::extract::Request| {
        let is_form = request.headers()[CONTENT_TYPE] == FORM.unwrap();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let login: Login = if is_form {
            let fields: Vec<_> = form_urlencoded::parse(&body).into_owned().collect();
            let user = fields.into_iter().find(|(name, _)| name == "username");
            let username = user.map(|(_, user)| user).unwrap_or_default();
            Login { username }
        } else {
            serde_json::from_slice(&body).unwrap()
        };
        assert!(
            !login.username.contains("decoy"),
            "only the victim is interesting"
        );
        attempt.failed();
        StatusCode::UNAUTHORIZED
    };
    let layer = LoginRateLimitLayer::new(limiter());
    let json = layer.clone().with_body_user(JsonField::new("username"));
    let app = serve(Router::new().route("/login", post(handler).layer(json)));
    let decoy = |i| {
        let body = format!(r#"{{"username":"decoy{i}","x":"&username=victim&password={i}"}}"#);
        post_body(FORM, &body)
    };
    assert_eq!(guesses(&app, 25, decoy).await, 0);
    assert_eq!(send(&app, decoy(0)).await.status(), 415);
    let mut twice = decoy(0);
    twice
        .headers_mut()
        .append(CONTENT_TYPE, "application/json".parse().unwrap());
    assert_eq!(send(&app, twice).await.status(), 415);

    let form = layer.with_body_user(FormField::new("username"));
    let app = serve(Router::new().route("/login", post(wrong).layer(form)));
    for content_type in [JSON, Some("multipart/form-data; boundary=x"), None] {
        let request = post_body(content_type, "username=decoy");
        assert_eq!(send(&app, request).await.status(), 415, "{content_type:?}");
    }
    for (content_type, status) in [
        ("application/x-www-form-urlencoded; charset=utf-8", 401),
        ("Application/X-WWW-Form-URLEncoded", 401),
    ] {
        let request = post_body(Some(content_type), "username=user");
        assert_eq!(send(&app, request).await.status(), status, "{content_type}");
    }
}

#[tokio::test]
async fn json_that_is_no_object_or_has_a_tail_is_refused() {
    let layer = LoginRateLimitLayer::new(limiter()).with_body_user(JsonField::new("username"));
    let app = serve(Router::new().route("/login", post(wrong).layer(layer)));
    for body in [
        "null",
        "true",
        "1",
        "\"victim\"",
        r#"{"username":"decoy"} {"username":"victim"}"#,
        r#"{"username":"decoy"}x"#,
        r#"{"username":true}"#,
    ] {
        assert_eq!(
            send(&app, post_body(JSON, body)).await.status(),
            400,
            "{body}"
        );
    }
    for content_type in ["application/json; charset=utf-8", "application/ld+json"] {
        let request = post_body(Some(content_type), "{\"username\":\"user\"} \n");
        assert_eq!(send(&app, request).await.status(), 401, "{content_type}");
    }
}

// --- gRPC ---

/// Responds with a message and then with this status, as a unary call does.
fn with_trailers(
    status: &'static str,
) -> Response<http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status.parse().unwrap());
    let frames = [
        Ok(Frame::data(Bytes::from_static(b"message"))),
        Ok(Frame::trailers(trailers)),
    ];
    let body = StreamBody::new(tokio_stream::iter(frames));
    let mut response = Response::new(body.boxed_unsync());
    response
        .headers_mut()
        .insert(CONTENT_TYPE, "application/grpc".parse().unwrap());
    response
}

#[tokio::test]
async fn a_failure_in_the_trailers_of_a_grpc_response_counts() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(Some(Duration::from_millis(90 * DAY)));
    let policy = || {
        Policy::default().with_known_addresses(tower_login_rate_limit::KnownAddresses::default())
    };
    for limiter in [
        LoginLimiter::new(policy(), MemoryStore::new()),
        LoginLimiter::new(policy(), redis.store().await),
    ] {
        let layer = LoginRateLimitLayer::new(limiter.clone())
            .with_user(|_: &Parts| Some("user".to_owned()))
            .with_classifier(ByGrpcStatus);
        let call = async |status: &'static str, read: bool| {
            let service = layer.layer(service_fn(async |_: Request<Full<Bytes>>| {
                Ok::<_, Infallible>(with_trailers(status))
            }));
            let response = service.oneshot(request()).await.unwrap();
            if response.status() == StatusCode::OK && read {
                let body = response.into_body().collect().await.unwrap();
                let trailers = body.trailers().cloned().unwrap_or_default();
                return trailers
                    .get("grpc-status")
                    .map(|s| s.to_str().unwrap().to_owned());
            }
            drop(response);
            limiter.all_settled().await.unwrap();
            None
        };
        let unauthenticated = "16";
        for _ in 0..3 {
            assert_eq!(call(unauthenticated, true).await.as_deref(), Some("16"));
        }
        assert_eq!(usage(&limiter).await, 3);
        let known = limiter.known_addresses("user").await.unwrap();
        assert!(known.is_empty(), "an attacker's address became known");
        // The server's fault is not an attempt.
        call("14", true).await;
        assert_eq!(usage(&limiter).await, 3);
        // A response that is not read to its end has no status.
        call("0", false).await;
        assert_eq!(usage(&limiter).await, 4);
        assert_eq!(call("0", true).await.as_deref(), Some("0"));
        assert_eq!(usage(&limiter).await, 0);
        assert_eq!(limiter.known_addresses("user").await.unwrap().len(), 1);
        // So few guesses in all.
        let mut guesses = 0;
        for _ in 0..20 {
            guesses += u32::from(call(unauthenticated, true).await.is_some());
        }
        assert_eq!(guesses, 5);
    }
}

#[tokio::test]
async fn by_status_a_failure_in_the_trailers_of_a_grpc_response_counts_too() {
    let limiter = limiter();
    let layer = LoginRateLimitLayer::new(limiter.clone()).with_classifier(ByStatus);
    let service = layer.layer(service_fn(async |_: Request<Full<Bytes>>| {
        Ok::<_, Infallible>(with_trailers("16"))
    }));
    let mut request = request();
    *request.method_mut() = Method::POST;
    let response = service.oneshot(request).await.unwrap();
    response.into_body().collect().await.unwrap();
    assert_eq!(usage(&limiter).await, 1);
}

// --- The address ---

#[test]
fn trusting_the_whole_internet_is_refused() {
    let (log, _guard) = Log::start();
    for network in ["0.0.0.0/0", "::/0", "10.0.0.0/0"] {
        let error = ForwardedAddress::x_forwarded_for([network])
            .unwrap_err()
            .to_string();
        assert!(error.contains("every client"), "{error}");
    }
    for network in [
        "10.0.0.0/8",
        "fd00::/8",
        "fc00::/7",
        "2001:db8::/32",
        "192.0.2.1",
    ] {
        ForwardedAddress::x_forwarded_for([network]).unwrap();
    }
    assert_eq!(log.count("trusted network"), 0, "{}", log.text());
    for network in ["0.0.0.0/1", "64.0.0.0/7", "2000::/3"] {
        ForwardedAddress::x_forwarded_for([network]).unwrap();
    }
    assert_eq!(log.count("trusted network"), 3, "{}", log.text());
}

#[tokio::test]
async fn a_second_content_encoding_is_noticed() {
    let layer = LoginRateLimitLayer::new(limiter()).with_body_user(JsonField::new("username"));
    let app = serve(Router::new().route("/login", post(wrong).layer(layer)));
    for (encodings, status) in [
        (&["identity"][..], 401),
        (&["identity", "gzip"], 400),
        (&["gzip", "identity"], 400),
        (&["identity, gzip"], 400),
    ] {
        let mut request = post_body(JSON, r#"{"username":"decoy"}"#);
        for encoding in encodings {
            request
                .headers_mut()
                .append("content-encoding", encoding.parse().unwrap());
        }
        assert_eq!(send(&app, request).await.status(), status, "{encodings:?}");
    }
}

#[tokio::test]
async fn a_forgotten_proxy_is_reported_once() {
    let (log, _guard) = Log::start();
    let layer = LoginRateLimitLayer::new(limiter());
    let service = layer.layer(service_fn(async |_: Request<Full<Bytes>>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    const WARNING: &str = "requests arrive through a proxy";
    let call = async |peer: &str, header: Option<&'static str>| {
        let mut request = Request::new(Full::<Bytes>::default());
        let peer = PeerAddressExtension((ip(peer), 5000).into());
        request.extensions_mut().insert(peer);
        if let Some(header) = header {
            request
                .headers_mut()
                .insert(header, "203.0.113.7".parse().unwrap());
        }
        service.clone().oneshot(request).await.unwrap();
    };
    call("127.0.0.1", None).await;
    call("203.0.113.1", Some("x-forwarded-for")).await; // a client that forges one
    assert_eq!(log.count(WARNING), 0);
    for header in [
        "x-real-ip",
        "x-forwarded-for",
        "forwarded",
        "cf-connecting-ip",
    ] {
        call("10.0.0.1", Some(header)).await;
    }
    assert_eq!(log.count(WARNING), 1, "{}", log.text());
    assert!(log.text().contains("ForwardedAddress"));
}

// --- What is an attempt ---

#[tokio::test]
async fn viewing_the_login_page_is_not_an_attempt() {
    let limiter = limiter();
    let plain = LoginRateLimitLayer::new(limiter.clone());
    let form = plain.clone().with_body_user(FormField::new("username"));
    let page = async || "<form>";
    let app = serve(
        Router::new()
            .route("/plain", get(page).post(wrong).layer(plain.clone()))
            .route("/form", get(page).post(wrong).layer(form))
            .route(
                "/moved",
                get(async || axum::response::Redirect::to("/plain")).layer(plain.clone()),
            )
            .route(
                "/basic",
                get(async || StatusCode::UNAUTHORIZED).layer(plain),
            ),
    );
    for path in ["/plain", "/form?next=/", "/moved"] {
        for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
            for _ in 0..30 {
                let request = Request::builder().method(&method).uri(path);
                let status = send(&app, request.body(Body::empty()).unwrap())
                    .await
                    .status();
                assert!(status != 429, "{method} {path}: {status}");
            }
        }
    }
    assert_eq!(usage(&limiter).await, 0);
    // A challenge that was not met is.
    send(&app, Request::get("/basic").body(Body::empty()).unwrap()).await;
    assert_eq!(usage(&limiter).await, 1);
}

#[tokio::test]
async fn a_guess_by_get_is_an_attempt_whatever_the_answer() {
    let limiter = limiter();
    let layer = LoginRateLimitLayer::new(limiter.clone()).with_user(BasicAuth);
    let app = serve(Router::new().route("/", get(async || "wrong password").layer(layer)));
    for _ in 0..6 {
        let guess = Request::get("/").header("authorization", "Basic dXNlcjpndWVzcw==");
        send(&app, guess.body(Body::empty()).unwrap()).await;
    }
    assert_eq!(usage(&limiter).await, 5);
}

#[tokio::test]
async fn a_response_that_checked_no_password_is_not_an_attempt() {
    let limiter = limiter();
    let layer = LoginRateLimitLayer::new(limiter.clone());
    let status = async |_: LoginAttempt, request: axum::extract::Request| {
        let status: u16 = request.uri().query().unwrap().parse().unwrap();
        StatusCode::from_u16(status).unwrap()
    };
    for layer in [layer.clone(), layer.with_classifier(ByStatus)] {
        let app = serve(Router::new().route("/", post(status).layer(layer)));
        for status in [408, 422, 429] {
            for _ in 0..30 {
                let request = Request::post(format!("/?{status}"))
                    .body(Body::empty())
                    .unwrap();
                assert_eq!(send(&app, request).await.status(), status);
            }
        }
        assert_eq!(usage(&limiter).await, 0);
    }
}

/// Some frameworks answer a wrong password with 422, so that is not free where the user is known, nor where
/// the handler records nothing at all.
#[tokio::test]
async fn an_app_that_answers_422_to_a_wrong_password_gives_no_free_guesses() {
    let handler = async |Form(_): Form<Login>| StatusCode::UNPROCESSABLE_ENTITY;
    let plain = || LoginRateLimitLayer::new(limiter());
    let named = || plain().with_body_user(FormField::new("username"));
    let guess = || post_body(FORM, "username=victim");
    let app = |method| serve(Router::new().route("/login", method));
    for (app, limit) in [
        (app(post(handler).layer(named())), 5),
        (
            app(post(handler).layer(named().with_classifier(ByStatus))),
            5,
        ),
        (app(post(handler).layer(plain())), 25),
    ] {
        for i in 0..30 {
            let status = send(&app, guess()).await.status();
            assert_eq!(status.as_u16(), if i < limit { 422 } else { 429 });
        }
    }
}

/// A handler that asks its attempt anything has been called, so it was no extractor that responded.
#[tokio::test]
async fn a_handler_that_uses_its_attempt_and_answers_422_gives_no_free_guesses() {
    let uses: [fn(&LoginAttempt) -> bool; 10] = [
        |attempt| attempt.address().is_some(),
        |attempt| attempt.user().is_some(),
        |attempt| attempt.identified().is_some(),
        |attempt| attempt.allowed_by().is_some(),
        |attempt| attempt.remaining().is_some(),
        |attempt| attempt.usage().is_some(),
        |attempt| attempt.report().is_some(),
        |attempt| attempt.outcome().is_some(),
        |attempt| attempt.block_if_failed().is_some(),
        |attempt| attempt.begin_check().is_ok(),
    ];
    for used in uses {
        let handler = async move |attempt: LoginAttempt, Form(_): Form<Login>| {
            used(&attempt);
            StatusCode::UNPROCESSABLE_ENTITY
        };
        let layer = || LoginRateLimitLayer::new(limiter());
        for layer in [layer(), layer().with_classifier(ByStatus)] {
            let app = serve(Router::new().route("/login", post(handler).layer(layer)));
            for i in 0..30 {
                let guess = post_body(FORM, "username=victim");
                let status = send(&app, guess).await.status();
                assert_eq!(status.as_u16(), if i < 25 { 422 } else { 429 });
            }
        }
    }
}

#[tokio::test]
async fn a_body_that_an_extractor_rejects_locks_nobody_out() {
    let (log, _guard) = Log::start();
    let limiter = limiter();
    let handler = async |attempt: LoginAttempt, Form(_): Form<Login>| {
        attempt.failed();
        StatusCode::UNAUTHORIZED
    };
    let plain = LoginRateLimitLayer::new(limiter.clone());
    let inner = plain.clone().with_filter(|_| false);
    let app = Router::new().route("/login", post(handler).layer(inner));
    let app = serve(app.layer(plain.clone()).layer(plain));
    for _ in 0..30 {
        let status = send(&app, post_body(FORM, "name=misspelled"))
            .await
            .status();
        assert_eq!(status, 422);
    }
    assert_eq!(usage(&limiter).await, 0);
    assert!(log.count("answered with 422") > 0, "{}", log.text());
}

/// A form that redirects after a wrong password too can't be told from one that does not.
#[tokio::test]
async fn by_status_a_redirect_is_no_success() {
    let limiter = limiter();
    let layer = LoginRateLimitLayer::new(limiter.clone())
        .with_body_user(FormField::new("username"))
        .with_classifier(ByStatus);
    let to_login = async || axum::response::Redirect::to("/login?error");
    let to_home = async |attempt: LoginAttempt| {
        attempt.succeeded();
        axum::response::Redirect::to("/")
    };
    let app = Router::new()
        .route("/login", post(to_login))
        .route("/right", post(to_home));
    let app = serve(app.layer(layer));
    for i in 0..4 {
        assert_eq!(usage(&limiter).await, i);
        let status = send(&app, post_body(FORM, "username=victim"))
            .await
            .status();
        assert_eq!(status, 303);
    }
    let mut right = post_body(FORM, "username=victim");
    *right.uri_mut() = "/right".parse().unwrap();
    assert_eq!(send(&app, right).await.status(), 303);
    assert_eq!(usage(&limiter).await, 0);
}

/// A wrong password may come as any error that is not clearly the server's.
#[tokio::test]
async fn a_grpc_status_that_tells_nothing_gives_no_free_guesses() {
    for (code, counts) in [
        ("2", true),  // UNKNOWN
        ("10", true), // ABORTED
        ("16", true), // UNAUTHENTICATED
        ("4", false), // DEADLINE_EXCEEDED
        ("8", false), // RESOURCE_EXHAUSTED
        ("12", false),
        ("13", false), // INTERNAL
        ("14", false), // UNAVAILABLE
        ("15", false),
    ] {
        let layer = LoginRateLimitLayer::new(limiter());
        for layer in [layer.clone(), layer.with_classifier(ByGrpcStatus)] {
            let limiter = layer.limiter().clone();
            let before = usage(&limiter).await;
            let handler = async move || {
                let content_type = (CONTENT_TYPE.as_str(), "application/grpc");
                ([content_type, ("grpc-status", code)], "")
            };
            let app = serve(Router::new().route("/login", post(handler).layer(layer)));
            send(&app, post_body(None, "")).await;
            assert_eq!(usage(&limiter).await - before, u32::from(counts), "{code}");
        }
    }
}

/// In gRPC-Web the status is in the body, which the layer does not read: inside of the layer that translates,
/// it is in trailers.
#[tokio::test]
async fn a_status_in_the_body_of_grpc_web_is_no_success() {
    let limiter = limiter();
    let layer = LoginRateLimitLayer::new(limiter.clone())
        .with_user(|_: &Parts| Some("user".to_owned()))
        .with_classifier(ByGrpcStatus);
    let handler = async || {
        let ok = &b"\0\0\0\0\0\x80\0\0\0\x0fgrpc-status:0\r\n"[..];
        ([(CONTENT_TYPE, "application/grpc-web+proto")], ok)
    };
    let app = serve(Router::new().route("/login", post(handler).layer(layer)));
    text(send(&app, post_body(None, "")).await).await;
    assert_eq!(usage(&limiter).await, 1);
}

#[tokio::test]
async fn the_refusal_of_a_layer_inside_is_no_failure_to_one_outside() {
    let (inner, outer) = (limiter(), limiter());
    let by_user =
        LoginRateLimitLayer::new(inner.clone()).with_user(|_: &Parts| Some("user".to_owned()));
    let app = Router::new()
        .route(
            "/login",
            post(async || StatusCode::UNAUTHORIZED).layer(by_user),
        )
        .layer(LoginRateLimitLayer::new(outer.clone()));
    let app = serve(app);
    for i in 0..60 {
        let request = Request::post("/login").body(Body::empty()).unwrap();
        let status = send(&app, request).await.status();
        assert_eq!(status.as_u16(), if i < 5 { 401 } else { 429 });
    }
    assert_eq!((usage(&inner).await, usage(&outer).await), (5, 5));
}

#[tokio::test]
async fn what_a_layer_in_shadow_mode_would_refuse_is_a_failure_to_one_outside() {
    let outer = limiter();
    let by_user = LoginRateLimitLayer::new(limiter())
        .with_user(|_: &Parts| Some("user".to_owned()))
        .with_shadow(true);
    let app = Router::new()
        .route(
            "/login",
            post(async || StatusCode::UNAUTHORIZED).layer(by_user),
        )
        .layer(LoginRateLimitLayer::new(outer.clone()));
    let app = serve(app);
    for _ in 0..10 {
        send(&app, Request::post("/login").body(Body::empty()).unwrap()).await;
    }
    assert_eq!(usage(&outer).await, 10);
}

#[tokio::test]
async fn the_same_layer_twice_counts_once() {
    let (log, _guard) = Log::start();
    let limiter = limiter();
    let layer =
        LoginRateLimitLayer::new(limiter.clone()).with_body_user(FormField::new("username"));
    let app = Router::new()
        .route("/login", post(wrong).layer(layer.clone()))
        .route("/reset", post(wrong))
        .layer(layer);
    let app = serve(app);
    let guess = |_| post_body(FORM, "username=victim");
    assert_eq!(guesses(&app, 7, guess).await, 5);
    assert_eq!(usage(&limiter).await, 5);
    assert_eq!(log.count("twice"), 1, "{}", log.text());
}

// --- Slow servers ---

/// A handler with a database that hangs before the password is checked, or after.
async fn hanging(attempt: LoginAttempt, when: String) -> Result<StatusCode, ReserveError> {
    if when == "after" {
        attempt.begin_check()?;
    }
    std::future::pending().await
}

async fn drop_midway(app: &Router, when: &'static str) {
    let request = Request::post("/login").body(Body::from(when)).unwrap();
    let response = tokio::time::timeout(Duration::from_secs(1), send(app, request));
    assert!(response.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_slow_database_locks_nobody_out_where_checks_are_marked() {
    let (log, _guard) = Log::start();
    for (marked, when, counted) in [
        (true, "before", 0),
        (true, "after", 5),
        (false, "before", 5),
        (false, "after", 5),
    ] {
        let limiter = limiter();
        let layer = LoginRateLimitLayer::new(limiter.clone()).with_marked_checks(marked);
        let app = serve(Router::new().route("/login", post(hanging).layer(layer)));
        for _ in 0..5 {
            drop_midway(&app, when).await;
        }
        limiter.all_settled().await.unwrap();
        assert_eq!(usage(&limiter).await, counted, "{marked} {when}");
    }
    // Once for each layer whose checks are not marked.
    assert_eq!(log.count("with_marked_checks"), 2, "{}", log.text());
}

/// The attempt is settled when the client disconnects; a task of its own must not check a password after that.
#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_gets_no_check_that_is_not_counted() {
    let limiter = limiter();
    let layer = LoginRateLimitLayer::new(limiter.clone()).with_marked_checks(true);
    let (checked, mut checks) = tokio::sync::mpsc::unbounded_channel();
    let handler = async move |attempt: LoginAttempt| {
        let task = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            checked.send(attempt.begin_check()).unwrap();
        });
        task.await.unwrap();
        StatusCode::UNAUTHORIZED
    };
    let app = serve(Router::new().route("/login", post(handler).layer(layer)));
    drop_midway(&app, "").await;
    let begun = checks.recv().await.unwrap();
    assert!(matches!(begun, Err(ReserveError::Settled)), "{begun:?}");
    assert_eq!(usage(&limiter).await, 0);
}

#[tokio::test]
async fn a_refused_user_is_not_checked_by_a_handler_that_ignores_it() {
    let limiter = limiter();
    fail(&limiter, ip(CLIENT), "victim", 5).await;
    let layer = LoginRateLimitLayer::new(limiter).with_marked_checks(true);
    let handler = async |attempt: LoginAttempt| -> Result<StatusCode, ReserveError> {
        let _ = attempt.identify("victim").await;
        attempt.begin_check()?;
        Ok(StatusCode::OK)
    };
    let app = serve(Router::new().route("/login", post(handler).layer(layer)));
    assert_eq!(send(&app, post_body(None, "")).await.status(), 429);
}

// --- The order of layers, as in the table of docs/axum.md ---

type Wrap = fn(Router) -> Router;

/// The status and the usage afterwards, with a layer inside of ours and with the same layer outside.
async fn both_orders(
    wrap: Wrap,
    handler: fn() -> axum::routing::MethodRouter,
    request: impl Fn() -> Request<Body>,
) -> [(u16, u32); 2] {
    let mut results = [(0, 0); 2];
    for (inside, result) in [true, false].into_iter().zip(&mut results) {
        let limiter = limiter();
        let layer = LoginRateLimitLayer::new(limiter.clone());
        let app = Router::new().route("/login", handler());
        let app = if inside {
            wrap(app).layer(layer)
        } else {
            wrap(app.layer(layer))
        };
        let status = send(&serve(app), request()).await.status().as_u16();
        limiter.all_settled().await.unwrap();
        *result = (status, usage(&limiter).await);
    }
    results
}

#[tokio::test(start_paused = true)]
async fn every_order_of_layers_behaves_as_its_row_describes() {
    use tower_http::{
        catch_panic::CatchPanicLayer, compression::CompressionLayer, cors::CorsLayer,
        csrf::CsrfLayer, limit::RequestBodyLimitLayer, timeout::TimeoutLayer, trace::TraceLayer,
    };
    let login = || post(wrong);
    let guess = || post_body(FORM, "guess");

    let trace: Wrap = |app| app.layer(TraceLayer::new_for_http());
    assert_eq!(both_orders(trace, login, guess).await, [(401, 1); 2]);

    let compression: Wrap = |app| app.layer(CompressionLayer::new());
    let gzip = || {
        let mut request = guess();
        let headers = request.headers_mut();
        headers.insert("accept-encoding", "gzip".parse().unwrap());
        request
    };
    assert_eq!(both_orders(compression, login, gzip).await, [(401, 1); 2]);

    let cors: Wrap = |app| app.layer(CorsLayer::permissive());
    let preflight = || {
        Request::options("/login")
            .header("origin", "https://app.example")
            .header("access-control-request-method", "POST")
            .body(Body::empty())
            .unwrap()
    };
    assert_eq!(both_orders(cors, login, preflight).await, [(200, 0); 2]);

    let timeout: Wrap = |app| {
        let timeout = Duration::from_secs(1);
        app.layer(TimeoutLayer::with_status_code(
            StatusCode::REQUEST_TIMEOUT,
            timeout,
        ))
    };
    let hang = || post(async || std::future::pending::<StatusCode>().await);
    assert_eq!(
        both_orders(timeout, hang, guess).await,
        [(408, 0), (408, 1)]
    );

    let body_limit: Wrap = |app| app.layer(RequestBodyLimitLayer::new(100));
    let reading = || post(async |body: Bytes| format!("{}", body.len()));
    let large = || {
        let mut request = post_body(FORM, &"x".repeat(1_000));
        let headers = request.headers_mut();
        headers.insert("content-length", "1000".parse().unwrap());
        request
    };
    assert_eq!(both_orders(body_limit, reading, large).await, [(413, 0); 2]);

    let catch_panic: Wrap = |app| app.layer(CatchPanicLayer::new());
    let panic = || {
        post(async || -> StatusCode { std::panic::resume_unwind(Box::new("as it was told to")) })
    };
    assert_eq!(
        both_orders(catch_panic, panic, guess).await,
        [(500, 0), (500, 1)]
    );

    let csrf: Wrap = |app| app.layer(CsrfLayer::new());
    let cross_site = || {
        let mut request = guess();
        let headers = request.headers_mut();
        headers.insert("sec-fetch-site", "cross-site".parse().unwrap());
        request
    };
    assert_eq!(
        both_orders(csrf, login, cross_site).await,
        [(403, 1), (403, 0)]
    );
}

/// The row "request decompression" of that table: this layer does not decompress, and what it can't read names no user.
#[tokio::test]
async fn a_compressed_body_is_read_only_where_decompression_is_outside() {
    use tower_http::{compression::CompressionLayer, decompression::RequestDecompressionLayer};
    // Compressed by a server, as there is no client at hand that does.
    let form = "username=user&password=guess&padding=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    let compressing = Router::new()
        .route("/", get(async move || form))
        .layer(CompressionLayer::new());
    let request = Request::get("/").header("accept-encoding", "gzip");
    let compressed = send(&compressing, request.body(Body::empty()).unwrap()).await;
    assert_eq!(compressed.headers()["content-encoding"], "gzip");
    let compressed = compressed.into_body().collect().await.unwrap().to_bytes();

    let handler = async |attempt: LoginAttempt, Form(login): Form<Login>| {
        assert_eq!(attempt.user().as_deref(), Some("user"));
        assert_eq!(login.username, "user");
        attempt.failed();
        StatusCode::UNAUTHORIZED
    };
    for (inside, answer) in [(true, (400, 0)), (false, (401, 1))] {
        let limiter = limiter();
        let layer =
            LoginRateLimitLayer::new(limiter.clone()).with_body_user(FormField::new("username"));
        let app = Router::new().route("/login", post(handler));
        let app = if inside {
            app.layer(RequestDecompressionLayer::new()).layer(layer)
        } else {
            app.layer(layer).layer(RequestDecompressionLayer::new())
        };
        let mut request = post_body(FORM, "");
        *request.body_mut() = Body::from(compressed.clone());
        let gzip = "gzip".parse().unwrap();
        request.headers_mut().insert("content-encoding", gzip);
        let status = send(&serve(app), request).await.status().as_u16();
        assert_eq!((status, usage(&limiter).await), answer, "inside: {inside}");
    }
}

/// Only outside does CORS reach the refusals, which scripts of other origins can't read otherwise.
#[tokio::test]
async fn a_refusal_has_cors_headers_only_where_cors_is_outside() {
    use tower_http::cors::CorsLayer;
    for inside in [true, false] {
        let limiter = limiter();
        for i in 0..5 {
            fail(&limiter, ip(CLIENT), &format!("user {i}"), 5).await;
        }
        let layer = LoginRateLimitLayer::new(limiter);
        let app = Router::new().route("/login", post(wrong));
        let app = if inside {
            app.layer(CorsLayer::permissive()).layer(layer)
        } else {
            app.layer(layer).layer(CorsLayer::permissive())
        };
        let mut request = post_body(FORM, "guess");
        let origin = "https://app.example".parse().unwrap();
        request.headers_mut().insert("origin", origin);
        let response = send(&serve(app), request).await;
        assert_eq!(response.status(), 429);
        let has_cors = response
            .headers()
            .contains_key("access-control-allow-origin");
        assert_eq!(has_cors, !inside);
    }
}

// --- Cost ---

#[test]
fn a_name_that_grows_when_it_is_normalized_costs_little() {
    let once = |name: &str| {
        // The quickest of many: the machine has other things to do.
        let runs = (0..300).map(|_| {
            let started = Instant::now();
            std::hint::black_box(normalize(std::hint::black_box(name)));
            started.elapsed()
        });
        runs.min().unwrap()
    };
    let honest = "jürgen.müller-lüdenscheidt@beispiel.example".repeat(2);
    let honest = once(&honest);
    for name in [
        "\u{fdfa}".repeat(341),
        "\u{fdfa}".repeat(106),
        "ΐ".repeat(160),
        "a\u{301}".repeat(5_000),
    ] {
        let cost = once(&name);
        assert!(
            cost < honest * 12,
            "{cost:?} where {honest:?} is usual: {}",
            name.len()
        );
        assert!(normalize(&name).len() <= name.len(), "it has grown");
    }
}

#[test]
fn padding_gives_a_name_no_second_budget() {
    for padding in [" ", "\u{200b}", "\u{3000}", "\t\u{ad}"] {
        let padding = padding.repeat(2_000);
        for padded in [
            format!("{padding}User"),
            format!("User{padding}"),
            format!("{padding}Us\u{ad}er{padding}"),
        ] {
            assert_eq!(normalize(&padded), "user");
        }
    }
    // A mail address is at most 254 characters long, and may be typed in full width.
    let local = "a".repeat(64);
    let wide = "\u{ff41}".repeat(64);
    let domain = "example.".repeat(23);
    assert_eq!(
        normalize(&format!("{wide}@{domain}")),
        format!("{local}@{domain}")
    );
    assert_eq!(normalize(&"Ａ".repeat(254)), "a".repeat(254));
}

#[tokio::test]
async fn a_blocked_address_is_refused_before_its_body_is_read() {
    let redis = RedisServer::start();
    let with_cache = redis.builder().with_block_cache_capacity(1_000);
    let with_cache = with_cache.connect(redis.url()).await.unwrap();
    for limiter in [limiter(), LoginLimiter::new(Policy::default(), with_cache)] {
        for i in 0..5 {
            fail(&limiter, ip(CLIENT), &format!("user {i}"), 5).await;
        }
        // Redis reports the block once; then it is known here.
        limiter.reserve(ip(CLIENT)).await.unwrap_err();
        let layer = LoginRateLimitLayer::new(limiter.clone()).with_body_user(FormField::new("u"));
        let service = layer.layer(service_fn(async |_: Request<ReplayedBody<_>>| {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }));
        let never = StreamBody::new(tokio_stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let stalled = request().map(|_| never);
        let response =
            tokio::time::timeout(Duration::from_secs(5), service.clone().oneshot(stalled));
        let response = response.await.expect("it waits for the body").unwrap();
        assert_eq!(response.status(), 429);
        // An unblock takes effect.
        limiter.unblock(ip(CLIENT)).await.unwrap();
        let frames = tokio_stream::pending::<Result<Frame<Bytes>, Infallible>>();
        let request = request().map(|_| StreamBody::new(frames));
        let response = tokio::time::timeout(Duration::from_millis(300), service.oneshot(request));
        assert!(response.await.is_err(), "it does not wait for the body");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_ends_is_given_up() {
    let limiter = limiter();
    let layer = LoginRateLimitLayer::new(limiter.clone()).with_body_user(FormField::new("u"));
    let service = layer.layer(service_fn(async |_: Request<ReplayedBody<_>>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    let never = StreamBody::new(tokio_stream::pending::<Result<Frame<Bytes>, Infallible>>());
    let response = service.oneshot(request().map(|_| never));
    let response = tokio::time::timeout(Duration::from_secs(60), response);
    let response = response.await.expect("it waits for ever").unwrap();
    assert_eq!(response.status(), 408);
    assert_eq!(usage(&limiter).await, 0);
}

// --- What is said ---

#[tokio::test]
async fn a_flood_of_malformed_requests_does_not_flood_the_log() {
    let (log, _guard) = Log::start();
    let layer = LoginRateLimitLayer::new(limiter())
        .with_body_user(JsonField::new("username"))
        .with_body_limit(100);
    let app = serve(Router::new().route("/login", post(wrong).layer(layer)));
    let twice = r#"{"username":"a","username":"b"}"#;
    let large = format!(r#"{{"username":"{}"}}"#, "a".repeat(100));
    for _ in 0..1_000 {
        assert_eq!(send(&app, post_body(JSON, twice)).await.status(), 400);
        assert_eq!(send(&app, post_body(JSON, &large)).await.status(), 413);
    }
    assert_eq!(log.count("ambiguous user"), 4, "1, 10, 100, 1000");
    assert_eq!(log.count("too large"), 4);
    assert!(log.text().contains("count=1000"), "{}", log.text());
}

#[tokio::test]
async fn an_error_of_the_configuration_is_for_the_log_and_not_for_clients() {
    let (log, _guard) = Log::start();
    let layer = LoginRateLimitLayer::new(limiter());
    let app = Router::new()
        .route("/no-address", post(wrong).layer(layer))
        .route("/no-layer", post(wrong));
    for path in ["/no-address", "/no-layer"] {
        let response = send(&app, Request::post(path).body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), 500);
        let text = text(response).await;
        for secret in ["axum", "Layer", "layer", "address", "extension"] {
            assert!(!text.contains(secret), "{path}: {text}");
        }
    }
    // A missing layer is sampled over the whole process, in which other tests forget one too.
    for _ in 0..1_000 {
        if log.text().contains("LoginRateLimitLayer::new") {
            break;
        }
        let request = Request::post("/no-layer").body(Body::empty()).unwrap();
        assert_eq!(send(&app, request).await.status(), 500);
    }
    for cause in [
        "into_make_service_with_connect_info",
        "LoginRateLimitLayer::new",
    ] {
        assert!(log.text().contains(cause), "{}", log.text());
    }
    assert_eq!(log.count("ERROR"), 2, "{}", log.text());
}

#[tokio::test]
async fn a_refusal_looks_alike_for_users_that_exist_and_users_that_do_not() {
    let limiter = limiter();
    // The layer knows one spelling, and the handler finds the account of an alias.
    let layer = LoginRateLimitLayer::new(limiter.clone())
        .with_rate_limit_fields(true)
        .with_body_user(FormField::new("username"));
    let handler = async |attempt: LoginAttempt,
                         Form(login): Form<Login>|
           -> Result<StatusCode, ReserveError> {
        if login.username.starts_with("alias") {
            attempt.identify("account").await?;
        }
        attempt.failed();
        Ok(StatusCode::UNAUTHORIZED)
    };
    let app = serve(Router::new().route("/login", post(handler).layer(layer)));
    let mut answers = Vec::new();
    for user in ["alias", "unknown"] {
        let body = format!("username={user}");
        for i in 0..5 {
            let body = if user == "alias" {
                format!("username=alias{i}")
            } else {
                body.clone()
            };
            assert_eq!(send(&app, post_body(FORM, &body)).await.status(), 401);
        }
        let response = send(&app, post_body(FORM, &body)).await;
        assert_eq!(response.status(), 429, "{user}");
        let (parts, body) = response.into_parts();
        let mut names: Vec<_> = parts.headers.keys().map(ToString::to_string).collect();
        names.sort();
        answers.push((names, body.collect().await.unwrap().to_bytes()));
    }
    assert_eq!(answers[0].0, answers[1].0);
    assert_eq!(answers[0].1, answers[1].1);
}

/// How often scripts, and commands in them, were executed; not what a store says to itself.
fn executed(redis: &RedisServer) -> BTreeMap<String, u64> {
    let stats: String = redis.command(&["INFO", "commandstats"]);
    let command = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_ours = !name.starts_with("client")
            && !matches!(name, "info" | "hello" | "publish" | "subscribe" | "ping");
        let calls = rest.split(',').next()?.parse().ok()?;
        is_ours.then(|| (name.to_owned(), calls))
    };
    stats.lines().filter_map(command).collect()
}

/// An attempt as a client sees it, to the last byte, and what it made Redis do, which a client can time.
#[derive(Debug, PartialEq)]
struct Observed {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    executed: BTreeMap<String, u64>,
}

/// The handler of docs/axum.md, which identifies an unknown user too.
async fn identifying(
    attempt: LoginAttempt,
    Form(login): Form<Login>,
) -> Result<StatusCode, ReserveError> {
    let is_known = login.username.starts_with("known");
    let account = is_known.then_some(login.username.len());
    let user = match account {
        Some(id) => format!("id:{id}"),
        None => format!("name:{}", login.username),
    };
    attempt.identify(&user).await?;
    match account {
        Some(_) => attempt.failed(),
        None => attempt.unknown_user(),
    }
    Ok(StatusCode::UNAUTHORIZED)
}

/// Seven attempts at a user from an address, none of which has the right password.
async fn observe(
    (app, limiter, redis): (&Router, &LoginLimiter, &RedisServer),
    (address, user): (&str, &str),
) -> Vec<Observed> {
    let mut all = Vec::new();
    for _ in 0..7 {
        let before = executed(redis);
        let mut request = post_body(FORM, &format!("username={user}"));
        let peer = PeerAddressExtension((ip(address), 5000).into());
        request.extensions_mut().insert(peer);
        let (parts, body) = send(app, request).await.into_parts();
        limiter.all_settled().await.unwrap();
        let mut executed = executed(redis);
        executed.retain(|name, calls| {
            *calls -= before.get(name).unwrap_or(&0);
            *calls > 0
        });
        all.push(Observed {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
            executed,
        });
    }
    all
}

/// A client learns nothing by headers, their values, bodies, or what an attempt costs, under either policy, with and
/// without a cache of blocks, whether the layer or only the handler knows the user.
#[tokio::test]
async fn an_attempt_at_a_user_who_exists_costs_and_looks_the_same_as_at_one_who_does_not() {
    for (policy, cached_blocks) in [
        (Policy::default(), 0),
        (Policy::default(), 1_000),
        (Policy::strict(), 0),
        (Policy::strict(), 1_000),
    ] {
        for by_handler_only in [false, true] {
            let redis = RedisServer::start();
            let store = redis
                .builder()
                .with_clock(ManualClock::at(START))
                .with_block_cache_capacity(cached_blocks);
            let store = store.connect(redis.url()).await.unwrap();
            let limiter = LoginLimiter::new(policy.clone(), store);
            let layer = LoginRateLimitLayer::new(limiter.clone()).with_rate_limit_fields(true);
            let route = if by_handler_only {
                post(identifying).layer(layer)
            } else {
                post(identifying).layer(layer.with_body_user(FormField::new("username")))
            };
            let app = Router::new().route("/login", route);
            let of = (&app, &limiter, &redis);
            // The first call of each script carries its text.
            observe(of, ("198.51.100.1", "first")).await;
            observe(of, ("198.51.100.2", "known too")).await;

            let known = observe(of, ("192.0.2.1", "known")).await;
            let unknown = observe(of, ("192.0.2.2", "other")).await;
            let about = format!("{cached_blocks} cached, by handler only: {by_handler_only}");
            for (i, (known, unknown)) in known.iter().zip(&unknown).enumerate() {
                assert_eq!(known, unknown, "attempt {}, {about}", i + 1);
            }
            let statuses: Vec<_> = known.iter().map(|of| of.status.as_u16()).collect();
            assert_eq!(statuses, [401, 401, 401, 401, 401, 429, 429], "{about}");
            let has_fields = |of: &Observed| of.headers.contains_key("ratelimit");
            assert!(known[..5].iter().all(has_fields), "{about}");
            let calls = |of: &Observed| of.executed.get("evalsha").copied().unwrap_or(0);
            // As docs/production.md has it: the address is reserved before the user is known, and taken back.
            if cached_blocks > 0 {
                assert_eq!(calls(&known[6]), 2, "{about}");
            }
            assert!(calls(&known[0]) >= 2, "{about}");
        }
    }
}
