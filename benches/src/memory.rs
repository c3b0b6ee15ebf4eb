//! The engine in memory, beside governor's keyed limiter.
//!
//! What governor is asked is a key that is ready, and so is what our store is asked: a token and the
//! counters of two rules. What a limiter does before and after that, spelling the name the one way and
//! making an attempt of it that can be settled, stands beside it.

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tokio::runtime::Runtime;
use tower_login_rate_limit::{
    Address, Limit, LoginLimiter, Outcome, Period, Policy, Token,
    store::{Key, MemoryStore, Slot, Store},
};

use crate::{
    callers::address,
    report::{Goal, Report},
    rounds::{Contender, Rounds},
};

const SECTION: &str = "Engine in memory";
const HOT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const USER: &str = "somebody";
/// Attempts that are in flight together before they are taken back, which is not timed.
const BATCH: u32 = 16;
const MILLION: u64 = 1_000_000;
const LEASE: Duration = Duration::from_secs(30);

pub fn measure(report: &mut Report) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().expect("a runtime");
    hot(report, &runtime);
    million(report);
    bytes(report);
    allocations(report, &runtime);
}

fn limit(attempts: u32) -> Limit {
    let limit = Limit::attempts(attempts).within(Period::days(1)).build();
    limit.expect("a limit")
}

/// The counters that the two rules of the default policy have for somebody.
fn slots(address: IpAddr, limit: &Limit) -> [Slot<'_>; 2] {
    let address = Address::new(address, 64);
    [
        Slot::new(Key::of_address(address, "address"), limit),
        Slot::new(
            Key::of_address(address, "user-address").and_subject(USER.as_bytes()),
            limit,
        ),
    ]
}

/// Nanoseconds that each of so many operations takes.
fn each(operations: u32, mut operation: impl FnMut(u32)) -> f64 {
    let started = Instant::now();
    (0..operations).for_each(&mut operation);
    started.elapsed().as_nanos() as f64 / f64::from(operations)
}

/// Lets attempts at one pair be reserved, a batch at a time.
fn reserve_hot(store: &MemoryStore, limit: &Limit) -> f64 {
    let tokens: Vec<_> = (0..BATCH).map(|_| Token::new()).collect();
    let slots = slots(HOT, limit);
    let batches = 10_000;
    let mut time = Duration::ZERO;
    for _ in 0..batches {
        let started = Instant::now();
        for token in &tokens {
            drop(black_box(store.reserve(*token, LEASE, black_box(&slots))));
        }
        time += started.elapsed();
        for token in &tokens {
            drop(store.cancel(*token, &slots));
        }
    }
    time.as_nanos() as f64 / f64::from(batches * BATCH)
}

fn hot(report: &mut Report, runtime: &Runtime) {
    let roomy: DefaultKeyedRateLimiter<IpAddr> =
        RateLimiter::keyed(Quota::per_second(NonZeroU32::MAX));
    let hourly = Quota::with_period(Duration::from_secs(3600)).expect("a quota");
    let stingy = RateLimiter::keyed(hourly);
    let _ = stingy.check_key(&HOT);

    let (store, room) = (MemoryStore::new(), limit(BATCH + 1));
    let (full, five) = (MemoryStore::new(), limit(5));
    for _ in 0..5 {
        drop(full.reserve(Token::new(), Duration::ZERO, &slots(HOT, &five)));
    }
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let blocked = IpAddr::from([192, 0, 2, 2]);
    runtime.block_on(async {
        for _ in 0..5 {
            let attempt = limiter.reserve((blocked, USER)).await.expect("admitted");
            let settled = limiter.settle(attempt, Outcome::Failure).await;
            settled.expect("settled");
        }
    });

    let rounds = Rounds::take_turns(vec![
        turn("governor", || {
            each(300_000, |_| {
                let _ = black_box(roomy.check_key(black_box(&HOT)));
            })
        }),
        turn("governor, refused", || {
            each(300_000, |_| {
                let _ = black_box(stingy.check_key(black_box(&HOT)));
            })
        }),
        turn("decision", || reserve_hot(&store, &room)),
        turn("decision, refused", || {
            let (token, slots) = (Token::new(), slots(HOT, &five));
            each(200_000, |_| {
                drop(black_box(full.reserve(token, LEASE, black_box(&slots))));
            })
        }),
        turn("limiter", || {
            runtime.block_on(async {
                let started = Instant::now();
                for _ in 0..100_000 {
                    let attempt = limiter.reserve((HOT, USER)).await.expect("admitted");
                    let _ = limiter.settle(attempt, Outcome::Success).await;
                }
                started.elapsed().as_nanos() as f64 / 100_000.0
            })
        }),
        turn("limiter, refused", || {
            runtime.block_on(async {
                let started = Instant::now();
                for _ in 0..100_000 {
                    let _ = black_box(limiter.reserve((blocked, USER)).await);
                }
                started.elapsed().as_nanos() as f64 / 100_000.0
            })
        }),
    ]);
    for name in [
        "governor",
        "governor, refused",
        "decision",
        "decision, refused",
        "limiter",
        "limiter, refused",
    ] {
        report.number(
            SECTION,
            format!("one hot pair: {name}"),
            rounds.median(name),
            "ns",
            None,
        );
    }
    let mut ratio = |what, one, other, goal| {
        report.ratio(SECTION, what, rounds.ratio(one, other), goal);
    };
    ratio(
        "hot, admitted: two rules to one check_key",
        "decision",
        "governor",
        Some(Goal::AtMost(1.5)),
    );
    ratio(
        "hot, refused: two rules to one check_key",
        "decision, refused",
        "governor, refused",
        Some(Goal::AtMost(0.5)),
    );
    ratio(
        "hot: a whole login through the limiter to one check_key",
        "limiter",
        "governor",
        None,
    );
    ratio(
        "hot, refused by the limiter to one check_key",
        "limiter, refused",
        "governor, refused",
        None,
    );
}

