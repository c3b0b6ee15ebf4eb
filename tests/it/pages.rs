//! What people and programs see of a refusal.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::ConnectInfo,
    http::{HeaderMap, Request, Response, StatusCode, header, request::Parts},
    response::{AppendHeaders, Html, IntoResponse, Redirect},
    routing::post,
};
use bytes::Bytes;
use http_body_util::BodyExt;
use proptest::prelude::*;
use serde_json::{Value, json};
use tower::ServiceExt;
use tower_login_rate_limit::{
    Limit, LoginAttempt, LoginLimiter, LoginRateLimitLayer, Outcome, Part, Period, Policy,
    ReserveError, Rule,
    algorithm::Algorithm,
    clock::ManualClock,
    extract::Header,
    response::{
        ByAccept, Denial, HtmlPage, HtmlTemplate, ProblemJson, Respond, RespondWith, Unit, Words,
        respond_fn,
    },
    store::MemoryStore,
};

/// What browsers send for links and forms, and for `fetch()`.
const NAVIGATION: &str =
    "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8";
const FETCH: &str = "*/*";

fn limiter() -> LoginLimiter {
    LoginLimiter::new(Policy::default(), MemoryStore::new())
}

fn layer(limiter: &LoginLimiter) -> LoginRateLimitLayer {
    let user = Header::new("x-user".parse().unwrap());
    LoginRateLimitLayer::new(limiter.clone()).with_user(user)
}

/// A login from one address, with a wrong password.
fn request(user: Option<&str>, accept: &str) -> Request<Body> {
    let mut request = Request::post("/login");
    if let Some(user) = user {
        request = request.header("x-user", user);
    }
    let peer: SocketAddr = "192.0.2.1:5000".parse().unwrap();
    let request = request
        .header("accept", accept)
        .extension(ConnectInfo(peer));
    request.body(Body::empty()).unwrap()
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }
}

async fn send(app: &Router, request: Request<Body>) -> Answer {
    let response = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer {
        status: parts.status,
        headers: parts.headers,
        text: String::from_utf8(body.to_vec()).unwrap(),
    }
}

async fn block(limiter: &LoginLimiter, user: &str) {
    for _ in 0..5 {
        let address = "192.0.2.1".parse().unwrap();
        let attempt = limiter.reserve((address, user)).await.unwrap();
        attempt.settle(Outcome::Failure).await.unwrap();
    }
}

/// Names the user in the handler, as with a form that the layer does not read.
async fn identifying(attempt: LoginAttempt) -> Result<StatusCode, ReserveError> {
    attempt.identify("alice").await?;
    attempt.failed();
    Ok(StatusCode::UNAUTHORIZED)
}

async fn failing(attempt: LoginAttempt) -> StatusCode {
    attempt.failed();
    StatusCode::UNAUTHORIZED
}

#[tokio::test]
async fn browsers_receive_a_page_and_programs_a_problem() {
    let limiter = limiter();
    block(&limiter, "alice").await;
    let app = Router::new().route("/login", post(failing).layer(layer(&limiter)));

    let page = send(&app, request(Some("alice"), NAVIGATION)).await;
    assert_eq!(page.status, 429);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert_eq!(page.header("vary"), "accept");
    assert_eq!(page.header("cache-control"), "no-store");
    let policy = page.header("content-security-policy");
    assert!(
        policy.starts_with("default-src 'none'; style-src 'sha256-"),
        "{policy}"
    );
    assert!(page.header("retry-after").parse::<u64>().unwrap() > 86_300);
    assert!(page.text.contains("<h1>Too many failed attempts</h1>"));
    assert!(
        page.text.contains("<strong>1 day</strong>"),
        "{}",
        page.text
    );

    let problem = send(&app, request(Some("alice"), FETCH)).await;
    assert_eq!(problem.status, 429);
    assert_eq!(problem.header("content-type"), "application/problem+json");
    assert_eq!(problem.header("vary"), "accept");
    let problem: Value = serde_json::from_str(&problem.text).unwrap();
    assert_eq!(problem["reason"], "blocked");
}

/// Without the nonce of a response and without numbers: a second may pass between two responses.
fn timeless(text: &str) -> String {
    let mut timeless = String::new();
    let mut rest = text;
    for before in ["nonce=\"", "'nonce-"] {
        if let Some((head, tail)) = rest.split_once(before) {
            assert!(tail[..32].bytes().all(|b| b.is_ascii_hexdigit()), "{text}");
            timeless += head;
            rest = &tail[32..];
        }
    }
    timeless += rest;
    timeless.replace(|c: char| c.is_ascii_digit(), "0")
}

