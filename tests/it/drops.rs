//! Requests that are given up at any point: each one that took a place is counted.

use std::{
    convert::Infallible,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, Service, service_fn};
use tower_login_rate_limit::{
    Limit, LoginAttempt, LoginLimiter, Outcome, Period, Policy, Reason, Rule, store::MemoryStore,
};

use crate::support::{RedisServer, ip, layer, request};

/// Limits that are never reached.
fn policy() -> Policy {
    let wide = || Limit::attempts(100_000).within(Period::hours(1));
    let policy = Policy::default().with_address_limit(wide()).unwrap();
    policy.with_user_address_limit(wide()).unwrap()
}

async fn usage(limiter: &LoginLimiter) -> u32 {
    let report = limiter.check((ip("192.0.2.1"), "user")).await.unwrap();
    let of = |rule| report.rule(rule).unwrap().usage;
    assert_eq!(of(Rule::ADDRESS), of(Rule::USER_ADDRESS));
    of(Rule::ADDRESS)
}

/// They have failed, and are not just in flight: that many fill a window, and block.
async fn assert_all_failed(store: Arc<MemoryStore>, attempts: u32) {
    let limit = Limit::attempts(attempts).within(Period::hours(1));
    let policy = Policy::default().with_address_limit(limit).unwrap();
    let full = LoginLimiter::new(policy, store)
        .check(ip("192.0.2.1"))
        .await;
    assert_eq!(full.unwrap().refusal().unwrap().reason(), Reason::Blocked);
}

/// How many requests came as far as that.
static HANDLED: AtomicU32 = AtomicU32::new(0);

/// Takes a few turns before and after it says how it went.
async fn counted(request: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    HANDLED.fetch_add(1, Ordering::SeqCst);
    slow(request).await
}

async fn slow(request: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    let attempt = request.extensions().get::<LoginAttempt>().cloned().unwrap();
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    attempt.failed();
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    Ok(Response::new(Full::default()))
}

#[tokio::test]
async fn ten_thousand_requests_dropped_at_any_point_in_memory() {
    let store = Arc::new(MemoryStore::new());
    let limiter = LoginLimiter::new(policy(), Arc::clone(&store));
    let mut service = layer(&limiter).layer(service_fn(slow));
    let mut reached = 0;
    for i in 0..10_000 {
        let mut response = pin!(service.call(request()));
        let mut context = Context::from_waker(Waker::noop());
        let turns = i % 9;
        for _ in 0..turns {
            if response.as_mut().poll(&mut context).is_ready() {
                break;
            }
        }
        reached += u32::from(turns > 0);
    }
    limiter.all_settled().await.unwrap();
    assert_eq!((usage(&limiter).await, reached), (8_888, 8_888));
    assert_all_failed(store, 8_888).await;
}

#[tokio::test]
async fn a_thousand_requests_dropped_at_any_point_on_redis() {
    let redis = RedisServer::start();
    let limiter = LoginLimiter::new(policy(), redis.store().await);
    let mut service = layer(&limiter).layer(service_fn(counted));
    let mut started = 0;
    for i in 0..1_000_u64 {
        let response = service.call(request());
        let turns = i * 37 % 1_500;
        let mut response = pin!(response);
        let mut turn = 0;
        let given_up = std::future::poll_fn(|cx| {
            turn += 1;
            if turn > turns {
                return Poll::Ready(true);
            }
            cx.waker().wake_by_ref();
            response.as_mut().poll(cx).map(|_| false)
        })
        .await;
        started += u32::from(turns > 0);
        let _ = given_up;
    }
    limiter.all_settled().await.unwrap();
    // None of those that reached the handler is missing. Those that were dropped while they were
    // being reserved may have taken a place too.
    let (usage, handled) = (usage(&limiter).await, HANDLED.load(Ordering::SeqCst));
    assert!(handled > 100, "only {handled} reached the handler");
    assert!(
        (handled..=started).contains(&usage),
        "{handled} {usage} {started}"
    );
}

#[tokio::test]
async fn a_thousand_panics_are_counted() {
    let store = Arc::new(MemoryStore::new());
    let limiter = LoginLimiter::new(policy(), Arc::clone(&store));
    let service = layer(&limiter).layer(service_fn(async |_: Request<Full<Bytes>>| {
        tokio::task::yield_now().await;
        std::panic::resume_unwind(Box::new("as it was told to"));
        #[allow(unreachable_code)]
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    for _ in 0..1_000 {
        let mut service = service.clone();
        let handled = tokio::spawn(async move { service.call(request()).await });
        assert!(handled.await.unwrap_err().is_panic());
    }
    limiter.all_settled().await.unwrap();
    assert_eq!(usage(&limiter).await, 1_000);
    assert_all_failed(store, 1_000).await;
}

/// The handler may have checked a password before it panicked, unlike one whose future was never polled.
#[tokio::test]
async fn a_panic_in_the_call_itself_is_counted() {
    let limiter = LoginLimiter::new(policy(), MemoryStore::new());
    let panicking = service_fn(
        |_: Request<Full<Bytes>>| -> std::future::Ready<Result<Response<Full<Bytes>>, Infallible>> {
            std::panic::resume_unwind(Box::new("as it was told to"))
        },
    );
    let mut service = layer(&limiter).layer(panicking);
    let called = tokio::spawn(async move { service.call(request()).await });
    assert!(called.await.unwrap_err().is_panic());
    limiter.all_settled().await.unwrap();
    assert_eq!(usage(&limiter).await, 1);
}

#[tokio::test]
async fn a_recorded_outcome_counts_although_the_client_is_gone() {
    let redis = RedisServer::start();
    for limiter in [
        LoginLimiter::new(policy(), MemoryStore::new()),
        LoginLimiter::new(policy(), redis.store().await),
    ] {
        for (outcome, expected) in [
            (Outcome::Failure, 1),
            (Outcome::MfaPending, 1),
            (Outcome::NotAnAttempt, 1),
            (Outcome::Success, 0),
        ] {
            let said = Arc::new(tokio::sync::Notify::new());
            let saying = Arc::clone(&said);
            let mut service =
                layer(&limiter).layer(service_fn(move |request: Request<Full<Bytes>>| {
                    let attempt = request.extensions().get::<LoginAttempt>().cloned().unwrap();
                    attempt.record(outcome);
                    saying.notify_one();
                    std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
                }));
            tokio::select! {
                _ = service.call(request()) => panic!("answered"),
                () = said.notified() => {}
            }
            limiter.all_settled().await.unwrap();
            assert_eq!(usage(&limiter).await, expected, "{outcome:?}");
        }
    }
}
