//! Blocked clients are refused from memory, and let in again soon after an unblock anywhere.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tower_login_rate_limit::{
    KeyLimiter, Limit, LoginLimiter, Outcome, Period, Policy, Reason, ReserveError, Rule,
    clock::{Clock, ManualClock},
    store::{RedisStore, redis::RedisStoreBuilder},
};

use crate::support::{
    DAY, Fault, HOUR, Proxy, RedisCluster, RedisSentinel, RedisServer, START, attempt, eventually,
    fail, ip, refused,
};

const HOME: &str = "192.0.2.1";

/// A second, and what a busy machine adds to it. Whoever has to wait until Redis is asked again waits for
/// ten.
const SOON: Duration = Duration::from_secs(5);

fn builder() -> RedisStoreBuilder {
    RedisStore::builder().with_deadline(Duration::from_secs(20))
}

/// An app server of its own.
async fn server(url: &str) -> (RedisStore, LoginLimiter) {
    let store = builder().connect(url).await.unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store.clone());
    (store, limiter)
}

fn commands(redis: &RedisServer) -> u64 {
    let stats: String = redis.command(&["INFO", "stats"]);
    let line = "total_commands_processed:";
    let number = stats.lines().find_map(|l| l.strip_prefix(line));
    number.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_blocked_attacker_reaches_no_redis() {
    let redis = RedisServer::start();
    let (store, limiter) = server(&redis.url()).await;
    assert!(store.status().is_subscribed);
    fail(&limiter, ip(HOME), "user", 5).await;
    let first = refused(limiter.reserve((ip(HOME), "user")).await);
    let before = commands(&redis);
    for _ in 0..20_000 {
        let refusal = refused(limiter.reserve((ip(HOME), "user")).await);
        assert_eq!(refusal.reason(), Reason::Blocked);
        assert_eq!(
            (refusal.rule(), refusal.usage()),
            (first.rule(), first.usage())
        );
    }
    // Asking is one, and a heart beat that is due may be another.
    let asked = commands(&redis) - before;
    assert!(asked <= 3, "{asked} commands");
    assert_eq!(store.status().cached_refusals, 20_000);
    // The same under the other rule.
    for i in 0..4 {
        fail(&limiter, ip(HOME), &format!("user {i}"), 5).await;
    }
    let refusal = refused(limiter.reserve((ip(HOME), "anybody")).await);
    assert_eq!(refusal.rule(), Rule::ADDRESS);
    let before = redis.calls_of("evalsha");
    for i in 0..1_000 {
        let user = format!("somebody else {i}");
        assert_eq!(
            refused(limiter.reserve((ip(HOME), &*user)).await).rule(),
            Rule::ADDRESS
        );
    }
    assert_eq!(redis.calls_of("evalsha"), before);
    // Other clients are not affected.
    fail(&limiter, ip("192.0.2.2"), "user", 1).await;
}

#[tokio::test]
async fn the_time_that_is_left_is_right_and_the_end_is_noticed() {
    let redis = RedisServer::start();
    let clock = Arc::new(ManualClock::at(START));
    let store = builder()
        .with_clock(Arc::clone(&clock))
        .connect(redis.url())
        .await
        .unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store.clone());
    fail(&limiter, ip(HOME), "user", 5).await;
    for passed in [0, 1, HOUR, DAY - 1] {
        clock.set(START + passed);
        // What is known is asked again after a while; both say the same.
        for _ in 0..3 {
            let refusal = refused(limiter.reserve((ip(HOME), "user")).await);
            let left = Duration::from_millis(DAY - passed);
            assert_eq!(refusal.lifts(), Period::Of(left));
        }
    }
    assert!(store.status().cached_refusals >= 6);
    clock.set(START + DAY);
    fail(&limiter, ip(HOME), "user", 1).await;
}

/// How long it takes until others notice an unblock, on two app servers that had refused from memory.
async fn unblock_is_noticed(here: &LoginLimiter, there: &LoginLimiter) -> Duration {
    fail(here, ip(HOME), "user", 5).await;
    for limiter in [here, there, here, there] {
        refused(limiter.reserve((ip(HOME), "user")).await);
    }
    here.unblock((ip(HOME), "user")).await.unwrap();
    let unblocked = Instant::now();
    // Here at once.
    attempt(here, ip(HOME), "user", Outcome::NotAnAttempt)
        .await
        .unwrap();
    while attempt(there, ip(HOME), "user", Outcome::NotAnAttempt)
        .await
        .is_err()
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    unblocked.elapsed()
}