/// `?` behind `identify` is rendered as the layer renders its own refusals, in every form.
#[tokio::test]
async fn a_refusal_in_the_handler_looks_like_one_of_the_layer() {
    let limiter = limiter();
    block(&limiter, "alice").await;
    let page = |denial: &Denial, request: &Parts| {
        let path = request.uri.path();
        let peer = request.extensions.get::<ConnectInfo<SocketAddr>>();
        format!("{} at {path} from {peer:?}", denial.status())
    };
    for has_own_page in [false, true] {
        let own = |layer: LoginRateLimitLayer| {
            if has_own_page {
                layer.with_responder(ByAccept::new().with_html(HtmlTemplate::new(page)))
            } else {
                layer
            }
        };
        let by_layer = post(failing).layer(own(layer(&limiter)));
        let by_handler = own(LoginRateLimitLayer::new(limiter.clone()));
        let by_handler = post(identifying).layer(by_handler);
        for accept in [NAVIGATION, FETCH] {
            let answers = [&by_layer, &by_handler].map(|route| {
                let app = Router::new().route("/login", route.clone());
                async move { send(&app, request(Some("alice"), accept)).await }
            });
            let [layer, handler] = answers;
            let (layer, handler) = (layer.await, handler.await);
            assert_eq!(
                (layer.status, handler.status),
                (StatusCode::TOO_MANY_REQUESTS, layer.status)
            );
            // The time may go on by a second in between.
            let skip = |name: &&header::HeaderName| {
                *name != header::RETRY_AFTER && *name != header::CONTENT_LENGTH
            };
            for name in layer.headers.keys().filter(skip) {
                let [layer, handler] =
                    [&layer, &handler].map(|answer| timeless(answer.header(name.as_str())));
                assert_eq!(layer, handler, "{name}");
            }
            if accept == NAVIGATION {
                assert_eq!(timeless(&layer.text), timeless(&handler.text));
            }
            let is_json = handler.header("content-type").contains("json");
            assert_eq!(is_json, accept == FETCH);
        }
    }
}

#[tokio::test]
async fn what_inner_layers_added_to_a_refusal_of_the_handler_stays() {
    let limiter = limiter();
    block(&limiter, "alice").await;
    let adds = axum::middleware::map_response(async |response: axum::response::Response| {
        let set = [
            (header::SET_COOKIE, "a=1"),
            (header::SET_COOKIE, "b=2"),
            (header::VARY, "origin"),
            (header::CONTENT_ENCODING, "br"),
            (header::CONTENT_LENGTH, "7"),
        ];
        (AppendHeaders(set), response)
    });
    let layer = LoginRateLimitLayer::new(limiter);
    let app = Router::new().route(
        "/login",
        post(identifying)
            .layer::<_, std::convert::Infallible>(adds)
            .layer(layer),
    );
    let page = send(&app, request(None, NAVIGATION)).await;
    assert!(page.header("content-type").starts_with("text/html"));
    let all = |name: &str| page.headers.get_all(name).iter().count();
    assert_eq!(
        (all("set-cookie"), all("vary"), all("content-type")),
        (2, 2, 1)
    );
    assert!(!page.headers.contains_key("content-encoding"));
    assert_ne!(page.header("content-length"), "7");
}

/// The head of a request is kept for the handler's `?`, and may hold the attempt that holds it.
#[tokio::test]
async fn a_request_that_holds_its_own_attempt_is_freed() {
    #[derive(Clone)]
    struct Own(Arc<Mutex<Option<LoginAttempt>>>);

    let own = Own(Arc::default());
    let limiter = limiter();
    let handler = async |attempt: LoginAttempt, Extension(own): Extension<Own>| {
        *own.0.lock().unwrap() = Some(attempt.clone());
        attempt.failed();
    };
    let layer = LoginRateLimitLayer::new(limiter);
    let app = Router::new().route("/login", post(handler).layer(layer));
    let mut request = request(None, FETCH);
    request.extensions_mut().insert(own.clone());
    let response = app.oneshot(request).await.unwrap();
    drop(response);
    assert_eq!(Arc::strong_count(&own.0), 1);
}

#[tokio::test]
async fn known_and_unknown_users_see_the_same_page() {
    let limiter = limiter();
    let app = Router::new().route("/login", post(failing).layer(layer(&limiter)));
    let mut pages = Vec::new();
    for user in ["alice", "nobody"] {
        block(&limiter, user).await;
        let page = send(&app, request(Some(user), NAVIGATION)).await.text;
        assert!(page.contains("<time datetime="), "{page}");
        pages.push(timeless(&page));
    }
    assert_eq!(pages[0], pages[1]);
}

