//! What becomes of attempts while Redis does not answer, and afterwards.

use std::{future::poll_fn, net::IpAddr, pin::Pin, task::Poll, time::Duration};

use tokio::time::Instant;
use tower_login_rate_limit::{
    Attempt, KeyLimiter, Limit, LoginLimiter, Outcome, Period, Policy, Reason, ReserveError, Rule,
    store::{RedisStore, StoreErrorKind, redis::Outage},
};

use crate::support::{Fault, Proxy, RedisServer, attempt, eventually, fail, ip, refused};

const HOME: &str = "192.0.2.1";
const DEADLINE: Duration = Duration::from_millis(200);

/// An app server, and a Redis that is reached through a proxy.
struct App {
    redis: RedisServer,
    proxy: Proxy,
    store: RedisStore,
    limiter: LoginLimiter,
}

impl App {
    async fn start(outage: Outage) -> Self {
        let redis = RedisServer::start();
        let proxy = Proxy::start(format!("127.0.0.1:{}", redis.port())).await;
        let (store, limiter) = server(&proxy, outage).await;
        Self {
            redis,
            proxy,
            store,
            limiter,
        }
    }

    /// Redis goes away, and this is noticed.
    async fn lose_redis(&self) {
        self.proxy.fail(Fault::BlackHole);
        while !self.store.status().is_away {
            let _ = self.limiter.check(ip("192.0.2.250")).await;
        }
    }

    async fn find_redis(&self) {
        self.proxy.fail(Fault::None);
        all_told(&self.store).await;
    }

    /// What Redis itself says.
    async fn in_redis(&self) -> LoginLimiter {
        LoginLimiter::new(Policy::default(), self.redis.store().await)
    }

    async fn usage_in_redis(&self, user: &str) -> u32 {
        let report = self.in_redis().await.check((ip(HOME), user)).await.unwrap();
        report.rule(Rule::USER_ADDRESS).unwrap().usage
    }
}

async fn server(proxy: &Proxy, outage: Outage) -> (RedisStore, LoginLimiter) {
    let builder = RedisStore::builder().outage(outage);
    let store = builder.connect(proxy.url()).await.unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store.clone());
    (store, limiter)
}

async fn all_told(store: &RedisStore) {
    eventually(|| !store.status().is_away && store.status().owed == 0).await;
}

/// The answer, which must be there without waiting for anything.
async fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = Box::pin(future);
    let answer = poll_fn(|cx| Poll::Ready(Pin::new(&mut future).poll(cx))).await;
    match answer {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it has to be waited for"),
    }
}

#[tokio::test]
async fn a_process_without_redis_goes_on_counting_and_tells_redis_afterwards() {
    let app = App::start(Outage::Fallback).await;
    fail(&app.limiter, ip(HOME), "user", 3).await;
    app.lose_redis().await;
    // Three it had seen before.
    for _ in 0..2 {
        let attempt = at_once(app.limiter.reserve((ip(HOME), "user"))).await;
        at_once(app.limiter.settle(attempt.unwrap(), Outcome::Failure))
            .await
            .unwrap();
    }
    let refusal = refused(at_once(app.limiter.reserve((ip(HOME), "user"))).await);
    assert_eq!(refusal.reason(), Reason::Blocked);
    assert_eq!(refusal.rule(), Rule::USER_ADDRESS);
    // So it is for those who check.
    let report = at_once(app.limiter.check((ip(HOME), "user")))
        .await
        .unwrap();
    assert!(report.refusal().is_some());
    assert!(app.store.status().decided_alone >= 3);

    app.find_redis().await;
    let there = app.in_redis().await;
    let refusal = refused(there.reserve((ip(HOME), "user")).await);
    assert_eq!((refusal.reason(), refusal.usage()), (Reason::Blocked, 5));
    let report = there.check(ip(HOME)).await.unwrap();
    assert_eq!(report.rule(Rule::ADDRESS).unwrap().usage, 5);
    refused(app.limiter.reserve((ip(HOME), "user")).await);
    // Others are asked as ever.
    fail(&app.limiter, ip(HOME), "other", 5).await;
    refused(app.limiter.reserve((ip(HOME), "other")).await);
}