/// Random ones out of a million keys, by one thread and by two.
fn million(report: &mut Report) {
    let governor: DefaultKeyedRateLimiter<IpAddr> =
        RateLimiter::keyed(Quota::per_second(NonZeroU32::MAX));
    let (store, room) = (MemoryStore::with_capacity(3_000_000), limit(1_000));
    for n in 0..MILLION {
        let _ = governor.check_key(&address(n));
        drop(store.reserve(Token::new(), LEASE, &slots(address(n), &room)));
    }
    let operations = 200_000;
    // Each thread goes through the keys in an order of its own.
    let random = |thread: u64, i: u32| {
        let n = (u64::from(i) + thread * 7_919).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        address((n >> 32) % MILLION)
    };
    // A new token each time, without the time that drawing one takes.
    let next = AtomicU64::new(0);
    for threads in [1, 2] {
        let on_threads = |operation: &(dyn Fn(u64, u32) + Sync)| {
            thread::scope(|scope| {
                let started = Instant::now();
                let run = |thread| move || (0..operations).for_each(|i| operation(thread, i));
                let running: Vec<_> = (0..threads)
                    .map(|thread| scope.spawn(run(thread)))
                    .collect();
                running
                    .into_iter()
                    .for_each(|thread| thread.join().expect("no panic"));
                started.elapsed().as_nanos() as f64 / f64::from(operations)
            })
        };
        let rounds = Rounds::take_turns(vec![
            turn("governor", || {
                on_threads(&|thread, i| {
                    let _ = black_box(governor.check_key(&random(thread, i)));
                })
            }),
            turn("decision", || {
                on_threads(&|thread, i| {
                    let token = u128::from(next.fetch_add(1, Ordering::Relaxed));
                    let token = Token::from_bytes(token.to_be_bytes());
                    let slots = slots(random(thread, i), &room);
                    drop(black_box(store.reserve(token, LEASE, &slots)));
                })
            }),
        ]);
        for name in ["governor", "decision"] {
            let what = format!("a million keys, {threads} threads: {name}");
            report.number(SECTION, what, rounds.median(name), "ns", None);
        }
        let what = format!("a million keys, {threads} threads: two rules to one check_key");
        let goal = (threads == 1).then_some(Goal::AtMost(1.5));
        report.ratio(SECTION, what, rounds.ratio("decision", "governor"), goal);
    }
}

/// What a key takes at a million of them.
fn bytes(report: &mut Report) {
    let limit = limit(25);
    for failures in [1, 5] {
        let mut store = None;
        let memory = allocation_counter::measure(|| {
            let filled = MemoryStore::with_capacity(2_000_000);
            for n in 0..MILLION {
                let key = Key::of_address(Address::new(address(n), 64), "address");
                for _ in 0..failures {
                    let slot = Slot::new(key.clone(), &limit);
                    drop(filled.reserve(Token::new(), Duration::ZERO, &[slot]));
                }
            }
            store = Some(filled);
        });
        let what = format!("memory of a key that holds {failures} failures");
        let goal = (failures == 5).then_some(Goal::AtMost(100.0));
        report.number(
            SECTION,
            what,
            memory.bytes_current as f64 / MILLION as f64,
            "bytes",
            goal,
        );
    }
    let mut governor = None;
    let memory = allocation_counter::measure(|| {
        let filled: DefaultKeyedRateLimiter<IpAddr> =
            RateLimiter::keyed(Quota::per_second(NonZeroU32::MAX));
        for n in 0..MILLION {
            let _ = filled.check_key(&address(n));
        }
        governor = Some(filled);
    });
    let bytes = memory.bytes_current as f64 / MILLION as f64;
    report.number(
        SECTION,
        "memory of a key in governor, without history",
        bytes,
        "bytes",
        None,
    );
}

fn allocations(report: &mut Report, runtime: &Runtime) {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let login = |outcome| {
        let mut reserved = None;
        let reserving = allocation_counter::measure(|| {
            reserved = Some(runtime.block_on(limiter.reserve((HOT, USER))));
        });
        let settling = allocation_counter::measure(|| {
            if let Some(Ok(attempt)) = reserved.take() {
                let _ = runtime.block_on(limiter.settle(attempt, outcome));
            }
        });
        (reserving.count_total as f64, settling.count_total as f64)
    };
    let _ = login(Outcome::Success);
    let (reserved, settled) = login(Outcome::Success);
    report.number(
        SECTION,
        "allocations: an attempt",
        reserved,
        "",
        Some(Goal::AtMost(2.0)),
    );
    report.number(
        SECTION,
        "allocations: settling it as a success",
        settled,
        "",
        None,
    );
    for _ in 0..5 {
        let _ = login(Outcome::Failure);
    }
    let (refused, _) = login(Outcome::Failure);
    report.number(
        SECTION,
        "allocations: a refusal",
        refused,
        "",
        Some(Goal::AtMost(0.0)),
    );
}

fn turn<'a>(name: &'static str, turn: impl FnMut() -> f64 + 'a) -> Contender<'a> {
    (name, Box::new(turn))
}