/// The app's own responder learns whom it refuses, as typed and as identified.
#[tokio::test]
async fn a_responder_learns_whose_refusal_it_is() {
    let limiter = limiter();
    block(&limiter, "alice").await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noting = Arc::clone(&seen);
    let responder = respond_fn(move |denial, _| {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let whose = (owned(denial.user()), owned(denial.identified()));
        noting.lock().unwrap().push((denial.address(), whose));
        Response::new(Bytes::new())
    });
    let by_layer = layer(&limiter).with_responder(responder.clone());
    let by_handler = layer(&limiter).with_responder(responder);
    let app = Router::new()
        .route("/login", post(failing).layer(by_layer))
        .route("/identified", post(identifying).layer(by_handler));
    send(&app, request(Some("Alice"), FETCH)).await;
    let mut aliased = request(Some("alias"), FETCH);
    *aliased.uri_mut() = "/identified".parse().unwrap();
    send(&app, aliased).await;
    let address: Option<IpAddr> = "192.0.2.1".parse().ok();
    let name = |name: &str| Some(name.to_owned());
    assert_eq!(
        *seen.lock().unwrap(),
        [
            (address, (name("Alice"), None)),
            (address, (name("alias"), name("alice"))),
        ]
    );
}

/// The answer to a blocked user.
async fn answer(limiter: &LoginLimiter, responder: impl Respond) -> Answer {
    let layer = layer(limiter).with_responder(responder);
    let app = Router::new().route("/login", post(failing).layer(layer));
    send(&app, request(Some("alice"), NAVIGATION)).await
}

