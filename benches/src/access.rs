//! A look-up of access rules: 100,000 networks beside ten.

use std::{hint::black_box, net::IpAddr, time::Instant};

use tower_login_rate_limit::access::{AccessQuery, AccessRule, AccessRules, Field};

use crate::{
    callers::address,
    report::{Goal, Report},
    rounds::{Contender, Rounds},
};

const SECTION: &str = "Access rules";
const FEW: u64 = 10;
const MANY: u64 = 100_000;
/// Look-ups in a turn.
const LOOK_UPS: usize = 200_000;
/// Addresses that stay in the caches of the processor, with the nodes that lead to them.
const HOT: usize = 8;
/// Before it, no rule of these has expired.
const NOW: u64 = 1_790_000_000_000;

pub fn measure(report: &mut Report) {
    let (few, many) = (denied(FEW), denied(MANY));
    compare(
        report,
        "a few addresses that are denied",
        &few,
        &many,
        |_, n| listed(n % HOT as u64),
    );
    compare(
        report,
        "addresses all over the list",
        &few,
        &many,
        |size, n| listed(n * 7_919 % size),
    );
    compare(
        report,
        "addresses that no rule matches",
        &few,
        &many,
        |_, n| stranger(n),
    );
}

/// Rules that deny networks of both families.
fn denied(count: u64) -> AccessRules {
    let rule = |n| {
        let (network, name) = (listed(n), format!("rule-{n}"));
        let len = if network.is_ipv4() { 32 } else { 64 };
        AccessRule::deny(name, Field::Network, format!("{network}/{len}")).expect("a rule")
    };
    AccessRules::new((0..count).map(rule)).expect("a set")
}

/// The nth address that is on the list: every other one is IPv6.
fn listed(n: u64) -> IpAddr {
    match address(2 * n) {
        IpAddr::V4(ip) if n % 2 == 1 => {
            let bits = 0x2a00 << 112 | u128::from(ip.to_bits()) << 80;
            IpAddr::V6(bits.into())
        }
        ip => ip,
    }
}

/// The nth address that is not on the list: no number of an address occurs twice.
fn stranger(n: u64) -> IpAddr {
    address(2 * n + 1)
}

fn compare(
    report: &mut Report,
    what: &str,
    few: &AccessRules,
    many: &AccessRules,
    nth: impl Fn(u64, u64) -> IpAddr,
) {
    let queries = |size| -> Vec<_> {
        let addresses = (0..LOOK_UPS as u64).map(|n| nth(size, n));
        addresses
            .map(|ip| AccessQuery::new().with_address(ip))
            .collect()
    };
    let (of_few, of_many) = (queries(FEW), queries(MANY));
    let rounds = Rounds::take_turns(vec![
        turn("ten", || look_up(few, &of_few)),
        turn("many", || look_up(many, &of_many)),
    ]);
    report.number(
        SECTION,
        format!("{what}: 10 networks"),
        rounds.median("ten"),
        "ns",
        None,
    );
    report.number(
        SECTION,
        format!("{what}: 100,000 networks"),
        rounds.median("many"),
        "ns",
        None,
    );
    let goal = Some(Goal::AtMost(1.2));
    let what = format!("{what}: 100,000 networks to 10");
    report.ratio(SECTION, what, rounds.ratio("many", "ten"), goal);
}

/// Nanoseconds of one look-up.
fn look_up(rules: &AccessRules, queries: &[AccessQuery<'_>]) -> f64 {
    let started = Instant::now();
    for query in queries {
        black_box(rules.decide(black_box(query), NOW));
    }
    started.elapsed().as_nanos() as f64 / queries.len() as f64
}

fn turn<'a>(name: &'static str, turn: impl FnMut() -> f64 + 'a) -> Contender<'a> {
    (name, Box::new(turn))
}
