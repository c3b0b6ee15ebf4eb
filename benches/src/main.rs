//! Measures this crate beside its peers and beside what is physically possible, in one run, and prints a
//! table of ratios.
//!
//! `cargo run --release` measures everything; names of sections after it choose some.

mod callers;
mod held_pool;
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

fn main() {
    let sections: [(&str, fn(&mut Report)); 4] = [
        ("memory", memory::measure),
        ("layer", layer::measure),
        ("redis", redis_engine::measure),
        ("server", server::measure),
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
