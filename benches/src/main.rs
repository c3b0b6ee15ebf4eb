//! Measures this crate beside its peers and beside what is physically possible, in one run, and prints a
//! table of ratios.
//!
//! `cargo run --release` measures everything; names of sections after it choose some.

mod attack;
mod callers;
mod cost;
mod growth;
mod held_pool;
mod honest;
mod layer;
mod login_server;
mod memory;
mod overheard;
mod redis_engine;
mod redis_peers;
mod redis_server;
mod report;
mod rounds;
mod server;
mod tasks;
mod wrk;

use report::Report;

/// A name to choose it by, and what it does.
type Section = (&'static str, fn(&mut Report));

fn main() {
    let sections: [Section; 7] = [
        ("memory", memory::measure),
        ("layer", layer::measure),
        ("redis", redis_engine::measure),
        ("server", server::measure),
        ("attack", attack::measure),
        ("cost", cost::measure),
        ("growth", growth::measure),
    ];
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|first| first == login_server::SERVE).is_some() {
        return login_server::serve(arguments);
    }
    let chosen: Vec<_> = arguments.collect();
    let mut report = Report::default();
    for (name, measure) in sections {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            measure(&mut report);
        }
    }
    println!("{}", report.table());
}
