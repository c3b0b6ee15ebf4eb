//! What becomes of attempts while Redis does not answer, and afterwards.

use std::{future::poll_fn, net::IpAddr, pin::Pin, sync::Arc, task::Poll, time::Duration};

use tokio::time::Instant;
use tower_login_rate_limit::{
    Attempt, KeyLimiter, Limit, LoginLimiter, Outcome, Part, Period, Policy, Reason, ReserveError,
    Rule,
    clock::ManualClock,
    store::{
        RedisStore, StoreErrorKind,
        redis::{Outage, RedisStoreBuilder},
    },
};

use crate::{
    log::Log,
    support::{
        Fault, Proxy, RedisCluster, RedisServer, START, attempt, eventually, fail, ip, refused,
    },
};

const HOME: &str = "192.0.2.1";
const DEADLINE: Duration = Duration::from_millis(200);

/// An app server, and a Redis that is reached through a proxy.
pub struct App {
    redis: RedisServer,
    proxy: Proxy,
    store: RedisStore,
    pub limiter: LoginLimiter,
}

impl App {
    pub async fn start(outage: Outage) -> Self {
        Self::start_with(RedisStore::builder().with_outage(outage), Policy::default()).await
    }

    pub async fn start_with(builder: RedisStoreBuilder, policy: Policy) -> Self {
        let redis = RedisServer::start();
        let proxy = Proxy::start(format!("127.0.0.1:{}", redis.port())).await;
        let store = builder.connect(proxy.url()).await.unwrap();
        Self {
            redis,
            proxy,
            limiter: LoginLimiter::new(policy, store.clone()),
            store,
        }
    }

    /// Redis goes away, and this is noticed.
    pub async fn lose_redis(&self) {
        self.proxy.fail(Fault::BlackHole);
        while !self.store.status().is_degraded {
            let _ = self.limiter.check(ip("192.0.2.250")).await;
        }
    }

    pub async fn find_redis(&self) {
        self.proxy.fail(Fault::None);
        all_told(&self.store).await;
    }

    /// The decision of Redis itself.
    async fn in_redis(&self) -> LoginLimiter {
        LoginLimiter::new(Policy::default(), self.redis.store().await)
    }

    /// What Redis has of a user and of the address.
    pub async fn both_in_redis(&self, user: &str) -> (u32, u32) {
        let report = self.in_redis().await.check((ip(HOME), user)).await.unwrap();
        let usage = |rule| report.rule(rule).unwrap().usage;
        (usage(Rule::USER_ADDRESS), usage(Rule::ADDRESS))
    }

    async fn usage_in_redis(&self, user: &str) -> u32 {
        self.both_in_redis(user).await.0
    }
}

async fn server(proxy: &Proxy, outage: Outage) -> (RedisStore, LoginLimiter) {
    let builder = RedisStore::builder().with_outage(outage);
    let store = builder.connect(proxy.url()).await.unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store.clone());
    (store, limiter)
}

async fn all_told(store: &RedisStore) {
    eventually(|| !store.status().is_degraded && store.status().pending == 0).await;
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
        at_once(attempt.unwrap().settle(Outcome::Failure))
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
    assert!(app.store.status().fallback_decisions >= 3);

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

/// Redis decided on the address, the fallback on the user, and Redis is back for the outcome.
#[tokio::test]
async fn a_block_of_a_user_that_the_fallback_decided_on_is_logged_when_redis_is_back() {
    let app = App::start(Outage::Fallback).await;
    let (log, _guard) = Log::start();
    fail(&app.limiter, ip(HOME), "user", 4).await;
    let mut attempt = app.limiter.reserve(ip(HOME)).await.unwrap();
    app.lose_redis().await;
    attempt.identify("user").await.unwrap();
    app.proxy.fail(Fault::None);
    eventually(|| !app.store.status().is_degraded).await;
    attempt.settle(Outcome::Failure).await.unwrap();
    assert_eq!(log.count("login block began"), 1, "{}", log.text());
    assert!(log.text().contains(Rule::USER_ADDRESS));
    all_told(&app.store).await;
    assert_eq!(app.both_in_redis("user").await, (5, 5));
    assert_eq!(log.count("login block began"), 1, "{}", log.text());
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
    lost.settle(Outcome::Failure).await.unwrap();
    won.settle(Outcome::Success).await.unwrap();
    let (lost, won) = (reserve("lost").await, reserve("won").await);
    let mfa = reserve("mfa").await;
    app.proxy.fail(Fault::None);
    // Those in flight.
    eventually(|| !app.store.status().is_degraded && app.store.status().pending == 3).await;
    lost.settle(Outcome::Failure).await.unwrap();
    won.settle(Outcome::Success).await.unwrap();
    mfa.settle(Outcome::MfaPending).await.unwrap();
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
        attempt.identify(user).await.unwrap();
        attempt.settle(outcome).await.unwrap();
        app.find_redis().await;
        assert_eq!(app.usage_in_redis(user).await, left, "{user}");
        let report = app.in_redis().await.check(ip(HOME)).await.unwrap();
        assert_eq!(report.rule(Rule::ADDRESS).unwrap().usage, 1, "{user}");
    }
}

