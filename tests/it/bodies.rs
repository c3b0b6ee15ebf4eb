//! What the layer learns from a body: whether the request counts, and for which user.

use std::{
    convert::Infallible,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy, ReplayedBody, WithBody,
    extract::{
        BodyField, ExtractError, FormField, FromAsync, PeerAddressExtension, address_fn,
        body_user_fn, user_fn,
    },
    response::respond_fn,
    store::MemoryStore,
};

use crate::support::ip;

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";
const CLIENT: &str = "192.0.2.1";

fn limiter() -> LoginLimiter {
    LoginLimiter::new(Policy::default(), MemoryStore::new())
}

/// A token endpoint: refresh tokens are no logins.
fn token_endpoint(limiter: &LoginLimiter) -> LoginRateLimitLayer<WithBody> {
    LoginRateLimitLayer::new(limiter.clone())
        .with_body_user(BodyField::new("username"))
        .with_body_filter(|body| Ok(body.field("grant_type")?.as_deref() != Some("refresh_token")))
}

/// Sends this body through the layer to a handler that knows no password and responds with the body: with 200 to a
/// request that does not count, and else with 401.
async fn send(
    layer: &LoginRateLimitLayer<WithBody>,
    content_type: &str,
    body: &str,
) -> (StatusCode, String) {
    let handler = service_fn(async |request: Request<ReplayedBody<Full<Bytes>>>| {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let mut response = Response::new(Full::new(body));
        if let Some(attempt) = parts.extensions.get::<LoginAttempt>() {
            attempt.failed();
            *response.status_mut() = StatusCode::UNAUTHORIZED;
        }
        Ok::<_, Infallible>(response)
    });
    let request = Request::post("/token")
        .header(CONTENT_TYPE, content_type)
        .extension(PeerAddressExtension((ip(CLIENT), 5000).into()))
        .body(Full::from(body.to_owned()))
        .unwrap();
    let response = layer.layer(handler).oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn usage(limiter: &LoginLimiter, user: &str) -> u32 {
    let report = limiter.check((ip(CLIENT), user)).await.unwrap();
    report.rule("user-address").map_or(0, |rule| rule.usage)
}

#[tokio::test]
async fn refresh_tokens_are_no_logins() {
    let limiter = limiter();
    let layer = token_endpoint(&limiter);
    for _ in 0..30 {
        let refresh = "grant_type=refresh_token&refresh_token=abc";
        assert_eq!(
            send(&layer, FORM, refresh).await,
            (StatusCode::OK, refresh.to_owned())
        );
    }
    let refresh = r#"{"grant_type": "refresh_token", "refresh_token": "abc"}"#;
    assert_eq!(send(&layer, JSON, refresh).await.0, StatusCode::OK);
    for i in 0..6 {
        let password = format!("grant_type=password&username=alice&password={i}");
        let (status, body) = send(&layer, FORM, &password).await;
        if i < 5 {
            assert_eq!((status, body), (StatusCode::UNAUTHORIZED, password));
        } else {
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        }
    }
    assert_eq!(usage(&limiter, "alice").await, 5);
}

#[tokio::test]
async fn a_blocked_office_can_still_refresh_its_tokens() {
    let limiter = limiter();
    let layer = token_endpoint(&limiter);
    for i in 0..25 {
        let password = format!("grant_type=password&username=user{i}&password=x");
        assert_eq!(
            send(&layer, FORM, &password).await.0,
            StatusCode::UNAUTHORIZED
        );
    }
    let password = "grant_type=password&username=another&password=x";
    assert_eq!(
        send(&layer, FORM, password).await.0,
        StatusCode::TOO_MANY_REQUESTS
    );
    let refresh = "grant_type=refresh_token&refresh_token=abc";
    assert_eq!(send(&layer, FORM, refresh).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_decoy_grant_type_buys_no_guess() {
    let limiter = limiter();
    let layer = token_endpoint(&limiter).with_body_limit(1_000);
    let guess = "username=alice&password=x";
    let padding = "x".repeat(1_000);
    for (content_type, body, expected) in [
        (
            FORM,
            format!("grant_type=refresh_token&{guess}&grant_type=password"),
            400,
        ),
        (
            FORM,
            format!("grant_typ%65=password&{guess}&grant_type=refresh_token"),
            400,
        ),
        (
            JSON,
            r#"{"grant_type": "refresh_token", "grant_type": "password", "username": "alice"}"#
                .to_owned(),
            400,
        ),
        (
            JSON,
            r#"{"grant_type": ["refresh_token"], "username": "alice"}"#.to_owned(),
            400,
        ),
        (
            "text/plain",
            format!("grant_type=refresh_token&{guess}"),
            415,
        ),
        (
            FORM,
            format!("{guess}&pad={padding}&grant_type=refresh_token"),
            413,
        ),
        // Spellings that the filter does not know count.
        (FORM, format!("grant_type=Refresh_Token&{guess}"), 401),
        (FORM, format!("grant_type=refresh_token%00&{guess}"), 401),
        (FORM, guess.to_owned(), 401),
    ] {
        assert_eq!(
            send(&layer, content_type, &body).await.0,
            expected,
            "{content_type} {body}"
        );
    }
    assert_eq!(usage(&limiter, "alice").await, 3);
    // Passed on unread, it counts too.
    let layer = layer.with_large_bodies_passed(true);
    let large = format!("grant_type=refresh_token&pad={padding}");
    assert_eq!(send(&layer, FORM, &large).await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn filters_add_up() {
    let layer = LoginRateLimitLayer::new(limiter())
        .with_filter(|request| request.uri.path() == "/token")
        .with_body_user(BodyField::new("username"))
        .with_body_filter(|body| Ok(body.field("a")?.is_some()))
        .with_body_filter(|body| Ok(body.bytes().len() > 10 && body.request().method == "POST"));
    for (body, counts) in [
        ("a=1", true),
        ("b=1", false),
        ("b=1&c=22222", true),
        ("", false),
    ] {
        let (status, _) = send(&layer, FORM, body).await;
        assert_eq!(status == StatusCode::UNAUTHORIZED, counts, "{body}");
    }
}

#[tokio::test]
async fn a_form_and_json_name_one_user() {
    let limiter = limiter();
    let layer =
        LoginRateLimitLayer::new(limiter.clone()).with_body_user(BodyField::new("username"));
    for (content_type, body, expected) in [
        (FORM, "username=alice", 401),
        (JSON, r#"{"username": "alice"}"#, 401),
        (
            "application/vnd.api+json; charset=utf-8",
            r#"{"username": "alice"}"#,
            401,
        ),
        // Each body is read as its type states, never as the other.
        (JSON, "username=alice", 400),
        (FORM, r#"{"username": "alice"}"#, 401),
        ("text/plain", "username=alice", 415),
        ("multipart/form-data; boundary=x", "username=alice", 415),
        (FORM, "username=alice&username=bob", 400),
        (JSON, r#"{"username": "alice", "username": "bob"}"#, 400),
    ] {
        let (status, _) = send(&layer, content_type, body).await;
        assert_eq!(status, expected, "{content_type} {body}");
    }
    assert_eq!(usage(&limiter, "alice").await, 3);
}

#[tokio::test]
async fn a_user_in_a_body_can_be_awaited() {
    let limiter = limiter();
    let by_token = FromAsync::in_body(|request, body| {
        let is_known = request.uri.path() == "/token";
        async move {
            tokio::task::yield_now().await;
            match (is_known, &*body) {
                (true, b"token-of-alice") => Ok(Some("alice".to_owned())),
                (true, b"broken") => Err(ExtractError::unavailable("no database")),
                _ => Ok(None),
            }
        }
    });
    let layer = LoginRateLimitLayer::new(limiter.clone()).with_body_user(by_token);
    for i in 0..6 {
        let (status, _) = send(&layer, "text/plain", "token-of-alice").await;
        assert_eq!(status, if i < 5 { 401 } else { 429 });
    }
    assert_eq!(send(&layer, "text/plain", "broken").await.0, 503);
    assert_eq!(send(&layer, "text/plain", "another").await.0, 401);
}

#[tokio::test]
async fn a_blocked_address_causes_no_lookup_behind_a_body_filter() {
    let limiter = limiter();
    let lookups = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&lookups);
    let by_token = FromAsync::in_body(move |_, body| {
        let seen = Arc::clone(&seen);
        async move {
            seen.fetch_add(1, Ordering::SeqCst);
            Ok(String::from_utf8(body.to_vec()).ok())
        }
    });
    let layer = LoginRateLimitLayer::new(limiter)
        .with_body_user(by_token)
        .with_body_filter(|_| Ok(true));
    for i in 0..25 {
        assert_eq!(send(&layer, "text/plain", &i.to_string()).await.0, 401);
    }
    assert_eq!(send(&layer, "text/plain", "another").await.0, 429);
    assert_eq!(lookups.load(Ordering::SeqCst), 25);
}

/// That this compiles is the test: no closure names a type.
#[tokio::test]
async fn closures_need_no_types() {
    let layer = LoginRateLimitLayer::new(limiter())
        .with_address(address_fn(|request| {
            request.extensions.get::<IpAddr>().copied()
        }))
        .with_value("tenant", |request| {
            Some(request.headers.get("x-tenant")?.to_str().ok()?.to_owned())
        })
        .with_filter(|request| request.uri.path().starts_with("/login"))
        .with_responder(respond_fn(|denial, request| {
            let mut response = Response::new(Bytes::from(request.uri.path().to_owned()));
            *response.status_mut() = denial.status();
            response
        }));
    let by_head = layer.clone().with_user(user_fn(|request| {
        Some(request.headers.get("x-user")?.to_str().ok()?.to_owned())
    }));
    let by_session = layer.clone().with_user(FromAsync::new(|request| {
        let session = request.headers.get("session").cloned();
        async move { Ok(session.and_then(|session| Some(session.to_str().ok()?.to_owned()))) }
    }));
    let by_body = layer
        .clone()
        .with_body_user(body_user_fn(|request, body| {
            Some(format!(
                "{}{}",
                request.uri.host()?,
                str::from_utf8(body).ok()?
            ))
        }))
        .with_body_filter(|body| Ok(!body.bytes().is_empty()));
    let by_form = layer.with_body_user(FormField::new("user"));
    drop((by_head, by_session, by_body, by_form));
}
