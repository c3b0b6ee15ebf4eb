//! Redis in more than one place: by URL, and after the primary is gone.

use std::time::{Duration, Instant};

use tower_login_rate_limit::{
    Limit, LoginLimiter, Outcome, Period, Policy, ReserveError,
    store::{Key, RedisStore, Settled, Settlement, Slot, Store, StoreErrorKind},
};

use crate::support::{
    RedisCluster, RedisSentinel, RedisServer, attempt, closed, fail, ip, refused,
};

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
        let builder = closed().with_deadline(Duration::from_secs(20));
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
    // Each server was sent each text at most once by each store: a few, for hundreds of calls.
    for node in &cluster.nodes {
        let texts = node.calls_of("eval");
        assert!(texts <= 2 * 8, "{texts}");
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
async fn text_that_is_no_address_is_rejected() {
    for (url, word) in [
        ("", "redis://"),
        ("localhost", "redis://"),
        ("http://localhost", "redis://"),
        ("redis+cluster://", "empty"),
        ("redis+cluster://a,,b", "empty"),
        ("redis+cluster://secret%ff@a", "UTF-8"),
        ("redis+cluster://a/5", "no path"),
        ("redis+cluster://u:1/secret@a", "%2F"),
        ("redis+cluster://a?x=1", "%3F"),
        ("redis+sentinel://a/name/-1", "number"),
        ("redis+sentinel://u:1/secret@h/m", "%2F"),
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

/// A server that accepts connections and never replies, as a failing host may.
#[tokio::test]
async fn a_silent_server_among_several_does_not_hold_up_the_others() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let sentinel = RedisSentinel::start();
    let url = sentinel.url().replace("://", &format!("://{silent},"));
    let store = RedisStore::connect(url).await.unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store);
    fail(&limiter, ip(HOME), "user", 1).await;

    let cluster = RedisCluster::start();
    let url = format!(
        "redis+cluster://{silent},127.0.0.1:{}",
        cluster.nodes[0].port()
    );
    // Opening takes as long as it takes to find out; nobody waits for that but who connects first.
    let builder = closed().with_deadline(Duration::from_millis(900));
    let limiter = LoginLimiter::new(Policy::default(), builder.connect_lazy(url).unwrap());
    let started = Instant::now();
    while let Err(error) = limiter.check(ip(HOME)).await {
        assert!(started.elapsed() < Duration::from_secs(30), "{error}");
    }
}

/// One server of a cluster hangs. Callers whose counters are elsewhere do not notice for long, and
/// connections are not opened again and again.
#[tokio::test]
async fn a_hanging_server_of_a_cluster_does_not_take_the_others_down() {
    let cluster = RedisCluster::start();
    let store = closed().build_with_manager(cluster.client());
    let limiter = LoginLimiter::new(Policy::default(), store.unwrap());
    let addresses: Vec<_> = (0..30).map(|i| ip(&format!("192.0.2.{i}"))).collect();
    for address in &addresses {
        limiter.check(*address).await.unwrap();
    }
    let opened = || -> u64 {
        let info: String = cluster.nodes[1].command(&["INFO", "stats"]);
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().parse().unwrap()
    };
    let before = opened();
    cluster.nodes[0].pause();
    let mut answered = 0;
    for round in 0..5 {
        let asked: Vec<_> = (addresses.iter())
            .map(|address| {
                let (limiter, address) = (limiter.clone(), *address);
                tokio::spawn(async move { limiter.check(address).await.is_ok() })
            })
            .collect();
        for asked in asked {
            answered += usize::from(asked.await.unwrap() && round > 0);
        }
    }
    let opened = opened() - before;
    cluster.nodes[0].resume();
    // Two thirds of the addresses are elsewhere.
    assert!(answered > 40, "{answered} of about 80 were answered");
    assert!(opened < 60, "{opened} connections were opened");
}

/// The primary is killed, and Sentinel makes a replica the primary. The app goes on by itself, and what
/// had been replicated still counts.
#[tokio::test]
async fn sentinel_names_a_new_primary() {
    let mut sentinel = RedisSentinel::start();
    let store = RedisStore::connect(sentinel.url()).await.unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store);
    fail(&limiter, ip(HOME), "user", 4).await;
    sentinel.servers[0].wait_for_replicas(2, "replicated");

    sentinel.servers[0].kill();
    let started = Instant::now();
    let (mut guesses, mut refusal) = (0, None);
    while refusal.is_none() {
        assert!(started.elapsed() < Duration::from_secs(60), "never again");
        match limiter.reserve((ip(HOME), "user")).await {
            Ok(attempt) => {
                guesses += 1;
                let _ = attempt.settle(Outcome::Failure).await;
            }
            Err(ReserveError::Refused(refused)) => refusal = Some(refused),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    assert_eq!(guesses, 1, "{refusal:?}");
}

#[tokio::test]
async fn a_redis_that_is_not_fit_is_reported() {
    let redis = RedisServer::start_with(&["--maxmemory", "100mb"]);
    let store = RedisStore::connect(redis.url()).await.unwrap();
    assert!(store.health().await.unwrap().warnings.is_empty());
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let warnings = store.health().await.unwrap().warnings;
    assert!(warnings[0].contains("noeviction"), "{warnings:?}");

    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &redis.port()]);
    let error = RedisStore::connect(replica.url()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Config);
    assert!(error.to_string().contains("primary"), "{error}");

    // A user without permission for INFO is taken to be fit.
    let acl = [
        "ACL", "SETUSER", "app", "on", ">pass", "~*", "+@all", "-info",
    ];
    let _: () = redis.command(&acl);
    let url = format!("redis://app:pass@127.0.0.1:{}", redis.port());
    let store = RedisStore::connect(url).await.unwrap();
    let warnings = store.health().await.unwrap().warnings;
    assert!(warnings[0].contains("permission"), "{warnings:?}");

    // A cluster is looked at server by server.
    let cluster = RedisCluster::start();
    let _: () = cluster.nodes[1].command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let _: () = cluster.nodes[1].command(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    let warnings = cluster.store().health().await.unwrap().warnings;
    let [warning] = &warnings[..] else {
        panic!("{warnings:?}");
    };
    assert!(warning.contains(&cluster.nodes[1].port()), "{warning}");
}

/// A password was reset, and there were no failures.
#[tokio::test]
async fn cleaning_up_where_nothing_failed_leaves_the_journal_empty() {
    let cluster = RedisCluster::start();
    let store = cluster.store();
    let limiter = LoginLimiter::new(Policy::strict(), store.clone());
    // Makes it known that this is a cluster.
    attempt(&limiter, ip(HOME), "somebody", Outcome::NotAnAttempt)
        .await
        .unwrap();
    limiter.cleanup("nobody", [ip(HOME)]).await.unwrap();
    limiter.unblock((ip(HOME), "nobody")).await.unwrap();
    assert_eq!(store.status().pending, 0);
    limiter.all_settled().await.unwrap();
}

#[tokio::test]
async fn canceling_no_attempt_changes_nothing() {
    let redis = RedisServer::start();
    let store = redis.store().await;
    let limit = Limit::attempts(5).within(Period::hours(1)).build().unwrap();
    let slot = Slot::new(Key::of_address(HOME.parse().unwrap(), "test"), &limit);
    assert_eq!(
        store
            .settle(
                &[],
                Settlement::Canceled,
                &[slot],
                std::time::Duration::ZERO
            )
            .await
            .unwrap(),
        Settled::default()
    );
}

/// An IPv6 address and the networks around it are in one slot of a cluster.
#[tokio::test]
async fn the_networks_around_an_address_are_one_round_trip_on_a_cluster() {
    let cluster = RedisCluster::start();
    let limiter = LoginLimiter::new(Policy::default(), cluster.store());
    let calls = || {
        let calls = |node: &RedisServer| node.calls_of("eval") + node.calls_of("evalsha");
        cluster.nodes.iter().map(calls).sum::<u64>()
    };
    // Each server is sent each text once.
    for network in 0..20 {
        fail(&limiter, ip(&format!("2001:db8:{network:x}::1")), "user", 1).await;
    }
    let before = calls();
    fail(&limiter, ip("2001:db8:1:2::1"), "user", 5).await;
    assert_eq!(calls() - before, 10);
    let refusal = refused(limiter.reserve((ip("2001:db8:1:2::2"), "user")).await);
    assert_eq!(refusal.rule(), "user-address");
}