#[tokio::test]
async fn an_attempt_that_is_never_settled_is_a_failure_in_redis_too() {
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

/// Until the journal is replayed, both Redis and the fallback must admit.
#[tokio::test]
async fn the_moment_when_redis_is_back_is_no_amnesty() {
    let app = App::start(Outage::Fallback).await;
    app.lose_redis().await;
    // The entries ahead take a while to replay; the attacker's is the last one.
    for i in 0..2_000_u32 {
        let address = IpAddr::from((0x0a00_0000 + i).to_be_bytes());
        fail(&app.limiter, address, "somebody", 1).await;
    }
    fail(&app.limiter, ip(HOME), "user", 5).await;
    app.proxy.fail(Fault::None);
    eventually(|| !app.store.status().is_degraded).await;
    let mut asked = 0;
    while app.store.status().pending > 0 {
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
                assert!(
                    error.to_string().contains("circuit breaker is open"),
                    "{error}"
                );
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
        at_once(attempt.settle(Outcome::Failure)).await.unwrap();
        assert_eq!(app.store.status().admitted_uncounted, i);
    }
    half.settle(Outcome::Failure).await.unwrap();
    app.find_redis().await;
    assert_eq!(app.usage_in_redis("user").await, 4);
    assert_eq!(app.usage_in_redis("half").await, 1);
    fail(&app.limiter, ip(HOME), "user", 1).await;
    refused(app.limiter.reserve((ip(HOME), "user")).await);
}

#[tokio::test]
async fn too_much_to_remember_is_an_error_and_not_a_permission() {
    let builder = RedisStore::builder().with_fallback_capacity(20);
    let store = builder.connect_lazy("redis://127.0.0.1:1").unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store);
    let mut full = 0;
    for i in 0..40_u32 {
        let address = IpAddr::from((0x0a00_0000 + i).to_be_bytes());
        match limiter.reserve((address, "user")).await {
            Ok(attempt) => attempt.settle(Outcome::Failure).await.unwrap(),
            Err(ReserveError::Store(error)) => {
                assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
                full += 1;
            }
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
    assert_eq!(full, 30, "two counters each");
}

#[tokio::test]
async fn an_unblock_that_does_not_reach_redis_is_an_error() {
    let app = App::start(Outage::Fallback).await;
    app.lose_redis().await;
    fail(&app.limiter, ip(HOME), "user", 5).await;
    let error = app.limiter.unblock((ip(HOME), "user")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    // Here it is done all the same, and what was forgiven is not replayed.
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

/// No caller waits for longer than the deadline, whatever is wrong. Tokio's clock is stopped and jumps from
/// timer to timer, so what is measured is what was waited for.
#[tokio::test]
async fn no_caller_waits_for_longer_than_the_deadline() {
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
                attempt.settle(Outcome::NotAnAttempt).await.unwrap();
            }
            assert!(waited <= DEADLINE + Duration::from_millis(50), "{waited:?}");
        }
        app.find_redis().await;
        fail(&app.limiter, ip(HOME), "user", 5).await;
        refused(app.limiter.reserve((ip(HOME), "user")).await);
    }
}

/// The best of three, since the machine may be busy with something else.
#[tokio::test]
async fn redis_is_asked_again_within_two_seconds() {
    for fault in [
        Fault::BlackHole,
        Fault::Slow(Duration::from_secs(5)),
        Fault::LostReplies,
        Fault::Resets,
        Fault::Answers(b"-LOADING\r\n".to_vec()),
    ] {
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let app = App::start(Outage::Closed).await;
            app.proxy.fail(fault.clone());
            while !app.store.status().is_degraded {
                let _ = app.limiter.check(ip(HOME)).await;
            }
            app.proxy.fail(Fault::None);
            let healed = std::time::Instant::now();
            while app.limiter.check(ip(HOME)).await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            best = best.min(healed.elapsed());
        }
        println!("{fault:?}: {best:?}");
        assert!(best < Duration::from_secs(2), "{fault:?}: {best:?}");
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
            attempt.settle(Outcome::Success).await.unwrap();
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
async fn an_outage_blocks_no_client() {
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

/// What Redis had admitted and is in flight takes a place here too.
#[tokio::test]
async fn attempts_in_flight_with_redis_count_without_it() {
    let app = App::start(Outage::Fallback).await;
    let mut in_flight = Vec::new();
    for _ in 0..5 {
        in_flight.push(app.limiter.reserve((ip(HOME), "user")).await.unwrap());
    }
    app.lose_redis().await;
    for _ in 0..10 {
        let refusal = refused(app.limiter.reserve((ip(HOME), "user")).await);
        assert_eq!(refusal.reason(), Reason::Busy);
    }
    for attempt in in_flight {
        attempt.settle(Outcome::Failure).await.unwrap();
    }
    let refusal = refused(app.limiter.reserve((ip(HOME), "user")).await);
    assert_eq!(refusal.reason(), Reason::Blocked);
    app.find_redis().await;
    assert_eq!(app.both_in_redis("user").await, (5, 5));
}

/// A client keeps attempts in flight and lets them fail one by one when Redis is away.
#[tokio::test]
async fn late_failures_erase_nothing() {
    let app = App::start(Outage::Fallback).await;
    let mut late = Vec::new();
    for _ in 0..4 {
        late.push(app.limiter.reserve((ip(HOME), "user")).await.unwrap());
    }
    late.push(app.limiter.reserve((ip(HOME), "other")).await.unwrap());
    app.lose_redis().await;
    let mut guesses = 0;
    let mut guess = async |user: &str| {
        while attempt(&app.limiter, ip(HOME), user, Outcome::Failure)
            .await
            .is_ok()
        {
            guesses += 1;
        }
    };
    guess("user").await;
    for attempt in late {
        attempt.settle(Outcome::Failure).await.unwrap();
        guess("user").await;
    }
    for i in 0..30 {
        guess(&format!("user {i}")).await;
    }
    assert_eq!(guesses, 20, "with the five before");
}

#[tokio::test]
async fn a_user_who_turns_out_to_be_another_one_is_replayed() {
    let app = App::start(Outage::Fallback).await;
    app.lose_redis().await;
    for _ in 0..3 {
        let mut attempt = app.limiter.reserve((ip(HOME), "alias")).await.unwrap();
        attempt.identify("user").await.unwrap();
        attempt.settle(Outcome::Failure).await.unwrap();
    }
    app.find_redis().await;
    assert_eq!(app.both_in_redis("user").await, (3, 3));
    assert_eq!(app.usage_in_redis("alias").await, 0);
}

/// A block that is known is asked about again from time to time; if that fails, it still is known.
#[tokio::test]
async fn a_known_block_holds_when_making_sure_fails() {
    for outage in [Outage::Fallback, Outage::Open, Outage::Closed] {
        let clock = Arc::new(ManualClock::at(START));
        let builder = RedisStore::builder()
            .with_clock(Arc::clone(&clock))
            .with_outage(outage);
        let app = App::start_with(builder, Policy::default()).await;
        let elsewhere = app.redis.builder().with_clock(Arc::clone(&clock));
        let elsewhere = elsewhere.connect(app.redis.url()).await.unwrap();
        fail(
            &LoginLimiter::new(Policy::default(), elsewhere),
            ip(HOME),
            "user",
            5,
        )
        .await;
        refused(app.limiter.reserve((ip(HOME), "user")).await);
        clock.advance(Duration::from_secs(10));
        app.proxy.fail(Fault::BlackHole);
        refused(app.limiter.reserve((ip(HOME), "user")).await);
        app.proxy.fail(Fault::None);
    }
}

#[tokio::test]
async fn a_success_overtakes_pending_failures() {
    let app = App::start(Outage::Fallback).await;
    app.lose_redis().await;
    for i in 0..1_000_u32 {
        let address = IpAddr::from((0x0a00_0000 + i).to_be_bytes());
        fail(&app.limiter, address, "somebody", 1).await;
    }
    fail(&app.limiter, ip(HOME), "user", 4).await;
    app.proxy.fail(Fault::None);
    eventually(|| !app.store.status().is_degraded).await;
    attempt(&app.limiter, ip(HOME), "user", Outcome::Success)
        .await
        .unwrap();
    app.find_redis().await;
    assert_eq!(app.both_in_redis("user").await, (0, 0));
}

/// An entry is replayed as of when it was written: what failed elsewhere since then stays.
#[tokio::test]
async fn a_success_that_is_replayed_late_takes_back_what_failed_before_it() {
    let app = App::start(Outage::Fallback).await;
    let elsewhere = app.in_redis().await;
    fail(&elsewhere, ip(HOME), "user", 2).await;
    app.lose_redis().await;
    attempt(&app.limiter, ip(HOME), "user", Outcome::Success)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    fail(&elsewhere, ip(HOME), "user", 1).await;
    app.find_redis().await;
    assert_eq!(app.both_in_redis("user").await, (1, 1));
}

/// A user logs in through another server. What this one had seen of them no longer counts.
#[tokio::test]
async fn what_was_cleaned_up_elsewhere_does_not_count_without_redis() {
    let app = App::start(Outage::Fallback).await;
    let elsewhere = app.in_redis().await;
    fail(&app.limiter, ip(HOME), "user", 4).await;
    attempt(&elsewhere, ip(HOME), "user", Outcome::Success)
        .await
        .unwrap();
    // A failure of the same millisecond may be newer than what Redis replies, and is kept.
    tokio::time::sleep(Duration::from_millis(5)).await;
    fail(&app.limiter, ip(HOME), "user", 1).await;
    app.lose_redis().await;
    fail(&app.limiter, ip(HOME), "user", 4).await;
    refused(app.limiter.reserve((ip(HOME), "user")).await);
}

#[tokio::test]
async fn a_success_after_its_lease_is_a_success() {
    let policy = Policy::default()
        .with_lease(Duration::from_secs(1))
        .unwrap();
    let app = App::start_with(RedisStore::builder(), policy).await;
    app.lose_redis().await;
    let late = app.limiter.reserve((ip(HOME), "user")).await.unwrap();
    app.find_redis().await;
    assert_eq!(app.both_in_redis("user").await, (1, 1));
    late.settle(Outcome::Success).await.unwrap();
    assert_eq!(app.both_in_redis("user").await, (0, 0));
}

#[tokio::test]
async fn the_owner_at_a_known_address_is_exempt_without_redis() {
    let three = Limit::attempts(3).within(Period::hours(1));
    let policy = Policy::strict().with_account_limit(three).unwrap();
    let mut app = App::start_with(RedisStore::builder(), policy).await;
    app.redis
        .keys_may_live(Some(Duration::from_secs(90 * 86_400)));
    attempt(&app.limiter, ip(HOME), "owner", Outcome::Success)
        .await
        .unwrap();
    for i in 10..13 {
        fail(&app.limiter, ip(&format!("192.0.2.{i}")), "owner", 1).await;
    }
    app.lose_redis().await;
    let refusal = refused(app.limiter.reserve((ip("192.0.2.20"), "owner")).await);
    assert_eq!(refusal.rule(), Rule::ACCOUNT);
    attempt(&app.limiter, ip(HOME), "owner", Outcome::Success)
        .await
        .unwrap();
    assert_eq!(app.limiter.known_addresses("owner").await.unwrap().len(), 1);
    app.find_redis().await;
}

/// A process whose fallback is full decides as Redis does, as long as that answers.
#[tokio::test]
async fn without_room_redis_decides() {
    let builder = RedisStore::builder().with_fallback_capacity(6);
    let app = App::start_with(builder, Policy::default()).await;
    app.lose_redis().await;
    let in_flight = app.limiter.reserve((ip(HOME), "user")).await.unwrap();
    app.proxy.fail(Fault::None);
    eventually(|| !app.store.status().is_degraded).await;
    for i in 0..20_u32 {
        let address = IpAddr::from((0x0a00_0000 + i).to_be_bytes());
        fail(&app.limiter, address, "user", 5).await;
        refused(app.limiter.reserve((address, "user")).await);
    }
    in_flight.settle(Outcome::Failure).await.unwrap();
    app.find_redis().await;
    assert_eq!(app.usage_in_redis("user").await, 1);
}

/// Failures from many addresses do not use up what honest people need in an outage.
#[tokio::test]
async fn half_of_the_room_is_kept_for_outages() {
    let builder = RedisStore::builder().with_fallback_capacity(100);
    let app = App::start_with(builder, Policy::default()).await;
    for i in 0..200_u32 {
        let address = IpAddr::from((0x0a00_0000 + i).to_be_bytes());
        fail(&app.limiter, address, "user", 1).await;
    }
    app.lose_redis().await;
    for i in 0..20 {
        let address = ip(&format!("192.0.2.{i}"));
        attempt(&app.limiter, address, "owner", Outcome::Success)
            .await
            .unwrap();
    }
    app.find_redis().await;
}

#[tokio::test]
async fn open_stays_open() {
    let builder = RedisStore::builder()
        .with_outage(Outage::Open)
        .with_fallback_capacity(3);
    let app = App::start_with(builder, Policy::default()).await;
    let three = Limit::attempts(3).within(Period::hours(1)).without_block();
    let mails = KeyLimiter::new("mail", three, app.store.clone()).unwrap();
    app.lose_redis().await;
    for _ in 0..10 {
        mails.reserve("user").await.unwrap();
        drop(app.limiter.reserve((ip(HOME), "user")).await.unwrap());
    }
}

/// One server of a cluster hangs for longer than anything else is tried. Its pending writes are kept.
#[tokio::test]
async fn a_server_that_hangs_receives_pending_writes_when_it_wakes_up() {
    let cluster = RedisCluster::start();
    let store = RedisStore::connect(cluster.url()).await.unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store.clone());
    fail(&limiter, ip(HOME), "user", 4).await;
    let success = limiter.reserve((ip(HOME), "user")).await.unwrap();
    let node = &cluster.nodes[cluster.serving(HOME)];
    node.pause();
    success.settle(Outcome::Success).await.unwrap();
    let started = std::time::Instant::now();
    while started.elapsed() < Duration::from_secs(16) {
        assert_eq!(store.status().pending, 1);
        // The others answer.
        let _ = limiter.check(ip("192.0.2.2")).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    node.resume();
    all_told(&store).await;
    fail(&limiter, ip(HOME), "user", 5).await;
}

/// An app that drops its store while Redis is gone does not leave a task behind for ever.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_store_that_is_dropped() {
    let store = RedisStore::builder()
        .connect_lazy("redis://127.0.0.1:1")
        .unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store);
    fail(&limiter, ip(HOME), "user", 1).await;
    drop(limiter);
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(tasks(), 0);
}

/// A user is unblocked through another server, whose invalidation this one receives; then Redis goes away.
#[tokio::test]
async fn who_was_unblocked_elsewhere_is_not_blocked_without_redis() {
    let app = App::start(Outage::Fallback).await;
    let (_, elsewhere) = server(&app.proxy, Outage::Fallback).await;
    fail(&app.limiter, ip(HOME), "user", 5).await;
    refused(app.limiter.reserve((ip(HOME), "user")).await);
    elsewhere.unblock((ip(HOME), "user")).await.unwrap();
    let heard = || app.store.status().cached_refusals;
    let before = heard();
    // Heard when it is no longer refused from memory.
    while app.limiter.reserve((ip(HOME), "user")).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(heard() - before < 200);
    app.lose_redis().await;
    fail(&app.limiter, ip(HOME), "user", 4).await;
    app.find_redis().await;
}

#[tokio::test]
async fn what_counts_at_once_counts_without_redis_too() {
    let app = App::start(Outage::Fallback).await;
    let three = Limit::attempts(3).within(Period::hours(1)).without_block();
    let codes = KeyLimiter::new("code", three, app.store.clone()).unwrap();
    for _ in 0..3 {
        codes.reserve("user").await.unwrap();
    }
    app.lose_redis().await;
    refused(codes.reserve("user").await);
}

/// People of an office give up while Redis hangs: nobody has checked a password, so nothing failed.
#[tokio::test]
async fn who_hangs_up_while_redis_hangs_has_not_failed() {
    let app = App::start(Outage::Fallback).await;
    app.redis.pause();
    for person in 0..60 {
        let user = format!("person {person}");
        let reserving = app.limiter.reserve((ip(HOME), &*user));
        if let Ok(attempt) = tokio::time::timeout(Duration::from_millis(5), reserving).await {
            let settled = attempt.unwrap().settle(Outcome::NotAnAttempt);
            settled.await.unwrap();
        }
    }
    app.redis.resume();
    all_told(&app.store).await;
    while app.limiter.all_settled().await.is_err() {}
    eventually(|| app.redis.keys().is_empty()).await;
}

/// Slow, but not too slow: each call is answered in time, though not two of them together.
#[tokio::test]
async fn a_slow_redis_is_asked_again() {
    let app = App::start(Outage::Fallback).await;
    app.lose_redis().await;
    app.proxy.fail(Fault::Slow(Duration::from_millis(120)));
    eventually(|| !app.store.status().is_degraded).await;
}

/// The server of a cluster that has the account refuses to write when somebody has logged in. It is told
/// later what left the address.
#[tokio::test]
async fn half_of_a_success_is_replayed_later() {
    let mut cluster = RedisCluster::start();
    for node in &mut cluster.nodes {
        node.keys_may_live(Some(Duration::from_secs(90 * 86_400)));
    }
    let store = RedisStore::connect(cluster.url()).await.unwrap();
    let limiter = LoginLimiter::new(Policy::strict(), store.clone());
    // An account on another server than the address.
    let account_of = |user: &str| {
        let keys = cluster.nodes.iter().enumerate();
        let has = |node: &RedisServer| node.keys().iter().any(|(key, _)| key.ends_with(":account"));
        let found = keys.filter(|(_, node)| has(node)).map(|(i, _)| i).next();
        (found.unwrap(), user.to_owned())
    };
    let home = cluster.serving(&format!("login:{{{HOME}}}:address"));
    let mut found = None;
    for i in 0..50 {
        cluster.flush();
        let user = format!("user {i}");
        fail(&limiter, ip(HOME), &user, 4).await;
        let (node, user) = account_of(&user);
        if node != home {
            found = Some((node, user));
            break;
        }
    }
    let (node, user) = found.expect("one elsewhere");
    let success = limiter.reserve((ip(HOME), &*user)).await.unwrap();
    cluster.nodes[node].pause();
    success.settle(Outcome::Success).await.unwrap();
    cluster.nodes[node].resume();
    all_told(&store).await;
    let report = limiter.check((ip("192.0.2.99"), &*user)).await.unwrap();
    assert_eq!(report.rule(Rule::ACCOUNT).unwrap().usage, 0);
}

/// In flight with Redis, failed without it, and then the right password.
#[tokio::test]
async fn a_success_takes_back_a_failure_that_redis_had_in_flight() {
    for is_back in [false, true] {
        let app = App::start(Outage::Fallback).await;
        let first = app.limiter.reserve((ip(HOME), "user")).await.unwrap();
        app.lose_redis().await;
        // So many things to tell that the success overtakes them.
        for i in 0..500_u32 {
            let address = IpAddr::from((0x0a00_0000 + i).to_be_bytes());
            fail(&app.limiter, address, "somebody", 1).await;
        }
        first.settle(Outcome::Failure).await.unwrap();
        if is_back {
            app.proxy.fail(Fault::None);
            eventually(|| !app.store.status().is_degraded).await;
        }
        attempt(&app.limiter, ip(HOME), "user", Outcome::Success)
            .await
            .unwrap();
        app.find_redis().await;
        assert_eq!(app.both_in_redis("user").await, (0, 0), "{is_back}");
    }
}

#[tokio::test]
async fn an_address_that_is_forgiven_forgives_no_other() {
    let app = App::start(Outage::Fallback).await;
    app.lose_redis().await;
    fail(&app.limiter, ip(HOME), "user", 2).await;
    app.limiter.unblock(ip(HOME)).await.unwrap_err();
    app.find_redis().await;
    assert_eq!(app.both_in_redis("user").await, (2, 0));
}

#[tokio::test]
async fn a_success_after_its_lease_takes_back_what_was_before_it() {
    let policy = Policy::default()
        .with_lease(Duration::from_secs(1))
        .unwrap();
    let app = App::start_with(RedisStore::builder(), policy).await;
    fail(&app.in_redis().await, ip(HOME), "user", 2).await;
    app.lose_redis().await;
    let late = app.limiter.reserve((ip(HOME), "user")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    late.settle(Outcome::Success).await.unwrap();
    app.find_redis().await;
    assert_eq!(app.both_in_redis("user").await, (0, 0));
}

/// An unblock through another server reaches one that has seen the failures and refused no one.
#[tokio::test]
async fn an_unblock_elsewhere_reaches_the_fallback_of_a_server_that_cached_no_block() {
    let app = App::start(Outage::Fallback).await;
    let (_, elsewhere) = server(&app.proxy, Outage::Fallback).await;
    fail(&app.limiter, ip(HOME), "user", 5).await;
    elsewhere.unblock((ip(HOME), "user")).await.unwrap();
    // The invalidation arrives within a moment.
    tokio::time::sleep(Duration::from_millis(500)).await;
    app.lose_redis().await;
    fail(&app.limiter, ip(HOME), "user", 5).await;
    refused(app.limiter.reserve((ip(HOME), "user")).await);
}

/// Probes of a server that hangs are no pending writes.
#[tokio::test]
async fn probes_of_a_server_that_hangs_leave_nothing_in_the_journal() {
    let app = App::start(Outage::Fallback).await;
    app.redis.pause();
    while !app.store.status().is_degraded {
        let _ = app.limiter.check(ip("192.0.2.250")).await;
    }
    let before = app.store.status().pending;
    tokio::time::sleep(Duration::from_secs(3)).await;
    app.redis.resume();
    assert_eq!(app.store.status().pending, before);
    all_told(&app.store).await;
}

/// A policy without rules by user: identifying one sends no command, and is no reply for the breaker.
#[tokio::test]
async fn identifying_without_a_rule_by_user_does_not_keep_the_breaker_closed() {
    let a_day = Limit::attempts(25).within(Period::days(1));
    let rule = Rule::new(Rule::ADDRESS, [Part::Address], a_day).unwrap();
    let policy = Policy::new([rule]).unwrap();
    let app = App::start_with(RedisStore::builder(), policy).await;
    app.proxy.fail(Fault::BlackHole);
    for i in 0..12 {
        let mut attempt = app.limiter.reserve(ip(HOME)).await.unwrap();
        attempt.identify(&format!("user {i}")).await.unwrap();
        attempt.settle(Outcome::NotAnAttempt).await.unwrap();
    }
    assert!(app.store.status().is_degraded);
}

/// A client hangs up while its user is being identified: no password was checked.
#[tokio::test]
async fn identifying_that_is_dropped_leaves_no_failure() {
    let app = App::start(Outage::Fallback).await;
    for polls in 1..12 {
        let mut attempt = app.limiter.reserve(ip(HOME)).await.unwrap();
        {
            let mut identified = Box::pin(attempt.identify("user"));
            for _ in 0..polls {
                let patience = Duration::from_micros(30);
                if tokio::time::timeout(patience, &mut identified)
                    .await
                    .is_ok()
                {
                    break;
                }
            }
        }
        attempt.settle(Outcome::NotAnAttempt).await.unwrap();
    }
    app.limiter.all_settled().await.unwrap();
    eventually(|| app.redis.keys().is_empty()).await;
}

/// Parallel failures are all in the fallback when Redis goes away, also those of one millisecond.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_failures_of_one_millisecond_count_in_the_fallback() {
    let app = App::start(Outage::Fallback).await;
    let five = Limit::attempts(5).within(Period::hours(1)).without_block();
    let codes = KeyLimiter::new("code", five, app.store.clone()).unwrap();
    for key in 0..200 {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..5 {
            let codes = codes.clone();
            tasks.spawn(async move { codes.reserve(format!("key {key}")).await.unwrap() });
        }
        tasks.join_all().await;
    }
    app.lose_redis().await;
    for key in 0..200 {
        refused(codes.reserve(format!("key {key}")).await);
    }
}