#[tokio::test]
async fn an_unblock_is_honoured_everywhere_long_before_redis_is_asked_again() {
    let (redis, cluster, sentinel) = (
        RedisServer::start(),
        RedisCluster::start(),
        RedisSentinel::start(),
    );
    let cluster = format!("redis+cluster://127.0.0.1:{}", cluster.nodes[0].port());
    for url in [redis.url(), cluster, sentinel.url()] {
        let ((store, here), (other, there)) = (server(&url).await, server(&url).await);
        eventually(|| store.status().is_subscribed && other.status().is_subscribed).await;
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let noticed = unblock_is_noticed(&here, &there).await;
            assert!(noticed < SOON, "{url}: {noticed:?}");
            best = best.min(noticed);
        }
        // The machine may be busy with something else, but not each time.
        assert!(best < Duration::from_secs(1), "{url}: {best:?}");
        assert!(other.status().cached_refusals >= 3);
    }
}

#[tokio::test]
async fn where_nothing_is_announced_redis_is_asked_again_soon() {
    let redis = RedisServer::start();
    // One that may do everything but publish, one that may not subscribe, and a manager of the app's.
    let acl = |user: &str, rights: &[&str]| {
        let mut command = vec!["ACL", "SETUSER", user, "on", ">pass", "~*", "+@all"];
        command.extend(rights);
        redis.command::<()>(&command);
        format!("redis://{user}:pass@127.0.0.1:{}", redis.port())
    };
    let mute = acl("mute", &["resetchannels"]);
    let deaf = acl("deaf", &["allchannels", "-subscribe"]);
    for url in [mute, deaf] {
        let ((store, here), (_, there)) = (server(&url).await, server(&url).await);
        assert!(!store.status().is_subscribed);
        let noticed = unblock_is_noticed(&here, &there).await;
        assert!(noticed < SOON, "{noticed:?}");
    }
    let own = || {
        let client = redis::Client::open(redis.url()).unwrap();
        let store = builder().build_with_manager(client).unwrap();
        LoginLimiter::new(Policy::default(), store)
    };
    let noticed = unblock_is_noticed(&own(), &own()).await;
    assert!(noticed < SOON, "{noticed:?}");
}

/// A connection on which nothing is announced any more, without a word.
#[tokio::test]
async fn silence_is_noticed() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(format!("127.0.0.1:{}", redis.port())).await;
    let (store, there) = server(&proxy.url()).await;
    let (_, here) = server(&redis.url()).await;
    assert!(store.status().is_subscribed);
    proxy.forget_connections();
    eventually(|| !store.status().is_subscribed).await;
    eventually(|| store.status().is_subscribed).await;
    let noticed = unblock_is_noticed(&here, &there).await;
    assert!(noticed < SOON, "{noticed:?}");
    // And a loud end at once.
    proxy.fail(Fault::Resets);
    eventually(|| !store.status().is_subscribed).await;
}

/// An attempt outlives its lease, counts as the failure that blocks its address, and then turns out well.
/// Without any unblock, the block is over.
#[tokio::test]
async fn a_success_that_ends_a_block_is_noticed_everywhere() {
    let redis = RedisServer::start();
    let policy = Policy::default()
        .with_lease(Duration::from_secs(1))
        .unwrap();
    let limiter = async || {
        let store = builder().connect(redis.url()).await.unwrap();
        LoginLimiter::new(policy.clone(), store)
    };
    let (here, there) = (limiter().await, limiter().await);
    let late = here.reserve((ip(HOME), "owner")).await.unwrap();
    for i in 0..24 {
        fail(&here, ip(HOME), &format!("user {i}"), 1).await;
    }
    loop {
        let refusal = refused(there.reserve((ip(HOME), "anybody")).await);
        if refusal.reason() == Reason::Blocked {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    refused(there.reserve((ip(HOME), "anybody")).await);
    late.settle(Outcome::Success).await.unwrap();
    let done = Instant::now();
    while attempt(&there, ip(HOME), "anybody", Outcome::NotAnAttempt)
        .await
        .is_err()
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(done.elapsed() < SOON, "{:?}", done.elapsed());
}

/// An unblock without an invalidation: an operator deletes a key by hand.
#[tokio::test]
async fn what_is_not_announced_is_noticed_by_and_by() {
    let redis = RedisServer::start();
    let clock = Arc::new(ManualClock::at(START));
    let store = builder()
        .with_clock(Arc::clone(&clock))
        .connect(redis.url())
        .await
        .unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store.clone());
    fail(&limiter, ip(HOME), "user", 5).await;
    refused(limiter.reserve((ip(HOME), "user")).await);
    redis.flush();
    clock.advance(Duration::from_secs(9));
    refused(limiter.reserve((ip(HOME), "user")).await);
    clock.advance(Duration::from_secs(1));
    fail(&limiter, ip(HOME), "user", 1).await;
}

#[tokio::test]
async fn there_are_never_more_blocks_than_room() {
    let redis = RedisServer::start();
    let store = builder()
        .with_block_cache_capacity(10)
        .connect(redis.url())
        .await
        .unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store.clone());
    let address = |i: u8| IpAddr::from([192, 0, 2, i]);
    for i in 0..30 {
        fail(&limiter, address(i), "user", 5).await;
    }
    for _ in 0..3 {
        for i in 0..30 {
            refused(limiter.reserve((address(i), "user")).await);
        }
    }
    assert_eq!(store.status().cached_refusals, 20);
    // What is over makes room.
    for i in 0..30 {
        limiter.unblock((address(i), "user")).await.unwrap();
        fail(&limiter, address(i), "user", 5).await;
        refused(limiter.reserve((address(i), "user")).await);
    }
}

