//! The engine over Redis, beside what else one could do with the same Redis.

use std::{cell::RefCell, sync::Arc};

use tokio::runtime::{Builder, Runtime};
use tower_login_rate_limit::{LoginLimiter, Policy, store::RedisStore};

use crate::{
    callers::{address, user},
    overheard::Call,
    redis_peers::{self, RateLimiterFlexible, Shared, TwoCalls},
    redis_server::RedisServer,
    report::{Goal, Report},
    rounds::{Contender, Ratio, Rounds},
    tasks::{Operation, Turn, operation, take_turn},
};

const SECTION: &str = "One attempt over Redis, both rules";

const OURS: &str = "ours";
const PING: &str = "PING";
const TRIVIAL: &str = "trivial EVALSHA";
const TWO_CALLS: &str = "two calls, shared connections";
const POOLED: &str = "two calls, bb8 pool";
const TRYPEMA: &str = "trypema";
const FLEXIBLE: &str = "rate-limiter-flexible";
const BENCHMARK: &str = "redis-benchmark, pipeline 16";

pub fn measure(report: &mut Report) {
    let bench = Bench::new();
    for tasks in [1, 16, 64, 256] {
        bench.measure(report, tasks);
    }
    // Had it taken Redis to be away, it would have counted by itself, and that is another thing.
    assert_eq!(bench.store.status().fallback_decisions, 0);
}

struct Bench {
    // The connections go before the server does.
    store: RedisStore,
    operations: Vec<(&'static str, Operation)>,
    reserve: Call,
    runtime: Runtime,
    server: RedisServer,
}

impl Bench {
    fn new() -> Self {
        let server = RedisServer::start();
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        // Room for all of them to be followed, since none of them is ever settled.
        let store = RedisStore::builder().with_fallback_capacity(20_000_000);
        let connected = runtime.block_on(store.connect(server.url()));
        let store = connected.expect("a store");
        let limiter = LoginLimiter::new(Policy::default(), store.clone());
        let ours = ours(limiter);
        // The first call of each script carries its text.
        runtime.block_on(ours(0));
        let calls = Call::overhear(&server.url(), || runtime.block_on(ours(1)));
        let [reserve] = &calls[..] else {
            panic!("an attempt is one call, not {calls:?}");
        };

        let two_calls = TwoCalls::new(&server);
        let operations = runtime.block_on(async {
            let shared = Shared::connect(&server.url()).await;
            vec![
                (OURS, Arc::clone(&ours)),
                (PING, shared.clone().ping()),
                (TRIVIAL, shared.clone().trivial_script(&server, reserve)),
                (TWO_CALLS, shared.two_calls(&two_calls)),
                (POOLED, two_calls.pooled(&server).await),
                (TRYPEMA, redis_peers::trypema(&server).await),
            ]
        });
        Self {
            store,
            operations,
            reserve: reserve.clone(),
            runtime,
            server,
        }
    }

    fn measure(&self, report: &mut Report, tasks: usize) {
        let turns = Turns::default();
        let mut contenders: Vec<Contender<'_>> = Vec::new();
        for (name, operation) in &self.operations {
            let turns = &turns;
            contenders.push((
                name,
                Box::new(move || {
                    self.server.flush();
                    let turn = take_turn(&self.runtime, tasks, operation);
                    turns.note(name, turn);
                    turn.rate
                }),
            ));
        }
        if tasks == 64 {
            let mut flexible = RateLimiterFlexible::start(&self.server, tasks);
            let turn = move || {
                self.server.flush();
                let seen = flexible.take_turn();
                seen["rate"].as_f64().expect("a rate")
            };
            contenders.push((FLEXIBLE, Box::new(turn)));
            let turn = || {
                self.server.flush();
                redis_peers::redis_benchmark(&self.server, &self.reserve)
            };
            contenders.push((BENCHMARK, Box::new(turn)));
        }
        let names: Vec<_> = contenders.iter().map(|(name, _)| *name).collect();
        let rounds = Rounds::take_turns(contenders);

        let with = match tasks {
            1 => "1 task".to_owned(),
            tasks => format!("{tasks} tasks"),
        };
        for name in &names {
            let rate = rounds.median(name);
            report.number(SECTION, format!("{with}, {name}"), rate, "/s", None);
        }
        for (name, _) in &self.operations {
            let (p50, p99) = (
                turns.median(name, |turn| turn.p50),
                turns.median(name, |turn| turn.p99),
            );
            report.number(SECTION, format!("{with}, {name}: p50"), p50, "µs", None);
            report.number(SECTION, format!("{with}, {name}: p99"), p99, "µs", None);
        }

        for peer in names.into_iter().filter(|name| *name != OURS) {
            let goal = match (peer, tasks) {
                (POOLED, 16) => Some(Goal::AtLeast(4.0)),
                (POOLED, 64) => Some(Goal::AtLeast(5.0)),
                (FLEXIBLE, 64) => Some(Goal::AtLeast(2.4)),
                (BENCHMARK, 64) => Some(Goal::AtLeast(0.85)),
                _ => None,
            };
            let what = format!("{with}, speed: ours / {peer}");
            report.ratio(SECTION, what, rounds.ratio(OURS, peer), goal);
        }
        if tasks == 1 {
            let ratio = turns.ratio(OURS, PING, |turn| turn.p50);
            let what = format!("{with}, p50: ours / {PING}");
            report.ratio(SECTION, what, ratio, None);
        }
        if tasks == 256 {
            for name in [OURS, POOLED] {
                let (most, least) = match name {
                    OURS => (Some(Goal::AtMost(15.0)), Some(Goal::AtLeast(0.5))),
                    _ => (None, None),
                };
                let waits = turns.each(name, |turn| turn.worst / turn.p50);
                let what = format!("{with}, {name}: worst wait / p50");
                report.ratio(SECTION, what, Ratio::of(waits), most);
                let shares = turns.each(name, |turn| turn.least_share);
                let what = format!("{with}, {name}: the least served task / the mean");
                report.ratio(SECTION, what, Ratio::of(shares), least);
            }
        }
    }
}

/// Admits somebody who has not been here before.
fn ours(limiter: LoginLimiter) -> Operation {
    operation(move |n| {
        let limiter = limiter.clone();
        async move {
            let attempt = limiter.reserve((address(n), user(n))).await;
            // It stays in flight: settling is another call, and measured elsewhere.
            let _ = attempt.expect("nobody has been here before");
        }
    })
}

/// What the contenders saw in their turns, besides the rate.
#[derive(Default)]
struct Turns(RefCell<Vec<(&'static str, Turn)>>);

impl Turns {
    fn note(&self, name: &'static str, turn: Turn) {
        self.0.borrow_mut().push((name, turn));
    }

    /// One figure of each turn of a contender, without the first, which warms up.
    fn each(&self, name: &str, figure: impl Fn(&Turn) -> f64) -> Vec<f64> {
        let turns = self.0.borrow();
        let own = turns.iter().filter(|(known, _)| *known == name).skip(1);
        own.map(|(_, turn)| figure(turn)).collect()
    }

    fn ratio(&self, one: &str, other: &str, figure: impl Fn(&Turn) -> f64) -> Ratio {
        let pairs = self
            .each(one, &figure)
            .into_iter()
            .zip(self.each(other, &figure));
        Ratio::of(pairs.map(|(one, other)| one / other).collect())
    }

    fn median(&self, name: &str, figure: impl Fn(&Turn) -> f64) -> f64 {
        Ratio::of(self.each(name, figure)).median
    }
}
