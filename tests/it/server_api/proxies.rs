//! Attempts that proxies reserve.

use serde_json::json;
use tower_login_rate_limit::Rule;

use super::{Api, SHOP};
use crate::support::ip;

const HOME: &str = "192.0.2.1";

/// The status, and the values of these headers.
async fn ask(
    api: &Api,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
) -> (u16, Option<String>, Option<String>) {
    let mut request = api.request(method, path).bearer_auth(SHOP);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.expect("an answer");
    let value = |name| {
        let value = response.headers().get(name);
        value.map(|value| value.to_str().expect("a text").to_owned())
    };
    (
        response.status().as_u16(),
        value("login-attempt"),
        value("retry-after"),
    )
}

const NGINX: (&str, &str) = ("GET", "/v1/auth-request");
const OUTCOME: (&str, &str) = ("POST", "/v1/auth-request/outcome");

#[tokio::test]
async fn nginx_guards_a_login_without_code() {
    let api = Api::memory().await;
    let login = [
        ("x-login-address", HOME),
        ("x-login-method", "POST"),
        ("x-login-user", "alice"),
    ];
    for i in 0..5 {
        let (status, token, _) = ask(&api, NGINX, &login).await;
        assert_eq!(status, 204);
        let token = token.expect("a token");
        // A redirect is a failure too.
        let code = if i % 2 == 0 { "401" } else { "302" };
        let outcome = [("login-attempt", &*token), ("x-login-status", code)];
        assert_eq!(ask(&api, OUTCOME, &outcome).await.0, 204);
        assert_eq!(ask(&api, OUTCOME, &outcome).await.0, 409);
    }
    let (status, token, retry_after) = ask(&api, NGINX, &login).await;
    assert_eq!((status, token), (403, None));
    assert!(
        retry_after
            .expect("seconds")
            .parse::<u64>()
            .expect("a number")
            > 80_000
    );

    let basic = [
        ("x-login-address", HOME),
        ("x-login-authorization", "Basic YWxpY2U6cGFzcw=="),
    ];
    assert_eq!(ask(&api, NGINX, &basic).await.0, 403);
    let bob = [("x-login-address", HOME), ("x-login-user", "bob")];
    let (status, token, _) = ask(&api, NGINX, &bob).await;
    assert_eq!(status, 204);
    let token = token.expect("a token");
    let outcome = [("login-attempt", &*token), ("x-login-outcome", "success")];
    assert_eq!(ask(&api, OUTCOME, &outcome).await.0, 204);
}

#[tokio::test]
async fn viewing_a_page_is_no_attempt() {
    let api = Api::memory().await;
    for method in ["GET", "HEAD", "OPTIONS"] {
        let view = [("x-login-address", HOME), ("x-login-method", method)];
        for _ in 0..30 {
            let (status, token, _) = ask(&api, NGINX, &view).await;
            assert_eq!((status, token), (204, None));
            if method != "HEAD" {
                let (status, token, _) = ask(&api, (method, "/v1/ext-authz/login"), &view).await;
                assert_eq!((status, token), (200, None));
            }
        }
    }
    let none = [("login-attempt", ""), ("x-login-status", "200")];
    assert_eq!(ask(&api, OUTCOME, &none).await.0, 204);
    let report = api.limiter.check(ip(HOME)).await.expect("a report");
    assert_eq!(
        report.rule(Rule::ADDRESS).map(|standing| standing.usage),
        Some(0)
    );
}

#[tokio::test]
async fn a_client_chooses_no_key_through_a_proxy() {
    let api = Api::memory().await;
    let login = [("x-login-address", HOME), ("idempotency-key", "session-1")];
    for _ in 0..3 {
        assert_eq!(ask(&api, NGINX, &login).await.0, 204);
        assert_eq!(
            ask(&api, ("POST", "/v1/ext-authz/login"), &login).await.0,
            200
        );
    }
    let report = api.limiter.check(ip(HOME)).await.expect("a report");
    assert_eq!(
        report.rule(Rule::ADDRESS).map(|standing| standing.usage),
        Some(6)
    );
}