#[tokio::test]
async fn a_responder_returns_whatever_axum_can_turn_into_a_response() {
    let limiter = limiter();
    block(&limiter, "alice").await;
    let html = answer(
        &limiter,
        RespondWith::new(|denial, _| (denial.status(), Html("<h1>no</h1>"))),
    )
    .await;
    assert_eq!(
        (html.status.as_u16(), html.text.as_str()),
        (429, "<h1>no</h1>")
    );
    let json = answer(
        &limiter,
        RespondWith::new(|_, request| Json(json!({"path": request.uri.path()}))),
    )
    .await;
    assert_eq!(
        (json.status.as_u16(), json.text.as_str()),
        (200, r#"{"path":"/login"}"#)
    );
    let redirect = answer(&limiter, RespondWith::new(|_, _| Redirect::to("/blocked"))).await;
    assert_eq!(
        (redirect.status.as_u16(), redirect.header("location")),
        (303, "/blocked")
    );
    let frames = answer(
        &limiter,
        RespondWith::new(|_, _| {
            let frames = ["a", "b", "c"].map(Ok::<_, std::convert::Infallible>);
            Body::from_stream(tokio_stream::iter(frames)).into_response()
        }),
    )
    .await;
    assert_eq!(frames.text, "abc");
    let pending = answer(
        &limiter,
        RespondWith::new(|_, _| {
            Body::from_stream(tokio_stream::pending::<
                Result<&str, std::convert::Infallible>,
            >())
        }),
    )
    .await;
    assert_eq!(pending.status, 429);
    assert_eq!(pending.header("content-type"), "application/problem+json");
}

struct German;

impl Words for German {
    fn language(&self) -> &str {
        "de"
    }

    fn count(&self, n: u64, unit: Unit) -> String {
        let (one, many) = match unit {
            Unit::Day => ("Tag", "Tagen"),
            Unit::Hour => ("Stunde", "Stunden"),
            Unit::Minute => ("Minute", "Minuten"),
            _ => ("Sekunde", "Sekunden"),
        };
        format!("{n} {}", if n == 1 { one } else { many })
    }

    fn heading(&self, _: &Denial) -> String {
        "Zu viele Fehlversuche".to_owned()
    }

    fn advice(&self, _: &Denial, wait: Option<&str>) -> String {
        match wait {
            Some(wait) => format!("Sie können es in {wait} wieder versuchen."),
            None => "Die Anmeldung ist gesperrt.".to_owned(),
        }
    }
}

#[tokio::test]
async fn the_page_speaks_the_language_of_the_app() {
    let limit = Limit::attempts(1)
        .within(Period::days(7))
        .blocked_for(Duration::from_secs(2 * 86_400 + 3600));
    let policy = Policy::default().with_user_address_limit(limit).unwrap();
    let clock = Arc::new(ManualClock::at(1));
    let limiter = LoginLimiter::new(policy, MemoryStore::new().with_clock(clock));
    let page = HtmlPage::new().with_words(German);
    let layer = layer(&limiter).with_responder(ByAccept::new().with_html(page));
    let app = Router::new().route("/login", post(failing).layer(layer));
    send(&app, request(Some("alice"), NAVIGATION)).await;
    let page = send(&app, request(Some("alice"), NAVIGATION)).await.text;
    assert!(page.contains("<html lang=\"de\">"), "{page}");
    assert!(
        page.contains(
            "<p>Sie können es in <strong>2 Tagen 1 Stunde</strong> wieder versuchen.</p>"
        ),
        "{page}"
    );
}

/// A program that asks for JSON alone is not sent a page, whatever the layer's page is.
#[tokio::test]
async fn problem_json_alone_has_no_vary() {
    let limiter = limiter();
    block(&limiter, "alice").await;
    let layer = layer(&limiter).with_responder(ProblemJson);
    let app = Router::new().route("/login", post(failing).layer(layer));
    let problem = send(&app, request(Some("alice"), NAVIGATION)).await;
    assert_eq!(problem.header("content-type"), "application/problem+json");
    assert_eq!(problem.header("vary"), "");
}

#[tokio::test]
async fn the_failure_that_begins_the_block_reports_it() {
    let limiter = limiter();
    let handler = async |attempt: LoginAttempt| {
        attempt.failed();
        Json(
            json!({"left": attempt.remaining(), "block": attempt.block_if_failed().map(|p| p.to_string())}),
        )
    };
    let app = Router::new().route("/login", post(handler).layer(layer(&limiter)));
    for left in (0..5).rev() {
        let answer = send(&app, request(Some("alice"), FETCH)).await;
        let answer: Value = serde_json::from_str(&answer.text).unwrap();
        let block = if left == 0 {
            json!("1 day")
        } else {
            Value::Null
        };
        assert_eq!(answer, json!({"left": left, "block": block}));
    }
    assert_eq!(send(&app, request(Some("alice"), FETCH)).await.status, 429);
    // Others of the address are admitted, until its own limit is reached: the longer block counts.
    for user in ["b", "c", "d"] {
        block(&limiter, user).await;
    }
    for i in 0..5 {
        let answer = send(&app, request(Some("e"), FETCH)).await;
        let answer: Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!(answer["block"].as_str(), (i == 4).then_some("7 days"));
    }
}

fn limit() -> impl Strategy<Value = Limit> {
    let counted = (
        1_u32..6,
        1_u64..100_000,
        prop::option::of(1_u64..100_000),
        0..3_u8,
    );
    let counted = counted.prop_map(|(attempts, within, block, kind)| {
        let within = Period::Of(Duration::from_millis(within));
        let mut limit = Limit::attempts(attempts).within(within).without_block();
        if let Some(block) = block {
            limit = limit.blocked_for(Duration::from_millis(block));
        }
        match kind {
            0 => limit.build(),
            1 => limit.as_token_bucket().build(),
            _ => limit.as_sliding_counter().build(),
        }
        .unwrap()
    });
    // Jitter can make a wait of a millisecond none.
    let wait = prop_oneof![Just(0), 100_u64..5_000];
    let waits = prop::collection::vec(wait, 1..6);
    let backoff = (waits, 0_u32..50).prop_filter_map("no such waits", |(mut waits, jitter)| {
        waits.sort_unstable();
        let waits = waits.into_iter().map(Duration::from_millis);
        Limit::backoff(waits).with_jitter(jitter).build().ok()
    });
    prop_oneof![2 => counted, 1 => backoff]
}

proptest! {
    /// What is foreseen before a failure is what the store says after it, or less where it can't be known.
    #[test]
    fn a_block_is_foreseen(limit in limit(), gaps in prop::collection::vec(0_u64..3_000, 1..20)) {
        let clock = Arc::new(ManualClock::at(1_000_000));
        let store = MemoryStore::new().with_clock(Arc::clone(&clock));
        let is_window = limit.algorithm() == Algorithm::SlidingWindow;
        let is_exact = (is_window && limit.block().is_some()) || (limit.waits().len() > 0 && limit.jitter() == 0);
        let rule = Rule::new("by-user", [Part::User], limit).unwrap();
        let limiter = LoginLimiter::new(Policy::new([rule]).unwrap(), store);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let caller = ("192.0.2.1".parse().unwrap(), "alice");
            for gap in gaps {
                clock.advance(Duration::from_millis(gap));
                let Ok(attempt) = limiter.reserve(caller).await else { continue };
                let foreseen = attempt.report().block_if_failed();
                attempt.settle(Outcome::Failure).await.unwrap();
                let refusal = limiter.check(caller).await.unwrap().refusal();
                let lifts = refusal.map(|refusal| refusal.lifts());
                if is_exact {
                    prop_assert_eq!(foreseen, lifts);
                } else {
                    prop_assert_eq!(foreseen.is_some(), lifts.is_some());
                    prop_assert!(foreseen <= lifts, "{:?} {:?}", foreseen, lifts);
                }
            }
            Ok(())
        })?;
    }
}
