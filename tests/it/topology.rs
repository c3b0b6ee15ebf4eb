//! Redis in more than one place: by URL, and after the primary is gone.

use std::time::{Duration, Instant};

use tower_login_rate_limit::{
    LoginLimiter, Outcome, Policy, ReserveError,
    store::{RedisStore, StoreErrorKind},
};

use crate::support::{RedisCluster, RedisSentinel, RedisServer, attempt, fail, ip, refused};

const HOME: &str = "192.0.2.1";

#[tokio::test]
async fn a_cluster_is_found_by_some_of_its_servers() {
    let mut cluster = RedisCluster::start();
    for node in &mut cluster.nodes {
        node.keys_may_live(Some(Duration::from_secs(90 * 86_400)));
    }
    let hosts = |nodes: &[RedisServer]| {
        let hosts: Vec<_> = nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port()))
            .collect();
        format!("redis+cluster://{}", hosts.join(","))
    };
    for url in [hosts(&cluster.nodes), hosts(&cluster.nodes[1..2])] {
        let builder = RedisStore::builder().deadline(Duration::from_secs(20));
        let store = builder.connect(url).await.unwrap();
        let limiter = LoginLimiter::new(Policy::strict(), store);
        for i in 0..30 {
            let user = format!("user {i}");
            fail(&limiter, ip(HOME), &user, 1).await;
            attempt(&limiter, ip(HOME), &user, Outcome::Success)
                .await
                .unwrap();
        }
        fail(&limiter, ip(HOME), "user", 5).await;
        refused(limiter.reserve((ip(HOME), "user")).await);
        limiter.unblock((ip(HOME), "user")).await.unwrap();
    }
    // The scripts were handed to every server, and none had to be sent again.
    for node in &cluster.nodes {
        assert_eq!(node.calls_of("eval"), 0);
    }
}

#[tokio::test]
async fn a_user_and_a_password_are_in_the_url() {
    let redis = RedisServer::start();
    let acl = [
        "ACL",
        "SETUSER",
        "ann:a",
        "on",
        ">p@ss,word/",
        "~*",
        "+@all",
    ];
    let _: () = redis.command(&acl);
    let _: () = redis.command(&["ACL", "SETUSER", "default", "off"]);
    let url = |user: &str| format!("redis://{user}127.0.0.1:{}", redis.port());
    let good = RedisStore::connect(url("ann%3Aa:p%40ss%2Cword%2F@")).await;
    good.unwrap();
    let error = RedisStore::connect(url("")).await.unwrap_err();
    assert!(error.to_string().contains("NOAUTH"), "{error}");
    let error = RedisStore::connect(url("ann%3Aa:wrong@"))
        .await
        .unwrap_err();
    assert!(!error.to_string().contains("wrong"), "{error}");
    let _: () = redis::Client::open(url("ann%3Aa:p%40ss%2Cword%2F@"))
        .and_then(|client| client.get_connection())
        .and_then(|mut connection| {
            redis::cmd("ACL")
                .arg(&["SETUSER", "default", "on"])
                .query(&mut connection)
        })
        .unwrap();
}

#[tokio::test]
async fn an_address_that_is_none_is_said_to_be_none() {
    for (url, word) in [
        ("", "redis://"),
        ("localhost", "redis://"),
        ("http://localhost", "redis://"),
        ("redis+cluster://", "empty"),
        ("redis+cluster://a,,b", "empty"),
        ("redis+cluster://secret%ff@a", "UTF-8"),
        ("redis+sentinel://a,b", "name"),
        ("redis+sentinel://a,b/", "name"),
        ("redis+sentinel://a,b/name/x", "number"),
        ("redis+sentinel://a b/name", "redis+sentinel"),
    ] {
        let error = RedisStore::connect(url).await.expect_err(url);
        assert_eq!(error.kind(), StoreErrorKind::Config, "{url}: {error}");
        assert!(error.to_string().contains(word), "{url}: {error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

/// The primary is killed, and Sentinel makes a replica the primary. The app goes on by itself, and what
/// had been replicated still counts.
#[tokio::test]
async fn sentinel_names_a_new_primary() {
    let mut sentinel = RedisSentinel::start();
    let store = RedisStore::connect(sentinel.url()).await.unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store);
    fail(&limiter, ip(HOME), "user", 4).await;
    // Two replicas have it.
    let replicated: u64 = sentinel.servers[0].command(&["WAIT", "2", "10000"]);
    assert_eq!(replicated, 2);

    sentinel.servers[0].kill();
    let started = Instant::now();
    let (mut guesses, mut refusal) = (0, None);
    while refusal.is_none() {
        assert!(started.elapsed() < Duration::from_secs(60), "never again");
        match limiter.reserve((ip(HOME), "user")).await {
            Ok(attempt) => {
                guesses += 1;
                let _ = limiter.settle(attempt, Outcome::Failure).await;
            }
            Err(ReserveError::Refused(refused)) => refusal = Some(refused),
            Err(ReserveError::Store(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    assert_eq!(guesses, 1, "{refusal:?}");
}
