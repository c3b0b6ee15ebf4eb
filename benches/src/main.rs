//! Measures this crate beside its peers and beside what is physically possible, in one run, and prints a
//! table of ratios.
//!
//! `cargo run --release` measures everything; names of sections after it choose some.

mod callers;
mod layer;
mod memory;
mod overheard;
mod redis_engine;
mod redis_peers;
mod redis_server;
mod report;
mod rounds;
mod tasks;

use report::Report;

fn main() {
    let sections: [(&str, fn(&mut Report)); 3] = [
        ("memory", memory::measure),
        ("layer", layer::measure),
        ("redis", redis_engine::measure),
    ];
    let chosen: Vec<_> = std::env::args().skip(1).collect();
    let mut report = Report::default();
    for (name, measure) in sections {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            measure(&mut report);
        }
    }
    println!("{}", report.table());
}