#[tokio::test]
async fn a_success_without_redis_takes_back_what_failed_before_and_meanwhile() {
    let app = App::start(Outage::Fallback).await;
    fail(&app.limiter, ip(HOME), "user", 2).await;
    fail(&app.limiter, ip(HOME), "other", 1).await;
    app.lose_redis().await;
    fail(&app.limiter, ip(HOME), "user", 2).await;
    fail(&app.limiter, ip(HOME), "other", 1).await;
    attempt(&app.limiter, ip(HOME), "user", Outcome::Success)
        .await
        .unwrap();
    fail(&app.limiter, ip(HOME), "user", 1).await;
    app.find_redis().await;
    assert_eq!(app.usage_in_redis("user").await, 1);
    assert_eq!(app.usage_in_redis("other").await, 2);
    let report = app.in_redis().await.check(ip(HOME)).await.unwrap();
    assert_eq!(report.rule(Rule::ADDRESS).unwrap().usage, 3);
}

#[tokio::test]
async fn a_block_that_is_known_holds_without_redis() {
    let app = App::start(Outage::Fallback).await;
    // Made by others: this process has seen no failure.
    let elsewhere = app.in_redis().await;
    fail(&elsewhere, ip(HOME), "user", 5).await;
    refused(app.limiter.reserve((ip(HOME), "user")).await);
    app.lose_redis().await;
    let refusal = refused(at_once(app.limiter.reserve((ip(HOME), "user"))).await);
    let Period::Of(left) = refusal.lifts() else {
        panic!("{refusal:?}");
    };
    let day = Duration::from_secs(86_400);
    assert!(
        left <= day && left > day - Duration::from_secs(60),
        "{left:?}"
    );
}

#[tokio::test]
async fn attempts_under_way_when_redis_goes_or_comes_are_settled() {
    let app = App::start(Outage::Fallback).await;
    let reserve = async |user: &'static str| -> Attempt {
        app.limiter.reserve((ip(HOME), user)).await.unwrap()
    };
    let (lost, won) = (reserve("lost").await, reserve("won").await);
    app.lose_redis().await;
    app.limiter.settle(lost, Outcome::Failure).await.unwrap();
    app.limiter.settle(won, Outcome::Success).await.unwrap();
    let (lost, won) = (reserve("lost").await, reserve("won").await);
    let mfa = reserve("mfa").await;
    app.proxy.fail(Fault::None);
    // Those in flight.
    eventually(|| !app.store.status().is_away && app.store.status().owed == 3).await;
    app.limiter.settle(lost, Outcome::Failure).await.unwrap();
    app.limiter.settle(won, Outcome::Success).await.unwrap();
    app.limiter.settle(mfa, Outcome::MfaPending).await.unwrap();
    all_told(&app.store).await;
    assert_eq!(app.usage_in_redis("lost").await, 2);
    assert_eq!(app.usage_in_redis("won").await, 0);
    assert_eq!(app.usage_in_redis("mfa").await, 0);
    let report = app.in_redis().await.check(ip(HOME)).await.unwrap();
    assert_eq!(report.rule(Rule::ADDRESS).unwrap().usage, 2);
}

/// The user is named late: the address was reserved in Redis, the user's counter without it.
#[tokio::test]
async fn an_attempt_may_be_half_with_redis_and_half_without() {
    let app = App::start(Outage::Fallback).await;
    for (user, outcome, left) in [("lost", Outcome::Failure, 1), ("won", Outcome::Success, 0)] {
        let mut attempt = app.limiter.reserve(ip(HOME)).await.unwrap();
        app.lose_redis().await;
        app.limiter.identify(&mut attempt, user).await.unwrap();
        app.limiter.settle(attempt, outcome).await.unwrap();
        app.find_redis().await;
        assert_eq!(app.usage_in_redis(user).await, left, "{user}");
        let report = app.in_redis().await.check(ip(HOME)).await.unwrap();
        assert_eq!(report.rule(Rule::ADDRESS).unwrap().usage, 1, "{user}");
    }
}

