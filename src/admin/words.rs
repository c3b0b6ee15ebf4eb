//! What a counter holds, in a sentence.

use std::fmt::Write;

use super::NextFailure;
use crate::{
    Limit, Period, Rule,
    algorithm::{Algorithm, State},
    store::Contents,
};

/// A sentence such as "4 of 5 failures within 1 day; the next one blocks for 1 day".
pub(super) fn sentence(rule: &Rule, contents: &Contents, next: NextFailure) -> String {
    if next == NextFailure::Exempt {
        return "not counted: the user has logged in from this address before".to_owned();
    }
    let mut text = count(rule.limit(), contents);
    if rule.is_shadow() {
        text.insert_str(0, "in shadow, refuses nothing: ");
    }
    // Writing to a string can't fail.
    let _ = match (contents.standing.state, next) {
        (
            State::Blocked {
                lifts: Period::Forever,
            },
            _,
        ) => {
            write!(text, "; blocked until an operator lifts it")
        }
        (State::Blocked { lifts }, _) => {
            write!(text, "; blocked for another {}", lifts.rounded_up())
        }
        (State::Busy, _) => write!(text, "; refused until one in flight ends"),
        (_, NextFailure::Counts { remaining }) => {
            let s = if remaining == 1 { "" } else { "s" };
            write!(
                text,
                "; after another failure {remaining} attempt{s} would be left"
            )
        }
        (_, NextFailure::Blocks { lifts, exact }) => {
            let only_if = match in_flight(contents) {
                0 => "",
                _ => ", with those in flight,",
            };
            match lifts {
                Period::Forever => write!(text, "; the next one{only_if} blocks for good"),
                lifts if lifts == Period::seconds(0) => {
                    write!(text, "; the next one{only_if} blocks")
                }
                lifts => {
                    let at_least = if exact { "" } else { "at least " };
                    write!(
                        text,
                        "; the next one{only_if} blocks for {at_least}{}",
                        lifts.rounded_up()
                    )
                }
            }
        }
        _ => Ok(()),
    };
    text
}

fn in_flight(contents: &Contents) -> usize {
    contents
        .attempts
        .iter()
        .filter(|kept| kept.is_in_flight)
        .count()
}

/// What counts, of how much.
fn count(limit: &Limit, contents: &Contents) -> String {
    let standing = contents.standing;
    let flying = match (standing.is_blocked(), in_flight(contents)) {
        (true, _) | (_, 0) => String::new(),
        (_, 1) => ", 1 of them in flight".to_owned(),
        (_, n) => format!(", {n} of them in flight"),
    };
    let what = if flying.is_empty() {
        "failures"
    } else {
        "attempts"
    };
    let (usage, max, window) = (standing.usage, standing.limit, limit.window());
    match (limit.algorithm(), window) {
        (Algorithm::Backoff, _) => {
            let what = match (usage, what) {
                (1, "failures") => "failure",
                (1, _) => "attempt",
                (_, what) => what,
            };
            format!("{usage} {what}{flying}")
        }
        (Algorithm::TokenBucket, _) => {
            let rate = standing.rate();
            format!("{rate} of {max} tokens taken{flying}, refilled within {window}")
        }
        (_, Period::Forever) => format!("{usage} of {max} {what}{flying}"),
        _ => format!("{usage} of {max} {what} within {window}{flying}"),
    }
}
