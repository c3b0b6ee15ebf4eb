//! Outcomes that arrive twice, and rules that change while an attempt is in flight.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tower_login_rate_limit::{
    Limit, LoginLimiter, Part, Period, Policy, Rule,
    access::{AccessRule, AccessRules, Field},
    admin::Author,
    live::{Canary, Ruleset},
    store::{MemoryStore, RedisStore, Store},
};

use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet};

use super::{Api, SHOP, fleet};
use crate::support::{RedisServer, ip};

const HOME: &str = "192.0.2.1";

async fn usage(api: &Api, rule: &str, user: &str) -> Option<u32> {
    let report = api.limiter.check((ip(HOME), user)).await.expect("a report");
    report.rule(rule).map(|standing| standing.usage)
}

/// A limiter whose attempts at an office no rule counts, and those without a user neither.
fn uncounted() -> LoginLimiter {
    let limit = Limit::attempts(3).within(Period::hours(1));
    let rule = Rule::new("user", [Part::User], limit).expect("a rule");
    let policy = Policy::new([rule]).expect("a policy");
    let office = AccessRule::allow("office", Field::Network, "198.51.100.0/24").expect("a rule");
    let limiter = LoginLimiter::new(policy, MemoryStore::new());
    let rules = AccessRules::new([office]).expect("rules");
    limiter.with_access_rules(rules).expect("a limiter")
}

#[tokio::test]
async fn an_outcome_of_an_attempt_that_no_counter_holds_counts_once() {
    let api = Api::start(uncounted()).await;
    for body in [
        json!({"address": "198.51.100.7", "user": "alice"}),
        json!({"address": HOME}),
    ] {
        let (_, decision) = api.post(SHOP, "/v1/attempts", &body).await;
        assert_eq!(decision["admitted"], true, "{decision}");
        assert_eq!(api.settle(&decision, "failure").await.0, 200, "{body}");
        for outcome in ["failure", "success", "not_an_attempt"] {
            let (status, problem) = api.settle(&decision, outcome).await;
            assert_eq!(status, 409, "{body} {outcome} {problem}");
        }
    }
}

async fn settled_in_an_outage(is_reserved_in_it: bool) {
    let mut redis = RedisServer::start();
    let store = RedisStore::builder().connect(redis.url()).await;
    let api = Api::with_store(Arc::new(store.expect("a store"))).await;
    if is_reserved_in_it {
        redis.kill();
    }
    let decision = api.reserve(HOME, "alice").await;
    assert_eq!(api.settle(&decision, "failure").await.0, 200);
    if !is_reserved_in_it {
        redis.kill();
    }
    for outcome in ["not_an_attempt", "success", "failure"] {
        let (status, problem) = api.settle(&decision, outcome).await;
        assert_eq!(status, 409, "{outcome} {problem}");
    }
    assert_eq!(usage(&api, Rule::USER_ADDRESS, "alice").await, Some(1));
}

#[tokio::test]
async fn an_outcome_counts_once_while_the_store_is_unavailable() {
    settled_in_an_outage(true).await;
}

#[tokio::test]
async fn an_outcome_that_the_store_has_counts_once_when_it_is_gone() {
    settled_in_an_outage(false).await;
}

