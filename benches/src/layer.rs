//! The layer around a service that does nothing, beside those of governor.

use std::{convert::Infallible, hint::black_box, net::IpAddr, time::Instant};

use axum::body::Body;
use axum_governor::{GovernorConfigBuilder as AxumGovernor, extractor::PeerIp, nz};
use benches::services::{BLOCKED, HOT, USER, UserKeyExtractor, nothing, ours, request, roomy};
use http::{HeaderValue, Request, Response, StatusCode};
use tokio::runtime::Runtime;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_governor::key_extractor::PeerIpKeyExtractor;

use crate::{
    callers::{address, user},
    counts::Counts,
    report::{Goal, Report},
    rounds::{Contender, Rounds},
};

const SECTION: &str = "Layer around an empty service";
/// Requests of one turn.
const REQUESTS: usize = 100_000;

const NONE: &str = "none";
const OURS: &str = "ours";
const GOVERNOR: &str = "tower_governor";
const TWO_GOVERNORS: &str = "two tower_governor";
const AXUM_GOVERNOR: &str = "axum-governor";

/// An address and the user at it.
type Client = (IpAddr, HeaderValue);

/// Nanoseconds that a request takes in this service. Clients take turns.
fn time<S, B>(runtime: &Runtime, mut service: S, clients: &[Client], expected: StatusCode) -> f64
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    runtime.block_on(async {
        let started = Instant::now();
        for (address, user) in clients.iter().cycle().take(REQUESTS) {
            let request = request(*address, user.clone());
            let Ok(service) = service.ready().await;
            let Ok(response) = service.call(request).await;
            assert_eq!(response.status(), expected);
            black_box(response);
        }
        started.elapsed().as_nanos() as f64 / REQUESTS as f64
    })
}

pub fn measure(report: &mut Report) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let _guard = runtime.enter();
    passed(report, &runtime);
    refused(report, &runtime);
    allocations(report);
    instructions(report);
}

fn passed(report: &mut Report, runtime: &Runtime) {
    let ours = ours(runtime);
    let by_address = roomy(PeerIpKeyExtractor);
    let by_user = roomy(UserKeyExtractor);
    let axum_governor = AxumGovernor::default()
        .with_extractor(PeerIp::default())
        .expect_connect_info()
        .quota_default(axum_governor::Quota::requests_per_second(nz!(u32::MAX)))
        .finish()
        .expect("a quota");
    let axum_governor = axum_governor::GovernorLayer::new(axum_governor);

    let client = |n| {
        let user = HeaderValue::from_str(&user(n)).expect("a header value");
        (address(n), user)
    };
    let many: Vec<Client> = (0..100_000).map(client).collect();
    for (clients, of, most) in [
        ("hot", &[(HOT, USER)][..], 1.5),
        ("100,000 addresses", &many, 1.4),
    ] {
        let ok = StatusCode::OK;
        let rounds = Rounds::take_turns(vec![
            turn(NONE, || time(runtime, service_fn(nothing), of, ok)),
            turn(OURS, || {
                time(runtime, ours.layer(service_fn(nothing)), of, ok)
            }),
            turn(GOVERNOR, || {
                time(runtime, by_address.layer(service_fn(nothing)), of, ok)
            }),
            turn(TWO_GOVERNORS, || {
                let both = by_address.layer(by_user.layer(service_fn(nothing)));
                time(runtime, both, of, ok)
            }),
            turn(AXUM_GOVERNOR, || {
                time(runtime, axum_governor.layer(service_fn(nothing)), of, ok)
            }),
        ]);
        for name in [NONE, OURS, GOVERNOR, TWO_GOVERNORS, AXUM_GOVERNOR] {
            let what = format!("a request that passes, {clients}: {name}");
            report.number(SECTION, what, rounds.median(name), "ns", None);
        }
        for (peer, goal) in [
            // A login is limited by address and by user: one of them has one key.
            (TWO_GOVERNORS, Some(Goal::AtMost(most))),
            (GOVERNOR, None),
            (AXUM_GOVERNOR, None),
        ] {
            let added = rounds.added(OURS, peer, NONE);
            let what = format!("time added, passed, {clients}: ours to {peer}");
            report.ratio(SECTION, what, added, goal);
        }
    }
}

/// Not beside tower_governor, which builds a clock for each refusal and asks the processor for its features,
/// an instruction that traps on virtual machines. [`instructions`] compares the two.
fn refused(report: &mut Report, runtime: &Runtime) {
    let ours = ours(runtime);
    let rounds = Rounds::take_turns(vec![
        turn(NONE, || {
            let service = service_fn(nothing);
            time(runtime, service, &[(HOT, USER)], StatusCode::OK)
        }),
        turn(OURS, || {
            let (service, refused) = (service_fn(nothing), StatusCode::TOO_MANY_REQUESTS);
            time(runtime, ours.layer(service), &[(BLOCKED, USER)], refused)
        }),
    ]);
    let what = "a request that is refused: ours";
    report.number(SECTION, what, rounds.median(OURS), "ns", None);
    let what = "time, refused: ours to a service that does nothing";
    report.ratio(SECTION, what, rounds.ratio(OURS, NONE), None);
}

fn allocations(report: &mut Report) {
    let counts = Counts::of("allocations", &["layer"]);
    let mut number = |what: &str, name, goal| {
        report.number(SECTION, what, counts.get(name), "", goal);
    };
    let (passed, refused) = (Goal::AtMost(3.0), Goal::AtMost(5.0));
    number("allocations, passed", "passed", Some(passed));
    number(
        "allocations, passed: tower_governor",
        "passed-governor",
        None,
    );
    number(
        "allocations, passed: two tower_governor",
        "passed-two-governors",
        None,
    );
    number(
        "allocations, refused, with its answer",
        "refused",
        Some(refused),
    );
    number(
        "allocations, refused, with its answer: tower_governor",
        "refused-governor",
        None,
    );
}

fn instructions(report: &mut Report) {
    const BASE: &str = "login-without-layer";
    let names = [
        BASE,
        "login-passed",
        "login-passed-governor",
        "login-passed-two-governors",
        "login-refused",
        "login-refused-governor",
    ];
    let counts = Counts::of("instructions", &[&["--count"], &names[..]].concat());
    let added = |name| counts.get(name) - counts.get(BASE);
    for (what, name, goal) in [
        ("passed: ours", "login-passed", Some(Goal::AtMost(4_200.0))),
        ("passed: tower_governor", "login-passed-governor", None),
        (
            "passed: two tower_governor",
            "login-passed-two-governors",
            None,
        ),
        ("refused: ours", "login-refused", None),
        ("refused: tower_governor", "login-refused-governor", None),
    ] {
        let what = format!("instructions added, {what}");
        report.number(SECTION, what, added(name), "", goal);
    }
    for (what, one, other, goal) in [
        (
            "passed: ours to two tower_governor",
            "login-passed",
            "login-passed-two-governors",
            None,
        ),
        (
            "passed: ours to tower_governor",
            "login-passed",
            "login-passed-governor",
            None,
        ),
        (
            "refused: ours to tower_governor",
            "login-refused",
            "login-refused-governor",
            Some(Goal::AtMost(1.2)),
        ),
    ] {
        let what = format!("instructions added, {what}");
        report.number(SECTION, what, added(one) / added(other), "×", goal);
    }
}

fn turn<'a>(name: &'static str, turn: impl FnMut() -> f64 + 'a) -> Contender<'a> {
    (name, Box::new(turn))
}
