//! What Redis does for a login, counted in commands: each is about a microsecond, and a count has no noise.

mod everything;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use tower_login_rate_limit::{
    KeyLimiter, Limit, LimitBuilder, LoginLimiter, Outcome, Period, Policy, ReserveError,
    clock::ManualClock,
    store::{MemoryStore, Store},
};

use crate::support::{RedisServer, START, attempt, ip};

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
        let is_ours =
            !matches!(&*name, "info" | "hello" | "publish") && !name.starts_with("client");
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
        attempt.settle(outcome).await.unwrap();
    });
    [reserved, settled.await]
}

/// The first call of each script carries its text.
async fn load_scripts(limiter: &LoginLimiter) {
    for outcome in [Outcome::Failure, Outcome::NotAnAttempt, Outcome::Success] {
        let address = ip("192.0.2.99");
        attempt(limiter, address, "user", outcome).await.unwrap();
    }
}

#[tokio::test]
async fn scripts_do_no_more_than_they_must() {
    let redis = RedisServer::start();
    let store = redis.builder().connect(redis.url()).await.unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store);
    let home = ip("192.0.2.1");
    load_scripts(&limiter).await;

    let first = "1 evalsha, 1 exists, 2 pexpire, 1 time, 2 zadd";
    let again = "1 evalsha, 1 exists, 2 pexpire, 1 time, 2 zadd, 2 zcard, 2 zremrangebyscore";
    // Whether a block begins is known only if a counter may be full.
    let failed = "1 evalsha, 1 time, 2 zadd, 2 zcard";
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
        "1 evalsha, 1 time, 3 zcard, 1 zrangebyscore, 2 zrem, 1 zscore"
    );
}

#[tokio::test]
async fn nor_do_they_where_known_addresses_are_exempt() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(Some(Duration::from_secs(90 * 86_400)));
    let store = redis.builder().connect(redis.url()).await.unwrap();
    let limiter = LoginLimiter::new(Policy::strict(), store);
    let (home, elsewhere) = (ip("192.0.2.1"), ip("192.0.2.2"));
    load_scripts(&limiter).await;
    redis.flush();

    let [reserved, settled] = log_in(&redis, &limiter, elsewhere, Outcome::Failure).await;
    assert_eq!(
        reserved,
        "1 evalsha, 1 exists, 3 pexpire, 1 time, 3 zadd, 1 zscore"
    );
    assert_eq!(settled, "1 evalsha, 1 time, 3 zadd, 3 zcard");
    log_in(&redis, &limiter, home, Outcome::Success).await;
    let [reserved, _] = log_in(&redis, &limiter, home, Outcome::Failure).await;
    assert_eq!(
        reserved,
        "1 evalsha, 1 exists, 2 pexpire, 1 time, 2 zadd, 3 zcard, 1 zcount, 1 zrevrank, 1 zscore"
    );
}

/// How many scripts a server holds.
fn scripts(redis: &RedisServer) -> u64 {
    let memory: String = redis.command(&["INFO", "memory"]);
    let line = "number_of_cached_scripts:";
    let number = memory.lines().find_map(|l| l.strip_prefix(line));
    number.unwrap().parse().unwrap()
}

/// Limits of every algorithm, no two alike.
fn ad_hoc(i: u32) -> LimitBuilder {
    let limit = Limit::attempts(1 + i % 4).within(Period::seconds(600 + i));
    match i % 5 {
        0 => limit.blocked_for(Period::hours(1)),
        1 => limit.without_block(),
        2 => limit.as_token_bucket().without_block(),
        3 => limit.as_sliding_counter().without_block(),
        _ => limit
            .blocked_for(Period::minutes(1))
            .then_for(Period::hours(2)),
    }
}

/// Makes the same attempts under many limits on Redis and in memory, and compares the decisions.
async fn many_limits_are_decided_as_in_memory(redis: &RedisServer, numbers: std::ops::Range<u32>) {
    let clock = Arc::new(ManualClock::at(START));
    let shared = redis.builder().with_clock(Arc::clone(&clock));
    let shared: Arc<dyn Store> = Arc::new(shared.connect(redis.url()).await.unwrap());
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new().with_clock(Arc::clone(&clock)));
    let limiters: Vec<_> = numbers
        .map(|i| {
            let new = |store: &Arc<dyn Store>| {
                let name = format!("limit-{i}");
                KeyLimiter::new(&name, ad_hoc(i), Arc::clone(store)).unwrap()
            };
            (new(&shared), new(&memory))
        })
        .collect();
    let decision = |reserved: Result<_, ReserveError>| match reserved {
        Ok(_) => None,
        Err(ReserveError::Refused(refusal)) => Some((refusal.usage(), refusal.lifts())),
        Err(error) => panic!("{error}"),
    };
    let (mut admitted, mut refused) = (0, 0);
    for round in 0..8 {
        for (i, (shared, memory)) in limiters.iter().enumerate() {
            let is = decision(shared.reserve("key").await);
            *if is.is_some() {
                &mut refused
            } else {
                &mut admitted
            } += 1;
            assert_eq!(is, decision(memory.reserve("key").await), "{i}, {round}");
            let (is, expected) = (shared.check("key").await, memory.check("key").await);
            assert_eq!(is.unwrap(), expected.unwrap(), "{i}, {round}");
            if round == 5 {
                let token = shared.reserve("other").await.unwrap();
                assert!(shared.cancel("other", token).await.unwrap(), "{i}");
            }
        }
        clock.advance(Duration::from_secs(100));
    }
    assert!(admitted > 100 && refused > 100, "{admitted}, {refused}");
}

#[tokio::test]
async fn limits_beyond_the_bound_of_script_texts_are_decided_alike() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    many_limits_are_decided_as_in_memory(&redis, 0..200).await;
    // 64 sets of limits in texts, one text each to reserve and to cancel, and generic ones.
    let held = scripts(&redis);
    assert!((64..=2 * 64 + 8).contains(&held), "{held} scripts");
}

#[tokio::test]
async fn a_server_that_holds_many_scripts_is_given_no_more_texts() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let mut connection = redis.connection();
    for i in 0..1_001 {
        let text = format!("return {i}");
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(text).exec(&mut connection).unwrap();
    }
    let before = scripts(&redis);
    many_limits_are_decided_as_in_memory(&redis, 0..100).await;
    let added = scripts(&redis) - before;
    assert!(added <= 8, "{added} scripts were added");
}
