//! The engine in memory, beside governor's keyed limiter.
//!
//! What governor is asked is a key that is ready, and so is what our store is asked: a token and the
//! counters of two rules. What a limiter does before and after that, spelling the name the one way and
//! making an attempt of it that can be settled, stands beside it.
//!
//! governor holds one key for an address, our store two counters.

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU32,
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tokio::runtime::Runtime;
use tower_login_rate_limit::{
    Address, Limit, LoginLimiter, Outcome, Period, Policy, Token,
    store::{Key, MemoryStore, Settlement, Slot, Store},
};

use crate::{
    callers::address,
    counts::Counts,
    report::{Goal, Report},
    rounds::{Contender, Rounds},
};

const SECTION: &str = "Engine in memory";
const HOT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const USER: &str = "somebody";
const BLOCKED: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
/// Pairs of an address and a user that are hot. An attempt at each is timed, then all are taken back.
const PAIRS: u64 = 64;
/// How often that is done in a turn.
const BATCHES: u64 = 3_000;
const MILLION: u64 = 1_000_000;
const LEASE: Duration = Duration::from_secs(30);

pub fn measure(report: &mut Report) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().expect("a runtime");
    hot(report, &runtime);
    million(report);
    counts(report);
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

/// Nanoseconds of one operation, of which a batch is timed at a time; what `restore` does after each batch is
/// not.
fn in_batches(
    batches: u64,
    size: u64,
    mut operation: impl FnMut(u64),
    mut restore: impl FnMut(u64),
) -> f64 {
    let mut time = Duration::ZERO;
    for batch in 0..batches {
        let numbers = batch * size..(batch + 1) * size;
        let started = Instant::now();
        numbers.clone().for_each(&mut operation);
        time += started.elapsed();
        numbers.for_each(&mut restore);
    }
    time.as_nanos() as f64 / (batches * size) as f64
}

