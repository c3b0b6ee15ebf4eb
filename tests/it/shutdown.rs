//! The end of a server: nothing that is under way is lost.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::sync::Notify;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, Outcome, Policy, Reason,
    store::{MemoryStore, RedisStore, StoreErrorKind},
};

use crate::support::{Fault, Proxy, RedisServer, closed, ip, layer, request};

#[tokio::test]
async fn waiting_for_the_end_waits_for_every_handler() {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    limiter.all_settled().await.unwrap(); // nothing is under way

    let go = Arc::new(Notify::new());
    let wait = Arc::clone(&go);
    let mut service = layer(&limiter).layer(service_fn(move |request: Request<Full<Bytes>>| {
        let (attempt, wait) = (
            request.extensions().get::<LoginAttempt>().cloned(),
            Arc::clone(&wait),
        );
        async move {
            wait.notified().await;
            attempt.unwrap().succeeded();
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }
    }));
    let response = tokio::spawn(service.call(request()));
    let mut settled = Box::pin(limiter.all_settled());
    for _ in 0..5 {
        tokio::task::yield_now().await;
        assert!(now(&mut settled).await.is_none(), "it did not wait");
    }
    go.notify_one();
    settled.await.unwrap();
    response.await.unwrap().unwrap();
    let report = limiter.check((ip("192.0.2.1"), "user")).await.unwrap();
    assert_eq!(report.remaining(), Some(5));
}

/// What it says now, if it is done.
async fn now<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    std::future::poll_fn(|cx| match std::pin::Pin::new(&mut *future).poll(cx) {
        std::task::Poll::Ready(value) => std::task::Poll::Ready(Some(value)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_timeout_outside_counts_and_one_inside_is_the_servers_fault() {
    let hang = service_fn(|_: Request<Full<Bytes>>| {
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
    });
    let soon = Duration::from_secs(1);

    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let outside = ServiceBuilder::new()
        .timeout(soon)
        .layer(layer(&limiter))
        .service(hang);
    for _ in 0..5 {
        outside.clone().oneshot(request()).await.unwrap_err();
    }
    limiter.all_settled().await.unwrap();
    let report = limiter.check((ip("192.0.2.1"), "user")).await.unwrap();
    assert_eq!(report.refusal().unwrap().reason(), Reason::Blocked);

    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let inside = ServiceBuilder::new()
        .layer(layer(&limiter))
        .timeout(soon)
        .service(hang);
    for _ in 0..10 {
        inside.clone().oneshot(request()).await.unwrap_err();
    }
    let report = limiter.check((ip("192.0.2.1"), "user")).await.unwrap();
    assert_eq!(report.remaining(), Some(5));
}

/// Redis was slow when the last attempts were settled, or is gone.
#[tokio::test]
async fn all_settled_waits_for_pending_writes_unless_redis_stays_away() {
    let mut redis = RedisServer::start();
    let proxy = Proxy::start(format!("127.0.0.1:{}", redis.port())).await;
    let store = RedisStore::connect(proxy.url()).await.unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store.clone());
    let reserve = async || limiter.reserve((ip("192.0.2.1"), "user")).await.unwrap();
    let attempt = reserve().await;
    proxy.fail(Fault::BlackHole);
    attempt.settle(Outcome::Failure).await.unwrap();
    proxy.fail(Fault::None);
    limiter.all_settled().await.unwrap();
    assert_eq!(store.status().pending, 0);
    let there = LoginLimiter::new(Policy::default(), redis.store().await);
    let report = there.check((ip("192.0.2.1"), "user")).await.unwrap();
    assert_eq!(report.remaining(), Some(4));

    let attempt = reserve().await;
    redis.kill();
    attempt.settle(Outcome::Failure).await.unwrap();
    let error = limiter.all_settled().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Connection);
}

/// A reserve that got no answer is taken back by a cancel that is on its way.
#[tokio::test]
async fn the_end_waits_for_what_is_on_its_way() {
    let redis = RedisServer::start();
    let limiter = LoginLimiter::new(
        Policy::default(),
        closed().connect(redis.url()).await.unwrap(),
    );
    redis.pause();
    assert!(limiter.reserve((ip("192.0.2.1"), "user")).await.is_err());
    limiter.all_settled().await.unwrap_err();
    redis.resume();
    while limiter.all_settled().await.is_err() {}
    assert_eq!(redis.keys(), []);
}