#[tokio::test]
async fn an_attempt_that_nobody_settles_is_a_failure_in_redis_too() {
    let app = App::start(Outage::Fallback).await;
    let policy = Policy::default()
        .with_lease(Duration::from_secs(1))
        .unwrap();
    let limiter = LoginLimiter::new(policy, app.store.clone());
    app.lose_redis().await;
    drop(limiter.reserve((ip(HOME), "user")).await.unwrap());
    app.find_redis().await;
    assert_eq!(app.usage_in_redis("user").await, 1);
}

/// Until Redis knows what this process has learned, both must admit.
#[tokio::test]
async fn the_moment_when_redis_is_back_is_no_amnesty() {
    let app = App::start(Outage::Fallback).await;
    app.lose_redis().await;
    // What is told first takes a while; what is told last is the attacker's.
    for i in 0..2_000_u32 {
        let address = IpAddr::from((0x0a00_0000 + i).to_be_bytes());
        fail(&app.limiter, address, "somebody", 1).await;
    }
    fail(&app.limiter, ip(HOME), "user", 5).await;
    app.proxy.fail(Fault::None);
    eventually(|| !app.store.status().is_away).await;
    let mut asked = 0;
    while app.store.status().owed > 0 {
        refused(app.limiter.reserve((ip(HOME), "user")).await);
        asked += 1;
        tokio::task::yield_now().await;
    }
    assert!(asked > 0, "too fast to be seen");
    refused(app.limiter.reserve((ip(HOME), "user")).await);
    assert_eq!(app.usage_in_redis("user").await, 5);
    for i in 0..2_000_u32 {
        let address = IpAddr::from((0x0a00_0000 + i).to_be_bytes());
        let report = app.limiter.check((address, "somebody")).await.unwrap();
        assert_eq!(report.remaining(), Some(4));
    }
}

#[tokio::test]
async fn each_of_several_processes_admits_the_limit_at_most() {
    let app = App::start(Outage::Fallback).await;
    let others = [
        server(&app.proxy, Outage::Fallback).await,
        server(&app.proxy, Outage::Fallback).await,
    ];
    app.proxy.fail(Fault::BlackHole);
    let mut admitted = 0;
    for (_, limiter) in others
        .iter()
        .chain([&(app.store.clone(), app.limiter.clone())])
    {
        for _ in 0..8 {
            match attempt(limiter, ip(HOME), "user", Outcome::Failure).await {
                Ok(()) => admitted += 1,
                Err(refusal) => assert_eq!(refusal.reason(), Reason::Blocked),
            }
        }
    }
    assert_eq!(admitted, 15);
    app.find_redis().await;
    for (store, _) in &others {
        all_told(store).await;
    }
    // All of them happened.
    assert_eq!(app.usage_in_redis("user").await, 15);
}