#[tokio::test]
async fn a_block_is_known_under_the_limit_that_it_came_from() {
    let redis = RedisServer::start();
    let (store, limiter) = server(&redis.url()).await;
    fail(&limiter, ip(HOME), "user", 5).await;
    refused(limiter.reserve((ip(HOME), "user")).await);
    let ten = Limit::attempts(10).within(Period::hours(24));
    let policy = Policy::default().with_user_address_limit(ten).unwrap();
    let lenient = LoginLimiter::new(policy, store);
    fail(&lenient, ip(HOME), "user", 1).await;
    refused(limiter.reserve((ip(HOME), "user")).await);
}

/// A block of the account is not one for an address that is known there.
#[tokio::test]
async fn who_is_exempt_is_not_cached_refusals() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(Some(Duration::from_secs(90 * 86_400)));
    let store = builder().connect(redis.url()).await.unwrap();
    let policy = Policy::strict()
        .with_account_limit(Limit::attempts(3).within(Period::hours(1)))
        .unwrap();
    let limiter = LoginLimiter::new(policy, store.clone());
    attempt(&limiter, ip(HOME), "owner", Outcome::Success)
        .await
        .unwrap();
    for i in 10..13 {
        fail(&limiter, ip(&format!("192.0.2.{i}")), "owner", 1).await;
    }
    for i in 20..23 {
        let refusal = refused(
            limiter
                .reserve((ip(&format!("192.0.2.{i}")), "owner"))
                .await,
        );
        assert_eq!(refusal.rule(), Rule::ACCOUNT);
        attempt(&limiter, ip(HOME), "owner", Outcome::Success)
            .await
            .unwrap();
    }
}

