//! What Redis does for a login, counted in commands: each is about a microsecond, and a count has no noise.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use tower_login_rate_limit::{LoginLimiter, Outcome, Policy};

use crate::support::{RedisServer, ip};

/// How often each command was executed, in scripts too.
fn commands(redis: &RedisServer) -> BTreeMap<String, u64> {
    let stats: String = redis.command(&["INFO", "commandstats"]);
    let command = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    stats.lines().filter_map(command).collect()
}

/// What was executed meanwhile, but for asking that.
async fn meanwhile(redis: &RedisServer, work: impl Future<Output = ()>) -> String {
    let before = commands(redis);
    work.await;
    let executed = commands(redis).into_iter().filter_map(|(name, calls)| {
        let times = calls - before.get(&name).unwrap_or(&0);
        let is_ours = !matches!(&*name, "info" | "hello" | "client|setinfo" | "publish");
        (times > 0 && is_ours).then(|| format!("{times} {name}"))
    });
    executed.collect::<Vec<_>>().join(", ")
}

/// What is executed to reserve an attempt, and to settle it.
async fn log_in(
    redis: &RedisServer,
    limiter: &LoginLimiter,
    address: IpAddr,
    outcome: Outcome,
) -> [String; 2] {
    let mut attempt = None;
    let reserved = meanwhile(redis, async {
        attempt = Some(limiter.reserve((address, "user")).await.unwrap());
    });
    let reserved = reserved.await;
    let settled = meanwhile(redis, async {
        let attempt = attempt.unwrap();
        limiter.settle(attempt, outcome).await.unwrap();
    });
    [reserved, settled.await]
}

#[tokio::test]
async fn scripts_do_no_more_than_they_must() {
    let redis = RedisServer::start();
    let store = redis.builder().connect(redis.url()).await.unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store);
    let home = ip("192.0.2.1");

    let first = "1 evalsha, 1 exists, 2 pexpire, 1 time, 2 zadd";
    let again = "1 evalsha, 1 exists, 2 pexpire, 1 time, 2 zadd, 2 zcard, 2 zremrangebyscore";
    let failed = "1 evalsha, 1 time, 2 zadd";
    let taken_back = "1 evalsha, 2 zcard, 2 zrem";
    for (outcome, reserved, settled) in [
        (Outcome::Success, first, taken_back),
        (Outcome::MfaPending, first, taken_back),
        (Outcome::Failure, first, failed),
        (Outcome::Failure, again, failed),
        (Outcome::NotAnAttempt, again, taken_back),
    ] {
        let executed = log_in(&redis, &limiter, home, outcome).await;
        assert_eq!(executed, [reserved, settled], "{outcome:?}");
    }
    // A success that has failures to take back has to look for them.
    let [_, settled] = log_in(&redis, &limiter, home, Outcome::Success).await;
    assert_eq!(
        settled,
        "1 evalsha, 1 time, 3 zcard, 1 zrangebyscore, 2 zrem, 1 zremrangebyscore, 1 zscore"
    );
}

#[tokio::test]
async fn nor_do_they_where_known_addresses_are_exempt() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(Some(Duration::from_secs(90 * 86_400)));
    let store = redis.builder().connect(redis.url()).await.unwrap();
    let limiter = LoginLimiter::new(Policy::strict(), store);
    let (home, elsewhere) = (ip("192.0.2.1"), ip("192.0.2.2"));

    let [reserved, settled] = log_in(&redis, &limiter, elsewhere, Outcome::Failure).await;
    assert_eq!(
        reserved,
        "1 evalsha, 1 exists, 3 pexpire, 1 time, 3 zadd, 1 zscore"
    );
    assert_eq!(settled, "1 evalsha, 1 time, 3 zadd");
    log_in(&redis, &limiter, home, Outcome::Success).await;
    let [reserved, _] = log_in(&redis, &limiter, home, Outcome::Failure).await;
    assert_eq!(
        reserved,
        "1 evalsha, 1 exists, 2 pexpire, 1 time, 2 zadd, 3 zcard, 1 zcount, 1 zrevrank, 1 zscore"
    );
}