/// Takes an attempt back, which was admitted to both counters.
fn cancel(store: &MemoryStore, token: Token, slots: &[Slot<'_>]) {
    let settled = store.settle(&[token], Settlement::Canceled, slots, Duration::ZERO);
    let settled = pin!(settled).poll(&mut Context::from_waker(Waker::noop()));
    let changed = matches!(&settled, Poll::Ready(Ok(settled)) if settled.changed == 2);
    assert!(changed, "{settled:?}");
}

/// A few pairs, which stay in the caches of the processor. Each has one attempt in flight at most.
fn hot(report: &mut Report, runtime: &Runtime) {
    let roomy: DefaultKeyedRateLimiter<IpAddr> =
        RateLimiter::keyed(Quota::per_second(NonZeroU32::MAX));
    let hourly = Quota::with_period(Duration::from_secs(3600)).expect("a quota");
    let stingy = RateLimiter::keyed(hourly);
    let (store, full, five) = (MemoryStore::new(), MemoryStore::new(), limit(5));
    let addresses: Vec<_> = (0..PAIRS).map(address).collect();
    let slots: Vec<_> = (addresses.iter())
        .map(|address| slots(*address, &five))
        .collect();
    let tokens: Vec<_> = (0..PAIRS).map(|_| Token::new()).collect();
    for (address, slots) in addresses.iter().zip(&slots) {
        let _ = stingy.check_key(address);
        for _ in 0..5 {
            drop(full.reserve(Token::new(), Duration::ZERO, slots));
        }
    }
    let of = |n: u64| (n % PAIRS) as usize;
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    runtime.block_on(async {
        for _ in 0..5 {
            let attempt = limiter.reserve((BLOCKED, USER)).await.expect("admitted");
            let settled = attempt.settle(Outcome::Failure).await;
            settled.expect("settled");
        }
    });

    let rounds = Rounds::take_turns(vec![
        turn("governor", || {
            let check = |n| drop(black_box(roomy.check_key(black_box(&addresses[of(n)]))));
            in_batches(BATCHES, PAIRS, check, |_| {})
        }),
        turn("governor, refused", || {
            let check = |n| drop(black_box(stingy.check_key(black_box(&addresses[of(n)]))));
            in_batches(BATCHES, PAIRS, check, |_| {})
        }),
        turn("decision", || {
            let reserve = |n| {
                let reserved = store.reserve(tokens[of(n)], LEASE, black_box(&slots[of(n)]));
                drop(black_box(reserved));
            };
            let cancel = |n| cancel(&store, tokens[of(n)], &slots[of(n)]);
            in_batches(BATCHES, PAIRS, reserve, cancel)
        }),
        turn("decision, refused", || {
            let reserve = |n| {
                let reserved = full.reserve(tokens[of(n)], LEASE, black_box(&slots[of(n)]));
                drop(black_box(reserved));
            };
            in_batches(BATCHES, PAIRS, reserve, |_| {})
        }),
        turn("limiter", || {
            runtime.block_on(async {
                let started = Instant::now();
                for _ in 0..100_000 {
                    let attempt = limiter.reserve((HOT, USER)).await.expect("admitted");
                    let _ = attempt.settle(Outcome::Success).await;
                }
                started.elapsed().as_nanos() as f64 / 100_000.0
            })
        }),
        turn("limiter, refused", || {
            runtime.block_on(async {
                let started = Instant::now();
                for _ in 0..100_000 {
                    let _ = black_box(limiter.reserve((BLOCKED, USER)).await);
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
    ] {
        let what = format!("hot, {PAIRS} pairs: {name}");
        report.number(SECTION, what, rounds.median(name), "ns", None);
    }
    for name in ["limiter", "limiter, refused"] {
        let what = format!("hot, one pair: {name}");
        report.number(SECTION, what, rounds.median(name), "ns", None);
    }
    let mut ratio = |what, one, other, goal| {
        report.ratio(SECTION, what, rounds.ratio(one, other), goal);
    };
    ratio(
        "hot, admitted: two rules to one check_key",
        "decision",
        "governor",
        Some(Goal::AtMost(1.6)),
    );
    ratio(
        "hot, refused: two rules to one check_key",
        "decision, refused",
        "governor, refused",
        Some(Goal::AtMost(1.6)),
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

/// Out of a million addresses, in an order that no cache knows, by one thread and by two. Each of our
/// counters holds a failure, so that it stays, and during its turn one attempt in flight.
fn million(report: &mut Report) {
    const BATCH: u64 = 1_000;
    const STRIDE: u64 = 618_033_989;
    let governor: DefaultKeyedRateLimiter<IpAddr> =
        RateLimiter::keyed(Quota::per_second(NonZeroU32::MAX));
    let (store, five) = (MemoryStore::with_capacity(3_000_000), limit(5));
    for n in 0..MILLION {
        let _ = governor.check_key(&address(n));
        drop(store.reserve(Token::new(), Duration::ZERO, &slots(address(n), &five)));
    }
    // Each address comes once in a million, and no two threads are at one at a time. Turns go on where the
    // last one ended.
    let next = AtomicU64::new(0);
    let nth = |thread: u64, first: u64, i: u64| {
        address((first + i + thread * MILLION / 2) * STRIDE % MILLION)
    };
    for threads in [1, 2] {
        // The mean of what the threads measured.
        let on_threads = |turn: &(dyn Fn(u64, u64) -> f64 + Sync)| {
            let first = next.fetch_add(200 * BATCH, Ordering::Relaxed);
            thread::scope(|scope| {
                let run = |thread| move || turn(thread, first);
                let running: Vec<_> = (0..threads)
                    .map(|thread| scope.spawn(run(thread)))
                    .collect();
                let times = running.into_iter().map(|thread| thread.join());
                times.map(|time| time.expect("no panic")).sum::<f64>() / threads as f64
            })
        };
        let rounds = Rounds::take_turns(vec![
            turn("governor", || {
                on_threads(&|thread, first| {
                    let check = |i| drop(black_box(governor.check_key(&nth(thread, first, i))));
                    in_batches(200, BATCH, check, |_| {})
                })
            }),
            turn("decision", || {
                on_threads(&|thread, first| {
                    // Without the time that drawing a token takes.
                    let token = |i| Token::from_bytes(u128::from(first + i).to_be_bytes());
                    let reserve = |i| {
                        let slots = slots(nth(thread, first, i), &five);
                        drop(black_box(store.reserve(token(i), LEASE, &slots)));
                    };
                    let cancel = |i| {
                        let slots = slots(nth(thread, first, i), &five);
                        cancel(&store, token(i), &slots);
                    };
                    in_batches(200, BATCH, reserve, cancel)
                })
            }),
        ]);
        let with = match threads {
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        };
        for name in ["governor", "decision"] {
            let what = format!("a million keys, {with}: {name}");
            report.number(SECTION, what, rounds.median(name), "ns", None);
        }
        let what = format!("a million keys, {with}: two rules to one check_key");
        let goal = (threads == 1).then_some(Goal::AtMost(1.6));
        report.ratio(SECTION, what, rounds.ratio("decision", "governor"), goal);
    }
}

/// Bytes and allocations, counted by a program with an allocator of its own.
fn counts(report: &mut Report) {
    let counts = Counts::of("allocations", &["memory"]);
    let mut number = |what: &str, name, unit, goal| {
        report.number(SECTION, what, counts.get(name), unit, goal);
    };
    number(
        "memory of a key that holds 1 failure",
        "bytes-1-failures",
        "bytes",
        None,
    );
    number(
        "memory of a key that holds 5 failures",
        "bytes-5-failures",
        "bytes",
        Some(Goal::AtMost(120.0)),
    );
    number(
        "memory of a key in governor, without history",
        "bytes-governor",
        "bytes",
        None,
    );
    number(
        "allocations: an attempt",
        "attempt",
        "",
        Some(Goal::AtMost(2.0)),
    );
    number("allocations: settling it as a success", "success", "", None);
    number(
        "allocations: a refusal",
        "refusal",
        "",
        Some(Goal::AtMost(0.0)),
    );
}

fn turn<'a>(name: &'static str, turn: impl FnMut() -> f64 + 'a) -> Contender<'a> {
    (name, Box::new(turn))
}
