//! The engine in memory, beside governor's keyed limiter.

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use governor::{Quota, RateLimiter};
use tower_login_rate_limit::{
    Limit, LoginLimiter, Outcome, Period, Policy, Token,
    store::{Key, MemoryStore, Slot, Store},
};

use crate::{
    report::{Goal, Report},
    rounds::{Contender, Rounds},
};

const SECTION: &str = "Engine in memory";
const HOT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// Both rules of the default policy, with limits that a round does not reach.
fn roomy(limit: u32) -> Policy {
    let limit = || Limit::attempts(limit).within(Period::days(1));
    let policy = Policy::default().with_address_limit(limit());
    let policy = policy.and_then(|policy| policy.with_user_address_limit(limit()));
    policy.expect("a policy")
}

fn address(i: u32) -> IpAddr {
    Ipv4Addr::from_bits(i.wrapping_mul(0x9E37_79B1)).into()
}

pub fn measure(report: &mut Report) {
    hot(report);
}

/// Nanoseconds that each of so many operations takes.
fn each(operations: u32, mut operation: impl FnMut(u32)) -> f64 {
    let started = Instant::now();
    for i in 0..operations {
        operation(i);
    }
    started.elapsed().as_nanos() as f64 / f64::from(operations)
}

fn hot(report: &mut Report) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    const BATCH: u32 = 20;
    let quota = Quota::per_second(NonZeroU32::MAX);
    let governor = RateLimiter::keyed(quota);
    let one_an_hour = Quota::with_period(Duration::from_secs(3600)).expect("a quota");
    let stingy = RateLimiter::keyed(one_an_hour);
    let _ = stingy.check_key(&HOT);

    let admitting = LoginLimiter::new(roomy(BATCH), MemoryStore::new());
    let blocking = LoginLimiter::new(Policy::default(), MemoryStore::new());
    runtime.block_on(async {
        for _ in 0..5 {
            let attempt = blocking.reserve((HOT, "somebody")).await.expect("admitted");
            blocking.settle(attempt, Outcome::Failure).await.expect("settled");
        }
    });

    let rounds = Rounds::take_turns(vec![
        ("governor", Box::new(|| each(500_000, |_| { let _ = black_box(governor.check_key(black_box(&HOT))); }))),
        ("governor, refused", Box::new(|| each(500_000, |_| { let _ = black_box(stingy.check_key(black_box(&HOT))); }))),
        ("reserve", Box::new(|| runtime.block_on(async {
            let mut time = Duration::ZERO;
            let mut attempts = Vec::with_capacity(BATCH as usize);
            for _ in 0..5_000 {
                let started = Instant::now();
                for _ in 0..BATCH {
                    attempts.push(admitting.reserve((HOT, "somebody")).await.expect("admitted"));
                }
                time += started.elapsed();
                for attempt in attempts.drain(..) {
                    let _ = admitting.settle(attempt, Outcome::NotAnAttempt).await;
                }
            }
            time.as_nanos() as f64 / f64::from(BATCH * 5_000)
        }))),
        ("attempt", Box::new(|| runtime.block_on(async {
            let started = Instant::now();
            for _ in 0..100_000 {
                let attempt = admitting.reserve((HOT, "somebody")).await.expect("admitted");
                let _ = admitting.settle(attempt, Outcome::Success).await;
            }
            started.elapsed().as_nanos() as f64 / 100_000.0
        }))),
        ("refused", Box::new(|| runtime.block_on(async {
            let started = Instant::now();
            for _ in 0..200_000 {
                let _ = black_box(blocking.reserve((HOT, "somebody")).await);
            }
            started.elapsed().as_nanos() as f64 / 200_000.0
        }))),
        ("clock", Box::new(|| each(500_000, |_| { black_box(Instant::now()); }))),
        ("token", Box::new(|| each(500_000, |_| { black_box(Token::new()); }))),
    ]);
    for name in ["governor", "governor, refused", "reserve", "attempt", "refused", "clock", "token"] {
        report.number(SECTION, name, rounds.median(name), "ns", None);
    }
    report.ratio(SECTION, "admitted", rounds.ratio("reserve", "governor"), Some(Goal::AtMost(1.5)));
    report.ratio(SECTION, "refused", rounds.ratio("refused", "governor, refused"), Some(Goal::AtMost(0.5)));
}