#[tokio::test]
async fn closed_means_an_error_at_once_and_nothing_kept() {
    let app = App::start(Outage::Closed).await;
    fail(&app.limiter, ip(HOME), "user", 1).await;
    app.lose_redis().await;
    for _ in 0..100 {
        match at_once(app.limiter.reserve((ip(HOME), "user"))).await {
            Err(ReserveError::Store(error)) => {
                assert_eq!(error.kind(), StoreErrorKind::Timeout, "{error}");
                assert!(error.to_string().contains("not asked"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    app.find_redis().await;
    assert_eq!(app.usage_in_redis("user").await, 1);
}

#[tokio::test]
async fn open_means_admitted_and_counted_as_such() {
    let app = App::start(Outage::Open).await;
    fail(&app.limiter, ip(HOME), "user", 4).await;
    let half = app.limiter.reserve((ip(HOME), "half")).await.unwrap();
    app.lose_redis().await;
    for i in 1..=20 {
        let attempt = at_once(app.limiter.reserve((ip(HOME), "user")))
            .await
            .unwrap();
        at_once(app.limiter.settle(attempt, Outcome::Failure))
            .await
            .unwrap();
        assert_eq!(app.store.status().admitted_uncounted, i);
    }
    app.limiter.settle(half, Outcome::Failure).await.unwrap();
    app.find_redis().await;
    assert_eq!(app.usage_in_redis("user").await, 4);
    assert_eq!(app.usage_in_redis("half").await, 1);
    fail(&app.limiter, ip(HOME), "user", 1).await;
    refused(app.limiter.reserve((ip(HOME), "user")).await);
}

#[tokio::test]
async fn too_much_to_remember_is_an_error_and_not_a_permission() {
    let redis = RedisServer::start();
    let builder = RedisStore::builder().fallback_capacity(20);
    let store = builder.connect_later("redis://127.0.0.1:1").unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store);
    let mut full = 0;
    for i in 0..40_u32 {
        let address = IpAddr::from((0x0a00_0000 + i).to_be_bytes());
        match limiter.reserve((address, "user")).await {
            Ok(attempt) => limiter.settle(attempt, Outcome::Failure).await.unwrap(),
            Err(ReserveError::Store(error)) => {
                assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
                full += 1;
            }
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
    assert_eq!(full, 30, "two counters each");
    drop(redis);
}

#[tokio::test]
async fn whoever_unblocks_is_told_that_redis_was_not_reached() {
    let app = App::start(Outage::Fallback).await;
    app.lose_redis().await;
    fail(&app.limiter, ip(HOME), "user", 5).await;
    let error = app.limiter.unblock((ip(HOME), "user")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    // Here it is done all the same, and Redis is not told of what was forgiven.
    fail(&app.limiter, ip(HOME), "user", 1).await;
    app.find_redis().await;
    assert_eq!(app.usage_in_redis("user").await, 1);
}

#[tokio::test]
async fn what_counts_at_once_can_be_given_back_after_the_outage() {
    let app = App::start(Outage::Fallback).await;
    let three = Limit::attempts(3).within(Period::hours(1)).without_block();
    let mails = KeyLimiter::new("mail", three.clone(), app.store.clone()).unwrap();
    app.lose_redis().await;
    let first = mails.reserve("user").await.unwrap();
    let second = mails.reserve("user").await.unwrap();
    assert!(mails.cancel("user", second).await.unwrap());
    assert_eq!(mails.check("user").await.unwrap().usage, 1);
    app.find_redis().await;
    let there = KeyLimiter::new("mail", three, app.redis.store().await).unwrap();
    assert_eq!(there.check("user").await.unwrap().usage, 1);
    assert!(mails.cancel("user", first).await.unwrap());
    assert_eq!(there.check("user").await.unwrap().usage, 0);
}

/// Every algorithm takes what failed without it.
#[tokio::test]
async fn what_failed_meanwhile_is_merged_whatever_the_algorithm() {
    let app = App::start(Outage::Fallback).await;
    let hour = Period::hours(1);
    let limits: [(&str, Limit); 4] = [
        ("window", Limit::attempts(12).within(hour).build().unwrap()),
        (
            "bucket",
            Limit::attempts(12)
                .within(hour)
                .as_token_bucket()
                .build()
                .unwrap(),
        ),
        (
            "counter",
            Limit::attempts(12)
                .within(hour)
                .as_sliding_counter()
                .build()
                .unwrap(),
        ),
        ("backoff", Limit::default_backoff().build().unwrap()),
    ];
    for (name, limit) in limits {
        let rule = Rule::new(name, [tower_login_rate_limit::Part::User], limit).unwrap();
        let policy = Policy::new([rule]).unwrap();
        let limiter = LoginLimiter::new(policy.clone(), app.store.clone());
        fail(&limiter, ip(HOME), "user", 1).await;
        app.lose_redis().await;
        let mut failed = 1;
        while attempt(&limiter, ip(HOME), "user", Outcome::Failure)
            .await
            .is_ok()
        {
            failed += 1;
        }
        app.find_redis().await;
        let there = LoginLimiter::new(policy, app.redis.store().await);
        let refusal = refused(there.reserve((ip(HOME), "user")).await);
        assert_eq!(
            (refusal.reason(), refusal.usage()),
            (Reason::Blocked, failed),
            "{name}"
        );
    }
}

/// Nobody waits for longer than the deadline, whatever is wrong. Tokio's clock is stopped and jumps from
/// timer to timer, so what is measured is what was waited for.
#[tokio::test]
async fn nobody_waits_for_longer_than_the_deadline() {
    for fault in [
        Fault::BlackHole,
        Fault::Slow(Duration::from_secs(5)),
        Fault::LostReplies,
        Fault::Resets,
    ] {
        let app = App::start(Outage::Fallback).await;
        app.proxy.fail(fault);
        for i in 0..50 {
            let user = format!("user {i}");
            tokio::time::pause();
            let started = Instant::now();
            let attempt = app.limiter.reserve((ip(HOME), &*user)).await;
            let waited = started.elapsed();
            tokio::time::resume();
            if let Ok(attempt) = attempt {
                app.limiter
                    .settle(attempt, Outcome::NotAnAttempt)
                    .await
                    .unwrap();
            }
            assert!(waited <= DEADLINE + Duration::from_millis(50), "{waited:?}");
        }
        app.find_redis().await;
        fail(&app.limiter, ip(HOME), "user", 5).await;
        refused(app.limiter.reserve((ip(HOME), "user")).await);
    }
}

/// While Redis is away, a single call at a time finds out whether it is back.
#[tokio::test]
async fn one_call_probes_and_not_all() {
    let app = App::start(Outage::Fallback).await;
    app.lose_redis().await;
    let before = app.proxy.calls();
    let started = std::time::Instant::now();
    let mut asked = 0_u32;
    while started.elapsed() < Duration::from_secs(2) {
        for _ in 0..100 {
            let attempt = app.limiter.reserve((ip(HOME), "user")).await.unwrap();
            app.limiter.settle(attempt, Outcome::Success).await.unwrap();
            asked += 1;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let calls = app.proxy.calls() - before;
    assert!(calls <= 12, "{calls} calls for {asked} attempts");
}

/// An office logs in, all with the right password, while Redis comes and goes. Whatever was in the air
/// when it went away, nobody is blocked, then or afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_blocks_nobody() {
    let app = App::start(Outage::Fallback).await;
    for fault in [
        Fault::BlackHole,
        Fault::LostReplies,
        Fault::Resets,
        Fault::Slow(Duration::from_millis(300)),
    ] {
        let mut people = tokio::task::JoinSet::new();
        for person in 0..20 {
            let limiter = app.limiter.clone();
            people.spawn(async move {
                let user = format!("person {person}");
                for _ in 0..30 {
                    if let Err(refusal) = attempt(&limiter, ip(HOME), &user, Outcome::Success).await
                    {
                        assert_eq!(refusal.reason(), Reason::Busy);
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        println!("{fault:?}");
        app.proxy.fail(fault);
        tokio::time::sleep(Duration::from_millis(600)).await;
        app.proxy.fail(Fault::None);
        people.join_all().await;
        all_told(&app.store).await;
        // What Redis was asked before is taken back, however long it took to be heard.
        eventually(|| app.redis.keys().is_empty()).await;
    }
}
