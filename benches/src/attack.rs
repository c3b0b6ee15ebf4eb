//! What honest people notice of somebody who floods a login that is blocked already.

use std::{cell::Cell, time::Duration};

use tokio::runtime::Builder;

use crate::{
    honest,
    login_server::{Guard, LoginServer},
    redis_server::RedisServer,
    report::{Goal, Report},
    rounds::{Contender, Rounds},
    wrk::{Callers, Wrk},
};

const SECTION: &str = "One address floods a blocked login";
const ATTACKERS: u32 = 32;
const PEOPLE: usize = 16;
const SECONDS: u32 = 2;

const OURS: &str = "ours on Redis, flooded";
const MEMORY: &str = "ours in memory, flooded";
const NO_LAYER: &str = "no layer, as busy";
const PINGS: &str = "no layer but two PINGs, as busy";
const OURS_IDLE: &str = "ours on Redis, not flooded";
const NO_LAYER_IDLE: &str = "no layer, not busy";

pub fn measure(report: &mut Report) {
    let redis = RedisServer::start();
    let ours = LoginServer::start(Guard::OursOnRedis, &redis);
    let in_memory = LoginServer::start(Guard::OursInMemory, &redis);
    let no_layer = LoginServer::start(Guard::NoLayer, &redis);
    let two_pings = LoginServer::start(Guard::TwoPings, &redis);
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");

    let (logins, refused) = (Cell::new(0), Cell::new(0.0));
    let p99_at = |server: &LoginServer, is_flooded: bool| {
        let flood =
            is_flooded.then(|| Wrk::start(server.port(), ATTACKERS, SECONDS, Callers::Blocked));
        // They are there while the flood is.
        let time = Duration::from_secs(SECONDS.into()) - Duration::from_millis(200);
        let waits = honest::log_in(&runtime, server.port(), PEOPLE, time);
        let load = flood.map(Wrk::finish);
        if std::ptr::eq(server, &ours) {
            logins.set(logins.get() + waits.len());
            if let Some(load) = load {
                assert_eq!(load.refused, load.requests, "the flood is blocked");
                refused.set(refused.get() + load.refused);
            }
        }
        waits[waits.len() * 99 / 100]
    };
    let contenders: Vec<Contender<'_>> = vec![
        (OURS, Box::new(|| p99_at(&ours, true))),
        (MEMORY, Box::new(|| p99_at(&in_memory, true))),
        (NO_LAYER, Box::new(|| p99_at(&no_layer, true))),
        (PINGS, Box::new(|| p99_at(&two_pings, true))),
        (OURS_IDLE, Box::new(|| p99_at(&ours, false))),
        (NO_LAYER_IDLE, Box::new(|| p99_at(&no_layer, false))),
    ];
    let names: Vec<_> = contenders.iter().map(|(name, _)| *name).collect();
    let rounds = Rounds::take_turns(contenders);
    for name in names {
        let what = format!("honest p99: {name}");
        report.number(SECTION, what, rounds.median(name), "µs", None);
    }
    let what = format!("honest p99: {OURS} / {NO_LAYER}");
    let ratio = rounds.ratio(OURS, NO_LAYER);
    report.ratio(SECTION, what, ratio, None);
    // A login that needs Redis before and after the handler waits for it twice, whatever the commands.
    let what = format!("honest p99: {OURS} / {PINGS}");
    let ratio = rounds.ratio(OURS, PINGS);
    report.ratio(SECTION, what, ratio, Some(Goal::AtMost(1.1)));
    // Without Redis between the request and the handler, this is what the refusals do to others.
    let what = format!("honest p99: {MEMORY} / {NO_LAYER}");
    report.ratio(SECTION, what, rounds.ratio(MEMORY, NO_LAYER), None);
    report.number(
        SECTION,
        "honest logins, in all turns",
        logins.get() as f64,
        "",
        None,
    );
    report.number(SECTION, "refused meanwhile", refused.get(), "", None);

    // Nobody else is there now, so whatever Redis is asked is because of the flood, or of nothing: a word
    // that the store says to itself every few seconds.
    let before = redis.all_calls();
    let load = Wrk::start(ours.port(), ATTACKERS, SECONDS, Callers::Blocked).finish();
    let asked = redis.all_calls() - before;
    assert_eq!(load.refused, load.requests, "the flood is blocked");
    report.number(SECTION, "refused, the flood alone", load.refused, "", None);
    report.number(SECTION, "commands to Redis meanwhile", asked, "", None);
    let what = "commands to Redis per refused request";
    report.number(
        SECTION,
        what,
        asked / load.refused,
        "",
        Some(Goal::AtMost(0.001)),
    );
}
