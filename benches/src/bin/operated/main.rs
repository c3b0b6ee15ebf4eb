//! What it costs to operate the crate: events, metrics, access rules, a list of a million blocks, and changes
//! of the policy.
//!
//! A program of its own, since the features that this needs would be in the figures of the others too. Prints lines
//! `name number`.

mod blocks;
mod live;
mod observers;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["observers"] => observers::measure(),
        ["blocks"] => blocks::measure(),
        ["live"] => live::measure(),
        // Under valgrind.
        [path, times] => {
            let times = times.parse().expect("a number");
            observers::take(path, times);
        }
        _ => {
            eprintln!("operated: the argument is observers, blocks or live");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