/// Where nothing is announced, Redis is asked again by whoever comes. Somebody who comes often and hangs
/// up does not keep others from asking.
#[tokio::test]
async fn who_hangs_up_does_not_keep_a_block_alive() {
    let redis = RedisServer::start();
    let own = || {
        let client = redis::Client::open(redis.url()).unwrap();
        let store = builder().build_with_manager(client).unwrap();
        LoginLimiter::new(Policy::default(), store)
    };
    let (here, there) = (own(), own());
    fail(&there, ip(HOME), "user", 5).await;
    refused(here.reserve((ip(HOME), "user")).await);
    there.unblock((ip(HOME), "user")).await.unwrap();
    let unblocked = Instant::now();
    for i in 0.. {
        // Never asked for, asked for a moment, and honestly.
        drop(here.reserve((ip(HOME), "user")));
        let moment = Duration::from_micros(50);
        let _ = tokio::time::timeout(moment, here.reserve((ip(HOME), "user"))).await;
        // Those who hung up may be in flight for a moment.
        let is_blocked = |error: &ReserveError| matches!(error, ReserveError::Refused(refusal) if refusal.reason() == Reason::Blocked);
        if i % 100 == 0 {
            let honest = here.reserve((ip(HOME), "user")).await;
            if !honest.is_err_and(|error| is_blocked(&error)) {
                break;
            }
        }
        assert!(unblocked.elapsed() < Duration::from_secs(20), "never");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Somebody who was in flight when an address was blocked logs in. It is blocked as before, and nobody is
/// told otherwise.
#[tokio::test]
async fn what_is_still_blocked_is_not_announced() {
    let redis = RedisServer::start();
    // Stores without a heart beat.
    let limiter = LoginLimiter::new(Policy::default(), redis.store().await);
    let three = Limit::attempts(3).within(Period::hours(1));
    let lower = Policy::default().with_address_limit(three).unwrap();
    let lower = LoginLimiter::new(lower, redis.store().await);
    let good = lower.reserve((ip(HOME), "owner")).await.unwrap();
    let late = lower.reserve((ip(HOME), "late")).await.unwrap();
    fail(&limiter, ip(HOME), "user", 4).await;
    let before = redis.calls_of("publish");
    good.settle(Outcome::Success).await.unwrap();
    late.settle(Outcome::MfaPending).await.unwrap();
    assert_eq!(redis.calls_of("publish"), before);
    refused(lower.reserve((ip(HOME), "anybody")).await);
}

/// Four processes have refused an attacker. Redis is restarted without its data, three times.
#[tokio::test]
async fn a_redis_that_comes_back_empty_is_no_amnesty() {
    let mut redis = RedisServer::start();
    let mut servers = Vec::new();
    for _ in 0..4 {
        servers.push(server(&redis.url()).await);
    }
    fail(&servers[0].1, ip(HOME), "user", 5).await;
    for (_, limiter) in &servers {
        refused(limiter.reserve((ip(HOME), "user")).await);
    }
    let mut guesses = 0;
    for _ in 0..3 {
        redis.kill();
        redis.restart();
        assert!(redis.keys().is_empty());
        // For longer than a block is fresh.
        let restarted = Instant::now();
        while restarted.elapsed() < Duration::from_millis(1_500) {
            for (_, limiter) in &servers {
                let guess = attempt(limiter, ip(HOME), "user", Outcome::Failure).await;
                guesses += u32::from(guess.is_ok());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(guesses, 0);
    // A process that has never seen the attacker knows from Redis, in which the block is again.
    let (_, new) = server(&redis.url()).await;
    let refusal = refused(new.reserve((ip(HOME), "user")).await);
    assert_eq!((refusal.reason(), refusal.usage()), (Reason::Blocked, 5));
    // One process wrote it, and others found it.
    let key = redis.counters().into_iter().map(|(key, _)| key);
    let key = key.filter(|key| key.contains("user-address"));
    let [key] = &key.collect::<Vec<_>>()[..] else {
        panic!("{:?}", redis.keys());
    };
    assert_eq!(redis.command::<u32>(&["ZCARD", key]), 5);
    // On the same server, deleting it lifts the block.
    redis.flush();
    let deleted = Instant::now();
    for (_, limiter) in &servers {
        while attempt(limiter, ip(HOME), "user", Outcome::NotAnAttempt)
            .await
            .is_err()
        {
            assert!(deleted.elapsed() < Duration::from_secs(30), "never lifted");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    // And so does an unblock, on the server that it was written back to.
    fail(&servers[1].1, ip(HOME), "user", 5).await;
    refused(servers[2].1.reserve((ip(HOME), "user")).await);
    servers[1].1.unblock((ip(HOME), "user")).await.unwrap();
    eventually(|| {
        redis
            .counters()
            .iter()
            .all(|(key, _)| !key.contains("user-"))
    })
    .await;
    let unblocked = Instant::now();
    while attempt(&servers[2].1, ip(HOME), "user", Outcome::NotAnAttempt)
        .await
        .is_err()
    {
        assert!(unblocked.elapsed() < SOON, "{:?}", unblocked.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The time that is left of a block survives the server, whatever the algorithm.
#[tokio::test]
async fn a_block_that_was_lost_with_its_server_lifts_when_it_would_have() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let clock = Arc::new(ManualClock::at(START));
    let store = |capacity| {
        let builder = builder().with_clock(Arc::clone(&clock));
        let builder = builder.with_block_cache_capacity(capacity);
        builder.connect(redis.url())
    };
    let (cached, plain) = (store(100).await.unwrap(), store(0).await.unwrap());
    let five = || Limit::attempts(5).within(Period::hours(1));
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let waits = [0, 0, 10, 20, 40].map(minutes);
    let limits = [
        ("window", five().blocked_for(Period::hours(3)).build()),
        ("short", five().blocked_for(Period::minutes(20)).build()),
        ("forever", five().blocked_for(Period::Forever).build()),
        ("no-block", five().without_block().build()),
        (
            "growing",
            five()
                .blocked_for(Period::minutes(20))
                .then_for(Period::hours(9))
                .build(),
        ),
        ("bucket", five().as_token_bucket().without_block().build()),
        (
            "bucket-block",
            five()
                .as_token_bucket()
                .blocked_for(Period::hours(2))
                .build(),
        ),
        (
            "counter",
            five().as_sliding_counter().without_block().build(),
        ),
        (
            "counter-block",
            five()
                .as_sliding_counter()
                .blocked_for(Period::hours(4))
                .build(),
        ),
        ("back-off", Limit::backoff(waits).with_jitter(10).build()),
    ];
    let limiters = limits.map(|(name, limit)| {
        let new = |store: &RedisStore| {
            let limit = limit.clone().unwrap();
            KeyLimiter::new(name, limit, store.clone()).unwrap()
        };
        (name, new(&cached), new(&plain))
    });
    let refusal = async |limiter: &KeyLimiter| match limiter.reserve("key").await {
        Err(ReserveError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let ends = |lifts: Period| match lifts {
        Period::Of(left) => Some(clock.now() + u64::try_from(left.as_millis()).unwrap()),
        _ => None,
    };
    let mut expected = Vec::new();
    for (name, limiter, _) in &limiters {
        let admitted = if *name == "back-off" { 3 } else { 5 };
        for i in 0..admitted {
            let reserved = limiter.reserve("key").await;
            reserved.unwrap_or_else(|error| panic!("{name} {i}: {error}"));
            clock.advance(Duration::from_millis(7));
        }
        let refusal = refusal(limiter).await;
        expected.push((ends(refusal.lifts()), refusal.usage()));
    }
    redis.kill();
    redis.restart();
    clock.advance(minutes(2));
    for ((name, limiter, plain), (lifts, usage)) in limiters.iter().zip(expected) {
        let known = refusal(limiter).await;
        assert_eq!(
            (ends(known.lifts()), known.usage()),
            (lifts, usage),
            "{name}"
        );
        // The same from Redis.
        let written = refusal(plain).await;
        assert_eq!(ends(written.lifts()), lifts, "{name}");
        if let Some(lifts) = lifts {
            assert_eq!(written.usage(), usage, "{name}");
            let before = clock.now();
            clock.set(lifts - 1);
            refusal(plain).await;
            clock.set(lifts);
            let reserved = plain.reserve("key").await;
            reserved.unwrap_or_else(|error| panic!("{name}: {error}"));
            clock.set(before);
        }
    }
}

/// An account that is full is refused to an address that is not known there, without a command.
#[tokio::test]
async fn a_full_account_costs_no_command() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(Some(Duration::from_secs(90 * 86_400)));
    let store = builder().connect(redis.url()).await.unwrap();
    let policy = Policy::strict()
        .with_account_limit(Limit::attempts(3).within(Period::hours(1)))
        .unwrap();
    let limiter = LoginLimiter::new(policy, store.clone());
    attempt(&limiter, ip(HOME), "owner", Outcome::Success)
        .await
        .unwrap();
    let (late, bots) = (
        ip("192.0.2.9"),
        [20, 21, 22].map(|i| IpAddr::from([192, 0, 2, i])),
    );
    // In flight when the account becomes full.
    let in_flight = limiter.reserve((late, "owner")).await.unwrap();
    for bot in &bots[..2] {
        fail(&limiter, *bot, "owner", 1).await;
    }
    let refuse = async |address: IpAddr| {
        let refusal = refused(limiter.reserve((address, "owner")).await);
        assert_eq!(refusal.rule(), Rule::ACCOUNT);
        refusal
    };
    fail(&limiter, ip("192.0.2.10"), "other", 1).await;
    let third = refuse(bots[2]).await;
    assert_eq!(third.reason(), Reason::Busy);
    in_flight.settle(Outcome::Failure).await.unwrap();
    for bot in bots {
        refuse(bot).await;
    }
    let before = redis.calls_of("evalsha") + redis.calls_of("eval");
    for _ in 0..2_000 {
        for bot in bots {
            assert_eq!(refuse(bot).await.reason(), Reason::Blocked);
        }
    }
    let calls = redis.calls_of("evalsha") + redis.calls_of("eval") - before;
    assert!(calls <= 6, "{calls} calls");
    // An address that is known, and one that becomes so here, are admitted at once.
    attempt(&limiter, ip(HOME), "owner", Outcome::NotAnAttempt)
        .await
        .unwrap();
    refuse(late).await;
    refuse(late).await;
    limiter.remember("owner", late).await.unwrap();
    attempt(&limiter, late, "owner", Outcome::NotAnAttempt)
        .await
        .unwrap();
    refuse(bots[0]).await;
}
