//! Whole requests: an axum server under a load generator, with different layers before its login.

use std::cell::{Cell, RefCell};

use crate::{
    login_server::{Guard, LoginServer},
    redis_server::RedisServer,
    report::{Goal, Report},
    rounds::{Contender, Ratio, Rounds},
    wrk::{Callers, Wrk},
};

const SECTION: &str = "axum server, 64 connections";
const CONNECTIONS: u32 = 64;
const SECONDS: u32 = 2;

const NO_LAYER: &str = "no layer";
const IDENTITY: &str = "a layer that does nothing";
const MEMORY: &str = "ours in memory, passed";
const SLEEPS: &str = "ours with an observer that sleeps";
const PANICS: &str = "ours with an observer that panics";
const REFUSED: &str = "ours in memory, refused";
const REDIS: &str = "ours on Redis, passed";
const HELD: &str = "ours on a bb8 pool, passed";
const GOVERNOR: &str = "tower_governor, passed";
const TWO_GOVERNORS: &str = "two tower_governor, passed";
const GOVERNOR_REFUSED: &str = "tower_governor, refused";
const STATIC: &str = "a handler with our refusal, ready-made";

pub fn measure(report: &mut Report) {
    let redis = RedisServer::start();
    let server = |guard| LoginServer::start(guard, &redis);
    let in_memory = server(Guard::OursInMemory);
    let others = [
        (NO_LAYER, server(Guard::NoLayer), Callers::Fresh),
        (IDENTITY, server(Guard::Identity), Callers::Fresh),
        (
            SLEEPS,
            server(Guard::OursWithSleepingObserver),
            Callers::Fresh,
        ),
        (
            PANICS,
            server(Guard::OursWithPanickingObserver),
            Callers::Fresh,
        ),
        (REDIS, server(Guard::OursOnRedis), Callers::Fresh),
        (HELD, server(Guard::OursOnHeldPool), Callers::Fresh),
        (GOVERNOR, server(Guard::Governor), Callers::Fresh),
        (TWO_GOVERNORS, server(Guard::TwoGovernors), Callers::Fresh),
        (STATIC, server(Guard::Refusal), Callers::Blocked),
        (
            GOVERNOR_REFUSED,
            server(Guard::StingyGovernor),
            Callers::Blocked,
        ),
    ];
    let mut all = vec![
        (MEMORY, &in_memory, Callers::Fresh),
        (REFUSED, &in_memory, Callers::Blocked),
    ];
    all.extend(
        others
            .iter()
            .map(|(name, server, callers)| (*name, server, *callers)),
    );

    let p99s = RefCell::new(Vec::new());
    let on_redis = Cell::new((0.0, 0.0));
    let contenders = all.iter().map(|&(name, server, callers)| {
        let (p99s, redis, on_redis) = (&p99s, &redis, &on_redis);
        let turn = move || {
            let (before, _) = redis.calls("evalsha");
            let load = Wrk::start(server.port(), CONNECTIONS, SECONDS, callers).finish();
            match callers {
                Callers::Fresh => assert_eq!(load.refused, 0.0, "{name}: {load:?}"),
                // tower_governor admits the very first one.
                Callers::Blocked => {
                    assert!(load.requests - load.refused <= 1.0, "{name}: {load:?}")
                }
            }
            if name == REDIS {
                let (calls, requests) = on_redis.get();
                let called = redis.calls("evalsha").0 - before;
                on_redis.set((calls + called, requests + load.requests));
            }
            p99s.borrow_mut().push((name, load.p99));
            load.rate
        };
        (name, Box::new(turn) as Box<dyn FnMut() -> f64>)
    });
    let rounds = Rounds::take_turns(contenders.collect::<Vec<Contender<'_>>>());

    for (name, ..) in &all {
        report.number(SECTION, *name, rounds.median(name), "requests/s", None);
        // The first turn warms up.
        let p99s = p99s.borrow();
        let own = p99s.iter().filter(|(known, _)| known == name).skip(1);
        let p99 = Ratio::of(own.map(|(_, p99)| *p99).collect()).median;
        report.number(SECTION, format!("{name}: p99"), p99, "µs", None);
    }
    // Fewer than two would mean that the store took Redis to be away and counted by itself.
    let (calls, requests) = on_redis.get();
    let what = format!("{REDIS}: script calls per request");
    report.number(SECTION, what, calls / requests, "", None);
    let mut ratio = |one, other, goal| {
        let what = format!("requests/s: {one} / {other}");
        report.ratio(SECTION, what, rounds.ratio(one, other), goal);
    };
    ratio(MEMORY, IDENTITY, Some(Goal::AtLeast(0.97)));
    ratio(SLEEPS, MEMORY, Some(Goal::AtLeast(0.97)));
    ratio(PANICS, MEMORY, Some(Goal::AtLeast(0.97)));
    ratio(GOVERNOR, IDENTITY, None);
    ratio(TWO_GOVERNORS, IDENTITY, None);
    ratio(MEMORY, GOVERNOR, Some(Goal::AtLeast(1.0)));
    ratio(MEMORY, TWO_GOVERNORS, None);
    ratio(REFUSED, NO_LAYER, Some(Goal::AtLeast(0.92)));
    ratio(STATIC, NO_LAYER, None);
    ratio(REFUSED, STATIC, None);
    ratio(GOVERNOR_REFUSED, NO_LAYER, None);
    ratio(REDIS, HELD, Some(Goal::AtLeast(2.0)));
}
