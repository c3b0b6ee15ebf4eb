//! What it costs to operate the crate: events, metrics, access rules, and a list of a million blocks.
//!
//! A program of its own, since the features that this needs would be in the figures of the others too. Prints lines
//! `name number`.

mod blocks;
mod observers;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["observers"] => observers::measure(),
        ["blocks"] => blocks::measure(),
        // Under valgrind.
        [path, times] => {
            let times = times.parse().expect("a number");
            observers::take(path, times);
        }
        _ => {
            eprintln!("operated: the argument is observers or blocks");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