/// What `docs/http-api.md` says of two instances that can't verify an attempt: both write, and it is one failure.
#[tokio::test]
async fn two_instances_without_their_store_count_an_attempt_once() {
    let mut redis = RedisServer::start();
    let instance = async || {
        let store = RedisStore::builder().connect(redis.url()).await;
        Api::with_store(Arc::new(store.expect("a store"))).await
    };
    let (one, two) = (instance().await, instance().await);
    redis.kill();
    let failed_twice = one.reserve(HOME, "alice").await;
    let taken_back = one.reserve(HOME, "bob").await;
    for (api, outcomes) in [
        (&one, ["failure", "failure"]),
        (&two, ["failure", "success"]),
    ] {
        for (decision, outcome) in [&failed_twice, &taken_back].into_iter().zip(outcomes) {
            assert_eq!(api.settle(decision, outcome).await.0, 200);
            assert_eq!(api.settle(decision, outcome).await.0, 409);
        }
    }
    redis.restart();
    for api in [&one, &two] {
        let settled = async {
            while api.limiter.store_status().is_degraded || api.limiter.store_status().pending > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let settled = tokio::time::timeout(Duration::from_secs(30), settled).await;
        settled.expect("the journal is replayed");
    }
    for api in [&one, &two] {
        assert_eq!(usage(api, Rule::USER_ADDRESS, "alice").await, Some(1));
        let bob = usage(api, Rule::USER_ADDRESS, "bob").await;
        assert!(matches!(bob, Some(0 | 1)), "{bob:?}");
    }
}

fn pair(name: &str) -> Policy {
    let limit = Limit::attempts(3).within(Period::hours(1));
    let rule = Rule::new(name.to_owned(), [Part::User, Part::Address], limit).expect("a rule");
    Policy::new([rule]).expect("a policy")
}

async fn live(store: impl Store, policy: Policy) -> Api {
    let limiter = LoginLimiter::new(policy, store).live().await;
    Api::start(limiter.expect("a limiter")).await
}

async fn replace(api: &Api, ruleset: Ruleset) -> u64 {
    let admin = api.limiter.admin().expect("an admin");
    let newest = admin.ruleset().await.expect("a version").version;
    let author = Author::new("oscar", "renamed").expect("an author");
    let replaced = admin.replace_ruleset(newest, ruleset, &author).await;
    replaced.expect("replaced")
}

async fn follows(api: &Api, version: u64) {
    let followed = async {
        while api.limiter.version() != version {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let followed = tokio::time::timeout(Duration::from_secs(20), followed).await;
    followed.expect("the version is in force");
}

#[tokio::test]
async fn an_attempt_ends_under_the_policy_that_it_began_with() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let store = async || redis.builder().connect(redis.url()).await.expect("a store");
    let one = live(store().await, pair("before")).await;
    // Has never reserved anything.
    let two = live(store().await, pair("before")).await;
    let mut in_flight = Vec::new();
    for user in ["alice", "bob", "carol"] {
        in_flight.push(one.reserve(HOME, user).await);
    }
    let version = replace(&one, Ruleset::new(pair("after"))).await;
    follows(&two, version).await;
    for (api, decision, outcome) in [
        (&one, &in_flight[0], "failure"),
        (&two, &in_flight[1], "failure"),
        (&two, &in_flight[2], "success"),
    ] {
        let (status, settled) = api.settle(decision, outcome).await;
        assert_eq!(status, 200, "{settled}");
        // The next one is decided by the rules in force.
        assert_eq!(settled["next"]["rule"], "after", "{settled}");
        assert_eq!(api.settle(decision, "not_an_attempt").await.0, 409);
    }

    // One that was started since reads the policy of the version that an attempt was reserved under.
    let late = one.reserve(HOME, "dora").await;
    let version = replace(&one, Ruleset::new(pair("before"))).await;
    let three = live(store().await, pair("elsewhere")).await;
    assert_eq!(three.limiter.version(), version);
    let (status, settled) = three.settle(&late, "failure").await;
    assert_eq!(status, 200, "{settled}");

    // What has failed is counted where it was reserved.
    for (user, failures) in [("alice", 1), ("bob", 1), ("carol", 0), ("dora", 0)] {
        assert_eq!(
            usage(&three, "before", user).await,
            Some(failures),
            "{user}"
        );
    }
    let version = replace(&one, Ruleset::new(pair("after"))).await;
    follows(&three, version).await;
    assert_eq!(usage(&three, "after", "dora").await, Some(1));
}

/// Its values and its lease are those of the policy that it is reserved under.
#[tokio::test]
async fn an_attempt_under_a_canary_is_settled_under_it() {
    let limit = Limit::attempts(3).within(Period::hours(1));
    let rule = Rule::new("tenant", [Part::value("tenant")], limit).expect("a rule");
    let canary = Policy::new([rule]).expect("a policy");
    let canary = canary
        .with_lease(Duration::from_secs(300))
        .expect("a lease");
    let api = Api::with_policy(pair("base")).await;
    let ruleset = Ruleset::new(pair("base"));
    let ruleset = ruleset.with_canary(Canary::new(canary, 100.0).expect("a canary"));
    replace(&api, ruleset).await;
    let body = json!({"address": HOME, "user": "alice", "values": {"tenant": "acme"}});
    let reserve = async || -> Value {
        let (status, decision) = api.post(SHOP, "/v1/attempts", &body).await;
        assert_eq!(status, 200, "{decision}");
        decision
    };
    let first = reserve().await;
    assert_eq!(
        (&first["rule"], &first["lease_ms"]),
        (&json!("tenant"), &json!(300_000))
    );
    let (status, settled) = api.settle(&first, "not_an_attempt").await;
    assert_eq!(status, 200, "{settled}");
    let second = reserve().await;
    assert_eq!(second["usage"], 1, "the first one is taken back: {second}");
}

/// The user's rules are asked ahead of the outcome, and may refuse a moment later nevertheless.
#[tokio::test]
async fn guesses_that_are_named_at_once_all_count_for_the_address() {
    let redis = RedisServer::start();
    let [api] = fleet(&redis).await;
    let api = Arc::new(api);
    let mut guesses = 0;
    for _ in 0..10 {
        let mut decisions = Vec::new();
        for _ in 0..25 {
            let body = json!({"address": HOME});
            let (_, decision) = api.post(SHOP, "/v1/attempts", &body).await;
            if decision["admitted"] == true {
                decisions.push(decision);
            }
        }
        let mut outcomes = JoinSet::new();
        for decision in decisions {
            guesses += 1;
            let api = Arc::clone(&api);
            outcomes.spawn(async move {
                let token = decision["token"].as_str().expect("a token");
                let path = format!("/v1/attempts/{token}/outcome");
                let body = json!({"outcome": "failure", "user": "alice"});
                api.post(SHOP, &path, &body).await
            });
        }
        for (status, settled) in outcomes.join_all().await {
            assert_eq!(status, 200, "{settled}");
        }
    }
    assert_eq!(guesses, 25);
    assert_eq!(usage(&api, Rule::ADDRESS, "alice").await, Some(25));
}

/// A backend that goes away while it reports must not save its users the failure.
#[tokio::test]
async fn an_outcome_whose_connection_is_cut_counts_for_the_user_that_it_names() {
    let redis = RedisServer::start();
    let [api] = fleet(&redis).await;
    for n in 0..4_u64 {
        let body = json!({"address": HOME});
        let (_, decision) = api.post(SHOP, "/v1/attempts", &body).await;
        let token = decision["token"].as_str().expect("a token");
        let body = r#"{"outcome":"failure","user":"carol"}"#;
        let length = body.len();
        let request = format!(
            "POST /v1/attempts/{token}/outcome HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {SHOP}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        // So long that the request arrives, and not so long that it is answered.
        redis.command::<()>(&["CLIENT", "PAUSE", "300", "ALL"]);
        let mut connection = TcpStream::connect(api.address).await.expect("a connection");
        let sent = connection.write_all(request.as_bytes()).await;
        sent.expect("sent");
        tokio::time::sleep(Duration::from_millis(50 + n)).await;
        drop(connection);
        let expected = Some(u32::try_from(n).expect("few") + 1);
        let counted = async {
            while usage(&api, Rule::USER_ADDRESS, "carol").await != expected {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let counted = tokio::time::timeout(Duration::from_secs(10), counted).await;
        counted.expect("it counts for the user");
    }
}
