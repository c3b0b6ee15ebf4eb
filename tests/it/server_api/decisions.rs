//! Attempts that are reserved and settled by HTTP.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tower_login_rate_limit::{
    Limit, LoginLimiter, Part, Period, Policy, Rule,
    access::{AccessRule, AccessRules, Field},
    store::{MemoryStore, RedisStore},
};

use super::{Api, OPERATOR, READER, SHOP, fleet};
use crate::support::{RedisServer, ip};

const HOME: &str = "192.0.2.1";

#[tokio::test]
async fn a_login_is_refused_after_five_failures_with_the_time_to_wait() {
    let redis = RedisServer::start();
    let [api] = fleet(&redis).await;
    let first = api.reserve(HOME, "alice").await;
    assert_eq!(first["admitted"], true);
    assert_eq!(
        (&first["rule"], &first["usage"]),
        (&json!("user-address"), &json!(1))
    );
    assert_eq!(
        (&first["limit"], &first["remaining"]),
        (&json!(5), &json!(4))
    );
    assert!(first["lease_ms"].as_u64() > Some(1_000), "{first}");
    let (status, settled) = api.settle(&first, "failure").await;
    assert_eq!(status, 200, "{settled}");
    assert_eq!(
        (&settled["settled"], &settled["refused"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(
        (&settled["next"]["admitted"], &settled["next"]["remaining"]),
        (&json!(true), &json!(4))
    );
    api.fail(HOME, "alice", 4).await;

    for path in ["/v1/attempts", "/v1/check"] {
        let body = json!({"address": HOME, "user": "Alice"});
        let (status, refused) = api.post(SHOP, path, &body).await;
        assert_eq!(status, 200);
        for (field, value) in [
            ("admitted", json!(false)),
            ("blocked", json!(true)),
            ("reason", json!("blocked")),
            ("rule", json!("user-address")),
            (
                "message",
                json!("too many failed attempts, try again in 1 day"),
            ),
            ("lifts", json!("in 1 day")),
            ("usage", json!(5)),
            ("limit", json!(5)),
            ("rate", json!(5.0)),
            ("remaining", json!(0)),
            ("token", json!(null)),
        ] {
            assert_eq!(refused[field], value, "{field} {refused}");
        }
        assert!(
            refused["lifts_in_ms"].as_u64() > Some(80_000_000),
            "{refused}"
        );
        assert!(refused["retry_after"].as_u64() > Some(80_000), "{refused}");
    }
    assert_eq!(api.reserve(HOME, "bob").await["admitted"], true);
}

#[tokio::test]
async fn a_check_writes_nothing() {
    let api = Api::memory().await;
    for _ in 0..30 {
        let body = json!({"address": HOME, "user": "alice"});
        let (status, decision) = api.post(SHOP, "/v1/check", &body).await;
        assert_eq!((status, &decision["remaining"]), (200, &json!(5)));
    }
}

#[tokio::test]
async fn an_outcome_counts_once() {
    let redis = RedisServer::start();
    let [redis] = fleet(&redis).await;
    for api in [Api::memory().await, redis] {
        for (first, again) in [
            ("failure", "not_an_attempt"),
            ("failure", "success"),
            ("failure", "mfa_pending"),
            ("failure", "failure"),
            ("success", "failure"),
            ("not_an_attempt", "failure"),
        ] {
            let user = format!("{first}-{again}");
            let decision = api.reserve(HOME, &user).await;
            assert_eq!(api.settle(&decision, first).await.0, 200, "{user}");
            let usage = async || {
                let report = api
                    .limiter
                    .check((ip(HOME), &*user))
                    .await
                    .expect("a report");
                report
                    .rule(Rule::USER_ADDRESS)
                    .map(|standing| standing.usage)
            };
            let after = usage().await;
            let (status, problem) = api.settle(&decision, again).await;
            assert_eq!(status, 409, "{user} {problem}");
            assert_eq!(usage().await, after, "{user}");
        }
    }
}

#[tokio::test]
async fn of_two_outcomes_at_once_one_counts() {
    let api = Api::memory().await;
    for i in 0..20 {
        let decision = api.reserve(HOME, &format!("user-{i}")).await;
        let both = tokio::join!(
            api.settle(&decision, "failure"),
            api.settle(&decision, "failure")
        );
        let mut statuses = [both.0.0, both.1.0];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409]);
    }
}

#[tokio::test]
async fn forged_and_foreign_tokens_settle_nothing() {
    let api = Api::memory().await;
    let other = Api::start_with(api.limiter.clone(), |server| {
        server
            .with_secret("another secret, 32 bytes or more")
            .expect("long enough")
    });
    let (other, decision) = (other.await, api.reserve(HOME, "alice").await);
    let token = decision["token"].as_str().expect("a token");
    assert!(!token.contains("alice") && !token.contains(HOME));
    let uuid = "3fa85f64-5717-4562-b3fc-2c963f66afa6";
    let other_letter = if &token[40..41] == "A" { "B" } else { "A" };
    let changed = format!("{}{other_letter}{}", &token[..40], &token[41..]);
    for forged in [uuid, "x", &token[1..], &changed, "%00", "a%2Fb", "ä"] {
        let path = format!("/v1/attempts/{forged}/outcome");
        let (status, problem) = api.post(SHOP, &path, &json!({"outcome": "success"})).await;
        assert_eq!(status, 404, "{forged} {problem}");
    }
    assert_eq!(other.settle(&decision, "success").await.0, 404);
    let report = api
        .limiter
        .check((ip(HOME), "alice"))
        .await
        .expect("a report");
    assert_eq!(
        report.rule(Rule::ADDRESS).map(|standing| standing.usage),
        Some(1)
    );
    assert_eq!(api.settle(&decision, "failure").await.0, 200);
}

#[tokio::test]
async fn each_instance_settles_attempts_of_the_other() {
    let redis = RedisServer::start();
    let [one, two] = fleet(&redis).await;
    for _ in 0..2 {
        let decision = one.reserve(HOME, "alice").await;
        assert_eq!(two.settle(&decision, "failure").await.0, 200);
        assert_eq!(one.settle(&decision, "not_an_attempt").await.0, 409);
        let decision = two.reserve(HOME, "alice").await;
        assert_eq!(one.settle(&decision, "failure").await.0, 200);
    }
    let last = two.reserve(HOME, "alice").await;
    assert_eq!(last["remaining"], 0);
    let (status, settled) = one.settle(&last, "success").await;
    assert_eq!(
        (status, &settled["next"]["remaining"]),
        (200, &json!(5)),
        "{settled}"
    );
}

#[tokio::test]
async fn what_is_never_settled_is_a_failure_when_its_lease_ends() {
    let redis = RedisServer::start();
    let policy = Policy::default().with_lease(Duration::from_millis(1_000));
    let store = redis.builder().connect(redis.url()).await.expect("a store");
    let api = Api::start(LoginLimiter::new(policy.expect("a policy"), store)).await;
    let mut tokens = Vec::new();
    for _ in 0..5 {
        tokens.push(api.reserve(HOME, "alice").await);
    }
    assert_eq!(api.reserve(HOME, "alice").await["reason"], "busy");
    loop {
        let refused = api.reserve(HOME, "alice").await;
        assert_eq!(refused["admitted"], false, "{refused}");
        if refused["reason"] == "blocked" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for decision in &tokens {
        assert_eq!(api.settle(decision, "not_an_attempt").await.0, 409);
    }
    assert_eq!(api.reserve(HOME, "alice").await["reason"], "blocked");
}

#[tokio::test]
async fn access_rules_decide_ahead_of_the_limits() {
    let rules = AccessRules::new([
        AccessRule::allow("office", Field::Network, "198.51.100.0/24").expect("a rule"),
        AccessRule::deny("scanner", Field::UserAgent, "sqlmap").expect("a rule"),
    ]);
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let limiter = limiter
        .with_access_rules(rules.expect("rules"))
        .expect("a limiter");
    let api = Api::start(limiter).await;
    for _ in 0..10 {
        let decision = api.reserve("198.51.100.7", "alice").await;
        assert_eq!(
            (&decision["admitted"], &decision["allowed_by"]),
            (&json!(true), &json!("office"))
        );
        assert_eq!(api.settle(&decision, "failure").await.0, 200);
    }
    for path in ["/v1/attempts", "/v1/check"] {
        let body = json!({"address": HOME, "user": "alice", "user_agent": "SQLmap/1.8"});
        let (status, denied) = api.post(SHOP, path, &body).await;
        assert_eq!(
            (status, &denied["reason"]),
            (200, &json!("denied")),
            "{denied}"
        );
        assert_eq!(
            (&denied["rule"], &denied["lifts"]),
            (&json!("scanner"), &json!("forever"))
        );
    }
}

#[tokio::test]
async fn an_account_named_with_the_outcome_is_counted_and_refused() {
    let api = Api::memory().await;
    let named = async |outcome: &str| {
        let body = json!({"address": HOME});
        let (_, decision) = api.post(SHOP, "/v1/attempts", &body).await;
        let token = decision["token"].as_str().expect("a token").to_owned();
        let body = json!({"outcome": outcome, "user": "alice"});
        let path = format!("/v1/attempts/{token}/outcome");
        let settled = api.post(SHOP, &path, &body).await;
        assert_eq!(api.post(SHOP, &path, &body).await.0, 409);
        settled
    };
    for left in [4, 3, 2, 1, 0] {
        let (status, settled) = named("failure").await;
        assert_eq!(
            (status, &settled["refused"]),
            (200, &json!(false)),
            "{settled}"
        );
        assert_eq!(settled["next"]["remaining"], left, "{settled}");
    }
    // The right password, of an account that is blocked: refused, and counted as a guess of the address.
    let (status, settled) = named("success").await;
    assert_eq!(
        (status, &settled["refused"]),
        (200, &json!(true)),
        "{settled}"
    );
    let report = api.limiter.check(ip(HOME)).await.expect("a report");
    assert_eq!(
        report.rule(Rule::ADDRESS).map(|standing| standing.usage),
        Some(6)
    );
}

#[tokio::test]
async fn what_is_not_a_request_is_a_problem() {
    let api = Api::memory().await;
    let long = "x".repeat(1_001);
    for (body, expected) in [
        (json!({}), 422),
        (json!([HOME, "alice", null, null, {}, false]), 422),
        (json!({"address": "x"}), 422),
        (json!({"address": 7}), 422),
        (json!({"address": HOME, "usr": "alice"}), 422),
        (json!({"address": HOME, "user": long}), 422),
        (json!({"address": HOME, "values": {"": "x"}}), 422),
        (json!({"address": HOME, "values": {"x": long}}), 422),
        (json!({"address": HOME, "user": "x".repeat(70_000)}), 413),
    ] {
        for path in ["/v1/attempts", "/v1/check"] {
            let (status, problem) = api.post(SHOP, path, &body).await;
            assert_eq!(status, expected, "{problem}");
        }
    }
    let raw = async |content_type: &str, body: &str| {
        let request = api.request("POST", "/v1/attempts").bearer_auth(SHOP);
        let request = request.header("content-type", content_type);
        Api::send(request.body(body.to_owned())).await.0
    };
    assert_eq!(raw("application/json", "{").await, 400);
    assert_eq!(raw("text/plain", "{}").await, 415);
    assert_eq!(raw("application/json", &"[".repeat(60_000)).await, 422);
    assert_eq!(api.get(SHOP, "/v1/attempts").await.0, 405);
    assert_eq!(api.get(SHOP, "/v1/nothing").await.0, 404);
    assert_eq!(api.get(SHOP, "/").await.0, 404);
}

#[tokio::test]
async fn only_the_role_decides() {
    let api = Api::memory().await;
    let body = json!({"address": HOME});
    for path in ["/v1/attempts", "/v1/check", "/v1/attempts/x/outcome"] {
        for token in [READER, OPERATOR] {
            assert_eq!(api.post(token, path, &body).await.0, 403, "{path}");
        }
        let wrong = api.request("POST", path).bearer_auth("wrong").json(&body);
        assert_eq!(Api::send(wrong).await.0, 401);
        let none = api.request("POST", path).json(&body);
        let answer = none.send().await.expect("an answer");
        let challenge = answer.headers()["www-authenticate"]
            .to_str()
            .expect("a text");
        assert!(challenge.starts_with("Bearer "), "{challenge}");
    }
}

#[tokio::test]
async fn what_is_decided_without_redis_is_settled_without_it() {
    let mut redis = RedisServer::start();
    let store = RedisStore::builder().connect(redis.url()).await;
    let api = Api::with_store(Arc::new(store.expect("a store"))).await;
    redis.kill();
    api.fail(HOME, "alice", 5).await;
    let refused = api.reserve(HOME, "alice").await;
    assert_eq!(refused["reason"], "blocked", "{refused}");
    let decision = api.reserve(HOME, "bob").await;
    assert_eq!(api.settle(&decision, "success").await.0, 200);
}

#[tokio::test]
async fn an_attempt_that_no_rule_counts_is_settled() {
    let limit = Limit::attempts(3).within(Period::hours(1));
    let rule = Rule::new("user", [Part::User], limit).expect("a rule");
    let api = Api::with_policy(Policy::new([rule]).expect("a policy")).await;
    let reserve = async || {
        let body = json!({"address": HOME});
        let (status, decision) = api.post(SHOP, "/v1/attempts", &body).await;
        assert_eq!((status, &decision["admitted"]), (200, &json!(true)));
        decision
    };
    for outcome in ["success", "failure", "not_an_attempt"] {
        let (status, settled) = api.settle(&reserve().await, outcome).await;
        assert_eq!(status, 200, "{outcome} {settled}");
    }
    // Named with the outcome, it is counted, and no second outcome takes it back.
    let decision = reserve().await;
    let path = format!(
        "/v1/attempts/{}/outcome",
        decision["token"].as_str().expect("a token")
    );
    let named = async |outcome: &str| {
        let body = json!({"outcome": outcome, "user": "alice"});
        api.post(SHOP, &path, &body).await.0
    };
    assert_eq!(named("failure").await, 200);
    assert_eq!(named("not_an_attempt").await, 409);
    let report = api
        .limiter
        .check((ip(HOME), "alice"))
        .await
        .expect("a report");
    assert_eq!(report.rule("user").map(|standing| standing.usage), Some(1));
}

/// Which compare what is not sealed, and may be others when the outcome arrives.
#[tokio::test]
async fn access_rules_are_asked_once_for_an_attempt() {
    let rule = AccessRule::allow("health", Field::Path, "/health").expect("a rule");
    let limiter = LoginLimiter::new(Policy::strict(), MemoryStore::new());
    let limiter = limiter.with_access_rules(AccessRules::new([rule]).expect("rules"));
    let api = Api::start(limiter.expect("a limiter")).await;
    let known = async || {
        let path = "/v1/admin/known-addresses?user=alice";
        api.get(READER, path).await.1["addresses"].clone()
    };
    let body = json!({"address": HOME, "user": "alice", "path": "/health"});
    let (_, allowed) = api.post(SHOP, "/v1/attempts", &body).await;
    assert_eq!(allowed["allowed_by"], "health", "{allowed}");
    let (status, settled) = api.settle(&allowed, "success").await;
    assert_eq!((status, &settled["next"]), (200, &json!(null)), "{settled}");
    assert_eq!(
        known().await,
        json!([]),
        "what is allowed makes no address known"
    );

    // A rule that allows the caller since leaves the attempt in flight to its outcome.
    let decision = api.reserve(HOME, "alice").await;
    let body = json!({"action": "allow", "network": HOME, "reason": "the office"});
    let put = api.request("PUT", "/v1/admin/access-rules/office");
    let (status, put) = Api::send(put.bearer_auth(OPERATOR).json(&body)).await;
    assert_eq!(status, 200, "{put}");
    assert_eq!(api.reserve(HOME, "bob").await["allowed_by"], "office");
    assert_eq!(api.settle(&decision, "success").await.0, 200);
    assert_eq!(known().await, json!([HOME]));
    let report = api
        .limiter
        .check((ip(HOME), "alice"))
        .await
        .expect("a report");
    assert!(
        report.iter().all(|(_, standing)| standing.usage == 0),
        "{report:?}"
    );
}

#[tokio::test]
async fn rules_in_shadow_break_no_login() {
    let limit = Limit::attempts(2).within(Period::hours(1));
    let rule = Rule::new("pair", [Part::User, Part::Address], limit).expect("a rule");
    let api = Api::with_policy(Policy::new([rule.with_shadow(true)]).expect("a policy")).await;
    api.fail(HOME, "alice", 4).await;
    let decision = api.reserve(HOME, "alice").await;
    assert_eq!(api.settle(&decision, "success").await.0, 200);
}

/// Names the account of an attempt with a success.
async fn name(api: &Api, user: &str) -> serde_json::Value {
    let (_, decision) = api
        .post(SHOP, "/v1/attempts", &json!({"address": HOME}))
        .await;
    let token = decision["token"].as_str().expect("a token");
    let path = format!("/v1/attempts/{token}/outcome");
    let body = json!({"outcome": "success", "user": user});
    api.post(SHOP, &path, &body).await.1
}

#[tokio::test]
async fn guesses_at_accounts_that_are_busy_or_denied_count_for_the_address() {
    let rule = AccessRule::deny("mallory", Field::User, "mallory").expect("a rule");
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let limiter = limiter.with_access_rules(AccessRules::new([rule]).expect("rules"));
    let api = Api::start(limiter.expect("a limiter")).await;
    for _ in 0..5 {
        let _ = api.reserve(HOME, "busy").await;
    }
    for i in 1..=3 {
        for user in ["busy", "mallory"] {
            let settled = name(&api, user).await;
            assert_eq!(settled["refused"], true, "{user} {settled}");
        }
        let report = api.limiter.check(ip(HOME)).await.expect("a report");
        let usage = report.rule(Rule::ADDRESS).map(|standing| standing.usage);
        assert_eq!(usage, Some(5 + 2 * i));
    }
    // One that is named in another spelling is busy with itself alone.
    api.fail(HOME, "carol", 4).await;
    let decision = api.reserve(HOME, "Carol").await;
    let token = decision["token"].as_str().expect("a token");
    let path = format!("/v1/attempts/{token}/outcome");
    let body = json!({"outcome": "success", "user": "carol"});
    let (status, settled) = api.post(SHOP, &path, &body).await;
    assert_eq!(
        (status, &settled["refused"]),
        (200, &json!(false)),
        "{settled}"
    );
}

#[tokio::test]
async fn a_query_makes_no_other_path() {
    let rule = AccessRule::deny("admin", Field::PathPrefix, "/admin").expect("a rule");
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let limiter = limiter.with_access_rules(AccessRules::new([rule]).expect("rules"));
    let api = Api::start(limiter.expect("a limiter")).await;
    for path in ["/admin", "/admin?x=1", "/admin#x", "/admin/x?y"] {
        let body = json!({"address": HOME, "path": path});
        for route in ["/v1/attempts", "/v1/check"] {
            let (_, decision) = api.post(SHOP, route, &body).await;
            assert_eq!(decision["reason"], "denied", "{path} {decision}");
        }
    }
}
