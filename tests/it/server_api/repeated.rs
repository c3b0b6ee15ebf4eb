//! Requests with an idempotency key.

use std::time::Duration;

use serde_json::{Value, json};
use tower_login_rate_limit::{LoginLimiter, Policy, Rule};

use super::{Api, SHOP, fleet};
use crate::support::{RedisServer, ip};

const HOME: &str = "192.0.2.1";

async fn reserve(api: &Api, key: &str, user: &str) -> (u16, Value) {
    let body = json!({"address": HOME, "user": user});
    let request = api.request("POST", "/v1/attempts").bearer_auth(SHOP);
    Api::send(request.header("idempotency-key", key).json(&body)).await
}

async fn usage(api: &Api, user: &str) -> u32 {
    let report = api.limiter.check((ip(HOME), user)).await.expect("a report");
    report.rule(Rule::USER_ADDRESS).expect("a rule").usage
}

#[tokio::test]
async fn a_repeated_request_is_one_attempt() {
    let redis = RedisServer::start();
    let [one] = fleet(&redis).await;
    let (status, first) = reserve(&one, "key-1", "alice").await;
    assert_eq!(status, 200);
    assert_eq!(reserve(&one, "key-1", "alice").await, (200, first.clone()));
    assert_eq!(usage(&one, "alice").await, 1);
    let (status, problem) = reserve(&one, "key-1", "bob").await;
    assert_eq!(status, 422, "{problem}");
    assert_eq!(one.settle(&first, "failure").await.0, 200);
    let (status, problem) = reserve(&one, "key-1", "alice").await;
    assert_eq!(status, 409, "{problem}");
    for key in ["", "ä", &"k".repeat(256)] {
        assert_eq!(reserve(&one, key, "alice").await.0, 400, "{key}");
    }
}

#[tokio::test]
async fn guesses_at_once_with_one_key_are_few() {
    let api = Api::memory().await;
    let guess = async || reserve(&api, "session-1", "alice").await.0 == 200;
    let mut admitted = 0;
    for _ in 0..50 {
        admitted += u32::from(guess().await);
    }
    assert_eq!(admitted, 3);
    assert_eq!(usage(&api, "alice").await, 1);
}

#[tokio::test]
async fn a_refusal_is_decided_again() {
    let api = Api::memory().await;
    api.fail(HOME, "alice", 5).await;
    let (_, refused) = reserve(&api, "key-1", "alice").await;
    assert_eq!(refused["admitted"], false);
    api.limiter
        .unblock((ip(HOME), "alice"))
        .await
        .expect("unblocked");
    let (_, admitted) = reserve(&api, "key-1", "alice").await;
    assert_eq!(admitted["admitted"], true);
}

/// The client gives up while the store is slow, and repeats.
#[tokio::test]
async fn a_request_that_was_given_up_takes_nothing_from_its_repetition() {
    let redis = RedisServer::start();
    let [api] = fleet(&redis).await;
    assert_eq!(usage(&api, "alice").await, 0);
    redis.pause();
    let given_up = reserve(&api, "key-1", "alice");
    let given_up = tokio::time::timeout(Duration::from_millis(200), given_up).await;
    assert!(given_up.is_err(), "the store is paused");
    let repeat = async {
        loop {
            let (status, decision) = reserve(&api, "key-1", "alice").await;
            if status == 200 {
                break decision;
            }
            assert!(matches!(status, 409 | 503), "{decision}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let resume = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        redis.resume();
    };
    let (decision, ()) = tokio::join!(repeat, resume);
    api.limiter.all_settled().await.expect("settled");
    assert_eq!(usage(&api, "alice").await, 1);
    assert_eq!(api.settle(&decision, "failure").await.0, 200);
}

#[tokio::test]
async fn a_key_whose_attempt_has_failed_is_admitted_by_no_other_instance() {
    let redis = RedisServer::start();
    // A token is derived for a lease: none begins in between.
    let lease = Duration::from_secs(3_600);
    let mut instances = Vec::new();
    for _ in 0..2 {
        let policy = Policy::default().with_lease(lease).expect("a policy");
        let store = redis.builder().connect(redis.url()).await.expect("a store");
        instances.push(Api::start(LoginLimiter::new(policy, store)).await);
    }
    let (status, first) = reserve(&instances[0], "key-1", "alice").await;
    assert_eq!(status, 200);
    let (status, same) = reserve(&instances[1], "key-1", "alice").await;
    assert_eq!((status, &same["usage"]), (200, &json!(1)));
    assert_eq!(instances[0].settle(&first, "failure").await.0, 200);
    assert_eq!(instances[1].settle(&same, "not_an_attempt").await.0, 409);

    let (_, second) = reserve(&instances[0], "key-2", "alice").await;
    assert_eq!(instances[0].settle(&second, "failure").await.0, 200);
    let (status, problem) = reserve(&instances[1], "key-2", "alice").await;
    assert_eq!(status, 409, "{problem}");
}