#[tokio::test]
async fn envoy_guards_a_login() {
    let api = Api::memory().await;
    let authz = ("POST", "/v1/ext-authz/login");
    let login = [
        ("x-forwarded-for", "203.0.113.9, 192.0.2.1"),
        ("x-login-user", "alice"),
    ];
    for _ in 0..5 {
        let (status, token, _) = ask(&api, authz, &login).await;
        assert_eq!(status, 200);
        let path = format!("/v1/attempts/{}/outcome", token.expect("a token"));
        let outcome = json!({"outcome": "failure"});
        assert_eq!(api.post(SHOP, &path, &outcome).await.0, 200);
    }
    let (status, token, retry_after) = ask(&api, authz, &login).await;
    assert_eq!((status, token), (429, None));
    assert!(retry_after.is_some());
    let report = api
        .limiter
        .check((ip(HOME), "alice"))
        .await
        .expect("a report");
    assert!(report.refusal().is_some());
}

#[tokio::test]
async fn a_proxy_that_is_misconfigured_admits_nothing() {
    let api = Api::memory().await;
    for headers in [
        &[][..],
        &[("x-login-address", "unix:")],
        &[("x-login-address", HOME), ("x-login-address", HOME)],
        &[
            ("x-login-address", HOME),
            ("x-login-authorization", "Basic !"),
        ],
    ] {
        assert_eq!(ask(&api, NGINX, headers).await.0, 400, "{headers:?}");
        assert_eq!(
            ask(&api, ("PUT", "/v1/ext-authz/"), headers).await.0,
            400,
            "{headers:?}"
        );
    }
    let (_, token, _) = ask(&api, NGINX, &[("x-login-address", HOME)]).await;
    let token = token.expect("a token");
    for outcome in [
        &[("login-attempt", &*token)][..],
        &[("login-attempt", &*token), ("x-login-status", "abc")],
        &[("login-attempt", &*token), ("x-login-outcome", "yes")],
    ] {
        assert_eq!(ask(&api, OUTCOME, outcome).await.0, 400, "{outcome:?}");
    }
}

/// Browsers send them with every request, the first GET included.
#[tokio::test]
async fn guesses_by_basic_authentication_are_limited_whatever_the_method() {
    for method in ["GET", "HEAD", "OPTIONS"] {
        let api = Api::memory().await;
        let guess = [
            ("x-login-address", HOME),
            ("x-login-method", method),
            ("x-login-authorization", "Basic YWxpY2U6cGFzcw=="),
        ];
        for i in 0..5 {
            let path = if i % 2 == 0 {
                NGINX
            } else {
                (method, "/v1/ext-authz/login")
            };
            let (status, token, _) = ask(&api, path, &guess).await;
            assert!(matches!(status, 200 | 204), "{method} {status}");
            let token = token.expect("a token");
            let outcome = [("login-attempt", &*token), ("x-login-status", "401")];
            assert_eq!(ask(&api, OUTCOME, &outcome).await.0, 204);
        }
        assert_eq!(ask(&api, NGINX, &guess).await.0, 403, "{method}");
        let authz = (method, "/v1/ext-authz/login");
        assert_eq!(ask(&api, authz, &guess).await.0, 429, "{method}");
    }
}

#[tokio::test]
async fn nginx_refuses_a_success_whose_account_is_blocked() {
    let api = Api::memory().await;
    api.fail(HOME, "account-17", 5).await;
    let (_, token, _) = ask(&api, NGINX, &[("x-login-address", HOME)]).await;
    let token = token.expect("a token");
    let outcome = [
        ("login-attempt", &*token),
        ("x-login-status", "200"),
        ("x-login-user", "account-17"),
    ];
    assert_eq!(ask(&api, OUTCOME, &outcome).await.0, 403);
    let report = api.limiter.check(ip(HOME)).await.expect("a report");
    let usage = report.rule(Rule::ADDRESS).map(|standing| standing.usage);
    assert_eq!(usage, Some(6), "it counts as a failure");
}
