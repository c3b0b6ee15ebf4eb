//! Counts allocations and the bytes that a key takes, and prints a line `name count` for each: those of the
//! engine after the argument `memory`, those of the layers after `layer`.
//!
//! A program of its own, since its allocator counts, which all that is timed would pay for.

use std::{convert::Infallible, net::IpAddr, num::NonZeroU32, process::ExitCode, time::Duration};

use allocation_counter::{AllocationInfo, measure};
use axum::body::Body;
use benches::{
    callers::address,
    services::{BLOCKED, HOT, USER, UserKeyExtractor, nothing, ours, request, roomy, used_up},
};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use http::{Request, Response};
use tokio::runtime::Runtime;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_governor::key_extractor::PeerIpKeyExtractor;
use tower_login_rate_limit::{
    Address, Limit, LoginLimiter, Outcome, Period, Policy, Token,
    store::{Key, MemoryStore, Slot, Store},
};

const MILLION: u64 = 1_000_000;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let _guard = runtime.enter();
    match std::env::args().nth(1).as_deref() {
        Some("memory") => {
            keys();
            attempts(&runtime);
        }
        Some("layer") => requests(&runtime),
        _ => {
            eprintln!("allocations: the argument is memory or layer");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn print(name: &str, count: f64) {
    println!("{name} {count}");
}

/// What a key takes at a million of them.
fn keys() {
    let limit = Limit::attempts(25).within(Period::days(1)).build();
    let limit = limit.expect("a limit");
    for failures in [1, 5] {
        let bytes = bytes_per_key(|| {
            let store = MemoryStore::with_capacity(2_000_000);
            for n in 0..MILLION {
                let key = Key::of_address(Address::new(address(n), 64), "address");
                let slot = [Slot::new(key, &limit)];
                for _ in 0..failures {
                    drop(store.reserve(Token::new(), Duration::ZERO, &slot));
                }
            }
            store
        });
        print(&format!("bytes-{failures}-failures"), bytes);
    }
    let bytes = bytes_per_key(|| {
        let governor: DefaultKeyedRateLimiter<IpAddr> =
            RateLimiter::keyed(Quota::per_second(NonZeroU32::MAX));
        for n in 0..MILLION {
            let _ = governor.check_key(&address(n));
        }
        governor
    });
    print("bytes-governor", bytes);
}

fn bytes_per_key<T>(fill: impl FnOnce() -> T) -> f64 {
    let mut filled = None;
    let memory = measure(|| filled = Some(fill()));
    memory.bytes_current as f64 / MILLION as f64
}

fn attempts(runtime: &Runtime) {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let login = |outcome| {
        let mut reserved = None;
        let reserving = measure(|| {
            reserved = Some(runtime.block_on(limiter.reserve((HOT, "somebody"))));
        });
        let settling = measure(|| {
            if let Some(Ok(attempt)) = reserved.take() {
                let _ = runtime.block_on(attempt.settle(outcome));
            }
        });
        (count(reserving), count(settling))
    };
    let _ = login(Outcome::Success);
    let (reserved, settled) = login(Outcome::Success);
    print("attempt", reserved);
    print("success", settled);
    for _ in 0..5 {
        let _ = login(Outcome::Failure);
    }
    print("refusal", login(Outcome::Failure).0);
}

fn requests(runtime: &Runtime) {
    let ours = ours(runtime);
    let by_address = roomy(PeerIpKeyExtractor);
    let by_user = roomy(UserKeyExtractor);
    let none = per_request(runtime, service_fn(nothing), HOT);
    let passed = per_request(runtime, ours.layer(service_fn(nothing)), HOT);
    print("passed", passed - none);
    let refused = per_request(runtime, ours.layer(service_fn(nothing)), BLOCKED);
    print("refused", refused - none);
    let one = per_request(runtime, by_address.layer(service_fn(nothing)), HOT);
    print("passed-governor", one - none);
    let two = by_address.layer(by_user.layer(service_fn(nothing)));
    print(
        "passed-two-governors",
        per_request(runtime, two, HOT) - none,
    );
    let governor = used_up(runtime).layer(service_fn(nothing));
    let refused = per_request(runtime, governor, BLOCKED);
    print("refused-governor", refused - none);
}

/// Allocations of a request, from before the service is called until its response is dropped.
fn per_request<S, B>(runtime: &Runtime, mut service: S, address: IpAddr) -> f64
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    const REQUESTS: u32 = 100;
    let mut counted = 0.0;
    for i in 0..=REQUESTS {
        let request = request(address, USER);
        let made = measure(|| {
            runtime.block_on(async {
                let Ok(service) = service.ready().await;
                let Ok(response) = service.call(request).await;
                drop(response);
            });
        });
        // The first request may fill what is kept for the next ones.
        if i > 0 {
            counted += count(made);
        }
    }
    counted / f64::from(REQUESTS)
}

fn count(made: AllocationInfo) -> f64 {
    made.count_total as f64
}
