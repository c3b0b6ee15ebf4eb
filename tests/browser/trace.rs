//! What the main thread of a page has done, from a trace of Chromium.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde_json::Value;

/// A task of the main thread, during which the page answers nothing. Times are in milliseconds.
#[derive(Debug)]
pub struct Task {
    /// How long the thread computed. What other programs do on the machine is not in it.
    pub cpu: f64,
    /// From its beginning to its end.
    pub wall: f64,
    /// What it computed, with the time of each, the longest first. Parts contain each other.
    pub parts: Vec<(String, f64)>,
}

/// What a part of a task may be.
const PARTS: [&str; 8] = [
    "EvaluateScript",
    "FireAnimationFrame",
    "FunctionCall",
    "Layout",
    "Paint",
    "ParseHTML",
    "TimerFire",
    "UpdateLayoutTree",
];

/// What a mark in a page begins with, by which [`windows`] are named.
pub const WINDOW: &str = "window: ";

/// The tasks of the main threads of a site's pages, in the events of a trace, from each mark to the next one. The browser
/// has pages of its own, which are left out.
pub fn windows(events: &[Value], site: &str) -> Vec<(String, Vec<Task>)> {
    let thread = |event: &Value| (event["pid"].as_i64(), event["tid"].as_i64());
    let is_part = |event: &Value| PARTS.iter().any(|part| event["name"] == *part);
    // Nothing but a main thread runs the scripts of a page and lays it out.
    let is_of_site = |event: &Value| is_part(event) && event["args"].to_string().contains(site);
    let mains: BTreeSet<_> = events
        .iter()
        .filter(|e| is_of_site(e))
        .map(thread)
        .collect();
    let micros = |event: &Value| event["ts"].as_f64().map(|time| time as i64);
    let marks = events.iter().filter_map(|event| {
        let name = event["name"].as_str()?.strip_prefix(WINDOW)?;
        Some((micros(event)?, name.to_owned()))
    });
    let marks: BTreeMap<_, _> = marks.collect();
    let mut windows: Vec<_> = marks
        .values()
        .map(|name| (name.clone(), Vec::new()))
        .collect();
    let millis = |event: &Value, field: &str| event[field].as_f64().unwrap_or_default() / 1e3;
    for main in mains {
        let own = events.iter().filter(|event| thread(event) == main);
        let (whole, parts): (Vec<_>, Vec<_>) = own
            .filter(|event| event["ph"] == "X")
            .partition(|event| event["name"] == "RunTask");
        for task in whole {
            let (from, wall) = (millis(task, "ts"), millis(task, "dur"));
            let is_inside = |part: &Value| (from..from + wall).contains(&millis(part, "ts"));
            let mut sums = BTreeMap::<String, f64>::new();
            // Of others nobody wants to know.
            if wall > 20.0 {
                for part in parts.iter().filter(|part| is_part(part) && is_inside(part)) {
                    let name = part["name"].as_str().unwrap_or_default();
                    *sums.entry(name.to_owned()).or_default() += millis(part, "tdur");
                }
            }
            let mut parts: Vec<_> = sums.into_iter().collect();
            parts.sort_by(|(_, one), (_, other)| other.total_cmp(one));
            let before = micros(task).map_or(0, |began| marks.range(..=began).count());
            let Some(window) = before.checked_sub(1) else {
                continue;
            };
            windows[window].1.push(Task {
                cpu: millis(task, "tdur"),
                wall,
                parts,
            });
        }
    }
    windows
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} ms, computing {:.0} ms", self.wall, self.cpu)?;
        for (name, time) in &self.parts {
            write!(f, ", {name} {time:.0}")?;
        }
        Ok(())
    }
}
