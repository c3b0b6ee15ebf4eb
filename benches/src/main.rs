//! Measures this crate beside its peers and beside what is physically possible, in one run, and prints a
//! table of ratios.
//!
//! `cargo run --release` measures everything; names of sections after it choose some.

mod access;
mod attack;
mod cost;
mod counts;
mod growth;
mod held_pool;
mod honest;
mod layer;
mod login_server;
mod memory;
mod operated;
mod overheard;
mod plot;
mod redis_engine;
mod redis_peers;
mod replay;
mod report;
mod scripts;
mod server;
mod tasks;
mod watched;
mod wrk;

use std::{alloc::System, fs};

use benches::{callers, redis_server, rounds};
use report::Report;

/// What times are measured with. Two allocators do not compile, so the one that counts can't come in by an
/// import: see `bin/allocations.rs`.
#[global_allocator]
static ALLOCATOR: System = System;

/// A name to choose it by, and what it does.
type Section = (&'static str, fn(&mut Report));

fn main() {
    let sections: [Section; 14] = [
        ("memory", memory::measure),
        ("layer", layer::measure),
        ("redis", redis_engine::measure),
        ("server", server::measure),
        ("attack", attack::measure),
        ("cost", cost::measure),
        ("scripts", scripts::measure),
        ("growth", growth::measure),
        ("access", access::measure),
        ("replay", replay::measure),
        ("observers", operated::observers),
        ("blocks", operated::blocks),
        ("live", operated::live),
        ("console", watched::measure),
    ];
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments
        .next_if(|first| first == login_server::SERVE)
        .is_some()
    {
        return login_server::serve(arguments);
    }
    let chosen: Vec<_> = arguments.collect();
    let is_known = |name: &String| sections.iter().any(|(known, _)| known == name);
    if let Some(unknown) = chosen.iter().find(|name| !is_known(name)) {
        let names = sections.map(|(name, _)| name).join(", ");
        eprintln!("benches: there is no section {unknown}; there are {names}");
        std::process::exit(2);
    }
    let mut report = Report::default();
    for (name, measure) in sections {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            measure(&mut report);
        }
    }
    println!("{}", report.table());
    if chosen.is_empty() {
        publish(&report);
    }
}

/// Puts what was measured where people read it, once everything was.
fn publish(report: &Report) {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.md");
    const PLOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.svg");
    const MEASURED: &str = "<!-- measured -->\n";
    let page = fs::read_to_string(PAGE).expect("docs/benchmarks.md");
    let (prose, _) = page
        .split_once(MEASURED)
        .expect("a place for what was measured");
    fs::write(PAGE, [prose, MEASURED, &report.table()].concat()).expect("docs/benchmarks.md");
    fs::write(PLOT, plot::svg(&report.bars())).expect("docs/benchmarks.svg");
}
