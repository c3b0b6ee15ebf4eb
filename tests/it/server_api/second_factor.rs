//! Logins in two steps, for apps that ask the API.

use serde_json::json;

use super::{Api, SHOP};
use crate::log::Log;

/// The client of an attacker with this many addresses.
fn address(i: u32) -> String {
    format!("198.51.100.{i}")
}

impl Api {
    /// The right password. The code is still to be asked for.
    async fn password(&self, address: &str) {
        let decision = self.reserve(address, "alice").await;
        assert_eq!(decision["admitted"], true, "{decision}");
        assert_eq!(self.settle(&decision, "mfa_pending").await.0, 200);
    }

    /// Whether this code may be checked, which is wrong.
    async fn code(&self, address: &str) -> bool {
        let body = json!({"address": address, "user": "alice", "second_factor": true});
        let (status, decision) = self.post(SHOP, "/v1/attempts", &body).await;
        assert_eq!(status, 200, "{decision}");
        if decision["admitted"] == true {
            assert_eq!(self.settle(&decision, "failure").await.0, 200);
        } else {
            assert_eq!(decision["rule"], "second-factor", "{decision}");
        }
        decision["admitted"] == true
    }
}

#[tokio::test]
async fn codes_from_a_hundred_addresses_stop_at_the_limit_of_the_account() {
    let api = Api::memory().await;
    let mut checked = 0;
    for i in 0..100 {
        api.password(&address(i)).await;
        checked += u32::from(api.code(&address(i)).await);
    }
    assert_eq!(checked, 20);
    // Passwords are another step: they are still checked, and use up no codes.
    let decision = api.reserve("192.0.2.1", "alice").await;
    assert_eq!(decision["admitted"], true, "{decision}");
}

/// The user is named with the code, or the account with its outcome.
#[tokio::test]
async fn through_a_proxy_codes_stop_at_the_limit_of_the_account_too() {
    for (method, path, admits) in [
        ("GET", "/v1/auth-request", 204),
        ("POST", "/v1/ext-authz/code", 200),
    ] {
        let api = Api::memory().await;
        let mut checked = 0;
        for i in 0..100 {
            let request = api.request(method, path).bearer_auth(SHOP);
            let request = request
                .header("x-login-address", address(i))
                .header("x-login-method", "POST")
                .header("x-login-user", "alice")
                .header("x-login-second-factor", "true");
            let answer = request.send().await.unwrap();
            if answer.status() != admits {
                assert!([403, 429].contains(&answer.status().as_u16()));
                continue;
            }
            checked += 1;
            let token = &answer.headers()["login-attempt"];
            let outcome = api.request("POST", "/v1/auth-request/outcome");
            let outcome = outcome
                .bearer_auth(SHOP)
                .header("login-attempt", token)
                .header("x-login-status", "401");
            assert_eq!(outcome.send().await.unwrap().status(), 204);
        }
        assert_eq!(checked, 20, "{path}");
    }
}

#[tokio::test]
async fn a_header_that_is_neither_true_nor_false_admits_nothing() {
    let api = Api::memory().await;
    for (values, nginx, envoy) in [
        (&["true"][..], 204, 200),
        (&["false"], 204, 200),
        (&[""], 204, 200),
        (&["yes"], 400, 400),
        (&["1"], 400, 400),
        (&["false", "true"], 400, 400),
    ] {
        for (path, expected) in [("/v1/auth-request", nginx), ("/v1/ext-authz/", envoy)] {
            let method = if path.ends_with('/') { "POST" } else { "GET" };
            let mut request = api.request(method, path).bearer_auth(SHOP);
            request = request.header("x-login-address", "192.0.2.1");
            for value in values {
                request = request.header("x-login-second-factor", *value);
            }
            let status = request.send().await.unwrap().status();
            assert_eq!(status, expected, "{path} {values:?}");
        }
    }
}

#[tokio::test]
async fn codes_that_nobody_limits_are_logged_once() {
    let (log, guard) = Log::start();
    let api = Api::memory().await;
    for i in 0..50 {
        api.password(&address(i)).await;
        // A few may be those whose codes other instances check.
        assert!(i >= 5 || log.count("await a second factor") == 0);
    }
    assert_eq!(log.count("await a second factor"), 1, "{}", log.text());
    assert!(log.text().contains("X-Login-Second-Factor: true"));
    drop(guard);

    let (log, _guard) = Log::start();
    let api = Api::memory().await;
    for i in 0..50 {
        api.password(&address(i)).await;
        if i == 10 {
            assert!(api.code(&address(i)).await);
        }
    }
    assert_eq!(log.count("await a second factor"), 0);
}
