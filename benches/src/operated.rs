//! What it costs to operate the crate, as another program measures it: see `bin/operated`.

use std::{env, path::PathBuf};

use crate::{
    counts::Counts,
    report::{Goal, Report},
    rounds::Ratio,
};

/// Where `run.sh` builds a program with more features, beside the directory of this one.
pub fn program(name: &str) -> PathBuf {
    let this = env::current_exe().expect("this program");
    let target = this.ancestors().nth(2).expect("a directory");
    target.join("operated/release").join(name)
}

pub fn observers(report: &mut Report) {
    const SECTION: &str = "Observers, metrics and access rules";
    let counts = Counts::at(&program("operated"), &["observers"]);
    let subjects = [
        ("closure", "a closure as observer"),
        ("metrics", "metrics"),
        ("networks", "100,000 networks"),
        (
            "everything",
            "closure, log, file, metrics, 100,000 networks",
        ),
        ("sleeps", "an observer that sleeps"),
        ("panics", "an observer that panics"),
    ];
    let instructions = |name: &str| counts.get(&format!("instructions-{name}"));
    let added = |name| instructions(name) - instructions("none");
    let what = "instructions added to a request that passes: layer";
    report.number(SECTION, what, added("layer"), "", None);
    for (name, what) in subjects {
        let what = format!("instructions added, with {what}, to without");
        let goal = (name == "everything").then_some(Goal::AtMost(1.15));
        report.number(SECTION, what, added(name) / added("layer"), "×", goal);
    }
    for (clients, words) in [("hot", "hot"), ("many", "100,000 addresses")] {
        let what = format!("time added to a request that passes, {words}: layer");
        let of = |name: &str| counts.get(&format!("{clients}-{name}"));
        report.number(SECTION, what, of("layer") - of("none"), "ns", None);
        for (name, what) in subjects {
            let part = |part| counts.get(&format!("{clients}-{name}-{part}"));
            let ratio = Ratio {
                median: part("median"),
                low: part("low"),
                high: part("high"),
            };
            let what = format!("time added, {words}, with {what}, to without");
            let goal = (name == "everything").then_some(Goal::AtMost(1.15));
            report.ratio(SECTION, what, ratio, goal);
        }
    }
}

pub fn blocks(report: &mut Report) {
    const SECTION: &str = "A million blocks in force";
    let counts = Counts::at(&program("operated"), &["blocks"]);
    report.number(SECTION, "blocks", counts.get("blocks"), "", None);
    report.number(SECTION, "keys in Redis", counts.get("keys"), "", None);
    let memory = counts.get("memory");
    report.number(SECTION, "memory of Redis", memory, "GB", None);
    for (name, what, goal) in [
        ("first", "the first page of 100", Some(50.0)),
        ("middle", "a page of 100 behind 500,000", Some(50.0)),
        ("thousand", "a page of 1,000", None),
        ("address", "the blocks of an address", None),
        ("user", "the ten blocks of a user", None),
        ("network", "the blocks of an IPv4 /24", None),
        ("wide", "a page of a search in an IPv4 /16", None),
        ("counts", "blocks by rule, counted", None),
        ("explain", "a pair, explained", None),
    ] {
        let of = |part| counts.get(&format!("{name}-{part}"));
        let (what_time, goal) = (format!("time in Redis: {what}"), goal.map(Goal::AtMost));
        report.number(SECTION, what_time, of("median"), "ms", goal);
        let what_most = format!("the same, the most in nine rounds: {what}");
        report.number(SECTION, what_most, of("high"), "ms", None);
        let what = format!("scripts called: {what}");
        report.number(SECTION, what, of("commands"), "", None);
    }
    for (name, what) in [
        ("notes.lua", "notes.lua, which lists"),
        ("inspect.lua", "inspect.lua, which reads a counter"),
        ("others", "all others"),
    ] {
        let goal = Some(Goal::AtMost(5.0));
        let slowest = |part| counts.get(&format!("slowest-{name}-{part}"));
        let what_median = format!("the slowest call of a round: {what}");
        report.number(SECTION, what_median, slowest("median"), "ms", goal);
        let what = format!("the slowest call of all rounds: {what}");
        report.number(SECTION, what, slowest("high"), "ms", goal);
    }
}

pub fn live(report: &mut Report) {
    const SECTION: &str = "A change of the policy on 16 instances";
    let counts = Counts::at(&program("operated"), &["live"]);
    let what = "of 100 changes, in force on the last instance within a second";
    let goal = Some(Goal::AtLeast(100.0));
    report.number(SECTION, what, counts.get("in-time"), "", goal);
    for (name, what) in [
        ("median", "time until then: median"),
        ("slowest", "time until then: slowest"),
    ] {
        report.number(SECTION, what, counts.get(name), "ms", None);
    }
}
