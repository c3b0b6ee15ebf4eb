//! Clients that let the server wait, and what may be held or lost meanwhile.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy, ReplayedBody,
    extract::{FormField, FromAsync},
    store::MemoryStore,
};

use crate::support::{CLIENT, RedisServer, fail, ip, request};

type Chunks = mpsc::Sender<Result<Frame<Bytes>, Infallible>>;

/// A request whose body arrives when it is sent.
fn slow_request() -> (Chunks, Request<BoxBody<Bytes, Infallible>>) {
    let (sender, receiver) = mpsc::channel(8);
    let body = StreamBody::new(ReceiverStream::new(receiver));
    let mut request = request().map(|_| body.boxed());
    let form = "application/x-www-form-urlencoded".parse().unwrap();
    request.headers_mut().insert("content-type", form);
    (sender, request)
}

async fn send_chunk(chunks: &Chunks, text: &'static str) {
    let frame = Frame::data(Bytes::from(text));
    chunks.send(Ok(frame)).await.unwrap();
}

fn limiter() -> LoginLimiter {
    LoginLimiter::new(Policy::default(), MemoryStore::new())
}

#[tokio::test(start_paused = true)]
async fn in_shadow_mode_a_body_that_takes_too_long_reaches_the_handler_whole() {
    let layer = LoginRateLimitLayer::new(limiter())
        .with_body_user(|_: &Parts, _: &[u8]| Some("user".to_owned()))
        .with_shadow(true);
    let echo = async |request: Request<ReplayedBody<_>>| {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Ok::<_, Infallible>(Response::new(Full::new(body)))
    };
    let (chunks, request) = slow_request();
    let response = tokio::spawn(layer.layer(service_fn(echo)).oneshot(request));
    for text in ["one ", "two ", "three "] {
        send_chunk(&chunks, text).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    send_chunk(&chunks, "four").await;
    drop(chunks);
    let response = response.await.unwrap().unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "one two three four");
}

#[tokio::test(start_paused = true)]
async fn bodies_that_never_come_hold_no_permit_of_the_service_inside() {
    let layer = LoginRateLimitLayer::new(limiter()).with_body_user(FormField::new("user"));
    let service = ServiceBuilder::new()
        .layer(layer)
        .concurrency_limit(4)
        .service_fn(async |request: Request<ReplayedBody<_>>| {
            let attempt = request.extensions().get::<LoginAttempt>().unwrap();
            attempt.succeeded();
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        });
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let (chunks, request) = slow_request();
        let response = tokio::spawn(service.clone().oneshot(request));
        tokio::task::yield_now().await;
        stalled.push((chunks, response));
    }
    let (chunks, request) = slow_request();
    send_chunk(&chunks, "user=innocent").await;
    drop(chunks);
    // Less than the time after which the others are given up.
    let response = tokio::time::timeout(Duration::from_secs(5), service.clone().oneshot(request));
    let response = response.await.expect("stalled bodies hold all permits");
    assert_eq!(response.unwrap().status(), 200);
    // Those that come late still have their turn.
    for (chunks, response) in stalled {
        send_chunk(&chunks, "user=late").await;
        drop(chunks);
        assert_eq!(response.await.unwrap().unwrap().status(), 200);
    }
}

/// The limit inside is still one: requests wait for it before they count as attempts in flight.
#[tokio::test(start_paused = true)]
async fn requests_with_bodies_wait_for_the_service_inside_to_be_ready() {
    let limiter = limiter();
    let layer = LoginRateLimitLayer::new(limiter.clone()).with_body_user(FormField::new("user"));
    let running = Arc::new(AtomicUsize::new(0));
    let observed = Arc::clone(&running);
    let service = ServiceBuilder::new()
        .layer(layer)
        .concurrency_limit(2)
        .service_fn(move |request: Request<ReplayedBody<_>>| {
            let running = Arc::clone(&observed);
            async move {
                assert!(running.fetch_add(1, Ordering::SeqCst) < 2);
                tokio::time::sleep(Duration::from_secs(1)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                let attempt = request.extensions().get::<LoginAttempt>().unwrap();
                attempt.succeeded();
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
            }
        });
    let mut responses = Vec::new();
    for _ in 0..50 {
        let (chunks, request) = slow_request();
        send_chunk(&chunks, "user=innocent").await;
        responses.push(tokio::spawn(service.clone().oneshot(request)));
    }
    for response in responses {
        // More than five at once would be too many in flight.
        assert_eq!(response.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test]
async fn a_blocked_address_causes_no_lookup_of_a_user() {
    let redis = RedisServer::start();
    let with_cache = redis.builder().with_block_cache_capacity(1_000);
    let with_cache = with_cache.connect(redis.url()).await.unwrap();
    for limiter in [limiter(), LoginLimiter::new(Policy::default(), with_cache)] {
        for i in 0..5 {
            fail(&limiter, ip(CLIENT), &format!("user {i}"), 5).await;
        }
        // Redis reports the block once; then it is known here.
        limiter.reserve(ip(CLIENT)).await.unwrap_err();
        let lookups = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&lookups);
        let user = FromAsync::new(move |_: &Parts| {
            let lookups = Arc::clone(&counted);
            async move {
                lookups.fetch_add(1, Ordering::SeqCst);
                Ok(Some("user".to_owned()))
            }
        });
        let layer = LoginRateLimitLayer::new(limiter.clone()).with_user(user);
        let service = layer.layer(service_fn(async |_: Request<Full<Bytes>>| {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }));
        for _ in 0..10 {
            let response = service.clone().oneshot(request()).await.unwrap();
            assert_eq!(response.status(), 429);
        }
        assert_eq!(lookups.load(Ordering::SeqCst), 0);
        limiter.unblock(ip(CLIENT)).await.unwrap();
        let response = service.oneshot(request()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(lookups.load(Ordering::SeqCst), 1);
    }
}
