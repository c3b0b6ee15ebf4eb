//! The layer around a service that does nothing, beside those of governor.

use std::{
    convert::Infallible,
    hint::black_box,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use axum::{body::Body, extract::ConnectInfo};
use axum_governor::{GovernorConfigBuilder as AxumGovernor, extractor::PeerIp, nz};
use http::{HeaderValue, Request, Response, StatusCode};
use tokio::runtime::Runtime;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};
use tower_login_rate_limit::{
    LoginLimiter, LoginRateLimitLayer, Outcome, Policy, classify::ByStatus, extract::Header,
    store::MemoryStore,
};

use crate::{
    callers::address,
    report::{Goal, Report},
    rounds::{Contender, Rounds},
};

const SECTION: &str = "Layer around an empty service";
/// Requests of one turn.
const REQUESTS: u32 = 50_000;

/// From where requests come.
#[derive(Clone, Copy)]
enum From {
    OneAddress,
    Many,
    /// One that is refused.
    Blocked,
}

impl From {
    fn address(self, i: u32) -> IpAddr {
        match self {
            Self::OneAddress => Ipv4Addr::new(192, 0, 2, 1).into(),
            Self::Many => address(u64::from(i % 100_000)),
            Self::Blocked => BLOCKED,
        }
    }
}

const BLOCKED: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

fn request(address: IpAddr) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    let user = HeaderValue::from_static("somebody");
    request.headers_mut().insert("x-user", user);
    let peer = ConnectInfo(SocketAddr::new(address, 5000));
    request.extensions_mut().insert(peer);
    request
}

async fn nothing(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    black_box(request);
    Ok(Response::new(Body::empty()))
}

/// Nanoseconds that a request takes in this service.
fn time<S, B>(runtime: &Runtime, mut service: S, from: From) -> f64
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let expected = match from {
        From::Blocked => StatusCode::TOO_MANY_REQUESTS,
        From::OneAddress | From::Many => StatusCode::OK,
    };
    runtime.block_on(async {
        let started = Instant::now();
        for i in 0..REQUESTS {
            let request = request(from.address(i));
            let Ok(service) = service.ready().await;
            let Ok(response) = service.call(request).await;
            assert_eq!(response.status(), expected);
            black_box(response);
        }
        started.elapsed().as_nanos() as f64 / f64::from(REQUESTS)
    })
}

/// How often a request allocates in this service.
fn allocations<S, B>(runtime: &Runtime, mut service: S, from: From) -> f64
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let mut counted = 0;
    for i in 0..100 {
        let request = request(from.address(i));
        let made = allocation_counter::measure(|| {
            runtime.block_on(async {
                let Ok(service) = service.ready().await;
                let Ok(response) = service.call(request).await;
                drop(response);
            });
        });
        counted += made.count_total;
    }
    counted as f64 / 100.0
}

fn ours(runtime: &Runtime) -> LoginRateLimitLayer {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    runtime.block_on(async {
        for _ in 0..5 {
            let attempt = limiter.reserve((BLOCKED, "somebody")).await;
            let attempt = attempt.expect("admitted");
            let settled = limiter.settle(attempt, Outcome::Failure).await;
            settled.expect("settled");
        }
    });
    LoginRateLimitLayer::new(limiter)
        .with_user(Header("x-user".parse().expect("a name")))
        .with_classifier(ByStatus)
}

pub fn measure(report: &mut Report) {
    let runtime = &tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let _guard = runtime.enter();

    let ours = ours(runtime);
    let mut roomy = GovernorConfigBuilder::default();
    let roomy = roomy.period(Duration::from_nanos(1)).burst_size(u32::MAX);
    let roomy = GovernorLayer::new(roomy.finish().expect("a quota"));
    let mut stingy = GovernorConfigBuilder::default();
    let stingy = stingy.period(Duration::from_secs(3600)).burst_size(1);
    let stingy = GovernorLayer::new(stingy.finish().expect("a quota"));
    let once = stingy.layer(service_fn(nothing)).oneshot(request(BLOCKED));
    let _ = runtime.block_on(once);
    let axum_governor = AxumGovernor::default()
        .with_extractor(PeerIp::default())
        .expect_connect_info()
        .quota_default(axum_governor::Quota::requests_per_second(nz!(u32::MAX)))
        .finish()
        .expect("a quota");
    let axum_governor = axum_governor::GovernorLayer::new(axum_governor);

    for (where_from, from, most) in [
        ("hot", From::OneAddress, 1.0),
        ("100,000 addresses", From::Many, 1.3),
    ] {
        let rounds = Rounds::take_turns(vec![
            turn("none", || time(runtime, service_fn(nothing), from)),
            turn("ours", || {
                time(runtime, ours.layer(service_fn(nothing)), from)
            }),
            turn("tower_governor", || {
                time(runtime, roomy.layer(service_fn(nothing)), from)
            }),
            turn("axum-governor", || {
                time(runtime, axum_governor.layer(service_fn(nothing)), from)
            }),
        ]);
        for name in ["none", "ours", "tower_governor", "axum-governor"] {
            let what = format!("a request that passes, {where_from}: {name}");
            report.number(SECTION, what, rounds.median(name), "ns", None);
        }
        for (peer, goal) in [
            ("tower_governor", Some(Goal::AtMost(most))),
            ("axum-governor", None),
        ] {
            let added = rounds.added("ours", peer, "none");
            let what = format!("time added, passed, {where_from}: ours to {peer}");
            report.ratio(SECTION, what, added, goal);
        }
    }

    let from = From::Blocked;
    let rounds = Rounds::take_turns(vec![
        turn("none", || {
            time(runtime, service_fn(nothing), From::OneAddress)
        }),
        turn("ours", || {
            time(runtime, ours.layer(service_fn(nothing)), from)
        }),
        turn("tower_governor", || {
            time(runtime, stingy.layer(service_fn(nothing)), from)
        }),
    ]);
    for name in ["ours", "tower_governor"] {
        let what = format!("a request that is refused: {name}");
        report.number(SECTION, what, rounds.median(name), "ns", None);
    }
    let refused = rounds.added("tower_governor", "ours", "none");
    let what = "time added, refused: tower_governor to ours";
    report.ratio(SECTION, what, refused, Some(Goal::AtLeast(50.0)));

    let none = allocations(runtime, service_fn(nothing), From::OneAddress);
    let passed = allocations(runtime, ours.layer(service_fn(nothing)), From::OneAddress) - none;
    report.number(
        SECTION,
        "allocations, passed",
        passed,
        "",
        Some(Goal::AtMost(2.0)),
    );
    let peer = allocations(runtime, roomy.layer(service_fn(nothing)), From::OneAddress) - none;
    let refused = allocations(runtime, ours.layer(service_fn(nothing)), From::Blocked) - none;
    report.number(
        SECTION,
        "allocations, refused, with its answer",
        refused,
        "",
        None,
    );
    report.number(
        SECTION,
        "allocations, passed: tower_governor",
        peer,
        "",
        None,
    );
}

fn turn<'a>(name: &'static str, turn: impl FnMut() -> f64 + 'a) -> Contender<'a> {
    (name, Box::new(turn))
}
